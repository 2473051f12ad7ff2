"""Erases chosen rows from everything that the archive feeds: landed files, the ledger, and all versions of the tables.

Without --execute the job only reports what it would erase. Afterwards --prove looks for what should be gone.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress
from pgoutput_etl.jobs.command import job_command, request_job
from pgoutput_etl.work.erasure.request import ForgetRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgoutput_etl.work.erasure.report import ForgetSummary, ProofSummary

EXAMPLE = "./spark-submit.sh jobs/forget.py --config conf/demo.yaml --request erasure.yaml"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--request", required=True, metavar="FILE", help="what to erase, as YAML: see docs/forget.md")
    add("--execute", action="store_true", help="erase; without it nothing is changed")
    add("--prove", action="store_true", help="look for what should be gone, in all bytes")


def _forget(
    spark: SparkSession, config: Config, request: ForgetRequest, progress: Progress
) -> ForgetSummary | ProofSummary:
    from pgoutput_etl.work.erasure.run import forget

    return forget(spark, config, request, progress)


def _print_report(report: ForgetSummary | ProofSummary) -> None:
    from pgoutput_etl.work.erasure.report import print_forget

    print_forget(report)


JOB = request_job("forget", ForgetRequest, _forget)

COMMAND = job_command("forget", __doc__, EXAMPLE, JOB, _print_report, add_options)
