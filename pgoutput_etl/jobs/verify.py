"""Checks that Delta and PostgreSQL hold the same rows; writes nothing.

Compares tables with a server (--jdbc), or one table with PostgreSQL's CSV (--csv) or another Delta table (--delta):
first digests of key ranges, then the rows of ranges that differ. Prints keys only with --keys, and other values only
with --values.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pgoutput_etl.answers.verify.request import DEFAULT_LIMIT, VerifyRequest
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress
from pgoutput_etl.jobs.command import job_command, lsn, request_job, words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgoutput_etl.answers.verify.report import VerifySummary

EXAMPLE = (
    "PGPASSWORD=… ./spark-submit.sh --packages org.postgresql:postgresql:42.7.7 jobs/verify.py "
    "--config conf/local.yaml --jdbc jdbc:postgresql://db:5432/shop?user=etl"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    side = parser.add_mutually_exclusive_group(required=True)
    side.add_argument("--jdbc", metavar="URL", help="a live server; user and password come from PGUSER and PGPASSWORD")
    side.add_argument("--csv", metavar="PATH", help="output of COPY … TO … WITH (FORMAT csv, HEADER)")
    side.add_argument(
        "--delta", metavar="PATH", help="another Delta table's current version: a folder, or `catalog`.`schema`.`table`"
    )
    add("--tables", type=words, metavar="PATTERN,…", help="with --jdbc: tables to compare")
    add("--table", metavar="SCHEMA.TABLE", help="with --csv and --delta: the table to compare")
    add("--at-lsn", type=lsn, metavar="LSN", help="the LSN at which --csv or --delta was taken")
    add("--keys", action="store_true", help="print the keys of the listed rows")
    add("--values", action="store_true", help="print all values of the listed rows")
    add(
        "--limit",
        type=int,
        default=DEFAULT_LIMIT,
        metavar="N",
        help="differing rows to list per table (default: %(default)s)",
    )
    add("--connections", type=int, default=4, metavar="N", help="parallel connections (default: %(default)s)")


def _verify(spark: SparkSession, config: Config, request: VerifyRequest, progress: Progress) -> VerifySummary:
    from pgoutput_etl.answers.verify.run import verify

    return verify(spark, config, request, progress)


def _print_report(report: VerifySummary) -> None:
    from pgoutput_etl.answers.verify.report import print_verification

    print_verification(report)


JOB = request_job("verify", VerifyRequest, _verify)

COMMAND = job_command("verify", __doc__, EXAMPLE, JOB, _print_report, add_options)
