"""Rebuilds tables from the archive, repairs the rows of a range of commits, or builds tables in another folder.

Without a range, whole tables are rebuilt. With a range, the rows that its commits changed are set to their current
state in the archive: rows deleted since stay deleted, and newer changes stay. The nightly job continues afterwards.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress
from pgoutput_etl.jobs.command import job_command, lsn, request_job, time, words
from pgoutput_etl.work.backfill.request import BackfillRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgoutput_etl.work.backfill.report import BackfillSummary

EXAMPLE = "./spark-submit.sh jobs/backfill.py --config conf/demo.yaml --tables 'public.acct,public.line*'"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    tables = parser.add_mutually_exclusive_group(required=True)
    tables.add_argument(
        "--tables", type=words, metavar="PATTERN,…", help="schema.table, as shell patterns; !PATTERN leaves out"
    )
    tables.add_argument("--from-quarantine", action="store_true", help="rebuild all held tables")
    range_ends = (
        ("--from-lsn", "first_lsn", lsn, "LSN", "the range's first commit, such as 16/B374D848"),
        ("--to-lsn", "last_lsn", lsn, "LSN", "the range's last commit"),
        ("--from-time", "first_time", time, "TIME", "the first commit by time: ISO 8601, UTC if no zone"),
        ("--to-time", "last_time", time, "TIME", "the last commit by time"),
    )
    for option, field, parse, metavar, description in range_ends:
        add(option, dest=field, type=parse, metavar=metavar, help=description)
    add("--into", metavar="ROOT", help="only build ROOT/schema/table, as of --to-lsn or --to-time")
    add("--since-version", type=int, metavar="N", help="start from the table's Delta version N, not from nothing")


def _backfill(spark: SparkSession, config: Config, request: BackfillRequest, progress: Progress) -> BackfillSummary:
    from pgoutput_etl.work.backfill.run import backfill

    return backfill(spark, config, request, progress)


def _print_report(report: BackfillSummary) -> None:
    from pgoutput_etl.work.backfill.report import print_backfill

    print_backfill(report)


JOB = request_job("backfill", BackfillRequest, _backfill)

COMMAND = job_command("backfill", __doc__, EXAMPLE, JOB, _print_report, add_options)
