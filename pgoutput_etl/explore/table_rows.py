"""One table's changes with what is in them: the rows that the table would have in mode append, from archived files.

Columns have their types as everywhere (types/); where a column had another type in the meantime, it is PostgreSQL's
text. A table is told by the name that it had where the change stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.changes.event_log import TRUNCATED, every_event, old_keys
from pgoutput_etl.changes.events import MOVED_IN, MOVED_OUT, ROW_SCHEMA, UPDATED
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.explore.archive_rows import RowView, only, sequence, versions_of
from pgoutput_etl.schema.table_shape import TIMESTAMP, TableShape, table_shape
from pgoutput_etl.targets.modes import METADATA_COLUMNS, OLD_KEY_COLUMN, OP_COLUMN, SEQ_COLUMN, UNCHANGED_COLUMN
from pgoutput_etl.transactions.outcome import TransactionStatus
from pgoutput_etl.transactions.status_lookup import STATUSES, StatusColumns
from pgoutput_etl.types import ColumnType, ValueTextError, load_text
from pgoutput_etl.types.printing import print_text

STATUS_COLUMN = "_pg_fate"

_TEXTS = pa.map_(pa.string(), pa.string())

_ADDED = pa.schema(
    [
        (OP_COLUMN, pa.string()),
        (SEQ_COLUMN, pa.int64()),
        *zip(METADATA_COLUMNS, (pa.int64(), TIMESTAMP, pa.int64(), _TEXTS), strict=True),
        (OLD_KEY_COLUMN, _TEXTS),
        (UNCHANGED_COLUMN, pa.list_(pa.string())),
        (STATUS_COLUMN, pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class RowQuery:
    """Rows of a table. shapes: by OID, and by the number of the version; schema: of what comes out. where: columns and
    what is to be in them, in either form of `load`: a value of the column's Arrow type, or PostgreSQL's text."""

    table: str
    shapes: Mapping[int, Mapping[int, TableShape]]
    schema: pa.Schema
    statuses: frozenset[TransactionStatus]
    conditions: Mapping[str, Any]

    @classmethod
    def of_inspection(
        cls,
        view: RowView,
        table: str,
        key: tuple[str, ...] | None,
        statuses: frozenset[TransactionStatus],
        where: Mapping[str, Any],
    ) -> RowQuery:
        """Raises ConfigError for a table or column that the archive doesn't have, and TableError for such a key."""
        shapes: dict[int, dict[int, TableShape]] = {}
        for oid, versions in view.versions.items():
            for number, relation in enumerate(versions.relations):
                if f"{relation.namespace}.{relation.name}" == table:
                    every = frozenset(range(len(relation.columns)))
                    shape = table_shape(relation, versions, key, every, True, view.user_types)
                    shapes.setdefault(oid, {})[number] = shape
        if not shapes:
            raise ConfigError(f"the archive describes no table {table!r}")
        schema = _schema([shape for of_oid in shapes.values() for shape in of_oid.values()], table)
        missing = [name for name in where if name not in schema.names or name in _ADDED.names]
        if missing:
            raise ConfigError(f"{table} has no column {missing[0]!r}")
        return cls(table, shapes, schema, statuses, where)


def _schema(shapes: list[TableShape], table: str) -> pa.Schema:
    types: dict[str, pa.DataType] = {}
    for shape in shapes:
        for column in shape.columns:
            if types.setdefault(column.name, column.type.arrow) != column.type.arrow:
                types[column.name] = pa.string()
    taken = [name for name in types if name in _ADDED.names]
    if taken:
        raise ConfigError(f"{table} has a column {taken[0]!r}, a name that is given to what is added here")
    return pa.schema([*types.items(), *_ADDED])


def table_batches(path: str, content: bytes, view: RowView, asked: RowQuery) -> Iterator[pa.RecordBatch]:
    """asked.schema, of one file. Raises ArchiveError, without a value."""
    wanted = pa.array(sorted(asked.shapes), pa.int64())
    for rows, decided in view.rows(path, content):
        mine = only(rows, decided, pc.fill_null(pc.is_in(rows.column("relation"), wanted), False))
        parts = [part for of_kind in _kinds(*mine, view, asked) for part in _typed(*of_kind, asked)]
        if parts:
            together = pa.Table.from_batches(parts, asked.schema)
            in_order = together.sort_by([(SEQ_COLUMN, "ascending")])
            yield from in_order.combine_chunks().to_batches()


def _kinds(
    rows: pa.RecordBatch, decided: StatusColumns, view: RowView, asked: RowQuery
) -> Iterator[tuple[tuple[pa.RecordBatch, StatusColumns], TransactionStatus, TableShape]]:
    """Rows of one fate that stand under one version, and all have a commit, or none."""
    relations = rows.column("relation")
    for oid in relations.unique().to_pylist():
        of_table, ended = only(rows, decided, pc.equal(relations, oid))
        numbers, is_ended = versions_of(of_table, ended, view.versions[oid]), pc.is_valid(ended.commit_ts)
        for number, shape in asked.shapes[oid].items():
            for status in asked.statuses:
                of_both = pa.array((numbers == number) & (ended.status == STATUSES.index(status)))
                for chosen in (pc.and_(of_both, is_ended), pc.and_not(of_both, is_ended)):
                    if pc.any(chosen).as_py():
                        yield only(of_table, ended, chosen), status, shape


def _as_rows(rows: pa.RecordBatch, decided: StatusColumns) -> pa.RecordBatch:
    """As changes.events takes them: with a commit."""
    columns = {name: rows.column(name) for name in ROW_SCHEMA.names if name in rows.schema.names}
    columns |= {name: getattr(decided, name) for name in ("top_xid", "scope")}
    columns |= {name: pc.fill_null(getattr(decided, name), 0) for name in ("commit_lsn", "commit_ts")}
    return pa.RecordBatch.from_arrays([columns[name] for name in ROW_SCHEMA.names], schema=ROW_SCHEMA)


def _typed(
    of_kind: tuple[pa.RecordBatch, StatusColumns], status: TransactionStatus, shape: TableShape, asked: RowQuery
) -> Iterator[pa.RecordBatch]:
    has_commit = of_kind[1].commit_ts.null_count == 0
    for events in every_event(_as_rows(*of_kind), shape):
        is_told = pc.not_equal(events.column("_op"), MOVED_OUT)  # what moved in tells of it
        events = events.filter(pc.and_(is_told, _matches(events, shape, asked.conditions)))
        if events.num_rows:
            columns = _own_columns(events, shape, asked.schema) | _added_columns(events, status, shape)
            if not has_commit:
                columns |= {name: pa.nulls(events.num_rows, _ADDED.field(name).type) for name in METADATA_COLUMNS[:2]}
            yield pa.RecordBatch.from_arrays([columns[name] for name in asked.schema.names], schema=asked.schema)


def _own_columns(events: pa.RecordBatch, shape: TableShape, schema: pa.Schema) -> dict[str, pa.Array]:
    found: dict[str, pa.Array] = {}
    for i, column in enumerate(shape.columns):
        array, wanted = events.column(f"c{i}"), schema.field(column.name).type
        if array.type != wanted:
            texts = print_text(column.type, array)
            array = pa.array([None if text is None else text.decode() for text in texts], wanted)
        found[column.name] = array
    names = [name for name in schema.names if name not in _ADDED.names]
    return {name: found.get(name, pa.nulls(events.num_rows, schema.field(name).type)) for name in names}


def _added_columns(events: pa.RecordBatch, status: TransactionStatus, shape: TableShape) -> dict[str, pa.Array]:
    op = events.column("_op")
    is_second = pc.and_(pc.equal(op, "I"), shape.is_bag).cast(pa.int64())
    lsn, time, xid, odd = (events.column(name) for name in ("_lsn", "_ts", "_xid", "_unrep"))
    return {
        OP_COLUMN: pc.if_else(pc.equal(op, MOVED_IN), UPDATED, op),
        SEQ_COLUMN: pc.add(sequence(events.column("_file"), events.column("_ordinal")), is_second),
        **dict(zip(METADATA_COLUMNS, (lsn, time, xid, _as_map(odd)), strict=True)),
        OLD_KEY_COLUMN: _as_map(old_keys(events, shape)),
        UNCHANGED_COLUMN: _unchanged(events, shape),
        STATUS_COLUMN: pa.repeat(pa.scalar(status.value), events.num_rows),
    }


def _as_map(entries: pa.Array) -> pa.Array:
    pairs = [
        None if of_row is None else [(each["key"], each["value"]) for each in of_row] for of_row in entries.to_pylist()
    ]
    return pa.array(pairs, _TEXTS)


def _unchanged(events: pa.RecordBatch, shape: TableShape) -> pa.Array:
    found: list[list[str] | None] = [None] * events.num_rows
    for i in shape.toast:
        for row in pc.indices_nonzero(pc.fill_null(events.column(f"u{i}"), False)).to_pylist():
            found[row] = [*(found[row] or ()), shape.columns[i].name]
    return pa.array(found, pa.list_(pa.string()))


def _matches(events: pa.RecordBatch, shape: TableShape, where: Mapping[str, Any]) -> pa.Array:
    """Rows that are, or were before their key changed, what is asked for; and truncates, which are about all."""
    if not where:
        return pa.array(np.ones(events.num_rows, np.bool_))
    names = [column.name for column in shape.columns]
    now, before = (pa.array(np.ones(events.num_rows, np.bool_)) for _ in range(2))
    for name, value in where.items():
        if name not in names:
            return pc.equal(events.column("_op"), TRUNCATED)
        i = names.index(name)
        of_column = shape.columns[i].type
        now = pc.and_(now, _equals(events.column(f"c{i}"), value, of_column, name))
        old = events.column(f"f{i}" if i in shape.key else f"c{i}")
        before = pc.and_(before, _equals(old, value, of_column, name))
    moved = pc.and_(before, pc.equal(events.column("_op"), MOVED_IN))
    return pc.or_(pc.or_(now, moved), pc.equal(events.column("_op"), TRUNCATED))


def _equals(array: pa.Array, value: Any, of: ColumnType, name: str) -> pa.Array:
    if value is None:
        return pc.is_null(array)
    try:
        is_text = isinstance(value, str)
        wanted = load_text(of, [value.encode()]).array[0] if is_text else pa.scalar(value, of.arrow)
        if wanted.is_valid:
            return pc.fill_null(pc.equal(array, wanted), False)
    except (ValueTextError, pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        pass
    raise ConfigError(f"column {name!r}: expected {of.name} as PostgreSQL's text, or a value of {of.arrow}")
