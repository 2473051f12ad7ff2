"""Message rows of one table to typed change events, and what a row of events means when applied in order.

An event says what happened to one row of the table:

    I  inserted                                        all columns
    U  updated under the same key                      all columns, but for unchanged TOAST
    D  deleted                                         the key; in a bag all columns
    X  moved out: an update took its key away          the key
    V  moved in: the same update, under the new key    all columns, but for unchanged TOAST

`events` builds them as Arrow columns, in positional names, so that no name of a user's column matters before the
MERGE. Unchanged TOAST is filled from the old tuple where that has the value: under REPLICA IDENTITY FULL, and for key
columns. A bag (a table without a key) knows I and D alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.protocol.decoder import read_tuple
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.schema.table_shape import (
    TIMESTAMP,
    UNREPRESENTABLE,
    TableShape,
)
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS
from pgoutput_etl.types import (
    ColumnType,
    LoadedColumn,
    ValueTextError,
    load_binary,
    load_text,
)

INSERTED, UPDATED, DELETED, MOVED_OUT, MOVED_IN = "I", "U", "D", "X", "V"

# In place of a tuple that must not be kept as it was sent, and could not be made what it should be; then why. No tuple
# begins like that: it would have 65,535 columns.
WITHHELD = b"\xff\xff"

MAX_SIZE = 2**30  # bytes of the events that are made at a time


# What `events` reads of a message row, with its transaction's outcome.
ROW_SCHEMA = pa.schema(
    [
        *(MESSAGE_SCHEMA.field(name) for name in ("file", "ordinal", "offset", "tag", "old_kind", "old", "new")),
        *(MESSAGE_SCHEMA.field(name) for name in ("commit_lsn", "commit_ts", "top_xid")),
        pa.field("scope", pa.int64()),
    ]
)


# A column's state in one event: its bytes, None for NULL, or UNCHANGED.
class _Unchanged:
    """The class of UNCHANGED."""


UNCHANGED = _Unchanged()

Cell = bytes | None | _Unchanged


class _Binary(bytes):
    """A value in binary form. One tuple may hold both: a type without a send function comes as text."""


@dataclass(slots=True)
class _EventColumns:
    """The events of one batch, column by column, still as PostgreSQL sent them."""

    shape: TableShape
    source: list[int] = field(default_factory=list)  # index of the message row
    ops: list[str] = field(default_factory=list)
    cells: list[list[bytes | None]] = field(default_factory=list)
    unchanged: dict[int, list[bool]] = field(default_factory=dict)
    from_key: list[list[bytes | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cells = [[] for _ in self.shape.columns]
        self.unchanged = {i: [] for i in self.shape.toast}
        self.from_key = [[] for _ in self.shape.key]

    def add(self, source: int, op: str, row: list[Cell], from_key: list[bytes | None] | None = None) -> None:
        self.source.append(source)
        self.ops.append(op)
        for i, cell in enumerate(row):
            if isinstance(cell, _Unchanged) and i not in self.unchanged:
                raise _RowError(f"column {self.shape.columns[i].name!r} is unchanged TOAST where none was counted")
            self.cells[i].append(None if isinstance(cell, _Unchanged) else cell)
        for i, flags in self.unchanged.items():
            flags.append(isinstance(row[i], _Unchanged))
        for i, values in enumerate(self.from_key):
            values.append(None if from_key is None else from_key[i])


# Per event, (column's name, PostgreSQL's text) of what its types can't hold.
_ErrorNote = list[list[tuple[str, str]] | None]


class _RowError(Exception):
    """A message row that can't become an event; `events` adds where it stands."""


def events(rows: pa.RecordBatch, shape: TableShape) -> pa.RecordBatch:
    """Change events of `shape.event_schema()` from message rows (I, U and D) of the shape's relation.

    The rows are of ROW_SCHEMA: commit_lsn, commit_ts and top_xid are the outcome of their transaction, and `scope` is
    the transaction's if it was streamed. Events come in the order of the rows. Raises ArchiveError naming file number,
    offset and column, never a value, and OverflowError if the values are too many for one batch.
    """
    columns = {name: rows.column(name).to_pylist() for name in rows.schema.names}
    built = _EventColumns(shape)
    described: set[int] = set()
    for i in range(rows.num_rows):
        try:
            number = shape.versions.at((columns["file"][i], columns["ordinal"][i]), columns["scope"][i])
            if number not in described:
                described.add(_described(shape, number))
            old = None if columns["old"][i] is None else _cells(columns["old"][i], shape)
            new = None if columns["new"][i] is None else _cells(columns["new"][i], shape)
            _add_events(built, i, columns["tag"][i], columns["old_kind"][i], old, new)
        except _RowError as error:
            raise ArchiveError(f"{_place(columns, i)}: {_name(shape)}: {error}") from None
    return _to_arrow(built, columns)


def _described(shape: TableShape, number: int | None) -> int:
    """The number of a version that has the shape's columns: no row is read by another's description."""
    if number is None:
        raise _RowError("no Relation message describes it: the archive begins after the server sent it")
    version, relation = shape.versions.relations[number], shape.relation
    if (version.columns, version.replica_identity) != (relation.columns, relation.replica_identity):
        raise _RowError("its Relation message has other columns than those it is read with")
    return number


def _place(columns: Mapping[str, list[Any]], i: int) -> str:
    """`file 7` is the ledger's number; whoever knows the path puts it there."""
    return f"file {columns['file'][i]}, offset {columns['offset'][i]}"


def too_long(row: pa.RecordBatch, shape: TableShape) -> ArchiveError:
    """What `events` can't do in any batch, however small."""
    where = _place(row.select(["file", "offset"]).to_pydict(), 0)
    return ArchiveError(f"{where}: {_name(shape)}: expected values that take less than 1 GiB in a row")


def _name(shape: TableShape) -> str:
    return f"{shape.relation.namespace}.{shape.relation.name}"


def _cells(tuple_data: bytes, shape: TableShape) -> list[Cell]:
    """The relation's columns; no retired ones."""
    if tuple_data.startswith(WITHHELD):
        raise _RowError(tuple_data[len(WITHHELD) :].decode())
    data = read_tuple(tuple_data)
    width = len(shape.relation.columns)
    if len(data.kinds) != width:
        raise _RowError(f"a tuple of {len(data.kinds)} columns where Relation describes {width}")
    if data.kinds.count(b"t") + data.kinds.count(b"n") == width:
        return list(data.values)
    return [_cell(kind, value) for kind, value in zip(data.kinds, data.values, strict=True)]


def _cell(kind: int, value: bytes | None) -> Cell:
    if kind == 0x75:
        return UNCHANGED
    return _Binary(value) if kind == 0x62 and value is not None else value


def _add_events(
    built: _EventColumns,
    source: int,
    tag: str,
    old_kind: str | None,
    old_row: list[Cell] | None,
    row: list[Cell] | None,
) -> None:
    shape = built.shape
    retired = len(shape.columns) - len(shape.relation.columns)
    if row is not None and old_row is not None:
        _fill_from_old(row, old_row, range(len(row)) if old_kind == "O" else _sent_in_key(shape))
    if shape.is_bag:
        _add_bag_events(built, source, old_kind, old_row, row)
        return
    old_key = None if old_row is None else _key(old_row, shape)
    if row is None:
        built.add(source, DELETED, _only_key(shape, old_key or []))
        return
    key = _key(row, shape)
    # A retired column's value stays with its row; a new row has none.
    left: list[Cell] = [None if tag == "I" else UNCHANGED] * retired
    if old_key is None or old_key == key:
        built.add(source, INSERTED if tag == "I" else UPDATED, row + left)
    else:
        built.add(source, MOVED_OUT, _only_key(shape, old_key))
        built.add(source, MOVED_IN, row + left, old_key)


def _sent_in_key(shape: TableShape) -> list[int]:
    """What a key-only old tuple carries."""
    return [i for i, column in enumerate(shape.relation.columns) if column.is_key]


def _fill_from_old(row: list[Cell], old_row: list[Cell], sent: Iterable[int]) -> None:
    """Under FULL the old tuple has every value, even where the new one says unchanged; a key-only one has the key's."""
    for i in sent:
        if isinstance(row[i], _Unchanged):
            row[i] = old_row[i]


def _add_bag_events(
    built: _EventColumns, source: int, old_kind: str | None, old_row: list[Cell] | None, row: list[Cell] | None
) -> None:
    retired: list[Cell] = [None] * (len(built.shape.columns) - len(built.shape.relation.columns))
    if old_row is not None:
        if old_kind != "O":
            raise _RowError("a key-only old tuple in a table without a key")
        built.add(source, DELETED, old_row + retired)
    if row is not None:
        if any(isinstance(cell, _Unchanged) for cell in row):
            raise _RowError("unchanged TOAST in a table without a key: nothing says which row has the value")
        built.add(source, INSERTED, row + retired)


def _key(row: list[Cell], shape: TableShape) -> list[bytes | None]:
    key: list[bytes | None] = []
    for i in shape.key:
        cell = row[i]
        if isinstance(cell, _Unchanged):
            raise _RowError(f"column {shape.columns[i].name!r} of the key is unchanged TOAST, and no old tuple has it")
        key.append(cell)
    return key


def _only_key(shape: TableShape, key: list[bytes | None]) -> list[Cell]:
    row: list[Cell] = [None] * len(shape.columns)
    for i, cell in zip(shape.key, key, strict=True):
        row[i] = cell
    return row


def _to_arrow(built: _EventColumns, columns: Mapping[str, list[Any]]) -> pa.RecordBatch:
    shape, source = built.shape, built.source
    here: _ErrorNote = [None] * len(source)
    before: _ErrorNote = [None] * len(source)
    size = 0

    def load(column: int, cells: list[bytes | None], noted: _ErrorNote) -> pa.Array:
        nonlocal size
        try:
            loaded = _load(shape.columns[column].type, cells)
        except ValueTextError as error:
            where = _place(columns, source[error.index])
            what = f"a {error.type_name} that is {error.expected}"
            name = f"{_name(shape)}, column {shape.columns[column].name!r}"
            raise ArchiveError(f"{where}: {name}: expected {what}, found something else") from None
        size += loaded.array.nbytes + sum(map(len, loaded.unrepresentable.values()))
        if size > MAX_SIZE:
            raise OverflowError(f"more than {MAX_SIZE:,} bytes of values in a batch; make it smaller")
        for i, text in loaded.unrepresentable.items():
            noted[i] = [*(noted[i] or []), (shape.columns[column].name, text)]
        return loaded.array

    values = {f"c{i}": load(i, cells, here) for i, cells in enumerate(built.cells)}
    values |= {f"u{i}": pa.array(flags, pa.bool_()) for i, flags in built.unchanged.items()}
    values |= {f"f{i}": load(i, cells, before) for i, cells in zip(shape.key, built.from_key, strict=True)}
    for name, of in (("_lsn", "commit_lsn"), ("_file", "file"), ("_ordinal", "ordinal"), ("_xid", "top_xid")):
        values[name] = pa.array([columns[of][i] for i in source], pa.int64())
    committed = (columns["commit_ts"][i] for i in source)
    times = [None if time is None else time + POSTGRES_EPOCH_MICROSECONDS for time in committed]
    values["_ts"] = pa.array(times, pa.int64()).cast(TIMESTAMP)
    values["_op"] = pa.array(built.ops, pa.string())
    values["_unrep"] = pa.array(here, UNREPRESENTABLE)
    values["_from_unrep"] = pa.array(before, UNREPRESENTABLE)
    schema = shape.event_schema()
    return pa.RecordBatch.from_arrays([values[name] for name in schema.names], schema=schema)


def _load(of: ColumnType, cells: list[bytes | None]) -> LoadedColumn:
    binary = [isinstance(cell, _Binary) for cell in cells]
    if not any(binary):
        return load_text(of, cells)
    if all(is_binary or cell is None for is_binary, cell in zip(binary, cells, strict=True)):
        return load_binary(of, cells)
    # A slot that was started with binary and without it.
    texts = load_text(of, [None if is_binary else cell for is_binary, cell in zip(binary, cells, strict=True)])
    others = load_binary(of, [cell if is_binary else None for is_binary, cell in zip(binary, cells, strict=True)])
    places = [i + len(cells) * is_binary for i, is_binary in enumerate(binary)]
    array = pa.concat_arrays([texts.array, others.array]).take(pa.array(places, pa.int64()))
    return LoadedColumn(array, {**texts.unrepresentable, **others.unrepresentable})
