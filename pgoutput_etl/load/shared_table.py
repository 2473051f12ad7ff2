"""Writes rows with one tag into a table that several sources share (docs/shared-tables.md).

The table has the union of the sources' columns, by name. A column that a source lacks is NULL in its rows. A column
that one source drops stays for the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.errors import TableError
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load.layout import (
    allow_names,
    alter,
    is_for_all_readers,
    lay_out,
    possible,
    refused,
    sql_place,
    tag_column,
    tag_columns,
)
from pgoutput_etl.load.table_writer import TableCommit, properties_of_new
from pgoutput_etl.load.target_columns import delta_type
from pgoutput_etl.places import Place
from pgoutput_etl.schema.layout import Layout, Readers
from pgoutput_etl.schema.table_shape import TableColumn, TableShape
from pgoutput_etl.spark.delta import delta_table, has_tag, is_delta_table, make_schema, read_table, save
from pgoutput_etl.targets.column_descriptions import columns_of_mode
from pgoutput_etl.targets.modes import added_columns

_LADDERS = ((ShortType(), IntegerType(), LongType()), (FloatType(), DoubleType()))


def tagged_target(
    spark: SparkSession, place: Place, columns: Iterable[TableColumn], version: int | None = None
) -> DataFrame:
    """Like `read_table`. A column that another source has widened is cast to this source's type."""
    rows = read_table(spark, place, version)
    if not place.tag:
        return rows
    types = {column.name.lower(): delta_type(column.type) for column in columns}
    return rows.select(*(_cast(field, types.get(field.name.lower(), field.dataType)) for field in rows.schema))


def own_rows(
    spark: SparkSession, place: Place, version: int | None, columns: Iterable[TableColumn], mode: Mode
) -> DataFrame:
    """Like `tagged_target`, without other sources' columns, and with this source's spelling of names."""
    columns = tuple(columns)
    rows = tagged_target(spark, place, columns, version)
    own = {name.lower(): name for name in (*(column.name for column in columns), *added_columns(mode))}
    return rows.select(*(F.col(quoted(n)).alias(own[n.lower()]) for n in rows.columns if n.lower() in own))


def _cast(field: StructField, data_type: DataType) -> Column:
    column = F.col(quoted(field.name))
    return column if field.dataType == data_type else column.cast(data_type).alias(field.name)


def tagged_rows(spark: SparkSession, place: Place, rows: DataFrame) -> DataFrame:
    """The rows with their tag, in the table's types."""
    stored = _fields(spark, place)
    values = [_cast(field, stored[field.name.lower()].dataType) for field in rows.schema]
    return rows.select(*(F.lit(value).alias(name) for name, value in place.tag.items()), *values)


def replace_tagged(table: TableCommit, rows: DataFrame, layout: Layout) -> None:
    """Replaces the tag's rows in one commit. Earlier commits create the table or add columns, and later ones give the
    table its layout. Raises TableError for columns that conflict with the table's."""
    if not is_delta_table(table.spark, table.place):
        _create(table, rows.schema, layout)
    check_shared(table.spark, table.place)
    unite_columns(table, rows.schema)
    _overwrite(table, rows)
    if layout:
        with table.preparing("layout") as laid_out:
            lay_out(laid_out.spark, table.place, layout)


def _create(table: TableCommit, columns: StructType, layout: Layout) -> None:
    """Creates an empty table, unless another source creates it at the same time."""
    spark, place = table.spark, table.place
    tag = tuple(place.tag)
    schema = StructType([*map(tag_column, tag), *columns])
    wanted = possible(layout, schema)
    layout = wanted if wanted.partition_by or wanted.cluster_by else replace(wanted, partition_by=tag)
    if place.is_in_catalog:
        make_schema(spark, place)
    with table.preparing("created") as created:
        writer = created.writer_of(spark.createDataFrame([], schema)).mode("ignore")
        writer = writer.options(**properties_of_new(layout, schema.names))
        try:
            save(writer.partitionBy(*layout.partition_by), place)
        except AnalysisException as error:
            if not replace(wanted, readers=Readers.SPARK):
                raise
            raise refused(place.table, error) from None


def planned_unions(spark: SparkSession, place: Place, shape: TableShape, mode: Mode) -> list[ColumnUnion]:
    """The changes that `unite_columns` would make to an existing table. Raises TableError."""
    if not place.tag or not is_delta_table(spark, place):
        return []
    added = [StructField(column.name, DataType.fromDDL(column.type)) for column in columns_of_mode(mode)]
    wanted = StructType([*fields_of(shape.columns), *added])
    return _unions(spark, place, wanted, may_widen=shape.layout.readers is Readers.AUTO)


def fields_of(columns: Iterable[TableColumn]) -> StructType:
    return StructType([StructField(column.name, delta_type(column.type)) for column in columns])


def unite_columns(table: TableCommit, columns: StructType) -> None:
    """Adds the columns that the table lacks, and widens those that are too narrow. Raises TableError if a column's type
    in the table is incompatible."""
    spark, place = table.spark, table.place
    while unions := _unions(spark, place, columns):
        try:
            with table.preparing("columns"):
                allow_names(spark, place, columns.names)
                table_place = sql_place(spark, place)
                for clause in chain.from_iterable(union.clauses for union in unions):
                    alter(spark, table_place, clause)
        except TableError:
            if _unions(spark, place, columns) == unions:  # no other source has added the columns meanwhile
                raise


@dataclass(frozen=True, slots=True)
class ColumnUnion:
    """A column that a shared table lacks, or has in a type that is too narrow."""

    name: str
    data_type: str
    is_new: bool

    def __str__(self) -> str:
        return f"adds column {self.name}" if self.is_new else f"widens column {self.name} to {self.data_type}"

    @property
    def clauses(self) -> list[str]:
        """Clauses of ALTER TABLE."""
        if self.is_new:
            return [f"ADD COLUMNS ({quoted(self.name)} {self.data_type})"]
        widening = "SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
        return [widening, f"ALTER COLUMN {quoted(self.name)} TYPE {self.data_type}"]


def _unions(spark: SparkSession, place: Place, columns: StructType, may_widen: bool = False) -> list[ColumnUnion]:
    """How a shared table's columns must change to hold these columns. may_widen: even if the table is for all readers.
    Raises TableError."""
    stored = _fields(spark, place)
    unions: list[ColumnUnion] = []
    for column in columns:
        has, data_type = stored.get(column.name.lower()), column.dataType.simpleString()
        if has is None:
            unions.append(ColumnUnion(column.name, data_type, is_new=True))
        elif _holds(has.dataType, column.dataType):
            continue
        elif _holds(column.dataType, has.dataType) and (may_widen or not is_for_all_readers(spark, place)):
            unions.append(ColumnUnion(column.name, data_type, is_new=False))
        else:
            raise TableError(
                f"column {column.name!r} is {data_type}, and {has.dataType.simpleString()} in {place.table}, which "
                "other sources share: give it the same type everywhere, or another name here"
            )
    return unions


def check_shared(spark: SparkSession, place: Place) -> None:
    """Raises TableError if an existing table isn't shared, or is shared by columns other than the tag's. For a place
    without a tag, raises it if the table is shared."""
    table = place.table
    own, tag = tuple(place.tag), tag_columns(read_table(spark, table).schema)
    if own == tag:
        return
    if not tag:
        raise TableError(
            f"the table at {table} is not shared by sources: move it away, or choose another name for `into`"
        )
    columns = f"sources share the table at {table}, and its column {', '.join(tag)} says whose a row is"
    if own:
        raise TableError(f"{columns}: give `tag` the same columns everywhere, or choose another name for `into`")
    raise TableError(f"{columns}: choose another name with `rename`, or use `into` and `tag` as the sources do")


def _fields(spark: SparkSession, place: Place) -> dict[str, StructField]:
    """The whole table's columns, by their names in lower case."""
    return {field.name.lower(): field for field in read_table(spark, place.table).schema}


def _holds(stored: DataType, data_type: DataType) -> bool:
    """True if the stored type can represent every value of the other type and Delta can widen the other type to it."""
    if isinstance(stored, DecimalType) and isinstance(data_type, DecimalType):
        decimals = stored.scale - data_type.scale
        return stored.precision - data_type.precision >= decimals >= 0
    for ladder in _LADDERS:
        if stored in ladder and data_type in ladder:
            return ladder.index(stored) >= ladder.index(data_type)
    return stored == data_type


def restore_tagged(table: TableCommit, version: int | None) -> None:
    """Writes the tag's rows as of a version; deletes them if the version is None."""
    if version is None:
        delta_table(table.spark, table.place).delete()
    else:
        _overwrite(table, read_table(table.spark, table.place, version))


def _overwrite(table: TableCommit, rows: DataFrame) -> None:
    name = sql_place(table.spark, table.place).identifier  # a writer rejects relative paths
    writer = tagged_rows(table.spark, table.place, rows).writeTo(name).options(**table.options)
    writer.overwrite(has_tag(table.place.tag))
