"""The whole way, from landed files to Delta tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from pgoutput_etl import jit
from pgoutput_etl.config.settings import Config, Gaps
from pgoutput_etl.ingest.landed_files import (
    FileBatch,
    FilesChangedError,
    list_files,
    new_files,
    read_again,
    read_files,
    read_later,
)
from pgoutput_etl.ingest.quarantine import damage_remarks
from pgoutput_etl.jobs.apply.metrics import StageTimer
from pgoutput_etl.jobs.apply.report import RunSummary
from pgoutput_etl.jobs.backfill.run import finish_backfill
from pgoutput_etl.landing.file_index import FileIndex, Listing
from pgoutput_etl.landing.selection import FileSelection, tail_remark
from pgoutput_etl.landing.sequence_gaps import is_consecutive
from pgoutput_etl.ledger.batch import Batch, BatchResult
from pgoutput_etl.ledger.claims import RELEASED, Claim
from pgoutput_etl.ledger.ledger import Ledger
from pgoutput_etl.load.change_source import ChangeBlocks
from pgoutput_etl.load.prepare import prepare
from pgoutput_etl.load.summary import TableSummary
from pgoutput_etl.load.writer import TableResult, Writer
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.spark.session import background_jobs, writes_may_overlap
from pgoutput_etl.targets.batch_plan import settings_of
from pgoutput_etl.targets.plan import HELD, TableState, held_from, tables_ahead
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.outcome import TransactionStatus, summed_accounts
from pgoutput_etl.transactions.statistics import StatisticsRequest, transactions_by_status

Progress = Callable[[str], None]


def apply(
    spark: SparkSession, config: Config, progress: Progress, stages: StageTimer | None = None
) -> list[RunSummary]:
    """Brings every table to the last commit in the archive; a summary per batch. `stages`: is told which it is at.

    Usually that is one batch; several, one after the other, if what is new commits more than merge.max_transactions. If
    an earlier run died, its batch is finished first, with the files that it had.
    Raises PgoutputEtlError: batches that are done stay done; nothing else is written then, or what was is taken up by
    the next run.
    """
    if jit.WHY_NOT is not None:
        progress(f"the readable decoder does all, many times slower than compiled code would: {jit.WHY_NOT}")
    stages = stages or StageTimer()
    stages.start("look")
    ledger = Ledger(spark, config.state.root, config.source.name)
    summaries = []
    progress(f"looking for new files in {config.source.landing}")
    with ThreadPoolExecutor(2) as pool:
        listed = pool.submit(list_files, spark, config)
        last = ledger.last_batch()
        told = pool.submit(ledger.file_index, last)
        claim = _refuse_others(ledger, last, progress)
    listing, index = listed.result(), told.result()
    if last is not None and last.resumed:
        if last.backfill is None:
            read = partial(read_again, spark, config, last.files)
            summary, _ = _apply_claimed(spark, config, ledger, last, last, claim, read, progress, stages)
            summaries.append(summary)
        else:
            stages.start("finish_backfill")
            finish_backfill(spark, config, ledger, last, progress)
        stages.start("look")
        last, claim = ledger.last_batch(), None
        listing, index = list_files(spark, config), ledger.file_index(last)
    summaries += _apply_new(spark, config, ledger, last, claim, listing, index, progress, stages)
    return summaries or [_nothing_new(config, ledger, last, map(tail_remark, index.tails(listing)))]


def _apply_new(
    spark: SparkSession,
    config: Config,
    ledger: Ledger,
    last: Batch | None,
    claim: Claim | None,
    listing: Listing,
    index: FileIndex,
    progress: Progress,
    stages: StageTimer,
) -> list[RunSummary]:
    """`listing`: the files as they were listed. Each batch is done before the next one is claimed; where the files of a
    further one aren't as they were listed any more, they are looked for anew."""
    files, listing = new_files(spark, config, index, listing)
    summaries: list[RunSummary] = []
    later: Sequence[FileSelection] = ()
    read = partial(read_files, spark, config, files, index, listing)
    while later or (files and not summaries):
        batch = replace(Batch.after(last, {}), settings=settings_of(config))
        try:
            summary, later = _apply_claimed(spark, config, ledger, last, batch, claim, read, progress, stages)
        except FilesChangedError:
            stages.start("look")
            listing, index = list_files(spark, config), ledger.file_index(last)
            return summaries + _apply_new(spark, config, ledger, last, None, listing, index, progress, stages)
        summaries.append(summary)
        if later:
            progress(f"batch {batch.number} is done; what is left makes {len(later):,} more")
            last, claim = ledger.last_after(batch), None
            read = partial(read_later, spark, config, later)
    return summaries


def _refuse_others(ledger: Ledger, last: Batch | None, progress: Progress) -> Claim | None:
    """Raises RunError if another run is at work, also where this one would find nothing to do. What a run that died
    after its batch was done has left behind is taken away."""
    number = Batch.number_of_next(last)
    claim = ledger.claims().refuse_others(number)
    if last is not None and not last.resumed and claim is not None and claim.status != RELEASED:
        with ledger.claims().held(number, progress, claim):
            ledger.delete_ended(last)
        return None
    return claim


def _apply_claimed(
    spark: SparkSession,
    config: Config,
    ledger: Ledger,
    last: Batch | None,
    batch: Batch,
    claim: Claim | None,
    read: Callable[[], FileBatch],
    progress: Progress,
    stages: StageTimer,
) -> tuple[RunSummary, tuple[FileSelection, ...]]:
    """With what is left for further batches. `last`: what the ledger said when the batch was put together; `claim`: the
    last one then, if that is known; `read`: reads the batch's files, which changes nothing and so needs no claim."""
    progress(f"batch {batch.number}: looking into the files")
    stages.start("read")
    with background_jobs(spark) as others:
        reading, known = others.start(read), others.start(partial(ledger.assembly, batch))
        try:
            with ledger.claimed(last, batch, progress, claim) as check_claim:
                if batch.resumed:
                    progress(f"batch {batch.number} was begun by an earlier run that died: finishing it")
                landed = reading.result()
                batch = replace(batch, files=landed.parts)
                if not batch.files:
                    return _nothing_new(config, ledger, last, landed.remarks), ()
                assembly = known.result()
                done = _apply_batch(spark, config, ledger, batch, landed, assembly, check_claim, progress, stages)
                return done, landed.later
        finally:
            reading.add_done_callback(_give_up)


def _give_up(reading: Future[FileBatch]) -> None:
    if not reading.cancelled() and reading.exception() is None:
        reading.result().release()


def _apply_batch(
    spark: SparkSession,
    config: Config,
    ledger: Ledger,
    batch: Batch,
    landed: FileBatch,
    assembly: Assembly,
    check_claim: Callable[[], None],
    progress: Progress,
    stages: StageTimer,
) -> RunSummary:
    """Landed files, messages, transactions, changes, MERGE: the drawing in DESIGN, from left to right."""
    progress(f"batch {batch.number}: applying {len(batch.to_read):,} files, {batch.size:,} bytes")
    scans, path_of = landed.scan_output.scans, partial(ledger.path_of, batch)
    stages.start("prepare")
    prepared = prepare(spark, config, ledger, batch, landed, assembly)
    rows, plan = prepared.rows, prepared.plan.tables
    cutoffs, statistics = prepared.plan.cutoffs, prepared.plan.statistics
    stages.start("write")
    check_claim()
    changes_of_tables = ChangeBlocks(rows, cutoffs)
    with ThreadPoolExecutor(1) as pool:  # what is read meanwhile changes nothing
        begun = pool.submit(ledger.begin, batch)
        changes_of_tables.prepare(plan.tasks)
        begun.result()
    writer = Writer.of(spark, config, batch, assembly.last_commit_lsn, check_claim, path_of, progress)
    with ThreadPoolExecutor(1) as pool:
        noted = pool.submit(ledger.record_ahead, batch, rows, prepared.prior, statistics.messages)
        if not writes_may_overlap(spark):
            noted.result()
        outcomes = writer.write(plan, changes_of_tables)
        noted.result()

    check_claim()
    progress("writing the ledger")
    stages.start("ledger")
    changed = [(o.state, place, change) for o in outcomes for place, change in o.schema_changes]
    tables = [o.state for o in outcomes]
    not_applied = held_from(tables, cutoffs)
    counted = rows.statistics(StatisticsRequest(held_from=not_applied)) if not_applied else statistics
    accounts = counted.accounts() | landed.accounts_of_others()
    ledger.close(batch, BatchResult(rows, prepared.prior, scans, tables, changed, accounts))
    statuses = transactions_by_status(assembly.outcomes, statistics)
    damages = damage_remarks(scans, path_of)
    summary = _summary(config, batch, assembly, statuses, landed, outcomes, plan.skipped, accounts, damages)
    after = {**batch.tables, **{table.oid: table for table in tables}}
    return replace(
        summary,
        logical_messages=dict(statistics.messages),
        ahead=_ahead(after, assembly.last_commit_lsn),
        commits_without_prepare=_without_prepare(config, ledger, batch, assembly),
    )


def _without_prepare(config: Config, ledger: Ledger, batch: Batch, assembly: Assembly) -> tuple[str, ...]:
    """Commits of prepared transactions that may have been in a file that is missing: before PostgreSQL 18, one that was
    empty looks the same. Names of files that are numbered without a gap prove that it is one."""
    if config.source.gaps is not Gaps.REFUSE or not assembly.unknown_prepared:
        return ()
    paths = [path for _, path in sorted(batch.paths.items())]
    if is_consecutive([ledger.path_of(batch, batch.first_file - 1), *paths]):
        return ()
    return tuple(
        f"transaction {each.xid}, prepared as {each.gid!r} and committed at {format_lsn(each.commit_lsn)}: the archive "
        "has no Prepare of it. It was empty, if the server is older than PostgreSQL 18; else a file is missing. If no "
        "file is, say source.gaps: accept"
        for each in assembly.unknown_prepared
    )


def _ahead(tables: Mapping[int, TableState], last_commit_lsn: int) -> dict[str, int]:
    found = tables_ahead(tables, last_commit_lsn)
    return {f"{tables[oid].schema}.{tables[oid].table}": lsn + 1 for oid, lsn in found.items()}


def _summary(
    config: Config,
    batch: Batch,
    assembly: Assembly,
    statuses: Mapping[str, int],
    landed: FileBatch,
    outcomes: Iterable[TableResult],
    skipped: Iterable[str],
    accounts: Mapping[int, Mapping[str, int]],
    damages: Iterable[str],
) -> RunSummary:
    return RunSummary(
        source=config.source.name,
        batch=batch.number,
        files=len(batch.to_read),
        bytes=batch.size,
        last_commit_lsn=assembly.last_commit_lsn,
        messages=landed.messages(),
        tables=tuple(sorted((o.summary for o in outcomes if not o.is_passed_over), key=lambda t: (t.schema, t.table))),
        open_transactions=len(assembly.open_outcomes()),
        committed_transactions=statuses.get(TransactionStatus.COMMITTED.value, 0),
        resent_transactions=statuses.get(TransactionStatus.RESENT.value, 0),
        aborted_transactions=statuses.get(TransactionStatus.ABORTED.value, 0),
        unknown_prepared=len(assembly.unknown_prepared),
        refused_transactions=statuses.get(TransactionStatus.REFUSED.value, 0),
        last_commit_time=assembly.last_commit_ts,
        quarantined_transactions=statuses.get(TransactionStatus.QUARANTINED.value, 0),
        skipped=tuple(skipped),
        content_bytes=landed.content_bytes(),
        accounts=summed_accounts(accounts.values()),
        damages=tuple(damages),
        files_not_read=landed.not_read(),
        refused_files=landed.refused(),
    )


def _nothing_new(config: Config, ledger: Ledger, last: Batch | None, remarks: Iterable[str]) -> RunSummary:
    """With what earlier runs left (`remarks`) or set aside: nobody may have read what they said."""
    if last is None:
        return RunSummary(config.source.name, 0, 0, 0, 0, files_not_read=tuple(remarks))
    held = tuple(
        TableSummary(state.schema, state.table, state.path, state.version, held=state.reason)
        for state in last.tables.values()
        if state.status == HELD
    )
    left = ledger.leftovers()
    return RunSummary(
        config.source.name,
        last.number,
        0,
        0,
        last.last_commit_lsn,
        tables=held,
        quarantined_transactions=left.transactions,
        damages=left.damages,
        files_not_read=tuple(remarks),
        refused_files=left.refused_files,
        last_commit_time=None if last.state is None else last.state.get("last_commit_ts"),
        ahead=_ahead(last.tables, last.last_commit_lsn),
    )
