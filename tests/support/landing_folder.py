"""A landing folder in memory, which the nightly job reads without Spark, run after run, into a Replay."""

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
from pgoutput_etl.scan.message_row import ScanError
from pgoutput_etl.scan.request import ScanResult
from pgoutput_etl.transactions.statistics import COUNTED_KINDS, BatchStatistics
from pgoutput_etl.transactions.status_lookup import StatusLookup
from tests.support.small_archives import Rows, tables

MOST_BYTES = 1 << 20  # of a decompressed file


@dataclass
class LandingFolder:
    """Files by name. known: the parts in the ledger. accounts: bytes by account, of each part."""

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
    keyed_from: int = 0  # the first part with a head; parts of older versions have none
    dies: Callable[[], bool] = lambda: False  # called between two batches of a run
    # The last run's damages, and its remarks about tails and refused files.
    damages: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

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
        """The decompressed content."""
        return read_content(self.content[name], name).data

    def run(self) -> FileSelection:
        self.damages, self.remarks = [], []
        index, listing = FileIndex.of(self.without_heads(self.known)), Listing.of(self.files.values())
        unconfirmed = index.to_inspect(listing)
        files = candidates(unconfirmed, index.known([file.path for file in unconfirmed]))
        selection, scanned = self._select(index, listing, files)
        newest = max((n for n, part in selection.to_read.items() if part.was_read or part.unfinished), default=None)
        commits = {files[n].path: commits_in(result.summary) for n, result in scanned.items() if n in files}
        for i, step in enumerate(in_steps(selection, commits, self.most)):
            if i and self.dies():
                break
            self._apply(step, newest, scanned)
        if not files:
            self.remarks = [tail_remark(part) for part in index.tails(listing)]
        self.remarks += selection.remarks
        return selection

    def without_heads(self, known: dict[int, FilePart]) -> dict[int, FilePart]:
        """The parts, without the heads of those that an older version stored."""
        return {n: replace(part, head=None) if n < self.keyed_from else part for n, part in known.items()}

    def _select(
        self, index: FileIndex, listing: Listing, files: dict[int, LandedFile]
    ) -> tuple[FileSelection, dict[int, ScanResult]]:
        """Selects by few known files, as the job does, and checks that all known files give the same selection."""
        try:
            expected = self._select_by_all(files)
        except PgoutputEtlError as refusal:
            with pytest.raises(type(refusal), match=f"^{re.escape(str(refusal))}$"):
                self._select_by_few(index, listing, files)
            raise
        selection, scanned = self._select_by_few(index, listing, files)
        assert selection.parts == expected.parts
        assert sorted(selection.remarks) == sorted(expected.remarks)
        return selection, scanned

    def _select_by_all(self, files: dict[int, LandedFile]) -> FileSelection:
        known = every_known_file(self.known)
        assert FileIndex.of(self.known).every_file() == known
        assert files == candidates(self.files.values(), known)
        scanned, errors = self._scan(scan_tasks(files), known.contents())
        return select_files(files, _summaries(scanned), errors, known, self.files, self.salvages)

    def _select_by_few(
        self, index: FileIndex, listing: Listing, files: dict[int, LandedFile]
    ) -> tuple[FileSelection, dict[int, ScanResult]]:
        tasks = scan_tasks(files)
        known = index.known(tasks)
        scanned, errors = self._scan(tasks, known.contents(index.unkeyed()))
        results = (_summaries(scanned), errors, self._scan_closer, self.salvages)
        selection, _ = index.select(files, listing, known, *results)
        return selection, scanned

    def _scan_closer(
        self, tasks: Mapping[str, ScanTask], contents: KnownContents
    ) -> tuple[dict[int, FileScan], dict[int, ScanError]]:
        scanned, errors = self._scan(tasks, contents)
        return _summaries(scanned), errors

    def _apply(self, step: FileSelection, newest: int | None, scanned: dict[int, ScanResult]) -> None:
        parts = step.parts
        if step.rescan:
            tasks = {
                part.path: ScanTask(n, part.size, n == newest, part, may_grow=n == newest)
                for n, part in step.to_read.items()
            }
            scanned, errors = self._scan(tasks, KnownContents({}))
            refuse(error.text for error in errors.values())
            parts |= {n: with_scan(parts[n], result.summary) for n, result in scanned.items()}
        self.scans |= {n: scanned[n].summary for n in step.to_read}
        for number, part in sorted(step.in_order.items()):
            if part.status == FileStatus.UNREADABLE.value:
                self.replay.assembly.add_unread_file(number, part.relations)
            else:
                self.replay.add_scanned(part.path, scanned[number])
        self.known |= parts
        self.batches += bool(parts)
        self._account(parts, {n: scanned[n] for n in step.to_read})
        self.remarks += [tail_remark(part) for part in parts.values() if part.has_tail]
        self.remarks += [part.reason or "" for part in parts.values() if part.is_set_aside]

    def _account(self, parts: Mapping[int, FilePart], scanned: Mapping[int, ScanResult]) -> None:
        assembly = self.replay.assembly
        statuses = StatusLookup.of((*assembly.outcomes, *assembly.open_outcomes()), assembly.watermarks)
        statistics = BatchStatistics()
        for result in scanned.values():
            packer = Packer(BlockKind.CHANGE)
            packed = [batch for rows in result.batches for batch in packer.add(rows)] + list(packer.rest())
            for block in (row for batch in packed for row in batch.to_pylist()):
                rows = unpacked(block, COUNTED_KINDS)
                statistics.add(BlockKind(block["kind"]), block["relation"], rows, 0, statuses)
        self.accounts |= statistics.accounts()
        for number, part in parts.items():
            if part.status in (FileStatus.DUPLICATE.value, FileStatus.REFUSED.value, FileStatus.UNREADABLE.value):
                self.accounts[number] = {part.status: part.consumed}
        self.damages += [f"{parts[n].path}: {d.reason}" for n in scanned for d in scanned[n].summary.damages]

    def _scan(
        self, tasks: Mapping[str, ScanTask], contents: KnownContents
    ) -> tuple[dict[int, ScanResult], dict[int, ScanError]]:
        scanned, errors = {}, {}
        for path, task in tasks.items():
            try:
                scanned[task.number] = scan_part(
                    path, self.content[path], task, contents, self.framing, self.salvages, MOST_BYTES
                )
            except ArchiveError as error:
                errors[task.number] = scan_error(error)
        return scanned, errors

    def scanned_again(self, number: int) -> FileScan:
        """Scans a part again, as a run does that finishes the batch of a run that died."""
        part = self.known[number]
        task, content = task_again(number, part), self.content[part.path]
        return scan_part(part.path, content, task, KnownContents({}), self.framing, self.salvages).summary

    def tables(self) -> dict[str, Rows]:
        return tables(self.replay)

    def rows(self) -> Rows:
        return self.tables().get("t", [])


def _summaries(scanned: Mapping[int, ScanResult]) -> dict[int, FileScan]:
    return {number: result.summary for number, result in scanned.items()}


def every_known_file(parts: Mapping[int, FilePart]) -> KnownFiles:
    """All records, from all parts: the readable twin of `FileIndex.known`."""
    parts = dict(sorted(parts.items()))
    roots: dict[int, int] = {}
    unread: dict[str, int] = {}
    for number, part in parts.items():
        roots[number] = number if part.same_as is None else roots[part.same_as]
        if part.is_left or part.status == FileStatus.UNREADABLE.value:
            unread[part.path] = number
        elif part.status != FileStatus.REFUSED.value:  # a refused file is still unread
            unread.pop(part.path, None)
    read = [number for number, part in parts.items() if part.was_read]
    read_roots = {roots[number] for number in read}
    naming = (FileStatus.READ.value, FileStatus.MOVED.value)
    return KnownFiles(
        parts,
        roots,
        {r: part.path for n, part in parts.items() if (r := roots[n]) in read_roots and part.status in naming},
        {part.path: (number, part) for number, part in parts.items()},
        {before for number in read if (before := parts[number].same_as) is not None},
        unread,
        max(read, default=None),
        max(parts, default=-1) + 1,
    )
