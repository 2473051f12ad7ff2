"""A table's change events for each of its segments: from rows, or from a batch's blocks.

Tables with few changes are typed on the driver, all of whose blocks come there in one job: what Spark takes to start a
task, to each table, is more than the work is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.changes.compaction import can_supersede, events_of, is_net_by_itself, without_superseded
from pgoutput_etl.changes.event_log import every_event_of
from pgoutput_etl.changes.key_facts import ranges_of
from pgoutput_etl.changes.window import Window
from pgoutput_etl.ingest.rows import MessageRows, messages_to_apply
from pgoutput_etl.load.batch_keys import keys_of_blocks, keys_of_events
from pgoutput_etl.load.executors import (
    all_events_of_blocks,
    events_of_blocks,
    every_event_of_blocks,
    every_typed_event,
    typed_events,
)
from pgoutput_etl.load.net_effect import TableEvents
from pgoutput_etl.load.row_states import EventLog
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.targets.plan import SchemaSpan, TableTask
from pgoutput_etl.transactions.cutoff import Cutoff

# Bytes of blocks: of one table, and of all that the driver takes at once.
FEW = 1 << 20

_FEW_TOGETHER = 1 << 26

# Bytes of one table's blocks up to which one task works out what is left of each key: no shuffle, and no sort.
ALONE = 1 << 28


class ChangeSource(Protocol):
    """The committed changes of all tables that are written."""

    def events(self, task: TableTask, segment: SchemaSpan) -> TableEvents: ...

    def every_event(self, task: TableTask, segment: SchemaSpan) -> EventLog:
        """Truncates among them; none is left out because a later one makes it void."""
        ...


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """Changes as a row each, with the outcome of their transactions."""

    rows: DataFrame

    def events(self, task: TableTask, segment: SchemaSpan) -> TableEvents:
        return TableEvents(typed_events(messages_to_apply(self.rows, task.changes, segment), segment.shape))

    def every_event(self, task: TableTask, segment: SchemaSpan) -> EventLog:
        rows = messages_to_apply(self.rows, task.changes, segment, True)
        return EventLog(every_typed_event(rows, segment.shape), None, bool(task.changes.truncates))


@dataclass(slots=True)
class ChangeBlocks:
    """A batch's changes."""

    rows: MessageRows
    cutoffs: Mapping[int, Cutoff]
    _local: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def prepare(self, tasks: Iterable[TableTask]) -> None:
        """Takes what is typed on the driver there. Before any of `events`."""
        room = _FEW_TOGETHER
        for task in sorted(tasks, key=lambda task: task.changes.size or 0):
            size = task.changes.size
            if size is None or size > min(FEW, room):
                continue
            room -= size
            self._local[task.oid] = []
        if self._local:
            few = self.rows.changes().where(F.col("relation").isin(*self._local))
            for block in few.select("relation", "rows", "head", "tuples").toArrow().to_pylist():
                self._local[block["relation"]].append(block)

    def events(self, task: TableTask, segment: SchemaSpan) -> TableEvents:
        shape, changes = segment.shape, task.changes
        window = window_of(task, segment, self.cutoffs)
        only_inserts = not (changes.updates or changes.deletes or changes.truncates)
        if task.oid in self._local:
            return self._on_driver(task, shape, window, only_inserts)
        blocks, statuses = self.rows.changes(), self.rows.statuses
        keys = ranges = None
        if only_inserts and not shape.is_bag:
            keys = keys_of_blocks(blocks, statuses, window, shape, changes.inserts)
            ranges = keys.facts.ranges if keys.facts.are_known else None
        if keys is not None and keys.facts.are_unique:
            there, is_net = all_events_of_blocks(blocks, statuses, window, shape), True
        else:
            is_net = (changes.size or ALONE) < ALONE and is_net_by_itself(shape)
            there = events_of_blocks(blocks, statuses, window, shape, is_net)
        return TableEvents(there, is_net, changes.size, only_inserts=only_inserts, keys=keys, ranges=ranges)

    def _on_driver(self, task: TableTask, shape: TableShape, window: Window, only_inserts: bool) -> TableEvents:
        events = _as_one(list(events_of(self._local[task.oid], self.rows.statuses, window, shape)), shape)
        keys = keys_of_events(events, shape) if only_inserts and not shape.is_bag else None
        is_net = keys is not None and keys.facts.are_unique
        if not is_net and can_supersede(shape):
            events, is_net = without_superseded(events, shape)
        there = frame(self.rows.spark, pa.Table.from_batches([events]))
        return TableEvents(there, is_net, task.changes.size, True, only_inserts, keys, ranges_of(events, shape))

    def every_event(self, task: TableTask, segment: SchemaSpan) -> EventLog:
        shape, window = segment.shape, window_of(task, segment, self.cutoffs)
        if task.oid in self._local:
            batches = list(every_event_of(self._local[task.oid], self.rows.statuses, window, shape))
            found = frame(self.rows.spark, pa.Table.from_batches([_as_one(batches, shape)]))
        else:
            found = every_event_of_blocks(self.rows.changes(), self.rows.statuses, window, shape)
        return EventLog(found, task.changes.size, bool(task.changes.truncates))


def window_of(task: TableTask, segment: SchemaSpan, cutoffs: Mapping[int, Cutoff]) -> Window:
    cutoff = cutoffs.get(task.oid)
    return Window(task.changes.truncated_at, segment.start, segment.end, None if cutoff is None else cutoff.lsn)


def _as_one(batches: list[pa.RecordBatch], shape: TableShape) -> pa.RecordBatch:
    """One batch: Spark takes no table of none that has lists."""
    schema = shape.event_schema()
    if not any(batch.num_rows for batch in batches):
        return pa.RecordBatch.from_pylist([], schema)
    [found] = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return found
