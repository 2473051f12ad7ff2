"""A table's changes with their values: the rows that mode append would write, read from archived files.

Columns have the types in types/; a column whose type has changed has PostgreSQL's text. A change belongs to the table
name that was valid at its position.
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
from pgoutput_etl.explore.archive_rows import RowView, filter_rows, sequence
from pgoutput_etl.inspection.file_scan import versions_of
from pgoutput_etl.schema.table_shape import TIMESTAMP, TableShape, table_shape
from pgoutput_etl.targets.modes import METADATA_COLUMNS, OLD_KEY_COLUMN, OP_COLUMN, SEQ_COLUMN, UNCHANGED_COLUMN
from pgoutput_etl.transactions.outcome import TransactionStatus
from pgoutput_etl.transactions.status_lookup import STATUSES, StatusColumns
from pgoutput_etl.types import ColumnType, Storage, ValueTextError, load_text
from pgoutput_etl.types.printing import print_text

STATUS_COLUMN = "_pg_fate"

_TEXTS = pa.map_(pa.string(), pa.string())

ADDED_COLUMNS = pa.schema(
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
    """A query for a table's rows. shapes: by OID and version number. schema: of the resulting rows. conditions: by
    column, a value of its Arrow type or PostgreSQL's text."""

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
        """Raises ConfigError for a table, or a column in `where`, that the archive doesn't have, and TableError for a
        key that it doesn't have."""
        shapes: dict[int, dict[int, TableShape]] = {}
        for oid, versions in view.versions.items():
            for number, relation in enumerate(versions.relations):
                if relation.full_name == table:
                    every = frozenset(range(len(relation.columns)))
                    partitions = view.partitions[oid]
                    shape = table_shape(relation, versions, key, every, True, view.user_types, partitions=partitions)
                    shapes.setdefault(oid, {})[number] = shape
        if not shapes:
            raise ConfigError(f"the archive has no table {table!r}")
        schema = _schema([shape for versions in shapes.values() for shape in versions.values()], table)
        missing = [name for name in where if name not in schema.names or name in ADDED_COLUMNS.names]
        if missing:
            raise ConfigError(f"{table} has no column {missing[0]!r}")
        return cls(table, shapes, schema, statuses, where)


def _schema(shapes: list[TableShape], table: str) -> pa.Schema:
    types: dict[str, pa.DataType] = {}
    for shape in shapes:
        for column in shape.columns:
            stored = _TEXTS if column.type.storage is Storage.MAP else column.type.arrow
            if types.setdefault(column.name, stored) != stored:
                types[column.name] = pa.string()
    taken = [name for name in types if name in ADDED_COLUMNS.names]
    if taken:
        raise ConfigError(f"{table} has a column {taken[0]!r}, which is the name of a metadata column")
    return pa.schema([*types.items(), *ADDED_COLUMNS])


def table_batches(path: str, content: bytes, view: RowView, query: RowQuery) -> Iterator[pa.RecordBatch]:
    """One file's rows, as query.schema. Raises ArchiveError, which contains no cell values."""
    oids = pa.array(sorted(query.shapes), pa.int64())
    for rows, decided in view.rows(path, content):
        selected = filter_rows(rows, decided, pc.fill_null(pc.is_in(rows.column("relation"), oids), False))
        parts = [part for group in _groups(*selected, view, query) for part in _typed_rows(*group, query)]
        if parts:
            ordered = pa.Table.from_batches(parts, query.schema).sort_by([(SEQ_COLUMN, "ascending")])
            yield from ordered.combine_chunks().to_batches()


def _groups(
    rows: pa.RecordBatch, decided: StatusColumns, view: RowView, query: RowQuery
) -> Iterator[tuple[tuple[pa.RecordBatch, StatusColumns], TransactionStatus, TableShape]]:
    """Groups of rows with the same status and relation version, either all with or all without a commit."""
    relations = rows.column("relation")
    for oid in relations.unique().to_pylist():
        table_rows, statuses = filter_rows(rows, decided, pc.equal(relations, oid))
        numbers = versions_of(table_rows, statuses, view.versions[oid])
        has_commit = pc.is_valid(statuses.commit_ts)
        for number, shape in query.shapes[oid].items():
            for status in query.statuses:
                matches = pa.array((numbers == number) & (statuses.status == STATUSES.index(status)))
                for mask in (pc.and_(matches, has_commit), pc.and_not(matches, has_commit)):
                    if pc.any(mask).as_py():
                        yield filter_rows(table_rows, statuses, mask), status, shape


def _as_rows(rows: pa.RecordBatch, decided: StatusColumns) -> pa.RecordBatch:
    """The input of changes.events, with 0 for a missing commit."""
    columns = {name: rows.column(name) for name in ROW_SCHEMA.names if name in rows.schema.names}
    columns |= {name: getattr(decided, name) for name in ("top_xid", "scope")}
    columns |= {name: pc.fill_null(getattr(decided, name), 0) for name in ("commit_lsn", "commit_ts")}
    return pa.RecordBatch.from_arrays([columns[name] for name in ROW_SCHEMA.names], schema=ROW_SCHEMA)


def _typed_rows(
    group: tuple[pa.RecordBatch, StatusColumns], status: TransactionStatus, shape: TableShape, query: RowQuery
) -> Iterator[pa.RecordBatch]:
    has_commit = group[1].commit_ts.null_count == 0
    for events in every_event(_as_rows(*group), shape):
        is_visible = pc.not_equal(events.column("_op"), MOVED_OUT)  # the MOVED_IN row has both keys
        events = events.filter(pc.and_(is_visible, _matches(events, shape, query.conditions)))
        if events.num_rows:
            columns = _own_columns(events, shape, query.schema) | _added_columns(events, status, shape)
            if not has_commit:
                columns |= {
                    name: pa.nulls(events.num_rows, ADDED_COLUMNS.field(name).type) for name in METADATA_COLUMNS[:2]
                }
            yield pa.RecordBatch.from_arrays([columns[name] for name in query.schema.names], schema=query.schema)


def _own_columns(events: pa.RecordBatch, shape: TableShape, schema: pa.Schema) -> dict[str, pa.Array]:
    arrays: dict[str, pa.Array] = {}
    for i, column in enumerate(shape.columns):
        array, arrow_type = events.column(f"c{i}"), schema.field(column.name).type
        if arrow_type == _TEXTS:
            array = _as_map(array)
        elif array.type != arrow_type:
            texts = print_text(column.type, array)
            array = pa.array([None if text is None else text.decode() for text in texts], arrow_type)
        arrays[column.name] = array
    names = [name for name in schema.names if name not in ADDED_COLUMNS.names]
    return {name: arrays.get(name, pa.nulls(events.num_rows, schema.field(name).type)) for name in names}


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
    maps = [
        None if pairs is None else [(pair["key"], pair["value"]) for pair in pairs] for pairs in entries.to_pylist()
    ]
    return pa.array(maps, _TEXTS)


def _unchanged(events: pa.RecordBatch, shape: TableShape) -> pa.Array:
    names: list[list[str] | None] = [None] * events.num_rows
    for i in shape.toast:
        for row in pc.indices_nonzero(pc.fill_null(events.column(f"u{i}"), False)).to_pylist():
            names[row] = [*(names[row] or ()), shape.columns[i].name]
    return pa.array(names, pa.list_(pa.string()))


def _matches(events: pa.RecordBatch, shape: TableShape, where: Mapping[str, Any]) -> pa.Array:
    """True for rows that meet the conditions, with their new or old key, and for truncates."""
    if not where:
        return pa.array(np.ones(events.num_rows, np.bool_))
    names = [column.name for column in shape.columns]
    now, before = (pa.array(np.ones(events.num_rows, np.bool_)) for _ in range(2))
    for name, value in where.items():
        if name not in names:
            return pc.equal(events.column("_op"), TRUNCATED)
        i = names.index(name)
        column_type = shape.columns[i].type
        now = pc.and_(now, _equals(events.column(f"c{i}"), value, column_type, name))
        old = events.column(f"f{i}" if i in shape.key else f"c{i}")
        before = pc.and_(before, _equals(old, value, column_type, name))
    moved = pc.and_(before, pc.equal(events.column("_op"), MOVED_IN))
    return pc.or_(pc.or_(now, moved), pc.equal(events.column("_op"), TRUNCATED))


def _equals(array: pa.Array, value: Any, column_type: ColumnType, name: str) -> pa.Array:
    if value is None:
        return pc.is_null(array)
    try:
        is_text = isinstance(value, str)
        scalar = load_text(column_type, [value.encode()]).array[0] if is_text else pa.scalar(value, column_type.arrow)
        if scalar.is_valid:
            return pc.fill_null(pc.equal(array, scalar), False)
    except (ValueTextError, pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        pass
    expected = f"{column_type.name} as PostgreSQL's text, or a value of {column_type.arrow}"
    raise ConfigError(f"column {name!r}: expected {expected}")
