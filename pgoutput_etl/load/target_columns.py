"""Expressions for the values of a target's columns."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load.delta_types import to_target
from pgoutput_etl.load.net_effect import no_entries
from pgoutput_etl.schema.table_shape import TableShape


def quoted_names(values: dict[str, Column]) -> dict[str, Any]:
    return {quoted(name): value for name, value in values.items()}


def metadata_values(alias: str) -> dict[str, Column]:
    return {
        "_pg_commit_lsn": F.col(f"{alias}_lsn"),
        "_pg_commit_ts": F.col(f"{alias}_ts"),
        "_pg_xid": F.col(f"{alias}_xid"),
    }


def inserted_values(shape: TableShape, alias: str = "") -> dict[str, Column]:
    """The values of a new row. A value that was never sent is NULL, with a NULL text in `_pg_unrepresentable`."""
    values = {column.name: to_target(F.col(f"{alias}c{i}"), column.type) for i, column in enumerate(shape.columns)}
    entries = F.coalesce(F.col(f"{alias}_unrep"), no_entries())
    for i in shape.toast if not shape.is_bag else ():
        unknown = F.array(
            F.struct(F.lit(shape.columns[i].name).alias("key"), F.lit(None).cast("string").alias("value"))
        )
        entries = F.concat(entries, F.when(F.col(f"{alias}keep{i}"), unknown).otherwise(no_entries()))
    return {**values, **metadata_values(alias), "_pg_unrepresentable": as_map(entries)}


def as_map(entries: Column) -> Column:
    """NULL if there are no entries."""
    return F.when(F.size(entries) > 0, F.map_from_entries(entries))


def net_rows_as_target(net: DataFrame, shape: TableShape) -> DataFrame:
    return net.select(*(value.alias(name) for name, value in inserted_values(shape).items()))
