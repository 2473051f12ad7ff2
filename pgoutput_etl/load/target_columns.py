"""Expressions for a target's columns, in change events and in the Delta table.

Spark can't compare, sort, or group maps and variants. In events, a map is therefore the array of its entries in
hstore's order, and a variant is its JSON text, including within arrays. The map `_pg_unrepresentable` is the array
`_unrep`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, NumericType, StringType, VariantType

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.schema.table_shape import TableColumn, TableShape
from pgoutput_etl.spark.arrow_types import spark_type
from pgoutput_etl.targets.modes import UNREPRESENTABLE_COLUMN, table_mode
from pgoutput_etl.types import ColumnType, Storage

ENTRIES = "array<struct<key: string, value: string>>"


def delta_type(column_type: ColumnType) -> DataType:
    """The type of the column in the target."""
    if column_type.storage is Storage.MAP:
        return MapType(StringType(), StringType())
    if column_type.storage is Storage.VARIANT:
        return VariantType()
    if column_type.element is not None:
        return ArrayType(delta_type(column_type.element))
    return spark_type(column_type.arrow)


def to_target(column: Column, column_type: ColumnType) -> Column:
    """Converts from the event form to the target form."""
    if column_type.storage is Storage.MAP:
        return F.map_from_entries(column)
    if column_type.storage is Storage.VARIANT:
        return F.parse_json(column)
    return _map_elements(column, column_type, to_target)


def to_event(column: Column, column_type: ColumnType) -> Column:
    """Converts from the target form to the event form. A variant's text is as Spark prints it, not as in the event."""
    if column_type.storage is Storage.MAP:
        return _ordered(F.map_entries(column))
    if column_type.storage is Storage.VARIANT:
        return F.to_json(column)
    return _map_elements(column, column_type, to_event)


def current_rows(rows: DataFrame, mode: Mode) -> DataFrame:
    """The target's rows that still exist in PostgreSQL's table. In mode append, rows are changes, and all are
    returned."""
    return rows.where(is_current(mode))


def is_current(mode: Mode) -> Column:
    return F.expr(table_mode(mode).current)


def stored_value(column: TableColumn, alias: str = "") -> Column:
    """A target's column in the event form."""
    return to_event(F.col(alias + quoted(column.name)), column.type)


def comparable(event: Column, column_type: ColumnType) -> Column:
    """An expression over the event form that is equal for equal values.

    Floats compare by their text: Spark groups -0.0 with 0.0, but PostgreSQL's rows keep their sign.
    """
    if column_type.storage is Storage.VARIANT:
        # Twice: 45e4 is a double and prints as 450000.0, which parses as a decimal and prints as 450000, which is
        # stable.
        return _respelled(_respelled(event))
    own_type = spark_type(column_type.arrow)  # another source may have widened the column
    if _has_floats(column_type.arrow):
        return event.cast(own_type).cast("string")
    if isinstance(own_type, NumericType):
        return event.cast(own_type)
    return _map_elements(event, column_type, comparable)


def _respelled(document: Column) -> Column:
    return F.to_json(F.parse_json(document))


def _has_floats(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_floating(arrow)) or (pa.types.is_list(arrow) and _has_floats(arrow.value_type))


def has_two_forms(column_type: ColumnType) -> bool:
    if column_type.element is not None:
        return has_two_forms(column_type.element)
    return column_type.storage is not Storage.PLAIN


def _map_elements(column: Column, column_type: ColumnType, convert: Callable[[Column, ColumnType], Column]) -> Column:
    element = column_type.element
    if element is None or not has_two_forms(element):
        return column
    return F.transform(column, lambda item: convert(item, element))


def _ordered(entries: Column) -> Column:
    """Sorts pairs as hstore does: by the key's length in bytes, then by the key."""
    sortable = F.transform(
        entries,
        lambda e: F.struct(F.octet_length(e["key"]).alias("size"), e["key"].alias("key"), e["value"].alias("value")),
    )
    ordered = F.array_sort(sortable)
    return F.transform(ordered, lambda e: F.struct(e["key"].alias("key"), e["value"].alias("value")))


def no_entries() -> Column:
    return F.array().cast(ENTRIES)


def unknown_entry(name: str) -> Column:
    """The `_unrep` entry of a value that was never sent."""
    entry = F.struct(F.lit(name).alias("key"), F.lit(None).cast("string").alias("value"))
    return F.array(entry).cast(ENTRIES)


def with_entries(entries: Column, added: Iterable[tuple[Column, Column]]) -> Column:
    """Entries, or NULL, plus others under their conditions. A single expression: Spark's stack overflows at a few
    hundred nested ones, and there may be one per column."""
    return F.concat(
        F.coalesce(entries, no_entries()),
        *(F.when(condition, others).otherwise(no_entries()) for condition, others in added),
    )


def entries_of(entries: Column, name: str) -> Column:
    return F.filter(entries, lambda entry: entry["key"] == F.lit(name))


def entries_of_target(alias: str = "") -> Column:
    """A target's `_pg_unrepresentable` in the event form."""
    return F.coalesce(F.map_entries(F.col(alias + UNREPRESENTABLE_COLUMN)), no_entries())


def as_map(entries: Column) -> Column:
    """The entries as a map, or NULL if there are none."""
    return F.when(F.size(entries) > 0, F.map_from_entries(entries))


def target_values(shape: TableShape, alias: str = "", entries: Column | None = None) -> dict[str, Column]:
    """A row by the target's column names, from c0…, _unrep, _lsn, _ts, and _xid. entries: replaces _unrep."""
    values = {column.name: to_target(F.col(f"{alias}c{i}"), column.type) for i, column in enumerate(shape.columns)}
    entries = F.col(f"{alias}_unrep") if entries is None else entries
    metadata = {"_pg_commit_lsn": "_lsn", "_pg_commit_ts": "_ts", "_pg_xid": "_xid"}
    values |= {name: F.col(alias + column) for name, column in metadata.items()}
    return {**values, UNREPRESENTABLE_COLUMN: as_map(entries)}


def net_values(shape: TableShape, alias: str = "") -> dict[str, Column]:
    """Like `target_values`, for a new row from a net row (net_effect.net_rows). A value that was never sent is NULL,
    with a NULL text in `_pg_unrepresentable`."""
    toast = () if shape.is_bag else shape.toast
    if not toast:
        return target_values(shape, alias)
    unknown = ((F.col(f"{alias}keep{i}"), unknown_entry(shape.columns[i].name)) for i in toast)
    return target_values(shape, alias, with_entries(F.col(f"{alias}_unrep"), unknown))


def updated_values(shape: TableShape) -> dict[str, Column]:
    """The values of a target's row `t` after its update by the net row `s`."""
    sent = target_values(shape, "s.")
    if not shape.toast:
        return sent
    kept: dict[str, Column] = {}
    kept_entries = []
    for i in shape.toast:
        name, keep = shape.columns[i].name, F.col(f"s.keep{i}")
        kept[name] = F.when(keep, F.col(f"t.{quoted(name)}")).otherwise(sent[name])
        kept_entries.append((keep, entries_of(entries_of_target("t."), name)))
    return {**target_values(shape, "s.", with_entries(F.col("s._unrep"), kept_entries)), **kept}


def lsn_text(lsn: Column) -> Column:
    """The LSN as PostgreSQL prints it: see lsn.py."""
    return F.concat(F.hex(F.shiftrightunsigned(lsn, 32)), F.lit("/"), F.hex(lsn.bitwiseAND(0xFFFFFFFF)))


def selected(rows: DataFrame, values: Mapping[str, Column]) -> DataFrame:
    return rows.select(*(value.alias(name) for name, value in values.items()))


def quoted_names(values: Mapping[str, Column]) -> dict[str, Any]:
    return {quoted(name): value for name, value in values.items()}
