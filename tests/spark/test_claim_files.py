"""Claims as files: what is kept of them, and whom they keep out. On S3, with real runs, test_s3.py has them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.claim_files import ClaimFiles, claim_files
from pgoutput_etl.claims import CLAIMED, LEASE, RELEASED, Process, newest
from pgoutput_etl.errors import RunError
from pgoutput_etl.spark import temporarily

pytestmark = pytest.mark.spark


def row(
    batch: int, attempt: int = 1, status: str = CLAIMED, ago: timedelta = timedelta(0), **more: Any
) -> dict[str, Any]:
    of_process = {"machine": "elsewhere boot pid:[1]", "pid": 4711, "started": 99}
    at = datetime.now(timezone.utc) - ago
    return {
        "batch": batch,
        "attempt": attempt,
        "run": f"{batch}.{attempt}",
        **of_process,
        "status": status,
        "at": at,
        **more,
    }


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.json"))


def files_of(spark: SparkSession, folder: Path, source: str, said: list[str] | None = None) -> ClaimFiles:
    return ClaimFiles(spark, str(folder), source, ([] if said is None else said).append)


def test_a_claim_is_made_once_says_its_last_word_and_goes_with_the_batches(spark: SparkSession, tmp_path: Path) -> None:
    said: list[str] = []
    files = files_of(spark, tmp_path, "shop", said)
    assert files.read(1) == []
    mine = row(1)
    assert files.make(mine)
    assert not files.make(row(1, run="another"))
    assert files.make(mine), "tried again, as the answer was lost"
    assert files.read(1) == [mine]
    released = row(1, status=RELEASED)
    files.renew(released)
    assert files.read(2) == [released]
    assert files.read(3) == []
    for batch in (2, 3, 4):
        assert files.make(row(batch))
    assert names(tmp_path) == ["shop/3.1.json", "shop/4.1.json"]
    claim = newest(files.read(4))
    assert claim is not None
    assert (claim.batch, claim.process, claim.at.tzinfo) == (
        4,
        Process("elsewhere boot pid:[1]", 4711, 99),
        timezone.utc,
    )
    assert all("two runs that start within the same second may both work" in line for line in said)
    assert said, "a local file system doesn't know the condition that S3 knows"


def test_a_run_of_another_source_keeps_out_for_as_long_as_it_is_at_work(spark: SparkSession, tmp_path: Path) -> None:
    shop, other = files_of(spark, tmp_path, "shop"), files_of(spark, tmp_path, "other")
    assert shop.make(row(7))
    with pytest.raises(RunError, match="a run of another source, shop, is at work on the same ledger: process 4711 of"):
        other.make(row(1))
    assert names(tmp_path) == ["shop/7.1.json"]
    shop.renew(row(7, ago=LEASE * 1.1))
    assert other.make(row(1)), "the other was not heard of for too long"
    shop.renew(row(7, status=RELEASED))
    assert other.make(row(2))


def test_they_are_for_storage_that_does_not_keep_drivers_apart(spark: SparkSession, tmp_path: Path) -> None:
    assert claim_files(spark, str(tmp_path), "shop") is None
    assert claim_files(spark, "abfss://tables@lake.dfs.core.windows.net/shop", "shop") is None
    with temporarily(spark, {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"}):
        assert claim_files(spark, "s3a://lake/tables", "shop") is None
