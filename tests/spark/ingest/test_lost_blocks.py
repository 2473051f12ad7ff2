"""What a scan found is lost with an executor: files are read again, and must be those that were scanned.

To unpersist the blocks has the same effect as to lose the executors that hold them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.ingest import scanned_blocks
from pgoutput_etl.ingest.scanned_blocks import ScannedBlocks
from pgoutput_etl.load.writer import Writer
from pgoutput_etl.work.files import pipeline
from tests.support.jobs import Nights
from tests.support.small_archives import copydata, insert, table, transaction

pytestmark = pytest.mark.spark

ROWS = 2_000  # of a file: with more bytes than a driver types


def sent(number: int) -> bytes:
    rows = [insert(f"{number}.{row}", f"{row} " + "v" * 600) for row in range(ROWS)]
    return copydata(transaction(number, number * 0x100, table(), *rows), number << 24)


Lose = Callable[..., list[int]]


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Lose:
    """lose(begun, times, meanwhile): loses the blocks as a batch is planned, or after it has begun, so many times, and
    calls `meanwhile`. Returns a list that gets a number each time."""

    def losing(begun: bool, times: int, meanwhile: Callable[[], object] = lambda: None) -> list[int]:
        lost: list[int] = []

        def lose_now(blocks: ScannedBlocks) -> None:
            if len(lost) < times:
                lost.append(len(lost))
                assert blocks.persisted is not None
                blocks.persisted.unpersist(blocking=True)
                meanwhile()

        plan_batch, write = vars(pipeline)["plan_batch"], Writer.write

        def planning(run: Any, batch: Any, files: Any, assembly: Any) -> Any:
            lose_now(files.blocks)
            return plan_batch(run, batch, files, assembly)

        def writing(self: Any, plan: Any, changes: Any) -> Any:
            lose_now(changes.source.rows.blocks)
            return write(self, plan, changes)

        monkeypatch.setattr(scanned_blocks, "_FEW_BYTES", 0)
        if begun:
            monkeypatch.setattr(Writer, "write", writing)
        else:
            monkeypatch.setattr(pipeline, "plan_batch", planning)
        return lost

    return losing


def land(nights: Nights, number: int, name: str) -> Path:
    path = nights.job.landing / name
    path.write_bytes(sent(number))
    return path


def assert_applied(nights: Nights, files: int) -> None:
    assert len(set(nights.values("t"))) == files * ROWS
    assert len(nights.values("t")) == files * ROWS
    assert sorted(row["status"] for row in nights.ledger("batches")) == ["begun", "done"]


BEGUN = [False, pytest.param(True, marks=pytest.mark.soak)]


@pytest.mark.soak
@pytest.mark.parametrize("begun", BEGUN, ids=["planned", "begun"])
def test_a_run_reads_again_what_it_lost(nights: Nights, lose: Lose, begun: bool) -> None:
    """Files are known by their hashes from then on, and Spark itself computes again what it loses."""
    land(nights, 1, "1.bin")
    land(nights, 2, "2.bin")
    lost = lose(begun, times=2)
    nights.job.run()
    assert lost == [0, 1]
    assert_applied(nights, 2)


@pytest.mark.parametrize("begun", BEGUN, ids=["planned", "begun"])
def test_a_file_was_renamed_meanwhile(nights: Nights, lose: Lose, begun: bool) -> None:
    path = land(nights, 1, "current.bin")
    lost = lose(begun, 1, lambda: path.rename(nights.job.landing / "1.bin"))
    nights.job.run()
    assert lost == [0]
    assert_applied(nights, 1)


def test_another_file_is_never_read_in_place_of_the_scanned_one(nights: Nights, lose: Lose) -> None:
    path = land(nights, 1, "1.bin")
    lose(True, 1, lambda: path.write_bytes(sent(2)))
    with pytest.raises(ArchiveError, match=r"1\.bin: an earlier run began to apply this file.*put it back"):
        nights.job.run()
    path.write_bytes(sent(1))
    nights.job.run()
    assert_applied(nights, 1)
