"""Every way of writing finds the same contradictions between changes and rows as the replay in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.protocol.messages import PgoutputMessage, ReplicaIdentity, Type
from pgoutput_etl.replay.mirror import Replay
from tests.support.jobs import Job
from tests.support.small_archives import (
    TOAST,
    Change,
    T,
    Value,
    copydata,
    delete,
    delete_full,
    insert,
    table,
    transaction,
    truncate,
    update,
)
from tests.support.ways_of_writing import PARAMETERS, write_as

pytestmark = pytest.mark.spark

INT, DATE = 23, 1082
MODES = ("mirror", "soft_delete", "history")
FULL = ReplicaIdentity.FULL
DAYS = ("2024-01-01", "infinity", "2024-01-03", "2024-01-04", "2024-01-05")
# By name: the relation's columns after the key. A table whose name begins with `bag` has no key.
COLUMNS = {"plain": ("v",), "toast": ("v", "big"), "days": ("v",), "bag": ("v",)}
TABLES = {
    oid: (kind, mode)
    for oid, (kind, mode) in enumerate(
        [(kind, mode) for kind in COLUMNS for mode in MODES if (kind, mode) != ("bag", "soft_delete")], 1
    )
}
# In every test run: each kind of table and each mode.
QUICK = {("plain", "mirror"), ("toast", "soft_delete"), ("days", "history"), ("bag", "mirror")}
RULES = ", ".join(f"{{match: 'public.*_{mode}', mode: {mode}}}" for mode in MODES[1:])


def relation(oid: int) -> Change:
    kind, mode = TABLES[oid]
    key = ("id", DATE) if kind == "days" else ("id", INT)
    identity = FULL if kind == "bag" else ReplicaIdentity.DEFAULT
    return table(key, *COLUMNS[kind], oid=oid, name=f"{kind}_{mode}", identity=identity)


def nonsense(oid: int, random: Random) -> Change:
    """A change of any row, whether there is one or not."""
    kind, _ = TABLES[oid]
    number, other = random.sample(range(len(DAYS)), 2)
    key, new_key = (DAYS[n] if kind == "days" else f"{n}" for n in (number, other))
    nothing = (None,) * len(COLUMNS[kind])
    whole = (random.choice("ab"), "B")[: len(COLUMNS[kind])]
    big: Value = TOAST if random.random() < 0.5 else "B"
    values: tuple[Value, ...] = (*whole[:1], big)[: len(COLUMNS[kind])]
    match random.choice("IIUUUDMT" if random.random() < 0.1 else "IIUUUDM"):
        case "T":
            return truncate(oid)
        case "I":
            return insert(key, *whole, oid=oid)
        case "D":
            return delete_full(key, *whole, oid=oid) if kind == "bag" else delete(key, *nothing, oid=oid)
        case _ if kind == "bag":
            return update(key, *whole, old=(new_key, *whole), oid=oid)
        case "U":
            return update(key, *values, oid=oid)
        case _:
            return update(key, *values, old_key=(new_key, *nothing), oid=oid)


def night(number: int, random: Random, tables: list[int]) -> list[PgoutputMessage]:
    messages: list[PgoutputMessage] = []
    for n in range(len(tables)):
        changes = [nonsense(oid, random) for oid in random.choices(tables, k=8)]
        described = [] if number or n else [relation(oid) for oid in tables]
        messages += transaction(1000 + number * 100 + n, (number * 100 + n + 1) * 1000, *described, *changes)
    return messages


@pytest.mark.soak
@pytest.mark.parametrize("how", PARAMETERS)
@pytest.mark.parametrize("seed", range(1, 6))
def test_the_job_finds_what_the_replay_finds(
    seed: int, how: str, spark: SparkSession, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_as(how, monkeypatch)
    tables = [oid for oid in TABLES if seed > 1 or TABLES[oid] in QUICK]
    random, job, replay = Random(seed), Job(spark, tmp_path, landing, [f"tables=[{RULES}]"]), Replay()
    for number in range(2 if seed == 1 else 3):
        content = copydata(night(number, random, tables), 0x1000000 * (number + 1))
        (landing / f"{number}.copydata").write_bytes(content)
        replay.add_file(f"{number}", content)
        job.run()
        expected = {TABLES[oid]: replayed.mismatches for oid, replayed in replay.tables().items()}
        assert {TABLES[oid]: found for oid, found in job.mismatches().items()} == expected
        assert sum(found is not None for found in expected.values()) > len(expected) / 2


@pytest.mark.soak
def test_a_value_that_was_never_sent_is_not_null(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    """A bag's column that a column list left out: its values in older rows are unknown."""
    files = [
        transaction(1, 100, table("a", "c", identity=FULL), truncate(), insert("1", "x"), insert("2", "y")),
        transaction(
            2, 200, table("a", ("b", 23), "c", identity=FULL), insert("1", None, "x"), delete_full("1", None, "x")
        ),
        transaction(3, 300, delete_full("1", None, "x")),
    ]
    replay, folder = Replay(), tmp_path / "mirror"
    folder.mkdir()
    mirror = Job(spark, folder, landing)
    job = Job(spark, tmp_path, landing, ["tables=[{match: '*', mode: history}]"])
    for number, messages in enumerate(files):
        content = copydata(messages, 0x1000000 * (number + 1))
        (landing / f"{number}.copydata").write_bytes(content)
        replay.add_file(f"{number}", content)
        for one in (job, mirror):
            one.run()
            assert one.mismatches() == {T: replay.tables()[T].mismatches}
    rows = sorted((row["a"], row["b"], row["c"]) for row in replay.tables()[T].rows)
    assert rows == [("1", None, "x"), ("2", None, "y")]
    assert sorted((row["a"], row["b"], row["c"]) for row in mirror.rows("public", "t")) == rows


@pytest.mark.soak
def test_composites_with_new_attributes_are_found_in_a_bag(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    """The second file has new attributes in old tuples, and leaves rows without them; the third one leaves none."""
    pair = Type(None, 16999, "public", "pair")
    both = [(1, "bag_mirror"), (2, "bag_history")]
    relations = [table(("id", INT), ("v", 16999), oid=oid, name=name, identity=FULL) for oid, name in both]
    steps: list[Callable[[int], list[Change]]] = [
        lambda oid: [insert(key, v, oid=oid) for key, v in (("1", "(1,x)"), ("2", '(2,"y,")'), ("2", '(2,"y,")'))],
        lambda oid: [update("1", "(1,x,7)", oid=oid, old=("1", "(1,x,)")), delete_full("2", '(2,"y,",)', oid=oid)],
        lambda oid: [update("3", '(2,"y,",)', oid=oid, old=("2", '(2,"y,",)'))],
    ]
    rule = "tables=[{match: '*_history', mode: history}]"
    job, replay, rows, found = Job(spark, tmp_path, landing, [rule]), Replay(), [], []
    for number, step in enumerate(steps):
        described: list[Change] = [pair, *relations] if number == 0 else []
        changes = [change for oid, _ in both for change in step(oid)]
        content = copydata(transaction(number + 1, 100 * (number + 1), *described, *changes), 0x1000000 * (number + 1))
        (landing / f"{number}.copydata").write_bytes(content)
        replay.add_file(f"{number}", content)
        job.run()
        mismatches = {oid: replayed.mismatches for oid, replayed in replay.tables().items()}
        assert job.mismatches() == mismatches
        found.append(mismatches[1])
        live = [
            [(row["id"], row["v"]) for row in job.rows("public", name) if row.get("_pg_valid_to_lsn") is None]
            for _, name in both
        ]
        assert sorted(live[0]) == sorted(live[1])
        rows.append(sorted(live[0]))
    assert rows[1:] == [[(1, "(1,x,7)"), (2, '(2,"y,")')], [(1, "(1,x,7)"), (3, '(2,"y,",)')]]
    assert found[0] is None
    assert found[1] is not None
    assert found[1].missing == 2
