"""Inspects an archive: scans all files, orders them, and assembles transactions as apply does.

Needs no ledger and no target. Damage that would stop apply is reported, and the inspection continues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Protocol, TypeVar

from pgoutput_etl.console import Progress, counted
from pgoutput_etl.inspection.file_scan import FileInspection, FragmentCounts, commits, count, ends
from pgoutput_etl.inspection.lenient_assembly import LenientAssembly
from pgoutput_etl.inspection.message_lines import InspectionContext, MessageFilter
from pgoutput_etl.inspection.server_settings import SettingsSample
from pgoutput_etl.inspection.source_check import commits_of, find_foreign_transactions
from pgoutput_etl.landing.file_index import Listing, scan_tasks
from pgoutput_etl.landing.fingerprint import FileStatus, LandedFile, ScanTask, tasks_of, uncompressed_name
from pgoutput_etl.landing.known_files import NOTHING_KNOWN, candidates, natural_order
from pgoutput_etl.landing.selection import FileSelection, select_files
from pgoutput_etl.landing.sequence_gaps import missing_numbers
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.census import MessageCensus
from pgoutput_etl.scan.file_summary import FileBeginning, FileScan
from pgoutput_etl.transactions.cutoff import find_cutoffs
from pgoutput_etl.transactions.outcome import Outcome
from pgoutput_etl.transactions.statistics import transactions_by_status
from pgoutput_etl.types import UserTypes

T = TypeVar("T")


class Runner(Protocol):
    """Scans files in local processes (local_runner.py) or on Spark (ingest/inspection_runner.py)."""

    def scan(self, tasks: Mapping[str, ScanTask]) -> dict[int, FileInspection]:
        """Inspections by file number; replaces earlier scans of the same numbers."""

    def query(self, query: Callable[[bytes], T]) -> dict[int, T]:
        """Runs a query (file_scan.ends, count, or commits) on each scanned file's rows. Returns the results by file
        number."""

    def print_messages(self, contexts: Sequence[InspectionContext], emit: Callable[[str], object]) -> None:
        """Emits the files' message lines in order."""


@dataclass(slots=True)
class Inspection:
    """An inspected archive. inspections, paths: by file number, for each file that is read. errors: by path, why a file
    can't be read, or can't be read to the end."""

    landed: list[LandedFile]
    inspections: dict[int, FileInspection]
    paths: dict[int, str]
    selection: FileSelection
    assembled: LenientAssembly
    errors: dict[str, str]
    sizes: dict[str, int]  # decompressed, by path
    tasks: dict[str, ScanTask]  # by path, of files that are read
    missing: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    total: FragmentCounts = field(default_factory=FragmentCounts)

    @property
    def scans(self) -> dict[int, FileScan]:
        return {n: inspection.scan for n, inspection in self.inspections.items() if inspection.scan is not None}

    def messages(self) -> Counter[str]:
        return sum((Counter(scan.messages) for scan in self.scans.values()), Counter[str]())

    def transactions(self) -> Counter[str]:
        """Numbers of transactions by status, including open ones."""
        counts = transactions_by_status(self.assembled.ended, self.total.statistics)
        counts["open"] = len(self.assembled.open)
        return counts

    def accounts(self) -> Counter[str]:
        """Decompressed bytes by how they are used, for all readable files."""
        sizes: Counter[str] = Counter()
        for file_sizes in self.total.statistics.accounts().values():
            sizes.update(file_sizes)
        for part in self.selection.with_status(FileStatus.DUPLICATE).values():
            sizes["resent"] += part.consumed
        for number in self.assembled.excluded_files:
            sizes["quarantined"] += self.scans[number].consumed
        return sizes

    def content_bytes(self) -> int:
        """Decompressed bytes that were read, including duplicates."""
        read = sum(scan.consumed - scan.offset for scan in self.scans.values())
        return read + sum(part.consumed for part in self.selection.with_status(FileStatus.DUPLICATE).values())

    def census(self) -> MessageCensus:
        census = MessageCensus()
        for inspection in self.inspections.values():
            census.merge(inspection.census)
        return census

    def settings(self) -> SettingsSample:
        return sum((inspection.settings for inspection in self.inspections.values()), SettingsSample())

    @property
    def is_damaged(self) -> bool:
        """True if apply would stop or quarantine anything."""
        in_order = all(gap.is_beginning and not gap.is_excluded for gap in self.assembled.breaks)
        damaged = any(scan.damages for scan in self.scans.values())
        return bool(self.errors or self.missing or damaged or not in_order)


def inspect_archive(landed: Listing, runner: Runner, progress: Progress) -> Inspection:
    """landed: some or all files of one slot's archive, in any order."""
    files = candidates(landed.files(), NOTHING_KNOWN)
    progress(f"scanning {counted(len(files), 'file')}, {counted(sum(f.size for f in files.values()), 'byte')}")
    tasks = scan_tasks(files)
    inspection = _select(files, tasks, runner.scan(tasks), runner, progress)
    inspection.errors |= landed.not_plain
    progress("assembling transactions")
    for number in sorted(inspection.inspections):
        inspection.assembled.add(inspection.inspections[number])
    begun = frozenset(inspection.assembled.assembly.streams_begun())
    scanned = runner.query(partial(ends, xids=begun)) if begun else {}
    read = (file_ends for number, file_ends in scanned.items() if number in inspection.inspections)
    inspection.assembled.finish(chain.from_iterable(read))
    progress("counting changes")
    _count(inspection, runner, files)
    return inspection


def _select(
    files: Mapping[int, LandedFile],
    tasks: Mapping[str, ScanTask],
    inspections: Mapping[int, FileInspection],
    runner: Runner,
    progress: Progress,
) -> Inspection:
    """Selects the files to read as apply does: in the same order, and each content once."""
    paths = {file.path for file in files.values()}
    errors = {files[n].path: inspection.error for n, inspection in inspections.items() if inspection.error is not None}
    scans = {n: inspection.scan for n, inspection in inspections.items() if inspection.scan is not None}
    selection = select_files({n: files[n] for n in scans}, scans, {}, NOTHING_KNOWN, paths)
    to_read = selection.to_read
    if selection.rescan:
        progress("scanning again, as a file before others ends within a message")
        tasks = tasks_of(to_read)
        inspections = runner.scan(tasks)
        cut_off = {
            path: ScanTask(task.number, task.size) for path, task in tasks.items() if inspections[task.number].error
        }
        errors |= {path: inspections[task.number].error or "" for path, task in cut_off.items()}
        if cut_off:  # scan their readable beginning
            inspections, tasks = {**inspections, **runner.scan(cut_off)}, {**tasks, **cut_off}
    incomplete = {path for path in errors if (plain := uncompressed_name(path)) != path and plain in paths}
    read = {n: inspections[n] for n in to_read if n in inspections and inspections[n].scan is not None}
    return Inspection(
        landed=list(files.values()),
        inspections=read,
        paths={number: part.path for number, part in to_read.items()},
        selection=selection,
        assembled=LenientAssembly(),
        errors={path: error for path, error in errors.items() if path not in incomplete},
        sizes={files[n].path: scan.size for n, scan in scans.items()},
        tasks={path: task for path, task in tasks.items() if task.number in read},
        missing=tuple(line for _, line in missing_numbers(sorted(paths, key=natural_order))),
        remarks=(*selection.remarks, *(f"{path}: skipped, still being compressed" for path in sorted(incomplete))),
    )


def _count(inspection: Inspection, runner: Runner, files: Mapping[int, LandedFile]) -> None:
    assembled = inspection.assembled
    unread = frozenset(files) - inspection.inspections.keys()
    statuses = assembled.statuses(unread)

    def count_all(held_from: Mapping[int, int]) -> FragmentCounts:
        total = FragmentCounts()
        for counts in runner.query(partial(count, statuses=statuses, held_from=held_from)).values():
            total.merge(counts)
        return total

    inspection.total = count_all({})
    if assembled.assembly.was_damaged and not assembled.breaks:
        cutoffs = find_cutoffs(assembled.assembly, inspection.total.statistics, ())
        if cutoffs:
            inspection.total = count_all({oid: cutoff.lsn for oid, cutoff in cutoffs.items()})
    if assembled.needs_history:
        columns = runner.query(partial(commits, statuses=statuses))
        read = [(number, *columns[number]) for number in inspection.inspections if number in columns]
        foreign = find_foreign_transactions([*read, *commits_of(assembled.ended)], inspection.paths)
        inspection.missing += foreign.wrong
        inspection.remarks += foreign.open


def inspection_contexts(
    inspection: Inspection, wanted: MessageFilter, shows_values: bool, as_json: bool
) -> list[InspectionContext]:
    """The contexts of all files that are read, in order."""
    assembled = inspection.assembled
    outcomes: dict[int, dict[int, Outcome]] = {}
    for outcome in (*assembled.ended, *assembled.open):
        for file, fragment in outcome.fragments:
            outcomes.setdefault(file, {})[fragment] = replace(outcome, fragments=())
    watermarks: dict[int, dict[int, int]] = {}
    for watermark in assembled.watermarks:
        watermarks.setdefault(watermark.file, {})[watermark.epoch] = watermark.lsn
    history = assembled.assembly.relations
    versions = {oid: history.versions(oid) for oid in history.oids()}
    user_types = UserTypes.of(assembled.assembly.types.values(), {})
    common = (versions, user_types, wanted, shows_values, as_json)
    in_stream = False
    contexts = []
    for number, scan in sorted(inspection.scans.items()):
        inside = scan.begins is FileBeginning.INSIDE or (scan.begins is FileBeginning.EITHER and in_stream)
        own = (inspection.paths[number], number, Framing(scan.framing), inside, scan.consumed)
        contexts.append(InspectionContext(*own, outcomes.get(number, {}), watermarks.get(number, {}), *common))
        in_stream = inside if scan.ends_in_stream is None else scan.ends_in_stream
    return contexts
