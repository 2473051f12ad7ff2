"""Scans one archived file into an Arrow row per message that matters, and a summary of the file.

A file is scanned alone, so thousands can be scanned at once. It is cut into fragments: the messages between Begin and
Commit, between Begin Prepare and Prepare, or in one stream segment. Fragment 0 is the head: the messages before the
first beginning, which belong to the transaction that the file before left open. Transaction assembly decides whose
they are, and how streamed and prepared transactions end, from the control rows of all files.

Within a file commit LSNs only grow, unless the receiver connected again and the server sent from an earlier point on: a
new *epoch* begins there. A transaction is new if its commit LSN is past all commits before its epoch.
"""

from __future__ import annotations

from pgoutput_etl.compression import MAX_SIZE, decompress
from pgoutput_etl.errors import ArchiveError, FramingError, SequenceError
from pgoutput_etl.protocol.framing import Framing, detect
from pgoutput_etl.scan.fragment import HeadError, ScanRequest, ScanResult
from pgoutput_etl.scan.salvage import framing_of_damaged
from pgoutput_etl.scan.scanner import Scanner


def scan_file(
    path: str,
    file: int,
    content: bytes,
    framing: Framing = Framing.AUTO,
    salvages: bool = False,
    max_size: int = MAX_SIZE,
) -> ScanResult:
    """Decodes a landed file as it is on storage. Raises ArchiveError naming file, offset and LSN.

    `salvages`: bytes that are no message become a Damage in the summary, and the messages around them are read.
    max_size: how many bytes a compressed file may expand to.
    """
    try:
        data = decompress(content, path, max_size)
        framing = _detect(data, salvages) if framing is Framing.AUTO else framing
        return scan_either_way(ScanRequest(data, file, framing, salvages))
    except ArchiveError as error:
        raise ArchiveError(f"{path}: {error}") from error


def _detect(data: bytes, salvages: bool) -> Framing:
    try:
        return detect(data)
    except FramingError:
        framing = framing_of_damaged(data) if salvages else None
        if framing is None:
            raise
        return framing


def scan_either_way(request: ScanRequest) -> ScanResult:
    """Reads the head as if outside a stream segment, then as if inside one: the wrong way does not decode.

    Message, Relation and Type may decode both ways. In a head of these alone nothing depends on it, as transaction
    assembly, which knows the open transaction, decodes them again; where frames have LSNs, those of Messages equal them
    if read the right way. A head with changes that decodes both ways is an error. If neither way decodes, the damage,
    or the tail that is left, is that of the reading that gets further or to the end of the file.
    """
    if request.begins_in_stream is not None:
        return _scan_from(request, request.begins_in_stream)
    outside_error: HeadError | None = None
    outside = Scanner(request, begins_in_stream=False)
    try:
        outside.run()
    except HeadError as error:
        outside_error = error
    else:
        if outside.head_is_certain:
            return outside.result()
    inside = Scanner(request, begins_in_stream=True)
    try:
        inside.run()
    except HeadError as error:
        if outside_error is None:
            return outside.result()
        further = max(outside_error, error, key=lambda e: (e.messages_read, e.is_short))
        if not request.salvages and not (request.leaves_tail and further.is_short):
            raise further.cause from None
        if outside_error.messages_read == error.messages_read and outside.head_matters:
            raise _undecided() from None
        return _scan_from(request, further is error)
    return inside.result() if outside_error is not None else _choose(request, outside, inside)


def _choose(request: ScanRequest, outside: Scanner, inside: Scanner) -> ScanResult:
    """The result if the head decodes both ways."""
    if outside.head_matters or inside.head_matters:
        raise _undecided()
    if outside.head_hash == inside.head_hash:
        return outside.result()
    if outside.head_lsns_differ != inside.head_lsns_differ:
        return (inside if outside.head_lsns_differ else outside).result()
    undecided = Scanner(request, begins_in_stream=False, reads_head_messages=False)
    undecided.run()
    return undecided.result()


def _undecided() -> SequenceError:
    return SequenceError(
        "can't tell whether this file begins inside a stream segment, as no message in it begins or ends one; "
        "land it in one file with the one before it"
    )


def _scan_from(request: ScanRequest, begins_in_stream: bool) -> ScanResult:
    scanner = Scanner(request, begins_in_stream, is_certain=True)
    try:
        scanner.run()
    except HeadError as error:
        raise error.cause from None
    return scanner.result()
