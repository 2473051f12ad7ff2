"""A landing folder in memory, and the nightly job's reading of it without Spark: run after run, into a Replay."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from pgoutput_etl.compression import read_content
from pgoutput_etl.errors import ArchiveError, PgoutputEtlError
from pgoutput_etl.landing.batching import commits_in, in_steps
from pgoutput_etl.landing.file_index import FileIndex, Listing, scan_tasks
from pgoutput_etl.landing.fingerprint import FilePart, FileStatus, KnownContents, LandedFile, ScanTask, task_again
from pgoutput_etl.landing.incremental_scan import scan_error, scan_part
from pgoutput_etl.landing.known_files import KnownFiles, candidates
from pgoutput_etl.landing.selection import FileSelection, refuse, select_files, tail_remark, with_scan
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.scan.blocks import BlockKind, Packer, unpacked
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.fragment import ScanResult
from pgoutput_etl.scan.message_row import ScanError
from pgoutput_etl.transactions.statistics import COUNTED_KINDS, BatchStatistics
from pgoutput_etl.transactions.status_lookup import StatusLookup
from tests.support.small_archives import Rows, tables


@dataclass
class LandingFolder:
    """Files by name; `known` is what the ledger keeps of them, `accounts` what became of the bytes of each part."""

    files: dict[str, LandedFile] = field(default_factory=dict)
    content: dict[str, bytes] = field(default_factory=dict)
    known: dict[int, FilePart] = field(default_factory=dict)
    accounts: dict[int, dict[str, int]] = field(default_factory=dict)
    scans: dict[int, FileScan] = field(default_factory=dict)
    replay: Replay = field(init=False)
    salvages: bool = False
    framing: Framing = Framing.AUTO
    clock: int = 0
    most: int | None = None  # transactions in one batch
    batches: int = 0
    keyed_from: int = 0  # the first part of a version that keeps heads
    dies: Callable[[], bool] = lambda: False  # asked between two batches of a run
    # The last run's: the damages that it found, and the lines about tails and refused files.
    damages: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.replay = Replay(salvages=self.salvages)

    def put(self, name: str, content: bytes) -> None:
        self.clock += 1
        self.files[name] = LandedFile(name, len(content), self.clock)
        self.content[name] = content

    def append(self, name: str, more: bytes) -> None:
        self.put(name, self.content.get(name, b"") + more)

    def remove(self, name: str) -> bytes:
        del self.files[name]
        return self.content.pop(name)

    def rename(self, name: str, to: str) -> None:
        file = replace(self.files[name], path=to)
        self.content[to] = self.remove(name)
        self.files[to] = file

    def data(self, name: str) -> bytes:
        """Decompressed."""
        return read_content(self.content[name], name).data

    def run(self) -> FileSelection:
        self.damages, self.said = [], []
        index, listing = FileIndex.of(self.without_heads(self.known)), Listing.of(self.files.values())
        looked_at = index.to_inspect(listing)
        files = candidates(looked_at, index.known([file.path for file in looked_at]))
        found, scanned = self._arranged_from(index, listing, files)
        newest = max((n for n, part in found.to_read.items() if part.was_read or part.unfinished), default=None)
        commits = {files[n].path: commits_in(each.summary) for n, each in scanned.items() if n in files}
        for i, step in enumerate(in_steps(found, commits, self.most)):
            if i and self.dies():
                break
            self._apply(step, newest, scanned)
        if not files:
            self.said = [tail_remark(part) for part in index.tails(listing)]
        self.said += found.remarks
        return found

    def without_heads(self, known: dict[int, FilePart]) -> dict[int, FilePart]:
        """As an older version left them, of the parts that it noted."""
        return {n: replace(part, head=None) if n < self.keyed_from else part for n, part in known.items()}

    def _arranged_from(
        self, index: FileIndex, listing: Listing, files: dict[int, LandedFile]
    ) -> tuple[FileSelection, dict[int, ScanResult]]:
        """By what matters of known files, as the job does it; which has to say what all of them together say."""
        try:
            expected = self._arranged_from_all(files)
        except PgoutputEtlError as refusal:
            with pytest.raises(type(refusal), match=f"^{re.escape(str(refusal))}$"):
                self._arranged_by_few(index, listing, files)
            raise
        found, scanned = self._arranged_by_few(index, listing, files)
        assert found.parts == expected.parts
        assert sorted(found.remarks) == sorted(expected.remarks)
        return found, scanned

    def _arranged_from_all(self, files: dict[int, LandedFile]) -> FileSelection:
        known = KnownFiles.of(self.known)
        assert files == candidates(self.files.values(), known)
        scanned, errors = self._scan(scan_tasks(files), known.contents())
        return select_files(files, _summaries(scanned), errors, known, self.files)

    def _arranged_by_few(
        self, index: FileIndex, listing: Listing, files: dict[int, LandedFile]
    ) -> tuple[FileSelection, dict[int, ScanResult]]:
        tasks = scan_tasks(files)
        known = index.known(tasks)
        scanned, errors = self._scan(tasks, known.contents(index.unkeyed()))
        found, _ = index.select(files, listing, known, _summaries(scanned), errors, self._scan_closer)
        return found, scanned

    def _scan_closer(
        self, tasks: Mapping[str, ScanTask], contents: KnownContents
    ) -> tuple[dict[int, FileScan], dict[int, ScanError]]:
        scanned, errors = self._scan(tasks, contents)
        return _summaries(scanned), errors

    def _apply(self, step: FileSelection, newest: int | None, scanned: dict[int, ScanResult]) -> None:
        parts = step.parts
        if step.rescan:
            tasks = {part.path: ScanTask(n, part.size, n == newest, part) for n, part in step.to_read.items()}
            scanned, errors = self._scan(tasks, KnownContents({}))
            refuse(error.text for error in errors.values())
            parts |= {n: with_scan(parts[n], each.summary) for n, each in scanned.items()}
        self.scans |= {n: scanned[n].summary for n in step.to_read}
        for number in sorted(step.to_read):
            self.replay.add_scanned(parts[number].path, scanned[number])
        self.known |= parts
        self.batches += bool(parts)
        self._account(parts, {n: scanned[n] for n in step.to_read})
        self.said += [tail_remark(part) for part in parts.values() if part.has_tail]
        self.said += [part.reason or "" for part in parts.values() if part.status == FileStatus.REFUSED.value]

    def _account(self, parts: Mapping[int, FilePart], scanned: Mapping[int, ScanResult]) -> None:
        assembly = self.replay.assembly
        fates = StatusLookup.of((*assembly.outcomes, *assembly.open_outcomes()), assembly.watermarks)
        tally = BatchStatistics()
        for each in scanned.values():
            packer = Packer(BlockKind.CHANGE)
            blocks = [block for batch in each.batches for block in packer.add(batch)] + list(packer.rest())
            for block in (row for blocks_of in blocks for row in blocks_of.to_pylist()):
                tally.add(BlockKind(block["kind"]), block["relation"], unpacked(block, COUNTED_KINDS), 0, fates)
        self.accounts |= tally.accounts()
        for number, part in parts.items():
            if part.status in (FileStatus.DUPLICATE.value, FileStatus.REFUSED.value):
                self.accounts[number] = {part.status: part.consumed}
        self.damages += [f"{parts[n].path}: {d.reason}" for n, each in scanned.items() for d in each.summary.damages]

    def _scan(
        self, tasks: Mapping[str, ScanTask], contents: KnownContents
    ) -> tuple[dict[int, ScanResult], dict[int, ScanError]]:
        scanned, errors = {}, {}
        for path, task in tasks.items():
            try:
                scanned[task.number] = scan_part(
                    path, self.content[path], task, contents, self.framing, salvages=self.salvages
                )
            except ArchiveError as error:
                errors[task.number] = scan_error(error)
        return scanned, errors

    def scanned_again(self, number: int) -> FileScan:
        """As a run does that goes on after one that died."""
        part = self.known[number]
        task, content = task_again(number, part), self.content[part.path]
        return scan_part(part.path, content, task, KnownContents({}), self.framing, self.salvages).summary

    def tables(self) -> dict[str, Rows]:
        return tables(self.replay)

    def rows(self) -> Rows:
        return self.tables().get("t", [])


def _summaries(scanned: Mapping[int, ScanResult]) -> dict[int, FileScan]:
    return {number: each.summary for number, each in scanned.items()}
