"""Computes what transactions changed, and writes SQL that undoes it: a bad deploy, a wrong UPDATE.

Rows that later transactions changed again are left as they are, and reported. The job only reads: it writes the script
and a page about it into a folder, and connects to no server.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pgoutput_etl.answers.undo.request import UndoRequest
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress
from pgoutput_etl.jobs.command import job_command, lsn, request_job, words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgoutput_etl.answers.undo.report import UndoSummary

EXAMPLE = "./spark-submit.sh jobs/undo.py --config conf/demo.yaml --xid 751 --into ./undo"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--xid", type=int, metavar="XID", help="the transaction to undo")
    add("--from-lsn", type=lsn, metavar="LSN", help="undo the commits from this one on")
    add("--to-lsn", type=lsn, metavar="LSN", help="undo the commits up to this one")
    add("--origin", metavar="NAME", help="undo only transactions from this replication origin")
    add("--tables", type=words, default=("*",), metavar="PATTERN,…", help="only these tables, as schema.table")
    add("--into", required=True, metavar="FOLDER", help="a folder for the script and the page")


def _undo(spark: SparkSession, config: Config, request: UndoRequest, progress: Progress) -> UndoSummary:
    from pgoutput_etl.answers.undo.run import undo

    return undo(spark, config, request, progress)


def _print_report(report: UndoSummary) -> None:
    from pgoutput_etl.answers.undo.report import print_undo

    print_undo(report)


JOB = request_job("undo", UndoRequest, _undo)

COMMAND = job_command("undo", __doc__, EXAMPLE, JOB, _print_report, add_options)
