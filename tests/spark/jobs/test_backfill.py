"""The backfill job: rebuilds, repairs, and builds as of any commit; the nightly job continues afterwards."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.errors import ArchiveError, ConfigError, RunError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.load import commit
from pgoutput_etl.load import mirror as merge
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.work.backfill.report import BackfillSummary
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.plan.run import plan
from tests.spark.load.test_net_effect import random_history
from tests.support.captures import CAPTURES, files_of
from tests.support.cut_replay import CutReplay, assert_equal_rows
from tests.support.jobs import Job, Nights, held
from tests.support.small_archives import (
    Change,
    copydata,
    delete,
    delete_full,
    in_subtransaction,
    insert,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
    truncate,
    update,
)

pytestmark = pytest.mark.spark
FULL = ReplicaIdentity.FULL
OTHER, BAG = 7, 8


def files_read(summary: BackfillSummary) -> list[str]:
    return [Path(path).name for path in summary.files_read]


def damage(nights: Nights, name: str, condition: str, values: Mapping[str, str] | None = None) -> None:
    """Deletes or changes the target's rows by mistake."""
    target = DeltaTable.forPath(nights.job.spark, str(nights.job.path("public", name)))
    if values is None:
        target.delete(condition)
    else:
        target.update(condition, dict(values))


def bring_back(nights: Nights, *keys: str) -> None:
    """Inserts rows into t that were deleted."""
    path = str(nights.job.path("public", "t"))
    like = nights.job.spark.read.format("delta").load(path).where("id = '5'")
    for key in keys:
        row = like.withColumns({"id": F.lit(key), "v": F.lit("deleted")})
        row.write.format("delta").mode("append").save(path)


def land_four_nights(nights: Nights) -> None:
    """Table t is in three of four files: streamed across two, partly rolled back, and sent again in another."""
    bag, other = table("v", oid=BAG, name="bag", identity=FULL), table(oid=OTHER, name="other")
    first = transaction(1, 100, table(), *(insert(k, f"v{k}") for k in "12345"))
    of_bag = (bag, insert("x", oid=BAG), insert("x", oid=BAG))
    nights.land(first, transaction(2, 200, *of_bag, other, insert("1", "o", oid=OTHER)))
    nights.land(transaction(3, 300, insert("2", "o", oid=OTHER)))
    streamed = segment(40, update("1", "streamed"), first=True)
    rolled_back = segment(40, in_subtransaction(41, update("5", "never")))
    nights.land(streamed, transaction(4, 400, update("2", "later"), delete("3", None)), rolled_back)
    again = [*first, *transaction(4, 400, update("2", "later"), delete("3", None))]
    nights.land(
        stream_abort(40, 41),
        stream_commit(40, 500),
        again,
        transaction(5, 600, update("44", "moved", old_key=("4", None)), delete_full("x", oid=BAG)),
    )


FOUR_NIGHTS = [("1", "streamed"), ("2", "later"), ("44", "moved"), ("5", "v5")]


@pytest.mark.soak
def test_a_table_is_rebuilt_from_the_files_with_its_changes(nights: Nights) -> None:
    land_four_nights(nights)
    nights.job.run()
    assert nights.values("t") == FOUR_NIGHTS
    damage(nights, "t", "id = '2'")
    damage(nights, "t", "id = '1'", {"v": "'by mistake'"})
    bring_back(nights, "3")
    damage(nights, "bag", "true")
    others = nights.job.versions()["other"]
    (nights.job.landing / "001.copydata").unlink()

    summary = nights.job.backfill(BackfillRequest(("public.t", "public.b*")))
    assert summary.exit_code == EXIT_DONE
    assert files_read(summary) == ["000.copydata", "002.copydata", "003.copydata"]
    assert {t.table.table: (t.files, t.table.rows) for t in summary.tables} == {"t": (3, 4), "bag": (2, 1)}
    assert nights.values("t") == FOUR_NIGHTS
    assert nights.values("bag") == [("x",)]
    assert nights.job.versions()["other"] == others

    grown = nights.job.landing / "003.copydata"
    more = transaction(6, 700, update("2", "newer"), delete("5", None), insert("y", oid=BAG))
    grown.write_bytes(grown.read_bytes() + copydata(more, 0x1000100))
    assert (nights.job.run().batch, nights.values("bag")) == (3, [("x",), ("y",)])
    assert nights.values("t") == [("1", "streamed"), ("2", "newer"), ("44", "moved")]
    damage(nights, "t", "true")
    summary = nights.job.backfill(BackfillRequest(("public.t",)))
    assert files_read(summary) == ["000.copydata", "002.copydata", "003.copydata"]
    assert nights.values("t") == [("1", "streamed"), ("2", "newer"), ("44", "moved")]
    kinds = {row["batch"]: row["backfill"] for row in nights.ledger("batches")}
    assert [number for number, kind in sorted(kinds.items()) if kind] == [2, 4]

    second = nights.job.landing / "002.copydata"
    copy = second.with_name("002.copydata.gz")
    copy.write_bytes(gzip.compress(second.read_bytes()))
    nights.job.run()
    second.unlink()
    nights.job.backfill(BackfillRequest(("public.t",)))
    assert nights.values("t") == [("1", "streamed"), ("2", "newer"), ("44", "moved")]

    copy.unlink()
    versions, last = nights.job.versions(), max(row["batch"] for row in nights.ledger("batches"))
    with pytest.raises(ArchiveError, match=r"002\.copydata no longer exists"):
        nights.job.backfill(BackfillRequest(("public.t",)))
    first = nights.job.landing / "000.copydata"
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    with pytest.raises(ArchiveError, match=r"000\.copydata: it has changed since"):
        nights.job.backfill(BackfillRequest(("public.bag",)))
    with pytest.raises(ConfigError, match=r"no table 'public\.no'"):
        nights.job.backfill(BackfillRequest(("public.no",)))
    assert nights.job.versions() == versions
    assert max(row["batch"] for row in nights.ledger("batches")) == last


@pytest.mark.soak
def test_a_range_of_commits_repairs_the_rows_it_changed(nights: Nights) -> None:
    land_four_nights(nights)
    nights.job.run()
    damage(nights, "t", "true", {"v": "'by mistake'"})
    bring_back(nights, "3", "4")

    for _ in range(2):
        summary = nights.job.backfill(BackfillRequest(("public.t",), 400, 400))
        assert files_read(summary) == ["002.copydata", "003.copydata"]
        assert [(t.how, t.table.rows) for t in summary.tables] == [("rows of the range", 5)]
        right = [("1", "by mistake"), ("2", "later"), ("4", "deleted"), ("44", "by mistake"), ("5", "by mistake")]
        assert nights.values("t") == right, "2 and the deleted 3, nothing else"
    nights.job.backfill(BackfillRequest(("public.t",), 600))
    right = [("1", "by mistake"), ("2", "later"), ("44", "moved"), ("5", "by mistake")]
    assert nights.values("t") == right, "an old key, and the new key of its row"
    zero = datetime(2000, 1, 1, tzinfo=timezone.utc)  # of all these commits
    nights.job.backfill(BackfillRequest(("public.t",), 1, from_time=None, to_time=zero))
    assert nights.values("t") == FOUR_NIGHTS
    damage(nights, "t", "id = '5'")
    [after] = [t for t in nights.night(transaction(6, 700, update("2", "newer"))).tables if t.table == "t"]
    assert (after.rows, len(nights.values("t"))) == (3, 3), "counted, not remembered"
    with pytest.raises(ConfigError, match="no commit at 2001"):
        nights.job.backfill(BackfillRequest(("public.t",), from_time=zero.replace(year=2001)))


@pytest.mark.soak
def test_the_whole_table_is_rebuilt_if_a_range_is_not_exact(nights: Nights) -> None:
    land_four_nights(nights)
    nights.job.run()
    nights.night(
        transaction(6, 700, truncate(), insert("1", "after")),
        transaction(7, 800, table("id", "v", oid=OTHER, name="other"), insert("x", oid=BAG)),
    )
    damage(nights, "t", "true")
    summary = nights.job.backfill(BackfillRequest(("public.t", "public.bag"), 600))
    assert {t.table.table: t.how for t in summary.tables} == {
        "t": "whole: truncated since",
        "bag": "whole: no key",
    }
    assert nights.values("t") == [("1", "after")]
    assert nights.values("bag") == [("x",), ("x",)]


def as_of(job: Job, files: list[bytes], lsns: list[int], into: Path) -> None:
    for lsn in lsns:
        summary = job.backfill(BackfillRequest(("*",), to_lsn=lsn, out=str(into)))
        assert summary.last_commit_lsn == lsn
        for name, want in CutReplay.of(files, lsn).rows().items():
            rows = job.spark.read.format("delta").load(str(into / name.replace(".", "/"))).toArrow().to_pylist()
            assert_equal_rows(rows, want, f"{name} at {lsn}")


@pytest.mark.soak
def test_as_of_any_commit(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    """The history has truncates, keys that move with large values, and bags."""
    messages = random_history(Random(5), 60)
    cut = len(messages) // 2
    files = [copydata(part, 0x1000000 * n) for n, part in enumerate((messages[:cut], messages[cut:]), 1)]
    for number, content in enumerate(files):
        (landing / f"{number}.copydata").write_bytes(content)
    job = Job(spark, tmp_path, landing)
    job.run()
    versions = job.versions()
    into = tmp_path / "beside"
    as_of(job, files, [23_000], into)
    assert job.versions() == versions
    with pytest.raises(ConfigError, match=r"--to-lsn: the last applied commit is 0/EA60"):
        job.backfill(BackfillRequest(("*",), to_lsn=60_001, out=str(into)))
    with pytest.raises(RunError, match=r"table at .*/keyed was not written by an earlier backfill"):
        job.backfill(BackfillRequest(("public.keyed",), out=str(tmp_path / "tables")))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 8))
def test_as_of_any_commit_of_random_histories(seed: int, spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    random = Random(seed)
    messages = random_history(random, 100)
    content = copydata(messages)
    (landing / "0.copydata").write_bytes(content)
    job = Job(spark, tmp_path, landing)
    job.run()
    as_of(job, [content], [1000 * n for n in sorted(random.sample(range(5, 100), 4))], tmp_path / "beside")


@pytest.mark.soak
@pytest.mark.parametrize("slot", ["random16/v1", "random16/v3", "random16/v4b", "pg16/v4_twophase_parallel_binary"])
def test_as_of_commits_of_a_real_server(slot: str, spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    paths = files_of(CAPTURES / slot)
    replay = Replay()
    for path in paths:
        (landing / path.name).write_bytes(path.read_bytes())
        replay.add_file(path.name, path.read_bytes())
    job = Job(spark, tmp_path, landing)
    job.run()
    commits = sorted({row["commit_lsn"] for row in replay.committed()})
    lsns = [commits[len(commits) * n // 4] for n in range(4)] + [commits[-1]]
    as_of(job, [path.read_bytes() for path in paths], lsns, tmp_path / "beside")


@pytest.mark.soak
def test_a_held_table_is_released_after_the_cause_is_fixed(nights: Nights) -> None:
    """The configuration declares the renamed columns; changes made while the table was held are not lost."""
    first: list[Change] = [table("a", "b", oid=1, name="swapped", key=["a"]), insert("1", "x", oid=1)]
    nights.night(transaction(1, 100, *first), transaction(2, 200, table(), insert("1", "v")))
    exchanged = table("b", "a", oid=1, name="swapped", key=["b"])
    nights.night(transaction(3, 300, exchanged, insert("2", "y", oid=1)))
    nights.night(transaction(4, 400, update("2", "yy", oid=1), insert("2", "w")))
    assert held(nights.job.run()).keys() == {"swapped"}

    still = nights.job.backfill(BackfillRequest(None))
    assert still.exit_code == EXIT_QUARANTINE
    assert [t.table.held is not None for t in still.tables] == [True]
    assert nights.values("swapped") == [("1", "x")]

    columns = "columns: {b: {renamed_from: a}, a: {renamed_from: b}}"
    nights.job.overrides.append(f"tables=[{{match: public.swapped, {columns}}}]")
    summary = nights.job.backfill(BackfillRequest(None))
    assert summary.exit_code == EXIT_DONE
    assert nights.values("swapped") == [("1", "x"), ("2", "yy")]
    assert nights.job.columns("public", "swapped") == ["b", "a"]
    assert [row["redriven"] for row in nights.ledger("quarantine")] == [summary.batch]
    kinds = {(row["kind"], row["column"]) for row in nights.ledger("schema_changes") if row["table"] == "swapped"}
    assert kinds == {("column renamed", "b"), ("column renamed", "a")}

    last = nights.night(transaction(5, 500, delete("1", None, oid=1), insert("3", "z", oid=1)))
    assert (held(last), last.exit_code) == ({}, EXIT_DONE)
    assert nights.values("swapped") == [("2", "yy"), ("3", "z")]
    assert nights.job.backfill(BackfillRequest(None)).tables == ()


@pytest.mark.soak
def test_repaired_bytes_release_the_tables_they_held(nights: Nights) -> None:
    """The archive is assembled again, including a transaction that stays open."""
    tables = [table(oid=oid, name=f"t{oid}") for oid in (1, 2, 3)]
    rows = [*transaction(1, 100, *tables, *(insert("1", "a", oid=oid) for oid in (1, 2, 3)))]
    rows += segment(50, insert("9", "streamed", oid=1), first=True)
    rows += transaction(2, 200, insert("2", "spoilt", oid=1), table(oid=4, name="t4"), insert("2", "b", oid=4))
    path = nights.land(rows, transaction(3, 300, update("1", "c", oid=1), insert("2", "c", oid=2)))
    content = path.read_bytes()
    at = content.index(b"t\x00\x00\x00\x06spoilt")
    path.write_bytes(content[:at] + b"?" + content[at + 1 :])
    assert held(nights.job.run()).keys() >= {"t1"}
    nights.night(transaction(4, 400, insert("3", "d", oid=1), insert("3", "d", oid=3)))
    with pytest.raises(RunError, match=r"public\.t1 is held.*--from-quarantine"):
        nights.job.backfill(BackfillRequest(("public.t1",)))

    still = nights.job.backfill(BackfillRequest(None))
    assert still.exit_code == EXIT_QUARANTINE
    assert nights.values("t1") == [("1", "a")]
    quarantine = nights.ledger("quarantine")
    redriven_by_batch = {row["batch"]: row["redriven"] for row in quarantine if row["bytes"] is not None}
    assert redriven_by_batch == {1: still.batch, still.batch: None}
    assert [row["redriven"] for row in quarantine if row["relation"] == 1].count(None) == 1

    path.write_bytes(content)
    summary = nights.job.backfill(BackfillRequest(None))
    assert summary.exit_code == EXIT_DONE
    assert len(summary.files_read) == summary.files == 2
    assert nights.values("t1") == [("1", "c"), ("2", "spoilt"), ("3", "d")]
    assert nights.values("t4") == [("2", "b")]
    assert [row for row in nights.ledger("quarantine") if row["redriven"] is None] == []

    last = nights.night(stream_commit(50, 500), transaction(5, 600, delete("3", None, oid=1), insert("5", "e", oid=4)))
    assert (last.exit_code, held(last), last.files) == (EXIT_DONE, {}, 1)
    assert nights.values("t1") == [("1", "c"), ("2", "spoilt"), ("9", "streamed")]
    assert nights.values("t4") == [("2", "b"), ("5", "e")]
    assert nights.job.backfill(BackfillRequest(("public.t1",))).tables[0].table.rows == 3


@pytest.mark.soak
def test_the_nightly_job_finishes_a_backfill_that_died(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies between a table built in the scratch folder and one written directly."""
    nights.job.overrides.append("merge.parallel_tables=1")
    nights.night(
        transaction(1, 100, table("id", "v"), insert("1", "a")),
        transaction(2, 200, table("id", "v", "w"), insert("2", "b", "c")),
        transaction(3, 300, table("v", oid=BAG, name="bag", identity=FULL), *[insert("x", oid=BAG)] * 2),
    )
    for name in ("t", "bag"):
        damage(nights, name, "true")
    move = commit.move

    def dies(*arguments: Any) -> None:
        move(*arguments)
        raise RuntimeError("the power is out")

    monkeypatch.setattr(commit, "move", dies)
    with pytest.raises(RuntimeError, match="power"):
        nights.job.backfill(BackfillRequest(("*",)))
    monkeypatch.undo()
    nights.land(transaction(4, 400, insert("3", "d", "e"), insert("x", oid=BAG)))
    last = nights.job.run()
    assert (last.batch, last.files) == (3, 1)
    assert nights.values("t") == [("1", "a", None), ("2", "b", "c"), ("3", "d", "e")]
    assert nights.values("bag") == [("x",)] * 3

    version = nights.job.versions()["t"]
    nights.night(transaction(5, 500, update("1", "aa", "n"), delete("2", None, None)))
    damage(nights, "t", "true")
    (nights.job.landing / "000.copydata").unlink()
    summary = nights.job.backfill(BackfillRequest(("public.t",), since_version=version))
    assert files_read(summary) == ["002.copydata"]
    assert nights.values("t") == [("1", "aa", "n"), ("3", "d", "e")]
    with pytest.raises(ConfigError, match=r"no batch left public\.t at Delta version 0"):
        nights.job.backfill(BackfillRequest(("public.t",), since_version=0))


@pytest.mark.soak
def test_a_nightly_run_that_died_must_be_finished_first(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.night(transaction(1, 100, table(), insert("1", "a")))

    def dies(*_: Any) -> None:
        raise RuntimeError("the power is out")

    monkeypatch.setattr(merge, "write", dies)
    with pytest.raises(RuntimeError, match="power"):
        nights.night(transaction(2, 200, insert("2", "b")))
    monkeypatch.undo()
    with pytest.raises(RunError, match="batch 2 was begun by a run that died") as raised:
        nights.job.backfill(BackfillRequest(("public.t",)))
    assert raised.value.next_job == ("apply",)
    into = nights.job.folder / "beside"
    nights.job.backfill(BackfillRequest(("public.t",), out=str(into)))
    rows = nights.job.spark.read.format("delta").load(str(into / "public" / "t")).collect()
    assert [(row["id"], row["v"]) for row in rows] == [("1", "a")]
    nights.job.run()
    assert nights.values("t") == [("1", "a"), ("2", "b")]


@pytest.mark.soak
def test_a_contract_keeps_columns_and_holds_a_table_until_somebody_accepts(nights: Nights) -> None:
    nights.job.overrides.append("tables=[{match: public.t, on_schema_change: {add: hold, drop: keep}}]")
    other = table(oid=2, name="u")
    nights.night(transaction(1, 0x100, table("id", "v", "w"), insert("1", "a", "b"), other, insert("1", "x", oid=2)))
    kept = nights.night(transaction(2, 0x200, table("id", "v"), insert("2", "a")))
    assert nights.values("t") == [("1", "a", "b"), ("2", "a", None)]
    assert kept.exit_code == EXIT_DONE

    nights.land(transaction(3, 0x300, table("id", "v", "x"), insert("3", "a", "c"), insert("2", "x", oid=2)))
    [planned] = [t for t in plan(nights.job.spark, nights.job.loaded()).tables if t.table == "t"]
    summary = nights.job.run()
    reason = "its columns changed, which on_schema_change holds: column added: x"
    assert (planned.held, held(summary)) == (reason, {"t": reason})
    assert (summary.exit_code, nights.values("u")) == (EXIT_QUARANTINE, [("1", "x"), ("2", "x")])
    assert summary.next[0].command.endswith(" --tables public.t")

    nights.job.backfill(BackfillRequest(None))
    assert held(nights.job.run()) == {"t": reason}, "--from-quarantine accepts nothing"
    version = nights.job.versions()["t"]
    accepted = nights.job.backfill(BackfillRequest(("public.t",), since_version=version))
    assert accepted.exit_code == EXIT_DONE
    assert nights.values("t") == [("1", "a", None, "b"), ("2", "a", None, None), ("3", "a", "c", None)]
    assert nights.night(transaction(4, 0x400, insert("4", "a", "c"))).exit_code == EXIT_DONE
