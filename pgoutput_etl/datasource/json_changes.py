"""Committed changes of several tables: rows before and after, as JSON.

A row is an object with the values that were sent. Numbers, Booleans, and JSON documents are represented as such, like
in PostgreSQL's to_json; any other value is its text in PostgreSQL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.changes.events import WITHHELD, width_error
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.explore.archive_rows import RowView, filter_rows, sequence, times
from pgoutput_etl.inspection.file_scan import versions_of
from pgoutput_etl.inspection.message_lines import utf8_or_hex
from pgoutput_etl.masking.mask_rows import spelled_alike
from pgoutput_etl.protocol.decoder import read_tuple
from pgoutput_etl.protocol.messages import KIND_BINARY, KIND_NULL, KIND_TEXT, Relation, TupleData
from pgoutput_etl.reasons import Reason
from pgoutput_etl.scan.message_row import CHANGE_TAGS
from pgoutput_etl.schema.table_shape import TIMESTAMP
from pgoutput_etl.transactions.status_lookup import COMMITTED, StatusColumns
from pgoutput_etl.types import ColumnType, UserTypes, ValueTextError, type_of
from pgoutput_etl.types.printing import canonical_texts

JSON_CHANGES = pa.schema(
    [
        ("_table", pa.string()),  # schema.table at that position
        ("_op", pa.string()),
        ("_commit_lsn", pa.int64()),
        ("_commit_ts", TIMESTAMP),
        ("_xid", pa.int64()),
        ("_seq", pa.int64()),
        ("before", pa.string()),
        ("after", pa.string()),
    ]
)

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")  # not NaN or Infinity

_NUMBERS = ("int2", "int4", "int8", "oid", "float4", "float8", "numeric")

_Cells = list[str | None]  # JSON by column; None for a value that was not sent


def json_batches(
    path: str, content: bytes, view: RowView, chosen: Mapping[int, frozenset[int]]
) -> Iterator[pa.RecordBatch]:
    """JSON_CHANGES of one file. chosen: numbers of relation versions, by OID. Raises ArchiveError, which contains no
    cell values."""
    types = spelled_alike(view.user_types)
    for rows, decided in view.rows(path, content):
        is_change = pc.and_(pc.is_in(rows.column("tag"), pa.array(CHANGE_TAGS)), pa.array(decided.status == COMMITTED))
        changes = filter_rows(rows, decided, is_change)
        for oid in changes[0].column("relation").unique().to_pylist():
            if oid in chosen:
                own = filter_rows(*changes, pc.equal(changes[0].column("relation"), oid))
                numbers = versions_of(*own, view.versions[oid])
                for number in np.unique(numbers).tolist():
                    if number in chosen[oid]:
                        part = filter_rows(*own, pa.array(numbers == number))
                        yield _changes(*part, view.versions[oid].relations[number], types)


def _changes(rows: pa.RecordBatch, decided: StatusColumns, relation: Relation, types: UserTypes) -> pa.RecordBatch:
    column_types = [type_of(column, types) for column in relation.columns]
    try:
        old, new = (_cells(rows, name, column_types, relation) for name in ("old", "new"))
    except ValueTextError as error:
        offset = rows.column("offset")[error.index]
        name = f"{relation.full_name}: expected a {error.type_name} that is {error.expected}"
        raise ArchiveError(f"offset {offset}: {name}, found something else") from None
    names = [json.dumps(column.name, ensure_ascii=False) for column in relation.columns]
    for before, after in zip(old, new, strict=True):
        if before is not None and after is not None:  # an old tuple may have values that the new one omitted
            after[:] = [own if own is not None else former for own, former in zip(after, before, strict=True)]
    arrays = [
        pa.repeat(pa.scalar(relation.full_name), rows.num_rows),
        rows.column("tag"),
        decided.commit_lsn,
        times(decided.commit_ts),
        decided.top_xid,
        sequence(rows.column("file"), rows.column("ordinal")),
        *(pa.array([_object(names, cells) for cells in tuples], pa.string()) for tuples in (old, new)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=JSON_CHANGES)


def _object(names: Sequence[str], cells: _Cells | None) -> str | None:
    if cells is None:
        return None
    return "{" + ", ".join(f"{name}: {cell}" for name, cell in zip(names, cells, strict=True) if cell is not None) + "}"


def _cells(
    rows: pa.RecordBatch, name: str, column_types: Sequence[ColumnType], relation: Relation
) -> list[_Cells | None]:
    """The old or new tuple of each row; None if it has none."""
    tuples = [None if data is None else _tuple(data, relation) for data in rows.column(name).to_pylist()]
    sends_null = [name == "new" or kind != "K" for kind in rows.column("old_kind").to_pylist()]
    cells: list[_Cells] = [[None] * len(column_types) for _ in tuples]
    for place, column_type in enumerate(column_types):
        values: dict[int, list[tuple[int, bytes]]] = {KIND_TEXT: [], KIND_BINARY: []}
        for i, data in enumerate(tuples):
            if data is None:
                continue
            value = data.values[place]
            if value is not None:
                values[data.kinds[place]].append((i, value))
            elif data.kinds[place] == KIND_NULL and sends_null[i]:
                cells[i][place] = "null"
        for kind, sent in values.items():
            for (i, _), cell in zip(sent, _json(column_type, sent, kind == KIND_BINARY), strict=True):
                cells[i][place] = cell
    return [None if data is None else own for data, own in zip(tuples, cells, strict=True)]


def _tuple(data: bytes, relation: Relation) -> TupleData:
    if data.startswith(WITHHELD):
        raise ArchiveError(f"{relation.full_name}: {Reason.from_json(data[len(WITHHELD) :].decode())}")
    read = read_tuple(data)
    if len(read.kinds) != len(relation.columns):
        raise ArchiveError(f"{relation.full_name}: {width_error(read, len(relation.columns))}")
    return read


def _json(column_type: ColumnType, sent: Sequence[tuple[int, bytes]], binary: bool) -> Iterator[str]:
    """The values as JSON. Raises ValueTextError, with the index of a row."""
    try:
        texts = canonical_texts(column_type, [value for _, value in sent], binary)
    except ValueTextError as error:
        raise ValueTextError(sent[error.index][0], error.type_name, error.expected) from None
    name = column_type.name.partition("(")[0]
    for text in texts:
        assert text is not None
        shown = utf8_or_hex(text)
        if name in ("json", "jsonb") or (name in _NUMBERS and _NUMBER.fullmatch(shown)):
            yield shown
        elif name == "bool":
            yield "true" if shown == "t" else "false"
        else:
            yield json.dumps(shown, ensure_ascii=False)
