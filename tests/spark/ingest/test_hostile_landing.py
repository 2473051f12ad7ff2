"""A hostile file is refused, and the others are applied; where nothing shows which file is wrong, the error says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgoutput_etl.answers.status.request import StatusRequest
from pgoutput_etl.answers.status.run import status
from pgoutput_etl.errors import ArchiveError, PgoutputEtlError, RunError, SequenceError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.ingest.listing import MAX_LENGTH
from pgoutput_etl.ledger.batches import LedgerFiles
from pgoutput_etl.protocol.messages import PgoutputMessage, Relation
from pgoutput_etl.work.backfill.request import BackfillRequest
from tests.support.jobs import Nights, dying, held
from tests.support.mutations import compress
from tests.support.small_archives import T, copydata, insert, table, transaction, truncate

pytestmark = pytest.mark.spark

HUGE = 10**17

OTHER = T + 1

REDRIVE = BackfillRequest(None)


def one(xid: int, lsn: int) -> list[PgoutputMessage]:
    return transaction(xid, lsn, insert(str(lsn), "x"))


def first() -> list[PgoutputMessage]:
    return transaction(1, 100, table(), insert("100", "x"))


def other() -> Relation:
    return table(oid=OTHER, name="other")


def bomb(path: Path) -> None:
    path.write_bytes(compress(bytes(400_000_000), ".zst"))


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        os.truncate(file.fileno(), 100 << 30)


@pytest.mark.parametrize("make", [pytest.param(bomb, marks=pytest.mark.soak), sparse])
def test_tables_are_held_from_a_file_in_which_nothing_can_be_read(nights: Nights, make: object) -> None:
    assert callable(make)
    nights.land(first(), one(2, 200), name="a-2026-01-01.copydata")
    hostile = nights.job.landing / "a-2026-01-02.copydata"
    make(hostile)
    nights.land(one(3, 300), name="a-2026-01-03.copydata")
    nights.job.spark.conf.set(MAX_LENGTH, "300000000")
    try:
        with pytest.raises(ArchiveError, match=r"01-02\.copydata.*(expands|carries) .*300,000,000") as stopped:
            nights.job.run("on_error=fail")
        assert "Until this is resolved, no files are applied" in str(stopped.value)

        summary = nights.job.run()
        assert (summary.exit_code, set(held(summary))) == (EXIT_QUARANTINE, {"t"})
        assert nights.values("t") == [("100", "x"), ("200", "x")]
        [refused] = summary.refused_files
        assert str(hostile) in refused
        assert "all tables are held at the commit before it" in refused
        assert any("--from-quarantine" in command.command for command in summary.next)
        again = nights.job.run()
        assert (again.exit_code, again.refused_files) == (EXIT_QUARANTINE, summary.refused_files)
        found = status(nights.job.loaded(), StatusRequest())
        assert found.quarantine.refused_files == summary.refused_files

        hostile.unlink()
        assert nights.job.backfill(REDRIVE).exit_code == EXIT_DONE
        assert nights.values("t") == [("100", "x"), ("200", "x"), ("300", "x")]
        nights.land(one(4, 400), name="a-2026-01-04.copydata")
        assert nights.job.run().exit_code == EXIT_DONE
    finally:
        nights.job.spark.conf.unset(MAX_LENGTH)


def test_consecutive_numbers_show_that_no_table_depends_on_a_bomb(nights: Nights) -> None:
    """And no file is ignored by a part of its name."""
    nights.land(first())
    nights.land(one(2, 200))
    bomb(nights.job.landing / "000x.copydata")
    bomb(nights.job.landing / "000y.copydata")
    nights.job.spark.conf.set(MAX_LENGTH, "300000000")
    try:
        summary = nights.job.run('source.ignore=["copydata", "00.copydata"]')
    finally:
        nights.job.spark.conf.unset(MAX_LENGTH)
    assert (summary.exit_code, held(summary), len(summary.refused_files)) == (EXIT_QUARANTINE, {}, 2)
    assert nights.values("t") == [("100", "x"), ("200", "x")]


@pytest.mark.soak
@pytest.mark.parametrize("lsn", [0x64 - 50, HUGE])
def test_the_tables_of_the_one_file_that_breaks_the_order_of_commits_are_held(nights: Nights, lsn: int) -> None:
    nights.night(first(), transaction(2, 200, other(), insert("200", "x", oid=OTHER)))
    nights.land(one(3, 300))
    hostile = nights.land(transaction(99, lsn, insert("forged", "x")))
    nights.land(one(4, 400))
    nights.land(transaction(5, 500, insert("500", "x", oid=OTHER)))
    summary = nights.job.run()
    assert (summary.exit_code, set(held(summary)), summary.last_commit_lsn) == (EXIT_QUARANTINE, {"t"}, 500)
    assert nights.values("t") == [("100", "x"), ("300", "x")]
    assert nights.values("other") == [("200", "x"), ("500", "x")], "other tables go on"
    [refused] = summary.refused_files
    assert f"{hostile} has commits that do not fit" in refused
    assert any("--from-quarantine" in command.command for command in summary.next)
    assert nights.job.run().refused_files == summary.refused_files
    with pytest.raises(SequenceError, match="was not resent"):
        nights.job.backfill(REDRIVE)
    hostile.unlink()
    assert nights.job.backfill(REDRIVE).exit_code == EXIT_DONE
    assert nights.values("t") == [("100", "x"), ("300", "x"), ("400", "x")]
    nights.land(one(6, 600))
    assert nights.job.run().exit_code == EXIT_DONE


@pytest.mark.parametrize("remedy", ["forged", pytest.param("good", marks=pytest.mark.soak)])
def test_a_good_file_among_forged_ones_loses_no_rows(nights: Nights, remedy: str) -> None:
    """The file that breaks the order is the good one. Its table is held until somebody says which files are wrong."""
    nights.night(transaction(1, 90, table(), insert("90", "x")))
    good = nights.land(one(2, 200))
    forged = [nights.land(one(50, 95)), nights.land(one(51, 96))]
    summary = nights.job.run()
    assert (summary.exit_code, set(held(summary))) == (EXIT_QUARANTINE, {"t"})
    assert nights.values("t") == [("90", "x")]
    wrong, right = (forged, ["200"]) if remedy == "forged" else ([good], ["95", "96"])
    names = ", ".join(f'"{path.name}"' for path in wrong)
    assert nights.job.backfill(REDRIVE, f"source.ignore=[{names}]").exit_code == EXIT_DONE
    assert nights.values("t") == sorted((value, "x") for value in ["90", *right])
    nights.land(one(3, 300))
    assert nights.job.run().last_commit_lsn == 300
    assert nights.values("t") == sorted((value, "x") for value in ["90", *right, "300"])


@pytest.mark.soak
def test_a_resumed_batch_holds_the_same_tables(nights: Nights) -> None:
    nights.night(first(), transaction(2, 200, other(), insert("200", "x", oid=OTHER)))
    nights.land(one(3, 300))
    hostile = nights.land(transaction(99, 50, truncate(OTHER)))
    nights.land(one(4, 400))
    nights.land(transaction(5, 500, insert("500", "x", oid=OTHER)))
    with dying(LedgerFiles, "append"):
        nights.job.run()
    hostile.unlink()
    summary = nights.job.run()
    assert (summary.exit_code, set(held(summary))) == (EXIT_QUARANTINE, {"other"})
    assert nights.values("t") == [("100", "x"), ("300", "x"), ("400", "x")]
    assert nights.values("other") == [("200", "x")]


@pytest.mark.soak
def test_both_files_are_named_if_nothing_shows_which_is_wrong(nights: Nights) -> None:
    nights.night(first())
    hostile = nights.land(transaction(99, HUGE, insert("forged", "x")))
    good = nights.land(one(2, 200))
    with pytest.raises(ArchiveError, match="one of the two files is wrong") as stopped:
        nights.job.run()
    assert str(hostile) in str(stopped.value)
    assert str(good) in str(stopped.value)
    nights.job.run(f'source.ignore=["{hostile.name}"]')
    assert nights.values("t") == [("100", "x"), ("200", "x")]


@pytest.mark.soak
def test_a_forged_commit_that_was_applied_is_named(nights: Nights) -> None:
    nights.night(first())
    hostile = nights.land(transaction(99, HUGE, insert("forged", "x")))
    nights.job.run()
    good = [nights.land(one(2, 200)), nights.land(one(3, 300))]
    with pytest.raises(ArchiveError, match="one of the two files is wrong") as stopped:
        nights.job.run()
    assert str(hostile) in str(stopped.value)
    assert str(good[0]) in str(stopped.value)


def test_the_printed_command_goes_on_without_a_file_and_it_is_not_forgotten(nights: Nights) -> None:
    nights.night(first())
    nights.land(one(3, 200), name="002.copydata")
    garbage = nights.job.landing / "001, \"x'\N{GRINNING FACE}${HOME}.copydata"
    garbage.write_bytes(b"no messages at all" * 20)
    with pytest.raises(ArchiveError, match="Until this is resolved, no files are applied") as stopped:
        nights.job.run()
    job, option, ignore = stopped.value.next_job
    assert (job, option) == ("apply", "--set")
    summary = nights.job.run(ignore)
    assert (summary.exit_code, summary.files) == (EXIT_QUARANTINE, 1)
    assert nights.values("t") == [("100", "x"), ("200", "x")]
    [refused] = summary.refused_files
    assert "source.ignore names it" in refused
    assert nights.job.run().refused_files == summary.refused_files, "without the option, too"
    assert status(nights.job.loaded(), StatusRequest()).quarantine.refused_files == summary.refused_files

    nights.land(one(2, 150), name=garbage.name)
    assert nights.job.run().exit_code == EXIT_QUARANTINE, "the right content stops nobody"
    assert nights.job.backfill(REDRIVE).exit_code == EXIT_DONE
    assert nights.values("t") == [("100", "x"), ("150", "x"), ("200", "x")]


@pytest.mark.soak
def test_bytes_of_an_ignored_file_stay_in_the_accounts(nights: Nights) -> None:
    nights.land(first())
    garbage = nights.job.landing / "000-x.copydata"
    garbage.write_bytes(b"no messages at all" * 20)
    summary = nights.job.run('source.ignore=["000-x.copydata"]')
    assert summary.accounts["quarantined"] == 360
    garbage.unlink()
    assert nights.night(one(2, 200)).exit_code == EXIT_DONE
    assert [row["quarantined"] for row in nights.ledger("files") if row["path"].endswith("000-x.copydata")] == [360]


@pytest.mark.soak
def test_an_applied_file_that_is_wrong_can_be_ignored(nights: Nights) -> None:
    nights.night(first())
    hostile = nights.land(transaction(99, HUGE, insert("forged", "x")), name="zzzz.copydata")
    nights.job.run()
    good = nights.land(one(2, 200))
    with pytest.raises(RunError, match="sorts before") as stopped:
        nights.job.run()
    assert (str(hostile) in str(stopped.value), str(good) in str(stopped.value)) == (True, True)
    assert stopped.value.next_job == (), "the good file must not be the one to ignore"
    nights.job.backfill(REDRIVE, 'source.ignore=["zzzz.copydata"]')
    assert nights.values("t") == [("100", "x")]
    assert nights.job.run().last_commit_lsn == 200
    assert nights.values("t") == [("100", "x"), ("200", "x")]


@pytest.mark.soak
def test_an_unreadable_file_that_is_still_there_stops_the_redrive_with_a_command(nights: Nights) -> None:
    nights.land(first(), name="a-2026-01-01.copydata")
    hostile = nights.job.landing / "a-2026-01-02.copydata"
    sparse(hostile)
    nights.land(one(3, 300), name="a-2026-01-03.copydata")
    assert set(held(nights.job.run())) == {"t"}
    with pytest.raises(ArchiveError, match="remove it, or rebuild the tables without it") as stopped:
        nights.job.backfill(REDRIVE)
    *job, ignore = stopped.value.next_job
    assert job == ["backfill", "--from-quarantine", "--set"]
    assert nights.job.backfill(REDRIVE, ignore).exit_code == EXIT_DONE
    assert nights.values("t") == [("100", "x"), ("300", "x")]
    nights.land(one(4, 400), name="a-2026-01-04.copydata")
    assert nights.job.run().last_commit_lsn == 400


@pytest.mark.soak
def test_a_large_file_with_bytes_stops_the_run_because_it_can_be_split(nights: Nights) -> None:
    nights.land(first())
    (nights.job.landing / "001.copydata").write_bytes(copydata(one(2, 200)) * 100)
    nights.job.spark.conf.set(MAX_LENGTH, "5000")
    try:
        with pytest.raises(PgoutputEtlError, match="Land smaller files") as stopped:
            nights.job.run()
        assert stopped.value.next_job[0] == "apply"
    finally:
        nights.job.spark.conf.unset(MAX_LENGTH)
