"""A planned batch's effect on one table's rows, counted by decoding its changes without writing any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.changes.events import DELETED, INSERTED, MOVED_IN, MOVED_OUT
from pgoutput_etl.console import Progress, counted
from pgoutput_etl.load.change_source import ChangeBlocks
from pgoutput_etl.load.commit import TargetRows
from pgoutput_etl.load.holding import FAULTS, held_reason
from pgoutput_etl.load.layout import planned_layout
from pgoutput_etl.load.net_effect import event_key_parts, net_of_bag, with_sequence
from pgoutput_etl.load.shared_table import planned_unions
from pgoutput_etl.load.summary import ROW_OPERATIONS
from pgoutput_etl.load.table_features import planned_features
from pgoutput_etl.load.target_columns import delta_type, entries_of, no_entries
from pgoutput_etl.load.targets import with_memory
from pgoutput_etl.load.writer import counts_rows, rows_before_span
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.delta import is_delta_table
from pgoutput_etl.spark.delta_log import files_and_bytes
from pgoutput_etl.spark.session import is_running
from pgoutput_etl.targets.plan import SchemaSpan, TableChanges, TableTask
from pgoutput_etl.transactions.cutoff import commits_before
from pgoutput_etl.work.files.batch_plan import BatchPlan
from pgoutput_etl.work.plan.report import PlannedTable, PlannedType, StoredSize

# PostgreSQL types that are text: a string column for one of these needs no remark.
_TEXT_TYPES = ("text", "varchar", "char", "bpchar", "name", "citext", '"char"')


def change_counts(changes: TableChanges) -> dict[str, int]:
    """The number of changes by message type."""
    return {"I": changes.inserts, "U": changes.updates, "D": changes.deletes, "T": changes.truncates}


def count_effects(plan: BatchPlan, progress: Progress, task: TableTask) -> PlannedTable:
    """Counts the effects on one table. A table that fails because of its own rows is reported as held."""
    relation = task.shape.relation
    progress(f"counting {relation.full_name}: {counted(task.changes.total, 'change')}")
    table = PlannedTable(
        relation.namespace,
        relation.name,
        str(task.path),
        change_counts(task.changes),
        is_exact=len(task.spans) == 1 and (task.state is None or task.changes.truncated_at is not None),
        is_new=task.state is None and not task.replaces,
        has_key=not task.shape.is_bag,
        schema_changes=tuple(str(change) for _, change in task.schema_changes),
        types=tuple(_planned_types(task.shape, Counter())),
        held=None if task.cutoff is None else task.cutoff.reason,
    )
    effects, unrepresentable = Counter[str](), Counter[str]()
    try:
        spark = plan.rows.spark
        unions = chain(*(planned_unions(spark, task.path, span.shape, task.mode) for span in task.spans))
        layout = (*dict.fromkeys(map(str, unions)), *_planned_layout(spark, task))
        table = replace(table, layout=layout, stored=_stored_size(spark, task))
        for number, span in enumerate(task.spans):
            has_rows = rows_before_span(task, number) is TargetRows.ROWS
            of_rows, of_columns = _count_span(plan, task, span, has_rows)
            effects.update(of_rows)
            unrepresentable.update(of_columns)
    except FAULTS as error:
        step = f"counting {table.schema}.{table.table}"
        return replace(table, held=held_reason(error, step, plan.path_of, partial(is_running, plan.rows.spark)))
    inserted, updated, deleted = (effects[name] for name in ROW_OPERATIONS)
    if counts_rows(task):
        inserted, updated, deleted = max(inserted - deleted, 0), 0, 0  # later spans may delete rows never inserted
    types = tuple(_planned_types(task.shape, unrepresentable))
    return replace(table, inserted=inserted, updated=updated, deleted=deleted, types=types)


def _stored_size(spark: SparkSession, task: TableTask) -> StoredSize | None:
    place = task.path if task.moved_from is None else task.moved_from[0]
    if task.state is None or not is_delta_table(spark, place):
        return None
    return StoredSize(task.state.rows, *files_and_bytes(spark, place))


def _planned_layout(spark: SparkSession, task: TableTask) -> tuple[str, ...]:
    """The layout's changes and remarks. A table that moves takes the layout of its old place along, unless one of the
    two places is shared."""
    place = task.path if task.moved_from is None else task.moved_from[0]
    place = task.path if place.tag or task.path.tag else place
    layout = task.shape.layout
    before = [rows_before_span(task, number) for number in range(len(task.spans))]
    features = planned_features(spark, place, task, before)
    return (*features, *(planned_layout(spark, place, layout) if layout else ()), *task.remarks)


def _count_span(
    plan: BatchPlan, task: TableTask, span: SchemaSpan, has_rows: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """Row counts by effect and, by column, the number of changes with a value that the column can't hold."""
    span = with_memory(plan.rows.spark, span)
    shape, source = span.shape, ChangeBlocks(plan.rows, commits_before(plan.targets.cutoffs))
    events = with_sequence(source.typed_events(task, span))
    columns = [column.name for column in shape.columns if column.type.may_be_unrepresentable]
    entries = F.coalesce(F.col("_unrep"), no_entries())
    sizes = {f"odd{i}": F.size(entries_of(entries, name)).cast("long") for i, name in enumerate(columns)}
    count = _count_bag_effects if shape.is_bag else _count_key_effects
    sized = events.select("*", *(size.alias(name) for name, size in sizes.items()))
    counts = count(sized, shape, has_rows, list(sizes))
    unrepresentable = {name: counts[odd] or 0 for name, odd in zip(columns, sizes, strict=True)}
    return {name: counts[name] or 0 for name in ROW_OPERATIONS}, unrepresentable


def _count_key_effects(events: DataFrame, shape: TableShape, has_rows: bool, odd: list[str]) -> dict[str, Any]:
    """Compares the first and the last event of each key. A key whose first event is an INSERT did not exist before."""
    step = F.struct("_seq", "_op")
    keys = (part.alias(f"k{n}") for n, part in enumerate(event_key_parts(shape)))
    sums = [F.sum(name).alias(name) for name in odd]
    by_key = events.groupBy(*keys).agg(F.min(step)["_op"].alias("first"), F.max(step)["_op"].alias("last"), *sums)
    is_deleted = F.col("last").isin(DELETED, MOVED_OUT)
    existed = ~F.col("first").isin(INSERTED, MOVED_IN) if has_rows else F.lit(False)
    return _sums(by_key, (~existed & ~is_deleted, existed & ~is_deleted, existed & is_deleted), odd)


def _count_bag_effects(events: DataFrame, shape: TableShape, has_rows: bool, odd: list[str]) -> dict[str, Any]:
    """Counts INSERTs that stay and DELETEs of rows that existed before the batch."""
    is_insert = F.col("_op") == INSERTED
    effects = net_of_bag(events.drop(*odd), shape)
    counts = _sums(effects, (is_insert, F.lit(False), ~is_insert & F.lit(has_rows)), [])
    return counts | _sums(events, (), odd) if odd else counts


def _sums(rows: DataFrame, effects: Iterable[Column], odd: list[str]) -> dict[str, Any]:
    sums = [
        F.sum(is_counted.cast("long")).alias(name) for name, is_counted in zip(ROW_OPERATIONS, effects, strict=False)
    ]
    [row] = rows.agg(*sums, *(F.sum(name).alias(name) for name in odd)).collect()
    return dict(row.asDict())


def _planned_types(shape: TableShape, unrepresentable: Counter[str]) -> Iterable[PlannedType]:
    for column in shape.columns:
        source, target = column.type, delta_type(column.type).simpleString()
        if source.may_be_unrepresentable:
            yield PlannedType(column.name, source.name, target, "unrepresentable", unrepresentable[column.name])
        elif "string" in target and not source.name.removesuffix("[]").startswith(_TEXT_TYPES):
            yield PlannedType(column.name, source.name, target, "text")
