"""Reads a table's change events per schema span, from a DataFrame of changes or from a batch's blocks.

Tables with few changes are typed on the driver; one Spark job collects the blocks of all of them. For such a table
starting Spark tasks costs more than the work itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.changes import compaction
from pgoutput_etl.changes.event_log import every_event, every_event_of
from pgoutput_etl.changes.fast_events import event_batches
from pgoutput_etl.changes.key_facts import ranges_of
from pgoutput_etl.changes.window import Window
from pgoutput_etl.ingest.executors import iterate_blocks
from pgoutput_etl.ingest.rows import MessageRows, messages_to_apply
from pgoutput_etl.load.batch_keys import BatchKeys, keys_of_blocks, keys_of_events
from pgoutput_etl.load.net_effect import TableEvents
from pgoutput_etl.load.row_states import EventLog
from pgoutput_etl.scan.blocks import UNPACKED_BY
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.targets.plan import SchemaSpan, TableTask
from pgoutput_etl.transactions.cutoff import Cutoff
from pgoutput_etl.transactions.status_lookup import StatusLookup

# Most bytes of blocks that the driver types: of one table, and of all tables together.
DRIVER_TABLE_BYTES = 1 << 20

_DRIVER_BYTES = 1 << 26

# Up to this many bytes of one table's changes, a single task computes the net effect, without a shuffle.
SINGLE_TASK_BYTES = 1 << 26

_BUCKETS = 8  # of keys, for each task


class ChangeSource(Protocol):
    """The committed changes of the tables to write."""

    def events(self, task: TableTask, span: SchemaSpan) -> TableEvents: ...

    def event_log(self, task: TableTask, span: SchemaSpan) -> EventLog:
        """Every event, including truncates and events that later ones supersede."""
        ...


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """rows: one per change, with the status of its transaction."""

    rows: DataFrame

    def events(self, task: TableTask, span: SchemaSpan) -> TableEvents:
        rows = messages_to_apply(self.rows, task.changes, span)
        return TableEvents(_events_of_rows(event_batches, rows, span.shape))

    def event_log(self, task: TableTask, span: SchemaSpan) -> EventLog:
        rows = messages_to_apply(self.rows, task.changes, span, True)
        events = _events_of_rows(every_event, rows, span.shape)
        return EventLog(events, None, bool(task.changes.truncates))


def _events_of_rows(
    events_of: Callable[[pa.RecordBatch, TableShape], Iterator[pa.RecordBatch]], rows: DataFrame, shape: TableShape
) -> DataFrame:
    """Change events (shape.event_schema()) of one table's rows (changes.events.ROW_SCHEMA)."""

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from events_of(batch, shape)

    return rows.mapInArrow(convert, spark_schema(shape.event_schema()))


@dataclass(slots=True)
class ChangeBlocks:
    """A batch's changes. _local: the blocks that the driver types, by relation OID."""

    rows: MessageRows
    cutoffs: Mapping[int, Cutoff]
    _local: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def prepare(self, tasks: Iterable[TableTask]) -> None:
        """Collects the blocks that the driver types. Must run before `events` and `event_log`."""
        room = _DRIVER_BYTES
        for task in sorted(tasks, key=lambda task: task.changes.size or 0):
            size = task.changes.size
            if size is None or size > min(DRIVER_TABLE_BYTES, room):
                continue
            room -= size
            self._local[task.oid] = []
        if self._local:
            for block in self.rows.collect_changes(self._local).to_pylist():
                self._local[block["relation"]].append(block)

    def events(self, task: TableTask, span: SchemaSpan) -> TableEvents:
        shape, changes = span.shape, task.changes
        window = window_of(task, span, self.cutoffs)
        only_inserts = _only_inserts(task)
        if task.oid in self._local:
            return self._on_driver(task, shape, window, only_inserts)
        blocks = blocks_of_table(self.rows, shape)
        keys = None
        if only_inserts and not shape.is_bag:
            keys = keys_of_blocks(blocks, self.rows.statuses, window, shape, changes.inserts)
        where, is_net = (blocks, self.rows.statuses, window, shape), True
        if keys is not None and keys.facts.are_unique:
            events = _net_events(compaction.typed_events_of, *where)
        elif not compaction.is_net_by_itself(shape) or changes.size is None:
            events, is_net = events_of_blocks(compaction.events_of, *where), False
        elif changes.size > SINGLE_TASK_BYTES:
            events = _exchanged(*where, changes.size)
        else:
            events = _net_events(compaction.net_events_of, blocks.coalesce(1), *where[1:])
        return TableEvents(events, is_net, changes.size, only_inserts=only_inserts, deletes=not only_inserts, keys=keys)

    def _on_driver(self, task: TableTask, shape: TableShape, window: Window, only_inserts: bool) -> TableEvents:
        events = _as_one(compaction.events_of(self._local[task.oid], self.rows.statuses, window, shape), shape)
        keys = keys_of_events(events, shape) if only_inserts and not shape.is_bag else None
        is_net = keys is not None and keys.facts.are_unique
        if not is_net and compaction.can_supersede(shape):
            events, is_net = compaction.without_superseded(events, shape)
        net = compaction.as_net(events, shape)
        local = frame(self.rows.spark, pa.Table.from_batches([net if is_net else events])).coalesce(1)  # one file
        deletes = bool(pc.any(net.column("_delete")).as_py())
        ranges = ranges_of(events, shape)
        return TableEvents(local, is_net, task.changes.size, True, only_inserts, deletes, keys, ranges)

    def event_log(self, task: TableTask, span: SchemaSpan) -> EventLog:
        shape, window, only_inserts = span.shape, window_of(task, span, self.cutoffs), _only_inserts(task)
        keys: BatchKeys | None = None
        if task.oid in self._local:
            batch = _as_one(every_event_of(self._local[task.oid], self.rows.statuses, window, shape), shape)
            keys = keys_of_events(batch, shape) if only_inserts and not shape.is_bag else None
            events = frame(self.rows.spark, pa.Table.from_batches([batch]))
        else:
            blocks = blocks_of_table(self.rows, shape)
            if only_inserts and not shape.is_bag:
                keys = keys_of_blocks(blocks, self.rows.statuses, window, shape, task.changes.inserts)
            events = events_of_blocks(every_event_of, blocks, self.rows.statuses, window, shape)
        are_plain = only_inserts and (shape.is_bag or (keys is not None and keys.facts.are_unique))
        return EventLog(events, task.changes.size, bool(task.changes.truncates), are_plain)


def _only_inserts(task: TableTask) -> bool:
    changes = task.changes
    return not (changes.updates or changes.deletes or changes.truncates)


def blocks_of_table(rows: MessageRows, shape: TableShape) -> DataFrame:
    return rows.changes().where(F.col("relation") == shape.relation.oid).select(*UNPACKED_BY)


_EventsOf = Callable[[Iterable[Mapping[str, Any]], StatusLookup, Window, TableShape], Iterator[pa.RecordBatch]]


def events_of_blocks(
    events_of: _EventsOf, blocks: DataFrame, statuses: StatusLookup, window: Window, shape: TableShape
) -> DataFrame:
    """A table's change events (shape.event_schema()), computed from its blocks on executors by `events_of`."""

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from events_of(iterate_blocks(batches), statuses, window, shape)

    return blocks.mapInArrow(convert, spark_schema(shape.event_schema()))


def _net_events(
    events_of: _EventsOf, blocks: DataFrame, statuses: StatusLookup, window: Window, shape: TableShape
) -> DataFrame:
    """As `events_of_blocks`, in shape.net_schema(). events_of: returns no two events with the same key."""

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for events in events_of(iterate_blocks(batches), statuses, window, shape):
            yield compaction.as_net(events, shape)

    return blocks.mapInArrow(convert, spark_schema(shape.net_schema()))


def _exchanged(blocks: DataFrame, statuses: StatusLookup, window: Window, shape: TableShape, size: int) -> DataFrame:
    """As `_net_events`, of many changes: each task reduces those of some keys."""
    partitions = size // SINGLE_TASK_BYTES + 1
    buckets = partitions * _BUCKETS  # several, because Spark may put two of them into one partition

    def bucketed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from compaction.bucketed_events_of(iterate_blocks(batches), statuses, window, shape, buckets)

    def reduced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for events in compaction.net_events_of_buckets(batches, shape):
            yield compaction.as_net(events, shape)

    exchanged = blocks.mapInArrow(bucketed, spark_schema(compaction.EXCHANGE_SCHEMA)).repartition(partitions, "bucket")
    return exchanged.mapInArrow(reduced, spark_schema(shape.net_schema()))


def window_of(task: TableTask, span: SchemaSpan, cutoffs: Mapping[int, Cutoff]) -> Window:
    cutoff = cutoffs.get(task.oid)
    return Window(task.changes.truncated_at, span.start, span.end, None if cutoff is None else cutoff.lsn)


def _as_one(batches: Iterable[pa.RecordBatch], shape: TableShape) -> pa.RecordBatch:
    """Combines the batches into one, even if there are none: Spark rejects an Arrow table that has list columns and no
    batch."""
    schema = shape.event_schema()
    combined = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    [batch] = combined or [pa.RecordBatch.from_pylist([], schema)]
    return batch
