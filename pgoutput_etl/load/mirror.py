"""Mode mirror: writes a table's net changes as one Delta commit.

Each commit carries Delta's transaction identifier (application: ledger, table, and step; version: batch), so a batch
that is rerun after a crash doesn't repeat its commits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.load import bag
from pgoutput_etl.load.commit import TargetRows, WriteResult, append, initialize, written
from pgoutput_etl.load.driver_merge import write_on_driver
from pgoutput_etl.load.key_match import keys_are_absent, net_facts
from pgoutput_etl.load.mismatches import (
    Presumptions,
    chain_facts,
    chains_in,
    chains_of,
    counted,
    counted_in,
    mismatches_with,
    missing_in_bag,
    net_deletes,
)
from pgoutput_etl.load.net_effect import TableEvents, as_net_rows, net_rows, resolve_moves, with_sequence
from pgoutput_etl.load.rewrite import awaited, net_merge, rewrite, small_table
from pgoutput_etl.load.shared_table import tagged_target
from pgoutput_etl.load.table_writer import DeltaTransaction, TableCommit, committing
from pgoutput_etl.load.target_columns import net_values, selected
from pgoutput_etl.places import Place
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.session import FOR_FEW_ROWS, NO_BROADCAST, temporarily
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.targets.write_method import (
    SMALL_ROWS,
    WriteFacts,
    WriteMethod,
    absence_matters,
    has_few,
    need_reduction,
    size_matters,
    write_method,
)

_PARTITIONS = "spark.sql.shuffle.partitions"

_PARTITION_BYTES = 1 << 25

_ALWAYS = {"spark.databricks.delta.merge.materializeSource": "none"}  # this module materializes the source


def write(
    spark: SparkSession,
    path: Place,
    shape: TableShape,
    events: TableEvents,
    before: TargetRows,
    commit: DeltaTransaction,
    rows: int | None = None,
) -> WriteResult:
    """events: the table's events since its last truncate in the batch. rows: target row count, or None if unknown."""
    is_few = has_few(rows)
    is_quick = events.is_local and (is_few or before is TargetRows.NOTHING)
    sizes = {**_ALWAYS, **FOR_FEW_ROWS} if is_quick else for_size(spark, events.size)
    with committing(spark, path, commit, sizes) as table:
        done = write_on_driver(table, shape, events, before, is_few)
        if done is not None:
            return done
        if shape.is_bag:
            return bag.write(table, shape, events, before)
        facts = _facts(table, shape, events, before, rows)
        net = _net(table, shape, events, before) if need_reduction(facts) else as_net_rows(events.frame, shape)
        small = small_table(table.spark, path, shape, rows) if size_matters(facts) else None
        if small is not None:
            few = net if events.is_local else _on_driver(table.spark, net)
            net, facts = net if few is None else few, replace(facts, is_small=few is not None)
        match write_method(facts):
            case WriteMethod.OVERWRITE:
                return _overwrite(table, shape, net, is_checked=not events.are_plain)
            case WriteMethod.APPEND:
                result = append(table, selected(net, net_values(shape)))
                return result if events.are_plain else replace(result, mismatches=chains_of(net, shape).own)
            case WriteMethod.REWRITE if small is not None:
                with temporarily(table.spark, FOR_FEW_ROWS):
                    return rewrite(table, small, shape, net)
            case _:
                return _merge(table, shape, net, events, is_few)


def _most_to_broadcast(shape: TableShape) -> int:
    """The number of rows whose keys a MERGE may broadcast within a few hundred MB of driver memory. Spark doesn't know
    the rows' size and would broadcast any number. A key that fits into a long needs less memory."""
    kinds = [shape.columns[i].type.arrow for i in shape.key]
    is_long = len(kinds) == 1 and not pa.types.is_decimal(kinds[0]) and pa.types.is_primitive(kinds[0])
    return 1 << 23 if is_long else 1 << 20


def _on_driver(spark: SparkSession, net: DataFrame) -> DataFrame | None:
    """The rows, materialized on the driver; None if there are many."""
    rows = net.limit(SMALL_ROWS + 1).toArrow()
    return None if rows.num_rows > SMALL_ROWS else frame(spark, rows)


def _facts(
    table: TableCommit, shape: TableShape, events: TableEvents, before: TargetRows, rows: int | None
) -> WriteFacts:
    facts = WriteFacts(True, before is TargetRows.NOTHING, events.only_inserts, keys_are_unique=events.is_net)
    if not absence_matters(facts) or events.keys is None:
        return facts
    return replace(facts, keys_are_absent=keys_are_absent(table.spark, table.place, shape, events.keys, rows))


def for_size(spark: SparkSession, size: int | None) -> dict[str, str]:
    """Settings for a batch of `size` bytes: enough shuffle partitions that each fits into a task's memory."""
    partitions = max(int(spark.conf.get(_PARTITIONS, "8") or 8), (size or 0) // _PARTITION_BYTES)
    return {**_ALWAYS, _PARTITIONS: str(partitions)}


def _net(table: TableCommit, shape: TableShape, events: TableEvents, before: TargetRows) -> DataFrame:
    is_read = shape.moves_toast and before is TargetRows.ROWS
    return _net_of(events.frame, shape, tagged_target(table.spark, table.place, shape.columns) if is_read else None)


def _net_of(events: DataFrame, shape: TableShape, target: DataFrame | None) -> DataFrame:
    ordered = with_sequence(events)
    return net_rows(resolve_moves(ordered, shape, target) if shape.moves_toast else ordered, shape)


def rows_after(stored: DataFrame | None, shape: TableShape, events: TableEvents) -> DataFrame:
    """The table's rows after the events. stored: its rows before them; None if there were none."""
    if shape.is_bag:
        return bag.rows_after(stored, shape, events.frame)
    net = as_net_rows(events.frame, shape) if events.is_net else _net_of(events.frame, shape, stored)
    if stored is None:
        return selected(net.where(~F.col("_delete")), net_values(shape))
    return net_merge(net, shape).after(stored)


def compared(shape: TableShape, events: TableEvents, stored: DataFrame | None) -> Mismatches | None:
    """The mismatches of the events with the rows before them. stored: these rows; None if there were none."""
    if shape.is_bag:
        return missing_in_bag(net_deletes(with_sequence(events.frame), shape), shape, stored)
    net = events.frame if events.is_net else net_rows(with_sequence(events.frame), shape)
    return mismatches_with(net, shape, stored)


def _overwrite(table: TableCommit, shape: TableShape, net: DataFrame, is_checked: bool) -> WriteResult:
    """is_checked: the net rows' changes may contradict each other, or assume rows that the target doesn't have."""
    counts, observed = Observation(), net
    is_observed = is_checked and not table.place.is_in_catalog  # see `awaited`
    if is_observed:
        checks = counted("_chain", F.lit(False))
        observed = net.observe(counts, *(value.alias(name) for name, value in checks.items()))
    rows = selected(observed.where(~F.col("_delete")), net_values(shape))
    result = initialize(table, rows, shape.layout)
    if not is_checked:
        return result
    found = awaited(counts) if is_observed else None
    mismatches = mismatches_with(net, shape, None) if found is None else counted_in(found)
    return replace(result, mismatches=mismatches)


def _merge(table: TableCommit, shape: TableShape, net: DataFrame, events: TableEvents, is_few: bool) -> WriteResult:
    """Materializes the net rows once, so that Delta needn't, and collects facts about them. is_few: the target has few
    rows."""
    ranges, settings, deletes, chains = events.ranges, {}, events.deletes, None
    if not events.is_local:
        net = net.localCheckpoint()  # Delta rejects a source that is only persisted
        facts = net_facts(net, shape, table.place, None if events.are_plain else chain_facts(shape))
        chains = None if events.are_plain else chains_in(facts.others, shape)
        ranges, deletes = facts.ranges, facts.deletes > 0
        settings = FOR_FEW_ROWS if is_few and facts.rows < SMALL_ROWS else {}
        if facts.rows > _most_to_broadcast(shape):
            settings = {**settings, **NO_BROADCAST}

    with temporarily(table.spark, settings):
        target = partial(tagged_target, table.spark, table.place, shape.columns)
        presumptions, merge = None, net_merge(net, shape, ranges, deletes)
        if not events.are_plain:
            presumptions = Presumptions.of(net, shape, target, chains or chains_of(net, shape))
            merge = presumptions.narrowed(merge)
        merge.execute(table)
        result = written(table)
        return result if presumptions is None else presumptions.checked(result)
