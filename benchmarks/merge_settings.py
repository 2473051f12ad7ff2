"""Measures the cost of each choice about Delta's MERGE by itself, at a moderate size.

The changes are a twentieth of the rows: four fifths updates, the rest deletes and inserts in equal parts. `narrow` keys
are adjacent, as those of new orders are; `uniform` keys are spread over the whole table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.checking import WrongResultError
from benchmarks.scenarios import scaled
from benchmarks.sessions import WORK, copied, fresh, session

Progress = Callable[[str], None]
_ROWS, _LARGE, _FILES = 2_000_000, 8_000_000, 16
_SHARE = 20  # one row in 20 changes
_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Target:
    """A table before the batch, created once."""

    name: str
    rows: int
    vectors: bool = True
    clustered: bool = False


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to apply changes to a target. how: merge, merge_inserts, append, overwrite; keys: narrow, uniform, new."""

    question: str
    name: str
    target: Target
    keys: str
    how: str = "merge"
    between: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cost:
    """ratio: to the first variant of its question, as the median over all rounds."""

    question: str
    variant: str
    seconds: float
    ratio: float


def variants(scale: float) -> list[Variant]:
    rows, large = scaled(_ROWS, scale), scaled(_LARGE, scale)
    plain, vectors = Target("plain", rows, vectors=False), Target("vectors", rows)
    clustered, big = Target("clustered", rows, clustered=True), Target("large", large)
    shuffle_variants = [
        Variant("shuffle partitions", n, vectors, "uniform", settings={"spark.sql.shuffle.partitions": n})
        for n in ("8", "2", "200")
    ]
    no_aqe = {"spark.sql.shuffle.partitions": "200", "spark.sql.adaptive.enabled": "false"}
    return [
        Variant("deletion vectors, uniform keys", "on", vectors, "uniform"),
        Variant("deletion vectors, uniform keys", "off", plain, "uniform"),
        Variant("deletion vectors, narrow keys", "on", vectors, "narrow"),
        Variant("deletion vectors, narrow keys", "off", plain, "narrow"),
        Variant("clustered by key, uniform keys", "no", vectors, "uniform"),
        Variant("clustered by key, uniform keys", "yes", clustered, "uniform"),
        Variant("clustered by key, narrow keys", "no", vectors, "narrow"),
        Variant("clustered by key, narrow keys", "yes", clustered, "narrow"),
        Variant("key range as literals, large table", "no", big, "narrow"),
        Variant("key range as literals, large table", "yes", big, "narrow", between=True),
        Variant("key range as literals, uniform keys", "no", big, "uniform"),
        Variant("key range as literals, uniform keys", "yes", big, "uniform", between=True),
        *shuffle_variants,
        Variant("shuffle partitions", "200, AQE off", vectors, "uniform", settings=no_aqe),
        Variant("new rows only", "MERGE", vectors, "new"),
        Variant("new rows only", "MERGE that only inserts", vectors, "new", how="merge_inserts"),
        Variant("new rows only", "append", vectors, "new", how="append"),
        Variant("rewriting the table", "MERGE", vectors, "uniform"),
        Variant("rewriting the table", "overwrite", vectors, "uniform", how="overwrite"),
    ]


def measure_merge_settings(scale: float, runs: int, progress: Progress) -> list[Cost]:
    chosen = variants(scale)
    work = fresh(WORK / "merge")
    with session() as spark:
        for target in {variant.target for variant in chosen}:
            progress(f"a table of {target.rows:,} rows: {target.name}")
            _make(spark, work, target)
        seconds: dict[int, list[float]] = {}
        for number in range(-1, runs):  # round -1 warms up
            for place, variant in enumerate(chosen):
                progress(f"round {number + 1} of {runs}: {variant.question}: {variant.name}")
                duration = _run(spark, work, variant)
                if number >= 0:
                    seconds.setdefault(place, []).append(duration)
    return [*_costs(chosen, seconds)]


def _costs(chosen: list[Variant], seconds: Mapping[int, list[float]]) -> Iterator[Cost]:
    first: dict[str, int] = {}
    for place, variant in enumerate(chosen):
        base = seconds[first.setdefault(variant.question, place)]
        ratios = [own / other for own, other in zip(seconds[place], base, strict=True)]
        yield Cost(variant.question, variant.name, median(seconds[place]), median(ratios))


def _row(key: Column, mark: int) -> list[Column]:
    numbers = [(F.xxhash64(key, F.lit(mark + i)) % 100_000).alias(f"n{i}") for i in range(_COLUMNS // 2)]
    texts = [F.hex(F.xxhash64(key, F.lit(mark - i - 1))).alias(f"t{i}") for i in range(_COLUMNS // 2)]
    return [key.alias("id"), *numbers, *texts]


def _make(spark: SparkSession, work: Path, target: Target) -> None:
    """Even keys, sorted, in 16 files."""
    path = str(work / "before" / target.name)
    rows = spark.range(0, 2 * target.rows, 2, _FILES)
    builder = DeltaTable.create(spark).location(path).addColumns(rows.select(*_row(F.col("id"), 0)).schema)
    builder = builder.property("delta.enableDeletionVectors", str(target.vectors).lower())
    (builder.clusterBy("id") if target.clustered else builder).execute()
    rows.select(*_row(F.col("id"), 0)).write.format("delta").mode("append").save(path)
    for keys in ("narrow", "uniform", "new"):
        changes = _changes(spark, target, keys).repartition(4)
        changes.write.parquet(str(work / "changes" / target.name / keys))


def _changes(spark: SparkSession, target: Target, keys: str) -> DataFrame:
    """`_op`: U, D, or I; inserted keys are odd, or greater than all others."""
    count = target.rows // _SHARE
    numbers = spark.range(0, count)
    op = F.when(F.col("id") % 10 == 0, "D").when(F.col("id") % 10 == 1, "I").otherwise("U")
    if keys == "new":
        return numbers.select(*_row(2 * (target.rows + F.col("id")), 100), F.lit("I").alias("_op"))
    step = 1 if keys == "narrow" else _SHARE
    begin = target.rows // 2 if keys == "narrow" else 0
    even = 2 * (begin + step * F.col("id"))
    return numbers.select(*_row(F.when(op == "I", even + 1).otherwise(even), 100), op.alias("_op"))


def _run(spark: SparkSession, work: Path, variant: Variant) -> float:
    table = work / "table"
    copied(spark, work / "before" / variant.target.name, table)
    session = spark.newSession()
    for key, value in {"spark.sql.shuffle.partitions": "8", **variant.settings}.items():
        session.conf.set(key, value)
    changes = session.read.parquet(str(work / "changes" / variant.target.name / variant.keys))
    started = time.perf_counter()
    _apply(session, str(table), changes, variant)
    seconds = time.perf_counter() - started
    count = variant.target.rows // _SHARE
    added = count if variant.keys == "new" else len(range(1, count, 10)) - len(range(0, count, 10))
    rows = spark.read.format("delta").load(str(table)).count()
    if rows != variant.target.rows + added:
        raise WrongResultError(f"{variant}: expected {variant.target.rows + added} rows, found {rows}")
    return seconds


def _apply(session: SparkSession, path: str, changes: DataFrame, variant: Variant) -> None:
    if variant.how == "append":
        changes.drop("_op").write.format("delta").mode("append").save(path)
        return
    if variant.how == "overwrite":
        unchanged = session.read.format("delta").load(path).join(changes, "id", "left_anti")
        rows = unchanged.unionByName(changes.where("_op <> 'D'").drop("_op"))
        rows.write.format("delta").mode("overwrite").save(path)
        return
    condition = F.col("t.id") == F.col("s.id")
    if variant.between:
        span = changes.agg(F.min("id").alias("lo"), F.max("id").alias("hi")).collect()[0]
        condition &= F.col("t.id").between(span["lo"], span["hi"])
    values = {name: F.col(f"s.{name}") for name in changes.columns if name != "_op"}
    merge = DeltaTable.forPath(session, path).alias("t").merge(changes.alias("s"), condition)
    if variant.how == "merge":
        merge = merge.whenMatchedDelete(F.col("s._op") == "D").whenMatchedUpdate(set=dict(values))
    merge.whenNotMatchedInsert(F.col("s._op") != "D", values=dict(values)).execute()
