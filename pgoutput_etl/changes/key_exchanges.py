"""Reorders the changes of a transaction so that no row takes a key that another row still has.

A deferrable key is unique at each commit, but not within a transaction: `UPDATE t SET pos = pos + 1` moves a row to a
key before that key's row leaves it. The last change of a key then says nothing about the key's row. Only a configured
key of a table with REPLICA IDENTITY FULL can be deferrable, because PostgreSQL accepts no such index as an identity. So
each old tuple is a whole row, which tells the holders of a key apart.

A transaction with such a key is replaced by its net changes: one per row, from its first old tuple to its last new one.
Rows that leave a key come before the row that takes it. If rows exchange their keys in a circle, one of them is deleted
first and inserted last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput_etl.changes.event_log import MESSAGES_PER_FILE, TRUNCATED
from pgoutput_etl.changes.events import DELETED, INSERTED, UPDATED
from pgoutput_etl.changes.row_hashes import UNKNOWN, RowHashes
from pgoutput_etl.protocol.decoder import read_tuple
from pgoutput_etl.protocol.messages import TupleData
from pgoutput_etl.schema.table_shape import TableShape

Integers = npt.NDArray[np.int64]

# A use of a key by a change. transaction: its commit LSN. step: 0 for the old key of a moved row, 1 for the new one, 2
# for any other change. before, after: hashes of the row under the key; 0 if the change begins or ends the row there.
KEY_USES = pa.schema(
    [(name, pa.int64()) for name in ("key", "transaction", "file", "ordinal", "step", "before", "after")]
)


def key_uses(rows: pa.RecordBatch, shape: TableShape) -> pa.RecordBatch:
    """The uses of keys in message rows (events.ROW_SCHEMA) of a shape that `may_exchange_keys`."""
    lsn = rows.column("commit_lsn").fill_null(-1).to_numpy()
    return _uses(rows, RowHashes.of(rows, shape), lsn)


def _uses(rows: pa.RecordBatch, hashes: RowHashes, transaction: Integers) -> pa.RecordBatch:
    file, ordinal = (rows.column(name).to_numpy() for name in ("file", "ordinal"))
    stays = hashes.old_key == hashes.new_key
    leaves, enters = (np.flatnonzero(~stays & (key != 0)) for key in (hashes.old_key, hashes.new_key))
    stay = np.flatnonzero(stays & (hashes.old_key != 0))
    row = np.concatenate([leaves, stay, enters])
    is_move = (hashes.old_key != 0) & (hashes.new_key != 0)
    steps = np.where(is_move[leaves], 0, 2), np.full(len(stay), 2), np.where(is_move[enters], 1, 2)
    ended, nothing = np.zeros(len(leaves), np.int64), np.zeros(len(enters), np.int64)
    columns = {
        "key": np.concatenate([hashes.old_key[leaves], hashes.old_key[stay], hashes.new_key[enters]]),
        "transaction": transaction[row],
        "file": file[row],
        "ordinal": ordinal[row],
        "step": np.concatenate(steps),
        "before": np.concatenate([hashes.before[leaves], hashes.before[stay], nothing]),
        "after": np.concatenate([ended, hashes.after[stay], hashes.after[enters]]),
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in KEY_USES.names], schema=KEY_USES)


def exchanging(uses: pa.RecordBatch, keeps_changes: bool) -> Integers:
    """The transactions where several rows may have the same key at once. uses: all uses of their keys.

    A row that takes a key and leaves it again may pass another row that has the key all along and never changes.
    keeps_changes: ignores rows that are merely inserted and deleted, because every change is to be kept.
    """
    columns = {name: uses.column(name).to_numpy() for name in uses.schema.names}
    if not len(columns["key"]):
        return np.empty(0, np.int64)
    order = np.lexsort([columns[name] for name in ("step", "ordinal", "file", "transaction", "key")])
    key, transaction, step = (columns[name][order] for name in ("key", "transaction", "step"))
    before, after = (columns[name][order] for name in ("before", "after"))
    is_same = np.zeros(len(order), np.bool_)
    is_same[1:] = (key[1:] == key[:-1]) & (transaction[1:] == transaction[:-1])
    was = np.roll(after, 1)
    is_next = np.where(before == 0, was == 0, (was != 0) & ((before == was) | (before == UNKNOWN)))
    starts = np.flatnonzero(~is_same)
    ends = np.append(starts[1:], len(order)) - 1
    is_brief = (before[starts] == 0) & (after[ends] == 0)
    if keeps_changes:
        is_brief &= (step[starts] == 1) | (step[ends] == 0)
    return np.unique(np.concatenate([transaction[is_same & ~is_next], transaction[starts[is_brief]]]))


def without_exchanges(rows: pa.RecordBatch, shape: TableShape, keeps_changes: bool = False) -> pa.RecordBatch:
    """Message rows with the same effect, in commit order if any had to be replaced. rows: all rows of their
    transactions within the shape's span; a TRUNCATE splits a transaction. keeps_changes: as in `exchanging`."""
    if not shape.may_exchange_keys or rows.num_rows < 2:
        return rows
    hashes = RowHashes.of(rows, shape)
    lsn, file, ordinal = (rows.column(n).fill_null(-1).to_numpy() for n in ("commit_lsn", "file", "ordinal"))
    order = np.lexsort([ordinal, file, lsn])
    is_truncate = np.array([tag == TRUNCATED for tag in rows.column("tag").to_pylist()], np.bool_)[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = lsn[order][1:] != lsn[order][:-1]
    part = np.empty(len(order), np.int64)
    part[order] = np.cumsum(is_first | is_truncate)
    found = exchanging(_uses(rows, hashes, part), keeps_changes)
    starts = np.searchsorted(part[order], found)
    ends = np.searchsorted(part[order], found, "right")
    changed = [order[a:b][~is_truncate[a:b]] for a, b in zip(starts, ends, strict=True)]
    changed = [indices for indices in changed if _are_readable(hashes.taken(indices))]
    if not changed:
        return rows
    return _replaced(rows, hashes, changed)


def _are_readable(hashes: RowHashes) -> bool:
    """False if a change identifies no row, or identifies it by fewer than all columns, as in a leaf partition whose
    identity differs from its root's."""
    return bool(((hashes.old_key | hashes.new_key) != 0).all() and (hashes.before != UNKNOWN).all())


def _replaced(rows: pa.RecordBatch, hashes: RowHashes, parts: Iterable[Integers]) -> pa.RecordBatch:
    is_kept = np.ones(rows.num_rows, np.bool_)
    made: list[dict[str, Any]] = []
    for indices in parts:
        is_kept[indices] = False
        own = rows.take(pa.array(indices)).to_pylist()
        made += _serial(own, hashes.taken(indices))
    new = pa.RecordBatch.from_pylist(made, rows.schema)
    both = pa.Table.from_batches([rows.filter(pa.array(is_kept)), new])
    in_order = both.sort_by([(name, "ascending") for name in ("commit_lsn", "file", "ordinal")])
    [batch] = in_order.combine_chunks().to_batches() or [new]
    return batch


@dataclass(slots=True, eq=False)
class _MovingRow:
    """A row within a transaction. first, last: indices of its changes. first_key: its key when the transaction began;
    key: its current key; 0 if the row doesn't exist. state: hash of its values."""

    first: int
    first_key: int
    key: int = 0
    state: int = 0
    last: int = 0


@dataclass(slots=True)
class _Holders:
    """The rows of a transaction, by their current key. initial: keys whose first row is known."""

    by_key: dict[int, list[_MovingRow]] = field(default_factory=dict)
    initial: set[int] = field(default_factory=set)

    def leave(self, key: int, state: int, change: int) -> _MovingRow:
        """Returns the row that an old tuple identifies, and removes it from the key."""
        rows = self.by_key.get(key, [])
        same = [row for row in rows if row.state == state]
        if not same and key in self.initial:
            same = rows
        if same:
            rows.remove(same[-1])
            return same[-1]
        self.initial.add(key)
        return _MovingRow(change, key)

    def enter(self, row: _MovingRow, key: int, state: int, change: int) -> None:
        row.key, row.state, row.last = key, state, change
        if key:
            self.by_key.setdefault(key, []).append(row)


def _rows_of(hashes: RowHashes) -> list[_MovingRow]:
    holders, rows = _Holders(), []
    changes = zip(*(a.tolist() for a in (hashes.old_key, hashes.before, hashes.new_key, hashes.after)), strict=True)
    for i, (old_key, before, new_key, after) in enumerate(changes):
        row = holders.leave(old_key, before, i) if old_key else _MovingRow(i, 0)
        if row.first == i:
            rows.append(row)
        holders.enter(row, new_key, after, i)
    return rows


def _serial(changes: list[dict[str, Any]], hashes: RowHashes) -> list[dict[str, Any]]:
    """The net changes of a transaction, at the positions of its changes. changes: in order."""
    rows = [row for row in _rows_of(hashes) if row.first_key or row.key]
    in_order, broken = _in_order([row for row in rows if row.first_key and row.key])
    deleted = [_net(changes, row, DELETED) for row in rows if not row.key]
    updated = [_net(changes, row, UPDATED) for row in in_order]
    inserted = [_net(changes, row, INSERTED) for row in [*(row for row in rows if not row.first_key), *broken]]
    placed = zip([*deleted, *updated, *inserted], changes, strict=False)
    first = [_net(changes, row, DELETED) | _place_before(changes[0]) for row in broken]
    return [*first, *(net | {name: at[name] for name in ("file", "ordinal", "offset")} for net, at in placed)]


def _in_order(rows: list[_MovingRow]) -> tuple[list[_MovingRow], list[_MovingRow]]:
    """Sorts rows so that each follows the row that leaves the key it takes. Also returns one row of each cycle."""
    leaving = {row.first_key: row for row in rows}
    in_order: list[_MovingRow] = []
    broken: list[_MovingRow] = []
    done: set[int] = set()
    for start in rows:
        path: list[_MovingRow] = []
        row: _MovingRow | None = start
        while row is not None and id(row) not in done:
            done.add(id(row))
            path.append(row)
            row = leaving.get(row.key) if row.key != row.first_key else None
        if row is start and len(path) > 1:
            broken.append(path.pop(0))
        in_order += reversed(path)
    return in_order, broken


def _net(changes: list[dict[str, Any]], row: _MovingRow, tag: str) -> dict[str, Any]:
    """A row's net change as a single message row."""
    first, last = changes[row.first], changes[row.last]
    if row.first == row.last and first["tag"] == tag:
        return first
    old = {"old_kind": None, "old": None} if tag == INSERTED else {name: first[name] for name in ("old_kind", "old")}
    new = None if tag == DELETED else _filled(last["new"], last["old"])
    return {**last, **old, "tag": tag, "new": new}


def _filled(new: bytes, old: bytes | None) -> bytes:
    """A new tuple, with unchanged TOAST filled in from the old one."""
    data = read_tuple(new)
    unchanged = set(data.unchanged())
    if old is None or not unchanged:
        return new
    before = read_tuple(old)
    kinds = bytes(before.kinds[i] if i in unchanged else kind for i, kind in enumerate(data.kinds))
    values = tuple(before.values[i] if i in unchanged else value for i, value in enumerate(data.values))
    return TupleData(kinds, values).to_bytes()


def _place_before(change: dict[str, Any]) -> dict[str, int]:
    """A position before a transaction's first change that none of its other changes of the table has."""
    if change["ordinal"]:
        return {"ordinal": change["ordinal"] - 1}
    return {"file": change["file"] - 1, "ordinal": MESSAGES_PER_FILE - 1}
