"""Compares tables in modes soft_delete, history, and append with the mirror as of each commit."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

import pgoutput_etl as pg
from pgoutput_etl.config.rules import Mode
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.protocol.messages import PgoutputMessage, ReplicaIdentity
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.targets.modes import METADATA_COLUMNS
from pgoutput_etl.work.backfill.request import BackfillRequest
from tests.spark.load.test_net_effect import random_history
from tests.support.captures import CAPTURES, files_of
from tests.support.fault_runs import FaultyJob
from tests.support.faults import AFTER, Fault
from tests.support.jobs import Job, Nights
from tests.support.kept_rows import applied, as_of, counted
from tests.support.modes_reference import table_histories
from tests.support.small_archives import (
    TOAST,
    Change,
    T,
    Value,
    copydata,
    delete,
    delete_full,
    insert,
    replayed,
    table,
    transaction,
    truncate,
    update,
)

pytestmark = pytest.mark.spark

Keys = Mapping[str, tuple[str, ...]]
Modes = Mapping[str, Mode]
KEYS: Keys = {"public.configured": ("id",)}
NO_KEYS: Keys = {}
KEPT = (Mode.HISTORY, Mode.SOFT_DELETE, Mode.APPEND)


def in_modes(job: Job, modes: Modes, keys: Keys = NO_KEYS) -> Job:
    """modes: by "schema.table" or "*", in the order of the rules. Other tables are skipped."""
    rules = [
        f"{{match: '{name}', mode: {mode.value}{', key: [' + ', '.join(keys[name]) + ']' if name in keys else ''}}}"
        for name, mode in modes.items()
    ]
    rules += [] if "*" in modes else ["{match: '*', skip: true}"]
    return replace(job, overrides=[f"tables=[{', '.join(rules)}]"])


def assert_kept(job: Job, modes: Modes, replay: Replay, keys: Keys = NO_KEYS, commits: int = 5) -> None:
    """Checks every table under its last name. commits: how many commits of a history to compare."""
    kept, mirrors = table_histories(replay, keys), replay.tables(keys)
    for (schema, name), oid in replay.name_holders().items():
        if oid not in kept:
            continue
        shape, rows = kept[oid].shape, job.rows(schema, name)
        # A mirror that was emptied has no retired columns.
        names = [*(column.name for column in mirrors[oid].shape.columns), *METADATA_COLUMNS]
        mirror = counted(mirrors[oid].rows, names)
        match modes.get(f"{schema}.{name}", modes.get("*")):
            case None:
                assert rows == []
            case Mode.HISTORY:
                assert_same(name, counted(rows), counted(kept[oid].versions))
                assert_as_of(rows, replay, keys, oid, names, commits)
            case Mode.SOFT_DELETE if shape.is_bag:
                assert rows == [], "held, as it has no key"
            case Mode.SOFT_DELETE:
                assert_same(name, counted(rows), counted(kept[oid].latest or []))
                assert_same(name, counted((row for row in rows if not row["_pg_deleted"]), names), mirror)
            case Mode.APPEND:
                assert_same(name, counted(applied(rows, shape), names), mirror)
            case _:
                assert_same(name, counted(rows, names), mirror)


def assert_as_of(
    rows: list[dict[str, Any]], replay: Replay, keys: Keys, oid: int, names: list[str], commits: int
) -> None:
    """Compares only commits after which the table had its current columns, with their types."""
    last = [(column.name, column.type.stored_as) for column in replay.tables(keys)[oid].shape.columns]
    lsns = sorted({row["commit_lsn"] for row in replay.rows_by_relation()[oid]})
    for lsn in [*lsns[:: max(1, len(lsns) // commits)], lsns[-1]]:
        mirror = replay.tables(keys, until=lsn)[oid]
        if [(column.name, column.type.stored_as) for column in mirror.shape.columns] == last:
            label = f"{mirror.shape.relation.name} as of {lsn}"
            assert_same(label, counted(as_of(rows, lsn), names), counted(mirror.rows, names))


def assert_same(name: str, have: Any, want: Any) -> None:
    assert have == want, f"{name}: too many {sorted(have - want)[:3]}, missing {sorted(want - have)[:3]}"


def cut(messages: list[PgoutputMessage], random: Random, files: int) -> list[list[PgoutputMessage]]:
    cuts = [0, *sorted(random.sample(range(len(messages) // 4, len(messages) - 20), files - 1)), len(messages)]
    return [messages[a:b] for a, b in pairwise(cuts)]


RANDOM_MODES = {
    "public.keyed": Mode.HISTORY,
    "public.dated": Mode.SOFT_DELETE,
    "public.configured": Mode.APPEND,
    "public.bag": Mode.HISTORY,
    "public.lists": Mode.HISTORY,
}
OTHER_MODES = {
    "public.keyed": Mode.SOFT_DELETE,
    "public.dated": Mode.APPEND,
    "public.configured": Mode.HISTORY,
    "public.bag": Mode.APPEND,
    "public.lists": Mode.SOFT_DELETE,
}
THIRD_MODES = {
    "public.keyed": Mode.APPEND,
    "public.dated": Mode.HISTORY,
    "public.configured": Mode.SOFT_DELETE,
    "public.bag": Mode.MIRROR,
    "public.lists": Mode.APPEND,
}


@pytest.mark.soak
@pytest.mark.parametrize("modes", [RANDOM_MODES, OTHER_MODES, THIRD_MODES], ids=["some", "other", "third"])
@pytest.mark.parametrize("seed", range(1, 7))
def test_random_histories_night_after_night(
    modes: Modes, seed: int, spark: SparkSession, tmp_path: Path, landing: Path
) -> None:
    random = Random(seed)
    files = cut(random_history(random, 60), random, 2)
    job, replay = in_modes(Job(spark, tmp_path, landing), modes, KEYS), Replay()
    for number, messages in enumerate(files):
        content = copydata(messages, 0x1000000 * (number + 1))
        (landing / f"{number}.copydata").write_bytes(content)
        replay.add_file(f"{number}", content)
        assert {t.held for t in job.run().tables} == {None}
    assert_kept(job, modes, replay, KEYS)


def documented(language: str) -> list[str]:
    text = (Path(__file__).parents[3] / "docs" / "modes.md").read_text(encoding="utf-8")
    return re.findall(rf"<!-- tested -->\n```{language}\n(.*?)```\n", text, re.DOTALL)


def test_the_documented_queries(nights: Nights) -> None:
    names = {1: "customers", 2: "orders", 3: "events"}
    rules = yaml.safe_load(documented("yaml")[0])["tables"]
    nights.job = replace(nights.job, overrides=[f"tables={json.dumps(rules)}"])
    tables = [table(oid=oid, name=name) for oid, name in names.items()]
    nights.night(
        transaction(1, 100, *tables, *(insert(key, "a", oid=oid) for oid in names for key in "123")),
        transaction(2, 200, *(delete("1", None, oid=oid) for oid in names)),
        transaction(3, 300, *(update("2", "b", oid=oid) for oid in names)),
        transaction(4, 400, insert("4", "c", oid=3), truncate(3), *(insert("5", "d", oid=oid) for oid in names)),
    )
    deleted, as_of_commit, newest = (
        query.replace("./warehouse", str(nights.job.folder / "tables")) for query in documented("sql")
    )

    def found(query: str, lsn: int = 0) -> list[tuple[str, str]]:
        query = query.replace("28212080", str(lsn)).replace("2026-01-31", "1999-01-31")
        return sorted((row["id"], row["v"]) for row in nights.job.spark.sql(query).collect())

    assert found(deleted) == [("1", "a")]
    assert found(as_of_commit, 100) == [("1", "a"), ("2", "a"), ("3", "a")]
    assert found(as_of_commit, 299) == [("2", "a"), ("3", "a")]
    assert found(as_of_commit, 300) == [("2", "b"), ("3", "a")]
    assert found(newest) == [("5", "d")]


SLOTS = ["pg10/v1", "pg14/v1", "pg14/v1_binary", "pg14/v2_stream", "pg16/v1", "pg16/v1_binary", "pg16/v2_stream"]
SLOTS += ["pg16/v3_twophase", "pg16/v3_twophase_only", "pg16/v4_parallel", "pg16/v4_twophase_parallel_binary"]
SLOTS += ["random16/v1", "random16/v2", "random16/v3", "random16/v4b"]


@pytest.mark.soak
@pytest.mark.parametrize("mode", KEPT, ids=lambda mode: mode.value)
@pytest.mark.parametrize("slot", SLOTS)
def test_real_archives(mode: Mode, slot: str, spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    """Applies each archive in two nights. tests/archives compares their mirrors with the server's rows."""
    files = files_of(CAPTURES / slot)
    modes = {"*": mode}
    job, replay = in_modes(Job(spark, tmp_path, landing), modes), Replay()
    for night in (files[: len(files) // 2], files[len(files) // 2 :]):
        for path in night:
            replay.add_file(str(path), path.read_bytes())
            shutil.copy(path, landing)
        held = [t.table for t in job.run().tables if t.held is not None]
        assert mode is Mode.SOFT_DELETE or not held
    assert_kept(job, modes, replay)


SHOP = {"public.orders": Mode.HISTORY, "public.typed": Mode.SOFT_DELETE, "public.log": Mode.APPEND}
SHOP |= {"public.bag": Mode.HISTORY}
ORDERS, TYPED, LOG, BAG = 1, 2, 3, 4
INT4, INT8 = 23, 20


def shop(*more: str | tuple[str, int], number: int = INT4) -> list[Change]:
    """The tables with keys, extended by these columns."""
    tables = ((ORDERS, "orders"), (TYPED, "typed"), (LOG, "log"))
    return [table("id", "big", ("n", number), *more, oid=oid, name=name) for oid, name in tables]


def in_all(change: Callable[..., Change], *values: Value, **old: Any) -> list[Change]:
    return [change(*values, oid=oid, **old) for oid in (ORDERS, TYPED, LOG)]


BAG_TABLE = table("v", oid=BAG, name="bag", identity=ReplicaIdentity.FULL)
SHOP_NIGHTS = [
    [
        *transaction(1, 100, *shop(), *in_all(insert, "1", "B1", "7"), *in_all(insert, "2", "B2", "7")),
        *transaction(2, 200, *in_all(update, "1", TOAST, "8"), *in_all(insert, "3", "B3", None), BAG_TABLE),
        *transaction(3, 300, *(insert("a", oid=BAG) for _ in range(3)), *in_all(delete, "3", None, None)),
    ],
    [
        # Before its columns change, within the transaction that changes them, and after it.
        *transaction(4, 400, *in_all(update, "4", TOAST, "9", old_key=("1", None, None)), delete_full("a", oid=BAG)),
        *transaction(5, 500, *in_all(insert, "3", "B33", "1"), *shop("more"), *in_all(update, "3", TOAST, "2", "m")),
        *transaction(6, 600, *in_all(update, "4", TOAST, "10", None), *in_all(delete, "2", None, None, None)),
        *transaction(7, 700, truncate(TYPED, LOG, BAG), insert("5", "B5", "5", "m", oid=TYPED), insert("b", oid=BAG)),
        *transaction(8, 800, *shop("again", number=INT8), *in_all(insert, "6", "B6", str(2**40), "m")),
        *transaction(9, 900, truncate(ORDERS), *in_all(insert, "1", "new", "1", None), delete_full("b", oid=BAG)),
        *transaction(10, 1000, *in_all(update, "1", TOAST, "0", "x"), insert("b", oid=BAG), insert("a", oid=BAG)),
    ],
]
SHOP_MORNING = [
    *transaction(11, 1100, *in_all(update, "1", TOAST, "2", "y"), delete("6", None, None, None, oid=TYPED)),
    *transaction(12, 1200, insert("c", oid=BAG), delete_full("a", oid=BAG)),
]


@pytest.mark.soak
@pytest.mark.parametrize("names", [["public.orders"], list(SHOP)], ids=len)
def test_columns_change_between_and_within_nights_and_transactions(names: list[str], nights: Nights) -> None:
    modes = {name: SHOP[name] for name in names}
    nights.job = in_modes(nights.job, modes)
    for messages in SHOP_NIGHTS:
        nights.night(messages)
    assert_kept(nights.job, modes, replayed(*SHOP_NIGHTS), commits=10)


@pytest.mark.parametrize("mode", [pytest.param(m, id=m.value, marks=[pytest.mark.soak] * (m in KEPT)) for m in Mode])
def test_a_configured_key_that_is_no_key_holds_its_table(mode: Mode, nights: Nights) -> None:
    """A NULL in it, and two rows of one transaction that share it: reduced on the driver, and by Spark if a row keeps a
    value that is not sent."""
    tables = {1: "nulls", 2: "twice", 3: "toast", 4: "right"}
    keys = {f"public.{name}": ("n",) for name in tables.values()}
    nights.job = in_modes(nights.job, dict.fromkeys(keys, mode), keys)
    described = [
        table(("n", INT4), "v", oid=oid, name=name, identity=ReplicaIdentity.FULL) for oid, name in tables.items()
    ]
    first = transaction(1, 100, *described, *(insert("1", "a", oid=oid) for oid in tables))
    held = nights.night(first)
    assert [t.held for t in held.tables] == [None] * 4
    bad: list[Change] = [
        insert(None, "b", oid=1),
        insert("2", "b", oid=2),
        insert("2", "c", oid=2),
        insert("2", "b", oid=3),
    ]
    bad += [update("2", TOAST, old=("2", "b"), oid=3), insert("2", "c", oid=3), insert("2", "b", oid=4)]
    night = nights.night(transaction(2, 200, *bad))
    reasons = {t.table: t.held for t in night.tables}
    twice = (
        "transaction 2, committed at LSN 0/C8, inserts a row under the key of another row that it has written: the "
        "configured key (n) is not unique"
    )
    assert str(reasons["nulls"]).endswith(": public.nulls: column 'n' of the configured key is NULL")
    are_changes = mode is Mode.APPEND
    assert [reasons[name] for name in ("twice", "toast", "right")] == [*[None if are_changes else twice] * 2, None]
    for name in ("nulls",) if are_changes else ("nulls", "twice", "toast"):
        assert [row["v"] for row in nights.job.rows("public", name)] == ["a"]


@pytest.mark.soak
def test_rows_that_were_deleted_under_another_key_are_not_matched_by_the_new_one(nights: Nights) -> None:
    """Key 60 is that of two deleted rows, the newer of which is inserted again. The two rows of key 90 were deleted
    together, so that neither is meant."""
    modes = {"public.t": Mode.SOFT_DELETE}
    nights.job = in_modes(nights.job, modes)
    by_number = table("id", "n", "v", key=["n"])
    messages = [
        [
            *transaction(1, 100, table("id", "n", "v"), insert("1", "10", "x"), insert("3", "30", "w")),
            *transaction(2, 200, delete("1", None, None), insert("6", "60", "a")),
            *transaction(3, 300, insert("2", "10", "y"), delete("6", None, None), insert("7", "60", "b")),
            *transaction(4, 400, delete("7", None, None), insert("8", "90", "c"), insert("9", "90", "d")),
            *transaction(5, 500, delete("8", None, None), delete("9", None, None)),
        ],
        [
            *transaction(6, 600, by_number, update("2", "10", "z"), insert("10", "60", "e"), insert("11", "90", "f")),
            *transaction(7, 700, delete(None, "30", None)),
        ],
        [
            *transaction(8, 800, by_number, delete(None, "10", None), update("12", "90", "g")),
            *transaction(9, 900, insert("13", "10", "h"), update("14", "61", "e", old_key=(None, "60", None))),
        ],
    ]
    for number, night in enumerate(messages, start=1):
        nights.night(night)
        assert_kept(nights.job, modes, replayed(*messages[:number]))
    keys = sorted((row["n"], row["id"]) for row in nights.job.rows("public", "t") if not row["_pg_deleted"])
    assert keys == [("10", "13"), ("61", "14"), ("90", "12")]
    for lsn in (600, 800):  # within a batch: merged while the table is read
        at = pg.read_at(nights.job.spark, nights.job.loaded(), lsn=lsn)["public.t"]
        living = at.where("not _pg_deleted").toArrow().to_pylist()
        expected = replayed(*messages).tables(until=lsn)[T].rows
        assert counted(living, ["id", "n", "v"]) == counted(expected, ["id", "n", "v"])


@pytest.mark.soak
@pytest.mark.parametrize("mode", [Mode.SOFT_DELETE, Mode.HISTORY], ids=lambda mode: mode.value)
def test_a_former_row_does_not_keep_a_table_from_a_retyped_key(mode: Mode, nights: Nights) -> None:
    nights.job = in_modes(nights.job, {"public.t": mode})
    messages = [
        [
            *transaction(1, 100, table(), insert("five", "a"), insert("7", "b")),
            *transaction(2, 200, delete("five", None)),
        ],
        transaction(3, 300, table(("id", INT4), "v"), update("7", "c"), insert("5", "d")),
    ]
    for night in messages:
        nights.night(night)
    assert_kept(nights.job, {"public.t": mode}, replayed(*messages))
    [former] = [row for row in nights.job.rows("public", "t") if row["v"] == "a"]
    assert (former["id"], dict(former["_pg_unrepresentable"])) == (None, {"id": "five"})


@pytest.mark.soak
def test_a_run_that_dies_while_columns_change(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    """Every row is written once. Afterwards the tables are rebuilt in another mode."""
    faulty = FaultyJob(in_modes(Job(spark, tmp_path, landing), SHOP))
    replay = replayed(*SHOP_NIGHTS)
    faulty.land(0, SHOP_NIGHTS[0])
    faulty.run()
    faulty.land(1, SHOP_NIGHTS[1])
    ended = faulty.run_with(Fault("KILL", AFTER, 2, "merge orders"))
    assert ended.was_killed, ended.errors
    faulty.run()
    assert_kept(faulty.job, SHOP, replay, commits=10)
    faulty.assert_versions_are_right()
    versions = faulty.job.versions()

    other = {**SHOP, "public.orders": Mode.MIRROR, "public.bag": Mode.APPEND}
    changed = replace(faulty, job=in_modes(faulty.job, other))
    changed.land(2, SHOP_MORNING)
    with pytest.raises(
        ConfigError, match="was written in mode history, but the configuration asks for mirror"
    ) as refused:
        changed.run()
    assert refused.value.next_job == ("backfill", "--tables", "public.bag,public.orders")
    assert changed.job.versions() == versions
    changed.job.backfill(BackfillRequest(tables=("public.orders", "public.bag")))
    # A table that stores former states can't be repaired by a range of commits: it is rebuilt.
    done = changed.job.backfill(BackfillRequest(tables=("public.log",), from_lsn=500, to_lsn=600))
    assert [t.how for t in done.tables] == ["whole: mode append"]
    changed.run()
    assert_kept(changed.job, other, replayed(*SHOP_NIGHTS, SHOP_MORNING))
