"""Selects and numbers the landed files and bytes to read, and reads them into message rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from pgoutput_etl.config.settings import Gaps, OnError
from pgoutput_etl.errors import ArchiveError, RunError
from pgoutput_etl.ingest.assemble import ScanOutput, collect_scans
from pgoutput_etl.ingest.landing_folder import LandingFolder
from pgoutput_etl.ingest.listing import FilesChangedError, UnreadableFileError, gone, reading_files, rereading_files
from pgoutput_etl.ingest.scanned_blocks import ScannedBlocks
from pgoutput_etl.landing.batching import commits_in, in_steps
from pgoutput_etl.landing.file_index import FileIndex, Listing, scan_tasks
from pgoutput_etl.landing.fingerprint import (
    FilePart,
    FileStatus,
    KnownContents,
    LandedFile,
    Prefix,
    ScanTask,
    task_again,
    tasks_of,
    uncompressed_name,
)
from pgoutput_etl.landing.incremental_scan import nothing_to_read
from pgoutput_etl.landing.known_files import candidates, natural_order
from pgoutput_etl.landing.selection import (
    EVERY_FILE_WAITS,
    FileSelection,
    is_ignored,
    refuse,
    set_aside,
    tail_remark,
    with_scan,
    without,
)
from pgoutput_etl.landing.sequence_gaps import missing_number
from pgoutput_etl.masking.mask_rows import MaskingPolicy
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.message_row import ScanError


@dataclass(frozen=True, slots=True)
class FileBatch:
    """The files of a batch. blocks: their rows, kept until `release`; parts: by number; landing: where they are; later:
    selections for further batches of the run, for `read_later`.

    If the configuration masks columns, `blocks` has no rows of tables, because column names are only known once all
    files are assembled. `masked` then reads the files again.
    """

    blocks: ScannedBlocks
    scan_output: ScanOutput
    parts: dict[int, FilePart]
    landing: LandingFolder
    remarks: tuple[str, ...] = ()
    inspected: frozenset[int] = frozenset()  # numbers of files that were scanned but won't be applied
    later: tuple[FileSelection, ...] = ()
    _later_blocks: list[ScannedBlocks] = field(default_factory=list)

    def masked(self, policy: MaskingPolicy | None) -> ScannedBlocks:
        """Blocks with all rows. Raises ArchiveError if a file has changed since it was scanned."""
        return self.blocks if policy is None else self._blocks_again(policy)

    def rereading(self) -> AbstractContextManager[None]:
        """Within the context, an error that a file of the batch has changed or can no longer be read becomes a
        FilesChangedError."""
        return rereading_files([part.path for part in self.parts.values()])

    def scanned_again(self) -> FileBatch:
        """The same files, scanned again after the scanned rows were lost. Their hashes are known by now, so from here
        on Spark itself may repeat the scan. Raises FilesChangedError."""
        try:
            return replace(self, blocks=self._blocks_again(None))
        except ArchiveError as error:
            raise FilesChangedError(str(error)) from error

    def _blocks_again(self, policy: MaskingPolicy | None) -> ScannedBlocks:
        blocks, _ = read_blocks(self.landing, _tasks_again(self.parts), policy)
        self._later_blocks.append(blocks)
        return blocks

    def release(self) -> None:
        for blocks in (self.blocks, *self._later_blocks):
            blocks.release()

    def messages(self) -> dict[str, int]:
        """The number of messages, by type."""
        counts = sum((Counter(scan.messages) for scan in self.scan_output.scans.values()), Counter[str]())
        return dict(sorted(counts.items()))

    def content_bytes(self) -> int:
        """Decompressed bytes read, including those of files that are not applied."""
        others = sum(sum(accounts.values()) for accounts in accounts_of_others(self.parts).values())
        return others + sum(part.consumed - part.offset for part in self.parts.values())

    def refused(self) -> tuple[str, ...]:
        refused = (part for part in self.parts.values() if part.is_set_aside)
        return tuple(part.reason for part in refused if part.reason is not None)

    def without(self, number: int, why: str, relations: frozenset[int] | None) -> FileBatch:
        """The batch, with a file that is only recorded. why, relations: as in `set_aside`."""
        parts = {**self.parts, number: set_aside(self.parts[number], why, relations)}
        output = self.scan_output.select(self.scan_output.scans.keys() - {number})
        return replace(self, parts=parts, scan_output=output, inspected=self.inspected | {number})

    def not_read(self) -> tuple[str, ...]:
        """Remarks about files, and ends of files, that were left unread on purpose."""
        reasons = {
            FileStatus.MOVED.value: "read before, under another name",
            FileStatus.DUPLICATE.value: "landed again, and not applied again: its bytes were read before",
        }
        lines = [f"{part.path}: {reasons[part.status]}" for part in self.parts.values() if part.status in reasons]
        lines += [tail_remark(part) for _, part in sorted(self.parts.items()) if part.has_tail]
        return (*lines, *self.remarks)


def accounts_of_others(parts: Mapping[int, FilePart]) -> dict[int, dict[str, int]]:
    """Resent or quarantined bytes of the files that are not applied, by file number."""
    accounts = {}
    for number, part in parts.items():
        if part.status == FileStatus.DUPLICATE.value:
            accounts[number] = {"resent": part.consumed}
        elif part.is_set_aside:
            was_scanned = part.prefix_hash is not None
            accounts[number] = {"quarantined": part.consumed if was_scanned else part.size}
    return accounts


_IGNORED = ScanError("", is_ignored=True)


def new_files(index: FileIndex, listing: Listing) -> dict[int, LandedFile]:
    """New and changed files, by their provisional number."""
    files = index.to_inspect(listing)
    return candidates(files, index.known([file.path for file in files]))


@contextmanager
def _offering_to_ignore() -> Iterator[None]:
    """If a file is unreadable, adds to the error how to continue without it."""
    try:
        yield
    except UnreadableFileError as error:
        if not error.path:
            raise
        raise ArchiveError(f"{error}. {EVERY_FILE_WAITS}", without(error.path)) from error


@_offering_to_ignore()
def read_files(
    landing: LandingFolder, files: Mapping[int, LandedFile], index: FileIndex, listing: Listing
) -> FileBatch:
    """Scans all files at once and selects what to read. If the selection needs other scans or several batches, scans
    again, but only the files of the first batch. The caller must release the result. Files that source.ignore names are
    only recorded; files that are too large are not read.

    Raises ArchiveError or RunError.
    """
    names = landing.config.source.ignore
    not_read = {file.path: _IGNORED for file in files.values() if is_ignored(file.path, names)}
    salvages = landing.config.on_error is OnError.QUARANTINE
    oversized = landing.oversized(file for file in files.values() if file.path not in not_read)
    if not salvages or not all(error.is_hopeless for error in oversized.values()):
        refuse((error.text for error in oversized.values()), oversized)
    not_read |= oversized
    tasks = scan_tasks({number: file for number, file in files.items() if file.path not in not_read})
    known = index.known([file.path for file in files.values()])
    blocks = landing.scan(tasks, known.contents(index.unkeyed()))
    try:
        output = _collect(blocks, tasks)
        rescan = partial(_scan_again, landing)
        refuse_renamed(files.values(), listing, landing.listing())
        errors = output.errors | {n: not_read[file.path] for n, file in files.items() if file.path in not_read}
        selection, scans = index.select(files, listing, known, output.scans, errors, rescan, salvages)
        output = replace(output, scans=scans)
        if landing.config.source.gaps is Gaps.REFUSE:
            _refuse_gaps(index, selection, landing)
        commits = {file.path: commits_in(output.scans[n]) for n, file in files.items() if n in output.scans}
        steps = in_steps(selection, commits, landing.config.merge.max_transactions)
    except BaseException:
        blocks.release()
        raise
    if steps[0].rescan:
        blocks.release()
        return _read_selection(landing, steps)
    to_apply = output.select(selection.to_read)
    left_out = frozenset(task.number for task in tasks.values()) - to_apply.scans.keys()
    return FileBatch(blocks, to_apply, selection.parts, landing, selection.remarks, left_out)


def refuse_renamed(files: Iterable[LandedFile], before: Listing, after: Listing) -> None:
    """Raises FilesChangedError if a file has appeared before the newest one. While files were listed or read, the
    receiver may have renamed its open file and begun another one with the old name, which was then read instead.

    before, after: listings from before and after the files were read.
    """
    newest = max((file.path for file in files), key=natural_order, default=None)
    if newest is None:
        return
    appeared = sorted(file.path for file in after.files_not_in(before))
    before_compression = before.among([uncompressed_name(path) for path in appeared])
    for path in appeared:
        if uncompressed_name(path) not in before_compression and natural_order(path) < natural_order(newest):
            raise FilesChangedError(f"{path} has appeared before {newest} while files were read. Run again")


def _scan_again(
    landing: LandingFolder, tasks: Mapping[str, ScanTask], known: KnownContents
) -> tuple[dict[int, FileScan], dict[int, ScanError]]:
    blocks = landing.scan(tasks, known)
    try:
        output = _collect(blocks, tasks)
        return output.scans, output.errors
    finally:
        blocks.release()


def read_later(landing: LandingFolder, steps: Sequence[FileSelection]) -> FileBatch:
    """Scans the files of the first of the remaining selections. Raises ArchiveError."""
    try:
        return _read_selection(landing, steps)
    except ArchiveError as error:
        parts = steps[0].to_read.values()
        landed = {*landing.listing().named([part.path for part in parts])}
        if all(part.listed in landed for part in parts):
            raise
        raise FilesChangedError(str(error)) from error


def _read_selection(landing: LandingFolder, steps: Sequence[FileSelection]) -> FileBatch:
    first, *later = steps
    tasks = tasks_of(first.to_read)
    if later:  # so the newest file, whose end may be incomplete, is not one of these
        tasks = {path: replace(task, leaves_tail=False) for path, task in tasks.items()}
    blocks, output = read_blocks(landing, tasks)
    parts = {n: with_scan(part, output.scans[n]) if n in output.scans else part for n, part in first.parts.items()}
    return FileBatch(blocks, output, parts, landing, first.remarks, later=tuple(later))


def _refuse_gaps(index: FileIndex, selection: FileSelection, landing: LandingFolder) -> None:
    """Raises RunError if a number is missing in the files' names. Empty files and duplicates, even removed ones, count
    as present."""
    new = {part.path for part in selection.to_read.values() if not part.offset}
    if not new:
        return
    around = {*index.around(new), *(part.path for part in selection.parts.values())}
    if _missing_before(new, around) and (missing := _missing_before(new, around.union(landing.names()))):
        raise RunError(
            f"{missing}: whole transactions may be. Nothing was written. Land what is missing, and run again. If "
            "no such file ever existed, a run with source.gaps: accept (--set source.gaps=accept) continues without it",
            next_job=("inspect", landing.config.source.landing),
        )


def _missing_before(new: Collection[str], paths: Iterable[str]) -> str | None:
    in_order = sorted(paths, key=natural_order)
    return missing_number(in_order, next(i for i, path in enumerate(in_order) if path in new))


def read_again(landing: LandingFolder, parts: Mapping[int, FilePart]) -> FileBatch:
    """Reads exactly the bytes that an earlier run began to apply, even if files were renamed. Raises ArchiveError."""
    to_read = {n: part for n, part in parts.items() if part.was_read}
    listing = landing.listing()
    landed = {file.path: file for file in listing.named([part.path for part in to_read.values()])}
    moved = {n: part for n, part in to_read.items() if landed.get(part.path) != part.listed}
    paths: dict[int, str] = {}
    if moved:
        landed = {file.path: file for file in listing.files()}
        known = {part.listed for part in to_read.values()}
        paths = find_parts(landing, [path for path, file in landed.items() if file not in known], moved)
    for number, part in moved.items():
        if number not in paths:
            raise ArchiveError(
                f"{part.path}: an earlier run began to apply this file. It has changed or is gone, and no other file "
                "has its content; put it back"
            )
    renamed = {n: replace(parts[n], path=path, size=landed[path].size, modified=0) for n, path in paths.items()}
    parts = {**parts, **renamed}  # modified=0 makes the next run check the file again
    blocks, output = read_blocks(landing, _tasks_again(parts))
    empty = {n: part for n, part in parts.items() if part.status == FileStatus.READ.value and not part.was_read}
    output.scans.update({n: nothing_to_read(n, part) for n, part in empty.items()})
    return FileBatch(blocks, output, parts, landing)


def _tasks_again(parts: Mapping[int, FilePart]) -> dict[str, ScanTask]:
    return {part.path: task_again(number, part) for number, part in parts.items() if part.was_read}


def read_blocks(
    landing: LandingFolder, tasks: Mapping[str, ScanTask], policy: MaskingPolicy | None = None
) -> tuple[ScannedBlocks, ScanOutput]:
    """Blocks of files that must match their tasks; the caller must release the blocks. Raises ArchiveError."""
    blocks = landing.scan(tasks, KnownContents({}), policy)
    try:
        output = _collect(blocks, tasks)
        refuse(error.text for error in output.errors.values())
    except BaseException:
        blocks.release()
        raise
    return blocks, output


def _collect(blocks: ScannedBlocks, tasks: Mapping[str, ScanTask]) -> ScanOutput:
    with reading_files(tasks), blocks.computed_from(tasks.values()):
        output = collect_scans(blocks)
    for path, task in tasks.items():
        if task.number not in output.scans and task.number not in output.errors:
            raise gone(path)
    return output


def find_parts(landing: LandingFolder, paths: list[str], parts: Mapping[int, FilePart]) -> dict[int, str]:
    """The path of a file that begins with the part's content, by part number; preferably the file with the same
    name."""
    known = KnownContents.of(
        Prefix(part.consumed, part.prefix_hash or "", n, "", True, False, None, None) for n, part in parts.items()
    )
    matches = landing.find(paths, known)
    return {n: p.path if p.path in matches[n] else min(matches[n]) for n, p in parts.items() if n in matches}
