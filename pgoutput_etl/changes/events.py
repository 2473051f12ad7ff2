"""Typed change events from the message rows of one table.

An event is a change of one row:

    I  inserted                                        all columns
    U  updated under the same key                      all columns, but for unchanged TOAST
    D  deleted                                         the key; in a bag all columns
    X  moved out: an update took its key away          the key
    V  moved in: the same update, under the new key    all columns, but for unchanged TOAST

`events` builds Arrow columns with positional names, so the names of a user's columns don't matter until the MERGE.
Unchanged TOAST is filled in from the old tuple if that has the value: under REPLICA IDENTITY FULL, and in key columns.
Rows of a partition that is published through its root have the partition's replica identity: an old tuple of kind K may
have all columns, and one of kind O only some. A bag (a table without a key) only has I and D.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.errors import ArchiveError, RowError
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.protocol.decoder import read_tuple
from pgoutput_etl.protocol.messages import TupleData
from pgoutput_etl.reasons import Reason, ReasonKind, kind_of
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.schema.table_shape import CHAIN, TIMESTAMP, UNREPRESENTABLE, TableShape
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS
from pgoutput_etl.types import ValueTextError
from pgoutput_etl.types.column import load_mixed

INSERTED, UPDATED, DELETED, MOVED_OUT, MOVED_IN = "I", "U", "D", "X", "V"

# Stands for a tuple that couldn't be masked; the reason follows. No tuple begins with it, as it would have 65,535
# columns.
WITHHELD = b"\xff\xff"

MAX_SIZE = 2**30  # bytes of events in one batch

# Java heap per byte of a row that a MERGE reads, joins, and writes. With a heap of 1 GiB, an UPDATE of another column
# succeeds for a row of 33 MB, and fails for one of 44 MB.
HEAP_PER_BYTE = 32

# The columns of a message row that `events` reads, including the outcome of its transaction.
ROW_SCHEMA = pa.schema(
    [
        *(MESSAGE_SCHEMA.field(name) for name in ("file", "ordinal", "offset", "tag", "old_kind", "old", "new")),
        *(MESSAGE_SCHEMA.field(name) for name in ("commit_lsn", "commit_ts", "top_xid")),
        pa.field("scope", pa.int64()),
    ]
)


class _Unchanged:
    """The class of UNCHANGED."""


UNCHANGED = _Unchanged()

Cell = bytes | None | _Unchanged  # a column of an event: bytes, NULL, or unchanged TOAST

_Row = list[Cell]


class _Binary(bytes):
    """A value in binary form; a tuple may mix both forms (load_mixed)."""


@dataclass(slots=True)
class _EventColumns:
    """The events of one batch, by column, with values as PostgreSQL sent them."""

    shape: TableShape
    source: list[int] = field(default_factory=list)  # index of the message row
    ops: list[str] = field(default_factory=list)
    cells: list[list[bytes | None]] = field(init=False)
    unchanged: dict[int, list[bool]] = field(init=False)
    from_key: list[list[bytes | None]] = field(init=False)

    def __post_init__(self) -> None:
        self.cells = [[] for _ in self.shape.columns]
        self.unchanged = {i: [] for i in self.shape.toast}
        self.from_key = [[] for _ in self.shape.key]

    def add(self, source: int, op: str, row: _Row, from_key: list[bytes | None] | None = None) -> None:
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


# By event: (column name, PostgreSQL's text) of unrepresentable values.
_Texts = list[list[tuple[str, str]] | None]


_PARTITION = (
    "Partitions that are published through this root may have a replica identity that it lacks: configure `key`, or "
    "set the same REPLICA IDENTITY for all"
)


class _RowError(Exception):
    """A message row that can't become an event. `events` adds its position."""

    def __init__(self, text: str, kind: ReasonKind | None = None) -> None:
        super().__init__(text)
        self.kind = kind


def events(rows: pa.RecordBatch, shape: TableShape) -> pa.RecordBatch:
    """Change events of `shape.event_schema()` from message rows (I, U, and D) of the shape's relation, in the same
    order.

    rows: message rows as ROW_SCHEMA. commit_lsn, commit_ts, and top_xid are from the transaction's outcome; scope is
    NULL unless it was streamed. Raises ArchiveError, which names file number, offset, and column, but no value, and
    OverflowError if the values are too large for one batch.
    """
    columns = {name: rows.column(name).to_pylist() for name in rows.schema.names}
    built = _EventColumns(shape)
    described: set[int] = set()
    for i in range(rows.num_rows):
        try:
            number = shape.versions.at((columns["file"][i], columns["ordinal"][i]), columns["scope"][i])
            if number not in described:
                described.add(_checked_version(shape, number))
            old = None if columns["old"][i] is None else _cells(columns["old"][i], shape)
            new = None if columns["new"][i] is None else _cells(columns["new"][i], shape)
            _add_events(built, i, columns["tag"][i], columns["old_kind"][i], old, new)
        except _RowError as error:
            text = f"{_position(columns, i)}: {shape.relation.full_name}: {error}"
            raise RowError.of_kind(text, error.kind) from None
    return _to_arrow(built, columns)


def _checked_version(shape: TableShape, number: int | None) -> int:
    """The number of a version, which must have the shape's columns."""
    if number is None:
        raise _RowError("no Relation message describes it: the archive begins after the server sent it")
    version, relation = shape.versions.relations[number], shape.relation
    if (version.columns, version.replica_identity) != (relation.columns, relation.replica_identity):
        raise _RowError("its Relation message has other columns than those it is read with")
    return number


def _position(columns: Mapping[str, list[Any]], i: int) -> str:
    """Names the file by the ledger's number; callers that know the path replace it."""
    return f"file {columns['file'][i]}, offset {columns['offset'][i]}"


def too_long(row: pa.RecordBatch, shape: TableShape) -> ArchiveError:
    """The error for a row that is too large even for a separate batch."""
    where = _position(row.select(["file", "offset"]).to_pydict(), 0)
    return ArchiveError(f"{where}: {shape.relation.full_name}: expected values that take less than 1 GiB in a row")


def refuse_too_large(rows: pa.RecordBatch, shape: TableShape) -> None:
    """Raises ArchiveError for a row that would kill the Java process that writes it or later updates it."""
    if shape.memory is None:
        return
    limit = shape.memory // HEAP_PER_BYTE
    for name in ("new", "old"):
        sizes = pc.binary_length(rows.column(name))
        largest = pc.max(sizes).as_py() or 0
        if largest > limit:
            row = rows.slice(pc.index(sizes, largest).as_py(), 1)
            try:
                cells = _cells(row.column(name)[0].as_py(), shape)
            except (_RowError, ArchiveError):  # `events` reports it
                return
            size, column = max((len(cell) if isinstance(cell, bytes) else 0, i) for i, cell in enumerate(cells))
            [lsn] = row.column("commit_lsn").to_pylist()
            raise ArchiveError(
                f"{_position(row.to_pydict(), 0)}: {shape.relation.full_name}, column "
                f"{shape.relation.columns[column].name!r}: expected a row of at most {limit:,} bytes, found one of "
                f"{largest:,}, {size:,} in this column, in the commit at {format_lsn(lsn)}. {memory_for(largest)}"
            )


def memory_for(size: int) -> str:
    """How to get enough memory for a row of this size in bytes."""
    return (
        f"Give Java {size * HEAP_PER_BYTE // 2**30 + 1}g (spark.executor.memory; without a cluster, "
        "spark.driver.memory), and rebuild the table"
    )


def _cells(tuple_data: bytes, shape: TableShape) -> _Row:
    """The cells of the relation's columns, without retired ones."""
    if tuple_data.startswith(WITHHELD):
        reason = Reason.from_json(tuple_data[len(WITHHELD) :].decode())
        raise _RowError(reason, reason.kind)
    data = read_tuple(tuple_data)
    width = len(shape.relation.columns)
    if len(data.kinds) != width:
        raise _RowError(width_error(data, width))
    if data.kinds.count(b"t") + data.kinds.count(b"n") == width:
        return list(data.values)
    return [_cell(kind, value) for kind, value in zip(data.kinds, data.values, strict=True)]


def width_error(data: TupleData, width: int) -> str:
    return f"a tuple of {len(data.kinds)} columns where Relation describes {width}"


def _cell(kind: int, value: bytes | None) -> Cell:
    if kind == 0x75:
        return UNCHANGED
    return _Binary(value) if kind == 0x62 and value is not None else value


def _add_events(
    built: _EventColumns, source: int, tag: str, old_kind: str | None, old_row: _Row | None, row: _Row | None
) -> None:
    shape = built.shape
    retired = len(shape.columns) - len(shape.relation.columns)
    if row is not None and old_row is not None:
        for i, cell in enumerate(old_row):
            if cell is not None and isinstance(row[i], _Unchanged):
                row[i] = cell
    if shape.is_bag:
        _add_bag_events(built, source, tag, old_kind, old_row, row)
        return
    old_key = None if old_row is None else _key(old_row, shape, old_kind)
    if row is None:
        built.add(source, DELETED, _only_key(shape, old_key or []))
        return
    key = _key(row, shape)
    # An existing row keeps the values of retired columns; a new row has none.
    retired_cells: _Row = [None if tag == "I" else UNCHANGED] * retired
    if old_key is None or old_key == key:
        built.add(source, INSERTED if tag == "I" else UPDATED, row + retired_cells)
    else:
        if not shape.moves_toast and any(isinstance(cell, _Unchanged) for cell in row):
            raise _RowError("unchanged TOAST in a row with another key, and the old tuple lacks the value")
        built.add(source, MOVED_OUT, _only_key(shape, old_key))
        built.add(source, MOVED_IN, row + retired_cells, old_key)


def _add_bag_events(
    built: _EventColumns, source: int, tag: str, old_kind: str | None, old_row: _Row | None, row: _Row | None
) -> None:
    if tag == "U" and old_row is None:
        # The server rejects such an UPDATE unless the table has a replica identity.
        text = f"an UPDATE without an old tuple in a table without a key: its key is never sent. {_PARTITION}"
        raise _RowError(text, ReasonKind.ON_SERVER)
    retired: _Row = [None] * (len(built.shape.columns) - len(built.shape.relation.columns))
    if old_row is not None:
        if old_kind != "O" and not built.shape.has_whole_keys:
            raise _RowError(f"a key-only old tuple in a table without a key. {_PARTITION}")
        built.add(source, DELETED, old_row + retired)
    if row is not None:
        if any(isinstance(cell, _Unchanged) for cell in row):
            text = "unchanged TOAST in a table without a key: nothing says which row has the value"
            raise _RowError(text, ReasonKind.ON_SERVER)
        built.add(source, INSERTED, row + retired)


def _key(row: _Row, shape: TableShape, old_kind: str | None = None) -> list[bytes | None]:
    key: list[bytes | None] = []
    for i in shape.key:
        cell = row[i]
        if isinstance(cell, _Unchanged):
            text = f"column {shape.columns[i].name!r} of the key is unchanged TOAST, and no old tuple has it"
            raise _RowError(text, ReasonKind.ON_SERVER)
        if cell is None and old_kind == "K":  # never happens with a table's own replica identity
            raise _RowError(f"an old tuple that lacks column {shape.columns[i].name!r} of the key. {_PARTITION}")
        if cell is None:
            raise _RowError(f"column {shape.columns[i].name!r} of the configured key is NULL")
        key.append(cell)
    return key


def _only_key(shape: TableShape, key: list[bytes | None]) -> _Row:
    row: _Row = [None] * len(shape.columns)
    for i, cell in zip(shape.key, key, strict=True):
        row[i] = cell
    return row


def _to_arrow(built: _EventColumns, columns: Mapping[str, list[Any]]) -> pa.RecordBatch:
    shape, source = built.shape, built.source
    unrepresentable: _Texts = [None] * len(source)
    old_unrepresentable: _Texts = [None] * len(source)
    size = 0

    def load(column: int, cells: list[bytes | None], texts: _Texts) -> pa.Array:
        nonlocal size
        try:
            binary_at = [i for i, cell in enumerate(cells) if isinstance(cell, _Binary)]
            loaded = load_mixed(shape.columns[column].type, cells, binary_at)
        except ValueTextError as error:
            where = _position(columns, source[error.index])
            name = f"{shape.relation.full_name}, column {shape.columns[column].name!r}"
            text = f"{where}: {name}: expected a {error.type_name} that is {error.expected}, found something else"
            raise RowError.of_kind(text, kind_of(error.expected) or ReasonKind.ON_SERVER) from None
        size += loaded.array.nbytes + sum(map(len, loaded.unrepresentable.values()))
        if size > MAX_SIZE:
            raise OverflowError(f"more than {MAX_SIZE:,} bytes of values in a batch; make it smaller")
        for i, text in loaded.unrepresentable.items():
            texts[i] = [*(texts[i] or []), (shape.columns[column].name, text)]
        return loaded.array

    values = {f"c{i}": load(i, cells, unrepresentable) for i, cells in enumerate(built.cells)}
    values |= {f"u{i}": pa.array(flags, pa.bool_()) for i, flags in built.unchanged.items()}
    values |= {f"f{i}": load(i, cells, old_unrepresentable) for i, cells in zip(shape.key, built.from_key, strict=True)}
    for name, column in (("_lsn", "commit_lsn"), ("_file", "file"), ("_ordinal", "ordinal"), ("_xid", "top_xid")):
        values[name] = pa.array([columns[column][i] for i in source], pa.int64())
    committed = (columns["commit_ts"][i] for i in source)
    times = [None if time is None else time + POSTGRES_EPOCH_MICROSECONDS for time in committed]
    values["_ts"] = pa.array(times, pa.int64()).cast(TIMESTAMP)
    values["_op"] = pa.array(built.ops, pa.string())
    values["_unrep"] = pa.array(unrepresentable, UNREPRESENTABLE)
    values["_from_unrep"] = pa.array(old_unrepresentable, UNREPRESENTABLE)
    values["_chain"] = pa.nulls(len(source), CHAIN)
    schema = shape.event_schema()
    return pa.RecordBatch.from_arrays([values[name] for name in schema.names], schema=schema)
