"""Fills in the values that changes left unsent: unchanged TOAST, and columns that the relation no longer has.

The value is the newest one that an earlier change of the row sent, even under a former key of the row; failing that,
the stored row's. An unknown value is NULL, with a NULL text in `_unrep`. This is for few changes; load/net_effect.py
does the same in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.changes.compaction import Integers, as_net, last_of_keys, positions
from pgoutput_etl.changes.events import DELETED, MOVED_IN, MOVED_OUT, UPDATED
from pgoutput_etl.load.small_rows import codes_of_keys
from pgoutput_etl.schema.table_shape import UNREPRESENTABLE, TableShape
from pgoutput_etl.targets.modes import UNREPRESENTABLE_COLUMN
from pgoutput_etl.types import Storage

_UNKNOWN = -1

_MOST_VALUES = 1 << 20  # Python takes a second for so many


def complete_net(events: pa.RecordBatch, shape: TableShape, stored: pa.Table | None) -> pa.RecordBatch | None:
    """One row per key (shape.net_schema()), with all values. events: of shape.event_schema(). stored: the target's rows
    before them, by the target's column names; each key once. None if there are too many changes, or if columns alone
    don't show which keys are equal."""
    is_plain = all(shape.columns[i].type.storage is Storage.PLAIN for i in (*shape.key, *shape.toast))
    if not is_plain or events.num_rows * len(shape.toast) > _MOST_VALUES:
        return None
    codes = _codes(events, shape, stored)
    if codes is None:
        return None
    of_stored, own, former = codes
    at_key = {code: events.num_rows + row for row, code in enumerate(of_stored.tolist())}
    events, last = last_of_keys(events, own, shape)
    sources = _Sources(len(shape.toast), at_key).after(events, shape, own, former)
    net = as_net(events.take(pa.array(last)), shape)
    of_rows = np.array([sources[code] for code in own[last].tolist()], np.int64).reshape(len(last), len(shape.toast))
    return _filled(net, events, shape, stored, of_rows)


def _codes(
    events: pa.RecordBatch, shape: TableShape, stored: pa.Table | None
) -> tuple[Integers, Integers, Integers] | None:
    """A number per key, the same for equal keys: of the stored rows, of the events, and of the keys that events move
    rows from. None if columns alone don't show which keys are equal."""
    has_odd = any(events.column(name).null_count < events.num_rows for name in ("_unrep", "_from_unrep"))
    if has_odd and any(shape.columns[i].type.may_be_unrepresentable for i in shape.key):
        return None
    is_move = pc.equal(events.column("_op"), MOVED_IN)
    new = [events.column(f"c{i}") for i in shape.key]
    left = [pc.if_else(is_move, events.column(f"f{i}"), key) for i, key in zip(shape.key, new, strict=True)]
    codes = codes_of_keys(stored, [*zip(new, left, strict=True)], shape)
    if codes is None:
        return None
    own, former = codes[-2 * events.num_rows : -events.num_rows], codes[len(codes) - events.num_rows :]
    return codes[: len(codes) - 2 * events.num_rows], own, former


@dataclass(slots=True)
class _Sources:
    """Where to find the value of each column that may be unsent: the number of an event, or of a stored row, counted
    from the last event on.

    width: number of these columns. By key: stored: the stored row; newest: the newest value sent under the key, of any
    row; current: whether that value belongs to the row that has the key now.
    """

    width: int
    stored: Mapping[int, int]
    newest: dict[int, list[int | None]] = field(default_factory=dict)
    current: dict[int, list[bool]] = field(default_factory=dict)

    def after(
        self, events: pa.RecordBatch, shape: TableShape, own: Integers, former: Integers
    ) -> Mapping[int, list[int]]:
        unsent = [events.column(f"u{i}").to_pylist() for i in shape.toast]
        order, ops = np.lexsort(tuple(positions(events))).tolist(), events.column("_op").to_pylist()
        keys, former_keys = own.tolist(), former.tolist()
        for n in order:
            key = keys[n]
            if ops[n] != UPDATED:
                self.current[key] = [False] * self.width
            if ops[n] in (DELETED, MOVED_OUT):
                continue
            brought = self._brought(former_keys[n]) if ops[n] == MOVED_IN else [None] * self.width
            sources = [value if flags[n] else n for value, flags in zip(brought, unsent, strict=True)]
            newest = self.newest.setdefault(key, [None] * self.width)
            current = self.current.setdefault(key, [False] * self.width)
            for i, source in enumerate(sources):
                if source is not None:
                    newest[i], current[i] = source, True
        return {key: self._of(key) for key in set(keys)}

    def _brought(self, key: int) -> list[int | None]:
        return [self._at(key) if n is None else n for n in self.newest.get(key, [None] * self.width)]

    def _of(self, key: int) -> list[int]:
        newest, current = self.newest.get(key), self.current.get(key)
        if newest is None or current is None:
            return [self._at(key)] * self.width
        return [self._at(key) if n is None or not is_own else n for n, is_own in zip(newest, current, strict=True)]

    def _at(self, key: int) -> int:
        return self.stored.get(key, _UNKNOWN)


def _filled(
    net: pa.RecordBatch, events: pa.RecordBatch, shape: TableShape, stored: pa.Table | None, sources: Integers
) -> pa.RecordBatch:
    """The net rows with all values. sources: as in _Sources, by row and column."""
    for n, i in enumerate(shape.toast):
        parts = [events.column(f"c{i}")]
        if stored is not None:
            parts += stored.column(shape.columns[i].name).chunks
        at = pa.array(sources[:, n], mask=sources[:, n] == _UNKNOWN)
        column = net.schema.get_field_index(f"c{i}")
        net = net.set_column(column, net.schema.field(column), pa.concat_arrays(parts).take(at))
    entries = pa.array(_entries(net, events, shape, stored, sources), UNREPRESENTABLE)
    column = net.schema.get_field_index("_unrep")
    return net.set_column(column, net.schema.field(column), entries)


def _entries(
    net: pa.RecordBatch, events: pa.RecordBatch, shape: TableShape, stored: pa.Table | None, sources: Integers
) -> Iterator[list[dict[str, str | None]] | None]:
    """The entries of each row: its own for columns that are always sent, and the sources' for the others."""
    names = [shape.columns[i].name for i in shape.toast]
    known = events.column("_unrep").to_pylist()
    if stored is not None:
        maps = stored.column(UNREPRESENTABLE_COLUMN).to_pylist()
        known += [row and [{"key": key, "value": value} for key, value in row] for row in maps]
    for own, row in zip(net.column("_unrep").to_pylist(), sources.tolist(), strict=True):
        entries = [entry for entry in own or () if entry["key"] not in names]
        for name, source in zip(names, row, strict=True):
            if source == _UNKNOWN:
                entries.append({"key": name, "value": None})
            else:
                entries += [entry for entry in known[source] or () if entry["key"] == name]
        yield entries or None
