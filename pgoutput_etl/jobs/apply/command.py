"""The nightly job: brings every Delta table to the last commit in the archive."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pgoutput_etl.config.settings import Config, Metrics
from pgoutput_etl.console import ProgressPrinter
from pgoutput_etl.jobs.command import job_command, session

if TYPE_CHECKING:
    from pgoutput_etl.jobs.apply.report import RunReport


def _job(arguments: argparse.Namespace, config: Config) -> Callable[[], RunReport]:
    if config.metrics != Metrics():
        from pgoutput_etl.jobs.apply.metrics import check

        check(config.metrics)
    return partial(_apply, arguments, config)


def _apply(arguments: argparse.Namespace, config: Config) -> RunReport:
    from pgoutput_etl.jobs.apply.metrics import RunRecorder
    from pgoutput_etl.jobs.apply.pipeline import apply
    from pgoutput_etl.jobs.apply.report import RunReport
    from pgoutput_etl.jobs.next_commands import inspected

    with RunRecorder(config.source.name, config.metrics) as recorder:
        with session("apply", config, _is_light(config)) as spark, inspected(config):
            summaries = apply(spark, config, ProgressPrinter(arguments.quiet), recorder.stages)
        recorder.done(summaries)
    return RunReport(summaries)


def _print_report(report: RunReport) -> None:
    from pgoutput_etl.jobs.apply.report import print_summary

    for batch in report.batches:
        print_summary(batch)


def _is_light(config: Config) -> bool:
    from pgoutput_etl.jobs.apply.light_work import is_light

    return is_light(config)


EXAMPLE = "./spark-submit.sh jobs/apply.py --config conf/demo.yaml --set target.root=/data/demo"

COMMAND = job_command("apply", __doc__, EXAMPLE, _job, _print_report, is_light=_is_light)
