"""One archived file to one Arrow row per message that matters, and a summary of the file: the readable scanner.

A file is looked at alone, so that thousands can be looked at at once. It is cut into units: what stands between
Begin and Commit, between Begin Prepare and Prepare, or in one stream segment. Unit 0 is the head: what comes before
the first beginning, and so belongs to whatever the file before left open. Whose that is, and how streamed and
prepared transactions end, is answered by transactions.py, with the control rows of all files.

Within a file, commit LSNs only grow, unless the receiver connected again and the server sent from an earlier point: a
new *stretch* begins there. A transaction is new if its commit LSN is past all that was committed before its stretch.
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

    `salvages`: bytes that are no message become a Damage of the summary, and what can be read is. max_size: what a
    compressed file may expand to, in bytes.
    """
    try:
        data = decompress(content, path, max_size)
        found = detected(data, salvages) if framing is Framing.AUTO else framing
        return scan_from_either_side(ScanRequest(data, file, found, salvages))
    except ArchiveError as error:
        raise ArchiveError(f"{path}: {error}") from error


def detected(data: bytes, salvages: bool) -> Framing:
    """As detect; `salvages`: also of a file whose first message can't be read."""
    try:
        return detect(data)
    except FramingError:
        found = framing_of_damaged(data) if salvages else None
        if found is None:
            raise
        return found


def scan_from_either_side(part: ScanRequest) -> ScanResult:
    """Reads the head as outside a stream segment, then as inside one: the wrong way doesn't decode.

    Message, Relation and Type may well decode both ways; in a head of them alone nothing depends on it, as they are
    decoded anew, by who knows what is open. Where frames have LSNs, those of Messages are the same, read the right way.
    A head with changes that decodes both ways can't be told.
    Where neither decodes, the one that goes further, or to the file's end, has the damage, or the tail that is left.
    """
    if part.begins_in_stream is not None:
        return _scan_from(part, part.begins_in_stream)
    failed: HeadError | None = None
    outside = Scanner(part, begins_in_stream=False)
    try:
        outside.run()
    except HeadError as error:
        failed = error
    else:
        if outside.head_is_certain:
            return outside.result()
    inside = Scanner(part, begins_in_stream=True)
    try:
        inside.run()
    except HeadError as error:
        if failed is None:
            return outside.result()
        further = max(failed, error, key=lambda e: (e.messages_read, e.is_short))
        if not part.salvages and not (part.leaves_tail and further.is_short):
            raise further.cause from None
        if failed.messages_read == error.messages_read and outside.head_matters:
            raise _untold() from None
        return _scan_from(part, further is error)
    return inside.result() if failed is not None else _of_both(part, outside, inside)


def _of_both(part: ScanRequest, outside: Scanner, inside: Scanner) -> ScanResult:
    """Of a head that decodes both ways."""
    if outside.head_matters or inside.head_matters:
        raise _untold()
    if outside.head_reading == inside.head_reading:
        return outside.result()
    if outside.head_is_odd != inside.head_is_odd:
        return (inside if outside.head_is_odd else outside).result()
    unsure = Scanner(part, begins_in_stream=False, reads_messages=False)
    unsure.run()
    return unsure.result()


def _untold() -> SequenceError:
    return SequenceError(
        "can't tell whether this file begins inside a stream segment, as no message in it begins or ends one; "
        "land it in one file with the one before it"
    )


def _scan_from(part: ScanRequest, begins_in_stream: bool) -> ScanResult:
    scanner = Scanner(part, begins_in_stream, head_too=True)
    try:
        scanner.run()
    except HeadError as error:
        raise error.cause from None
    return scanner.result()
