"""Small files that are read together give the same rows, summaries, and errors as files that are read one by one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pgoutput_etl import jit
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan import small_files
from pgoutput_etl.scan.fast.messages import MOST_MESSAGES
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA, SUMMARY_TAG
from pgoutput_etl.scan.request import ScanRequest, ScanResult
from pgoutput_etl.scan.row_buffer import BATCH_ROWS
from pgoutput_etl.scan.scan_file import scan_either_way
from pgoutput_etl.scan.small_files import SmallFiles
from tests.support import encoder
from tests.support.model.history import random_history, random_options
from tests.support.mutations import SLOTS
from tests.support.scan_parts import FRAMINGS, landed, parts
from tests.support.small_archives import insert, table, transaction

pytestmark = pytest.mark.skipif(not jit.AVAILABLE, reason=f"no kernels: {jit.WHY_NOT}")


@dataclass(slots=True)
class Scanned:
    """batches: the rows of all files. together: the number of files that were read with others."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    together: int = 0

    def rows(self, are_summaries: bool) -> pa.Table:
        rows = pa.Table.from_batches(self.batches, MESSAGE_SCHEMA)
        is_summary = pc.equal(rows.column("tag"), SUMMARY_TAG)
        return rows.filter(is_summary if are_summaries else pc.invert(is_summary)).combine_chunks()


def scanned_one_by_one(requests: Iterable[ScanRequest]) -> Scanned:
    scanned = Scanned()
    for request in requests:
        try:
            scanned.batches += scan_either_way(request).batches
        except ArchiveError as error:
            scanned.errors[request.file] = str(error)
    return scanned


def scanned_together(requests: Iterable[ScanRequest]) -> Scanned:
    scanned, small = Scanned(), SmallFiles()
    for request in requests:
        try:
            result = scan_either_way(replace(request, read_together=small.read))
        except ArchiveError as error:
            scanned.errors[request.file] = str(error)
        else:
            scanned.together += result.is_together
            scanned.batches += small.batches_with(result)
    scanned.batches += small.rest()
    return scanned


def checked(requests: Iterable[ScanRequest]) -> int:
    """Compares both ways. Returns the number of files that were read together."""
    numbered = [replace(request, file=number) for number, request in enumerate(requests)]
    expected, found = scanned_one_by_one(numbered), scanned_together(numbered)
    for are_summaries in (False, True):
        theirs, ours = expected.rows(are_summaries), found.rows(are_summaries)
        ours.validate(full=True)
        assert [name for name in MESSAGE_SCHEMA.names if ours.column(name) != theirs.column(name)] == []
    assert found.errors == expected.errors
    return found.together


def random_files(seed: int) -> Iterator[ScanRequest]:
    """A random history, cut after any messages."""
    chance = random.Random(seed)
    messages = [encoder.encode(message) for message in random_history(chance, random_options(chance)).messages]
    cuts = sorted({0, len(messages), *(chance.randrange(len(messages) + 1) for _ in range(len(messages) // 8))})
    framing = chance.choice(FRAMINGS)
    for begin, end in pairwise(cuts):
        yield ScanRequest(landed(messages[begin:end], framing, chance), 0, framing, salvages=seed % 2 == 0)


@pytest.fixture(params=[40, BATCH_ROWS], ids=["small batches", "large batches"])
def _batch_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "BATCH_ROWS", request.param)


@pytest.mark.usefixtures("_batch_rows")
def test_random_archives_are_the_same_together() -> None:
    assert checked(file for seed in range(40) for file in random_files(seed)) > 50


@pytest.mark.usefixtures("_batch_rows")
def test_what_is_cut_or_spoilt_is_the_same_together() -> None:
    files = [part for slot in SLOTS for part in parts(slot, random.Random(slot), 80, 100)]
    random.Random(1).shuffle(files)
    assert checked(files) > 20


@pytest.mark.parametrize("framing", FRAMINGS[:2] + FRAMINGS[3:], ids=lambda framing: framing.value)
def test_an_ordinary_archive_is_read_together_wherever_it_is_cut(framing: Framing) -> None:
    history = [
        m for n in range(30) for m in transaction(n + 1, 10 * (n + 1), table(), *(insert(str(n)) for n in range(9)))
    ]
    messages = [encoder.encode(message) for message in history]
    for size in (1, 2, 3, 7, 50):
        files = [landed(messages[n : n + size], framing, random.Random(n)) for n in range(0, len(messages), size)]
        together = checked(ScanRequest(file, 0, framing, False) for file in files)
        # A file without a Begin or Commit may continue a stream segment.
        assert together > 0.9 * len(files) or size < 12


def test_a_file_with_more_rows_than_there_is_room_begins_a_batch() -> None:
    size = MOST_MESSAGES // 2
    messages = [encoder.encode(message) for message in transaction(1, 10, *[insert("1", "")] * (size - 1000))]
    file = ScanRequest(landed(messages, Framing.LENGTH_PREFIXED, random.Random(0)), 0, Framing.LENGTH_PREFIXED, False)
    assert len(file.data) < small_files._MOST_BYTES
    assert checked([file] * 5) == 5


def test_a_large_file_is_read_by_itself() -> None:
    file = landed([encoder.encode(m) for m in transaction(1, 10, insert("x" * 300_000))], FRAMINGS[0], random.Random(0))
    assert checked([ScanRequest(file, 0, FRAMINGS[0], False)]) == 0


def test_rows_come_in_the_order_of_the_files() -> None:
    small = SmallFiles()
    first = scan_either_way(ScanRequest(_committed(1), 1, FRAMINGS[0], False, read_together=small.read))
    assert first.is_together
    assert list(small.batches_with(first)) == []
    other: ScanResult = scan_either_way(ScanRequest(_committed(2), 2, FRAMINGS[0], False))
    files = [batch.column("file").to_pylist() for batch in small.batches_with(other)]
    assert [{*numbers} for numbers in files] == [{1}, {1}, {2}, {2}]


def _committed(xid: int) -> bytes:
    return landed([encoder.encode(m) for m in transaction(xid, 10, insert("1"))], FRAMINGS[0], random.Random(0))
