"""Migrates a target's columns before the rows of a new schema span are merged.

Changes that only need Delta's log (add, drop, rename, widen) take one commit each; a resumed run skips those already
made. Any other change rewrites all rows in a single commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from pgoutput_etl.config.rules import DEFAULT_MODE, Mode
from pgoutput_etl.identifiers import forms, quoted
from pgoutput_etl.load.commit import overwrite
from pgoutput_etl.load.layout import allow_names, has_change_feed, has_column_mapping, is_for_all_readers, sql_place
from pgoutput_etl.load.shared_table import fields_of, tagged_target, unite_columns
from pgoutput_etl.load.table_writer import DeltaTransaction, TableCommit, committing
from pgoutput_etl.load.target_columns import (
    as_map,
    current_rows,
    delta_type,
    entries_of_target,
    is_current,
    no_entries,
    stored_value,
    to_target,
)
from pgoutput_etl.places import Place
from pgoutput_etl.schema.migration import SchemaMigration, ValueChange, converted
from pgoutput_etl.schema.table_shape import UNREPRESENTABLE
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.delta import delta_table, is_delta_table, read_table
from pgoutput_etl.spark.delta_history import history_of, recorded_entry
from pgoutput_etl.targets.modes import (
    OLD_KEY_COLUMN,
    UNCHANGED_COLUMN,
    UNREPRESENTABLE_COLUMN,
    added_columns,
    table_mode,
)


def committed_steps(spark: SparkSession, path: Place, commit: DeltaTransaction) -> dict[str, int]:
    """The steps of this batch that a dead run committed, with their versions, from the table's history."""
    own = (commit.application, commit.batch)
    recorded = _recorded_metadata(spark, path)
    return {str(e["step"]): version for version, e in recorded if (e.get("application"), e.get("batch")) == own}


def applications(spark: SparkSession, path: Place) -> set[str]:
    """The applications (DeltaTransaction.application) of the commits in the table's history."""
    return {str(entry["application"]) for _, entry in _recorded_metadata(spark, path) if "application" in entry}


def _recorded_metadata(spark: SparkSession, path: Place) -> list[tuple[int, dict[str, object]]]:
    """The version and DeltaTransaction.user_metadata of every commit in the history, newest first."""
    if not is_delta_table(spark, path):
        return []
    return [(commit.version, recorded_entry(commit.user_metadata)) for commit in history_of(spark, path)]


def evolve(
    spark: SparkSession, path: Place, migration: SchemaMigration, commit: DeltaTransaction, mode: Mode = DEFAULT_MODE
) -> tuple[str, ...]:
    """Returns remarks about the table's layout. Raises TableError if existing rows would lack a key."""
    needs_log_only = (
        may_need_log_only(migration)
        and _takes(spark, path, migration)
        and not has_entries(spark, path, removed_names(migration), mode)
    )
    check_migration(lambda: read_table(spark, path), migration, mode)
    if needs_log_only:
        # Recorded under another name, because one of several statements doesn't complete the step.
        with committing(spark, path, replace(commit, step=f"{commit.step}:log"), is_once=False) as table:
            return _alter(table, migration)
    with committing(spark, path, commit) as table:
        rows = migrated(tagged_target(table.spark, path, migration.before), migration, mode)
        return overwrite(table, rows).remarks


def check_migration(target: Callable[[], DataFrame], migration: SchemaMigration, mode: Mode) -> None:
    """Raises TableError if rows that can still be changed or deleted would lack a key. target: reads its rows."""
    has_new_key = any(migration.origins[place] is None for place in migration.key)
    if has_new_key and table_mode(mode).has_rows and current_rows(target(), mode).limit(1).count():
        migration.check_key()


_REWRITING = {ValueChange.CONVERTED, ValueChange.UNSENT, ValueChange.FILLED, ValueChange.REFORMED}


def may_need_log_only(migration: SchemaMigration) -> bool:
    """True if Delta's log can express every step, and no step introduces a name that another column still has."""
    if _REWRITING & set(migration.value_changes):
        return False
    before = [column.name for column in migration.before]
    pairs = zip(migration.after, migration.origins, strict=True)
    introduced = (column.name for column, o in pairs if o is None or before[o] != column.name)
    return not _forms(introduced) & _forms(before)


def _forms(names: Iterable[str]) -> frozenset[str]:
    return frozenset[str]().union(*map(forms, names))


def _takes(spark: SparkSession, path: Place, migration: SchemaMigration) -> bool:
    """False if Delta's log can't express a step in this table: not every table has column mapping, a table for all
    readers gets no type widening, and a shared table keeps the columns of other sources."""
    if path.tag:
        return not removed_names(migration)
    if removed_names(migration) and not has_column_mapping(spark, path):
        return False
    return ValueChange.WIDENED not in migration.value_changes or not is_for_all_readers(spark, path)


def removed_names(migration: SchemaMigration) -> list[str]:
    """Names of the columns that are dropped or renamed."""
    remaining = {migration.after[place].name: origin for place, origin in enumerate(migration.origins)}
    return [column.name for place, column in enumerate(migration.before) if remaining.get(column.name) != place]


def has_entries(spark: SparkSession, path: Place, names: list[str], mode: Mode) -> bool:
    """True if a metadata column in some row names one of these columns: ALTER TABLE doesn't rename it there."""
    if not names:
        return False
    arrays = [F.map_keys(UNREPRESENTABLE_COLUMN)]
    if OLD_KEY_COLUMN in table_mode(mode).columns:
        arrays += [F.map_keys(OLD_KEY_COLUMN), F.col(UNCHANGED_COLUMN)]
    arrays = [F.coalesce(array, F.array().cast("array<string>")) for array in arrays]
    entries = read_table(spark, path).select(F.explode(F.concat(*arrays)).alias("name"))
    return bool(entries.where(F.col("name").isin(*names)).limit(1).count())


def _alter(table: TableCommit, migration: SchemaMigration) -> tuple[str, ...]:
    """Alters the table's columns without rewriting rows. Returns remarks about the layout."""
    spark, path = table.spark, table.place
    had_feed = has_change_feed(spark, path)
    if path.tag:
        unite_columns(table, fields_of(migration.after))
        return _feed_ended(spark, path, had_feed)
    allow_names(spark, path, (column.name for column in migration.after))
    existing = {field.name: field.dataType for field in delta_table(spark, path).toDF().schema.fields}
    name = sql_place(spark, path).identifier
    for clause in _clauses(migration, existing):  # SQL, because DeltaTable's API has no ALTER TABLE
        spark.sql(f"ALTER TABLE {name} {clause}")
    return _feed_ended(spark, path, had_feed)


def _feed_ended(spark: SparkSession, path: Place, had_feed: bool) -> tuple[str, ...]:
    if not had_feed or has_change_feed(spark, path):
        return ()
    return ("its change data feed has ended, because a column has a name that the feed needs itself",)


def _clauses(migration: SchemaMigration, existing: Mapping[str, DataType]) -> Iterator[str]:
    """The ALTER TABLE clauses still needed, with quoted names and Spark's type names. existing: the current columns."""
    for place, column in enumerate(migration.before):
        if place not in migration.origins and column.name in existing:
            yield f"DROP COLUMN {quoted(column.name)}"
    if ValueChange.WIDENED in migration.value_changes:
        yield "SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    last = ""
    for place, column in enumerate(migration.after):
        origin = migration.origins[place]
        name, data_type = quoted(column.name), delta_type(column.type)
        if origin is not None:
            old = migration.before[origin].name
            if old != column.name and old in existing:
                yield f"RENAME COLUMN {quoted(old)} TO {name}"
            if existing.get(old, existing.get(column.name)) != data_type:
                yield f"ALTER COLUMN {name} TYPE {data_type.simpleString()}"
        elif column.name not in existing:
            yield f"ADD COLUMNS ({name} {data_type.simpleString()} {f'AFTER {last}' if last else 'FIRST'})"
        last = name


def migrated(target: DataFrame, migration: SchemaMigration, mode: Mode) -> DataFrame:
    """The target's rows in the new columns."""
    metadata = [name for name in added_columns(mode) if name != UNREPRESENTABLE_COLUMN]
    before = target.select(
        *(stored_value(column).alias(f"c{i}") for i, column in enumerate(migration.before)),
        entries_of_target().alias("_unrep"),
        *(_with_new_names(name, migration).alias(name) for name in metadata),
        is_current(mode).alias("_is_current"),
    )
    fields = [(f"c{i}", column.type.arrow) for i, column in enumerate(migration.after)]
    own_fields = spark_schema(pa.schema([*fields, ("_unrep", UNREPRESENTABLE)]))
    schema = StructType([*own_fields, *(target.schema[name] for name in metadata)])
    names = schema.names

    # Rows that no change can reach any more keep their values.
    without_key = replace(migration, key=(), initial={}, reformed={})

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            current = batch.column("_is_current")
            for rows, rule in ((batch.filter(current), migration), (batch.filter(pc.invert(current)), without_key)):
                yield converted(rows, rule).select(names)

    after = before.mapInArrow(convert, schema)
    columns = [to_target(F.col(f"c{i}"), c.type).alias(c.name) for i, c in enumerate(migration.after)]
    entries = as_map(F.coalesce("_unrep", no_entries()))
    added = [entries.alias(name) if name == UNREPRESENTABLE_COLUMN else F.col(name) for name in added_columns(mode)]
    return after.select(*columns, *added)


def _with_new_names(added: str, migration: SchemaMigration) -> Column:
    """A metadata column whose column names are replaced by their new names; names of dropped columns are removed."""
    column = F.col(added)
    if added not in (OLD_KEY_COLUMN, UNCHANGED_COLUMN):
        return column
    names = {
        migration.before[o].name: migration.after[p].name for p, o in enumerate(migration.origins) if o is not None
    }
    new_name = F.create_map(*(F.lit(name) for pair in names.items() for name in pair)).cast("map<string, string>")
    if added == UNCHANGED_COLUMN:
        remaining = F.filter(F.transform(column, lambda name: new_name[name]), lambda name: name.isNotNull())
        return F.when(F.size(remaining) > 0, remaining)
    remaining = F.map_filter(column, lambda name, _: new_name[name].isNotNull())
    return F.transform_keys(remaining, lambda name, _: new_name[name])
