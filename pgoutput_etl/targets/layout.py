"""Reduces a rule's layout to what a table can have: a rule may match many tables with different columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.schema.layout import (
    INDEXED_NAMES,
    Layout,
    Readers,
    has_feed,
    indexed,
    is_among,
    needs_column_mapping,
    reserved_by_feed,
    with_feed,
    with_indexed,
)
from pgoutput_etl.schema.table_shape import TableColumn, TableShape
from pgoutput_etl.targets.modes import (
    DELETED_COLUMN,
    OLD_KEY_COLUMN,
    UNCHANGED_COLUMN,
    UNREPRESENTABLE_COLUMN,
    added_columns,
)
from pgoutput_etl.types import Storage

# The number of columns with statistics, unless this property or INDEXED_NAMES sets another.
_INDEXED = 32
_INDEXED_COUNT = "delta.dataSkippingNumIndexedCols"

_NOT_SCALAR = {UNREPRESENTABLE_COLUMN, OLD_KEY_COLUMN, UNCHANGED_COLUMN}


def fitting(layout: Layout, shape: TableShape, mode: Mode, tag: Iterable[str] = ()) -> tuple[Layout, tuple[str, ...]]:
    """One table's layout, and remarks about what it can't have. Data matters more than its layout, so no table is held
    for this. tag: leading columns that mark the table's rows."""
    names = [*tag, *(column.name for column in shape.columns), *added_columns(mode)]
    remarks = []
    why = next(_why_not_for_all(shape), None) if layout.readers is Readers.ALL else None
    if why is not None:
        layout = replace(layout, readers=Readers.SPARK)
        remarks.append(f"not for all readers: {why}")
    reserved = reserved_by_feed(names) if has_feed(layout.properties) else None
    if reserved is not None:
        layout = with_feed(layout, is_on=False)
        remarks.append(f"without the change data feed, which needs the name of column {reserved!r} itself")
    why = next(_why_not_partitioned(layout, shape, names), None)
    if why is not None:
        layout = replace(layout, partition_by=())
        remarks.append(f"not partitioned: {why}")
    partitions = {*layout.partition_by, *(() if layout.cluster_by else tag)}
    unfit = dict(_without_statistics(layout, shape, names, partitions))
    if unfit:
        fit = [name for name in names if name not in partitions and _has_statistics(name, shape)]
        layout = replace(layout, properties=with_indexed(layout.properties, fit))
        remarks += [f"without statistics of column {name!r}: {why}" for name, why in unfit.items()]
    why = next(_why_not_clustered(layout, shape, names), None)
    if why is not None:
        layout = replace(layout, cluster_by=())
        remarks.append(f"not clustered: {why}")
    return layout, tuple(remarks)


def _without_statistics(
    layout: Layout, shape: TableShape, names: Sequence[str], partitions: Collection[str]
) -> Iterator[tuple[str, str]]:
    """The columns that the layout wants statistics for but Delta refuses, each with the reason."""
    for listed in indexed(layout.properties) or ():
        name = next((name for name in names if is_among(name, [listed])), None)
        if name is None:
            yield listed, "the table has no such column"
        elif name in partitions:
            yield listed, "the table is partitioned by it"
        elif not _has_statistics(name, shape):
            yield listed, "Delta has none for its type"


def _why_not_for_all(shape: TableShape) -> Iterator[str]:
    for column in shape.columns:
        why = why_column_mapping(column.name)
        if why is not None:
            yield why
        elif column.type.holds_variant:
            yield f"column {column.name!r} is a VARIANT"


def why_column_mapping(name: str) -> str | None:
    """Why a column's name requires column mapping; None if it doesn't."""
    return (
        f"the name of column {name!r} has a character that only column mapping allows"
        if needs_column_mapping(name)
        else None
    )


def _why_not_partitioned(layout: Layout, shape: TableShape, names: Sequence[str]) -> Iterator[str]:
    for name in layout.partition_by:
        if name not in names:
            yield f"it has no column {name!r}"
        elif not _is_scalar(name, shape):
            yield f"column {name!r} has a type that Delta can't partition by"
        elif _may_be_empty(name, shape):
            yield f"column {name!r} may have an empty text, which Delta stores as NULL in a partition column"


def _why_not_clustered(layout: Layout, shape: TableShape, names: Sequence[str]) -> Iterator[str]:
    for name in layout.cluster_by:
        if name not in names:
            yield f"it has no column {name!r}"
        elif not _has_statistics(name, shape):
            yield f"column {name!r} has a type that Delta has no statistics for"
        elif not _is_indexed(layout, name, names.index(name)):
            yield f"column {name!r} is not among those that Delta has statistics for: name it in {INDEXED_NAMES}"


def _is_scalar(name: str, shape: TableShape) -> bool:
    column = _column(name, shape)
    if column is None:
        return name not in _NOT_SCALAR
    is_nested = pa.types.is_nested(column.type.arrow) or pa.types.is_binary(column.type.arrow)
    return column.type.storage is Storage.PLAIN and not is_nested


def _may_be_empty(name: str, shape: TableShape) -> bool:
    column = _column(name, shape)
    return column is not None and pa.types.is_string(column.type.arrow) and column.type.name != "uuid"


def _has_statistics(name: str, shape: TableShape) -> bool:
    column = _column(name, shape)
    is_boolean = name == DELETED_COLUMN if column is None else pa.types.is_boolean(column.type.arrow)
    return _is_scalar(name, shape) and not is_boolean


def _column(name: str, shape: TableShape) -> TableColumn | None:
    """The column with this name; None if the mode adds it."""
    return next((column for column in shape.columns if column.name == name), None)


def _is_indexed(layout: Layout, name: str, position: int) -> bool:
    listed = indexed(layout.properties)
    if listed is not None:
        return is_among(name, listed)
    count = layout.properties.get(_INDEXED_COUNT, str(_INDEXED))
    return count == "-1" or not count.isdigit() or position < int(count)
