"""Claims as objects on an S3 server, written by Spark's Java without a session, which starts in seconds.

tests/spark/long/test_s3.py tests them in real runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, cast

import pytest
from py4j import java_gateway
from py4j.protocol import get_return_value
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pgoutput_etl.errors import RunError
from pgoutput_etl.ledger.claim_files import ClaimFiles, claim_files
from pgoutput_etl.ledger.claims import CLAIMED, CLOCKS_DIFFER, RELEASED, newest
from pgoutput_etl.machine import Process
from pgoutput_etl.spark.object_folder import ObjectFolder
from tests.support.s3_lake import BUCKET, KEY, SECRET, Lake, lake, packages

pytestmark = pytest.mark.spark


@dataclass(slots=True)
class Java:
    """The parts of a session that claim_files uses: Java with Hadoop's S3A, and storage settings."""

    _jvm: Any
    settings: dict[str, str]

    @property
    def _jsparkSession(self) -> Java:  # noqa: N802
        return self

    def sessionState(self) -> Java:  # noqa: N802
        return self

    def newHadoopConf(self) -> Any:  # noqa: N802
        hadoop = self._jvm.org.apache.hadoop.conf.Configuration()
        for name, value in self.settings.items():
            hadoop.set(f"fs.s3a.{name}", value)
        return hadoop


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    included, excluded = packages()
    conf = SparkConf(loadDefaults=False).set("spark.jars.packages", included).set("spark.jars.excludes", excluded)
    gateway = launch_gateway(conf.set("spark.driver.memory", "512m"))  # type: ignore[no-untyped-call]
    gateway.jvm.org.apache.logging.log4j.core.config.Configurator.setRootLevel(
        gateway.jvm.org.apache.logging.log4j.Level.ERROR
    )
    with pytest.MonkeyPatch.context() as patch:
        # Spark's translation of errors would look this JVM's objects up in the JVM of an earlier test's session.
        patch.setattr(java_gateway, "get_return_value", get_return_value)
        yield gateway.jvm
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(20)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lake(tmp_path_factory.mktemp("s3")) as s3:
        yield s3


@pytest.fixture
def root(request: pytest.FixtureRequest, server: Lake) -> str:
    server.control()
    return f"ledgers/{request.node.name}"


def folder(jvm: Any, server: Lake, root: str, **more: str) -> ObjectFolder:
    at = {"endpoint": server.url, "endpoint.region": "us-east-1", "path.style.access": "true"}
    settings = {**at, "access.key": KEY, "secret.key": SECRET, "impl.disable.cache": "true", **more}
    return ObjectFolder(cast(SparkSession, Java(jvm, settings)), f"s3a://{BUCKET}/{root}/_claims")


def files(
    jvm: Any, server: Lake, root: str, source: str = "shop", lines: list[str] | None = None, **more: str
) -> ClaimFiles:
    return ClaimFiles(folder(jvm, server, root, **more), source, ([] if lines is None else lines).append)


def row(batch: int, status: str = CLAIMED, ago: timedelta = timedelta(0), run: str = "mine") -> dict[str, Any]:
    process = {"machine": "elsewhere boot pid:[1]", "pid": 4711, "started": 99}
    at = datetime.now(timezone.utc) - ago
    return {"batch": batch, "attempt": 1, "run": run, **process, "status": status, "at": at}


def names(server: Lake, root: str) -> list[str]:
    """Without the markers that S3A leaves for empty folders."""
    objects = server.objects(root)
    return sorted(name.removeprefix(f"{root}/_claims/") for name in objects if not name.endswith("/"))


def test_one_of_two_simultaneous_claims_succeeds(jvm: Any, server: Lake, root: str) -> None:
    server.control(meet=f"PUT /{BUCKET}/{root}/_claims/shop/1.1.json")
    runs = ["one", "two"]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda run: files(jvm, server, root).make(row(1, run=run)), runs))
    assert sorted(results) == [False, True]
    [claim] = files(jvm, server, root).read(1)
    assert claim["run"] == runs[results.index(True)]


def test_both_succeed_with_s3as_default(jvm: Any, server: Lake, root: str) -> None:
    """Delta's log store commits that way. If this fails, S3A puts on condition, and claim_files.py can go."""
    storage = folder(jvm, server, root)
    path = storage._path("0.json")
    both = [storage._files.create(path, False) for _ in range(2)]
    for number, stream in enumerate(both):
        stream.write(bytearray(json.dumps({"at": "2026-01-01T00:00:00+00:00", "n": number}).encode()))
        stream.close()
    assert json.loads(storage.read("0.json") or "")["n"] == 1, "the first is lost without an error"


def test_a_claim_is_released_and_deleted_after_later_batches(jvm: Any, server: Lake, root: str) -> None:
    lines: list[str] = []
    shop = files(jvm, server, root, lines=lines)
    assert shop.read(1) == []
    mine = row(1)
    assert shop.make(mine)
    assert not shop.make(row(1, run="another"))
    assert shop.make(mine), "tried again, as the answer was lost"
    assert shop.read(1) == [mine]
    released = row(1, status=RELEASED)
    shop.renew(released)
    assert shop.read(2) == [released]
    assert shop.read(3) == []
    for batch in (2, 3, 4):
        assert shop.make(row(batch))
    assert names(server, root) == ["shop/3.1.json", "shop/4.1.json"]
    claim = newest(shop.read(4))
    assert claim is not None
    assert (claim.batch, claim.process) == (4, Process("elsewhere boot pid:[1]", 4711, 99))
    assert lines == []


def test_a_working_run_of_another_source_blocks_the_ledger(jvm: Any, server: Lake, root: str) -> None:
    shop, other = files(jvm, server, root), files(jvm, server, root, "other")
    assert shop.make(row(7))
    with pytest.raises(RunError, match="a run of another source, shop, is using the same ledger: process 4711 of"):
        other.make(row(1))
    assert names(server, root) == ["shop/7.1.json"]
    shop.renew(row(7, ago=CLOCKS_DIFFER * 1.1))
    assert other.make(row(1)), "the other is dead"
    shop.renew(row(7, status=RELEASED))
    assert other.make(row(2))


@pytest.mark.parametrize(
    ("conditional", "setting", "expected"),
    [
        (False, "true", "this storage ignores the condition of a conditional put: two runs that start"),
        (True, "false", "Spark's S3 client has no conditional put, which s3a has since Hadoop 3.4.2: two runs"),
    ],
)
def test_missing_conditional_puts_are_reported(
    jvm: Any, server: Lake, root: str, conditional: bool, setting: str, expected: str
) -> None:
    server.control(conditional=conditional)
    lines: list[str] = []
    shop = files(jvm, server, root, lines=lines, **{"create.conditional.enabled": setting})
    assert shop.make(row(1))
    [line] = lines
    assert line.startswith(expected)
    assert not shop.make(row(1, run="another")), "a later claim is refused in any case"


def test_claim_files_are_only_for_storage_that_needs_them(spark: SparkSession) -> None:
    assert claim_files(spark, "/warehouse/_pgoutput_etl", "shop") is None
    assert claim_files(spark, "abfss://tables@lake.dfs.core.windows.net/shop", "shop") is None
    session = spark.newSession()
    session.conf.set("spark.delta.logStore.s3a.impl", "io.delta.storage.S3DynamoDBLogStore")
    assert claim_files(session, "s3a://lake/tables", "shop") is None
