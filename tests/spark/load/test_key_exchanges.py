"""Rows that exchange their keys within a transaction, in every mode and by every way of writing."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import Mode
from pgoutput_etl.replay.mirror import Replay
from tests.spark.load.test_modes import assert_kept, in_modes
from tests.support.deferred_keys import COLUMNS, DeferredKeys
from tests.support.jobs import Job
from tests.support.small_archives import Messages, copydata, transaction
from tests.support.ways_of_writing import PARAMETERS, write_as

pytestmark = pytest.mark.spark

MODES = {f"public.{mode.value}": mode for mode in Mode}
KEYS = dict.fromkeys(MODES, ("pos",))


@pytest.mark.parametrize("how", PARAMETERS)
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.soak] * (seed > 1)) for seed in range(1, 6)])
def test_random_exchanges_in_every_mode(
    seed: int, how: str, spark: SparkSession, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_as(how, monkeypatch)
    random, replay = Random(seed), Replay()
    job = in_modes(Job(spark, tmp_path, landing), MODES, KEYS)
    servers = [
        DeferredKeys(random, oid=oid, name=mode.value, deletes_new=mode is not Mode.APPEND)
        for oid, mode in enumerate(Mode, 1)
    ]
    for night in range(2):
        messages: Messages = []
        for number in range(5):
            described = [] if number else [server.relation for server in servers]
            changes = [change for server in servers for change in server.transaction()]
            xid = night * 5 + number + 1
            messages += transaction(xid, xid * 1000, *described, *changes)
        content = copydata(messages, 0x1000000 * (night + 1))
        (landing / f"{night}.copydata").write_bytes(content)
        replay.add_file(f"{night}", content)
        assert {table.held for table in job.run().tables} == {None}
        assert set(job.mismatches().values()) == {None}
    assert_kept(job, MODES, replay, KEYS, commits=2)
    for oid, server in enumerate(servers, 1):
        rows = replay.tables(KEYS)[oid].rows
        assert sorted(tuple(row[name] for name in COLUMNS) for row in rows) == sorted(server.rows)
