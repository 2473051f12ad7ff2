"""Measures nights on an S3 server that answers every request late: seconds, and requests by kind and by place.

The S3 server is moto, which records the requests and waits before it answers each. The first night creates the tables;
each later one updates some rows in each table. Delta's cache is cleared before every night.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from statistics import median
from typing import Any, cast

from pyspark.sql import SparkSession

from benchmarks.jobs import run_job
from benchmarks.sessions import WORK, fresh, session
from benchmarks.small_nights import small_night
from pgoutput_etl.config.settings import Config, load_config
from pgoutput_etl.console import no_progress
from tests.support.s3_lake import BUCKET, CONFIG, KEYS, SETTINGS, Lake, lake, packages

Progress = Callable[[str], None]
Figures = dict[str, float]  # of a night: seconds, processor seconds of the server, and numbers of requests
_DELAY = 0.05  # seconds
_TABLES = (1, 20, 200)
_KINDS = ("GET", "HEAD", "LIST", "PUT", "DELETE", "POST")
# Patterns of "/bucket/key"; the first that matches decides.
_PLACES = {
    "claims": "/_pgoutput_etl/_claims(/|$)",
    "ledger": "/_pgoutput_etl/",
    "landing": f"^/{BUCKET}/landing/",
    "logs of tables": "/_delta_log(/|$)",
    "data of tables": "",
}


def measure_late_storage(scale: float, runs: int, progress: Progress) -> list[dict[str, Any]]:
    """Nights with growing numbers of tables, as medians for the nights that change tables; then, for each kind of
    night, the cost of a further table."""
    with lake(fresh(WORK / "late")) as s3, _session_on(s3) as spark:
        progress("warming up")
        list(_nights(spark, s3, 2, "warm", 1))
        s3.control(delay=_DELAY)
        measured: dict[str, dict[int, Figures]] = {"creates": {}, "changes": {}}
        for tables in dict.fromkeys(max(1, round(count * scale)) for count in _TABLES):
            progress(f"{tables} tables")
            created, *changed = _nights(spark, s3, tables, f"of{tables}", runs)
            measured["creates"][tables] = created
            measured["changes"][tables] = {name: median(night[name] for night in changed) for name in created}
    rows = [{"night": night, "tables": n, **figures} for night, ns in measured.items() for n, figures in ns.items()]
    return rows + [
        {"night": f"{night}: each further table", "tables": 1, **_further(ns)} for night, ns in measured.items()
    ]


def _session_on(s3: Lake) -> AbstractContextManager[SparkSession]:
    included, excluded = packages()
    jars = {"spark.jars.packages": included, "spark.jars.excludes": excluded}
    return session(settings={**s3.config().spark, **jars})


def _nights(spark: SparkSession, s3: Lake, tables: int, name: str, runs: int) -> Iterator[Figures]:
    """A night that creates the tables, and further ones that change them."""
    config = _config(name)
    for night in range(1 + runs):
        s3.put(f"landing/{name}/{night:04}.bin", small_night(night, tables))
        cast(Any, spark)._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        before = s3.served()
        seconds = run_job(spark, config, no_progress)[0].seconds
        after = s3.served()
        requests = after.requests[len(before.requests) :]
        kinds, places = [kind for kind, _ in requests], [place_of(path) for _, path in requests]
        yield {
            "seconds": seconds,
            "server": after.processor_seconds - before.processor_seconds,
            "requests": len(requests),
            **{kind: kinds.count(kind) for kind in _KINDS},
            **{place: places.count(place) for place in _PLACES},
        }


def _config(name: str) -> Config:
    overrides = [f"source.landing=s3a://{BUCKET}/landing/{name}", f"target.root=s3a://{BUCKET}/tables-{name}"]
    return load_config(str(CONFIG), [*overrides, *SETTINGS], KEYS)


def place_of(path: str) -> str:
    """path: /bucket/key, or a prefix of it."""
    return next(place for place, pattern in _PLACES.items() if re.search(pattern, path))


def _further(nights: dict[int, Figures]) -> Figures:
    least, most = min(nights), max(nights)
    return {name: (nights[most][name] - nights[least][name]) / max(most - least, 1) for name in nights[least]}
