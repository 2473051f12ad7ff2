"""The simulation's ledger, targets, and commits behave as Delta's: the same files leave the same records, and the same
commits are refused."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import basename
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from tests.simulation.scheduler import Scheduler
from tests.simulation.storage import Chances, Commit, ConflictError, Faults, Kind, Storage, Writer
from tests.simulation.world import Scenario, World
from tests.support.jobs import Nights

pytestmark = pytest.mark.spark

QUIET = replace(Scenario.of(0), is_atomic=True, chances=Chances(switch=0.0), max_transactions=None)

_TABLE = ("oid", "schema", "table", "last_commit_lsn", "status", "key", "rows", "snapshot", "last_row")

_FILE = (
    *("batch", "file", "status", "offset", "consumed", "prefix_hash", "same_as", "unfinished", "framing"),
    *("applied", "waiting", "aborted", "quarantined", "resent", "refused", "first_commit_lsn", "last_commit_lsn"),
)

_TRANSACTION = ("batch", "xid", "fate", "commit_lsn", "commit_ts", "file", "unit", "units", "aborted", "scope")


def records(rows: Callable[[str], list[dict[str, Any]]]) -> dict[str, list[Any]]:
    """What the ledger says after a night, without paths and times."""
    batches = sorted(rows("batches"), key=lambda row: (row["batch"], row["status"]))
    return {
        "batches": [
            (row["batch"], row["status"], row["last_commit_lsn"], row["state"], tables_of(row)) for row in batches
        ],
        "files": sorted((basename(r["path"]), *(r[name] for name in _FILE)) for r in rows("files")),
        "transactions": sorted(repr([row[name] for name in _TRANSACTION]) for row in rows("transactions")),
        "open": sorted((r["batch"], r["file"], r["unit"], r["ordinal"]) for r in rows("open_transactions")),
        "relations": sorted((r["batch"], r["oid"], r["table"], r["from_ordinal"]) for r in rows("relations")),
    }


def tables_of(batch: dict[str, Any]) -> list[Any]:
    tables = sorted(batch["tables"] or (), key=lambda table: table["oid"])
    return [tuple(repr(table[name]) for name in _TABLE) for table in tables]


@pytest.mark.soak
@pytest.mark.parametrize("number", range(60))
def test_the_same_files_leave_the_same_records(nights: Nights, number: int) -> None:
    """Night after night, with files that grow."""
    world, chance = World(replace(QUIET, archive=number)), random.Random(number)
    while not world.receiver.is_done:
        for _ in range(chance.randrange(1, 6)):
            world.receiver.act()
        copy_files(world, nights.job.landing)
        nights.job.run()
        assert world.run_alone().startswith("done")
        assert records(nights.ledger) == records(world.promises.rows)


def copy_files(world: World, landing: Path) -> None:
    """Writes the files that have changed, and removes those that are gone."""
    contents = {basename(path): content for path, content in world.folder.contents.items()}
    for name, content in contents.items():
        path = landing / name
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
    for path in landing.iterdir():
        if path.name not in contents:
            path.unlink()


@dataclass(frozen=True, slots=True)
class Write:
    """A commit of one row. mode: append, overwrite, or merge. transaction: Delta's identifier, if it has one."""

    mode: str
    value: int
    transaction: str | None = None


def in_delta(spark: SparkSession, folder: Path, first: Write, second: Write) -> list[int] | None:
    """The values in a table after two writes, of which the first has read the table before the second one commits. None
    if the first is refused."""
    table, begun, go_on = str(folder / "table"), folder / "begun", folder / "go on"
    spark.createDataFrame([(0,)], "v int").write.format("delta").save(table)

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            begun.touch()
            while not go_on.exists():
                time.sleep(0.01)
            yield batch

    with ThreadPoolExecutor(1) as pool:
        rows = spark.createDataFrame([(first.value,)], "v int").mapInArrow(wait, "v int")
        writing = pool.submit(write, spark, table, rows, first)
        while not begun.exists() and not writing.done():
            time.sleep(0.01)
        write(spark, table, spark.createDataFrame([(second.value,)], "v int"), second)
        go_on.touch()
        error = writing.exception()
    if error is not None:
        assert "Concurrent" in f"{type(error).__name__} {error}"
        return None
    return sorted(row["v"] for row in spark.read.format("delta").load(table).collect())


def write(spark: SparkSession, table: str, rows: DataFrame, what: Write) -> None:
    if what.mode == "merge":
        merge = DeltaTable.forPath(spark, table).alias("t").merge(rows.alias("s"), "t.v = s.v")
        merge.whenNotMatchedInsertAll().execute()
        return
    writer = rows.write.format("delta").mode(what.mode)
    if what.transaction is not None:
        writer = writer.option("txnAppId", what.transaction).option("txnVersion", "1")
    writer.save(table)


def in_simulation(first: Write, second: Write, is_atomic: bool) -> list[int] | None:
    scheduler = Scheduler(random.Random(0))
    storage = Storage(scheduler, Faults(random.Random(0), Chances(switch=0.0)), is_atomic)
    world = World(QUIET)
    writer = Writer(storage, world.new_process(random.Random(0)))
    writer.commit("table", lambda _: Commit("create", Kind.METADATA, lambda _: [0]))

    def commit_of(what: Write) -> Commit:
        kind = Kind.APPEND if what.mode == "append" else Kind.CHANGE
        transaction = None if what.transaction is None else (what.transaction, 1)
        keeps = what.mode != "overwrite"
        return Commit(what.mode, kind, lambda old: [*(old if keeps else ()), what.value], transaction)

    def second_commits(_: object) -> Commit:
        if storage.table("table").version == 0:
            writer.commit("table", lambda _: commit_of(second))
        return commit_of(first)

    try:
        writer.commit("table", second_commits)
    except ConflictError:
        return None
    table = storage.table("table")
    return sorted(table.content(table.version))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Write("append", 1), Write("append", 2)),
        (Write("append", 1, "a"), Write("append", 2, "b")),
        (Write("append", 1, "a"), Write("append", 1, "a")),
        (Write("overwrite", 1), Write("append", 2)),
        (Write("merge", 1), Write("append", 2)),
    ],
    ids=lambda write: f"{write.mode} {write.transaction or ''}".strip(),
)
def test_of_two_concurrent_commits_the_same_are_refused(
    spark: SparkSession, tmp_path: Path, first: Write, second: Write
) -> None:
    expected = in_delta(spark, tmp_path, first, second)
    assert [in_simulation(first, second, is_atomic) for is_atomic in (True, False)] == [expected, expected]
