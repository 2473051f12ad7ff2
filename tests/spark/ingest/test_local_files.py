"""Local files keep their tuples until a table is written. They may be renamed meanwhile, but not changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pgoutput_etl as pg
from pgoutput_etl.compression import decompress
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.ingest import binary_files, scanned_blocks
from pgoutput_etl.load import change_source
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.files.pipeline import PreparedFiles
from pgoutput_etl.work.kinds.redrive import Redrive
from tests.support.captures import CAPTURES, files_of, truth_tables
from tests.support.jobs import Job, Nights
from tests.support.small_archives import in_subtransaction, insert, segment, stream_commit, table, transaction, update

pytestmark = pytest.mark.spark

SLOT = "pg16/v4_twophase_parallel_binary"


@pytest.fixture(autouse=True)
def _as_if_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuples stay in their files, blocks in Spark, and several tasks type and reduce a table's changes."""
    monkeypatch.setattr(binary_files, "LEAVES_FROM", 0)
    monkeypatch.setattr(scanned_blocks, "_FEW_BYTES", -1)
    monkeypatch.setattr(change_source, "DRIVER_TABLE_BYTES", -1)
    monkeypatch.setattr(change_source, "SINGLE_TASK_BYTES", 100)


@pytest.mark.soak
def test_a_real_archive(spark: SparkSession, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_source, "SINGLE_TASK_BYTES", 100_000)
    job = Job(spark, tmp_path, landing)
    for path in files_of(CAPTURES / SLOT):
        (landing / path.stem).write_bytes(decompress(path.read_bytes(), path.name))
    assert [t.table for t in job.run().tables if t.held] == []
    job.assert_equals(truth_tables(CAPTURES / "pg16" / "truth"), "pg16")


@pytest.mark.soak
def test_rows_of_an_open_transaction_are_kept_in_the_ledger(nights: Nights) -> None:
    first = nights.land([*transaction(1, 100, table(), insert("1", "a")), *segment(9, insert("2", "open"), first=True)])
    nights.job.run()
    first.unlink()
    nights.night(segment(9, in_subtransaction(10, insert("3", "later"))), stream_commit(9, 300))
    assert nights.values("t") == [("1", "a"), ("2", "open"), ("3", "later")]


def between_scan_and_write(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    begin = PreparedFiles.begin

    def act_and_begin(self: PreparedFiles, record: Callable[[], None]) -> None:
        act()
        begin(self, record)

    monkeypatch.setattr(PreparedFiles, "begin", act_and_begin)


def test_a_file_that_its_receiver_renames_meanwhile(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    current = nights.land(transaction(1, 100, table(), insert("1", "a")), name="current")

    def rotate() -> None:
        current.rename(current.with_name("000"))
        nights.land(transaction(2, 200, table(), insert("2", "of the next file")), name="current")

    between_scan_and_write(monkeypatch, rotate)
    nights.job.run()
    assert nights.values("t") == [("1", "a")]
    monkeypatch.undo()
    nights.job.run()
    assert nights.values("t") == [("1", "a"), ("2", "of the next file")]


@pytest.mark.soak
def test_a_file_that_is_overwritten_meanwhile(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.night(transaction(1, 100, table(), insert("1", "a")))
    path = nights.land(transaction(2, 200, update("1", "secret")))
    content = path.read_bytes()
    between_scan_and_write(monkeypatch, lambda: path.write_bytes(content[:60] + b"\xff" * (len(content) - 60)))
    with pytest.raises(
        ArchiveError, match=r"^file:.*001\.copydata: an earlier run began to apply this file\."
    ) as raised:
        nights.job.run()
    assert "secret" not in str(raised.value)
    assert nights.values("t") == [("1", "a")]
    monkeypatch.undo()
    path.write_bytes(content)
    nights.job.run()
    assert nights.values("t") == [("1", "secret")]


def test_a_moment_outlives_its_files(nights: Nights) -> None:
    nights.night(transaction(1, 100, table(), insert("1", "a")), transaction(2, 200, update("1", "b")))
    rows = pg.read_at(nights.job.spark, nights.job.loaded(), lsn=100)["public.t"]
    (nights.job.landing / "000.copydata").unlink()
    assert [(row["id"], row["v"]) for row in rows.collect()] == [("1", "a")]


@pytest.mark.soak
def test_a_file_that_is_overwritten_during_a_redrive(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    path = nights.land(transaction(1, 100, table(), insert("1", "a")), transaction(2, 200, update("1", "secret")))
    content = path.read_bytes()
    at = content.index(b"t\x00\x00\x00\x06secret")
    path.write_bytes(content[:at] + b"?" + content[at + 1 :])
    assert [held.table for held in nights.job.run().tables if held.held]
    path.write_bytes(content)
    write = Redrive.write

    def overwrite_and_write(self: Redrive) -> None:
        path.write_bytes(content[:60] + b"\xff" * (len(content) - 60))
        write(self)

    monkeypatch.setattr(Redrive, "write", overwrite_and_write)
    with pytest.raises(ArchiveError, match="The file has changed since") as raised:
        nights.job.backfill(BackfillRequest(None))
    assert "secret" not in str(raised.value)
    monkeypatch.undo()
    path.write_bytes(content)
    nights.job.run()
    assert nights.values("t") == [("1", "secret")]
