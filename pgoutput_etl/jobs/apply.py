"""Applies what has landed: brings every Delta table to the last commit in the archive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pgoutput_etl.config.settings import Config, Metrics
from pgoutput_etl.console import Progress, ProgressPrinter, print_to_stderr
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.jobs.command import OutputOptions, PrintedReport, SourceOutcome, job_command, print_together, session
from pgoutput_etl.jobs.each_source import SourceUse, one_session
from pgoutput_etl.options import INTERVAL, Option
from pgoutput_etl.standard_output import StandardOutput

if TYPE_CHECKING:
    from pgoutput_etl.work.files.follow import Follower, FollowReport
    from pgoutput_etl.work.files.report import RunSummary


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    follow: Annotated[
        timedelta | None,
        Option("keep running, and apply what has landed every INTERVAL (60s, 5m), until SIGTERM", INTERVAL),
    ] = None

    def check(self) -> None:
        if self.follow is not None and self.follow < timedelta(seconds=1):
            raise ConfigError("--follow: expected 1s or more")


def _check_metrics(config: Config) -> None:
    if config.metrics != Metrics():
        from pgoutput_etl.outputs.publish import RunPublisher

        RunPublisher.of(config.source.name, config.metrics).check()


def _apply(request: ApplyRequest, config: Config, output: OutputOptions) -> PrintedReport:
    _check_metrics(config)
    if request.follow is not None:
        return _follow(request.follow, config, output)
    from pgoutput_etl.answers.next_commands import inspected
    from pgoutput_etl.spark.class_archive import keep_classes
    from pgoutput_etl.work.batch import Watch, World
    from pgoutput_etl.work.files.light_work import is_light
    from pgoutput_etl.work.files.missing_rows import load_missing_rows
    from pgoutput_etl.work.files.pipeline import apply_run
    from pgoutput_etl.work.files.recorder import RunRecorder
    from pgoutput_etl.work.files.report import RunReport, print_run

    with RunRecorder(config.source.name, config.metrics, config.notify) as recorder:
        with session("apply", config, is_light(config)) as spark, inspected(config):
            progress = ProgressPrinter(output.quiet)
            load_missing_rows(spark, config, progress)
            watch = Watch(progress, recorder.stages.start, recorder.stages.lap)
            summaries = apply_run(World.of(spark, config), watch)
            if any(batch.files for batch in summaries):
                keep_classes(progress)
        recorder.done(summaries)
    return PrintedReport.of(RunReport(summaries), print_run)


def _follow(interval: timedelta, config: Config, output: OutputOptions) -> PrintedReport:
    from pgoutput_etl.answers.next_commands import inspected
    from pgoutput_etl.work.files.follow import follow, stop_signal

    progress = ProgressPrinter(output.quiet)
    with stop_signal(progress) as is_stopping, session("apply", config) as spark, inspected(config):
        report = follow(spark, config, interval.total_seconds(), is_stopping, _batch_printer(output), progress)
    return _ended(report)


def _ended(report: FollowReport) -> PrintedReport:
    return PrintedReport.of(report, lambda ended: print(ended.line()))


def _batch_printer(output: OutputOptions, heading: str = "") -> Callable[[RunSummary], None]:
    from pgoutput_etl.work.files.follow import batch_json, batch_line
    from pgoutput_etl.work.files.report import print_summary

    def print_batch(batch: RunSummary) -> None:
        with StandardOutput():
            if output.json:
                print(batch_json(batch))
                return
            if batch.exit_code:
                print_summary(batch)
            print(f"{heading}{batch_line(batch)}")

    return print_batch


def _follow_each(request: ApplyRequest, configs: Sequence[Config], output: OutputOptions) -> int | None:
    """Follows several sources in turns, until SIGTERM, or until an error in one of them, after the others' polls."""
    if request.follow is None:
        return None
    from pgoutput_etl.spark.session import is_running
    from pgoutput_etl.work.files.follow import Follower, polls, stop_signal

    for config in configs:
        _check_metrics(config)
    progress = ProgressPrinter(output.quiet)
    with stop_signal(progress) as is_stopping, one_session(), session("apply", configs[0]) as spark:
        followed = []
        for config in configs:
            name = config.source.name
            own_progress, printer = partial(_named, progress, name), _batch_printer(output, f"{name}: ")
            follower = Follower.of(spark, config, is_stopping, printer, own_progress)
            followed.append((SourceOutcome("apply", config, has_others=True), follower))
        has_failed = False
        for _ in polls(request.follow.total_seconds(), is_stopping):
            for outcome, follower in followed:
                if is_stopping() or (has_failed and not is_running(spark)):
                    break
                has_failed = not _polled(outcome, follower) or has_failed
            if has_failed:
                break
    return _print_ended(followed, output)


def _named(progress: Progress, source: str, text: str) -> None:
    progress(f"{source}: {text}")


def _polled(outcome: SourceOutcome, follower: Follower) -> bool:
    """False after an error, which has been printed."""
    from pgoutput_etl.answers.next_commands import inspected

    with outcome, inspected(outcome.config):
        follower.look()
    if outcome.failed:
        print_to_stderr(f"source {outcome.config.source.name}: this error ends the process")
    return not outcome.failed


def _print_ended(followed: Sequence[tuple[SourceOutcome, Follower]], output: OutputOptions) -> int:
    for outcome, follower in followed:
        if not outcome.failed:
            outcome.printed = _ended(follower.ended())
            outcome.print(output)
    return print_together([outcome for outcome, _ in followed], output, indent=None, stopped=True)


EXAMPLE = "./spark-submit.sh jobs/apply.py --config conf/demo.yaml --set target.root=/data/demo"

EACH_SOURCE: SourceUse[ApplyRequest] = SourceUse(lambda _: False)

COMMAND = job_command("apply", __doc__, EXAMPLE, ApplyRequest, _apply, sources=EACH_SOURCE, at_once=_follow_each)
