"""A target's columns brought to what they are from now on, before a segment's rows are merged.

What Delta does by its log alone (add, drop, rename, widen) is done so, in a commit each, which is left out where it is
done already, so that a run that died between two of them can be finished. Whatever else is asked for is one commit that
writes the rows anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from pgoutput_etl.config.settings import Mode
from pgoutput_etl.identifiers import identifier, is_catalog_place, quoted
from pgoutput_etl.load.commit import DeltaTransaction, has_rows, overwrite
from pgoutput_etl.load.delta_types import delta_type, to_event, to_target
from pgoutput_etl.load.net_effect import entries_of_target, no_entries
from pgoutput_etl.load.target_columns import METADATA_FIELDS, as_map
from pgoutput_etl.schema.migration import SchemaMigration, ValueChange, converted
from pgoutput_etl.schema.table_shape import UNREPRESENTABLE
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.delta import delta_table, is_delta_table, read_table
from pgoutput_etl.spark.session import session_settings
from pgoutput_etl.targets.modes import DELETED_COLUMN, OLD_KEY_COLUMN, UNCHANGED_COLUMN, VALID_TO_LSN, added_columns

NOTES = METADATA_FIELDS[-1].name


def steps_done(spark: SparkSession, path: str, commit: DeltaTransaction) -> set[str]:
    """The steps of the commit's batch that are in the table's history: those of a run that died."""
    mine = (commit.application, commit.batch)
    told = _recorded_names(spark, path)
    return {str(note["step"]) for note in told if (note.get("application"), note.get("batch")) == mine}


def applications(spark: SparkSession, path: str) -> set[str]:
    """Whose commits are in the table's history, of those that are ours."""
    return {str(note["application"]) for note in _recorded_names(spark, path) if "application" in note}


def _recorded_names(spark: SparkSession, path: str) -> list[dict[str, object]]:
    """merge.Commit.note of every commit that has one. What somebody else put there is none of ours."""
    if not is_delta_table(spark, path):
        return []
    notes = delta_table(spark, path).history().select("userMetadata").collect()
    found = []
    for row in notes:
        try:
            note = json.loads(row[0] or "")
        except ValueError:
            continue
        if isinstance(note, dict):
            found.append(note)
    return found


def evolve(
    spark: SparkSession, path: str, reshaping: SchemaMigration, commit: DeltaTransaction, mode: Mode = Mode.MIRROR
) -> None:
    """Raises TableError if rows that are there would be without a key."""
    is_plain = _is_plain(reshaping) and not _has_notes(spark, path, _names_left(reshaping), mode)
    if any(reshaping.origins[place] is None for place in reshaping.key) and _needs_key(spark, path, mode):
        reshaping.check_key()
    if is_plain:
        # Under another name than the step's: one of its statements alone doesn't make it done.
        with session_settings(spark, replace(commit, step=f"{commit.step}:log").user_metadata()) as session:
            _alter(session, path, reshaping)
        return
    with session_settings(spark, commit.settings()) as session:
        overwrite(session, path, _rewritten(session, path, reshaping, mode))


def _needs_key(spark: SparkSession, path: str, mode: Mode) -> bool:
    """Whether a row that is there can still be changed or deleted."""
    if mode is Mode.MIRROR:
        return has_rows(spark, path)
    rows = read_table(spark, path)
    living = {Mode.SOFT_DELETE: ~F.col(DELETED_COLUMN), Mode.HISTORY: F.col(VALID_TO_LSN).isNull()}
    return mode in living and bool(rows.where(living[mode]).limit(1).count())


def _is_plain(reshaping: SchemaMigration) -> bool:
    """Whether Delta's log alone can tell it, step by step, and no step's name is another one's."""
    statuses = [reshaping.value_change(place) for place in range(len(reshaping.after))]
    if ValueChange.CONVERTED in statuses or ValueChange.UNSENT in statuses:
        return False
    before = {column.name.lower() for column in reshaping.before}
    names = [column.name for column in reshaping.after]
    begun = [name for place, name in enumerate(names) if _is_other_name(reshaping, place)]
    return not any(name.lower() in before for name in begun)


def _names_left(reshaping: SchemaMigration) -> list[str]:
    """Of columns that are dropped or renamed."""
    kept = {reshaping.after[place].name: origin for place, origin in enumerate(reshaping.origins)}
    return [column.name for place, column in enumerate(reshaping.before) if kept.get(column.name) != place]


def _has_notes(spark: SparkSession, path: str, names: list[str], mode: Mode) -> bool:
    """Whether a row has an entry of such a column: entries go by the column's name, which ALTER TABLE doesn't reach."""
    if not names:
        return False
    of_row = [F.map_keys("_pg_unrepresentable")]
    if mode is Mode.APPEND:
        of_row += [F.map_keys(OLD_KEY_COLUMN), F.col(UNCHANGED_COLUMN)]
    of_row = [F.coalesce(found, F.array().cast("array<string>")) for found in of_row]
    noted = read_table(spark, path).select(F.explode(F.concat(*of_row)).alias("name"))
    return bool(noted.where(F.col("name").isin(*names)).limit(1).count())


def _is_other_name(reshaping: SchemaMigration, place: int) -> bool:
    origin = reshaping.origins[place]
    return origin is None or reshaping.before[origin].name != reshaping.after[place].name


def _alter(spark: SparkSession, path: str, reshaping: SchemaMigration) -> None:
    table = delta_table(spark, path)
    there = {field.name: field.dataType for field in table.toDF().schema.fields}
    # A path is read from where Spark was started; ALTER TABLE would look for it below a warehouse.
    place = path if is_catalog_place(path) else table.detail().select("location").collect()[0][0]
    for clause in _clauses(reshaping, there):
        alter(spark, place, clause)


def alter(spark: SparkSession, place: str, clause: str) -> None:
    """SQL, as DeltaTable's API has none of it. Names are quoted where all names are; types are Spark's own words."""
    spark.sql(f"ALTER TABLE {identifier(place)} {clause}")


def _clauses(reshaping: SchemaMigration, there: Mapping[str, DataType]) -> Iterator[str]:
    """What is left to do; `there`: the columns as the table has them now."""
    for place, column in enumerate(reshaping.before):
        if place not in reshaping.origins and column.name in there:
            yield f"DROP COLUMN {quoted(column.name)}"
    if any(reshaping.value_change(place) is ValueChange.WIDENED for place in range(len(reshaping.after))):
        yield "SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    last = ""
    for place, column in enumerate(reshaping.after):
        origin = reshaping.origins[place]
        name, of_type = quoted(column.name), delta_type(column.type)
        if origin is not None:
            old = reshaping.before[origin].name
            if old != column.name and old in there:
                yield f"RENAME COLUMN {quoted(old)} TO {name}"
            if there.get(old, there.get(column.name)) != of_type:
                yield f"ALTER COLUMN {name} TYPE {of_type.simpleString()}"
        elif column.name not in there:
            yield f"ADD COLUMNS ({name} {of_type.simpleString()} {f'AFTER {last}' if last else 'FIRST'})"
        last = name


def _rewritten(spark: SparkSession, path: str, reshaping: SchemaMigration, mode: Mode) -> DataFrame:
    target = read_table(spark, path)
    stamps = [name for name in added_columns(mode) if name != NOTES]
    before = target.select(
        *(to_event(F.col(quoted(c.name)), c.type).alias(f"c{i}") for i, c in enumerate(reshaping.before)),
        entries_of_target().alias("_unrep"),
        *(_under_new_names(name, reshaping).alias(name) for name in stamps),
    )
    fields = [(f"c{i}", column.type.arrow) for i, column in enumerate(reshaping.after)]
    described = spark_schema(pa.schema([*fields, ("_unrep", UNREPRESENTABLE)]))
    schema = StructType([*described, *(target.schema[name] for name in stamps)])
    names = schema.names

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield converted(batch, reshaping).select(names)

    after = before.mapInArrow(convert, schema)
    columns = [to_target(F.col(f"c{i}"), c.type).alias(c.name) for i, c in enumerate(reshaping.after)]
    noted = as_map(F.coalesce("_unrep", no_entries()))
    added = [noted.alias(name) if name == NOTES else F.col(name) for name in added_columns(mode)]
    return after.select(*columns, *added)


def _under_new_names(added: str, reshaping: SchemaMigration) -> Column:
    """What speaks of columns by name does so by the names that they have now, and of none that is gone."""
    column = F.col(added)
    if added not in (OLD_KEY_COLUMN, UNCHANGED_COLUMN):
        return column
    names = {
        reshaping.before[o].name: reshaping.after[p].name for p, o in enumerate(reshaping.origins) if o is not None
    }
    now = F.create_map(*(F.lit(name) for pair in names.items() for name in pair)).cast("map<string, string>")
    if added == UNCHANGED_COLUMN:
        kept = F.filter(F.transform(column, lambda name: now[name]), lambda name: name.isNotNull())
        return F.when(F.size(kept) > 0, kept)
    of_kept = F.map_filter(column, lambda name, _: now[name].isNotNull())
    return F.transform_keys(of_kept, lambda name, _: now[name])
