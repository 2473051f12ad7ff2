"""Today's alternatives, on the same archive and tables: Debezium's JSON through Spark, and delta-rs in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from benchmarks.checking import check_tables, expected_fingerprints
from benchmarks.corpora import Corpus
from benchmarks.debezium_json import write_events
from benchmarks.floor import table_path
from benchmarks.jobs import configured, run_job
from benchmarks.sessions import WORK, copied, fresh, linked, session
from benchmarks.typed_columns import TableFiles
from benchmarks.typed_events import net_events_in_memory

Progress = Callable[[str], None]
_METADATA = ("_pg_commit_lsn", "_pg_commit_ts", "_pg_xid")


@dataclass(frozen=True, slots=True)
class Baseline:
    """Medians. bytes: of the files that are read. times_job: multiples of the job's seconds and bytes."""

    way: str
    bytes: int
    seconds: float
    seconds_times_job: float
    bytes_times_job: float


def measure_baselines(corpus: Corpus, runs: int, progress: Progress) -> list[Baseline]:
    """corpus: without deletes, in ordinary transactions."""
    work = fresh(WORK / "baselines")
    landing, tables, before, other = (work / name for name in ("landing", "tables", "before", "other"))
    progress("writing Debezium's files")
    json_bytes = write_events(corpus.second.iterdir(), work / "json")
    seconds: dict[str, list[float]] = {}
    with session() as spark:
        linked(corpus.first, landing)
        config = configured(landing, tables)
        run_job(spark, config, lambda _: None)
        tables.rename(before)
        linked(corpus.second, landing)
        expected = expected_fingerprints(spark, corpus.tables)
        for run in range(-1, runs):  # run -1 warms up
            progress(f"run {run + 1} of {runs}: the job")
            copied(spark, before, tables)
            job = run_job(spark, config, lambda _: None)[0].seconds
            check_tables(spark, tables, corpus.tables, expected)
            progress(f"run {run + 1} of {runs}: from_json, row_number, MERGE")
            copied(spark, before, other)
            recipe = _timed(lambda: _apply_json(spark, work / "json", other, corpus.tables))
            check_tables(spark, other, corpus.tables, expected)
            progress(f"run {run + 1} of {runs}: delta-rs")
            _copy_for_delta_rs(spark, before, work / "delta-rs", corpus.tables)
            typed = _timed(lambda: _merge_with_delta_rs(corpus, work / "delta-rs"))
            if run >= 0:
                for way, taken in (("the job", job), (_RECIPE, recipe), (_DELTA_RS, typed)):
                    seconds.setdefault(way, []).append(taken)
    sizes = {_RECIPE: json_bytes}
    landed, job = corpus.landed.bytes, median(seconds["the job"])
    return [
        Baseline(way, size := sizes.get(way, landed), median(taken), median(taken) / job, size / landed)
        for way, taken in seconds.items()
    ]


_RECIPE = "Debezium's JSON: from_json, row_number, MERGE"
_DELTA_RS = "delta-rs: MERGE of this package's typed rows, one process"


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _apply_json(spark: SparkSession, folder: Path, root: Path, tables: tuple[TableFiles, ...]) -> None:
    for table in tables:
        path = table_path(root, table)
        target = spark.read.format("delta").load(path)
        own = [name for name in target.columns if not name.startswith("_pg_")]
        kinds = {name: target.schema[name].dataType.simpleString() for name in own}
        after = ", ".join(f"`{name}`: {'bigint' if 'timestamp' in kind else kind}" for name, kind in kinds.items())
        source = "lsn: bigint, ts_us: bigint, txId: bigint, position: bigint"
        event = F.from_json("value", f"op string, source struct<{source}>, after struct<{after}>")
        events = spark.read.text(str(folder / table.name)).select(event.alias("e")).select("e.*")
        if table.key:
            newest = Window.partitionBy(*(F.col(f"after.{name}") for name in table.key))
            newest = newest.orderBy(F.desc("source.lsn"), F.desc("source.position"))
            events = events.withColumn("number", F.row_number().over(newest)).where("number = 1")
        rows = events.select(
            *(_typed(name, kind).alias(name) for name, kind in kinds.items()),
            F.col("source.lsn").alias("_pg_commit_lsn"),
            F.timestamp_micros("source.ts_us").alias("_pg_commit_ts"),
            F.col("source.txId").alias("_pg_xid"),
            F.lit(None).cast("map<string, string>").alias("_pg_unrepresentable"),
            (F.col("op") == "d").alias("_delete"),
        )
        _write(spark, path, rows, table)


def _typed(name: str, kind: str) -> Column:
    column = F.col(f"after.{name}")
    return F.timestamp_micros(column).cast(kind) if "timestamp" in kind else column


def _write(spark: SparkSession, path: str, rows: DataFrame, table: TableFiles) -> None:
    if not table.key:
        rows.drop("_delete").write.format("delta").mode("append").save(path)
        return
    same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in table.key)
    values = {f"`{name}`": F.col(f"s.`{name}`") for name in rows.columns if name != "_delete"}
    merge = DeltaTable.forPath(spark, path).alias("t").merge(rows.alias("s"), same).whenMatchedDelete("s._delete")
    merge.whenMatchedUpdate(set=dict(values)).whenNotMatchedInsert("NOT s._delete", values=dict(values)).execute()


def _copy_for_delta_rs(spark: SparkSession, before: Path, root: Path, tables: tuple[TableFiles, ...]) -> None:
    """delta-rs doesn't write to tables with deletion vectors or column mapping."""
    import deltalake

    fresh(root)
    for table in tables:
        rows = spark.read.format("delta").load(table_path(before, table)).drop("_pg_unrepresentable").toArrow()
        deltalake.write_deltalake(str(root / table.name), rows)


def _merge_with_delta_rs(corpus: Corpus, root: Path) -> None:
    import deltalake

    for name, (shape, events) in net_events_in_memory(corpus).items():
        target = deltalake.DeltaTable(str(root / name))
        names = [column.name for column in shape.columns]
        stamps = [events.column(column) for column in ("_lsn", "_ts", "_xid")]
        rows = pa.table([*(events.column(f"c{i}") for i in range(len(names))), *stamps], [*names, *_METADATA])
        if not shape.key:
            deltalake.write_deltalake(target, rows, mode="append")
            continue
        same = " AND ".join(f't."{names[i]}" = s."{names[i]}"' for i in shape.key)
        merge = target.merge(rows, same, source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
