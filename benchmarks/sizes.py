"""Runs one night of each size that people have, in a separate process, with a driver of 4 GB."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.checking import WrongResultError, check_tables, expected_fingerprints
from benchmarks.corpora import Corpus
from benchmarks.event_log import event_log, logged_work, now
from benchmarks.jobs import configured, run_job
from benchmarks.landing_files import Landed
from benchmarks.large_table import LargeTable
from benchmarks.long_ledger import LongLedger
from benchmarks.pgbench_corpus import long_pgbench, pgbench
from benchmarks.processes import Role, cpu_seconds, in_new_process, watched
from benchmarks.scenarios import scaled
from benchmarks.sessions import WORK, fresh, linked, session
from benchmarks.tables_corpus import many_tables
from benchmarks.wide_corpus import wide
from pgoutput_etl.work.upkeep.request import MaintainRequest
from pgoutput_etl.work.upkeep.run import maintain

Progress = Callable[[str], None]
_MB = 1e6
_LEDGER_TABLES, _LEDGER_FILES = 200, 100


@dataclass(frozen=True, slots=True)
class SizedNight:
    """One run. MB: peaks of resident memory; total: of all processes at one time. stages: seconds by stage."""

    size: str
    messages: int
    files: int
    bytes: int
    seconds: float
    stages: dict[str, float]
    jobs: int
    cpu: float
    total: float
    jvm: float
    workers: float
    driver_python: float


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A night that has landed. check: raises WrongResultError."""

    landed: Landed
    check: Callable[[SparkSession], None]


@dataclass(frozen=True, slots=True)
class _Place:
    """The folders of a size, and its scale."""

    work: Path
    scale: float

    @property
    def landing(self) -> Path:
        return self.work / "landing"

    @property
    def tables(self) -> Path:
        return self.work / "tables"

    def run(self, spark: SparkSession, progress: Progress) -> tuple[float, dict[str, float]]:
        run, _ = run_job(spark, configured(self.landing, self.tables), progress)
        return run.seconds, run.stages


def _corpus(make: Callable[[float], Corpus], spark: SparkSession, place: _Place, progress: Progress) -> _Prepared:
    corpus = make(place.scale)
    linked(corpus.first, place.landing)
    place.run(spark, progress)
    linked(corpus.second, place.landing)
    expected = expected_fingerprints(spark, corpus.tables)
    return _Prepared(corpus.landed, lambda spark: check_tables(spark, place.tables, corpus.tables, expected))


def _ten_gigabytes(spark: SparkSession, place: _Place, progress: Progress) -> _Prepared:
    transactions = scaled(32_400_000, place.scale)
    progress("writing the archive")
    landed = long_pgbench(place.work, transactions, scaled(1_000_000, place.scale), 160)
    linked(place.work / "first", place.landing)
    place.run(spark, progress)
    linked(place.work / "second", place.landing)
    return _Prepared(landed, partial(_check_balances, tables=place.tables / "public", transactions=transactions))


def _check_balances(spark: SparkSession, tables: Path, transactions: int) -> None:
    columns = {"accounts": "abalance", "tellers": "tbalance", "branches": "bbalance", "history": "delta"}
    frames = {name: spark.read.format("delta").load(str(tables / f"pgbench_{name}")) for name in columns}
    sums = {name: frames[name].agg(F.sum(column)).head()[0] for name, column in columns.items()}  # type: ignore[index]
    rows = frames["history"].count()
    if len({*sums.values()}) != 1 or rows != transactions:
        raise WrongResultError(f"expected {transactions} rows of history and equal sums, found {rows}, {sums}")


def _large_table(spark: SparkSession, place: _Place, progress: Progress) -> _Prepared:
    rows = scaled(100_000_000, place.scale, 200_000)
    table, path = LargeTable(rows, rows // 1000), place.tables / "public/orders"
    table.land_first(place.work)
    linked(place.work / "first", place.landing)
    place.run(spark, progress)
    progress(f"appending {rows:,} rows")
    table.append_rest(spark, path)
    table.land_one_update(place.work)
    linked(place.work / "one", place.landing)
    place.run(spark, progress)
    landed = table.land_night(place.work, 4)
    linked(place.work / "second", place.landing)
    return _Prepared(landed, lambda spark: table.check(spark, path))


def _ledger(
    nights: int, spark: SparkSession, place: _Place, progress: Progress, is_maintained: bool = False
) -> _Prepared:
    """One table changes, so that the ledger is most of the work."""
    corpus = many_tables(2, _LEDGER_FILES, 1)
    linked(corpus.first, place.landing)
    place.run(spark, progress)
    ledger = LongLedger(place.tables / "_pgoutput_etl", _LEDGER_FILES, _LEDGER_TABLES)
    ledger.grow(scaled(nights, place.scale, 10), progress)
    if is_maintained:
        config = configured(place.landing, place.tables)
        maintain(spark, config, MaintainRequest(only=("optimize", "checkpoint"), execute=True), progress)
    linked(corpus.second, place.landing)
    expected = expected_fingerprints(spark, corpus.tables)
    return _Prepared(corpus.landed, lambda spark: check_tables(spark, place.tables, corpus.tables, expected))


_Prepare = Callable[[SparkSession, _Place, Progress], _Prepared]

SIZES: dict[str, tuple[str, _Prepare]] = {
    "tables": ("500 tables change", partial(_corpus, lambda scale: many_tables(scaled(500, scale, 2), 1))),
    "files": (
        "20,000 files",
        partial(
            _corpus,
            lambda scale: pgbench(scaled(20_000, scale), scaled(100_000, scale), scaled(20_000, scale), name="many"),
        ),
    ),
    "night": ("10 GB", _ten_gigabytes),
    "file": ("one file of 2 GiB", partial(_corpus, lambda scale: wide(scaled(1_919_000, scale, 1000), 1))),
    "rows": ("0.1 % of 100,000,000 rows", _large_table),
    "short-ledger": ("a ledger of 10 nights", partial(_ledger, 10)),
    "ledger": ("a ledger of 730 nights", partial(_ledger, 730)),
    "maintained-ledger": ("the same, after maintenance", partial(_ledger, 730, is_maintained=True)),
}


def measure_sizes(scale: float, only: Sequence[str], progress: Progress) -> list[SizedNight]:
    """only: names of SIZES; all if empty. Deletes the tables that it wrote."""
    results = []
    for name in only or SIZES:
        progress(name)
        try:
            results.append(in_new_process(_measure, name, scale))
        finally:
            shutil.rmtree(_work(name), ignore_errors=True)
    return results


def _work(name: str) -> Path:
    return WORK / "sizes" / name


def _measure(name: str, scale: float) -> SizedNight:
    place = _Place(fresh(_work(name)), scale)
    title, prepare = SIZES[name]
    with session(settings=event_log(place.work / "events")) as spark:
        prepared = prepare(spark, place, print)
        before, began = cpu_seconds(), now()
        with watched() as peaks:
            seconds, stages = place.run(spark, print)
        ended, cpu = now(), (cpu_seconds() - before).total()
        prepared.check(spark)
    jobs = len(logged_work(place.work / "events").between(began, ended).jobs)
    sizes = [peaks.total, *(peaks.of(role) for role in (Role.DRIVER_JVM, Role.WORKER, Role.DRIVER_PYTHON))]
    landed = prepared.landed
    counts = (landed.messages, landed.files, landed.bytes)
    return SizedNight(title, *counts, seconds, stages, jobs, cpu, *(size / _MB for size in sizes))
