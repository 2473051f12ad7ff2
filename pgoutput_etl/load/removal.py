"""Removes the rows that left a table with its partitions (schema/removal.py)."""

from __future__ import annotations

from contextlib import nullcontext

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load.table_writer import DeltaTransaction, committing
from pgoutput_etl.load.target_columns import delta_type, is_current, quoted_names
from pgoutput_etl.places import Place
from pgoutput_etl.schema.removal import ColumnValue, Removal, is_removed
from pgoutput_etl.schema.table_shape import TableColumn
from pgoutput_etl.spark.delta import delta_table
from pgoutput_etl.targets.modes import (
    DELETED_COLUMN,
    UNREPRESENTABLE_COLUMN,
    VALID_FROM_LSN,
    VALID_TO_LSN,
    table_mode,
)
from pgoutput_etl.timestamps import time_of


def remove(spark: SparkSession, place: Place, removal: Removal, commit: DeltaTransaction, mode: Mode) -> None:
    """Makes one DELETE or UPDATE; in mode history, sometimes a DELETE before it."""
    condition, ended = _condition(removal, mode), _ended(removal, mode)
    with committing(spark, place, commit) as table:
        if not ended or VALID_TO_LSN in ended:
            is_no_version = condition & (F.col(VALID_FROM_LSN) == removal.lsn) if ended else condition
            with table.preparing("rows") if ended else nullcontext():
                delta_table(table.spark, place).delete(is_no_version)
        if ended:
            delta_table(table.spark, place).update(condition, quoted_names(ended))


def rows_left(rows: DataFrame, removal: Removal, mode: Mode) -> DataFrame:
    """The table's rows after `remove`."""
    condition, ended = _condition(removal, mode), _ended(removal, mode)
    if not ended:
        return rows.where(~condition)
    if VALID_TO_LSN in ended:
        rows = rows.where(~(condition & (F.col(VALID_FROM_LSN) == removal.lsn)))
    return rows.withColumns(
        {
            field.name: F.when(condition, ended[field.name].cast(field.dataType)).otherwise(F.col(quoted(field.name)))
            for field in rows.schema
            if field.name in ended
        }
    )


def _ended(removal: Removal, mode: Mode) -> dict[str, Column]:
    """Values for rows that the commit ends, by the target's columns; empty if the mode deletes them."""
    ends = table_mode(mode).ends
    if ends is None:
        return {}
    time = F.lit(None) if removal.ts is None else F.lit(str(time_of(removal.ts)))
    commit = {
        "_pg_commit_lsn": F.lit(removal.lsn),
        "_pg_commit_ts": time.cast("timestamp"),
        "_pg_xid": F.lit(removal.xid).cast("bigint"),
    }
    named = {ends.get(name, name): value for name, value in commit.items()}
    values = {name: value for name, value in named.items() if name is not None}
    return values if VALID_TO_LSN in values else {**values, DELETED_COLUMN: F.lit(True)}


def _condition(removal: Removal, mode: Mode) -> Column:
    def compare(bound: ColumnValue) -> tuple[Column, Column, Column]:
        stored, text = F.col(quoted(bound.column.name)), F.col(UNREPRESENTABLE_COLUMN)[bound.column.name]
        value = F.lit(str(bound.value)).cast(delta_type(bound.column.type))
        is_below_all = text.startswith("-") | text.endswith(" BC")  # as schema.removal.is_below_all
        below, above = F.coalesce(stored < value, is_below_all), F.coalesce(stored > value, ~is_below_all)
        false = F.lit(False)
        return F.coalesce(below, false), F.coalesce(stored == value, false), F.coalesce(above, false)

    def is_null(column: TableColumn) -> tuple[Column, Column]:
        names = F.coalesce(F.map_keys(UNREPRESENTABLE_COLUMN), F.array().cast("array<string>"))
        has_text, is_missing = F.array_contains(names, column.name), F.col(quoted(column.name)).isNull()
        return is_missing & ~has_text, ~is_missing | has_text

    is_gone: Column = is_current(mode) & is_removed(removal, compare, is_null)
    return is_gone
