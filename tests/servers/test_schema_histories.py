"""Random schema changes of a table on a real server: a replay of the archive equals the server's table."""

from __future__ import annotations

import glob
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.replay.mirror import Replay
from tests.support.jobs import Job
from tests.support.servers.postgres import Server, Version
from tests.support.servers.schema_history import SchemaHistory
from tests.support.truth import assert_equals_truth

pytestmark = pytest.mark.e2e

STEPS = 24
OPTIONS: list[tuple[Version, int, dict[str, str]]] = [
    (18, 1, {}),
    (18, 4, {"streaming": "parallel", "binary": "true"}),
    (16, 2, {"streaming": "on"}),
    (16, 3, {"streaming": "on", "binary": "true"}),
]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[Version, Server]]:
    with Server(version=16) as old, Server(version=18) as new:
        for server in (old, new):
            server.psql("create schema other; create publication p for all tables")
        yield {16: old, 18: new}


SEEDS = [pytest.param(seed, marks=() if seed < 4 else pytest.mark.soak) for seed in range(40)]


@pytest.fixture
def landed(tmp_path: Path) -> Path:
    folder = tmp_path / "landed"
    folder.mkdir()
    return folder


def nights_of(seed: int, servers: dict[Version, Server], landed: Path) -> Iterator[SchemaHistory]:
    """Yields the history after every eight steps, when the slot's new changes have landed as another file."""
    version, protocol, options = OPTIONS[seed % len(OPTIONS)]
    server, slot = servers[version], f"{landed.parent.name}_{seed}".lower()[-40:]
    server.create_slot(slot)
    with server.connect() as connection:
        history = SchemaHistory(connection, random.Random(seed), name=f"{seed} {slot[-16:]} t")
        history.create()
        for step in range(1, STEPS + 1):
            history.step()
            if step % 8 == 0:
                file = landed / f"{step:02}.bin"
                server.recvlogical(slot, file, publications=["p"], proto_version=protocol, **options)
                server.copy_csv(history.full_name, landed.parent / "truth.csv")
                yield history
        connection.execute(f"select pg_drop_replication_slot('{slot}')".encode())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_history_of_a_tables_schema(seed: int, servers: dict[Version, Server], landed: Path) -> None:
    replay = Replay()
    files: set[Path] = set()
    for history in nights_of(seed, servers, landed):
        for file in sorted(set(landed.iterdir()) - files):
            replay.add_file(str(file), file.read_bytes())
            files.add(file)
        tables = replay.tables(declared={history.full_name: history.declared})
        oid = replay.name_holders()[history.schema, history.name]
        assert_holds(tables[oid].rows, landed, history)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
def test_a_random_history_through_the_job(
    seed: int, servers: dict[Version, Server], landed: Path, spark: SparkSession, tmp_path: Path
) -> None:
    job = Job(spark, tmp_path, landed)
    for history in nights_of(seed, servers, landed):
        columns = {name: "added" if old is None else {"renamed_from": old} for name, old in history.declared.items()}
        rules = [{"match": f"*.{glob.escape(history.name)}", "columns": columns}] if columns else []
        summary = job.run(f"tables={json.dumps(rules)}")
        assert [table.held for table in summary.tables if table.held] == []
        assert_holds(job.rows(history.schema, history.name), landed, history)


def assert_holds(rows: list[dict[str, Any]], landed: Path, history: SchemaHistory) -> None:
    try:
        assert_equals_truth(rows, landed.parent / "truth.csv")
    except AssertionError as error:
        raise AssertionError(f"{error}\n" + "\n".join(history.log[-60:])) from None
