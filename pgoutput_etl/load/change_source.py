"""Reads a table's change events per schema span, from the blocks of a batch or of the whole archive.

Tables with few changes are decoded on the driver, from one Spark job that collects the blocks of all of them. For such
a table, starting Spark tasks costs more than the work itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.changes import compaction
from pgoutput_etl.changes.event_log import TRUNCATED, every_event, every_event_of
from pgoutput_etl.changes.events import ROW_SCHEMA
from pgoutput_etl.changes.fast_events import event_batches
from pgoutput_etl.changes.key_exchanges import without_exchanges
from pgoutput_etl.changes.key_facts import KeyFacts, ranged, ranges_of
from pgoutput_etl.changes.window import Window, rows_in
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.ingest.executors import iterate_blocks
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.load.batch_keys import BatchKeys, keys_of_blocks, keys_of_events
from pgoutput_etl.load.key_exchanges import as_one, serial_rows
from pgoutput_etl.load.net_effect import TableEvents
from pgoutput_etl.load.row_states import EventLog
from pgoutput_etl.scan.blocks import UNPACKED_BY
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.plan import SchemaSpan, TableTask
from pgoutput_etl.transactions.statistics import CommitRange
from pgoutput_etl.transactions.status_lookup import StatusLookup

# Limits on the bytes of blocks that the driver decodes: per table, and for all tables together.
DRIVER_TABLE_BYTES = 1 << 20

_DRIVER_BYTES = 1 << 26

# Up to this many bytes of one table's changes, a single task computes the net effect without a shuffle.
SINGLE_TASK_BYTES = 1 << 26

_BUCKETS = 8  # of keys, per task


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
    """The committed changes of tables. windows: commit ranges to apply, by relation OID. finds_keys: looks up the keys
    of INSERTs in separate jobs, because rows with distinct keys are cheaper to write. unique: as in CommittedBlocks.
    _local: the blocks that the driver decodes, by relation OID."""

    rows: MessageRows | CommittedBlocks
    windows: Mapping[int, CommitRange]
    finds_keys: bool = True
    unique: frozenset[int] = frozenset()
    _local: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def prepare(self, tasks: Iterable[TableTask]) -> None:
        """Collects the blocks that the driver decodes. Call it before `events` and `event_log`."""
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

    def is_on_driver(self, task: TableTask) -> bool:
        return task.oid in self._local

    def events(self, task: TableTask, span: SchemaSpan) -> TableEvents:
        shape, changes = span.shape, task.changes
        window = window_of(task, span, self.windows)
        only_inserts = _only_inserts(task)
        if self.is_on_driver(task):
            return self._on_driver(task, shape, window, only_inserts)
        blocks = _blocks_of_table(self.rows, shape)
        serial = self._serial(task, blocks, window, shape)
        if serial is not None:
            return TableEvents(lambda: _events_of_rows(event_batches, serial, shape), False, changes.size)
        keys = self._keys(task, blocks, window, shape)
        where, is_net = (blocks, self.rows.statuses, window, shape), True
        if keys is not None and keys.facts.are_unique:
            events = _events_of_blocks(compaction.typed_events_of, *where, is_net=True)
        elif not compaction.is_net_by_itself(shape) or changes.size is None:
            events, is_net = _events_of_blocks(compaction.events_of, *where), False
        elif changes.size > SINGLE_TASK_BYTES:
            events = _exchanged(*where, changes.size)
        else:
            events = _events_of_blocks(compaction.net_events_of, blocks.coalesce(1), *where[1:], is_net=True)
        return TableEvents(
            lambda: events, is_net, changes.size, only_inserts=only_inserts, deletes=not only_inserts, keys=keys
        )

    def _on_driver(self, task: TableTask, shape: TableShape, window: Window, only_inserts: bool) -> TableEvents:
        if _may_exchange_keys(task, shape):
            parts = event_batches(self._local_rows(task, shape, window), shape)
        else:
            parts = compaction.events_of(self._local[task.oid], self.rows.statuses, window, shape)
        events = as_one(parts, shape.event_schema())
        keys = keys_of_events(events, shape) if only_inserts and not shape.is_bag else None
        is_net = keys is not None and keys.facts.are_unique
        if not is_net and compaction.can_supersede(shape):
            events, is_net = compaction.without_superseded(events, shape)
        net = compaction.as_net(events, shape)
        rows = pa.Table.from_batches([net if is_net else events])
        deletes = bool(pc.any(net.column("_delete")).as_py())
        ranges = ranges_of(events, shape)
        own = net if is_net or (shape.is_bag and only_inserts) else None

        def local() -> DataFrame:
            return frame(self.rows.spark, rows).coalesce(1)  # one file

        unreduced = events if own is None and shape.key else None
        return TableEvents(local, is_net, task.changes.size, True, only_inserts, deletes, keys, ranges, own, unreduced)

    def event_log(self, task: TableTask, span: SchemaSpan) -> EventLog:
        shape, window, only_inserts = span.shape, window_of(task, span, self.windows), _only_inserts(task)
        if self.is_on_driver(task):
            batch = as_one(every_event(self._local_rows(task, shape, window), shape), shape.event_schema())
            keys = keys_of_events(batch, shape) if only_inserts and not shape.is_bag else None
            events = frame(self.rows.spark, pa.Table.from_batches([batch]))
        else:
            blocks = _blocks_of_table(self.rows, shape)
            keys = self._keys(task, blocks, window, shape)
            serial = self._serial(task, blocks, window, shape)
            if serial is None:
                events = _events_of_blocks(every_event_of, blocks, self.rows.statuses, window, shape)
            else:
                events = _events_of_rows(every_event, serial, shape)
        are_plain = only_inserts and (shape.is_bag or (keys is not None and keys.facts.are_unique))
        return EventLog(events, task.changes.size, bool(task.changes.truncates), are_plain)

    def typed_events(self, task: TableTask, span: SchemaSpan) -> DataFrame:
        """All events except truncates, decoded on executors."""
        shape, window = span.shape, window_of(task, span, self.windows)
        blocks = _blocks_of_table(self.rows, shape)
        serial = self._serial(task, blocks, window, shape)
        if serial is not None:
            return _events_of_rows(event_batches, serial.where(F.col("tag") != TRUNCATED), shape)
        return _events_of_blocks(compaction.typed_events_of, blocks, self.rows.statuses, window, shape)

    def _local_rows(self, task: TableTask, shape: TableShape, window: Window) -> pa.RecordBatch:
        """The rows of a table whose changes the driver decodes, including truncates."""
        parts = (rows_in(block, self.rows.statuses, window, True) for block in self._local[task.oid])
        rows = as_one(parts, ROW_SCHEMA)
        return without_exchanges(rows, shape, _keeps_changes(task)) if _may_exchange_keys(task, shape) else rows

    def _keys(self, task: TableTask, blocks: DataFrame, window: Window, shape: TableShape) -> BatchKeys | None:
        if not self.finds_keys or shape.is_bag or not _only_inserts(task):
            return None
        if task.oid in self.unique and _keeps_keys_apart(shape):
            return BatchKeys(KeyFacts(task.changes.inserts, are_known=False, are_unique=True), None)
        return keys_of_blocks(blocks, self.rows.statuses, window, shape, task.changes.inserts)

    def _serial(self, task: TableTask, blocks: DataFrame, window: Window, shape: TableShape) -> DataFrame | None:
        if not _may_exchange_keys(task, shape):
            return None
        return serial_rows(blocks, self.rows.statuses, window, shape, _keeps_changes(task))


def _may_exchange_keys(task: TableTask, shape: TableShape) -> bool:
    return shape.may_exchange_keys and not _only_inserts(task)


def _keeps_changes(task: TableTask) -> bool:
    return not table_mode(task.mode).has_rows


def _keeps_keys_apart(shape: TableShape) -> bool:
    """True if keys that PostgreSQL keeps unique are unique as typed, too: masks and conversions may make two values
    equal, but not these types."""
    return shape.has_unique_key and set(shape.key) == {*ranged(shape)}


def _only_inserts(task: TableTask) -> bool:
    changes = task.changes
    return not (changes.updates or changes.deletes or changes.truncates)


def _blocks_of_table(rows: MessageRows | CommittedBlocks, shape: TableShape) -> DataFrame:
    return rows.changes().where(F.col("relation") == shape.relation.oid).select(*UNPACKED_BY)


_EventsOf = Callable[[Iterable[Mapping[str, Any]], StatusLookup, Window, TableShape], Iterator[pa.RecordBatch]]


def _events_of_blocks(
    events_of: _EventsOf,
    blocks: DataFrame,
    statuses: StatusLookup,
    window: Window,
    shape: TableShape,
    is_net: bool = False,
) -> DataFrame:
    """A table's change events (shape.event_schema()), computed from its blocks on executors by `events_of`. is_net:
    shape.net_schema() instead; `events_of` must then return at most one event per key."""

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for events in events_of(iterate_blocks(batches), statuses, window, shape):
            yield compaction.as_net(events, shape) if is_net else events

    return blocks.mapInArrow(convert, spark_schema(shape.net_schema() if is_net else shape.event_schema()))


def _exchanged(blocks: DataFrame, statuses: StatusLookup, window: Window, shape: TableShape, size: int) -> DataFrame:
    """Net events, like `_events_of_blocks`, for many changes: each task reduces the events of some of the keys."""
    partitions = size // SINGLE_TASK_BYTES + 1
    buckets = partitions * _BUCKETS  # several, because Spark may put two of them into one partition

    def bucketed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from compaction.bucketed_events_of(iterate_blocks(batches), statuses, window, shape, buckets)

    def reduced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for events in compaction.net_events_of_buckets(batches, shape):
            yield compaction.as_net(events, shape)

    exchanged = blocks.mapInArrow(bucketed, spark_schema(compaction.EXCHANGE_SCHEMA)).repartition(partitions, "bucket")
    return exchanged.mapInArrow(reduced, spark_schema(shape.net_schema()))


def window_of(task: TableTask, span: SchemaSpan, windows: Mapping[int, CommitRange]) -> Window:
    return Window(task.changes.truncated_at, span.start, span.end, windows.get(task.oid, CommitRange()))
