"""One streamed transaction of any size, in many segments, with some subtransactions rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.corpora import Corpus, corpus
from benchmarks.landing_files import Block, Landed, even_cuts, initial_cuts, interleaved, land
from benchmarks.typed_columns import (
    BEGUN,
    TableFiles,
    decimals,
    instant,
    printed,
    random_texts,
    stamps,
    write_expected,
)
from benchmarks.wire_arrays import (
    STREAM_STOP,
    Column,
    Ints,
    Table,
    begins,
    commits,
    deletes,
    inserts,
    relation,
    stream_abort,
    stream_commit,
    stream_start,
    updates,
)
from pgoutput_etl.protocol.framing import Framing

_TABLE = Table(
    16600,
    "ledger",
    (
        Column("id", 20, is_key=True),
        Column("account", 23),
        Column("amount", 1700, (12 << 16) + 2 + 4),
        Column("label", 25),
        Column("at", 1184),
    ),
)
_PER_SEGMENT, _PER_SUBTRANSACTION, _SEGMENTS_PER_BLOCK = 10_000, 2_500, 10
_INSERTED, _UPDATED, _DELETED = range(3)
_SHARES = (0.80, 0.15, 0.05)
_ABORTED = 0.1  # of the subtransactions
_FIRST_LSN, _LSN, _FIRST_XID, _XID = 0x4_0000_0000, 0x5_0000_0000, 8000, 9000
_COMMITTED_AT = BEGUN + 3_600_000_000


def streamed(rows: int, files: int) -> Corpus:
    """As protocol 2 sends it: four fifths inserts, the rest updates and deletes of rows from the first night."""

    def generate(first: Path, second: Path, expected: Path) -> tuple[Landed, list[TableFiles]]:
        transaction = _Transaction(rows)
        land(first, [transaction.first_night()], Framing.COPYDATA, initial_cuts(transaction.initial))
        segments = -(-rows // _PER_SEGMENT)
        messages = rows + 2 * segments + 2 + int(transaction.is_aborted.sum())
        landed = land(second, transaction.blocks(), Framing.COPYDATA, even_cuts(messages, files))
        return landed, [transaction.expected(expected)]

    return corpus("streamed", {"rows": rows, "files": files}, generate)


class _Transaction:
    """The kinds and keys of the changes, in the order of sending."""

    def __init__(self, rows: int) -> None:
        rng = np.random.default_rng(4)
        self.rows = rows
        self.kind = rng.choice(3, rows, p=_SHARES)
        deleted = int((self.kind == _DELETED).sum())
        self.initial = max(rows // 5, deleted + 1)
        updatable = self.initial - deleted
        self.id = self.initial + 1 + np.arange(rows)
        is_update = self.kind == _UPDATED
        self.id[is_update] = rng.integers(1, updatable + 1, int(is_update.sum()))
        self.id[self.kind == _DELETED] = updatable + 1 + rng.permutation(deleted)
        self.subtransaction = np.arange(rows) // _PER_SUBTRANSACTION
        self.is_aborted = rng.random(int(self.subtransaction[-1]) + 1) < _ABORTED
        self.labels = random_texts(rng, 20_000, 6, 24)

    def values(self, ids: Ints, number: Ints) -> dict[str, pa.Array]:
        """The columns of rows with these keys, after the change with this number; -1: the first night's insert."""
        mixed = ids * 2_654_435_761 + number * 40_503
        return {
            "id": pa.array(ids, pa.int64()),
            "account": pa.array(mixed % 100_000, pa.int32()),
            "amount": decimals(mixed % 10**10, 12, 2),
            "label": self.labels.take(pa.array(mixed % len(self.labels))),
            "at": instant(BEGUN + mixed % 10**14),
        }

    def first_night(self) -> Block:
        """All inserts, in one ordinary transaction."""
        ids = 1 + np.arange(self.initial)
        rows = [printed(column) for column in self.values(ids, -np.ones_like(ids)).values()]
        lsn, time = np.array([_FIRST_LSN]), np.array([BEGUN])
        parts = [
            begins(lsn, time, np.array([_FIRST_XID])),
            pa.array([relation(_TABLE)], pa.binary()),
            inserts(_TABLE, rows, self.initial),
            commits(lsn, time),
        ]
        messages = pa.concat_arrays(parts)
        return Block(messages, np.full(len(messages), _FIRST_LSN - 64))

    def blocks(self) -> Iterator[Block]:
        """Blocks of some segments each, then the commit."""
        step = _PER_SEGMENT * _SEGMENTS_PER_BLOCK
        for begin in range(0, self.rows, step):
            messages = self._segments(begin, min(begin + step, self.rows))
            yield Block(messages, _LSN - (1 << 30) + 64 * (begin + np.arange(len(messages))))
        yield Block(pa.array([stream_commit(_XID, _LSN, _COMMITTED_AT)], pa.binary()), np.array([_LSN]))

    def _segments(self, begin: int, end: int) -> pa.Array:
        numbers = np.arange(begin, end)
        kinds, places = [], []
        for kind in (_INSERTED, _UPDATED, _DELETED):
            kind_numbers = numbers[self.kind[begin:end] == kind]
            kinds.append(self._changes(kind, kind_numbers))
            places.append(kind_numbers)
        place_of = np.empty(end - begin, np.int64)
        place_of[np.concatenate(places) - begin] = np.arange(end - begin)
        others: list[bytes] = []
        order: list[Ints] = []

        def add(*messages: bytes) -> None:
            order.append(end - begin + len(others) + np.arange(len(messages)))
            others.extend(messages)

        for at in range(begin, end, _PER_SEGMENT):
            stop = min(at + _PER_SEGMENT, end)
            add(stream_start(_XID, at == 0), *([relation(_TABLE, _XID)] if at == 0 else []))
            order.append(place_of[at - begin : stop - begin])
            add(STREAM_STOP, *self._aborts(at, stop))
        return interleaved([*kinds, pa.array(others, pa.binary())], np.concatenate(order))

    def _aborts(self, begin: int, end: int) -> list[bytes]:
        """The Stream Aborts of subtransactions that end in this segment."""
        ended = np.unique(self.subtransaction[begin:end])
        if end < self.rows:
            ended = ended[ended < self.subtransaction[end]]
        return [stream_abort(_XID, self._subxid(int(number))) for number in ended if self.is_aborted[number]]

    @staticmethod
    def _subxid(subtransaction: int) -> int:
        return _XID + 1 + subtransaction

    def _changes(self, kind: int, numbers: Ints) -> pa.Array:
        ids, xids = self.id[numbers], _XID + 1 + self.subtransaction[numbers]
        if kind == _DELETED:
            keys = [pa.array(ids).cast(pa.string()), *[None] * (len(_TABLE.columns) - 1)]
            return deletes(_TABLE, keys, len(ids), xids)
        columns = [printed(column) for column in self.values(ids, numbers).values()]
        return (inserts if kind == _INSERTED else updates)(_TABLE, columns, len(ids), xids)

    def expected(self, folder: Path) -> TableFiles:
        committed = np.flatnonzero(~self.is_aborted[self.subtransaction])
        last = np.full(self.initial + self.rows + 1, -1)  # the number of each key's last change, or -1
        np.maximum.at(last, self.id[committed], committed)
        ids = np.arange(1, len(last))
        last_change = last[1:]
        exists = (ids <= self.initial) | (last_change >= 0)
        is_deleted = (last_change >= 0) & (self.kind[last_change] == _DELETED)
        lives = exists & ~is_deleted
        number = last_change[lives]
        changed = number >= 0
        marks = stamps(
            np.where(changed, _LSN, _FIRST_LSN),
            np.where(changed, _COMMITTED_AT, BEGUN),
            np.where(changed, _XID, _FIRST_XID),
        )
        final = pa.table({**self.values(ids[lives], number), **marks})
        deleted_ids = ids[is_deleted]
        nulls = {name: pa.nulls(len(deleted_ids), final.schema.field(name).type) for name in final.column_names[1:]}
        deleted = pa.table({"id": pa.array(deleted_ids, pa.int64()), **nulls})
        return write_expected(folder, "public", _TABLE.name, _TABLE.key, final, changed, deleted)
