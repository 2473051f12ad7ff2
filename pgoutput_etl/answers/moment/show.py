"""Rows of a Delta table, or of a source's table as of any commit."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.answers.moment.read import MomentReader, archive_of, commit_of
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, no_progress
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.identifiers import pattern_of, quoted
from pgoutput_etl.load.target_columns import lsn_text
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.moment import At, Moment
from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta import read_table
from pgoutput_etl.spark.platform import read_sql_as_it_stands
from pgoutput_etl.targets.modes import LSN_COLUMNS


def show(
    spark: SparkSession,
    table: str,
    config: Config | None = None,
    *,
    at: At | None = None,
    version: int | None = None,
    where: str | None = None,
    columns: Sequence[str] = (),
    progress: Progress = no_progress,
) -> DataFrame:
    """Rows of a table.

    table: a folder or a name in a catalog, at the Delta version `version`, by default the newest. With config:
    schema.table as of the commit `at`, as in `read_at`, by default the last applied one. where: a condition in Spark's
    SQL. columns: by default all. progress: receives a line if the table lacks changes.

    Raises ConfigError.
    """
    read_sql_as_it_stands(spark)
    if config is None:
        if at is not None:
            raise ConfigError("--at: expected a configuration, which names the archive")
        rows = read_table(spark, Place.parse(table), version)
    elif version is not None:
        raise ConfigError("expected either --version or a commit")
    else:
        rows = _rows_at(spark, config, table, None if at is None else Moment.of(at), progress)
    return _selected(rows if where is None else _filtered(rows, where), columns)


def printed_rows(rows: DataFrame) -> DataFrame:
    """The rows, with LSNs in metadata columns as PostgreSQL prints them."""
    lsns = {name: lsn_text(F.col(name)) for name, kind in rows.dtypes if name in LSN_COLUMNS and kind == "bigint"}
    return rows.withColumns(lsns) if lsns else rows


def _rows_at(spark: SparkSession, config: Config, table: str, moment: Moment | None, progress: Progress) -> DataFrame:
    archive = archive_of(spark, config)
    lsn = archive.last.last_commit_lsn if moment is None else commit_of(archive, moment)
    tables = MomentReader(spark, archive).read(lsn, [pattern_of(table)])
    if table in tables.held:
        progress(f"{table} is incomplete: it has the commits through {format_lsn(tables.held[table])}")
    if table in tables.ahead:
        raise ConfigError(
            f"the archive has {table} only since a snapshot at {format_lsn(tables.ahead[table])}, after "
            f"{format_lsn(lsn)}"
        )
    if table not in tables:
        raise ConfigError(f"there was no table {table} at {format_lsn(lsn)}")
    return tables[table]


def _filtered(rows: DataFrame, where: str) -> DataFrame:
    try:
        filtered = rows.where(F.expr(where))
        filtered.schema.simpleString()  # over Spark Connect, this is when the condition is checked
    except AnalysisException as error:  # its text contains the condition, which may contain values
        raise ConfigError(
            f"--where: Spark takes no such condition ({error.getCondition()}). Columns: {', '.join(rows.columns)}"
        ) from None
    return filtered


def _selected(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    for name in columns:
        if name not in rows.columns:
            raise ConfigError(f"--columns: no column {name!r}. Columns: {', '.join(rows.columns)}")
    return rows.select(*(F.col(quoted(name)) for name in columns)) if columns else rows
