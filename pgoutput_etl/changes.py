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
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from pgoutput_etl.decode import read_tuple
from pgoutput_etl.errors import ArchiveError, TableError
from pgoutput_etl.message_rows import MESSAGE_SCHEMA
from pgoutput_etl.messages import Relation, ReplicaIdentity, TupleData
from pgoutput_etl.relations import RelationVersions
from pgoutput_etl.types import ColumnType, ValueTextError, column_type, load_text

POSTGRES_EPOCH_MICROSECONDS = int(datetime(2000, 1, 1, tzinfo=timezone.utc).timestamp()) * 1_000_000
INSERTED, UPDATED, DELETED, MOVED_OUT, MOVED_IN = "I", "U", "D", "X", "V"
TIMESTAMP = pa.timestamp("us", tz="UTC")
UNREPRESENTABLE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))

# What `events` reads of a message row, with its transaction's outcome.
ROW_SCHEMA = pa.schema(
    [
        *(MESSAGE_SCHEMA.field(name) for name in ("file", "ordinal", "offset", "tag", "old_kind", "old", "new")),
        *(MESSAGE_SCHEMA.field(name) for name in ("commit_lsn", "commit_ts", "top_xid")),
        pa.field("scope", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class TableColumn:
    name: str
    type: ColumnType


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a table looks like at the end of a batch, and what its rows looked like on the way there.

    key: positions of the key's columns; empty for a bag. toast: positions of columns that come as unchanged TOAST
    somewhere in the batch; moves_toast: some of them with a row that moves to another key.
    """

    relation: Relation
    columns: tuple[TableColumn, ...]
    key: tuple[int, ...]
    versions: RelationVersions
    toast: tuple[int, ...] = ()
    moves_toast: bool = False

    @property
    def is_bag(self) -> bool:
        return not self.key

    def event_schema(self) -> pa.Schema:
        """_file and _ordinal order events within a commit; u3 says that c3 is unchanged; f0… and _from_unrep are the
        old key of a V."""
        fields = [
            ("_lsn", pa.int64()),
            ("_file", pa.int64()),
            ("_ordinal", pa.int64()),
            ("_ts", TIMESTAMP),
            ("_xid", pa.int64()),
            ("_op", pa.string()),
            ("_unrep", UNREPRESENTABLE),
            ("_from_unrep", UNREPRESENTABLE),
        ]
        fields += [(f"c{i}", column.type.arrow) for i, column in enumerate(self.columns)]
        fields += [(f"u{i}", pa.bool_()) for i in self.toast]
        fields += [(f"f{i}", self.columns[i].type.arrow) for i in self.key]
        return pa.schema(fields)


def table_shape(
    relation: Relation,
    versions: RelationVersions,
    configured_key: tuple[str, ...] | None,
    toast: frozenset[str],
    moves_toast: bool = True,
) -> TableShape:
    """Raises TableError if the configured key isn't among the columns that old tuples carry (all, under FULL)."""
    columns = tuple(TableColumn(c.name, column_type(c.type_oid, c.type_modifier)) for c in relation.columns)
    names = [column.name for column in columns]
    if configured_key is not None:
        missing = [name for name in configured_key if name not in names]
        if missing:
            raise TableError(f"the configured key names no column {missing[0]!r}")
        flagged = {column.name for column in relation.columns if column.is_key}
        if flagged and not set(configured_key) <= flagged:
            raise TableError(
                f"the configured key ({', '.join(configured_key)}) is not in the old tuples of this table, which carry "
                f"({', '.join(sorted(flagged))}); it needs REPLICA IDENTITY FULL"
            )
        key = tuple(names.index(name) for name in configured_key)
    elif relation.replica_identity is ReplicaIdentity.FULL:
        key = ()  # every column is flagged, and nothing says which are unique
    else:
        key = tuple(i for i, column in enumerate(relation.columns) if column.is_key)
    return TableShape(
        relation, columns, key, versions, tuple(i for i, n in enumerate(names) if n in toast), moves_toast
    )


# A column's state in one event: its bytes, None for NULL, or UNCHANGED.
class _Unchanged:
    """The class of UNCHANGED."""


UNCHANGED = _Unchanged()
Cell = bytes | None | _Unchanged


@dataclass(slots=True)
class _EventColumns:
    """The events of one batch, column by column, still as PostgreSQL's text."""

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
_Noted = list[list[tuple[str, str]] | None]


class _RowError(Exception):
    """A message row that can't become an event; `events` adds where it stands."""


def events(rows: pa.RecordBatch, shape: TableShape) -> pa.RecordBatch:
    """Change events of `shape.event_schema()` from message rows (I, U and D) of the shape's relation.

    The rows are of ROW_SCHEMA: commit_lsn, commit_ts and top_xid are the outcome of their transaction, and `scope` is
    the transaction's if it was streamed. Events come in the order of the rows. Raises ArchiveError naming file number,
    offset and column, never a value.
    """
    columns = {name: rows.column(name).to_pylist() for name in rows.schema.names}
    built = _EventColumns(shape)
    version_maps: dict[int, _VersionMap] = {}
    for i in range(rows.num_rows):
        try:
            position = (columns["file"][i], columns["ordinal"][i])
            number = shape.versions.at(position, columns["scope"][i])
            if number is None:
                raise _RowError("no Relation message describes it: the archive begins after the server sent it")
            version = version_maps.get(number)
            if version is None:
                version = version_maps[number] = _VersionMap.of(shape.versions.relations[number], shape)
            old = None if columns["old"][i] is None else read_tuple(columns["old"][i])
            new = None if columns["new"][i] is None else read_tuple(columns["new"][i])
            _add_events(built, i, columns["tag"][i], columns["old_kind"][i], old, new, version)
        except _RowError as error:
            raise ArchiveError(f"{_place(columns, i)}: {_name(shape)}: {error}") from None
    return _to_arrow(built, columns)


def _place(columns: Mapping[str, list[Any]], i: int) -> str:
    """`file 7` is the ledger's number; whoever knows the path puts it there."""
    return f"file {columns['file'][i]}, offset {columns['offset'][i]}"


def _name(shape: TableShape) -> str:
    return f"{shape.relation.namespace}.{shape.relation.name}"


@dataclass(frozen=True, slots=True)
class _VersionMap:
    """Where a shape's columns stand in one version of the relation; None where that version hasn't the column."""

    width: int
    positions: tuple[int | None, ...]
    key_sent: frozenset[int]  # of the shape's columns: part of what a key-only old tuple carries

    @classmethod
    def of(cls, relation: Relation, shape: TableShape) -> _VersionMap:
        index = {column.name: i for i, column in enumerate(relation.columns)}
        positions = tuple(index.get(column.name) for column in shape.columns)
        sent = frozenset(i for i, p in enumerate(positions) if p is not None and relation.columns[p].is_key)
        return cls(len(relation.columns), positions, sent)

    def cells(self, data: TupleData) -> list[Cell]:
        if len(data.kinds) != self.width:
            raise _RowError(f"a tuple of {len(data.kinds)} columns where Relation describes {self.width}")
        if b"b" in data.kinds:
            raise _RowError("a value in binary form, which can't be read yet; use a slot without binary 'true'")
        row: list[Cell] = []
        for position in self.positions:
            if position is None:
                row.append(None)  # a column added later: PostgreSQL has NULL there, or a default it never sends
            else:
                row.append(UNCHANGED if data.kinds[position] == 0x75 else data.values[position])
        return row


def _add_events(
    built: _EventColumns,
    source: int,
    tag: str,
    old_kind: str | None,
    old: TupleData | None,
    new: TupleData | None,
    version: _VersionMap,
) -> None:
    shape = built.shape
    old_row = None if old is None else version.cells(old)
    row = None if new is None else version.cells(new)
    if row is not None and old_row is not None:
        _fill_from_old(row, old_row, range(len(row)) if old_kind == "O" else version.key_sent)
    if shape.is_bag:
        _add_bag_events(built, source, old_kind, old_row, row)
        return
    old_key = None if old_row is None else _key(old_row, shape)
    if row is None:
        built.add(source, DELETED, _only_key(shape, old_key or []))
        return
    key = _key(row, shape)
    if old_key is None or old_key == key:
        built.add(source, INSERTED if tag == "I" else UPDATED, row)
    else:
        built.add(source, MOVED_OUT, _only_key(shape, old_key))
        built.add(source, MOVED_IN, row, old_key)


def _fill_from_old(row: list[Cell], old_row: list[Cell], sent: Iterable[int]) -> None:
    """Under FULL the old tuple has every value, even where the new one says unchanged; a key-only one has the key's."""
    for i in sent:
        if isinstance(row[i], _Unchanged):
            row[i] = old_row[i]


def _add_bag_events(
    built: _EventColumns, source: int, old_kind: str | None, old_row: list[Cell] | None, row: list[Cell] | None
) -> None:
    if old_row is not None:
        if old_kind != "O":
            raise _RowError("a key-only old tuple in a table without a key")
        built.add(source, DELETED, old_row)
    if row is not None:
        if any(isinstance(cell, _Unchanged) for cell in row):
            raise _RowError("unchanged TOAST in a table without a key: nothing says which row has the value")
        built.add(source, INSERTED, row)


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
    here: _Noted = [None] * len(source)
    before: _Noted = [None] * len(source)

    def load(column: int, cells: list[bytes | None], noted: _Noted) -> pa.Array:
        try:
            loaded = load_text(shape.columns[column].type, cells)
        except ValueTextError as error:
            where = _place(columns, source[error.index])
            what = f"a {error.type_name} that is {error.expected}"
            name = f"{_name(shape)}, column {shape.columns[column].name!r}"
            raise ArchiveError(f"{where}: {name}: expected {what}, found something else") from None
        for i, text in loaded.unrepresentable.items():
            noted[i] = [*(noted[i] or []), (shape.columns[column].name, text)]
        return loaded.array

    values = {f"c{i}": load(i, cells, here) for i, cells in enumerate(built.cells)}
    values |= {f"u{i}": pa.array(flags, pa.bool_()) for i, flags in built.unchanged.items()}
    values |= {f"f{i}": load(i, cells, before) for i, cells in zip(shape.key, built.from_key, strict=True)}
    for name, of in (("_lsn", "commit_lsn"), ("_file", "file"), ("_ordinal", "ordinal"), ("_xid", "top_xid")):
        values[name] = pa.array([columns[of][i] for i in source], pa.int64())
    times = [columns["commit_ts"][i] + POSTGRES_EPOCH_MICROSECONDS for i in source]
    values["_ts"] = pa.array(times, pa.int64()).cast(TIMESTAMP)
    values["_op"] = pa.array(built.ops, pa.string())
    values["_unrep"] = pa.array(here, UNREPRESENTABLE)
    values["_from_unrep"] = pa.array(before, UNREPRESENTABLE)
    schema = shape.event_schema()
    return pa.RecordBatch.from_arrays([values[name] for name in schema.names], schema=schema)
