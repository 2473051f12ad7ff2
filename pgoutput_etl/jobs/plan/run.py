"""What `apply` would do, by the same way up to where it begins to write, and then none of it done.

Nothing is written: no claim, no row of the ledger, no table. What a run would hold for its rows alone is found out by
typing them all, as apply does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.changes.events import DELETED, INSERTED, MOVED_IN, MOVED_OUT
from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ArchiveError, TableError
from pgoutput_etl.ingest.landed_files import FileBatch, list_files, new_files, read_again, read_files
from pgoutput_etl.ingest.quarantine import damage_remarks
from pgoutput_etl.inspection.report import kind_of_transaction
from pgoutput_etl.jobs.plan.report import PlannedFile, PlannedTable, PlannedTransaction, PlannedType, PlanSummary
from pgoutput_etl.landing.fingerprint import FilePart, FileStatus
from pgoutput_etl.landing.selection import tail_remark
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.ledger import Ledger
from pgoutput_etl.load.change_source import window_of
from pgoutput_etl.load.delta_types import delta_type
from pgoutput_etl.load.executors import all_events_of_blocks
from pgoutput_etl.load.net_effect import entries_of, event_key_parts, net_of_bag, no_entries, with_sequence
from pgoutput_etl.load.prepare import Prepared, prepare
from pgoutput_etl.load.writer import table_fault
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.targets.plan import HELD, HeldTable, SchemaSpan, TableChanges, TableState, TableTask
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.outcome import TransactionStatus, summed_accounts
from pgoutput_etl.transactions.statistics import StatisticsRequest, transactions_by_status

Progress = Callable[[str], None]

# Types whose own form is text.
_TEXTS = ("text", "varchar", "char", "bpchar", "name", "citext", '"char"')


def plan(spark: SparkSession, config: Config, progress: Progress) -> PlanSummary:
    """Raises PgoutputEtlError where apply would stop before it writes anything."""
    ledger = Ledger(spark, config.state.root, config.source.name)
    progress(f"looking for new files in {config.source.landing}")
    last = ledger.last_batch()
    ledger.claims().refuse_others(Batch.number_of_next(last))
    listing, index = list_files(spark, config), ledger.file_index(last)
    if last is not None and last.resumed:
        files, _ = new_files(spark, config, index.with_parts(last.files), listing)
        later = tuple(file.path for file in files.values())
        batches = None if config.merge.max_transactions is not None and len(later) > 1 else min(len(later), 1)
        if last.backfill is not None:
            said = "a backfill was begun by a run that died: it would be finished first; plan again then"
            return replace(_nothing(config, ledger, last), later_files=later, later_batches=batches, remarks=(said,))
        landed = read_again(spark, config, last.files)
        found = _planned(spark, config, ledger, last, landed, progress)
        return replace(found, later_files=later, later_batches=batches)
    files, listing = new_files(spark, config, index, listing)
    if not files:
        return replace(_nothing(config, ledger, last), files_not_read=tuple(map(tail_remark, index.tails(listing))))
    progress(f"looking into {len(files):,} files")
    landed = read_files(spark, config, files, index, listing)
    if not landed.parts:
        landed.release()
        return replace(_nothing(config, ledger, last), files_not_read=landed.remarks)
    later = tuple(part.path for step in landed.later for part in step.to_read.values())
    found = _planned(spark, config, ledger, Batch.after(last, landed.parts), landed, progress)
    return replace(found, later_files=later, later_batches=len(landed.later))


def _nothing(config: Config, ledger: Ledger, last: Batch | None) -> PlanSummary:
    """With what earlier runs set aside, as apply would say it once more."""
    if last is None:
        return PlanSummary(config.source.name, 0, 0)
    left = ledger.leftovers()
    return PlanSummary(
        config.source.name,
        last.number,
        last.last_commit_lsn,
        transactions={TransactionStatus.QUARANTINED.value: left.transactions},
        tables=tuple(_of_state(state) for state in last.tables.values() if state.status == HELD),
        damages=left.damages,
        refused_files=left.refused_files,
    )


def _of_state(state: TableState) -> PlannedTable:
    changes = _rows_in(TableChanges(state.oid))
    return PlannedTable(state.schema, state.table, state.path, changes, has_key=bool(state.key), held=state.reason)


def _planned(
    spark: SparkSession, config: Config, ledger: Ledger, batch: Batch, landed: FileBatch, progress: Progress
) -> PlanSummary:
    try:
        assembly = ledger.assembly(batch)
        progress("putting transactions together")
        prepared = prepare(spark, config, ledger, batch, landed, assembly)
        path_of = partial(ledger.path_of, batch)
        tasks = prepared.plan.tables.tasks
        with ThreadPoolExecutor(config.merge.parallel_tables) as pool:
            tables = list(pool.map(partial(_table, prepared, path_of, progress), tasks))
        not_applied = _not_applied(prepared, tasks, tables)
        tables += [_held(held) for held in prepared.plan.tables.held]
        statistics = (
            prepared.rows.statistics(StatisticsRequest(held_from=not_applied))
            if not_applied
            else prepared.plan.statistics
        )
        accounts = statistics.accounts() | landed.accounts_of_others()
        return _summary(config, batch, landed, assembly, prepared, tables, accounts, path_of)
    finally:
        landed.release()


def _summary(
    config: Config,
    batch: Batch,
    landed: FileBatch,
    assembly: Assembly,
    prepared: Prepared,
    tables: Iterable[PlannedTable],
    accounts: dict[int, dict[str, int]],
    path_of: Callable[[int], str],
) -> PlanSummary:
    statuses = transactions_by_status(assembly.outcomes, prepared.plan.statistics)
    waiting = assembly.open_outcomes()
    statuses[TransactionStatus.OPEN.value] = len(waiting)
    return PlanSummary(
        source=config.source.name,
        batch=batch.number,
        last_commit_lsn=assembly.last_commit_lsn,
        resumes=batch.resumed,
        files=tuple(_file(part) for _, part in sorted(landed.parts.items())),
        bytes=batch.size,
        messages=landed.messages(),
        transactions={status.value: statuses[status.value] for status in TransactionStatus},
        unknown_prepared=len(assembly.unknown_prepared),
        tables=tuple(sorted(tables, key=lambda t: (t.schema, t.table))),
        waiting=tuple(PlannedTransaction(o.xid, kind_of_transaction(o), o.gid) for o in waiting),
        skipped=tuple(prepared.plan.tables.skipped),
        vacated=tuple(prepared.plan.tables.vacated),
        content_bytes=landed.content_bytes(),
        accounts=summed_accounts(accounts.values()),
        damages=tuple(damage_remarks(landed.scan_output.scans, path_of)),
        refused_files=landed.refused(),
        files_not_read=landed.not_read(),
    )


def _file(part: FilePart) -> PlannedFile:
    what = part.status
    if what == FileStatus.READ.value:
        what = "grown" if part.offset else "new"
    return PlannedFile(part.path, what, part.size, part.offset)


def _not_applied(prepared: Prepared, tasks: Iterable[TableTask], tables: Iterable[PlannedTable]) -> dict[int, int]:
    """As targets.held_from has it, of tables that are not written yet."""
    held = [each.oid for each in prepared.plan.tables.held]
    held += [task.oid for task, table in zip(tasks, tables, strict=True) if table.held is not None]
    return {oid: prepared.plan.cutoffs[oid].lsn if oid in prepared.plan.cutoffs else 0 for oid in held}


def _held(held: HeldTable) -> PlannedTable:
    relation, path = held.relation, "" if held.state is None else held.state.path
    rows_in = _rows_in(held.changes)
    return PlannedTable(relation.namespace, relation.name, path, rows_in, held=held.reason)


def _rows_in(changes: TableChanges) -> dict[str, int]:
    return {"I": changes.inserts, "U": changes.updates, "D": changes.deletes, "T": changes.truncates}


def _table(prepared: Prepared, path_of: Callable[[int], str], progress: Progress, task: TableTask) -> PlannedTable:
    relation = task.shape.relation
    progress(f"counting {relation.namespace}.{relation.name}: {task.changes.total:,} changes")
    planned = PlannedTable(
        relation.namespace,
        relation.name,
        task.path,
        _rows_in(task.changes),
        is_exact=task.state is None or task.changes.truncated_at is not None,
        is_new=task.state is None and not task.replaces,
        has_key=not task.shape.is_bag,
        schema_changes=tuple(str(change) for _, change in task.schema_changes),
        types=tuple(_types(task.shape, Counter())),
        held=None if task.cutoff is None else task.cutoff.reason,
    )
    net, odd = Counter[str](), Counter[str]()
    try:
        for number, segment in enumerate(task.spans):
            has_rows = number > 0 or (task.state is not None and task.changes.truncated_at is None)
            _count_segment(prepared, task, segment, has_rows, net, odd)
    except (ArchiveError, TableError, PySparkException) as error:
        reason = table_fault(error, path_of)
        if reason is None:
            raise
        return replace(planned, held=reason)
    inserted, updated, deleted = (net[name] for name in ("inserted", "updated", "deleted"))
    types = tuple(_types(task.shape, odd))
    return replace(planned, inserted=inserted, updated=updated, deleted=deleted, types=types)


def _count_segment(
    prepared: Prepared, task: TableTask, segment: SchemaSpan, has_rows: bool, net: Counter[str], odd: Counter[str]
) -> None:
    """Adds what one segment would do to rows, and which of its changes have a value that a column can't hold."""
    rows, shape = prepared.rows, segment.shape
    events = all_events_of_blocks(rows.changes(), rows.statuses, window_of(task, segment, prepared.plan.cutoffs), shape)
    columns = [column.name for column in shape.columns if column.type.may_be_unrepresentable]
    entries = F.coalesce(F.col("_unrep"), no_entries())
    flags = [F.size(entries_of(entries, name)).cast("long").alias(f"odd{i}") for i, name in enumerate(columns)]
    counted = with_sequence(events).withColumns({f"odd{i}": flag for i, flag in enumerate(flags)})
    found = (_of_bag if shape.is_bag else _of_keys)(counted, shape, has_rows, len(columns))
    for name in ("inserted", "updated", "deleted"):
        net[name] += found[name] or 0
    for i, name in enumerate(columns):
        odd[name] += found[f"odd{i}"] or 0


def _of_keys(events: DataFrame, shape: TableShape, has_rows: bool, odd: int) -> dict[str, Any]:
    """By the first and the last event of each key: one that begins with an insert was not there before."""
    step = F.struct("_seq", "_op")
    keys = (part.alias(f"k{n}") for n, part in enumerate(event_key_parts(shape)))
    sums = [F.sum(f"odd{i}").alias(f"odd{i}") for i in range(odd)]
    by_key = events.groupBy(*keys).agg(F.min(step)["_op"].alias("first"), F.max(step)["_op"].alias("last"), *sums)
    is_gone = F.col("last").isin(DELETED, MOVED_OUT)
    was_there = ~F.col("first").isin(INSERTED, MOVED_IN) if has_rows else F.lit(False)
    counts = {"inserted": ~was_there & ~is_gone, "updated": was_there & ~is_gone, "deleted": was_there & is_gone}
    return _summed(by_key, counts, odd)


def _of_bag(events: DataFrame, shape: TableShape, has_rows: bool, odd: int) -> dict[str, Any]:
    """Of equal rows: inserts that stay, and deletes of what was there before."""
    is_insert = F.col("_op") == INSERTED
    counts = {"inserted": is_insert, "updated": F.lit(False), "deleted": ~is_insert & F.lit(has_rows)}
    effects = net_of_bag(events.drop(*(f"odd{i}" for i in range(odd))), shape)
    found = _summed(effects, counts, 0)
    if odd:
        found |= _summed(events, {}, odd)
    return found


def _summed(rows: DataFrame, counts: dict[str, Any], odd: int) -> dict[str, Any]:
    sums = [F.sum(condition.cast("long")).alias(name) for name, condition in counts.items()]
    sums += [F.sum(f"odd{i}").alias(f"odd{i}") for i in range(odd)]
    [row] = rows.agg(*sums).collect()
    found: dict[str, Any] = row.asDict()
    return found


def _types(shape: TableShape, odd: Counter[str]) -> Iterable[PlannedType]:
    for column in shape.columns:
        kind = column.type
        target = delta_type(kind).simpleString()
        if kind.may_be_unrepresentable:
            yield PlannedType(column.name, kind.name, target, "unrepresentable", odd[column.name])
        elif "string" in target and not kind.name.removesuffix("[]").startswith(_TEXTS):
            yield PlannedType(column.name, kind.name, target, "text")
