"""Tables as of any commit, read without writing, equal what the archive has up to it."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

import pgoutput_etl as pg
from pgoutput_etl.errors import ArchiveError, ConfigError, RunError
from pgoutput_etl.jobs import show
from pgoutput_etl.ledger.as_of import Tables
from pgoutput_etl.protocol.messages import Begin, Commit, PgoutputMessage, ReplicaIdentity
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.snapshot.request import SnapshotRequest
from pgoutput_etl.work.snapshot.run import snapshot
from tests.spark.load.test_net_effect import random_history
from tests.support.captures import CAPTURES, files_of
from tests.support.cut_replay import CutReplay, assert_equal_rows
from tests.support.jobs import Job, Nights
from tests.support.small_archives import (
    T,
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

INT4, INT8 = 23, 20

FULL = ReplicaIdentity.FULL


def values(tables: Tables, name: str = "public.t") -> list[tuple[object, ...]]:
    rows = tables[name]
    own = [column for column in rows.columns if not column.startswith("_pg_")]
    return sorted(tuple(row) for row in rows.select(*own).collect())


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def assert_as_of(job: Job, files: list[bytes], lsns: list[int]) -> None:
    before = files_below(job.folder)
    for lsn in lsns:
        found = pg.read_at(job.spark, job.loaded(), lsn=lsn)
        want = CutReplay.of(files, lsn).rows()
        assert found.keys() == want.keys()
        for name, rows in want.items():
            assert_equal_rows(found[name].toArrow().to_pylist(), rows, f"{name} at {lsn}")
    assert files_below(job.folder) == before, "nothing was written"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 8))
def test_any_commit_of_random_histories(seed: int, spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    """The histories have truncates, keys that move with large values, and bags; files end within transactions."""
    random = Random(seed)
    messages, job, files = random_history(random, 60), Job(spark, tmp_path, landing), []
    for number in range(3):
        files.append(copydata(messages[len(messages) * number // 3 : len(messages) * (number + 1) // 3], number << 24))
        (landing / f"{number}.copydata").write_bytes(files[-1])
        job.run()
    assert_as_of(job, files, [1000 * n for n in sorted(random.sample(range(61), 12))])


@pytest.mark.soak
@pytest.mark.parametrize("slot", ["random16/v1", "random16/v3", "random16/v4b", "pg16/v4_twophase_parallel_binary"])
def test_commits_of_a_real_server(slot: str, spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    job, files = Job(spark, tmp_path, landing), []
    for path in files_of(CAPTURES / slot):
        files.append(path.read_bytes())
        (landing / path.name).write_bytes(files[-1])
        job.run()
    commits = sorted({row["commit_lsn"] for row in CutReplay.of(files, 1 << 62).committed()})
    assert_as_of(job, files, [commits[len(commits) * n // 6] for n in range(6)])


HISTORY = [
    transaction(1, 0x100, table(("id", INT4), "v"), *(insert(k, f"v{k}") for k in "123")),
    transaction(2, 0x200, update("1", "w"), delete("2", None)),
    transaction(3, 0x300, table(("id", INT8), "v", "n"), insert("4", "x", "y"), update("3", "x", "z")),
    transaction(4, 0x400, truncate(T), insert("5", "a", "b")),
    transaction(5, 0x500, table(("id", INT8), "renamed"), insert("1", "again"), update("5", "b")),
]


_BAG, _WIDER_BAG = table(("id", INT4), "v", identity=FULL), table(("id", INT8), "v", "n", identity=FULL)

WITHOUT_KEY = [
    transaction(1, 0x100, _BAG, insert("1", "a"), insert("1", "a"), insert("2", "b")),
    transaction(2, 0x200, delete_full("1", "a"), insert("2", "b")),
    transaction(3, 0x300, _WIDER_BAG, insert("3", "c", "d"), delete_full("2", "b", None)),
    transaction(4, 0x400, truncate(T), insert("4", "e", None)),
    transaction(5, 0x500, table(("id", INT8), "renamed", identity=FULL), insert("4", "e"), delete_full("4", "e")),
]


@pytest.mark.parametrize(
    ("mode", "identity"),
    [
        pytest.param("history", ReplicaIdentity.DEFAULT, marks=pytest.mark.soak),
        pytest.param("history", FULL, marks=pytest.mark.soak),
        pytest.param("soft_delete", ReplicaIdentity.DEFAULT, marks=pytest.mark.soak),
        pytest.param("append", ReplicaIdentity.DEFAULT, marks=pytest.mark.soak),
        pytest.param("append", FULL, marks=pytest.mark.soak),
    ],
)
def test_other_modes_equal_a_backfill_beside_the_tables(
    spark: SparkSession, tmp_path: Path, landing: Path, mode: str, identity: ReplicaIdentity
) -> None:
    job = Job(spark, tmp_path, landing, [f"tables=[{{match: '*', mode: {mode}}}]"])
    nights = Nights(job)
    history = WITHOUT_KEY if identity is FULL else HISTORY
    nights.night(*history[:1])
    nights.night(*history[1:])
    for lsn in (0x100, 0x200, 0x300, 0x400, 0x500):
        into = tmp_path / "beside" / str(lsn)
        job.backfill(BackfillRequest(("*",), at=lsn, out=str(into)))
        want = spark.read.format("delta").load(str(into / "public" / "t"))
        have = pg.read_at(spark, job.loaded(), lsn=lsn)["public.t"]
        assert have.columns == want.columns
        assert_equal_rows(have.toArrow().to_pylist(), want.toArrow().to_pylist(), f"{mode} at {lsn:X}")


@pytest.mark.soak
def test_columns_and_names_are_those_of_the_moment(nights: Nights) -> None:
    renamed, other = table(("id", INT8), "v", name="u"), table(("id", INT8), "w", name="t", oid=T + 1)
    nights.night(HISTORY[0])
    nights.night(
        HISTORY[1],
        HISTORY[2],
        transaction(4, 0x400, renamed, insert("7", "u")),
        transaction(5, 0x500, other, insert("1", "other", oid=T + 1)),
    )
    spark, config = nights.job.spark, nights.job.loaded()
    at = {lsn: pg.read_at(spark, config, lsn=lsn) for lsn in (0x50, 0x100, 0x210, 0x300, 0x400, 0x500)}
    assert at[0x50] == {}
    assert values(at[0x100]) == [(1, "v1"), (2, "v2"), (3, "v3")]
    assert values(at[0x210]) == [(1, "w"), (3, "v3")]
    assert at[0x300]["public.t"].dtypes[:3] == [("id", "bigint"), ("v", "string"), ("n", "string")]
    assert values(at[0x300]) == [(1, "w", None), (3, "x", "z"), (4, "x", "y")]
    assert at[0x400].keys() == {"public.u"}
    assert values(at[0x400], "public.u") == [(1, "w"), (3, "x"), (4, "x"), (7, "u")]
    assert (values(at[0x500]), len(values(at[0x500], "public.u"))) == ([(1, "other")], 4)
    only = pg.read_at(spark, config, lsn=0x300, tables=["public.t"])
    assert values(only) == values(at[0x300])
    assert pg.read_at(spark, config, lsn=0x500, tables=["*.u"]).keys() == {"public.u"}


@pytest.mark.soak
def test_a_moment_is_a_commit_a_time_or_a_transaction(nights: Nights) -> None:
    hour = 3_600_000_000
    wrapped = 1 << 38
    history = [*HISTORY, transaction(2, wrapped, insert("9", "wrapped"))]
    timed = [[_at(message, number * hour) for message in messages] for number, messages in enumerate(history)]
    nights.night(*timed[:2])
    nights.night(*timed[2:])
    spark, config, start = nights.job.spark, nights.job.loaded(), datetime(2000, 1, 1, tzinfo=timezone.utc)
    want = values(pg.read_at(spark, config, lsn=0x300))
    assert values(pg.read_at(spark, config, lsn="0/300")) == want
    assert values(pg.read_at(spark, config, lsn=0x3FF)) == want
    assert values(pg.read_at(spark, config, lsn=0x400, before=True)) == want
    assert values(pg.read_at(spark, config, xid=3)) == want
    assert values(pg.read_at(spark, config, xid=4, before=True)) == want
    assert values(pg.read_at(spark, config, at="xid:3")) == values(pg.read_at(spark, config, at="before:4")) == want
    assert pg.read_at(spark, config, xid=4, before=True).lsn == 0x3FF
    assert values(pg.read_at(spark, config, time=start + timedelta(hours=2, minutes=30))) == want
    for moment, error in (
        ({"xid": 2}, r"xid 2: several transactions had it, which committed at 0/200, 40/0"),
        ({"xid": 77}, r"xid 77: the ledger has no committed transaction with it"),
        ({"time": start - timedelta(days=1)}, r"no commit at 1999-12-31 00:00:00\+00:00 or before has been applied"),
        ({"time": datetime(2000, 1, 1)}, "expected a time with a zone"),  # noqa: DTZ001
        ({}, "expected one of lsn, time and xid, not none"),
        ({"lsn": 1, "xid": 2}, "expected one of lsn, time and xid, not lsn and xid"),
        ({"at": "0/1", "xid": 2}, "at: expected without lsn, time, xid, and before"),
        ({"lsn": 0x100, "tables": ["public.no"]}, r"the archive has no table 'public\.no'"),
    ):
        with pytest.raises(ConfigError, match=error):
            pg.read_at(spark, config, **moment)
    with pytest.raises(RunError, match="40/1 has not been applied: the last commit that has is 40/0"):
        pg.read_at(spark, config, lsn=wrapped + 1)


@pytest.mark.soak
def test_only_files_in_between_are_read(nights: Nights) -> None:
    """And a transaction counts once, wherever its rows are."""
    job, landing, streamed = nights.job, nights.job.landing, table(("id", INT4), "v")
    nights.night(transaction(1, 0x100, streamed, *(insert(k, f"v{k}") for k in "12")))
    nights.night(segment(9, insert("3", "streamed"), in_subtransaction(8, insert("4", "rolled back")), first=True))
    nights.night(transaction(2, 0x200, insert("5", "v5")), stream_abort(9, 8), stream_commit(9, 0x300))
    nights.night(transaction(3, 0x400, delete("1", None)))
    kept = {"001.copydata", "002.copydata"}
    for path in landing.iterdir():
        if path.name not in kept:
            path.unlink()
    assert values(pg.read_at(job.spark, job.loaded(), lsn=0x200)) == [(1, "v1"), (2, "v2"), (5, "v5")]
    want = [(1, "v1"), (2, "v2"), (3, "streamed"), (5, "v5")]
    assert values(pg.read_at(job.spark, job.loaded(), lsn=0x300)) == want
    shutil.rmtree(landing)
    landing.mkdir()
    assert len(values(pg.read_at(job.spark, job.loaded(), lsn=0x400))) == 3, "a batch's end needs no file"
    with pytest.raises(ArchiveError, match=r"00\d\.copydata no longer exists"):
        pg.read_at(job.spark, job.loaded(), lsn=0x200)


def test_show_prints_a_table_as_of_a_moment(
    nights: Nights, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nights.night(*HISTORY[:3])
    monkeypatch.setattr(show, "session", lambda *_, **__: nullcontext(nights.job.spark))
    nights.job.write_config()

    def shown(*arguments: str) -> tuple[int, str]:
        code = show.COMMAND.main(arguments=[arguments[0], "--config", str(nights.job.config), *arguments[1:]])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    def cells(*arguments: str) -> list[list[str]]:
        code, text = shown("public.t", *arguments)
        assert code == 0, text
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"]

    for moment in (("--before-xid", "3"), ("--at", "before:3"), ("--at-xid", "2"), ("--lsn", "0/200")):
        header, *rows = [row[:2] for row in cells(*moment)]
        assert (header, sorted(rows)) == (["id", "v"], [["1", "w"], ["3", "v3"]])
    assert cells("--at", "xid:2", "--where", "id > 1 AND v = 'v3'", "--columns", "v,_pg_commit_lsn") == [
        ["v", "_pg_commit_lsn"], ["v3", "0/100"],
    ]  # fmt: skip
    assert sorted(cells("--columns", "id")) == sorted(cells("--at", "0/300", "--columns", "id")), "the last commit"
    for where, condition in (
        ("id = 'SECRET", "PARSE_SYNTAX_ERROR"),
        ("SECRET", "UNRESOLVED_COLUMN"),
        ("id", "BOOLEAN"),
    ):
        code, text = shown("public.t", "--where", where)
        assert (code, condition in text, "SECRET" in text) == (2, True, False), text
    assert shown("public.t", "--columns", "id,x")[1].startswith(
        "PGO-1000: ConfigError: --columns: no column 'x'. Columns: id, v,"
    )
    found = pg.show(nights.job.spark, "public.t", nights.job.loaded(), at="before:3", where="id = 1", columns=["v"])
    assert [tuple(row) for row in found.collect()] == [("w",)]
    assert "| 4|" in shown("public.t", "--at", "0/300")[1].replace("  ", " ")
    assert shown("public.t", "--at", "0/50")[1].startswith("PGO-1000: ConfigError: there was no table public.t at 0/50")
    assert shown("public.no", "--at", "0/50")[0] == 2
    assert shown("public.t", "--at-xid", "2", "--version", "1")[1].startswith(
        "PGO-1200: ConfigError: expected either --version"
    )
    assert show.COMMAND.main(arguments=["a", "--at", "0/1"]) == 2
    assert capsys.readouterr().err.startswith("PGO-1200: ConfigError: --at: expected --config")


@pytest.mark.soak
def test_held_tables_and_later_snapshots_are_named(nights: Nights, tmp_path: Path) -> None:
    job, other = nights.job, table(("id", INT4), "v", oid=T + 1, name="other")
    nights.night(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", "a")))
    nights.night(
        transaction(2, 0x200, update("1", "b")),
        transaction(3, 0x300, table("id", "v", "_pg_xid"), insert("2", "c", "d")),
        transaction(4, 0x400, other, insert("1", "x", oid=T + 1)),
    )
    found = pg.read_at(job.spark, job.loaded(), lsn=0x200)
    assert (values(found), found.held) == ([(1, "b")], {})
    found = pg.read_at(job.spark, job.loaded(), lsn=0x300)
    assert (values(found), found.held) == ([(1, "a")], {"public.t": 0x100})
    rows = tmp_path / "rows.csv"
    rows.write_text("id,v\n1,x\n7,older\n")
    snapshot(job.spark, job.loaded(), SnapshotRequest(("public.other",), lsn=0x500, files=str(rows)), lambda _: None)
    nights.night(transaction(5, 0x600, insert("8", "y", oid=T + 1)))
    found = pg.read_at(job.spark, job.loaded(), lsn=0x600)
    assert values(found, "public.other") == [(1, "x"), (7, "older"), (8, "y")]
    found = pg.read_at(job.spark, job.loaded(), lsn=0x400, tables=["public.other"])
    assert values(found, "public.other") == [(1, "x")], "as the archive had it then"


def _at(message: PgoutputMessage, microseconds: int) -> PgoutputMessage:
    """A transaction's message, with its commit's time since 2000."""
    if isinstance(message, Begin):
        return Begin(message.final_lsn, microseconds, message.xid)
    return Commit(message.commit_lsn, message.end_lsn, microseconds) if isinstance(message, Commit) else message
