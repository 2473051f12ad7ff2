"""The nightly job on small archives, night after night."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgoutput_etl.errors import ArchiveError, ConfigError, RunError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.ingest.listing import MAX_LENGTH
from pgoutput_etl.ledger.batches import LedgerFiles
from pgoutput_etl.load import commit
from pgoutput_etl.load import mirror as merge
from pgoutput_etl.protocol.messages import Relation, ReplicaIdentity, Type
from tests.support.jobs import Nights, held, summary_text
from tests.support.small_archives import (
    Change,
    Messages,
    T,
    commit_prepared,
    copydata,
    delete,
    delete_full,
    in_subtransaction,
    insert,
    prepared,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
    truncate,
    update,
)

pytestmark = pytest.mark.spark
INT, DATE = 23, 1082
FULL = ReplicaIdentity.FULL


@pytest.mark.soak
def test_several_configurations_read_one_landing_folder(nights: Nights, tmp_path: Path) -> None:
    """At different times, and with different rules."""
    few = replace(nights.job, folder=tmp_path / "few", overrides=["tables=[{match: public.t, columns: {v: drop}}]"])
    few.folder.mkdir()
    nights.night(transaction(1, 0x100, table(), insert("1", "a")))
    nights.land(transaction(2, 0x200, insert("2", "b")))
    assert few.run().files == 2
    assert nights.job.run().files == 1
    assert nights.values("t") == [("1", "a"), ("2", "b")]
    assert few.columns("public", "t") == ["id"]
    assert sorted(row["id"] for row in few.rows("public", "t")) == ["1", "2"]


@pytest.mark.soak
def test_the_summary_names_what_may_lack_earlier_rows(nights: Nights) -> None:
    other = table(oid=2, name="u")
    first = nights.night(transaction(1, 0x100, table(), insert("1", "a"), other, truncate(2), insert("1", "x", oid=2)))
    assert first.first_seen == {"public.t": 0x100}
    assert "No snapshot: rows older than the archive, if any, are missing from public.t." in summary_text(first)
    assert first.exit_code == EXIT_DONE
    second = nights.night(transaction(2, 0x200, table("id", "v", "w"), insert("2", "b", "c")))
    assert (second.first_seen, second.added_columns) == ({}, ("public.t.w",))
    assert "A DEFAULT in older rows, if any, is missing: public.t.w." in summary_text(second)
    done = [row for row in nights.ledger("batches") if row["status"] == "done"]
    for row in done:
        since = {t["table"]: (t["complete_by"], t["complete_lsn"]) for t in row["tables"]}
        assert since == {"t": ("first change", 0x100), "u": ("truncate", 0x100)}, row["batch"]


@pytest.mark.soak
def test_a_table_that_others_seem_to_be_renamed_to_is_named(nights: Nights) -> None:
    def loaded(oid: int, lsn: int) -> Messages:
        return transaction(oid, lsn, table(oid=oid, name="t_new"), insert("1", f"load {oid}", oid=oid))

    nights.night(transaction(1, 0x100, table(oid=1), insert("1", "load 1", oid=1)))
    assert nights.night(loaded(2, 0x200)).exit_code == 0
    summary = nights.night(loaded(3, 0x300))
    text = summary_text(summary)
    assert summary.exit_code == 3
    assert "Possibly replaced: public.t has had no change since LSN 0/100, while tables named public.t_new" in text
    assert "All tables but public.t (possibly replaced) are consistent through LSN 0/300." in text
    [command] = (step.command for step in summary.next)
    assert " --tables public.t --server postgresql://HOST:5432/DATABASE" in command
    again = nights.job.run()
    assert (again.swaps, again.exit_code, again.next) == (summary.swaps, 3, summary.next), "nothing new"
    written = nights.night(transaction(9, 0x400, insert("2", "written", oid=1)))
    assert (written.swaps, written.exit_code) == ({}, 0)


def test_a_missing_landing_folder_is_an_error_but_an_empty_one_is_not(nights: Nights) -> None:
    summary = nights.job.run()
    assert summary.exit_code == EXIT_DONE
    assert "Nothing new in the landing folder of test." in summary_text(summary)
    assert not (nights.job.folder / "tables").exists()
    with pytest.raises(ConfigError, match=r"source\.landing: .*/nowhere does not exist"):
        nights.job.run(f"source.landing={nights.job.folder}/nowhere")


def test_unreadable_files_stop_the_run_before_it_writes(nights: Nights) -> None:
    job = nights.job
    good = transaction(1, 100, table(), insert("1", "secret"))
    nights.land(good)

    bad = nights.land(transaction(2, 200, insert("1", "secret")))
    bad.write_bytes(bad.read_bytes()[:-3])
    behind = nights.land(transaction(3, 300, insert("2", "secret")))
    with pytest.raises(
        ArchiveError, match=rf"{behind.name}: continues with the commit at 0/12C, .* a file is missing"
    ) as raised:
        job.run()
    assert "secret" not in str(raised.value)

    bad.unlink()
    behind.unlink()
    job.spark.conf.set(MAX_LENGTH, "50")
    try:
        with pytest.raises(ArchiveError, match=r"000\.copydata has \d+ bytes.*at most 50 .*Land smaller files"):
            job.run()
    finally:
        job.spark.conf.unset(MAX_LENGTH)
    assert [path.name for path in (job.folder / "tables").glob("*/*")] == ["claims"], "no table, no batch"

    job.run()
    assert nights.values("t") == [("1", "secret")]


ODD = replace(
    table("select", "a.b", "sp ace", 'q"uote', "back`tick", oid=1, key=["select", "a.b"]),
    namespace="sch/ema", name="we/ird.. ?%41",
)  # fmt: skip
ODD_BAG = table("_gone", "rank", "row", "part0", "c0", "_seq", "_lsn", oid=2, name="Bag `x`", identity=FULL)


@pytest.mark.soak
def test_names_order_and_truncates(nights: Nights) -> None:
    """Odd names in keys and bags, through MERGE and ALTER TABLE; file 9 before 10; a rerun changes nothing."""
    both = [table(oid=3, name="t3"), table(oid=4, name="t4")]
    rows = [("1", "x", "s", "q", None), ("2", "x", "s", "q", "b")]
    equal = ("g", "r", "o", "p", "c", "s", "l")
    first = transaction(1, 100, ODD, *(insert(*row, oid=1) for row in rows), ODD_BAG, *[insert(*equal, oid=2)] * 3)
    nights.land(first, transaction(2, 200, *both, insert("1", "a", oid=3), insert("1", "a", oid=4)), name="9 a[b].bin")
    last: list[Change] = [
        truncate(3, 4),
        insert("2", "b", oid=3),
        insert("3", "c", oid=3),
        truncate(3),
        insert("4", "d", oid=3),
    ]
    last_of_10 = transaction(3, 300, *last)
    nights.land(last_of_10, name="10.bin")
    summary = nights.job.run()
    assert nights.values("we/ird.. ?%41", "sch/ema") == sorted(rows, key=str)
    assert nights.values("t3") == [("4", "d")]
    assert nights.values("t4") == []
    assert {t.table: t.rows for t in summary.tables} == {"we/ird.. ?%41": 2, "Bag `x`": 3, "t3": 1, "t4": 0}
    assert list(nights.job.rows("sch/ema", "we/ird.. ?%41")[0])[:5] == [c.name for c in ODD.columns]

    wider = replace(ODD, columns=(*ODD.columns[:3], *ODD.columns[4:], *table("new`.col", ("n", INT)).columns))
    nights.land(
        transaction(4, 400, wider, insert("3", "y", "s", "b", "n", "7", oid=1)),
        transaction(5, 500, update("2", "z", "s2", "b2", "n2", None, oid=1, old_key=["2", "x", *[None] * 4])),
        transaction(6, 600, delete("1", "x", *[None] * 4, oid=1), delete_full(*equal, oid=2)),
        transaction(7, 700, insert("5", "e", oid=4), update("4", "dd", oid=3)),
        name="11.bin",
    )
    summary = nights.job.run()
    new = [("2", "z", "s2", "b2", "n2", None), ("3", "y", "s", "b", "n", 7)]
    assert nights.values("we/ird.. ?%41", "sch/ema") == new
    assert nights.values("Bag `x`") == [equal] * 2
    assert (nights.values("t3"), nights.values("t4")) == ([("4", "dd")], [("5", "e")])
    assert summary.last_commit_lsn == 700

    versions = nights.job.versions()
    assert nights.job.run().files == 0
    assert nights.job.versions() == versions

    early = nights.land(transaction(8, 800, insert("9", "i", oid=3)), name="8.bin")
    with pytest.raises(RunError, match=r"8\.bin is new, but sorts before .*11\.bin"):
        nights.job.run()
    early.unlink()
    nights.land(last_of_10, transaction(9, 900, insert("9", "i", oid=3)), name="10.bin")
    with pytest.raises(RunError, match=r"10\.bin has grown since it was read, but .*11\.bin was read after it"):
        nights.job.run()
    assert nights.job.versions() == versions


@pytest.mark.soak
def test_a_table_is_identified_by_its_oid(nights: Nights) -> None:
    """Renamed within a batch and across two, swapped, and displaced by another table and then renamed."""
    names = {1: "renamed", 2: "at_once", 3: "left", 4: "right", 5: "shop"}
    tables = [table(oid=oid, name=name) for oid, name in names.items()]
    nights.night(
        transaction(1, 100, *tables, *(insert("1", name, oid=oid) for oid, name in names.items())),
        transaction(2, 200, table(oid=2, name="at_once_2"), insert("2", "new", oid=2)),
    )
    assert (nights.values("at_once"), nights.values("at_once_2")) == ([], [("1", "at_once"), ("2", "new")])

    summary = nights.night(
        transaction(3, 300, table(oid=1, name="renamed_2"), insert("2", "new", oid=1)),
        transaction(4, 400, table(oid=3, name="right"), insert("2", "new", oid=3)),
        transaction(5, 500, table(oid=4, name="left"), insert("2", "new", oid=4)),
        transaction(6, 600, table(oid=6, name="shop"), insert("9", "another", oid=6)),
    )
    assert (nights.values("renamed"), nights.values("renamed_2")) == ([], [("1", "renamed"), ("2", "new")])
    assert nights.values("right") == [("1", "left"), ("2", "new")]
    assert nights.values("left") == [("1", "right"), ("2", "new")]
    assert nights.values("shop") == [("9", "another")]
    assert "table renamed (was public.renamed)" in summary_text(summary)

    nights.night(transaction(7, 700, table(oid=5, name="old_shop"), insert("2", "new", oid=5)))
    assert nights.values("old_shop") == [("1", "shop"), ("2", "new")]
    assert nights.values("shop") == [("9", "another")]


@pytest.mark.soak
def test_columns_are_added_and_dropped(nights: Nights) -> None:
    def described(*columns: str, oid: int) -> Relation:
        return table(*columns, oid=oid, name=f"t{oid}")

    within = [
        transaction(1, 100, described("id", "v", "old", oid=1), insert("1", "a", "gone", oid=1)),
        transaction(2, 200, described("id", "v", oid=1), insert("2", "b", oid=1)),
        transaction(3, 300, described("id", "v", "more", oid=1), insert("3", "c", "m", oid=1)),
        transaction(4, 400, described("id", "v", "old", oid=2), insert("1", "a", "gone", oid=2)),
    ]
    nights.night(*within)
    assert nights.values("t1") == [("1", "a", None), ("2", "b", None), ("3", "c", "m")]
    nights.night(
        transaction(5, 500, described("id", "v", oid=2), insert("2", "b", oid=2)),
        transaction(6, 600, described("id", "v", "more", oid=2), update("1", "aa", "m", oid=2)),
    )
    assert nights.values("t2") == [("1", "aa", "m"), ("2", "b", None)]


def test_a_table_that_can_not_be_updated_is_held_and_the_others_continue(nights: Nights) -> None:
    names = ["good", "swapped", "case", "dmy", "audit_x"]
    job = replace(nights.job, overrides=["tables=[{match: public.audit_*, skip: true}]"])
    nights.job = job
    tables = [table("id", "v", ("d", DATE), oid=oid, name=name) for oid, name in enumerate(names)]
    first = nights.night(
        transaction(1, 100, *tables, *(insert("1", "a", "2024-01-31", oid=oid) for oid in range(5))),
    )
    assert (first.exit_code, first.skipped) == (EXIT_DONE, ("public.audit_x",))
    assert not job.path("public", "audit_x").exists()
    versions = job.versions()

    path = nights.land(
        transaction(2, 200, insert("2", "b", "2024-01-31", oid=0)),
        transaction(3, 300, table("v", "id", ("d", DATE), oid=1, name="swapped"), insert("b", "2", None, oid=1)),
        transaction(4, 400, table("id", "v", ("d", DATE), "D", oid=2, name="case"), insert("2", "b", None, "", oid=2)),
        transaction(5, 500, insert("2", "b", "31/12/1977", oid=3)),
    )
    second = job.run()
    reasons = held(second)
    assert reasons.keys() == {"swapped", "case", "dmy"}
    assert "names that both versions have are out of order" in reasons["swapped"]
    assert "differ only in case" in reasons["case"]
    assert path.name in reasons["dmy"]
    assert "offset" in reasons["dmy"]
    assert "'d'" in reasons["dmy"]
    assert "1977" not in summary_text(second) + str(nights.ledger("quarantine"))
    assert second.exit_code == EXIT_QUARANTINE
    assert len(nights.values("good")) == 2
    assert {name: job.versions()[name] for name in reasons} == {name: versions[name] for name in reasons}
    assert {row["table"]: row["reason"] for row in nights.ledger("quarantine")} == reasons

    again = job.run()
    assert (held(again), again.exit_code) == (reasons, EXIT_QUARANTINE)
    third = nights.night(transaction(6, 600, insert("3", "c", None, oid=0)))
    assert (held(third), third.exit_code) == (reasons, EXIT_QUARANTINE), "also without changes"
    assert len(nights.values("good")) == 3
    assert len(nights.ledger("quarantine")) == 3


@pytest.mark.soak
def test_transactions_wait_for_their_end(nights: Nights) -> None:
    """Streamed, partly or wholly aborted, and prepared transactions over three nights, and their rows in the ledger."""
    streamed = segment(10, table(), insert("1", "streamed"), first=True)
    sub = segment(10, in_subtransaction(11, insert("2", "rolled back")))
    aborted = segment(20, insert("3", "never"), first=True)
    first = nights.night(
        streamed, aborted, prepared(30, table(), insert("4", "prepared")), transaction(1, 100, insert("5", "at once"))
    )
    assert first.open_transactions == 3
    assert nights.values("t") == [("5", "at once")]
    assert Counter(row["xid"] for row in nights.ledger("open_transactions")) == {10: 1, 20: 1, None: 1}

    second = nights.night([Type(None, 16999, "public", "mood")], sub, stream_abort(10, 11), stream_abort(20))
    assert second.open_transactions == 2
    assert second.aborted_transactions == 1
    assert nights.values("t") == [("5", "at once")]

    third = nights.night(segment(10, insert("6", "later")), stream_commit(10, 200), commit_prepared(30, 300))
    assert third.open_transactions == 0
    assert nights.values("t") == [("1", "streamed"), ("4", "prepared"), ("5", "at once"), ("6", "later")]
    assert {row["_pg_commit_lsn"] for row in nights.job.rows("public", "t")} == {100, 200, 300}
    assert nights.ledger("open_transactions") == []

    statuses = {(row["xid"], row["gid"], row["fate"], row["commit_lsn"]) for row in nights.ledger("transactions")}
    assert statuses == {
        (1, None, "committed", 100),
        (10, None, "committed", 200),
        (20, None, "aborted", None),
        (30, "gid-30", "committed", 300),
    }
    decided = {row["xid"]: row for row in nights.ledger("transactions") if row["units"] is not None}
    assert {xid: [(u["file"], u["unit"]) for u in row["units"]] for xid, row in decided.items()} == {
        10: [(0, 1), (1, 1), (2, 1)],
        20: [(0, 2)],
        30: [(0, 3)],
    }, "the rows of ordinary transactions tell their status"
    assert {xid: (row["scope"], row["aborted"]) for xid, row in decided.items()} == {
        10: (1, [11]),
        20: (2, []),
        30: (None, []),
    }
    batches = nights.ledger("batches")
    assert sorted((row["batch"], row["status"]) for row in batches) == [
        (n, status) for n in (1, 2, 3) for status in ("begun", "done")
    ]
    assert {row["batch"]: row["last_commit_lsn"] for row in batches if row["status"] == "done"} == {
        1: 100,
        2: 100,
        3: 300,
    }
    [stands] = next(row["tables"] for row in batches if row["batch"] == 3 and row["status"] == "done")
    assert (stands["table"], stands["version"]) == ("t", nights.job.versions()["t"])
    files = sorted(nights.ledger("files"), key=lambda row: int(row["file"]))
    assert [(Path(row["path"]).name, row["batch"]) for row in files] == [(f"00{n}.copydata", n + 1) for n in range(3)]
    assert dict(files[0]["messages"])["I"] == 4
    assert [dict(row["changes"]) for row in files] == [{T: 4}, {T: 1}, {T: 1}]
    assert [row["watermarks"] for row in files] == [[], [{"stretch": 0, "lsn": 100}], []]
    assert [(row["oid"], row["schema"], row["name"]) for row in nights.ledger("types")] == [(16999, "public", "mood")]
    assert {(row["oid"], row["table"]) for row in nights.ledger("relations")} == {(16384, "t")}


@pytest.mark.soak
def test_a_run_that_dies_is_finished_by_the_next_one(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once between two tables, once before the ledger's last rows. In a bag, rows applied twice would show."""
    job = nights.job = replace(nights.job, overrides=["merge.parallel_tables=1"])
    bags = [table("v", oid=oid, name=f"bag{oid}", identity=FULL) for oid in (1, 2)]
    write, append_files = merge.write, LedgerFiles.append
    written = 0

    def dies_at_the_second(*arguments: Any) -> commit.WriteResult:
        nonlocal written
        written += 1
        if written == 2:
            raise RuntimeError("the power is out")
        return write(*arguments)

    def dies(*_: Any) -> None:
        raise RuntimeError("the power is out")

    nights.night(transaction(1, 100, *bags, *[insert("a", oid=oid) for oid in (1, 2)]))
    monkeypatch.setattr(merge, "write", dies_at_the_second)
    with pytest.raises(RuntimeError, match="power"):
        nights.night(transaction(2, 200, *[insert("a", oid=oid) for oid in (1, 2)]))
    assert [len(nights.values(name)) for name in ("bag1", "bag2")] == [2, 1]

    nights.land(transaction(3, 300, delete_full("a", oid=1), insert("b", oid=1), insert("b", oid=2)))
    monkeypatch.setattr(LedgerFiles, "append", dies)
    with pytest.raises(RuntimeError, match="power"):
        job.run()
    assert [len(nights.values(name)) for name in ("bag1", "bag2")] == [2, 2]

    monkeypatch.setattr(LedgerFiles, "append", append_files)
    last = job.run()
    assert (last.batch, last.files) == (3, 1)
    assert nights.values("bag1") == [("a",), ("b",)]
    assert nights.values("bag2") == [("a",), ("a",), ("b",)]
    assert Counter(row["status"] for row in nights.ledger("claims")) == {"claimed": 5, "released": 5}
    files = {(row["batch"], Path(row["path"]).name) for row in nights.ledger("files")}
    assert files == {(1, "000.copydata"), (2, "001.copydata"), (3, "002.copydata")}
    assert Counter(row["commit_lsn"] for row in nights.ledger("transactions")) == {100: 1, 200: 1, 300: 1}


@pytest.mark.soak
def test_two_sources_share_a_ledger(nights: Nights) -> None:
    job = nights.job
    batches = []
    for name in ("east", "west"):
        landing = job.folder / name
        landing.mkdir()
        (landing / "0.bin").write_bytes(copydata(transaction(1, 100, table(), insert("1", name))))
    for name in ("east", "west", "east"):
        target = job.folder / f"tables_{name}"
        where = [f"source.landing={job.folder / name}", f"target.root={target}", f"state.root={job.folder / 'ledger'}"]
        summary = job.run(f"source.name={name}", *where)
        rows = job.spark.read.format("delta").load(str(target / "public" / "t")).toArrow().to_pylist()
        assert [row["v"] for row in rows] == [name]
        assert summary.batch == 1
        batches.append(summary.files)
    assert batches == [1, 1, 0], "the third finds nothing new"


def test_no_row_reaches_the_driver(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver collects few rows, however many the transactions have."""
    counts: list[int] = []
    frame = type(nights.job.spark.range(1))

    def counted(name: str) -> None:
        original = getattr(frame, name)

        def collect(self: Any, *arguments: Any) -> Any:
            rows = original(self, *arguments)
            counts.append(len(rows))
            return rows

        monkeypatch.setattr(frame, name, collect)

    for name in ("collect", "toArrow", "toPandas", "take", "tail"):
        counted(name)
    rows = [insert(str(n), "v") for n in range(5000)]
    streamed = segment(2, *rows, first=True)
    summary = nights.night(transaction(1, 100, table(), *rows), streamed, stream_commit(2, 200))
    monkeypatch.undo()
    assert [t.rows for t in summary.tables] == [5000]
    assert summary.messages["I"] == 10_000
    assert 0 < sum(counts) < 100
