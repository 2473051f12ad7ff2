"""Assigns fragments to transactions, and determines each transaction's status.

Assembly only handles messages that matter beyond one file or fragment: stream segments, prepared transactions, and the
fragment that is open where a file ends. The rows of an ordinary transaction within one file carry the data of its
Begin, and a watermark per epoch tells which of them are resent. The state therefore grows with the number of files and
open transactions, not with the number of messages.

A transaction is applied if its commit LSN is higher than all commit LSNs before its epoch. The server sends commits in
LSN order, so any other transaction was sent before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pgoutput_etl.errors import SequenceError
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.protocol import messages
from pgoutput_etl.protocol.catalog_message import PREFIX, MessagePlace
from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.scan.file_summary import (
    Damage,
    FileBeginning,
    FileScan,
    Fragment,
    FragmentKind,
)
from pgoutput_etl.scan.message_row import HEAD, NO_FRAGMENT
from pgoutput_etl.schema.relation_history import Position, RelationHistory
from pgoutput_etl.transactions.catalog_numbers import CatalogNumber
from pgoutput_etl.transactions.origin_filter import Origins
from pgoutput_etl.transactions.outcome import (
    Control,
    ControlRow,
    FragmentId,
    Outcome,
    StreamAborts,
    TransactionStatus,
    UnreadableRange,
    Watermark,
)
from pgoutput_etl.transactions.streamed_and_prepared import (
    FileState,
    OpenAtEnd,
    OpenTransaction,
    OpenTransactions,
    beginning_unreadable,
)
from pgoutput_etl.xid import is_newer

STATE_VERSION = 1


class Assembly:
    """Consumes the summary and the control messages of each file, in order.

    It also updates `relations` and `types`, because their validity depends on transactions as well.
    """

    def __init__(
        self,
        relations: RelationHistory | None = None,
        state: Mapping[str, Any] | None = None,
        types: Mapping[int, messages.Type] = MappingProxyType({}),
    ) -> None:
        """relations, state, types: those after the last batch; state: returned by the method `state`."""
        relations = RelationHistory() if relations is None else relations
        self._open = OpenTransactions(relations) if state is None else OpenTransactions.from_state(state, relations)
        if state is not None:
            relations.keep_scopes(open_scopes(state))
        last = state or {}
        # The handlers also add to these. outcomes: one per sending of a transaction that has ended.
        self.relations, self.outcomes = self._open.relations, self._open.outcomes
        self.unreadable_ranges, self.unknown_prepared = self._open.unreadable_ranges, self._open.unknown_prepared
        self.origins = Origins()  # the origins whose transactions are applied
        self.types = dict(types)
        self.last_commit_lsn: int = last.get("last_commit_lsn", 0)
        self.last_commit_ts: int | None = last.get("last_commit_ts")  # microseconds since 2000-01-01 UTC
        self.watermarks: list[Watermark] = []
        # The commit LSN from which no table can be trusted, because unreadable bytes may concern any table, and the
        # reason.
        unreliable: Sequence[Any] | None = last.get("unreliable_from")
        self.unreliable_from: tuple[int, str] | None = None if unreliable is None else (unreliable[0], unreliable[1])
        # Transactions that may be another server's, or may be in an earlier file: a range of xids per file, and
        # individual xids. Concurrent transactions look the same.
        self.overlaps: dict[int, tuple[int, int]] = {}
        self.overlapping_xids: set[int] = set()
        self._newest_xid: int | None = last.get("highest_xid") or None
        self._newest_before: int | None = None  # before the last file

    @property
    def was_damaged(self) -> bool:
        return self._open.was_damaged

    @property
    def needs_history(self) -> bool:
        """True if a transaction may have been sent before, or by another server."""
        return bool(self.watermarks or self.overlaps or self.overlapping_xids)

    def open_outcomes(self) -> list[Outcome]:
        """The transactions that are waiting for a later file."""
        tail = self._open.tail
        waiting = [*self._open.streams.values(), *self._open.prepared.values()]
        if tail is not None and tail.kind is not FragmentKind.SEGMENT:
            waiting.append(tail.transaction)
        return [transaction.outcome(TransactionStatus.OPEN) for transaction in waiting]

    def streams_begun(self) -> dict[int, FragmentId]:
        """The last fragment of each open streamed transaction, by xid."""
        return {xid: stream.fragments[-1] for xid, stream in self._open.streams.items()}

    def add_file(self, scan: FileScan, controls: Iterable[Control]) -> None:
        """Adds the next file. Raises SequenceError if it can't follow the previous files."""
        watermarks = self._add_epochs(scan)
        head_has_changes = scan.begins is not FileBeginning.EITHER or scan.head_needs_owner
        self._open.file = FileState(
            scan.file, watermarks, head_has_changes=head_has_changes, orphans=scan.orphans, roots=scan.roots
        )
        self._newest_before = self._newest_xid
        if scan.xids is not None:
            oldest, newest = scan.xids
            if self._newest_xid is not None and not is_newer(oldest, self._newest_xid):
                self.overlaps[scan.file] = (oldest, self._newest_xid)
            self._record_xid(newest)
        self._assign_head(scan)
        self._add_controls(scan, controls)
        for fragment in scan.damaged:
            _end_damaged(self._open, scan, fragment)
        _end_orphans(self._open, scan)
        self._update_tail(scan)
        self._open.check_sent_again(scan)
        for interrupted in scan.interrupted:
            _end_interrupted(self._open, scan, interrupted)
        for interrupted in scan.interrupted:
            self._open.forget_streams((scan.file, interrupted.number))
        if len(scan.epochs) > 1:
            self._open.forget_streams((scan.file, HEAD))

    def add_unread_file(self, number: int, relations: frozenset[int] | None) -> None:
        """Adds the next file without reading it. It may have rows of these relations or, if they are unknown (None),
        rows of any relation and parts of all open transactions."""
        if relations is not None and not relations:
            return
        self._open.was_damaged = True
        reason = f"file {number}: it was set aside"
        if relations is None:
            tail = () if self._open.tail is None else (self._open.tail.transaction,)
            for transaction in (*self._open.streams.values(), *self._open.prepared.values(), *tail):
                transaction.record_damage(reason, None)
        self.unreadable_ranges.append(UnreadableRange(self.last_commit_lsn + 1, relations, reason))

    def record_commit(self, lsn: int, time: int | None) -> None:
        """Records the commit's time if no commit was later. time: microseconds since 2000-01-01 UTC."""
        if time is not None and lsn >= self.last_commit_lsn:
            self.last_commit_ts = time

    def replace_streams(self, ends: Iterable[tuple[int, FragmentId]]) -> None:
        """Call it after the last file that they are in. ends: xid and fragment of each ordinary transaction that begins
        and ends in the same file, in any order."""
        begun = self.streams_begun()
        for xid, fragment in ends:
            if xid in begun and fragment > begun[xid]:
                self._open.end_replaced_stream(xid)
                del begun[xid]

    def _record_xid(self, xid: int) -> None:
        if self._newest_xid is None or is_newer(xid, self._newest_xid):
            self._newest_xid = xid

    def _add_epochs(self, scan: FileScan) -> list[int]:
        """Adds the file's epochs. Returns the last commit LSN before each one."""
        before: list[int] = []
        for number, epoch in enumerate(scan.epochs):
            before.append(self.last_commit_lsn)
            if self.last_commit_lsn and (epoch is None or epoch[0] <= self.last_commit_lsn):
                self.watermarks.append(Watermark(scan.file, number, self.last_commit_lsn))
            if epoch is not None:
                self.last_commit_lsn = max(self.last_commit_lsn, epoch[1])
        return before

    def _assign_head(self, scan: FileScan) -> None:
        """Assigns the file's head to the transaction that the previous file left open."""
        tail, file = self._open.tail, self._open.file
        if tail is not None:
            file.owners[HEAD] = tail.transaction
            if tail.kind is FragmentKind.SEGMENT:
                file.begins_in_stream = True
        if scan.begins is FileBeginning.EITHER:
            if tail is None and scan.head_needs_owner:
                raise SequenceError(
                    "begins inside a transaction, but nothing is open where the file before it ends: a file between "
                    "them is missing"
                )
            if tail is not None and scan.head_may_have_owner:
                tail.transaction.fragments.append((scan.file, HEAD))
            if scan.head_ended and not scan.head_prepared:
                self._open.cut_off_tail()
            return
        inside = scan.begins is FileBeginning.INSIDE
        if tail is None or inside != (tail.kind is FragmentKind.SEGMENT):
            where = "inside a stream segment" if inside else "inside a transaction"
            before = "nothing" if tail is None else f"a {tail.kind.value}"
            raise SequenceError(
                f"begins {where}, but {before} is open where the file before it ends: a file between them is missing"
            )
        tail.transaction.fragments.append((scan.file, HEAD))

    def _add_controls(self, scan: FileScan, controls: Iterable[Control]) -> None:
        """Handles control messages and damage, in file order."""
        damages = list(scan.damages)
        for row in sorted(controls, key=lambda r: r.ordinal):
            while damages and damages[0].ordinal <= row.ordinal:
                _add_damage(self._open, scan, damages.pop(0))
            if isinstance(row, StreamAborts):
                self._open.cut_off_tail()
                self._open.abort_streams(row)
            else:
                self._control(row)
        for remaining in damages:
            _add_damage(self._open, scan, remaining)

    def _control(self, row: ControlRow) -> None:
        transactions, file = self._open, self._open.file
        in_stream = file.begins_in_stream if row.fragment == HEAD else row.in_stream
        message = decode(row.body, in_stream)
        match message:
            case messages.Relation():
                described = self.relations.definitions.completed(message, transactions.open_xid(row.fragment))
                position, root = (file.number, row.ordinal), file.roots.get(row.ordinal)
                self.relations.declare(described, position, file.scope_of(row.fragment, in_stream), root)
            case messages.Message():
                self._add_definitions(message, row, file.scope_of(row.fragment, in_stream))
            case messages.Type():
                self.types[message.oid] = message
            case messages.Origin():
                if row.fragment in file.owners:
                    file.owners[row.fragment].record_origin(message)
            case messages.StreamStop():
                transactions.stop_segment(row.ordinal)
            case messages.Prepare():
                transactions.prepare(message, row)
            case messages.Commit():
                self.relations.definitions.record_time(message.commit_lsn, message.commit_timestamp)
                self._commit(self._commit_head(message, row), message, row)
            case _:
                transactions.cut_off_tail()
                self._control_between_fragments(message, row)

    def _add_definitions(self, message: messages.Message, row: ControlRow, scope: int | None) -> None:
        """Adds the definitions in a catalog Message."""
        if message.prefix != PREFIX:
            return
        file, xid = self._open.file, self._open.open_xid(row.fragment)
        position, owner = (file.number, row.ordinal), file.owners.get(row.fragment)
        lsn = None if xid is not None else row.commit_lsn if owner is None else owner.lsn
        if xid is None and lsn is not None and self._open.is_resent(row.epoch, lsn):
            return
        sent = file.catalog_numbers.setdefault(row.fragment, []) if owner is None else owner.catalog_numbers
        top_xid, numbers = row.top_xid if owner is None else owner.xid, self._open.catalog_numbers
        place = MessagePlace(top_xid, sent[-1].number if sent else 0, numbers.newest)
        found = self.relations.definitions.read(message, place)
        numbers.newest = max(numbers.newest, found.transaction)
        if found.number and found.xid is not None:
            sent.append(CatalogNumber(found.number, found.xid, found.after, position))
            if lsn is not None:
                self._open.check_catalog_numbers(sent[-1:], lsn, None)
        self.relations.definitions.add(found, position, xid, lsn, row.commit_ts, top_xid)
        self.relations.follow(found, position, scope, xid)

    def _control_between_fragments(self, message: messages.PgoutputMessage, row: ControlRow) -> None:
        transactions = self._open
        match message:
            case messages.StreamStart():
                transactions.start_segment(message, row)
            case messages.StreamCommit():
                self._commit(transactions.commit_stream(message, row), message, row)
            case messages.BeginPrepare():
                transactions.begin_prepare(message, row)
            case messages.StreamPrepare():
                transactions.prepare_stream(message, row)
            case messages.CommitPrepared():
                self._commit(transactions.commit_prepared(message, row), message, row)
            case messages.RollbackPrepared():
                transactions.rollback_prepared(message)
            case _:
                raise SequenceError(f"{type(message).__name__} is no control message")

    def _commit_head(self, message: messages.Commit, row: ControlRow) -> OpenTransaction:
        """The ordinary transaction in the file's head, which this Commit ends."""
        tail = self._open.tail
        if (
            tail is None
            or tail.kind is not FragmentKind.TRANSACTION
            or (tail.transaction.damage is None and tail.transaction.lsn != message.commit_lsn)
        ):
            raise SequenceError(
                f"message {row.ordinal}: Commit at {format_lsn(message.commit_lsn)} of a transaction that the file "
                "before it doesn't leave open: a file between them is missing"
            )
        self._open.tail = None
        if tail.transaction.xid in self._open.streams:
            self._open.end_replaced_stream(tail.transaction.xid)
        return tail.transaction

    def _commit(
        self,
        transaction: OpenTransaction | None,
        message: messages.Commit | messages.StreamCommit | messages.CommitPrepared,
        row: ControlRow,
    ) -> None:
        if transaction is None:
            return
        if transaction.xid is not None:
            if self._newest_before is not None and not is_newer(transaction.xid, self._newest_before):
                self.overlapping_xids.add(transaction.xid)
            self._record_xid(transaction.xid)
        lsn, time = message.commit_lsn, message.commit_timestamp
        self.record_commit(lsn, time)
        status = TransactionStatus.COMMITTED if self.origins.accepts(transaction.origin) else TransactionStatus.REFUSED
        status = status if transaction.damage is None else TransactionStatus.QUARANTINED
        if not self._open.is_resent(row.epoch, lsn):
            self._open.end(status, transaction, lsn, time)
        elif transaction.has_content:
            self._open.end(TransactionStatus.RESENT, transaction, lsn, time)
        else:
            # If a transaction has no changes for the slot, the server streams it only when it is short of memory. The
            # transaction may therefore never have been sent before, and nothing is missing. Without an LSN, no check
            # searches for an earlier sending.
            self._open.end(TransactionStatus.RESENT, transaction)

    def _update_tail(self, scan: FileScan) -> None:
        """Records the fragment that is open where the file ends."""
        last, tail = scan.open_fragment, self._open.tail
        if tail is not None and sum(scan.messages.values()) != self._open.file.segment_start + 1:
            tail.transaction.has_content = True
        if last is not None and last.number == HEAD:
            return  # the head continues in the next file, and the tail is kept
        if last is None:
            self._open.cut_off_tail()
        elif last.kind is FragmentKind.TRANSACTION:
            self._open.cut_off_tail()
            transaction = OpenTransaction(last.xid, [(scan.file, last.number)], lsn=last.commit_lsn)
            transaction.origin, transaction.origin_lsn = last.origin, last.origin_lsn
            transaction.catalog_numbers = self._open.file.catalog_numbers.get(last.number, [])
            if last.is_damaged:
                _damage_transaction(self._open, scan, transaction)
            self._open.tail = OpenAtEnd(FragmentKind.TRANSACTION, transaction)
        elif last.number in scan.orphans:
            self._open.stop_segment()
        elif tail is None or tail.transaction.fragments[-1] != (scan.file, last.number):
            raise SequenceError(f"fragment {last.number} is open where the file ends, but nothing began it")

    def state(self) -> dict[str, Any]:
        """The JSON that the next batch starts from. The ledger stores relations and types in separate tables."""
        return {
            "version": STATE_VERSION,
            "last_commit_lsn": self.last_commit_lsn,
            **self._open.to_state(),
            "highest_xid": self._newest_xid or 0,
            "unreliable_from": self.unreliable_from,
            "last_commit_ts": self.last_commit_ts,
            "has_catalog": bool(self.relations.definitions),
        }


NOTHING_OPEN: dict[str, Any] = {"streams": [], "prepared": []}  # in the form of Assembly.state


def open_scopes(state: Mapping[str, Any]) -> list[int]:
    """The scopes of streamed transactions that have not ended. state: returned by Assembly.state."""
    return [transaction["scope"] for transaction in (*state["streams"], *state["prepared"]) if transaction["scope"]]


def open_messages(state: Mapping[str, Any]) -> set[Position]:
    """The positions of catalog Messages in the last sending of each transaction that has not ended. state: returned by
    Assembly.state."""
    tail = () if state["tail"] is None else (state["tail"]["of"],)
    sending = {transaction["xid"] for transaction in (*state["streams"], *tail)}
    waiting = [transaction for transaction in state["prepared"] if transaction["xid"] not in sending]
    transactions = map(OpenTransaction.from_state, (*state["streams"], *waiting, *tail))
    return {sent.position for transaction in transactions for sent in transaction.catalog_messages()}


def _add_damage(transactions: OpenTransactions, scan: FileScan, damage: Damage) -> None:
    """Marks transactions that may lack a message, so they are quarantined if they commit."""
    tail, last = transactions.tail, scan.open_fragment
    nothing_open = damage.fragment == NO_FRAGMENT or (damage.fragment == HEAD and tail is None)
    if damage.is_torn and (nothing_open or damage.offset + damage.size < scan.size):
        return  # the server sends it again, which is checked where a transaction was cut off
    ends_in = None if last is None else (last.number, last.kind)
    if damage.is_torn and ends_in == (damage.fragment, FragmentKind.TRANSACTION):
        return  # decided by the next file; the tail keeps the damage
    transactions.was_damaged = True
    relations = _possible_relations(transactions, damage)
    owner = transactions.file.owners.get(damage.fragment)
    if owner is not None:
        owner.record_damage(_describe_damage(scan, damage), relations)
    elif damage.fragment in (NO_FRAGMENT, HEAD) or damage.fragment in scan.orphans:
        for transaction in (*transactions.streams.values(), *transactions.prepared.values()):
            transaction.record_damage(_describe_damage(scan, damage), relations)
    if not damage.is_torn and (relations is None or (owner is None and relations)):
        before = max(damage.commit_lsn, transactions.file.watermarks[0])
        transactions.unreadable_ranges.append(UnreadableRange(before + 1, relations, _describe_damage(scan, damage)))


def _damage_transaction(transactions: OpenTransactions, scan: FileScan, transaction: OpenTransaction) -> None:
    """Marks an ordinary transaction with the damage in its last fragment."""
    fragment = transaction.fragments[-1][1]
    _record_damages(transactions, scan, transaction, [damage for damage in scan.damages if damage.fragment == fragment])
    if transaction.damage is None:  # an orphan: the damage precedes it
        transaction.damage = beginning_unreadable(scan.file)


def _end_damaged(transactions: OpenTransactions, scan: FileScan, fragment: Fragment) -> None:
    """Ends a damaged ordinary transaction that begins and commits in this file."""
    assert fragment.commit_lsn is not None
    transaction = OpenTransaction(fragment.xid, [(scan.file, fragment.number)])
    _damage_transaction(transactions, scan, transaction)
    is_new = not transactions.is_resent(fragment.epoch, fragment.commit_lsn)
    status = TransactionStatus.QUARANTINED if is_new else TransactionStatus.RESENT
    transactions.end(status, transaction, fragment.commit_lsn, fragment.commit_ts)


def _end_orphans(transactions: OpenTransactions, scan: FileScan) -> None:
    """Quarantines orphans that nothing else explains."""
    known = set(transactions.file.owners)
    known.update(ended.number for ended in scan.damaged)
    known.update(interrupted.number for interrupted in scan.interrupted)
    if scan.open_fragment is not None and scan.open_fragment.kind is not FragmentKind.SEGMENT:
        known.add(scan.open_fragment.number)
    for fragment in scan.orphans:
        if fragment not in known:
            _end_orphan(transactions, scan, fragment)


def _end_orphan(transactions: OpenTransactions, scan: FileScan, fragment: int) -> None:
    """Quarantines rows of a transaction that is unreadable at both ends. It committed after the last commit before
    them."""
    before = min((damage.commit_lsn for damage in scan.damages), default=0)
    reason = f"file {scan.file}: neither end of the transaction can be read"
    transaction = OpenTransaction(None, [(scan.file, fragment)], damage=reason)
    lsn = max(before, transactions.file.watermarks[0]) + 1
    transactions.end(TransactionStatus.QUARANTINED, transaction, lsn)


def _end_interrupted(transactions: OpenTransactions, scan: FileScan, fragment: Fragment) -> None:
    """Ends an ordinary transaction that was cut off by another one.

    The server must send it again, whole, before any later commit. Otherwise bytes are missing: raises SequenceError.
    """
    if fragment.number in scan.orphans:
        _end_orphan(transactions, scan, fragment.number)
        return
    lsn, next_lsn = fragment.commit_lsn, fragment.next_lsn
    transaction = OpenTransaction(fragment.xid, [(scan.file, fragment.number)])
    damages = [damage for damage in scan.damages if damage.fragment == fragment.number and not damage.is_torn]
    is_new = lsn is not None and not transactions.is_resent(fragment.epoch, lsn)
    if lsn is None or not is_new or (next_lsn is not None and next_lsn <= lsn):
        transactions.end(TransactionStatus.RESENT, transaction)
    elif damages:
        _record_damages(transactions, scan, transaction, damages)
        transactions.end(TransactionStatus.QUARANTINED, transaction, lsn)
    elif next_lsn is None:
        transactions.cut_off_lsn = lsn
        transactions.end(TransactionStatus.RESENT, transaction)
    else:
        raise SequenceError(
            f"continues with the commit at {format_lsn(next_lsn)}, but the transaction that commits at "
            f"{format_lsn(lsn)} is incomplete: bytes are missing between them"
        )


def _record_damages(
    transactions: OpenTransactions, scan: FileScan, transaction: OpenTransaction, damages: Iterable[Damage]
) -> None:
    for damage in damages:
        transaction.record_damage(_describe_damage(scan, damage), _possible_relations(transactions, damage))


def _possible_relations(transactions: OpenTransactions, damage: Damage) -> frozenset[int] | None:
    """The relations that the unreadable bytes may concern; None if any."""
    if damage.oids is None:
        return None
    known = frozenset(damage.oids) & transactions.relations.oids()
    return None if not known and damage.may_hold_rows else known


def _describe_damage(scan: FileScan, damage: Damage) -> str:
    """Names the file by number; `cutoff.with_paths` inserts the path."""
    return f"file {scan.file}, offset {damage.offset}: {damage.reason}"
