"""Converts columns between their form in change events and their form in the Delta table.

Spark can't compare, sort or group maps and variants. Events therefore carry a map as its entries in hstore's order and
a variant as its JSON text. The conversions apply to array elements as well.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, VariantType

from pgoutput_etl.spark.arrow_types import spark_type
from pgoutput_etl.types import ColumnType, Storage


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
    """From the event form to the target form."""
    if column_type.storage is Storage.MAP:
        return F.map_from_entries(column)
    if column_type.storage is Storage.VARIANT:
        return F.parse_json(column)
    return _map_elements(column, column_type, to_target)


def to_event(column: Column, column_type: ColumnType) -> Column:
    """From the target form to the event form. A variant's text is in Spark's spelling, not in the event's."""
    if column_type.storage is Storage.MAP:
        return _ordered(F.map_entries(column))
    if column_type.storage is Storage.VARIANT:
        return F.to_json(column)
    return _map_elements(column, column_type, to_event)


def comparable(event: Column, column_type: ColumnType) -> Column:
    """An expression over the event form that is equal for equal values.

    Floats compare by their text: Spark groups -0.0 with 0.0, but PostgreSQL's rows keep their sign.
    """
    if column_type.storage is Storage.VARIANT:
        # Twice: 45e4 is a double and prints as 450000.0, which parses as a decimal and prints as 450000, a fixed point.
        return _respelled(_respelled(event))
    if _has_floats(column_type.arrow):
        return event.cast("string")
    return _map_elements(event, column_type, comparable)


def _respelled(document: Column) -> Column:
    return F.to_json(F.parse_json(document))


def _has_floats(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_floating(arrow)) or (pa.types.is_list(arrow) and _has_floats(arrow.value_type))


def _has_two_forms(column_type: ColumnType) -> bool:
    if column_type.element is not None:
        return _has_two_forms(column_type.element)
    return column_type.storage is not Storage.PLAIN


def _map_elements(column: Column, column_type: ColumnType, convert: Callable[[Column, ColumnType], Column]) -> Column:
    element = column_type.element
    if element is None or not _has_two_forms(element):
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
