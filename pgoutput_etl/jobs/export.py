"""Writes tables as of any commit as files that PostgreSQL loads: one table as of 03:57, without a base backup.

By default as of the last applied commit. Writes one folder per table, and a script for psql that loads them in one
transaction.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pgoutput_etl.answers.export.request import ExportFormat, ExportRequest
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress
from pgoutput_etl.jobs.command import argument, job_command, request_job, words
from pgoutput_etl.jobs.moment_options import add_moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgoutput_etl.answers.export.report import ExportSummary

EXAMPLE = "./spark-submit.sh jobs/export.py --config conf/demo.yaml --tables public.acct --into ./acct"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tables", type=words, required=True, metavar="PATTERN,…", help="tables to write, as schema.table")
    add("--into", required=True, metavar="FOLDER", help="a new folder")
    add_moment(parser)
    add(
        "--format",
        type=argument(ExportFormat),
        default=ExportFormat.COPY,
        metavar="copy|sql",
        help="copy: COPY's text (default); sql: INSERT statements",
    )


def _export(spark: SparkSession, config: Config, request: ExportRequest, progress: Progress) -> ExportSummary:
    from pgoutput_etl.answers.export.run import export

    return export(spark, config, request, progress)


def _print_report(report: ExportSummary) -> None:
    from pgoutput_etl.answers.export.report import print_export

    print_export(report)


JOB = request_job("export", ExportRequest, _export)

COMMAND = job_command("export", __doc__, EXAMPLE, JOB, _print_report, add_options)
