"""Scans one archived file into Arrow rows, one per message that matters, and a summary of the file.

Files are scanned independently, so thousands can be scanned in parallel. A file is split into fragments: the messages
between Begin and Commit, between Begin Prepare and Prepare, or in one stream segment. Fragment 0 is the head: the
messages before the first beginning, which belong to a transaction that an earlier file left open. Transaction assembly
finds that transaction, and the ends of streamed and prepared transactions, from the control rows of all files.

Within a file, commit LSNs rise, unless the receiver reconnected and the server started again from an earlier point: a
new *epoch* begins there. A transaction is new if its commit LSN is greater than all commits before its epoch.
"""

from __future__ import annotations

from pgoutput_etl.errors import SequenceError
from pgoutput_etl.scan.request import HeadError, ScanRequest, ScanResult
from pgoutput_etl.scan.scanner import Scanner


def scan_either_way(request: ScanRequest) -> ScanResult:
    """Reads the head as if outside a stream segment, then as if inside one: the wrong assumption fails to decode.

    Message, Relation, and Type may decode both ways. If the head has no other messages, the choice doesn't matter,
    because transaction assembly knows the open transaction and decodes them again; if frames have LSNs, those of
    Messages equal them under the right assumption. A head with changes that decodes both ways is an error, unless one
    way reads the end of its segment, and the other way another beginning. If neither way decodes, the result has the
    damage or tail of the reading that gets further.
    """
    if request.read_together is not None and (together := request.read_together(request)) is not None:
        return together
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
    """The result for a head that decodes both ways."""
    if outside.head_is_cut_off:
        return (inside if inside.head_is_certain else outside).result()
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
