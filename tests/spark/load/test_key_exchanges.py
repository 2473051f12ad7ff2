"""Rows that exchange their keys within a transaction, in every mode and by every way of writing."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

import pgoutput_etl as pg
from pgoutput_etl.answers.moment.read import archive_of
from pgoutput_etl.answers.undo.request import UndoRequest
from pgoutput_etl.answers.undo.run import undone_tables
from pgoutput_etl.config.rules import Mode
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.replay.mirror import Replay
from tests.spark.jobs.test_plan import assert_as_planned, effects, planned
from tests.spark.load.test_modes import assert_kept, in_modes
from tests.support.deferred_keys import COLUMNS, DeferredKeys
from tests.support.jobs import Job, Nights
from tests.support.small_archives import Change, Messages, copydata, delete_full, insert, table, transaction, update
from tests.support.ways_of_writing import PARAMETERS, write_as

pytestmark = pytest.mark.spark

MODES = {f"public.{mode.value}": mode for mode in Mode}
KEYS = dict.fromkeys(MODES, ("pos",))


@pytest.mark.soak
@pytest.mark.parametrize("how", PARAMETERS)
@pytest.mark.parametrize("seed", range(1, 6))
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


@pytest.mark.soak
def test_plan_moments_and_undo(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    nights = Nights(Job(spark, tmp_path, landing, ["tables=[{match: '*', key: [pos]}]"]))
    columns = table("pos", "v", identity=ReplicaIdentity.FULL)
    rows = [("1", "a"), ("2", "b"), ("3", "c"), ("4", "d")]
    nights.night(transaction(1, 0x100, columns, *(insert(*row) for row in rows)))
    swap = [update("2", "a", old=("1", "a")), update("1", "b", old=("2", "b"))]
    shift = [update("4", "c", old=("3", "c")), update("4", "c2", old=("4", "c"))]
    changes: tuple[Change, ...] = (*swap, *shift, delete_full("4", "d"))
    nights.land(transaction(2, 0x200, *changes), transaction(3, 0x300, insert("3", "e")))
    expected_counts = planned(nights.job)
    assert_as_planned(expected_counts, nights.job.run())
    assert [effects(counts) for counts in expected_counts.tables] == [(None, 0, 4, 0)]
    exchanged = [("1", "b"), ("2", "a"), ("4", "c2")]
    config = nights.job.loaded()
    for lsn, expected in ((0x100, rows), (0x200, exchanged), (0x300, sorted([*exchanged, ("3", "e")]))):
        found = pg.read_at(spark, config, lsn=lsn)["public.t"]
        assert sorted((row["pos"], row["v"]) for row in found.collect()) == expected
    assert nights.values("t") == sorted([*exchanged, ("3", "e")])
    [undone] = undone_tables(archive_of(spark, config), UndoRequest("undo", from_lsn=0x200, to_lsn=0x300)).tables
    current = dict(nights.values("t"))
    for step in reversed(undone.steps):
        if step.after is not None:
            assert current.pop(str(step.after.texts[0])) == step.after.texts[1]
        if step.before is not None:
            assert step.before.texts[0] not in current
            current[str(step.before.texts[0])] = step.before.texts[1]
    assert sorted(current.items()) == rows
    assert undone.conflicts == ()
