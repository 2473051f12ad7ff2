"""Random changes of a table's schema on a real server: what the archive comes to equals what the server holds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgoutput_etl.replay import Replay
from tests.e2e.schema_history import SchemaHistory
from tests.postgres import Server, Version
from tests.truth import assert_equals_truth

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


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_history_of_a_tables_schema(seed: int, servers: dict[Version, Server], tmp_path: Path) -> None:
    version, protocol, options = OPTIONS[seed % len(OPTIONS)]
    server, slot = servers[version], f"s{seed}"
    server.create_slot(slot)
    replay = Replay()
    with server.connect() as connection:
        history = SchemaHistory(connection, random.Random(seed), name=f"t{seed}")
        history.create()
        for step in range(STEPS):
            history.step()
            if step % 8 == 7:
                landed, truth = tmp_path / f"{step:02}.bin", tmp_path / "truth.csv"
                server.recvlogical(slot, landed, publications=["p"], proto_version=protocol, **options)
                server.copy_csv(history.full_name, truth)
                replay.add_file(str(landed), landed.read_bytes())
                tables = replay.tables(declared={history.full_name: history.declared})
                oid = replay.assembly.relations.name_holders()[history.schema, history.name]
                try:
                    assert_equals_truth(tables[oid].rows, truth)
                except AssertionError as error:
                    raise AssertionError(f"{error}\n" + "\n".join(history.log[-60:])) from None
