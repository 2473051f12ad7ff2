"""Transactions hit by damage: those with unreadable bytes, and those whose beginning or end is missing."""

from __future__ import annotations

from collections.abc import Iterable

from pgoutput_etl.errors import SequenceError
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.scan.file_summary import Damage, FileScan, FragmentKind, InterruptedFragment, OpenFragment
from pgoutput_etl.scan.message_row import HEAD, NO_FRAGMENT
from pgoutput_etl.transactions.open_transactions import OpenTransaction, OpenTransactions, beginning_unreadable
from pgoutput_etl.transactions.outcome import TransactionStatus, UnreadableRange
from pgoutput_etl.transactions.resends import is_resent


def add_damage(transactions: OpenTransactions, scan: FileScan, damage: Damage) -> None:
    """Marks the transactions that may lack a message, so that they are quarantined if they commit."""
    tail, last = transactions.tail, scan.open_fragment
    nothing_open = damage.fragment == NO_FRAGMENT or (damage.fragment == HEAD and tail is None)
    if damage.is_torn and (nothing_open or not damage.reaches(scan.size)):
        return  # the server sends it again, which is checked where something was cut off
    ends_in = None if last is None else (last.fragment, last.kind)
    if damage.is_torn and ends_in == (damage.fragment, FragmentKind.TRANSACTION.value):
        return  # decided by the next file; the tail keeps the damage
    transactions.was_damaged = True
    relations = _possible_relations(transactions, damage)
    owner = transactions.file.owners.get(damage.fragment)
    if owner is not None:
        owner.record_damage(_describe(scan, damage), relations)
    elif damage.fragment in (NO_FRAGMENT, HEAD) or damage.fragment in scan.orphans:
        for transaction in (*transactions.streams.values(), *transactions.prepared.values()):
            transaction.record_damage(_describe(scan, damage), relations)
    if not damage.is_torn and (relations is None or (owner is None and relations)):
        before = max(damage.commit_lsn, transactions.file.watermarks[0])
        transactions.unreadable_ranges.append(UnreadableRange(before + 1, relations, _describe(scan, damage)))


def add_unread_file(
    transactions: OpenTransactions, number: int, last_commit_lsn: int, relations: frozenset[int] | None
) -> None:
    """A file that is not read may have rows of these relations. If they are not known (None), it may have rows of any,
    and parts of all open transactions."""
    if relations is not None and not relations:
        return
    transactions.was_damaged = True
    reason = f"file {number}: it was set aside"
    if relations is None:
        tail = () if transactions.tail is None else (transactions.tail.transaction,)
        for transaction in (*transactions.streams.values(), *transactions.prepared.values(), *tail):
            transaction.record_damage(reason, None)
    transactions.unreadable_ranges.append(UnreadableRange(last_commit_lsn + 1, relations, reason))


def damage_transaction(transactions: OpenTransactions, scan: FileScan, transaction: OpenTransaction) -> None:
    """Marks an ordinary transaction with the damage in its last fragment."""
    fragment = transaction.fragments[-1][1]
    _damage(transactions, scan, transaction, [damage for damage in scan.damages if damage.fragment == fragment])
    if transaction.damage is None:  # an orphan: the damage is before it
        transaction.damage = beginning_unreadable(scan.file)


def end_damaged(transactions: OpenTransactions, scan: FileScan, fragment: OpenFragment) -> None:
    """Ends a damaged ordinary transaction that begins and commits in this file."""
    assert fragment.commit_lsn is not None
    transaction = OpenTransaction(fragment.xid, [(scan.file, fragment.fragment)])
    damage_transaction(transactions, scan, transaction)
    is_new = not is_resent(transactions, fragment.epoch, fragment.commit_lsn)
    status = TransactionStatus.QUARANTINED if is_new else TransactionStatus.RESENT
    transactions.end(status, transaction, fragment.commit_lsn, fragment.commit_ts)


def end_orphans(transactions: OpenTransactions, scan: FileScan) -> None:
    """Quarantines the orphans that nothing else accounts for."""
    known = set(transactions.file.owners)
    known.update(ended.fragment for ended in scan.damaged)
    known.update(interrupted.fragment for interrupted in scan.interrupted)
    if scan.open_fragment is not None and scan.open_fragment.kind != FragmentKind.SEGMENT.value:
        known.add(scan.open_fragment.fragment)
    for fragment in scan.orphans:
        if fragment not in known:
            _end_orphan(transactions, scan, fragment)


def _end_orphan(transactions: OpenTransactions, scan: FileScan, fragment: int) -> None:
    """Quarantines rows whose transaction is unreadable at both ends. It committed after the last commit before them."""
    before = min((damage.commit_lsn for damage in scan.damages), default=0)
    reason = f"file {scan.file}: neither end of the transaction can be read"
    transaction = OpenTransaction(None, [(scan.file, fragment)], damage=reason)
    lsn = max(before, transactions.file.watermarks[0]) + 1
    transactions.end(TransactionStatus.QUARANTINED, transaction, lsn)


def end_interrupted(transactions: OpenTransactions, scan: FileScan, fragment: InterruptedFragment) -> None:
    """Ends an ordinary transaction that another one cut off.

    The server sends it again, whole, before any later commit. Otherwise bytes are missing: raises SequenceError.
    """
    if fragment.fragment in scan.orphans:
        _end_orphan(transactions, scan, fragment.fragment)
        return
    lsn, next_lsn = fragment.commit_lsn, fragment.next_lsn
    transaction = OpenTransaction(fragment.xid, [(scan.file, fragment.fragment)])
    damages = [damage for damage in scan.damages if damage.fragment == fragment.fragment and not damage.is_torn]
    is_new = lsn is not None and not is_resent(transactions, fragment.epoch, lsn)
    if lsn is None or not is_new or (next_lsn is not None and next_lsn <= lsn):
        transactions.end(TransactionStatus.RESENT, transaction)
    elif damages:
        _damage(transactions, scan, transaction, damages)
        transactions.end(TransactionStatus.QUARANTINED, transaction, lsn)
    elif next_lsn is None:
        transactions.cut_off_lsn = lsn
        transactions.end(TransactionStatus.RESENT, transaction)
    else:
        raise SequenceError(
            f"continues with the commit at {format_lsn(next_lsn)}, but the transaction that commits at "
            f"{format_lsn(lsn)} is incomplete: bytes are missing between them"
        )


def _damage(
    transactions: OpenTransactions, scan: FileScan, transaction: OpenTransaction, damages: Iterable[Damage]
) -> None:
    for damage in damages:
        transaction.record_damage(_describe(scan, damage), _possible_relations(transactions, damage))


def _possible_relations(transactions: OpenTransactions, damage: Damage) -> frozenset[int] | None:
    """The relations that the unreadable bytes may be about. None if they may be about any relation."""
    if damage.oids is None:
        return None
    known = frozenset(damage.oids) & transactions.relations.oids()
    return None if not known and damage.may_hold_rows else known


def _describe(scan: FileScan, damage: Damage) -> str:
    """Names the file by its number; `cutoff.with_paths` puts in the path."""
    return f"file {scan.file}, offset {damage.offset}: {damage.reason}"
