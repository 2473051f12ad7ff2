"""Landed files to message rows: which are read, from where on, and as which number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.config.settings import Config, Gaps, OnError
from pgoutput_etl.errors import ArchiveError, RunError
from pgoutput_etl.ingest.assemble import ScanOutput, collect_scans
from pgoutput_etl.ingest.listing import check_sizes, list_landing, reading_files
from pgoutput_etl.ingest.scan import find_contents, scan_files
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
)
from pgoutput_etl.landing.incremental_scan import nothing_to_read
from pgoutput_etl.landing.known_files import candidates, natural_order
from pgoutput_etl.landing.selection import FileSelection, refuse, tail_remark, with_scan
from pgoutput_etl.landing.sequence_gaps import missing_number
from pgoutput_etl.masking.mask_rows import MaskingPolicy, WithholdRows
from pgoutput_etl.masking.policy import has_masks
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.message_row import ScanError
from pgoutput_etl.spark.platform import persist, unpersist
from pgoutput_etl.spark.session import list_names

_LISTINGS = 5


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Files as a batch reads them. blocks: of their rows, kept until they are given up; parts: by number. later: what
    is left for further batches of the run, each of which `read_later` reads.

    Where columns are protected, blocks have no rows of tables: which column is which is known only once all files are
    put together, and then `protected` reads them again.
    """

    blocks: DataFrame
    scan_output: ScanOutput
    parts: dict[int, FilePart]
    remarks: tuple[str, ...] = ()
    inspected: frozenset[int] = frozenset()  # under these numbers files were scanned that are not to be applied
    later: tuple[FileSelection, ...] = ()
    read_again: Callable[[MaskingPolicy], DataFrame] | None = None
    _kept: list[DataFrame] = field(default_factory=list)

    def masked(self, protection: MaskingPolicy | None) -> DataFrame:
        """The blocks of all rows. Raises ArchiveError if a file is not as it was a moment ago."""
        if protection is None or self.read_again is None:
            return self.blocks
        self._kept.append(self.read_again(protection))
        return self._kept[-1]

    def release(self) -> None:
        for blocks in (self.blocks, *self._kept):
            unpersist(blocks)

    def messages(self) -> dict[str, int]:
        """How many of each type."""
        found: Counter[str] = Counter()
        for scan in self.scan_output.scans.values():
            found.update(scan.messages)
        return dict(sorted(found.items()))

    def content_bytes(self) -> int:
        """Decompressed: all that was read, of files that were not applied, too."""
        return sum(part.consumed - part.offset for part in self.parts.values()) + sum(
            size for of_file in self.accounts_of_others().values() for size in of_file.values()
        )

    def accounts_of_others(self) -> dict[int, dict[str, int]]:
        """Of files that are not applied: how many bytes were sent before, or are none of the archive's."""
        accounts = {FileStatus.DUPLICATE.value: "resent", FileStatus.REFUSED.value: "quarantined"}
        return {
            number: {accounts[part.status]: part.consumed}
            for number, part in self.parts.items()
            if part.status in accounts
        }

    def refused(self) -> tuple[str, ...]:
        of_refused = (part for part in self.parts.values() if part.status == FileStatus.REFUSED.value)
        return tuple(part.reason for part in of_refused if part.reason is not None)

    def not_read(self) -> tuple[str, ...]:
        """What is to be said of files, or of their ends, that were left alone for a good reason."""
        lines = []
        for part in self.parts.values():
            if part.status == FileStatus.MOVED.value:
                lines.append(f"{part.path}: read before, under another name")
            elif part.status == FileStatus.DUPLICATE.value:
                lines.append(f"{part.path}: landed again, and not applied again: its bytes were read before")
        lines += [tail_remark(part) for _, part in sorted(self.parts.items()) if part.has_tail]
        return (*lines, *self.remarks)


def list_files(spark: SparkSession, config: Config) -> Listing:
    """All that has landed. Raises ConfigError."""
    with reading_files([config.source.landing]):
        return list_landing(spark, config.source.landing)


def new_files(
    spark: SparkSession, config: Config, index: FileIndex, listing: Listing
) -> tuple[dict[int, LandedFile], Listing]:
    """The files that are new or not as they were, by the number that they may get; and all that there are. `listing`:
    as they were listed.

    Raises ConfigError, or ArchiveError for a file too large to carry.
    """
    found = _candidates(index, listing)
    for _ in range(_LISTINGS):
        if len(found) < 2:
            break
        # What is written while the folder is listed may have gone into two files: all but the newest must stand still.
        before, listing = found, list_files(spark, config)
        found = _candidates(index, listing)
        if list(found.values())[: len(before) - 1] == list(before.values())[:-1]:
            found = before
            break
    check_sizes(spark, found.values())
    return found, listing


def _candidates(index: FileIndex, listing: Listing) -> dict[int, LandedFile]:
    files = index.to_inspect(listing)
    return candidates(files, index.known([file.path for file in files]))


def read_files(
    spark: SparkSession, config: Config, files: Mapping[int, LandedFile], index: FileIndex, listing: Listing
) -> FileBatch:
    """Scans them all at once, and decides what to read; scans them again if that has to be done in another way, or in
    several batches: those of the first one alone.

    Raises ArchiveError or RunError. What it gives is to be given up in the end.
    """
    tasks = scan_tasks(files)
    known = index.known(tasks)
    blocks = _scan(spark, config, tasks, known.contents(index.unkeyed()))
    try:
        scanned = _collect(blocks, tasks)
        closer = partial(_scan_closer, spark, config)
        arrangement, scans = index.select(files, listing, known, scanned.scans, scanned.errors, closer)
        scanned = replace(scanned, scans=scans)
        if config.source.gaps is Gaps.REFUSE:
            _refuse_gaps(index, arrangement, partial(list_names, spark, config.source.landing))
        commits = {file.path: commits_in(scanned.scans[n]) for n, file in files.items() if n in scanned.scans}
        steps = in_steps(arrangement, commits, config.merge.max_transactions)
    except BaseException:
        unpersist(blocks)
        raise
    if steps[0].rescan:
        unpersist(blocks)
        return _read_arranged(spark, config, steps)
    to_apply = scanned.from_rows(arrangement.to_read)
    left_out = frozenset(task.number for task in tasks.values()) - to_apply.scans.keys()
    again = partial(_protected, spark, config, arrangement.parts)
    return FileBatch(blocks, to_apply, arrangement.parts, arrangement.remarks, left_out, read_again=again)


def _scan_closer(
    spark: SparkSession, config: Config, tasks: Mapping[str, ScanTask], known: KnownContents
) -> tuple[dict[int, FileScan], dict[int, ScanError]]:
    blocks = _scan(spark, config, tasks, known)
    try:
        scanned = _collect(blocks, tasks)
        return scanned.scans, scanned.errors
    finally:
        unpersist(blocks)


class FilesChangedError(ArchiveError):
    """Files have grown, or been renamed or removed, since it was decided what to read of them."""


def read_later(spark: SparkSession, config: Config, steps: Sequence[FileSelection]) -> FileBatch:
    """Scans the files of the first one of those that were left. Raises ArchiveError."""
    try:
        return _read_arranged(spark, config, steps)
    except ArchiveError as error:
        parts = steps[0].to_read.values()
        landed = {file.path: file for file in list_files(spark, config).named([part.path for part in parts])}
        if all(_is_there(part, landed) for part in parts):
            raise
        raise FilesChangedError(str(error)) from error


def _read_arranged(spark: SparkSession, config: Config, steps: Sequence[FileSelection]) -> FileBatch:
    first, *later = steps
    tasks = tasks_of(first.to_read)
    if later:  # none of these is the newest
        tasks = {path: replace(task, leaves_tail=False) for path, task in tasks.items()}
    blocks, scanned = read_blocks(spark, config, tasks)
    parts = {
        n: part if n not in scanned.scans else with_scan(part, scanned.scans[n]) for n, part in first.parts.items()
    }
    again = partial(_protected, spark, config, parts)
    return FileBatch(blocks, scanned, parts, first.remarks, later=tuple(later), read_again=again)


def _refuse_gaps(index: FileIndex, arrangement: FileSelection, all_names: Callable[[], Iterable[str]]) -> None:
    """A number that a duplicate has, or had once, or an empty file, is not missing. `all_names`: of the files that are
    there, with those of empty files; asked for only where a number seems to be missing."""
    new = {part.path for part in arrangement.to_read.values() if not part.offset}
    if not new:
        return
    around = {*index.around(new), *(part.path for part in arrangement.parts.values())}
    missing = _missing_before(new, around)
    if missing is not None:
        missing = _missing_before(new, around.union(all_names()))
    if missing is not None:
        raise RunError(
            f"{missing}: whole transactions may be. Nothing was written. Land what is missing; if there is nothing, "
            "say source.gaps: accept"
        )


def _missing_before(new: Collection[str], paths: Iterable[str]) -> str | None:
    in_order = sorted(paths, key=natural_order)
    return missing_number(in_order, next(i for i, path in enumerate(in_order) if path in new))


def read_again(spark: SparkSession, config: Config, parts: Mapping[int, FilePart]) -> FileBatch:
    """The very bytes that an earlier run began to apply, wherever they are by now. Raises ArchiveError."""
    of_batch = {n: part for n, part in parts.items() if part.status == FileStatus.READ.value}
    to_read = {n: part for n, part in of_batch.items() if part.was_read}
    listing = list_files(spark, config)
    landed = {file.path: file for file in listing.named([part.path for part in to_read.values()])}
    moved = {n: part for n, part in to_read.items() if not _is_there(part, landed)}
    if moved:
        landed = {file.path: file for file in listing.files()}
    places = _find(spark, [file for file in landed.values() if file not in _files_of(to_read)], moved) if moved else {}
    for number, part in moved.items():
        if number not in places:
            raise ArchiveError(
                f"{part.path}: an earlier run began to apply it, and it is not there as it was, nor under another "
                "name; put it back"
            )
    found = {n: part if n not in places else _at(part, landed[places[n]]) for n, part in parts.items()}
    tasks = _tasks_again({n: found[n] for n in to_read})
    blocks, scanned = read_blocks(spark, config, tasks)
    scanned.scans.update({n: nothing_to_read(n, part) for n, part in of_batch.items() if n not in to_read})
    return FileBatch(blocks, scanned, found, read_again=partial(_protected, spark, config, found))


def _tasks_again(parts: Mapping[int, FilePart]) -> dict[str, ScanTask]:
    """By path."""
    return {part.path: task_again(number, part) for number, part in parts.items()}


def _protected(
    spark: SparkSession, config: Config, parts: Mapping[int, FilePart], protection: MaskingPolicy
) -> DataFrame:
    to_read = {n: part for n, part in parts.items() if part.status == FileStatus.READ.value and part.was_read}
    return read_blocks(spark, config, _tasks_again(to_read), protection)[0]


def read_blocks(
    spark: SparkSession, config: Config, tasks: Mapping[str, ScanTask], protection: MaskingPolicy | None = None
) -> tuple[DataFrame, ScanOutput]:
    """Of files that have to be as they are said to be, to be given up in the end. Raises ArchiveError."""
    blocks = _scan(spark, config, tasks, KnownContents({}), protection)
    try:
        scanned = _collect(blocks, tasks)
        refuse(error.text for error in scanned.errors.values())
    except BaseException:
        unpersist(blocks)
        raise
    return blocks, scanned


def _scan(
    spark: SparkSession,
    config: Config,
    tasks: Mapping[str, ScanTask],
    known: KnownContents,
    protection: MaskingPolicy | None = None,
) -> DataFrame:
    """Read once; used for the driver's part and for the rows. Without a protection, where there has to be one, for the
    driver's part alone."""
    salvages = config.on_error is OnError.QUARANTINE
    first_look = WithholdRows() if has_masks(config) else None
    with reading_files(tasks):
        blocks = scan_files(spark, tasks, known, config.source.framing, salvages, protection or first_look)
    return persist(blocks, StorageLevel.MEMORY_AND_DISK)


def _collect(blocks: DataFrame, tasks: Mapping[str, ScanTask]) -> ScanOutput:
    with reading_files(tasks):
        scanned = collect_scans(blocks)
    for path, task in tasks.items():
        if task.number not in scanned.scans and task.number not in scanned.errors:
            raise ArchiveError(f"{path}: it was listed, and was gone when it was to be read. Run again")
    return scanned


def _is_there(part: FilePart, landed: Mapping[str, LandedFile]) -> bool:
    return landed.get(part.path) in _files_of({0: part})


def _files_of(parts: Mapping[int, FilePart]) -> list[LandedFile]:
    return [LandedFile(part.path, part.size, part.modified) for part in parts.values()]


def _at(part: FilePart, file: LandedFile) -> FilePart:
    """Under its new name; as of no time, as it may have gone on since, so that the next run looks at it."""
    return replace(part, path=file.path, size=file.size, modified=0)


def _find(spark: SparkSession, files: list[LandedFile], parts: Mapping[int, FilePart]) -> dict[int, str]:
    """Which of the files begin with the content of which parts: the one of the same name, if it does."""
    known = KnownContents.of(
        Prefix(part.consumed, part.prefix_hash or "", n, "", True, False, None, None) for n, part in parts.items()
    )
    paths = [file.path for file in files]
    with reading_files(paths):
        found = find_contents(spark, paths, known)
    return {n: part.path if part.path in found.get(n, []) else min(found[n]) for n, part in parts.items() if n in found}
