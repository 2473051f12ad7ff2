"""What a column is in events, which Spark has to compare and group, and what it is in the Delta table.

Spark compares, sorts and groups neither maps nor variants. Where that has to be, they are what events carry: a map its
entries in hstore's order, a variant its JSON text. All of this goes through arrays to their elements.
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
    """From what events carry to what the target holds."""
    if column_type.storage is Storage.MAP:
        return F.map_from_entries(column)
    if column_type.storage is Storage.VARIANT:
        return F.parse_json(column)
    return _of_elements(column, column_type, to_target)


def to_event(column: Column, column_type: ColumnType) -> Column:
    """From what the target holds to what events carry; of a variant, in its own spelling."""
    if column_type.storage is Storage.MAP:
        return _in_order(F.map_entries(column))
    if column_type.storage is Storage.VARIANT:
        return F.to_json(column)
    return _of_elements(column, column_type, to_event)


def comparable(event: Column, column_type: ColumnType) -> Column:
    """What is equal for equal values, of a column in the form of events.

    Floats go by their text: Spark groups -0.0 with 0.0, and a row of PostgreSQL's doesn't lose its sign.
    """
    if column_type.storage is Storage.VARIANT:
        # Twice: 45e4 is a double, printed 450000.0, which is a decimal, printed 450000. That stays as it is.
        return _respelled(_respelled(event))
    if _has_floats(column_type.arrow):
        return event.cast("string")
    return _of_elements(event, column_type, comparable)


def _respelled(document: Column) -> Column:
    return F.to_json(F.parse_json(document))


def _has_floats(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_floating(arrow)) or (pa.types.is_list(arrow) and _has_floats(arrow.value_type))


def _is_other(column_type: ColumnType) -> bool:
    if column_type.element is not None:
        return _is_other(column_type.element)
    return column_type.storage is not Storage.PLAIN


def _of_elements(column: Column, column_type: ColumnType, convert: Callable[[Column, ColumnType], Column]) -> Column:
    element = column_type.element
    if element is None or not _is_other(element):
        return column
    return F.transform(column, lambda item: convert(item, element))


def _in_order(entries: Column) -> Column:
    """hstore's order of pairs: the shortest keys first, in bytes, and of these the least."""
    sortable = F.transform(
        entries,
        lambda e: F.struct(F.octet_length(e["key"]).alias("size"), e["key"].alias("key"), e["value"].alias("value")),
    )
    ordered = F.array_sort(sortable)
    return F.transform(ordered, lambda e: F.struct(e["key"].alias("key"), e["value"].alias("value")))
