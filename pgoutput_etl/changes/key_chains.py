"""Chains: the changes of one key, in order, when later ones supersede earlier ones.

A change assumes something about its key. An UPDATE or DELETE assumes that there is a row; an UPDATE that moves a row to
another key assumes that there is none under the new key. A change that follows another one of its key either agrees
with it or proves that rows or changes are missing; the first change of a chain can only be compared with the target's
rows. A chain is therefore its first change plus the number of contradictions within it.

An INSERT assumes nothing: a publication may omit DELETEs, and a row filter turns UPDATEs into INSERTs. But a
transaction that inserts a key after it has written a row with that key proves that keys are not unique. If the
configuration names this key, it isn't one, and the table is held.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.changes.events import DELETED, INSERTED, MOVED_IN, MOVED_OUT, UPDATED
from pgoutput_etl.errors import TableError
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.scan.message_row import one_letter
from pgoutput_etl.schema.table_shape import CHAIN, CHAIN_NUMBERS, TableShape

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Operations that assume a row with their key exists, and operations that leave none.
PRESUMING, ENDING = (UPDATED, DELETED, MOVED_OUT), (DELETED, MOVED_OUT)


def not_unique(shape: TableShape, xid: int | str, lsn: str) -> str:
    """The reason to hold a table that got two rows with the same configured key."""
    return (
        f"transaction {xid}, committed at LSN {lsn}, inserts a row under the key of another row that it has written: "
        f"the configured key ({', '.join(shape.columns[i].name for i in shape.key)}) is not unique"
    )


def with_chains(
    events: pa.RecordBatch, order: Integers, key: Integers, kept: Flags, shape: TableShape
) -> pa.RecordBatch:
    """The kept events, with their chains. order: sorts events by key, then in commit order. key, kept: in this order. A
    key's first kept event stands for the dropped ones before it. Raises TableError if the configured key isn't
    unique."""
    is_same = np.zeros(len(order), np.bool_)
    is_same[1:] = key[1:] == key[:-1]
    is_repeated = is_same.copy()
    is_repeated[:-1] |= is_same[1:]
    is_same, order, kept = is_same[is_repeated], order[is_repeated], kept[is_repeated]  # most keys occur once
    starts = np.flatnonzero(~is_same)
    group = np.cumsum(~is_same) - 1
    firsts = np.full(len(starts), -1, np.int64)
    at = np.flatnonzero(kept)[::-1]
    firsts[group[at]] = at  # the last assignment wins
    chains = _Chains.of(events, order)
    missing, taken, is_twice = chains.contradictions(is_same)
    if is_twice.any() and not shape.has_unique_key:
        lsn, xid = (int(chains.numbers[name][np.argmax(is_twice)]) for name in ("lsn", "xid"))
        raise TableError(not_unique(shape, xid, format_lsn(lsn)))
    doubled = taken | is_twice
    for name, found in (("missing", missing), ("doubled", doubled)):
        total = np.concatenate(([0], np.cumsum(found + chains.numbers[name])))
        chains.totals[name] = total[firsts + 1] - total[starts]
    absorbing = np.flatnonzero(firsts > starts)
    if not len(absorbing):
        return events
    return chains.absorbed(events, order, starts[absorbing], firsts[absorbing], absorbing, missing | doubled)


def net_chains(events: pa.RecordBatch) -> pa.Array:
    """The chain of each event, including events that stand only for themselves; NULL for a chain that begins with an
    INSERT and has no contradictions, as it assumes nothing: Spark takes longer for a chain than for most other columns.
    """
    chain = events.column("_chain")
    own = {"op": "_op", "lsn": "_lsn", "xid": "_xid"}
    zeros = pa.repeat(pa.scalar(0, pa.int64()), events.num_rows)
    fields = {}
    for field in CHAIN:
        known = pc.struct_field(chain, field.name)
        default = events.column(own[field.name]) if field.name in own else zeros
        fields[field.name] = known if field.name.startswith("bad_") else pc.coalesce(known, default)
    assumes_nothing = pc.equal(fields["op"], INSERTED)
    for name in ("missing", "doubled"):
        assumes_nothing = pc.and_(assumes_nothing, pc.equal(fields[name], 0))
    return pa.StructArray.from_arrays([*fields.values()], fields=list(CHAIN), mask=assumes_nothing)


class _Chains:
    """Chains, in the order of keys. op, ended: the first change's letter, and whether the last change ends the row.
    numbers: by field of CHAIN; last: commit LSN and xid of the last change."""

    def __init__(self, op: Any, ended: Flags, numbers: dict[str, Integers], last: tuple[Integers, Integers]) -> None:
        self.op, self.ended, self.numbers, self.last = op, ended, numbers, last
        self.totals: dict[str, Integers] = {}

    @classmethod
    def of(cls, events: pa.RecordBatch, order: Integers) -> _Chains:
        last = one_letter(events.column("_op"))[order]
        chains = events.column("_chain")
        op, (lsn, xid) = last, (events.column(name).fill_null(-1).to_numpy()[order] for name in ("_lsn", "_xid"))
        numbers = {"lsn": lsn, "xid": xid}
        numbers |= {name: np.zeros(len(order), np.int64) for name in CHAIN_NUMBERS[2:]}
        if chains.null_count < len(chains):
            is_known = chains.is_valid().to_numpy(zero_copy_only=False)[order]
            op = np.where(is_known, one_letter(pc.struct_field(chains, "op"))[order], last)
            for name, own in numbers.items():
                stored = pc.struct_field(chains, name).fill_null(0).to_numpy(zero_copy_only=False)[order]
                numbers[name] = np.where(is_known, stored, own)
        return cls(op, np.isin(last, _letters(ENDING)), numbers, (lsn, xid))

    def contradictions(self, is_same: Flags) -> tuple[Flags, Flags, Flags]:
        """Flags of chains that assume a row although the previous chain has ended it, and of chains that give a row
        another row's key, by a move or by an INSERT in the same transaction. is_same: the chain has the same key as the
        previous one."""
        was_ended, (was_lsn, was_xid) = np.roll(self.ended, 1), (np.roll(numbers, 1) for numbers in self.last)
        is_together = (self.numbers["lsn"] == was_lsn) & (self.numbers["xid"] == was_xid)
        is_together &= was_xid >= 0  # a snapshot's row has no xid
        missing, is_there = is_same & was_ended & np.isin(self.op, _letters(PRESUMING)), is_same & ~was_ended
        return missing, is_there & (self.op == ord(MOVED_IN)), is_there & (self.op == ord(INSERTED)) & is_together

    def absorbed(
        self, events: pa.RecordBatch, order: Integers, starts: Integers, firsts: Integers, groups: Integers, bad: Flags
    ) -> pa.RecordBatch:
        """The events; those at `firsts` get the chain that begins at `starts`. groups: of these chains in `totals`."""
        numbers = {name: self.numbers[name][starts] for name in ("lsn", "xid")}
        numbers |= {name: total[groups] for name, total in self.totals.items()}
        numbers |= {name: np.zeros(len(starts), np.int64) for name in ("bad_lsn", "bad_xid")}
        is_bad = numbers["missing"] + numbers["doubled"] > 0
        for n in np.flatnonzero(is_bad).tolist():
            numbers["bad_lsn"][n], numbers["bad_xid"][n] = self._first_bad(starts[n], firsts[n], bad)
        ops = [chr(code) for code in self.op[starts].tolist()]
        fields = [ops, *(numbers[name] for name in CHAIN_NUMBERS)]
        masks = [~is_bad if field.name.startswith("bad_") else None for field in CHAIN]
        made = zip(fields, CHAIN, masks, strict=True)
        arrays = [pa.array(values, field.type, mask=mask) for values, field, mask in made]
        new = pa.StructArray.from_arrays(arrays, fields=list(CHAIN))
        places = np.arange(events.num_rows)
        places[order[firsts]] = events.num_rows + np.arange(len(firsts))
        column = events.schema.get_field_index("_chain")
        chains = pa.concat_arrays([events.column(column), new]).take(pa.array(places))
        return events.set_column(column, events.schema.field(column), chains)

    def _first_bad(self, start: int, end: int, bad: Flags) -> tuple[int, int]:
        """Commit LSN and xid of the first contradiction among the chains from `start` through `end`."""
        found = []
        for n in range(start, end + 1):
            if self.numbers["missing"][n] + self.numbers["doubled"][n]:
                found.append((int(self.numbers["bad_lsn"][n]), int(self.numbers["bad_xid"][n])))
            if bad[n]:
                found.append((int(self.numbers["lsn"][n]), int(self.numbers["xid"][n])))
        return min(found)


def _letters(operations: tuple[str, ...]) -> list[int]:
    return [ord(operation) for operation in operations]
