"""What is in an archive: all of its files looked into, put in order, and put together as apply would.

Needs no ledger and no target. It never stops at what is damaged: where apply would, this says so and goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pgoutput_etl.inspection.file_scan import FileInspection, FragmentCounts
from pgoutput_etl.inspection.lenient_assembly import LenientAssembly
from pgoutput_etl.inspection.message_lines import InspectionContext, MessageFilter
from pgoutput_etl.inspection.server_settings import SettingsSample
from pgoutput_etl.inspection.source_check import CommitColumns, find_foreign_transactions
from pgoutput_etl.landing.fingerprint import FileStatus, LandedFile, ScanTask, tasks_of, uncompressed_name
from pgoutput_etl.landing.known_files import KnownFiles, candidates, natural_order
from pgoutput_etl.landing.selection import FileSelection, select_files
from pgoutput_etl.landing.sequence_gaps import missing_numbers
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.census import MessageCensus
from pgoutput_etl.scan.file_summary import FileBeginning, FileScan
from pgoutput_etl.transactions.cutoff import find_cutoffs
from pgoutput_etl.transactions.outcome import FragmentId, Outcome
from pgoutput_etl.transactions.statistics import transactions_by_status
from pgoutput_etl.transactions.status_lookup import Integers, StatusLookup
from pgoutput_etl.types import UserTypes

Progress = Callable[[str], None]


class Runner(Protocol):
    """Where files are looked into: here (local_files.py), or on Spark (inspecting.py)."""

    def scan(self, tasks: Mapping[str, ScanTask]) -> dict[int, FileInspection]:
        """By number. What was scanned before under a number is forgotten."""

    def ends(self, xids: frozenset[int]) -> list[tuple[int, FragmentId]]:
        """Of all that was scanned, as looking.ends."""

    def count(self, statuses: StatusLookup, held_from: Mapping[int, int]) -> dict[int, FragmentCounts]:
        """Of all that was scanned, as looking.count, by file."""

    def commits(self, statuses: StatusLookup) -> dict[int, tuple[Integers, Integers, Integers]]:
        """Of all that was scanned, as looking.commits, by file."""

    def print_messages(self, contexts: Sequence[InspectionContext], emit: Callable[[str], object]) -> None:
        """The lines of messages, in order."""


@dataclass(slots=True)
class Inspection:
    """An archive once it is looked into. files: by number, as they were listed; looks, counted: by the number under
    which a file is read, of those that are. errors: by path, why nothing of a file can be read, or not to its end.
    """

    landed: list[LandedFile]
    inspections: dict[int, FileInspection]
    paths: dict[int, str]
    selection: FileSelection
    assembled: LenientAssembly
    counts: dict[int, FragmentCounts]
    errors: dict[str, str]
    sizes: dict[str, int]  # decompressed, by path
    tasks: dict[str, ScanTask]  # how those that are read are, by path
    missing: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    total: FragmentCounts = field(default_factory=FragmentCounts)

    @property
    def scans(self) -> dict[int, FileScan]:
        return {number: look.scan for number, look in self.inspections.items() if look.scan is not None}

    def messages(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for scan in self.scans.values():
            found.update(scan.messages)
        return found

    def transactions(self) -> Counter[str]:
        """By fate, of those that have ended; and those that are open."""
        found = transactions_by_status(self.assembled.ended, self.total.statistics)
        found["open"] = len(self.assembled.open)
        return found

    def accounts(self) -> Counter[str]:
        """Bytes by what became of them, of all files whose content can be had."""
        found: Counter[str] = Counter()
        for of_file in self.total.statistics.accounts().values():
            found.update(of_file)
        for part in self.selection.with_status(FileStatus.DUPLICATE).values():
            found["resent"] += part.consumed
        for number in self.assembled.excluded_files:
            found["quarantined"] += self.scans[number].consumed
        return found

    def content_bytes(self) -> int:
        """Decompressed: what was read, of duplicates, too."""
        read = sum(scan.consumed - scan.offset for scan in self.scans.values())
        return read + sum(part.consumed for part in self.selection.with_status(FileStatus.DUPLICATE).values())

    def census(self) -> MessageCensus:
        found = MessageCensus()
        for look in self.inspections.values():
            found.merge(look.census)
        return found

    def settings(self) -> SettingsSample:
        found: SettingsSample = Counter()
        for look in self.inspections.values():
            found.update(look.settings)
        return found

    @property
    def is_damaged(self) -> bool:
        """Whether apply would stop at it, or put anything in quarantine."""
        in_order = all(each.is_beginning and not each.is_excluded for each in self.assembled.breaks)
        damaged = any(scan.damages for scan in self.scans.values())
        return bool(self.errors or self.missing or damaged or not in_order)


def inspect_archive(landed: Iterable[LandedFile], runner: Runner, progress: Progress) -> Inspection:
    """`landed`: the files of one slot's archive, or some of them, in any order."""
    files = candidates(landed, KnownFiles.of({}))
    progress(f"looking into {len(files):,} files, {sum(file.size for file in files.values()):,} bytes")
    tasks = {file.path: ScanTask(number, file.size) for number, file in files.items()}
    inspections = runner.scan(tasks)
    found = _arranged(files, tasks, inspections, runner, progress)
    progress("putting transactions together")
    for number in sorted(found.inspections):
        found.assembled.add(found.inspections[number])
    begun = found.assembled.assembly.streams_begun()
    ends = runner.ends(frozenset(begun)) if begun else []
    found.assembled.finish((xid, fragment) for xid, fragment in ends if fragment[0] in found.inspections)
    progress("counting")
    _count(found, runner, files)
    return found


def _arranged(
    files: Mapping[int, LandedFile],
    tasks: Mapping[str, ScanTask],
    inspections: Mapping[int, FileInspection],
    runner: Runner,
    progress: Progress,
) -> Inspection:
    """In the order in which apply reads them, each content once."""
    paths = {file.path for file in files.values()}
    errors = {files[n].path: look.error for n, look in inspections.items() if look.error is not None}
    scans = {n: look.scan for n, look in inspections.items() if look.scan is not None}
    arrangement = select_files({n: files[n] for n in scans}, scans, {}, KnownFiles.of({}), paths)
    to_read = arrangement.to_read
    if arrangement.rescan:
        progress("looking again, as a file that others follow ends within a message")
        tasks = tasks_of(to_read)
        inspections = runner.scan(tasks)
        cut_off = {
            path: ScanTask(task.number, task.size) for path, task in tasks.items() if inspections[task.number].error
        }
        errors |= {path: inspections[task.number].error or "" for path, task in cut_off.items()}
        if cut_off:  # what is there of them
            inspections, tasks = {**inspections, **runner.scan(cut_off)}, {**tasks, **cut_off}
    left = {path for path in errors if _is_being_compressed(path, paths)}
    errors = {path: error for path, error in errors.items() if path not in left}
    remarks = *arrangement.remarks, *(f"{path}: left alone, as it is still being compressed" for path in sorted(left))
    read = {n: inspections[n] for n in to_read if n in inspections and inspections[n].scan is not None}
    sizes = {files[n].path: scan.size for n, scan in scans.items()}
    missing = tuple(said for _, said in missing_numbers(sorted(paths, key=natural_order)))
    read_paths = {number: part.path for number, part in to_read.items()}
    read_as = {path: task for path, task in tasks.items() if task.number in read}
    return Inspection(
        list(files.values()),
        read,
        read_paths,
        arrangement,
        LenientAssembly(),
        {},
        errors,
        sizes,
        read_as,
        missing,
        remarks,
    )


def _is_being_compressed(path: str, paths: Collection[str]) -> bool:
    plain = uncompressed_name(path)
    return plain != path and plain in paths


def _count(found: Inspection, runner: Runner, files: Mapping[int, LandedFile]) -> None:
    assembled = found.assembled
    others = frozenset(files) - found.inspections.keys()
    statuses = StatusLookup.of(
        (*assembled.ended, *assembled.open), assembled.watermarks, assembled.excluded_files | others
    )
    counted = runner.count(statuses, {})
    total = _together(counted.values())
    if assembled.assembly.was_damaged and not assembled.breaks:
        held_from = {oid: cutoff.lsn for oid, cutoff in find_cutoffs(assembled.assembly, total.statistics, ()).items()}
        if held_from:
            counted = runner.count(statuses, held_from)
            total = _together(counted.values())
    if assembled.needs_history:
        commits = CommitColumns()
        for number, of_file in runner.commits(statuses).items():
            if number in found.inspections:
                commits.add(number, *of_file)
        commits.add_outcomes(assembled.ended)
        others_commits = find_foreign_transactions(commits, found.paths)
        found.missing += others_commits.wrong
        found.remarks += others_commits.open
    found.counts, found.total = {n: c for n, c in counted.items() if n in found.inspections}, total


def _together(counted: Iterable[FragmentCounts]) -> FragmentCounts:
    total = FragmentCounts()
    for each in counted:
        total.merge(each)
    return total


def inspection_contexts(
    found: Inspection, wanted: MessageFilter, shows_values: bool, as_json: bool
) -> list[InspectionContext]:
    """Of all files that are read, in order."""
    assembled = found.assembled
    units: dict[int, dict[int, Outcome]] = {}
    for outcome in (*assembled.ended, *assembled.open):
        for file, fragment in outcome.fragments:
            units.setdefault(file, {})[fragment] = replace(outcome, fragments=())
    marks: dict[int, dict[int, int]] = {}
    for mark in assembled.watermarks:
        marks.setdefault(mark.file, {})[mark.epoch] = mark.lsn
    history = assembled.assembly.relations
    versions = {oid: history.versions(oid) for oid in history.oids()}
    user_types = UserTypes.of(assembled.assembly.types.values(), {})
    in_stream = False
    listed = []
    for number, scan in sorted(found.scans.items()):
        inside = scan.begins == FileBeginning.INSIDE.value or (scan.begins == FileBeginning.EITHER.value and in_stream)
        of_file = units.get(number, {}), marks.get(number, {})
        listed.append(
            InspectionContext(
                found.paths[number],
                number,
                Framing(scan.framing),
                inside,
                scan.consumed,
                *of_file,
                versions,
                user_types,
                wanted,
                shows_values,
                as_json,
            )
        )
        ends = scan.ends_in_stream
        in_stream = inside if ends is None else ends
    return listed
