"""Handlers for the messages of streamed and prepared transactions.

See "Logical Replication Message Formats" and "Logical Streaming Replication Protocol" in PostgreSQL's documentation.
"""

from __future__ import annotations

import numpy as np

from pgoutput_etl.errors import SequenceError
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.protocol import messages
from pgoutput_etl.scan.message_row import HEAD, NO_FRAGMENT
from pgoutput_etl.transactions.open_transactions import (
    OpenAtEnd,
    OpenAtEndKind,
    OpenTransaction,
    OpenTransactions,
    beginning_unreadable,
)
from pgoutput_etl.transactions.outcome import ControlRow, StreamAborts, TransactionStatus, UnknownPrepared
from pgoutput_etl.transactions.resends import cut_off_tail, is_resent


def start_segment(transactions: OpenTransactions, message: messages.StreamStart, row: ControlRow) -> None:
    stream = transactions.streams.get(message.xid)
    if message.first_segment and stream is not None:
        transactions.end(TransactionStatus.RESENT, stream)
    if message.first_segment or (stream is None and transactions.was_damaged):
        damage = None if message.first_segment else "the beginning of the stream can't be read"
        stream = OpenTransaction(message.xid, [], scope=transactions.next_scope, damage=damage, has_content=False)
        transactions.next_scope += 1
        transactions.streams[message.xid] = stream
    elif stream is None:
        raise SequenceError(
            f"message {row.ordinal}: Stream Start continues transaction {message.xid}, whose first segment is not in "
            "the archive: an earlier file is missing"
        )
    _check_not_cut_off(stream, "Stream Start", row)
    file = transactions.file
    file.segment_start = row.ordinal
    stream.fragments.append((file.number, row.fragment))
    file.segments[row.fragment] = file.owners[row.fragment] = stream
    transactions.tail = OpenAtEnd(OpenAtEndKind.SEGMENT, stream)


def stop_segment(transactions: OpenTransactions, ordinal: int | None = None) -> None:
    """Also ends the tail if the segment's Stream Start is unreadable and the tail was open before it. ordinal: the
    position of the Stream Stop; None if the segment has none."""
    tail = transactions.tail
    if tail is not None and ordinal != transactions.file.segment_start + 1:
        tail.transaction.has_content = True
    if tail is not None and tail.kind is OpenAtEndKind.PREPARED and tail.transaction.damage is not None:
        transactions.add_prepared(tail.transaction)  # its Prepare is among the unreadable bytes
    elif tail is not None and tail.kind is not OpenAtEndKind.SEGMENT:
        cut_off_tail(transactions)
    transactions.tail = None


def commit_stream(
    transactions: OpenTransactions, message: messages.StreamCommit, row: ControlRow
) -> OpenTransaction | None:
    """The transaction to commit. None: it was sent before, or its beginning is unreadable."""
    stream = transactions.streams.pop(message.xid, None)
    if stream is None:
        if not is_resent(transactions, row.epoch, message.commit_lsn) and not transactions.was_damaged:
            raise SequenceError(
                f"message {row.ordinal}: Stream Commit at {format_lsn(message.commit_lsn)} of transaction "
                f"{message.xid}, which is not whole in the archive: an earlier file is missing"
            )
        return None
    _end_stream(transactions, stream, "Stream Commit", row)
    return stream


def abort_streams(transactions: OpenTransactions, aborts: StreamAborts) -> None:
    """Each abort drops the transaction, or the changes of one of its subtransactions.

    PostgreSQL 18 also sends Stream Abort for transactions that it never streamed.
    """
    for xid in np.unique(aborts.xids).tolist():
        stream = transactions.streams.get(xid)
        if stream is None:
            continue
        subxids = aborts.subxids[aborts.xids == xid]
        is_whole = subxids == xid
        stream.aborted_subxids.extend(subxids[~is_whole].tolist())
        if is_whole.any():
            del transactions.streams[xid]
            transactions.end(TransactionStatus.ABORTED, stream)


def prepare_stream(transactions: OpenTransactions, message: messages.StreamPrepare, row: ControlRow) -> None:
    stream = transactions.streams.pop(message.xid, None)
    if stream is None and transactions.was_damaged:
        return
    if stream is None:
        raise SequenceError(
            f"message {row.ordinal}: Stream Prepare of transaction {message.xid}, which is not whole: "
            "an earlier file is missing"
        )
    _end_stream(transactions, stream, "Stream Prepare", row)
    stream.gid = message.gid
    transactions.add_prepared(stream)


def begin_prepare(transactions: OpenTransactions, message: messages.BeginPrepare, row: ControlRow) -> None:
    streamed = transactions.streams.pop(message.xid, None)
    if streamed is not None:  # after a new connection the server sends it in one piece
        transactions.end(TransactionStatus.RESENT, streamed)
    fragments = [(transactions.file.number, row.fragment)]
    transaction = OpenTransaction(message.xid, fragments, gid=message.gid, lsn=message.prepare_lsn)
    transactions.file.owners[row.fragment] = transaction
    transactions.tail = OpenAtEnd(OpenAtEndKind.PREPARED, transaction)


def prepare(transactions: OpenTransactions, message: messages.Prepare, row: ControlRow) -> None:
    """Without a Begin Prepare, the transaction is empty: PostgreSQL 18 sends a lone Prepare for one that has an xid and
    nothing to decode, earlier versions for one that is rolled back while it is decoded."""
    tail, file = transactions.tail, transactions.file
    begun = tail.transaction if tail is not None and tail.kind is OpenAtEndKind.PREPARED else None
    if row.fragment in file.orphans:
        damage, fragments = beginning_unreadable(file.number), [(file.number, row.fragment)]
        begun = OpenTransaction(message.xid, fragments, gid=message.gid, damage=damage)
        file.owners[row.fragment] = begun
    if begun is not None and (begun.xid, begun.gid) == (message.xid, message.gid):
        transactions.tail = None
        transactions.add_prepared(begun)
    elif row.fragment == NO_FRAGMENT or (row.fragment == HEAD and not file.head_has_changes):
        cut_off_tail(transactions)
        transactions.empty_prepared.add(message.gid)
    else:
        raise SequenceError(
            f"message {row.ordinal}: Prepare of transaction {message.xid} ends what another one's Begin Prepare "
            "began: a file between them is missing"
        )


def commit_prepared(
    transactions: OpenTransactions, message: messages.CommitPrepared, row: ControlRow
) -> OpenTransaction | None:
    """The transaction to commit. None: its Prepare is not in the archive.

    Before PostgreSQL 18 the server does not send empty transactions, so there is nothing to commit. A Prepare in a
    missing file looks the same.
    """
    transaction = _pop_prepared(transactions, message.xid, message.gid)
    is_new = not is_resent(transactions, row.epoch, message.commit_lsn)
    if transaction is not None:
        return transaction
    if is_new and message.gid in transactions.cut_off_gids:
        raise SequenceError(
            f"message {row.ordinal}: Commit Prepared of transaction {message.xid}, which was cut off before its "
            "Prepare: a file is missing"
        )
    if message.gid in transactions.empty_prepared:
        transactions.empty_prepared.discard(message.gid)
    elif is_new:
        transactions.unknown_prepared.append(UnknownPrepared(message.xid, message.gid, message.commit_lsn))
    return None


def rollback_prepared(transactions: OpenTransactions, message: messages.RollbackPrepared) -> None:
    transaction = _pop_prepared(transactions, message.xid, message.gid)
    transactions.cut_off_gids.discard(message.gid)
    transactions.empty_prepared.discard(message.gid)
    if transaction is not None:
        transactions.end(TransactionStatus.ABORTED, transaction)


def _pop_prepared(transactions: OpenTransactions, xid: int, gid: str) -> OpenTransaction | None:
    transaction = transactions.prepared.get(xid)
    if transaction is None or transaction.gid != gid:
        return None
    return transactions.prepared.pop(xid)


def _end_stream(transactions: OpenTransactions, stream: OpenTransaction, message: str, row: ControlRow) -> None:
    """From Stream Commit or Stream Prepare on, the stream's Relation messages hold for all transactions."""
    _check_not_cut_off(stream, message, row)
    assert stream.scope is not None
    transactions.relations.promote(stream.scope, (transactions.file.number, row.ordinal))


def _check_not_cut_off(stream: OpenTransaction, message: str, row: ControlRow) -> None:
    if stream.cut_off and stream.damage is None:
        raise SequenceError(
            f"message {row.ordinal}: {message} of transaction {stream.xid}, the last segment of which is cut off: "
            "a file is missing"
        )
