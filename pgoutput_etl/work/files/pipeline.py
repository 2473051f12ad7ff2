"""The apply job: scan -> assemble -> plan -> load -> close. `jobs/plan` stops before load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark.sql import SparkSession

from pgoutput_etl import jit
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, counted, no_progress
from pgoutput_etl.errors import AnotherRunError
from pgoutput_etl.ingest.landed_files import FileBatch, new_files, read_again, read_files, read_later
from pgoutput_etl.ingest.listing import FilesChangedError
from pgoutput_etl.landing.selection import FileSelection, tail_remark
from pgoutput_etl.ledger.batch import Batch, BatchResult
from pgoutput_etl.ledger.claims import RELEASED
from pgoutput_etl.load.targets import Changes
from pgoutput_etl.load.writer import TableResult, Writer
from pgoutput_etl.spark.retries import was_lost
from pgoutput_etl.targets.plan import HELD
from pgoutput_etl.targets.target_plan import settings_of
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.work.batch import Nothing, Prepared, Watch, World, run
from pgoutput_etl.work.files.backlog import Backlog, find_backlog
from pgoutput_etl.work.files.batch_plan import BatchPlan, plan_batch, with_creations
from pgoutput_etl.work.files.recorder import StageTimer
from pgoutput_etl.work.files.report import RunSummary
from pgoutput_etl.work.files.summary import batch_metrics, nothing_new, summarize, with_refused
from pgoutput_etl.work.kinds.unfinished import unfinished_work

_ATTEMPTS = 5  # while files are renamed or machines are lost


def apply(spark: SparkSession, config: Config, progress: Progress = no_progress) -> list[RunSummary]:
    """Brings every table to the archive's last commit. Returns one summary per batch.

    A batch that an earlier run left unfinished is finished first, with its files. New files make one batch, or several
    if they commit more than merge.max_transactions. After a PgoutputEtlError, closed batches stay closed, and the next
    run finishes an open one.
    """
    stages = StageTimer()
    return apply_run(World.of(spark, config), Watch(progress, stages.start, stages.lap))


def apply_run(world: World, watch: Watch, leaves_to_others: bool = False) -> list[RunSummary]:
    """Like `apply`. If files have changed since they were listed or scanned, or a machine was lost with the rows that
    it had scanned, starts over with the remaining work: files that are new now, or the rest of the unfinished batch.

    leaves_to_others: if another run starts between two batches, leaves the rest to it instead of raising an error.
    """
    if jit.WHY_NOT is not None and not leaves_to_others:
        watch.progress(f"decoding without compiled code, which is many times slower: {jit.WHY_NOT}")
    summaries: list[RunSummary] = []
    failures = 0
    while True:
        finished = len(summaries)
        watch.enter("look")
        backlog = _find_backlog(world, watch)
        try:
            if backlog.interrupted is not None:
                summaries += _finish_interrupted(world, watch, backlog, backlog.interrupted)
                if watch.is_stopping() and summaries:
                    return summaries
                watch.enter("look")
                backlog = _find_backlog(world, watch)
            files = new_files(backlog.index, backlog.listing)
            read = partial(read_files, world.landing, files, backlog.index, backlog.listing)
            for summary in _apply_files(world, watch, backlog, read) if files else ():
                summaries.append(summary)
        except Exception as error:
            failures = 1 if len(summaries) > finished else failures + 1
            if leaves_to_others and summaries and isinstance(error, AnotherRunError):
                watch.progress(f"leaving the rest: {error}")
                return summaries
            reason = _reason_to_try_again(error)
            if reason is None or failures == _ATTEMPTS:
                raise
            watch.progress(f"starting again: {reason}")
            continue
        tails = map(tail_remark, backlog.index.tails(backlog.listing))
        *others, last = summaries or [nothing_new(world, backlog.last, tails)]
        return [*others, with_refused(world.config, last, backlog.listing.not_plain.values())]


@dataclass(frozen=True, slots=True)
class AppliedFiles:
    """later: files that are left for later batches."""

    batch: Batch
    summary: RunSummary
    later: tuple[FileSelection, ...] = ()


def _reason_to_try_again(error: Exception) -> str | None:
    if isinstance(error, FilesChangedError):
        return str(error)
    return "Spark gave up a job because it lost executors" if was_lost(error) else None


def _find_backlog(world: World, watch: Watch) -> Backlog:
    """First finishes up for a run that couldn't publish, or died after its batch was done."""
    backlog, ledger = find_backlog(world, watch.progress), world.ledger
    last, claim = backlog.last, backlog.claim
    if last is None or last.resumed:
        return backlog
    has_leftovers = claim is not None and claim.status != RELEASED
    if not has_leftovers and (ledger.publisher is None or ledger.publisher.has_published(last)):
        return backlog
    with ledger.batches.claimed(last, Batch.after(last, {}), watch.progress, claim):
        if has_leftovers:
            ledger.delete_ended(last)
        ledger.publish(last)
    return backlog.after(last)


def _finish_interrupted(world: World, watch: Watch, backlog: Backlog, batch: Batch) -> list[RunSummary]:
    if batch.work is not None:
        watch.enter("finish_backfill")
        run(world.ledger, unfinished_work(world, batch, watch.progress), batch, Watch(watch.progress))
        return []
    return list(_apply_files(world, watch, backlog, partial(read_again, world.landing, batch.files)))


def _apply_files(world: World, watch: Watch, backlog: Backlog, read: Callable[[], FileBatch]) -> Iterator[RunSummary]:
    """Closes each batch before it claims the next. read: scans the first batch's files; since that changes nothing, it
    doesn't wait for the claim. Raises FilesChangedError."""
    while True:
        batch = Batch.next(backlog.last)
        watch.progress(f"batch {batch.number}: scanning files")
        watch.enter("read")
        with world.background() as threads:
            reading, state_before = threads.submit(read), threads.submit(world.ledger.history.assembly, batch)
            try:
                work = LandedFiles(world, watch, backlog.last, reading, state_before)
                applied = run(world.ledger, work, backlog.last, watch, backlog.claim)
            finally:
                reading.add_done_callback(_release)
        yield applied.summary
        if not applied.later or watch.is_stopping():
            return
        watch.progress(f"batch {applied.batch.number} is done; {len(applied.later):,} more to go")
        backlog = backlog.after(world.ledger.batches.last_after(applied.batch))
        read = partial(read_later, world.landing, applied.later)


def _release(reading: Future[FileBatch]) -> None:
    if not reading.cancelled() and reading.exception() is None:
        reading.result().release()


@dataclass(frozen=True, slots=True)
class LandedFiles:
    """Applies files. last: the previous batch. reading: the scan of the files. state_before: the ledger's state before
    the batch."""

    world: World
    watch: Watch
    last: Batch | None
    reading: Future[FileBatch]
    state_before: Future[Assembly]

    @contextmanager
    def prepare(self, batch: Batch, check_claim: Callable[[], None]) -> Iterator[PreparedFiles | Nothing[AppliedFiles]]:
        world, progress = self.world, self.watch.progress
        if batch.resumed:
            progress(f"batch {batch.number}: finishing what a run before has begun")
        files = self.reading.result()
        batch = replace(batch, files=files.parts).with_order(settings_of(world.config))
        if not batch.files:
            yield Nothing(AppliedFiles(batch, nothing_new(world, self.last, files.remarks)))
            return
        with files.rereading():
            counts = f"{counted(len(batch.to_read), 'file')}, {counted(batch.size, 'byte')}"
            progress(f"batch {batch.number}: applying {counts}")
            self.watch.enter("prepare")
            plan = self._plan(batch, files)
            yield PreparedFiles(world, self.watch, plan.batch, plan, check_claim)

    def _plan(self, batch: Batch, files: FileBatch) -> BatchPlan:
        """Plans the batch. Scans the files again if the scanned rows were lost. Raises FilesChangedError if the files
        have also changed."""
        world = self.world
        try:
            with files.rereading():
                return plan_batch(world, batch, files, self.state_before.result())
        except Exception as error:
            reason = _reason_to_try_again(error)
            if reason is None:
                raise
            self.watch.progress(f"scanning again: {reason}")
            return plan_batch(world, batch, files.scanned_again(), world.ledger.history.assembly(batch))


@dataclass(slots=True)
class PreparedFiles(Prepared[AppliedFiles]):
    world: World
    watch: Watch
    batch: Batch
    plan: BatchPlan
    check_claim: Callable[[], None]
    changes: Changes = field(init=False)
    results: list[TableResult] = field(init=False)
    accounts: dict[int, dict[str, int]] = field(init=False)

    def begin(self, record: Callable[[], None]) -> None:
        world, plan = self.world, self.plan
        with world.machine.pool(1) as pool:
            begun = pool.submit(record)
            self.changes = world.targets.batch_changes(plan.rows, plan.targets.cutoffs, plan.tables.tasks)
            begun.result()

    def write(self) -> None:
        """Writes every table of the plan. Meanwhile, the ledger records everything that doesn't depend on the written
        tables."""
        world, plan = self.world, self.plan
        callbacks = (self.check_claim, plan.path_of, self.watch.progress, plan.files.rereading)
        writer = Writer(world.targets, world.config, plan.batch, plan.assembly.last_commit_lsn, *callbacks)
        with world.machine.pool(1) as pool:
            statistics = plan.targets.statistics
            recorded = pool.submit(world.ledger.record_ahead, plan.batch, plan.rows, plan.prior, statistics)
            if not world.targets.may_overlap:
                recorded.result()
            results = writer.write(plan.tables, self.changes)
            recorded.result()
        states = with_creations(world, plan.batch, [result.state for result in results])
        self.results = [replace(result, state=state) for result, state in zip(results, states, strict=True)]

    def close(self) -> None:
        plan, results = self.plan, self.results
        self.watch.progress("writing the ledger")
        tables = [result.state for result in results]
        changes = [(r.state, position, change) for r in results for position, change in r.schema_changes]
        self.accounts = plan.accounts([table.oid for table in tables if table.status == HELD])
        result = BatchResult(plan.rows, plan.prior, plan.files.scan_output.scans, tables, changes, self.accounts)
        lap, transactions = self.watch.lap, plan.transactions
        self.world.ledger.close(plan.batch, result, lambda: batch_metrics(lap(), transactions(), results))

    def result(self) -> AppliedFiles:
        plan = self.plan
        summary = summarize(self.world, plan, self.results, self.accounts)
        return AppliedFiles(self.batch, replace(summary, rounded_floats=plan.rounded_floats()), plan.files.later)
