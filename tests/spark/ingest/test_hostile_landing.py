"""A hostile file is refused, and the others are applied; where nothing shows which file is wrong, the error says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgoutput_etl.errors import ArchiveError, PgoutputEtlError, RunError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.ingest.listing import MAX_LENGTH
from pgoutput_etl.jobs.backfill.request import BackfillRequest
from pgoutput_etl.jobs.status.request import StatusRequest
from pgoutput_etl.jobs.status.run import status
from pgoutput_etl.protocol.messages import PgoutputMessage
from tests.support.jobs import Nights, held
from tests.support.mutations import compress
from tests.support.small_archives import copydata, insert, table, transaction

pytestmark = pytest.mark.spark

HUGE = 10**17

REDRIVE = BackfillRequest(None)


def one(xid: int, lsn: int) -> list[PgoutputMessage]:
    return transaction(xid, lsn, insert(str(lsn), "x"))


def first() -> list[PgoutputMessage]:
    return transaction(1, 100, table(), insert("100", "x"))


def bomb(path: Path) -> None:
    path.write_bytes(compress(bytes(400_000_000), ".zst"))


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        os.truncate(file.fileno(), 100 << 30)


@pytest.mark.parametrize("make", [bomb, sparse])
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
        assert "No file is applied meanwhile" in str(stopped.value)

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
    nights.land(first())
    nights.land(one(2, 200))
    bomb(nights.job.landing / "000x.copydata")
    bomb(nights.job.landing / "000y.copydata")
    nights.job.spark.conf.set(MAX_LENGTH, "300000000")
    try:
        summary = nights.job.run()
    finally:
        nights.job.spark.conf.unset(MAX_LENGTH)
    assert (summary.exit_code, held(summary), len(summary.refused_files)) == (EXIT_QUARANTINE, {}, 2)
    assert nights.values("t") == [("100", "x"), ("200", "x")]


@pytest.mark.parametrize("lsn", [0x64 - 50, HUGE])
def test_the_one_file_that_breaks_the_order_of_commits_is_refused(nights: Nights, lsn: int) -> None:
    nights.night(first(), one(2, 200))
    nights.land(one(3, 300))
    hostile = nights.land(transaction(99, lsn, insert("forged", "x")))
    nights.land(one(4, 400))
    nights.land(one(5, 500))
    summary = nights.job.run()
    assert (summary.exit_code, held(summary), summary.last_commit_lsn) == (EXIT_QUARANTINE, {}, 500)
    assert nights.values("t") == [(str(number), "x") for number in (100, 200, 300, 400, 500)]
    [refused] = summary.refused_files
    assert f"{hostile} has commits that no file in its place can have" in refused
    assert nights.job.run().refused_files == summary.refused_files
    hostile.unlink()
    nights.land(one(6, 600))
    assert nights.job.run().exit_code == EXIT_DONE


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
    nights.land(one(2, 200), name="002.copydata")
    garbage = nights.job.landing / "001, \"x'.copydata"
    garbage.write_bytes(b"no messages at all" * 20)
    with pytest.raises(ArchiveError, match="No file is applied meanwhile") as stopped:
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

    late = nights.land(one(3, 150), name="000-1.copydata")
    with pytest.raises(RunError, match="sorts before") as stopped_late:
        nights.job.run()
    assert nights.job.run(stopped_late.value.next_job[2]).exit_code == EXIT_QUARANTINE
    assert nights.values("t") == [("100", "x"), ("200", "x")]
    found = status(nights.job.loaded(), StatusRequest()).quarantine.refused_files
    assert {line.partition(" was not applied")[0] for line in found} == {f"file:{garbage}", f"file:{late}"}


def test_a_file_of_another_night_cant_be_ignored_by_part_of_its_name(nights: Nights) -> None:
    nights.land(first())
    summary = nights.job.run('source.ignore=["copydata", "00.copydata"]')
    assert (summary.exit_code, nights.values("t")) == (EXIT_DONE, [("100", "x")])


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
