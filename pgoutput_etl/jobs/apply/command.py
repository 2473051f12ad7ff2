"""The nightly job: brings every Delta table to the last commit in the archive."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress
from pgoutput_etl.jobs.apply.metrics import RunRecorder, check
from pgoutput_etl.jobs.apply.pipeline import apply
from pgoutput_etl.jobs.apply.report import RunSummary, exit_code_of_run, print_summary, to_json
from pgoutput_etl.jobs.command import Command, add_config, add_usual, run_job, session


@dataclass(frozen=True, slots=True)
class Batches:
    """Those of one run: the one that an earlier run left, and the new ones."""

    summaries: Sequence[RunSummary]

    @property
    def exit_code(self) -> int:
        return exit_code_of_run(self.summaries)

    def to_json(self) -> str:
        return to_json(self.summaries)


def _show(batches: Batches) -> None:
    for summary in batches.summaries:
        print_summary(summary)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_usual(parser)


def run(arguments: argparse.Namespace) -> int:
    def job(config: Config) -> Batches:
        check(config.metrics)
        with RunRecorder(config.source.name, config.metrics) as measuring:
            with session("apply", config) as spark:
                summaries = apply(spark, config, Progress(arguments.quiet), measuring.stages)
            measuring.done(summaries)
        return Batches(summaries)

    return run_job(arguments, job, _show)


COMMAND = Command(
    "apply",
    __doc__,
    "./spark-submit.sh jobs/apply.py --config conf/local.yaml --set target.root=/data/shop",
    add_arguments,
    run,
)
