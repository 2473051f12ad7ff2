"""Reports what the nightly job would do now; writes nothing."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import ProgressPrinter
from pgoutput_etl.jobs.command import job_command, session

if TYPE_CHECKING:
    from pgoutput_etl.work.plan.report import PlanSummary


def _job(arguments: argparse.Namespace, config: Config) -> Callable[[], PlanSummary]:
    return partial(_plan, arguments, config)


def _plan(arguments: argparse.Namespace, config: Config) -> PlanSummary:
    from pgoutput_etl.answers.next_commands import inspected
    from pgoutput_etl.work.plan.run import plan

    with session("plan", config) as spark, inspected(config):
        return plan(spark, config, ProgressPrinter(arguments.quiet))


def _print_report(report: PlanSummary) -> None:
    from pgoutput_etl.work.plan.report import print_plan

    print_plan(report)


COMMAND = job_command("plan", __doc__, "./spark-submit.sh jobs/plan.py --config conf/demo.yaml", _job, _print_report)
