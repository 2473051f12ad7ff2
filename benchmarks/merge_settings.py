"""Measures the cost of each choice about Delta's MERGE by itself, at a moderate size.

The changes are a twentieth of the rows unless said otherwise: four fifths updates, the rest deletes and inserts in
equal parts. `narrow` keys are adjacent, as those of new orders are; `clusters` are eight such ranges; `uniform` keys
are spread over the whole table; `updates` are uniform, and consist only of updates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from pathlib import Path
from statistics import median

import pyarrow.compute as pc
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.checking import WrongResultError
from benchmarks.scenarios import scaled
from benchmarks.sessions import WORK, copied, fresh, session
from pgoutput_etl.changes.key_facts import interval, intervals

Progress = Callable[[str], None]
_ROWS, _LARGE, _FILES = 2_000_000, 8_000_000, 16
_SHARE = 20  # one row in 20 changes
_COLUMNS, _MANY_COLUMNS = 8, 60
_CLUSTERS = 8
_FEW = 200
_BY_EXECUTORS, _ON_STORAGE = "kept by executors", "kept on storage"


@dataclass(frozen=True, slots=True)
class Target:
    """A table before the batch, created once."""

    name: str
    rows: int
    vectors: bool = True
    clustered: bool = False
    columns: int = _COLUMNS


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to apply changes to a target. how: merge, merge_updates, merge_inserts, delete_apart (by a second MERGE),
    append, overwrite; keys: narrow, clusters, uniform, updates, new; ranges: of keys, in the condition; lists_keys: the
    condition has every key; share: one row in so many changes; computed: where the changes are kept once computed."""

    question: str
    name: str
    target: Target
    keys: str
    how: str = "merge"
    ranges: int = 0
    share: int = _SHARE
    lists_keys: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    computed: str = ""

    @property
    def count(self) -> int:
        return self.target.rows // self.share


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
    wide = Target("wide", rows // 4, columns=_MANY_COLUMNS)
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
        Variant("key ranges in the condition, narrow keys of a large table", "none", big, "narrow"),
        Variant("key ranges in the condition, narrow keys of a large table", "one", big, "narrow", ranges=1),
        Variant("key ranges in the condition, uniform keys of a large table", "none", big, "uniform"),
        Variant("key ranges in the condition, uniform keys of a large table", "one", big, "uniform", ranges=1),
        Variant(
            "key ranges in the condition, few clusters in a large table", "one", big, "clusters", ranges=1, share=400
        ),
        Variant(
            "key ranges in the condition, few clusters in a large table", "eight", big, "clusters", ranges=8, share=400
        ),
        *(
            Variant(
                f"condition, {_FEW} {keys} keys of a large table",
                name,
                big,
                keys,
                "merge",
                n,
                large // _FEW,
                lists_keys,
            )
            for keys in ("clusters", "uniform")
            for name, n, lists_keys in (("one range", 1, False), ("eight ranges", 8, False), ("list of keys", 0, True))
        ),
        *(
            Variant(f"few deletes, {target.columns} columns", name, target, "uniform", how)
            for target in (vectors, wide)
            for name, how in (("in the MERGE", "merge"), ("in a MERGE of their own", "delete_apart"))
        ),
        Variant("only updates, 8 columns: a DELETE clause", "yes", vectors, "updates"),
        Variant("only updates, 8 columns: a DELETE clause", "no", vectors, "updates", how="merge_updates"),
        Variant("only updates, 60 columns: a DELETE clause", "yes", wide, "updates"),
        Variant("only updates, 60 columns: a DELETE clause", "no", wide, "updates", how="merge_updates"),
        *shuffle_variants,
        Variant("shuffle partitions", "200, AQE off", vectors, "uniform", settings=no_aqe),
        *(
            Variant(
                f"changes of {target.columns} columns, computed once", name, target, "uniform", share=2, computed=name
            )
            for target in (vectors, wide)
            for name in (_BY_EXECUTORS, _ON_STORAGE)
        ),
        Variant("new rows only", "MERGE", vectors, "new"),
        Variant("new rows only", "MERGE that only inserts", vectors, "new", how="merge_inserts"),
        Variant("new rows only", "append", vectors, "new", how="append"),
        *(
            Variant(
                f"rewriting {target.columns} columns, 1 of {share} rows",
                how,
                target,
                "uniform",
                how.lower(),
                0,
                share,
            )
            for target in (vectors, wide)
            for share in (_SHARE, 2)
            for how in ("MERGE", "overwrite")
        ),
    ]


def measure_merge_settings(scale: float, runs: int, progress: Progress) -> list[Cost]:
    chosen = variants(scale)
    work = fresh(WORK / "merge")
    with session() as spark:
        spark.sparkContext.setCheckpointDir(str(work / "checkpoints"))
        for target in {variant.target for variant in chosen}:
            progress(f"a table of {target.rows:,} rows: {target.name}")
            _make(spark, work, target)
        for target, keys, share in {(variant.target, variant.keys, variant.share) for variant in chosen}:
            changes = _changes(spark, target, keys, target.rows // share)
            changes.repartition(4).write.parquet(str(_changes_path(work, target, keys, share)))
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


def _changes_path(work: Path, target: Target, keys: str, share: int) -> Path:
    return work / "changes" / target.name / keys / f"{share}"


def _row(key: Column, mark: int, columns: int) -> list[Column]:
    numbers = [(F.xxhash64(key, F.lit(mark + i)) % 100_000).alias(f"n{i}") for i in range(columns // 2)]
    texts = [F.hex(F.xxhash64(key, F.lit(mark - i - 1))).alias(f"t{i}") for i in range(columns // 2)]
    return [key.alias("id"), *numbers, *texts]


def _make(spark: SparkSession, work: Path, target: Target) -> None:
    """Even keys, sorted, in 16 files."""
    path = str(work / "before" / target.name)
    rows = spark.range(0, 2 * target.rows, 2, _FILES)
    rows = rows.select(*_row(F.col("id"), 0, target.columns))
    builder = DeltaTable.create(spark).location(path).addColumns(rows.schema)
    builder = builder.property("delta.enableDeletionVectors", str(target.vectors).lower())
    (builder.clusterBy("id") if target.clustered else builder).execute()
    rows.write.format("delta").mode("append").save(path)


def _changes(spark: SparkSession, target: Target, keys: str, count: int) -> DataFrame:
    """`_op`: U, D, or I; inserted keys are odd, or greater than all others."""
    numbers = spark.range(0, count)
    op = F.when(F.col("id") % 10 == 0, "D").when(F.col("id") % 10 == 1, "I").otherwise("U")
    op = F.lit("U") if keys == "updates" else op
    if keys == "new":
        key = 2 * (target.rows + F.col("id"))
        return numbers.select(*_row(key, 100, target.columns), F.lit("I").alias("_op"))
    step = target.rows // count
    position = step * F.col("id")
    if keys == "narrow":
        position = target.rows // 2 + F.col("id")
    elif keys == "clusters":  # adjacent keys from the beginning of each eighth of the table
        size = -(-count // _CLUSTERS)
        position = (F.col("id") / size).cast("long") * (target.rows // _CLUSTERS) + F.col("id") % size
    even = 2 * position
    key = F.when(op == "I", even + 1).otherwise(even)
    return numbers.select(*_row(key, 100, target.columns), op.alias("_op"))


def _run(spark: SparkSession, work: Path, variant: Variant) -> float:
    table = work / "table"
    copied(spark, work / "before" / variant.target.name, table)
    session = spark.newSession()
    for key, value in {"spark.sql.shuffle.partitions": "8", **variant.settings}.items():
        session.conf.set(key, value)
    changes = session.read.parquet(str(_changes_path(work, variant.target, variant.keys, variant.share)))
    started = time.perf_counter()
    _apply(session, str(table), changes, variant)
    seconds = time.perf_counter() - started
    count = variant.count
    added = count if variant.keys == "new" else len(range(1, count, 10)) - len(range(0, count, 10))
    added = 0 if variant.keys == "updates" else added
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
    if variant.computed:
        changes = changes.localCheckpoint() if variant.computed == _BY_EXECUTORS else changes.checkpoint()
    condition = F.col("t.id") == F.col("s.id")
    if variant.ranges:
        keys = changes.select("id").toArrow().column(0)
        ranges = intervals(keys) if variant.ranges > 1 else interval(*pc.min_max(keys).as_py().values())
        condition &= reduce(or_, (F.col("t.id").between(least, greatest) for least, greatest in ranges))
    if variant.lists_keys:
        condition &= F.col("t.id").isin(changes.select("id").toArrow().column(0).to_pylist())
    if variant.how == "delete_apart":
        gone = changes.where("_op = 'D'")
        DeltaTable.forPath(session, path).alias("t").merge(gone.alias("s"), condition).whenMatchedDelete().execute()
        changes = changes.where("_op <> 'D'")
    values = {name: F.col(f"s.{name}") for name in changes.columns if name != "_op"}
    merge = DeltaTable.forPath(session, path).alias("t").merge(changes.alias("s"), condition)
    if variant.how == "merge":
        merge = merge.whenMatchedDelete(F.col("s._op") == "D")
    if variant.how in ("merge", "merge_updates", "delete_apart"):
        merge = merge.whenMatchedUpdate(set=dict(values))
    merge.whenNotMatchedInsert(F.col("s._op") != "D", values=dict(values)).execute()
