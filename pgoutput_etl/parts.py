"""A landed file, from where an earlier run left off: what is known of it, by its bytes, is not scanned again."""

from __future__ import annotations

from dataclasses import replace

from pgoutput_etl.content import Content, read_content
from pgoutput_etl.errors import ArchiveError, FramingError
from pgoutput_etl.framing import Framing
from pgoutput_etl.identity import FilePart, Hashes, KnownContents, Match, Prefix, Task
from pgoutput_etl.inflate import MAX_SIZE
from pgoutput_etl.message_rows import HEAD, Begins, FileScan, OpenUnit, UnitKind
from pgoutput_etl.scan import detected, scan_from_either_side
from pgoutput_etl.units import Part, ScannedFile


def scan_part(
    path: str,
    content: bytes,
    task: Task,
    known: KnownContents,
    framing: Framing = Framing.AUTO,
    salvages: bool = False,
    max_size: int = MAX_SIZE,
    notes: bool = False,
) -> ScannedFile:
    """Decodes what is new of a landed file. Offsets count from the beginning of the whole file, decompressed.

    Raises ArchiveError naming file, offset and LSN.
    """
    try:
        read = read_content(_listed(content, task), path, max_size)
        return _scan(path, read, task, known, framing, salvages, notes)
    except ArchiveError as error:
        raise ArchiveError(f"{path}: {error}") from error


def _listed(content: bytes, task: Task) -> bytes:
    if len(content) < task.size:
        raise FramingError(f"expected {task.size:,} bytes, as it was listed with, found {len(content):,}")
    return content[: task.size]


def _scan(
    path: str, read: Content, task: Task, known: KnownContents, framing: Framing, salvages: bool, notes: bool
) -> ScannedFile:
    if read.cut_off is not None and not task.leaves_tail:
        raise FramingError(read.cut_off, short=True)
    data = read.data[: task.end]
    hashes = Hashes(data)
    match = known.match(path, hashes) if task.part is None else Match(_decided(hashes, task))
    part = Part(data, task.number, framing, salvages, task.leaves_tail, notes=notes)
    start = match.prefix
    if start is not None:
        part = replace(part, start=start.consumed, begins_in_stream=start.ends_in_stream)
        if start.framing is not None:
            part = replace(part, framing=Framing(start.framing))
    scanned = _nothing_in(part) if part.start == len(data) else _scan_in_its_framing(part)
    summary = scanned.summary
    summary.same_as = None if start is None else start.number
    summary.resembles = match.resembles
    summary.prefix_hash = hashes.of(summary.consumed)
    summary.tail = summary.tail or read.cut_off
    summary.remark = read.remark
    return scanned


def _decided(hashes: Hashes, task: Task) -> Prefix | None:
    """Where a part begins that was looked at before. Raises FramingError if it isn't there any more."""
    part = task.part
    assert part is not None
    if len(hashes.data) < part.consumed or hashes.of(part.consumed) != part.prefix_hash:
        raise FramingError("it has changed since an earlier run began to apply it; put it back as it was")
    if part.same_as is None:
        return None
    return Prefix(part.offset, "", part.same_as, "", True, False, part.framing, part.begins_in_stream)


def _scan_in_its_framing(part: Part) -> ScannedFile:
    if part.framing is not Framing.AUTO:
        return scan_from_either_side(part)
    try:
        framing = detected(part.data, part.salvages and not part.leaves_tail)
    except FramingError as error:
        if part.salvages and part.leaves_tail and not error.short:
            return scan_from_either_side(replace(part, framing=detected(part.data, True)))
        if not error.short or not part.leaves_tail:
            raise
        scanned = _nothing_in(part)
        scanned.summary.tail = str(error)
        return scanned
    return scan_from_either_side(replace(part, framing=framing))


def _nothing_in(part: Part) -> ScannedFile:
    summary = _empty(part.file, part.framing, len(part.data), part.start)
    summary.begins_in_stream = part.begins_in_stream
    return ScannedFile(summary, [])


def nothing_to_read(number: int, part: FilePart) -> FileScan:
    """Of a part that was found empty: what a scan of it would tell."""
    return _empty(number, Framing(part.framing or Framing.AUTO.value), part.offset, part.offset)


def _empty(number: int, framing: Framing, size: int, start: int) -> FileScan:
    summary = FileScan(number, framing.value, size, Begins.EITHER.value)
    summary.offset = summary.consumed = start
    summary.open_unit = OpenUnit(HEAD, UnitKind.HEAD.value, None, None, None)
    return summary
