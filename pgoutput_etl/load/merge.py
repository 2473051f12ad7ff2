"""A table's changes to one commit of its Delta table.

Each commit carries Delta's transaction identifier (source, table; number of the batch), so that a batch that is run
again after it died leaves alone what it had committed.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.changes.key_facts import Ranges
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load.bag import _write_bag
from pgoutput_etl.load.commit import (
    DeltaTransaction,
    TargetRows,
    WriteResult,
    append,
    initialize,
    write_result,
)
from pgoutput_etl.load.delta_types import to_target
from pgoutput_etl.load.key_match import key_ranges, keys_are_absent, same_key
from pgoutput_etl.load.net_effect import (
    TableEvents,
    entries_of,
    entries_of_target,
    net_as_it_is,
    net_rows,
    no_entries,
    resolve_moves,
    with_sequence,
)
from pgoutput_etl.load.target_columns import (
    _inserted_values,
    _net_rows_as_target,
    as_map,
    metadata_values,
    quoted_names,
)
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.delta import delta_table, read_table
from pgoutput_etl.spark.session import FOR_FEW_ROWS, session_settings, temporarily
from pgoutput_etl.targets.write_method import WriteFacts, WriteMethod, absence_matters, need_reduction, write_method

_PARTITIONS = "spark.sql.shuffle.partitions"

_PARTITION_BYTES = 1 << 25

_FEW_ROWS = 50_000

_ALWAYS = {"spark.databricks.delta.merge.materializeSource": "none"}  # what is merged is kept already


def write(
    spark: SparkSession,
    path: str,
    shape: TableShape,
    events: TableEvents,
    before: TargetRows,
    commit: DeltaTransaction,
    rows: int | None = None,
) -> WriteResult:
    """One commit. `events` are all of the table's since its last truncate in the batch. `rows`: how many it has, if
    that is known."""
    is_small = events.is_local and (before is TargetRows.NOTHING or (rows is not None and rows <= _FEW_ROWS))
    sizes = {**_ALWAYS, **FOR_FEW_ROWS} if is_small else for_size(spark, events.size)
    with session_settings(spark, {**commit.settings(), **sizes}) as session:
        if shape.is_bag:
            return _write_bag(session, path, shape, events, before)
        facts = _facts(session, path, shape, events, before, rows)
        net = _net(session, path, shape, events, before) if need_reduction(facts) else net_as_it_is(events.frame, shape)
        method = write_method(facts)
        match method:
            case WriteMethod.OVERWRITE:
                return initialize(session, path, _net_rows_as_target(net.where(~F.col("_delete")), shape))
            case WriteMethod.APPEND:
                append(session, path, _net_rows_as_target(net, shape))
            case _:
                is_few = rows is not None and rows <= _FEW_ROWS
                _merge(session, path, shape, net, events, is_few, method is WriteMethod.MERGE)
        return write_result(session, path)


def _facts(
    spark: SparkSession, path: str, shape: TableShape, events: TableEvents, before: TargetRows, rows: int | None
) -> WriteFacts:
    facts = WriteFacts(
        has_key=True,
        is_empty=before is TargetRows.NOTHING,
        only_inserts=events.only_inserts,
        keys_are_unique=events.is_net,
    )
    if not absence_matters(facts) or events.keys is None:
        return facts
    return replace(facts, keys_are_absent=keys_are_absent(spark, path, shape, events.keys, rows))


def for_size(spark: SparkSession, size: int | None) -> dict[str, str]:
    """What is merged is kept already; a shuffle has partitions of a size that a task takes at once."""
    partitions = max(int(spark.conf.get(_PARTITIONS, "8") or 8), (size or 0) // _PARTITION_BYTES)
    return {**_ALWAYS, _PARTITIONS: str(partitions)}


def _net(spark: SparkSession, path: str, shape: TableShape, events: TableEvents, before: TargetRows) -> DataFrame:
    ordered = with_sequence(events.frame)
    if shape.moves_toast:
        target = read_table(spark, path) if before is TargetRows.ROWS else None
        ordered = resolve_moves(ordered, shape, target)
    return net_rows(ordered, shape)


def _merge(
    spark: SparkSession, path: str, shape: TableShape, net: DataFrame, events: TableEvents, is_few: bool, deletes: bool
) -> None:
    """What is merged is computed once and kept, so that Delta need not do so, and the key's range is known. `is_few`:
    rows of the target."""
    if events.is_local:
        _merge_kept(spark, path, shape, net, events.ranges or {}, deletes)
        return
    net = net.localCheckpoint()  # persisted, it would be refused
    ranges = key_ranges(net, shape) if events.ranges is None else events.ranges
    is_few = is_few and net.limit(_FEW_ROWS).count() < _FEW_ROWS
    with temporarily(spark, FOR_FEW_ROWS if is_few else {}):
        _merge_kept(spark, path, shape, net, ranges, deletes)


def _merge_kept(
    spark: SparkSession, path: str, shape: TableShape, net: DataFrame, ranges: Ranges, deletes: bool
) -> None:
    target = delta_table(spark, path).alias("t")
    deleted = F.col("s._delete")
    merge = target.merge(net.alias("s"), same_key(shape, ranges))
    if deletes:
        merge = merge.whenMatchedDelete(deleted)
    merge = merge.whenMatchedUpdate(set=quoted_names(_updated_values(shape)))
    merge = merge.whenNotMatchedInsert(~deleted, values=quoted_names(_inserted_values(shape, "s.")))
    merge.execute()


def _updated_values(shape: TableShape) -> dict[str, Column]:
    values = {column.name: to_target(F.col(f"s.c{i}"), column.type) for i, column in enumerate(shape.columns)}
    entries = F.coalesce(F.col("s._unrep"), no_entries())
    for i in shape.toast:
        name = shape.columns[i].name
        keep = F.col(f"s.keep{i}")
        values[name] = F.when(keep, F.col(f"t.{quoted(name)}")).otherwise(values[name])
        kept = entries_of(entries_of_target("t."), name)
        entries = F.concat(entries, F.when(keep, kept).otherwise(no_entries()))
    return {**values, **metadata_values("s."), "_pg_unrepresentable": as_map(entries)}
