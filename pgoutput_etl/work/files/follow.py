"""Applies new files again and again, in one warm session: `apply --follow`.

Each poll is a separate run that claims each of its batches. Between two polls, any other run may work on the source. If
another run is active, the poll leaves the work to it.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from types import FrameType

from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, counted, duration, no_progress
from pgoutput_etl.errors import AnotherRunError
from pgoutput_etl.landing.file_index import Listing
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.targets.condition import consistency_line
from pgoutput_etl.work.batch import Watch, World
from pgoutput_etl.work.files.missing_rows import load_missing_rows
from pgoutput_etl.work.files.pipeline import apply_run
from pgoutput_etl.work.files.recorder import RunRecorder
from pgoutput_etl.work.files.report import RunSummary
from pgoutput_etl.work.files.summary import found_nothing
from pgoutput_etl.work.upkeep.request import MaintainRequest
from pgoutput_etl.work.upkeep.run import maintain

MOST_TRANSACTIONS = 100_000  # in a batch of several files, unless a limit is configured

BATCHES_PER_UPKEEP = 100  # a batch adds a small file to most of the ledger's tables, and each poll reads them all

_LEDGER_INTERVAL = 600  # seconds between reads of the ledger while nothing lands: a run may have died within a batch

_NAP = 0.1  # seconds; a signal doesn't interrupt a longer sleep


@contextmanager
def stop_signal(progress: Progress) -> Iterator[Callable[[], bool]]:
    """Within the context, the first SIGTERM only makes the yielded function return True; the second ends the
    process."""
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        received.append(number)
        signal.signal(signal.SIGTERM, before)
        progress("SIGTERM: stopping after the current batch")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True, slots=True)
class FollowReport:
    """batches: number applied by this process. last: the last poll's summary; None before the first poll."""

    batches: int
    last: RunSummary | None

    @property
    def exit_code(self) -> int:
        return 0 if self.last is None else self.last.exit_code

    def to_json(self) -> str:
        """One line, after a line from `batch_json` for each batch."""
        last = {} if self.last is None else {"batch": self.last.batch, "lsn": format_lsn(self.last.last_commit_lsn)}
        return json.dumps({"stopped": True, "batches": self.batches, **last, "exit_code": self.exit_code})

    def line(self) -> str:
        stopped = f"Stopped after {counted(self.batches, 'batch', 'batches')}."
        if self.last is None:
            return stopped
        return f"{stopped} {consistency_line(self.last.last_commit_lsn, self.last.excepted)}"


@dataclass(slots=True)
class Follower:
    """report: called with each applied batch. keep_up: compacts the ledger. load_missing: loads the rows of tables that
    appeared without them, if configured."""

    world: World
    watch: Watch
    report: Callable[[RunSummary], None]
    keep_up: Callable[[], object]
    load_missing: Callable[[], object] = lambda: None
    last: RunSummary | None = None
    listing: Listing | None = None
    looked_at: float = 0.0
    batches: int = 0

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        config: Config,
        is_stopping: Callable[[], bool],
        report: Callable[[RunSummary], None],
        progress: Progress,
    ) -> Follower:
        """Batches have limits, so `is_stopping` and other runs don't wait for a whole backlog."""
        limit = config.merge.max_transactions or MOST_TRANSACTIONS
        config = replace(config, merge=replace(config.merge, max_transactions=limit))
        request = MaintainRequest((), ("optimize", "checkpoint"), execute=True)
        keep_up = partial(maintain, spark, config, request, no_progress)
        load_missing = partial(load_missing_rows, spark, config, progress)
        return cls(World.of(spark, config), Watch(progress, is_stopping=is_stopping), report, keep_up, load_missing)

    def ended(self) -> FollowReport:
        return FollowReport(self.batches, self.last)

    def look(self) -> None:
        """Polls once: applies new files, unless another run is active. Raises PgoutputEtlError."""
        config = self.world.config
        with RunRecorder(config.source.name, config.metrics, config.notify, is_look=True) as recorder:
            try:
                summaries = self._summaries(replace(self.watch, enter=recorder.stages.start, lap=recorder.stages.lap))
            except AnotherRunError as error:
                self.listing = None
                self.watch.progress(f"waiting: {error}")
                return
            recorder.done(summaries)
        self.last = summaries[-1]
        for summary in summaries:
            if summary.files:
                self.report(summary)
                self.batches += 1
                if self.batches % BATCHES_PER_UPKEEP == 0:
                    self._keep_up()

    def _summaries(self, watch: Watch) -> Sequence[RunSummary]:
        listing = self.world.landing.listing()
        is_due = time.monotonic() - self.looked_at >= _LEDGER_INTERVAL
        if (
            self.last is not None
            and self.listing is not None
            and not is_due
            and listing.table.equals(self.listing.table)
            and listing.not_plain == self.listing.not_plain
        ):
            return [found_nothing(self.last)]
        self.load_missing()
        summaries = apply_run(self.world, watch, leaves_to_others=True)
        is_done = summaries[-1].unpublished is None
        self.listing, self.looked_at = listing if is_done else None, time.monotonic()
        return summaries

    def _keep_up(self) -> None:
        self.watch.progress("compacting the ledger")
        try:
            self.keep_up()
        except AnotherRunError as error:
            self.watch.progress(f"the ledger is compacted later: {error}")


def follow(
    spark: SparkSession,
    config: Config,
    seconds: float,
    is_stopping: Callable[[], bool],
    report: Callable[[RunSummary], None],
    progress: Progress = no_progress,
) -> FollowReport:
    """Applies new files every `seconds` seconds, until `is_stopping`. report: called with each batch. Raises
    PgoutputEtlError, except if another run is active."""
    follower = Follower.of(spark, config, is_stopping, report, progress)
    for _ in polls(seconds, is_stopping):
        follower.look()
    return follower.ended()


def polls(seconds: float, is_stopping: Callable[[], bool]) -> Iterator[None]:
    """Yields when a poll is due. seconds: from the start of one to the start of the next."""
    while not is_stopping():
        began = time.monotonic()
        yield
        while not is_stopping() and (left := began + seconds - time.monotonic()) > 0:
            time.sleep(min(left, _NAP))


def batch_line(summary: RunSummary) -> str:
    """An applied batch in one line."""
    changed = [table for table in summary.tables if table.changed_rows]
    rows = sum(table.changed_rows for table in changed)
    lag = summary.lag(datetime.now(timezone.utc))
    line = (
        f"Batch {summary.batch}: {counted(summary.files, 'file')}, "
        f"{counted(summary.committed_transactions, 'transaction')}, {counted(rows, 'changed row')} in "
        f"{counted(len(changed), 'table')}; through LSN {format_lsn(summary.last_commit_lsn)}"
    )
    return f"{line}." if lag is None else f"{line}, {duration(lag)} behind."


def batch_json(summary: RunSummary) -> str:
    """An applied batch in one line. lag_seconds: time from its last commit until now."""
    now = datetime.now(timezone.utc)
    return json.dumps({**summary.values(), "at": now.isoformat(), "lag_seconds": summary.lag(now)})
