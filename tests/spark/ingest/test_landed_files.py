"""Landed files in real runs: the applied rows, the report, and the ledger's record.

tests/core/landing/test_selection.py tests the same and much more without Spark.
"""

from __future__ import annotations

import gzip
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.ingest import landing_folder
from pgoutput_etl.ingest.binary_files import scan_files
from pgoutput_etl.ingest.listing import list_landing
from pgoutput_etl.landing.file_index import Listing
from pgoutput_etl.load import mirror as merge
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.work.files.report import RunSummary
from tests.core.landing.test_selection import FRAMINGS, landed, real_messages
from tests.support import encoder, jobs
from tests.support.captures import CAPTURES, truth_tables
from tests.support.jobs import Nights
from tests.support.small_archives import Messages, copydata, insert, table, transaction

pytestmark = pytest.mark.spark


def one(number: int, *, first: bool = False) -> Messages:
    """For a table without a key, so that a row applied twice is visible."""
    described = [table("v", identity=ReplicaIdentity.FULL)] if first else []
    return transaction(number, number * 100, *described, insert(str(number)))


def sent(number: int) -> bytes:
    return copydata(one(number, first=number == 1), number << 24)


def up_to(number: int) -> list[tuple[str]]:
    return [(str(n),) for n in range(1, number + 1)]


def files(nights: Nights) -> list[tuple[int, str, str, int | None]]:
    rows = sorted(nights.ledger("files"), key=lambda row: int(row["file"]))
    return [(row["file"], Path(row["path"]).name, row["status"], row["same_as"]) for row in rows]


def summary_line(summary: RunSummary) -> str:
    """On one line, whatever the length of the names."""
    return " ".join(jobs.summary_text(summary).split())


@pytest.mark.soak
def test_growth_rotation_and_compression(nights: Nights) -> None:
    folder = nights.job.landing
    current = folder / "current.bin"
    first, second, third = sent(1), sent(2), sent(3)
    current.write_bytes(first + second[:50])
    (folder / ".part.bin").write_bytes(b"not to be read")
    (folder / "_tmp.bin").write_bytes(b"nor this")
    (folder / "current.bin.1").write_bytes(b"")
    summary = nights.job.run()
    assert (summary.exit_code, nights.values("t")) == (EXIT_DONE, up_to(1))
    assert f"current.bin: the bytes after offset {len(first)} are left for the next run" in summary_line(summary)

    current.write_bytes(first + second + third[:-1])
    shutil.copy(current, folder / "9 [copy].bin")
    nights.job.run()
    assert nights.values("t") == up_to(2)

    (folder / "9 [copy].bin").unlink()
    (folder / "2026-01-01.bin.gz").write_bytes(gzip.compress(first + second + third))
    current.write_bytes(sent(4))
    summary = nights.job.run()
    assert (summary.files, nights.values("t")) == (2, up_to(4))
    rows = {row["file"]: row for row in nights.ledger("files") if row["status"] == "read" and row["consumed"]}
    parts = [(row["offset"], row["consumed"]) for row in rows.values() if row["same_as"] is not None]
    [(begin, middle), (goes_on, end)] = sorted(parts)
    assert (begin, goes_on, end) == (len(first), middle, len(first + second + third)), "by whole messages"
    assert len(first + second) < middle < end

    (folder / "2026-01-01.bin.gz").unlink()
    assert nights.job.run().files == 0


def test_duplicates_and_other_content_under_a_known_name(nights: Nights) -> None:
    job, folder = nights.job, nights.job.landing
    content = sent(1)
    (folder / "1.bin").write_bytes(content)
    (folder / "2.bin").write_bytes(content)
    summary = job.run()
    assert (summary.files, nights.values("t")) == (1, up_to(1))
    assert "2.bin: landed again, and not applied again" in summary_line(summary)

    os.utime(folder / "1.bin", (1, 1))
    summary = job.run()
    assert (summary.batch, summary.files) == (1, 0), "rewritten unchanged"

    (folder / "1.bin").write_bytes(sent(2))
    shutil.copy(folder / "1.bin", folder / "3.gz")
    summary = job.run()
    assert (summary.exit_code, nights.values("t")) == (EXIT_QUARANTINE, up_to(2))
    assert "1.bin was read before and has other content now, which was not applied" in summary_line(summary)
    assert "3.gz: named .gz, but not compressed" in summary_line(summary)
    [row] = nights.ledger("quarantine")
    assert (row["file"], row["batch"]) == (4, 2)
    assert row["reason"].startswith(f"file:{folder}/1.bin was read before")
    again = job.run()
    assert (again.files, again.refused_files) == (0, summary.refused_files), "reported until another file is read"
    assert again.exit_code == EXIT_QUARANTINE
    assert files(nights) == [
        (0, "1.bin", "read", None),
        (1, "2.bin", "duplicate", 0),
        (3, "3.gz", "read", None),
        (4, "1.bin", "refused", None),
    ]


def as_of_an_older_version(nights: Nights) -> None:
    """Rewrites the ledger without the columns of files that newer versions added."""
    spark, root = nights.job.spark, nights.job.folder / "tables" / "_pgoutput_etl"
    files = spark.read.format("delta").load(str(root / "files")).drop("head")
    batches = spark.read.format("delta").load(str(root / "batches"))
    batches = batches.withColumn("files", F.transform("files", lambda f: f.dropFields("decompressed_size", "head")))
    for name, rows in (("files", files), ("batches", batches)):
        rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(root / name))


@pytest.mark.soak
def test_an_older_ledger_recognizes_renamed_files(nights: Nights) -> None:
    job, folder = nights.job, nights.job.landing
    for number in (1, 2, 3):
        (folder / f"{number}.bin").write_bytes(sent(number))
    job.run()
    as_of_an_older_version(nights)
    shutil.copy(folder / "1.bin", folder / "4.bin")
    (folder / "2.bin").rename(folder / "5.bin")
    (folder / "3.bin").unlink()
    (folder / "6.bin.gz").write_bytes(gzip.compress(sent(3) + sent(4)))
    (folder / "7.bin").write_bytes(sent(5))
    summary = job.run()
    assert (summary.exit_code, summary.files, nights.values("t")) == (EXIT_DONE, 2, up_to(5))
    assert [file for file in files(nights) if file[0] > 2] == [
        (5, "6.bin.gz", "read", 2),
        (6, "7.bin", "read", None),
        (7, "4.bin", "duplicate", 0),
        (8, "5.bin", "moved", 1),
    ]
    heads = {row["file"]: row["head"] for row in nights.ledger("files")}
    assert [number for number, head in sorted(heads.items()) if head is None] == [0, 1, 2]
    (folder / "7.bin").rename(folder / "8.bin")
    (folder / "9.bin").write_bytes(sent(6))
    job.run()
    assert nights.values("t") == up_to(6)


@pytest.mark.soak
def test_a_dead_runs_batch_is_resumed_with_the_same_bytes_of_renamed_files(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file grows, is renamed and compressed before the next run, and another file gets its name."""
    folder = nights.job.landing
    first, second = sent(1), sent(2)
    (folder / "current.bin").write_bytes(first + second[:20])
    (folder / "empty.bin").write_bytes(b"")
    with monkeypatch.context() as patched:
        patched.setattr(merge, "write", _dies)
        with pytest.raises(RuntimeError, match="power"):
            nights.job.run()
    (folder / "empty.bin").unlink()
    (folder / "2026.bin.gz").write_bytes(gzip.compress(first + second))
    (folder / "current.bin").write_bytes(sent(3))
    nights.job.run()
    assert nights.values("t") == up_to(3)
    assert [(name, status) for _, name, status, _ in files(nights)] == [
        ("2026.bin.gz", "read"),
        ("2026.bin.gz", "read"),
        ("current.bin", "read"),
    ]

    (folder / "current.bin").write_bytes(sent(3) + sent(4))
    with monkeypatch.context() as patched:
        patched.setattr(merge, "write", _dies)
        with pytest.raises(RuntimeError, match="power"):
            nights.job.run()
    hidden = (folder / "current.bin").rename(folder / ".gone")
    with pytest.raises(ArchiveError, match=r"current\.bin: an earlier run began to apply this file.*put it back"):
        nights.job.run()
    hidden.rename(folder / "current.bin")
    nights.job.run()
    assert nights.values("t") == up_to(4)


def _dies(*_: Any) -> None:
    raise RuntimeError("the power is out")


@pytest.mark.soak
def test_a_file_that_vanishes_before_it_is_read(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = nights.job.landing
    (folder / "1.bin").write_bytes(sent(1))
    (folder / "2.bin").write_bytes(sent(2))

    def cleaned_up(*arguments: Any) -> Any:
        (folder / "2.bin").unlink()
        return scan_files(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(landing_folder, "scan_files", cleaned_up)
        with pytest.raises(ArchiveError, match=r"2\.bin: it can't be read"):
            nights.job.run()
    assert nights.ledger("batches") == []
    nights.job.run()
    assert nights.values("t") == up_to(1)


@pytest.mark.soak
def test_a_file_that_grows_while_the_folder_is_listed(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """1.bin gets its last bytes after it was listed, and 2.bin begins after that."""
    folder = nights.job.landing
    first, second = sent(1), sent(2)
    (folder / "1.bin").write_bytes(first)
    calls = 0

    def listing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        listed = list_landing(*arguments)
        if calls == 1:
            (folder / "1.bin").write_bytes(first + second)
            (folder / "2.bin").write_bytes(sent(3))
            listed = Listing.of([*listed.files(), *(f for f in list_landing(*arguments).files() if "2.bin" in f.path)])
        return listed

    monkeypatch.setattr(landing_folder, "list_landing", listing)
    nights.job.run()
    assert nights.values("t") == up_to(3)


@pytest.mark.soak
def test_a_duplicate_or_an_empty_file_fills_its_number(nights: Nights) -> None:
    folder = nights.job.landing
    for number in (1, 2, 3):
        (folder / f"{number}.bin").write_bytes(sent(number))
    (folder / "4.bin").write_bytes(sent(3))
    (folder / "5.bin").write_bytes(b"")
    nights.job.run()
    (folder / "4.bin").unlink()
    (folder / "6.bin").write_bytes(sent(4))
    nights.job.run()
    assert nights.values("t") == up_to(4)


def many_small_files(folder: Path, count: int) -> None:
    for number in range(1, count + 1):
        rows = [encoder.Row(0, 0, encoder.encode(m)) for m in one(number, first=number == 1)]
        framing = sorted(FRAMINGS)[number % len(FRAMINGS)]
        (folder / f"{number}.bin").write_bytes(FRAMINGS[framing](rows))


@pytest.mark.soak
@pytest.mark.parametrize("count", [300, 10_000])
def test_many_small_files_of_all_framings(count: int, nights: Nights) -> None:
    many_small_files(nights.job.landing, count)
    summary = nights.job.run()
    assert (summary.files, summary.committed_transactions) == (count, count)
    assert nights.values("t") == sorted(up_to(count))
    many_small_files(nights.job.landing, count + 1)
    assert nights.job.run().files == 1
    assert len(nights.values("t")) == count + 1


@pytest.mark.parametrize(
    ("slot", "framing"),
    [
        pytest.param(slot, framing, marks=pytest.mark.soak)
        for slot in ("v1", "v2", "v3", "v4b")
        for framing in sorted(FRAMINGS)
    ],
)
def test_a_real_archive_in_one_growing_file(slot: str, framing: str, nights: Nights) -> None:
    content = landed(real_messages(slot), framing)
    for size in (*sorted(random.Random(f"{slot} {framing}").sample(range(len(content)), 2)), len(content)):
        (nights.job.landing / "current.bin").write_bytes(content[:size])
        nights.job.run()
    nights.job.assert_equals(truth_tables(CAPTURES / "random16" / "truth"), "random16")
