"""Keeps a source's Delta tables and its ledger fast and small. Changes nothing without --execute.

Compacts small files (OPTIMIZE), removes files that no recent version needs (VACUUM), writes checkpoints of the Delta
logs, deletes obsolete rows of the ledger, and removes displaced tables. May run beside the nightly job; steps that
would not be safe then are skipped and reported.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress
from pgoutput_etl.jobs.command import job_command, request_job, words
from pgoutput_etl.work.upkeep.request import MIN_KEEP_DAYS, STEPS, MaintainRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgoutput_etl.work.upkeep.report import MaintainSummary

EXAMPLE = "./spark-submit.sh jobs/maintain.py --config conf/local.yaml --keep-days 30 --execute"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--execute", action="store_true", help="run the steps; without it, only list them")
    add("--tables", type=words, default=("*",), metavar="PATTERN,…", help="targets to maintain")
    add("--only", type=words, default=STEPS, metavar="STEP,…", help=f"some of {', '.join(STEPS)} (default: all)")
    add("--zorder", action="store_true", help="order targets' rows by their key; rewrites them")
    add(
        "--keep-days",
        type=int,
        default=MIN_KEEP_DAYS,
        metavar="N",
        help="VACUUM keeps files needed by versions of the last N days (default and minimum: %(default)s)",
    )
    add(
        "--ledger-keep-days",
        type=int,
        default=30,
        metavar="N",
        help="keep obsolete ledger rows and displaced tables for N days (default: %(default)s)",
    )


def _maintain(spark: SparkSession, config: Config, request: MaintainRequest, progress: Progress) -> MaintainSummary:
    from pgoutput_etl.work.upkeep.run import maintain

    return maintain(spark, config, request, progress)


def _print_report(report: MaintainSummary) -> None:
    from pgoutput_etl.work.upkeep.report import print_maintenance

    print_maintenance(report)


JOB = request_job("maintain", MaintainRequest, _maintain)

COMMAND = job_command("maintain", __doc__, EXAMPLE, JOB, _print_report, add_options)
