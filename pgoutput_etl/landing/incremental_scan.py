"""Scans a landed file from where earlier runs stopped, skipping content whose hash is known."""

from __future__ import annotations

from dataclasses import replace

from pgoutput_etl.compression import MAX_SIZE, Content, ExpansionError, read_content
from pgoutput_etl.errors import ArchiveError, FramingError
from pgoutput_etl.landing.fingerprint import FilePart, Hashes, KnownContents, Prefix, PrefixMatch, ScanTask, heads_of
from pgoutput_etl.protocol.framing import Framing, detect
from pgoutput_etl.scan.fast.messages import fitting
from pgoutput_etl.scan.file_summary import FileBeginning, FileScan, Fragment, FragmentKind
from pgoutput_etl.scan.message_row import HEAD, ScanError
from pgoutput_etl.scan.request import ScanRequest, ScanResult
from pgoutput_etl.scan.salvage import find_framing
from pgoutput_etl.scan.scan_file import scan_either_way
from pgoutput_etl.scan.small_files import SmallFiles


class PartError(ArchiveError):
    """The new part of a file can't be read."""

    def __init__(self, scan_error: ScanError) -> None:
        super().__init__(scan_error.text)
        self.scan_error = scan_error


def scan_error(error: ArchiveError) -> ScanError:
    return error.scan_error if isinstance(error, PartError) else ScanError(str(error))


def scan_part(
    path: str,
    content: bytes,
    task: ScanTask,
    known: KnownContents,
    framing: Framing = Framing.AUTO,
    salvages: bool = False,
    max_size: int = MAX_SIZE,
    with_census: bool = False,
    leaves_tuples_from: int | None = None,
    small_files: SmallFiles | None = None,
) -> ScanResult:
    """Decodes the new part of a landed file. Offsets count from the beginning of the decompressed file.

    leaves_tuples_from: rows of uncompressed files of at least this many bytes have no tuples. small_files: takes the
    rows of a small file, if it can. Raises ArchiveError, which names file, offset, and LSN.
    """
    try:
        if len(content) < task.size:
            raise FramingError(f"expected {task.size:,} bytes, as it was listed with, found {len(content):,}")
        if task.may_grow:
            content = content[: task.size]
        read = read_content(content, path, max_size)
        stay = leaves_tuples_from is not None and read.data is content and len(content) >= leaves_tuples_from
        request = ScanRequest(
            read.data[: task.end],
            task.number,
            framing,
            salvages,
            task.leaves_tail,
            with_census=with_census,
            with_tuples=not stay,
            read_together=None if small_files is None else small_files.read,
        )
        return _scan(path, read, task, known, request)
    except ExpansionError as error:
        raise PartError(ScanError(f"{path}: {error}", is_hopeless=True)) from error
    except PartError as error:
        raise PartError(replace(error.scan_error, text=f"{path}: {error}")) from error
    except ArchiveError as error:
        raise ArchiveError(f"{path}: {error}") from error


def _scan(path: str, read: Content, task: ScanTask, known: KnownContents, request: ScanRequest) -> ScanResult:
    """request: of the whole content, in the configured framing."""
    if read.cut_off is not None and not task.leaves_tail:
        raise FramingError(read.cut_off, short=True)
    data, hashes = request.data, Hashes(request.data)
    match = known.match(path, hashes) if task.known_part is None else PrefixMatch(_recorded_prefix(hashes, task))
    prefix = match.prefix
    if prefix is not None:
        request = replace(request, start=prefix.consumed, begins_in_stream=prefix.ends_in_stream)
    # Content that was read before keeps its framing, even if the configuration has changed.
    recorded = next((part.framing for part in (prefix, task.known_part) if part and part.framing), None)
    if recorded is not None:
        request = replace(request, framing=Framing(recorded))
    heads = heads_of(data)
    unkeyed = known.unkeyed.beginnings(data) if task.known_part is None and known.unkeyed is not None else []
    try:
        scanned = _scan_new(request)
    except ArchiveError as error:
        raise PartError(ScanError(str(error), request.start, tuple(heads), tuple(unkeyed))) from error
    summary = scanned.summary
    summary.heads, summary.unkeyed = heads, unkeyed
    summary.same_as = None if prefix is None else prefix.number
    summary.resembles = match.resembles
    summary.prefix_hash = hashes.of(summary.consumed)
    summary.tail = summary.tail or read.cut_off
    summary.tail_hash = None if summary.tail is None else hashes.of(len(data))
    summary.remark = read.remark
    return scanned


def _recorded_prefix(hashes: Hashes, task: ScanTask) -> Prefix | None:
    """The content before a part that an earlier run recorded. Raises FramingError if the file has changed since."""
    part = task.known_part
    assert part is not None
    if len(hashes.data) < part.consumed or hashes.of(part.consumed) != part.prefix_hash:
        raise FramingError("it has changed since an earlier run began to apply it; put it back as it was")
    if part.same_as is None:
        return None
    return Prefix(part.offset, "", part.same_as, "", True, False, part.framing, part.begins_in_stream)


def _scan_new(request: ScanRequest) -> ScanResult:
    if request.start == len(request.data):
        return ScanResult(_empty(request.file, request.framing.value, request.start, request.begins_in_stream), [])
    if request.framing is Framing.AUTO:
        return _scan_detected(request)
    try:
        scanned = scan_either_way(request)
    except FramingError as error:
        fits = _other_framing(request)
        if fits is None:
            raise
        raise FramingError(f"{error}; {_framing_hint(fits)}", error.short) from None
    summary = scanned.summary
    fits = None if summary.messages else _other_framing(request)
    if fits is not None:
        summary.fits = fits.value
        summary.damages[:1] = [replace(d, reason=f"{d.reason}; {_framing_hint(fits)}") for d in summary.damages[:1]]
    return scanned


def _scan_detected(request: ScanRequest) -> ScanResult:
    framing = find_framing(request.data, request.salvages, request.leaves_tail, fitting(request.data))
    scanned = scan_either_way(replace(request, framing=framing))
    if not scanned.summary.messages and scanned.summary.tail is not None:
        scanned.summary.framing = Framing.AUTO.value  # further bytes will decide
    return scanned


def _other_framing(request: ScanRequest) -> Framing | None:
    """The framing that fits the first messages of a new file, if it differs from the configured one."""
    if request.start:
        return None
    try:
        detected = detect(request.data)
    except FramingError:
        return None
    return None if detected is request.framing else detected


def _framing_hint(fits: Framing) -> str:
    return f"it can be read as {fits.value}, but source.framing has another value"


def nothing_to_read(number: int, part: FilePart) -> FileScan:
    """The scan result for a part that was recorded as empty."""
    return _empty(number, part.framing or Framing.AUTO.value, part.offset)


def _empty(number: int, framing: str, start: int, begins_in_stream: bool | None = None) -> FileScan:
    summary = FileScan(number, framing, start, FileBeginning.EITHER, begins_in_stream=begins_in_stream)
    summary.offset = summary.consumed = start
    summary.open_fragment = Fragment(HEAD, FragmentKind.HEAD)
    return summary
