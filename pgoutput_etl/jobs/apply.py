"""The nightly job: brings every Delta table to the last commit in the archive."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from pgoutput_etl.config.settings import Config, Metrics
from pgoutput_etl.console import ProgressPrinter
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.jobs.command import interval, job_command, session
from pgoutput_etl.standard_output import StandardOutput

if TYPE_CHECKING:
    from pgoutput_etl.work.files.follow import FollowReport
    from pgoutput_etl.work.files.report import RunReport, RunSummary

    Report: TypeAlias = RunReport | FollowReport


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--follow",
        type=interval,
        metavar="INTERVAL",
        help="keep running, and apply what has landed every INTERVAL (60s, 5m), until SIGTERM",
    )


def _job(arguments: argparse.Namespace, config: Config) -> Callable[[], Report]:
    if arguments.follow is not None and arguments.follow < timedelta(seconds=1):
        raise ConfigError("--follow: expected 1s or more")
    if config.metrics != Metrics():
        from pgoutput_etl.outputs.publish import RunPublisher

        RunPublisher.of(config.source.name, config.metrics).check()
    return partial(_apply if arguments.follow is None else _follow, arguments, config)


def _apply(arguments: argparse.Namespace, config: Config) -> RunReport:
    from pgoutput_etl.answers.next_commands import inspected
    from pgoutput_etl.work.files.missing_rows import load_missing_rows
    from pgoutput_etl.work.files.pipeline import apply
    from pgoutput_etl.work.files.recorder import RunRecorder
    from pgoutput_etl.work.files.report import RunReport

    with RunRecorder(config.source.name, config.metrics) as recorder:
        with session("apply", config, _is_light(arguments, config)) as spark, inspected(config):
            progress = ProgressPrinter(arguments.quiet)
            load_missing_rows(spark, config, progress)
            summaries = apply(spark, config, progress, recorder.stages)
        recorder.done(summaries)
    return RunReport(summaries)


def _follow(arguments: argparse.Namespace, config: Config) -> FollowReport:
    from pgoutput_etl.answers.next_commands import inspected
    from pgoutput_etl.work.files.follow import follow, stop_signal

    progress = ProgressPrinter(arguments.quiet)
    with stop_signal(progress) as is_stopping, session("apply", config) as spark, inspected(config):
        report = _print_json if arguments.json else _print_batch
        return follow(spark, config, arguments.follow.total_seconds(), is_stopping, report, progress)


def _print_json(batch: RunSummary) -> None:
    from pgoutput_etl.work.files.follow import batch_json

    with StandardOutput():
        print(batch_json(batch))


def _print_batch(batch: RunSummary) -> None:
    from pgoutput_etl.work.files.follow import batch_line
    from pgoutput_etl.work.files.report import print_summary

    with StandardOutput():
        if batch.exit_code:
            print_summary(batch)
        print(batch_line(batch))


def _print_report(report: Report) -> None:
    from pgoutput_etl.work.files.report import RunReport, print_summary

    if not isinstance(report, RunReport):
        print(report.line())
        return
    for batch in report.batches:
        print_summary(batch)


def _is_light(arguments: argparse.Namespace, config: Config) -> bool:
    from pgoutput_etl.work.files.light_work import is_light

    return arguments.follow is None and is_light(config)


EXAMPLE = "./spark-submit.sh jobs/apply.py --config conf/demo.yaml --set target.root=/data/demo"

COMMAND = job_command("apply", __doc__, EXAMPLE, _job, _print_report, _add_options)
