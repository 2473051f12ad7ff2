"""A landed file, from where an earlier run left off: what is known of it, by its bytes, is not scanned again."""

from __future__ import annotations

from dataclasses import replace

from pgoutput_etl.compression import MAX_SIZE, Content, read_content
from pgoutput_etl.errors import ArchiveError, FramingError
from pgoutput_etl.landing.fingerprint import FilePart, Hashes, KnownContents, Prefix, PrefixMatch, ScanTask, heads_of
from pgoutput_etl.protocol.framing import Framing, detect, first_framing
from pgoutput_etl.scan.file_summary import FileBeginning, FileScan, FragmentKind, OpenFragment
from pgoutput_etl.scan.fragment import ScanRequest, ScanResult
from pgoutput_etl.scan.message_row import HEAD, ScanError
from pgoutput_etl.scan.salvage import framing_of_damaged
from pgoutput_etl.scan.scan_file import scan_either_way


class PartError(ArchiveError):
    """A content can't be read behind what is known of it."""

    def __init__(self, found: ScanError) -> None:
        super().__init__(found.text)
        self.found = found


def scan_error(error: ArchiveError) -> ScanError:
    return replace(error.found, text=str(error)) if isinstance(error, PartError) else ScanError(str(error))


def scan_part(
    path: str,
    content: bytes,
    task: ScanTask,
    known: KnownContents,
    framing: Framing = Framing.AUTO,
    salvages: bool = False,
    max_size: int = MAX_SIZE,
    with_census: bool = False,
) -> ScanResult:
    """Decodes what is new of a landed file. Offsets count from the beginning of the whole file, decompressed.

    Raises ArchiveError naming file, offset and LSN.
    """
    try:
        read = read_content(_listed(content, task), path, max_size)
        return _scan(path, read, task, known, framing, salvages, with_census)
    except PartError as error:
        raise PartError(replace(error.found, text=f"{path}: {error}")) from error
    except ArchiveError as error:
        raise ArchiveError(f"{path}: {error}") from error


def _listed(content: bytes, task: ScanTask) -> bytes:
    if len(content) < task.size:
        raise FramingError(f"expected {task.size:,} bytes, as it was listed with, found {len(content):,}")
    return content[: task.size]


def _scan(
    path: str, read: Content, task: ScanTask, known: KnownContents, framing: Framing, salvages: bool, with_census: bool
) -> ScanResult:
    if read.cut_off is not None and not task.leaves_tail:
        raise FramingError(read.cut_off, short=True)
    data = read.data[: task.end]
    hashes = Hashes(data)
    match = known.match(path, hashes) if task.known_part is None else PrefixMatch(_with_beginning_decided(hashes, task))
    part = ScanRequest(
        data, task.number, _framing_of(task, framing), salvages, task.leaves_tail, with_census=with_census
    )
    start = match.prefix
    if start is not None:
        part = replace(part, start=start.consumed, begins_in_stream=start.ends_in_stream)
        if start.framing is not None:
            part = replace(part, framing=Framing(start.framing))
    heads = heads_of(data)
    unkeyed = known.unkeyed.beginnings(data) if task.known_part is None and known.unkeyed is not None else []
    try:
        scanned = _nothing_in(part) if part.start == len(data) else _scan_in_its_framing(part)
    except ArchiveError as error:
        raise PartError(ScanError(str(error), part.start, tuple(heads), tuple(unkeyed))) from error
    summary = scanned.summary
    summary.heads, summary.unkeyed = heads, unkeyed
    summary.same_as = None if start is None else start.number
    summary.resembles = match.resembles
    summary.prefix_hash = hashes.of(summary.consumed)
    summary.tail = summary.tail or read.cut_off
    summary.tail_hash = None if summary.tail is None else hashes.of(len(data))
    summary.remark = read.remark
    return scanned


def _framing_of(task: ScanTask, configured: Framing) -> Framing:
    """A part that was looked at before has the framing that it had then, whatever the configuration says now."""
    if task.known_part is None or task.known_part.framing is None:
        return configured
    return Framing(task.known_part.framing)


def _with_beginning_decided(hashes: Hashes, task: ScanTask) -> Prefix | None:
    """Where a part begins that was looked at before. Raises FramingError if it isn't there any more."""
    part = task.known_part
    assert part is not None
    if len(hashes.data) < part.consumed or hashes.of(part.consumed) != part.prefix_hash:
        raise FramingError("it has changed since an earlier run began to apply it; put it back as it was")
    if part.same_as is None:
        return None
    return Prefix(part.offset, "", part.same_as, "", True, False, part.framing, part.begins_in_stream)


def _scan_in_its_framing(part: ScanRequest) -> ScanResult:
    if part.framing is Framing.AUTO:
        return _scan_in_the_framing_found(part)
    try:
        scanned = scan_either_way(part)
    except FramingError as error:
        fits = _other_framing(part)
        if fits is None:
            raise
        raise FramingError(f"{error}; {_describe_error(fits)}", error.short) from None
    summary = scanned.summary
    fits = None if summary.messages else _other_framing(part)
    if fits is not None:
        summary.fits = fits.value
        summary.damages[:1] = [replace(d, reason=f"{d.reason}; {_describe_error(fits)}") for d in summary.damages[:1]]
    return scanned


def _other_framing(part: ScanRequest) -> Framing | None:
    """The framing in which a new file's first messages can be read, if it is another one than the part's."""
    if part.start:
        return None
    try:
        found = detect(part.data)
    except FramingError:
        return None
    return None if found is part.framing else found


def _describe_error(fits: Framing) -> str:
    return f"as {fits.value} it can be read, but source.framing says otherwise"


def _scan_in_the_framing_found(part: ScanRequest) -> ScanResult:
    try:
        framing = detect(part.data)
    except FramingError as error:
        tried = _framing_to_try(part, error)
        if tried is None:
            raise
        framing = tried
    scanned = scan_either_way(replace(part, framing=framing))
    if not scanned.summary.messages and scanned.summary.tail is not None:
        scanned.summary.framing = Framing.AUTO.value  # more bytes will tell
    return scanned


def _framing_to_try(part: ScanRequest, refusal: FramingError) -> Framing | None:
    """Of a file whose first message is not whole."""
    if refusal.short and part.leaves_tail:
        return first_framing(part.data)
    return framing_of_damaged(part.data) if part.salvages else None


def _nothing_in(part: ScanRequest) -> ScanResult:
    summary = _empty(part.file, part.framing, len(part.data), part.start)
    summary.begins_in_stream = part.begins_in_stream
    return ScanResult(summary, [])


def nothing_to_read(number: int, part: FilePart) -> FileScan:
    """Of a part that was found empty: what a scan of it would tell."""
    return _empty(number, Framing(part.framing or Framing.AUTO.value), part.offset, part.offset)


def _empty(number: int, framing: Framing, size: int, start: int) -> FileScan:
    summary = FileScan(number, framing.value, size, FileBeginning.EITHER.value)
    summary.offset = summary.consumed = start
    summary.open_fragment = OpenFragment(HEAD, FragmentKind.HEAD.value, None, None, None)
    return summary
