"""A table's columns as JSON Schema (2020-12) and Avro (1.11), for schema registries and data contracts.

Describes JSON as written by Spark's `to_json`. Columns of the key are never NULL; PostgreSQL doesn't send NOT NULL
constraints of others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from pgoutput_etl.schema.table_shape import TableColumn
from pgoutput_etl.types.column import ColumnType, Storage

Document: TypeAlias = dict[str, Any]


def json_schema(identifier: str, title: str, columns: Sequence[TableColumn], key: Collection[str]) -> Document:
    """identifier: a URI. key: names of the key's columns."""
    properties = {}
    for column in columns:
        described = _json_type(column.type)
        properties[column.name] = {**(described if column.name in key else _or_null(described)), **_meaning(column)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": identifier,
        "title": title,
        "type": "object",
        "properties": properties,
        "required": [column.name for column in columns if column.name in key],
    }


def avro_schema(namespace: str, name: str, columns: Sequence[TableColumn], key: Collection[str]) -> Document:
    """Avro's names only have ASCII letters, digits, and `_`; if that changes a name, `postgres_name` has the
    original."""
    fields = []
    record, taken = avro_name(name), set[str]()
    for column in columns:
        own = avro_name(column.name)
        while own.lower() in taken:
            own += "_"
        taken.add(own.lower())
        described = _avro_type(column.type, f"{record}_{own}")
        field: Document = {"name": own, "type": described if column.name in key else ["null", described]}
        field |= {} if column.name in key else {"default": None}
        field |= {"doc": _meaning(column)["description"]}
        fields.append(field if own == column.name else {**field, "postgres_name": column.name})
    named = {"type": "record", "name": record, "namespace": avro_name(namespace), "fields": fields}
    return named if record == name else {**named, "postgres_name": name}


def avro_name(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{plain}" if not plain or plain[0].isdigit() else plain


def _meaning(column: TableColumn) -> dict[str, str]:
    return {"description": f"{column.type.name}{', no longer in PostgreSQL' if column.retired else ''}"}


def _or_null(described: Document) -> Document:
    if "type" not in described:
        return described
    kinds = described["type"]
    return {**described, "type": [*([kinds] if isinstance(kinds, str) else kinds), "null"]}


def _json_type(column_type: ColumnType) -> Document:
    match column_type.storage:
        case Storage.MAP:
            return {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
        case Storage.VARIANT:
            return {}
        case Storage.PLAIN:
            return _json_of_arrow(column_type.arrow)


def _json_of_arrow(arrow: pa.DataType) -> Document:
    types = pa.types
    if types.is_list(arrow):
        return {"type": "array", "items": _or_null(_json_of_arrow(arrow.value_type))}
    if types.is_struct(arrow):
        return {"type": "object", "properties": {f.name: _or_null(_json_of_arrow(f.type)) for f in arrow}}
    if types.is_binary(arrow):
        return {"type": "string", "contentEncoding": "base64"}
    if types.is_date(arrow):
        return {"type": "string", "format": "date"}
    if types.is_timestamp(arrow) and arrow.tz is not None:
        return {"type": "string", "format": "date-time"}
    if types.is_integer(arrow):
        limit = 1 << (arrow.bit_width - 1)
        return {"type": "integer", "minimum": -limit, "maximum": limit - 1}
    if types.is_floating(arrow):
        return {"type": ["number", "string"]}  # NaN and Infinity are strings
    if types.is_decimal(arrow):
        return {"type": "number"}
    return {"type": "boolean"} if types.is_boolean(arrow) else {"type": "string"}


def _avro_type(column_type: ColumnType, path: str) -> Any:
    match column_type.storage:
        case Storage.MAP:
            return {"type": "map", "values": ["null", "string"]}
        case Storage.VARIANT:
            return "string"
        case Storage.PLAIN:
            return _avro_of_arrow(column_type.arrow, path)


def _avro_of_arrow(arrow: pa.DataType, path: str) -> Any:
    """path: the name of a nested record, which must be unique."""
    types = pa.types
    if types.is_list(arrow):
        return {"type": "array", "items": ["null", _avro_of_arrow(arrow.value_type, path)]}
    if types.is_struct(arrow):
        nested = [
            {"name": avro_name(f.name), "type": ["null", _avro_of_arrow(f.type, f"{path}_{avro_name(f.name)}")]}
            for f in arrow
        ]
        return {"type": "record", "name": path, "fields": nested}
    if types.is_decimal(arrow):
        return {"type": "bytes", "logicalType": "decimal", "precision": arrow.precision, "scale": arrow.scale}
    if types.is_date(arrow):
        return {"type": "int", "logicalType": "date"}
    if types.is_timestamp(arrow):
        return {"type": "long", "logicalType": "local-timestamp-micros" if arrow.tz is None else "timestamp-micros"}
    if types.is_integer(arrow):
        return "long" if arrow.bit_width > 32 else "int"
    plain = {pa.bool_(): "boolean", pa.float32(): "float", pa.float64(): "double", pa.binary(): "bytes"}
    return plain.get(arrow, "string")
