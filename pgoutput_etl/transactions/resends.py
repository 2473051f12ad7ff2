"""Recognizes transactions that the server sent again.

A server sends again whatever its client had not confirmed, so an archive may hold a transaction several times, the last
time whole. One sending counts; the others end as `resent`:

- An ordinary transaction is resent if its commit LSN is not past its epoch's watermark: the last commit LSN of the
  files before. On executors, `status_lookup` applies the same rule.
- A transaction that a new connection cut off is sent again from its start. Until then, no later commit may arrive.
- A stream that began before a new connection is replaced by a new stream, or by an ordinary transaction.
"""

from __future__ import annotations

from pgoutput_etl.errors import SequenceError
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.message_row import HEAD
from pgoutput_etl.transactions.open_transactions import OpenAtEndKind, OpenTransactions
from pgoutput_etl.transactions.outcome import FragmentId, TransactionStatus


def is_resent(transactions: OpenTransactions, epoch: int, commit_lsn: int) -> bool:
    return commit_lsn <= transactions.file.watermarks[epoch]


def end_replaced_stream(transactions: OpenTransactions, xid: int) -> None:
    """Ends a stream whose transaction was sent again as an ordinary one."""
    transactions.end(TransactionStatus.RESENT, transactions.streams.pop(xid))
    tail = transactions.tail
    if tail is not None and tail.kind is OpenAtEndKind.SEGMENT and tail.transaction.xid == xid:
        transactions.tail = None


def cut_off_tail(transactions: OpenTransactions) -> None:
    """Ends the tail at a new connection: the server sends again whatever it had sent only in part."""
    tail, transactions.tail = transactions.tail, None
    if tail is None:
        return
    forget_streams(transactions, (transactions.file.number + 1, HEAD))
    transaction = tail.transaction
    if tail.kind is OpenAtEndKind.SEGMENT:
        transaction.cut_off = True
        return
    if tail.kind is OpenAtEndKind.PREPARED and transaction.gid is not None:
        transactions.cut_off_gids.add(transaction.gid)
    elif transaction.lsn is not None and not is_resent(transactions, 0, transaction.lsn):
        transactions.cut_off_lsn = transaction.lsn
    transactions.end(TransactionStatus.RESENT, transaction)


def forget_streams(transactions: OpenTransactions, before: FragmentId) -> None:
    """Ends streams begun before a new connection: the server streams them from the start again, and never mentions
    one that was rolled back meanwhile. After damage, a new connection is only a guess, so nothing is forgotten."""
    for xid, stream in list(transactions.streams.items()):
        is_tail = transactions.tail is not None and transactions.tail.transaction is stream
        if stream.fragments[0] < before and not is_tail and not transactions.was_damaged:
            transactions.end(TransactionStatus.RESENT, transactions.streams.pop(xid))


def check_sent_again(transactions: OpenTransactions, scan: FileScan) -> None:
    """Raises SequenceError if the commits continue past the transaction that was cut off."""
    commits = [epoch[0] for epoch in scan.epochs if epoch is not None]
    if scan.open_fragment is not None and scan.open_fragment.commit_lsn is not None:
        commits.append(scan.open_fragment.commit_lsn)
    cut_off_lsn = transactions.cut_off_lsn
    if cut_off_lsn is None or not commits:
        return
    if commits[0] > cut_off_lsn:
        raise SequenceError(
            f"continues with the commit at {format_lsn(commits[0])}, but the transaction that commits at "
            f"{format_lsn(cut_off_lsn)} is incomplete: a file is missing"
        )
    transactions.cut_off_lsn = None
