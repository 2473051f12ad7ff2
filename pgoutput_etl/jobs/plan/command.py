"""Says what the nightly job would do now, and writes nothing."""

from __future__ import annotations

import argparse

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress
from pgoutput_etl.jobs.command import Command, add_config, add_usual, run_job, session
from pgoutput_etl.jobs.plan.report import PlanSummary, print_plan
from pgoutput_etl.jobs.plan.run import plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_usual(parser)


def run(arguments: argparse.Namespace) -> int:
    def job(config: Config) -> PlanSummary:
        with session("plan", config) as spark:
            return plan(spark, config, Progress(arguments.quiet))

    return run_job(arguments, job, print_plan)


COMMAND = Command("plan", __doc__, "./spark-submit.sh jobs/plan.py --config conf/local.yaml", add_arguments, run)
