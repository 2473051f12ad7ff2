"""The nightly job: scan -> assemble -> plan -> load -> close. `jobs/plan` stops before load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from pgoutput_etl import jit
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, counted, no_progress
from pgoutput_etl.errors import AnotherRunError
from pgoutput_etl.ingest.landed_files import FileBatch, new_files, read_again, read_files, read_later
from pgoutput_etl.ingest.listing import FilesChangedError
from pgoutput_etl.ingest.rounded_floats import files_with_rounded_floats
from pgoutput_etl.jobs.apply.recorder import StageTimer
from pgoutput_etl.jobs.apply.report import RunSummary
from pgoutput_etl.jobs.apply.summary import batch_metrics, nothing_new, summarize, with_refused
from pgoutput_etl.jobs.backfill.run import finish_backfill
from pgoutput_etl.jobs.batch_plan import BatchPlan, plan_batch, with_creations
from pgoutput_etl.jobs.run import Backlog, Run, find_backlog
from pgoutput_etl.landing.selection import FileSelection, tail_remark
from pgoutput_etl.ledger.batch import Batch, BatchResult
from pgoutput_etl.ledger.claims import RELEASED
from pgoutput_etl.load.writer import TableResult, Writer
from pgoutput_etl.spark.retries import was_lost
from pgoutput_etl.targets.plan import HELD
from pgoutput_etl.targets.target_plan import settings_of
from pgoutput_etl.transactions.assembly import Assembly

_ATTEMPTS = 5  # as long as files are renamed or machines are lost


def apply(
    spark: SparkSession, config: Config, progress: Progress = no_progress, stages: StageTimer | None = None
) -> list[RunSummary]:
    """Brings every table to the archive's last commit; one summary per batch.

    A batch that an earlier run left unfinished is finished first, with the files it had. New files make one batch, or
    several if they commit more than merge.max_transactions. Raises PgoutputEtlError: closed batches stay closed, and
    the next run finishes an open one.
    """
    stages = stages or StageTimer()
    if jit.WHY_NOT is not None:
        progress(f"decoding without compiled code, which is many times slower: {jit.WHY_NOT}")
    return apply_run(Run.of(spark, config, progress, stages.start, stages.lap))


def apply_run(run: Run, leaves_to_others: bool = False) -> list[RunSummary]:
    """Like `apply`. If files have changed since they were listed or scanned, or a machine was lost along with the rows
    that it had scanned, starts again with the remaining work: the files that are new now, or the rest of the unfinished
    batch.

    leaves_to_others: another run that starts between two batches is not an error, and the rest is left to it.
    """
    summaries: list[RunSummary] = []
    failures = 0
    while True:
        finished = len(summaries)
        run.enter("look")
        backlog = _find_backlog(run)
        try:
            if backlog.interrupted is not None:
                summaries += _finish_interrupted(run, backlog, backlog.interrupted)
                if run.is_stopping() and summaries:
                    return summaries
                run.enter("look")
                backlog = _find_backlog(run)
            for summary in _apply_new_files(run, backlog):
                summaries.append(summary)
        except Exception as error:
            failures = 1 if len(summaries) > finished else failures + 1
            if leaves_to_others and summaries and isinstance(error, AnotherRunError):
                run.progress(f"leaving the rest: {error}")
                return summaries
            reason = _reason_to_try_again(error)
            if reason is None or failures == _ATTEMPTS:
                raise
            run.progress(f"starting again: {reason}")
            continue
        tails = map(tail_remark, backlog.index.tails(backlog.listing))
        *others, last = summaries or [nothing_new(run, backlog.last, tails)]
        return [*others, with_refused(run.config, last, backlog.listing.not_plain.values())]


def _reason_to_try_again(error: Exception) -> str | None:
    if isinstance(error, FilesChangedError):
        return str(error)
    return "Spark gave up a job because it lost executors" if was_lost(error) else None


def _find_backlog(run: Run) -> Backlog:
    """First completes the work of a run that died, or could not publish, after its batch was done."""
    backlog = find_backlog(run)
    last, claim = backlog.last, backlog.claim
    if last is None or last.resumed:
        return backlog
    has_leftovers = claim is not None and claim.status != RELEASED
    if not has_leftovers and run.ledger.publisher.has_published(last):
        return backlog
    with run.ledger.batches.claimed(last, Batch.after(last, {}), run.progress, claim):
        if has_leftovers:
            run.ledger.delete_ended(last)
        run.ledger.publish(last)
    return backlog.after(last)


def _finish_interrupted(run: Run, backlog: Backlog, batch: Batch) -> list[RunSummary]:
    if batch.work is not None:
        run.enter("finish_backfill")
        finish_backfill(run.archive_of(batch), run.targets, run.progress)
        return []
    summary, _ = _claim_and_apply(run, backlog, batch, partial(read_again, run.landing, batch.files))
    return [summary]


def _apply_new_files(run: Run, backlog: Backlog) -> Iterator[RunSummary]:
    """Closes each batch before it claims the next. Raises FilesChangedError."""
    files = new_files(backlog.index, backlog.listing)
    read = partial(read_files, run.landing, files, backlog.index, backlog.listing)
    are_left = bool(files)
    while are_left:
        batch = replace(Batch.after(backlog.last, {}), settings=settings_of(run.config))
        summary, later = _claim_and_apply(run, backlog, batch, read)
        yield summary
        if are_left := bool(later) and not run.is_stopping():
            run.progress(f"batch {batch.number} is done; {len(later):,} more to go")
            backlog = backlog.after(run.ledger.batches.last_after(batch))
            read = partial(read_later, run.landing, later)


def _claim_and_apply(
    run: Run, backlog: Backlog, batch: Batch, read: Callable[[], FileBatch]
) -> tuple[RunSummary, tuple[FileSelection, ...]]:
    """The batch's summary, and the files left for later batches. read: scans the batch's files, which changes nothing
    and so need not wait for the claim."""
    run.progress(f"batch {batch.number}: scanning files")
    run.enter("read")
    with run.background() as jobs:
        reading, state_before = jobs.start(read), jobs.start(partial(run.ledger.history.assembly, batch))
        try:
            with run.ledger.batches.claimed(backlog.last, batch, run.progress, backlog.claim) as check_claim:
                if batch.resumed:
                    run.progress(f"batch {batch.number}: finishing what a run before has begun")
                files = reading.result()
                batch = replace(batch, files=files.parts)
                if not batch.files:
                    return nothing_new(run, backlog.last, files.remarks), ()
                with files.rereading():
                    return _apply_batch(run, batch, files, state_before.result(), check_claim), files.later
        finally:
            reading.add_done_callback(_release)


def _release(reading: Future[FileBatch]) -> None:
    if not reading.cancelled() and reading.exception() is None:
        reading.result().release()


def _apply_batch(
    run: Run, batch: Batch, files: FileBatch, assembly: Assembly, check_claim: Callable[[], None]
) -> RunSummary:
    run.progress(f"batch {batch.number}: applying {counted(len(batch.to_read), 'file')}, {counted(batch.size, 'byte')}")
    run.enter("prepare")
    plan = _plan(run, batch, files, assembly)
    batch, files = plan.batch, plan.files
    run.enter("write")
    check_claim()
    results = _with_creation(run, batch, _load(run, plan, check_claim))
    check_claim()
    run.progress("writing the ledger")
    run.enter("ledger")
    tables = [result.state for result in results]
    changes = [(r.state, position, change) for r in results for position, change in r.schema_changes]
    accounts = plan.accounts([table.oid for table in tables if table.status == HELD])
    scans = files.scan_output.scans
    rounded = tuple(plan.path_of(number) for number in files_with_rounded_floats(plan.rows))
    result = BatchResult(plan.rows, plan.prior, scans, tables, changes, accounts)
    run.ledger.close(batch, result, lambda: batch_metrics(run.lap(), plan.transactions(), results))
    return replace(summarize(run, plan, results, accounts), rounded_floats=rounded)


def _with_creation(run: Run, batch: Batch, results: list[TableResult]) -> list[TableResult]:
    """The results, with the creation of new tables as far as a snapshot's catalog proves it."""
    states = with_creations(run, batch, [result.state for result in results])
    return [replace(result, state=state) for result, state in zip(results, states, strict=True)]


def _plan(run: Run, batch: Batch, files: FileBatch, assembly: Assembly) -> BatchPlan:
    """Plans the batch. Scans the files again if the scanned rows were lost. Raises FilesChangedError if the files have
    changed, too."""
    try:
        with files.rereading():
            return plan_batch(run, batch, files, assembly)
    except Exception as error:
        reason = _reason_to_try_again(error)
        if reason is None:
            raise
        run.progress(f"scanning again: {reason}")
        return plan_batch(run, batch, files.scanned_again(), run.ledger.history.assembly(batch))


def _load(run: Run, plan: BatchPlan, check_claim: Callable[[], None]) -> list[TableResult]:
    """Writes every table of the plan. Meanwhile the ledger records the batch's beginning, before any table is written,
    and then everything that does not depend on the written tables."""
    with run.machine.pool(1) as pool:
        begun = pool.submit(run.ledger.batches.begin, plan.batch)
        changes = run.targets.batch_changes(plan.rows, plan.targets.cutoffs, plan.tables.tasks)
        begun.result()
    last_commit_lsn = plan.assembly.last_commit_lsn
    callbacks = (check_claim, plan.path_of, run.progress, plan.files.rereading)
    writer = Writer(run.targets, run.config, plan.batch, last_commit_lsn, *callbacks)
    with run.machine.pool(1) as pool:
        statistics = plan.targets.statistics
        recorded = pool.submit(run.ledger.record_ahead, plan.batch, plan.rows, plan.prior, statistics)
        if not run.targets.may_overlap:
            recorded.result()
        results = writer.write(plan.tables, changes)
        recorded.result()
    return results
