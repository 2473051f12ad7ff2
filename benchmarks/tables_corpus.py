"""Many tables, each of which changes a little every night."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.corpora import Corpus, corpus
from benchmarks.landing_files import Block, Landed, even_cuts, interleaved, land
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
from benchmarks.wire_arrays import Column, Ints, Table, begins, commits, deletes, inserts, relation, updates
from pgoutput_etl.protocol.framing import Framing

_ROWS, _UPDATES, _INSERTS, _DELETES = 1000, 30, 10, 10  # per table
_CHANGES = _UPDATES + _INSERTS + _DELETES
_COLUMNS = (
    Column("id", 23, is_key=True),
    Column("name", 25),
    Column("amount", 1700, (10 << 16) + 2 + 4),
    Column("at", 1184),
    Column("note", 25),
)
_LSN, _LSN_STEP, _XID = 0x3_0000_0000, 1 << 16, 7000


def many_tables(tables: int, files: int, changed: int | None = None) -> Corpus:
    """The first night inserts 1,000 rows into each; the second has 50 transactions that each change every table once.

    changed: the number of tables that the second night changes (default: all).
    """
    changed = tables if changed is None else changed

    def generate(first: Path, second: Path, expected: Path) -> tuple[Landed, list[TableFiles]]:
        all_tables = [_OneTable(number) for number in range(tables)]
        land(first, [_first_night(all_tables)], Framing.PGCOPY)
        block = _second_night(all_tables[:changed])
        landed = land(second, [block], Framing.PGCOPY, even_cuts(len(block.messages), files))
        return landed, [table.expected(expected) for table in all_tables[:changed]]

    return corpus("tables", {"tables": tables, "changed": changed, "files": files}, generate)


class _OneTable:
    """Rows 1 to 1,000, and then 50 changes: the first 30 rows are updated, the last 10 deleted, and 10 inserted."""

    def __init__(self, number: int) -> None:
        rng = np.random.default_rng([3, number])
        self.table = Table(20_000 + number, f"table_{number:03}", _COLUMNS)
        self.first = self._rows(rng, np.arange(1, _ROWS + 1))
        changed = np.r_[np.arange(1, _UPDATES + 1), np.arange(_ROWS + 1, _ROWS + _INSERTS + 1)]
        self.second = self._rows(rng, changed)
        self.deleted = np.arange(_ROWS - _DELETES + 1, _ROWS + 1)

    @staticmethod
    def _rows(rng: np.random.Generator, ids: Ints) -> pa.Table:
        size = len(ids)
        columns = [
            pa.array(ids, pa.int32()),
            random_texts(rng, size, 5, 20),
            decimals(rng.integers(0, 10**9, size), 10, 2),
            instant(BEGUN + rng.integers(0, 10**13, size)),
            random_texts(rng, size, 0, 40),
        ]
        return pa.table(columns, names=[column.name for column in _COLUMNS])

    def initial_inserts(self) -> pa.Array:
        return inserts(self.table, _printed(self.first), _ROWS)

    def changes(self) -> pa.Array:
        """The table's changes, one per transaction."""
        news = _printed(self.second)
        keys = [pa.array(self.deleted).cast(pa.string()), *[None] * (len(_COLUMNS) - 1)]
        return pa.concat_arrays(
            [
                updates(self.table, [column.slice(0, _UPDATES) for column in news], _UPDATES),
                inserts(self.table, [column.slice(_UPDATES) for column in news], _INSERTS),
                deletes(self.table, keys, _DELETES),
            ]
        )

    def expected(self, folder: Path) -> TableFiles:
        size = _ROWS - _DELETES - _UPDATES
        metadata = stamps(*(column(np.full(size, 0)) for column in (_lsn, _time, _xid)))
        unchanged = self.first.slice(_UPDATES, size)
        numbers = 1 + np.arange(_UPDATES + _INSERTS)
        new_metadata = stamps(*(column(numbers) for column in (_lsn, _time, _xid)))
        final = pa.concat_tables([_with_columns(unchanged, metadata), _with_columns(self.second, new_metadata)])
        nulls = {name: pa.nulls(_DELETES, final.schema.field(name).type) for name in final.column_names[1:]}
        deleted = pa.table({"id": pa.array(self.deleted, pa.int32()), **nulls})
        in_net = np.arange(final.num_rows) >= size
        return write_expected(folder, "public", self.table.name, ("id",), final, in_net, deleted)


def _printed(rows: pa.Table) -> list[pa.Array]:
    return [printed(rows.column(name).combine_chunks()) for name in rows.column_names]


def _with_columns(rows: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    return pa.table({**{name: rows.column(name) for name in rows.column_names}, **columns})


def _lsn(transaction: Ints) -> Ints:
    return _LSN + _LSN_STEP * (transaction + 1)


def _time(transaction: Ints) -> Ints:
    return BEGUN + 60_000_000 * transaction


def _xid(transaction: Ints) -> Ints:
    return _XID + transaction


def _first_night(tables: list[_OneTable]) -> Block:
    """The initial rows of all tables, in one transaction."""
    number = np.array([0])
    parts = [begins(_lsn(number), _time(number), _xid(number))]
    for table in tables:
        parts += [pa.array([relation(table.table)], pa.binary()), table.initial_inserts()]
    messages = pa.concat_arrays([*parts, commits(_lsn(number), _time(number))])
    return Block(messages, np.full(len(messages), _LSN + 64))


def _second_night(tables: list[_OneTable]) -> Block:
    """A change of every table in each transaction. Each table's Relation is directly before its first change: two
    Relations before a row would mean that one of them is a partition."""
    numbers = 1 + np.arange(_CHANGES)
    count = len(tables)
    kinds = [table.changes() for table in tables]
    kinds.append(pa.array([relation(table.table) for table in tables], pa.binary()))
    kinds += [begins(_lsn(numbers), _time(numbers), _xid(numbers)), commits(_lsn(numbers), _time(numbers))]
    transaction = np.r_[np.tile(numbers, count), np.ones(count, int), numbers, numbers]
    stage = np.r_[np.full((_CHANGES + 1) * count, 1), np.zeros(_CHANGES, int), np.full(_CHANGES, 2)]
    table = np.r_[np.repeat(np.arange(count), _CHANGES), np.arange(count), np.zeros(2 * _CHANGES, int)]
    is_change = np.arange(len(stage)) < _CHANGES * count
    order = np.lexsort((is_change, table, stage, transaction))
    return Block(interleaved(kinds, order), _lsn(transaction[order] - 1) + 64 * (1 + stage[order]))
