"""Which transaction each unit belongs to, and how that transaction ended.

Ordinary transactions that begin and end within one file never come here: their rows carry what Begin said, and a
*watermark* per stretch of a file tells which of them are resent. Here come the things that cross files: stream
segments, prepared transactions, the unit that is open where a file ends. What this holds grows with files and with
open transactions, whatever the archive's size.

A transaction is applied if its commit LSN is past every commit that the archive had before (before its stretch, to be
exact): the server sends commits in LSN order, so that anything else was sent already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pgoutput_etl.errors import SequenceError
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.messages import (
    BeginPrepare,
    Commit,
    CommitPrepared,
    Origin,
    PgoutputMessage,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Type,
)
from pgoutput_etl.scan.file_summary import (
    Damage,
    FileBeginning,
    FileScan,
    FragmentKind,
    InterruptedFragment,
    OpenFragment,
)
from pgoutput_etl.scan.message_row import HEAD, NO_FRAGMENT
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.transactions.open_transaction import (
    FileState,
    OpenAtEnd,
    OpenAtEndKind,
    OpenTransaction,
    describe_transaction,
    outcome_of,
    transaction_without_beginning,
)
from pgoutput_etl.transactions.origin_filter import Origins
from pgoutput_etl.transactions.outcome import (
    Control,
    ControlRow,
    FragmentId,
    Outcome,
    StreamAborts,
    TransactionStatus,
    UnknownPrepared,
    UnreadableRange,
    Watermark,
)
from pgoutput_etl.xid import is_newer

STATE_VERSION = 1


class Assembly:
    """Takes the files' summaries and control messages in order; knows the outcome of what has ended.

    `relations` and `types` are brought up to date on the way, as what they mean depends on transactions too.
    """

    def __init__(self, relations: RelationHistory | None = None) -> None:
        self.relations = RelationHistory() if relations is None else relations
        self.origins = Origins()  # which are applied
        self.last_commit_ts: int | None = None  # of the last commit, in microseconds since 2000-01-01 UTC
        self.types: dict[int, Type] = {}
        self.last_commit_lsn = 0
        self.outcomes: list[Outcome] = []
        self.watermarks: list[Watermark] = []
        self.unreadable_ranges: list[UnreadableRange] = []
        # What may be a transaction that came before, or another server's: of these files those from an oldest xid to a
        # newest one, and these xids. Transactions that ran side by side look the same.
        self.overlaps: dict[int, tuple[int, int]] = {}
        self.overlapping_xids: set[int] = set()
        self._newest_xid: int | None = None
        self._newest_before: int | None = None  # of all files before the last
        self.was_damaged = False  # so that what seems to be missing may be there, but unreadable
        # From this commit on, no table can be relied on, for that reason: what can't be read may be about any.
        self.unreliable_from: tuple[int, str] | None = None
        # Commit Prepared of transactions whose Prepare the archive has not.
        self.unknown_prepared: list[UnknownPrepared] = []
        self._next_scope = 1
        self._streams: dict[int, OpenTransaction] = {}
        self._prepared: dict[int, OpenTransaction] = {}
        self._tail: OpenAtEnd | None = None
        # What was cut off, and so has to be sent again: an ordinary transaction's commit LSN, prepared ones' gids.
        self._cut_off_lsn: int | None = None
        self._cut_off_gids: set[str] = set()
        self._empty_prepared: set[str] = set()  # gids of transactions that were prepared without anything to decode
        self._file: FileState

    def add_file(self, scan: FileScan, controls: Iterable[Control]) -> None:
        """The next file in order. Raises SequenceError if it can't follow what came before."""
        watermarks = self._epoch_watermarks(scan)
        head_has_changes = scan.begins != FileBeginning.EITHER.value or scan.head_needs_owner
        self._file = FileState(scan.file, watermarks, head_has_changes=head_has_changes, orphans=scan.orphans)
        self._newest_before = self._newest_xid
        if scan.xids is not None:
            oldest, newest = scan.xids
            if self._newest_xid is not None and not is_newer(oldest, self._newest_xid):
                self.overlaps[scan.file] = (oldest, self._newest_xid)
            self._record_xid(newest)
        self._take_head(scan)
        damages = list(scan.damages)
        for row in sorted(controls, key=lambda r: r.ordinal):
            while damages and damages[0].ordinal <= row.ordinal:
                self._damage(scan, damages.pop(0))
            if isinstance(row, StreamAborts):
                self._stream_aborts(row)
            else:
                self._control(row)
        for damage in damages:
            self._damage(scan, damage)
        for ended in scan.damaged:
            self._damaged_transaction(scan, ended)
        self._orphaned_segments(scan)
        self._take_tail(scan)
        self._sent_again(scan)
        for fragment in scan.interrupted:
            self._interrupted(scan, fragment)
        for fragment in scan.interrupted:
            self._forget_streams((scan.file, fragment.fragment))
        if len(scan.epochs) > 1:
            self._forget_streams((scan.file, HEAD))

    def _forget_streams(self, before: FragmentId) -> None:
        """Those begun before a new connection: it streams anew what it streams, and may never speak again of what was
        rolled back meanwhile. Where bytes can't be read, only what looks like a new connection is known."""
        for xid, stream in list(self._streams.items()):
            is_open_here = self._tail is not None and self._tail.transaction is stream
            if stream.fragments[0] < before and not is_open_here and not self.was_damaged:
                self._record_end(TransactionStatus.RESENT, self._streams.pop(xid))

    def _record_xid(self, xid: int) -> None:
        if self._newest_xid is None or is_newer(xid, self._newest_xid):
            self._newest_xid = xid

    @property
    def needs_history(self) -> bool:
        """Whether any transaction may be one that came before, or another server's."""
        return bool(self.watermarks or self.overlaps or self.overlapping_xids)

    def record_commit(self, lsn: int, time: int | None) -> None:
        """`time`: microseconds since 2000-01-01 UTC. Notes it if it is the last one."""
        if time is not None and lsn >= self.last_commit_lsn:
            self.last_commit_ts = time

    def streams_begun(self) -> dict[int, FragmentId]:
        """The open streamed transactions by xid, with the last unit of each."""
        return {xid: stream.fragments[-1] for xid, stream in self._streams.items()}

    def replaced(self, xid: int) -> None:
        """A transaction that was streamed in part was sent whole after that, as an ordinary one."""
        self._record_end(TransactionStatus.RESENT, self._streams.pop(xid))
        tail = self._tail
        if tail is not None and tail.kind is OpenAtEndKind.SEGMENT and tail.transaction.xid == xid:
            self._tail = None

    def replace_streams(self, ends: Iterable[tuple[int, FragmentId]]) -> None:
        """Once all files are in. `ends`: xid and unit of ordinary transactions within a file, in any order."""
        begun = self.streams_begun()
        for xid, fragment in ends:
            if xid in begun and fragment > begun[xid]:
                self.replaced(xid)
                del begun[xid]

    def open_outcomes(self) -> list[Outcome]:
        """The transactions that wait for a later file."""
        waiting = [*self._streams.values(), *self._prepared.values()]
        if self._tail is not None and self._tail.kind is not OpenAtEndKind.SEGMENT:
            waiting.append(self._tail.transaction)
        return [outcome_of(TransactionStatus.OPEN, transaction) for transaction in waiting]

    def _epoch_watermarks(self, scan: FileScan) -> list[int]:
        before: list[int] = []
        for number, epoch in enumerate(scan.epochs):
            before.append(self.last_commit_lsn)
            if self.last_commit_lsn and (epoch is None or epoch[0] <= self.last_commit_lsn):
                self.watermarks.append(Watermark(scan.file, number, self.last_commit_lsn))
            if epoch is not None:
                self.last_commit_lsn = max(self.last_commit_lsn, epoch[1])
        return before

    def _take_head(self, scan: FileScan) -> None:
        """Gives the file's head to what the file before left open."""
        tail = self._tail
        if tail is not None and tail.kind is OpenAtEndKind.SEGMENT:
            self._file.begins_in_stream = True
            self._file.segments[HEAD] = tail.transaction
        if tail is not None:
            self._file.owners[HEAD] = tail.transaction
        if scan.begins == FileBeginning.EITHER.value:
            if tail is None and scan.head_needs_owner:
                raise SequenceError(
                    "begins inside a transaction, but nothing is open where the file before it ends: a file between "
                    "them is missing"
                )
            if tail is not None and scan.head_may_have_owner:
                tail.transaction.fragments.append((scan.file, HEAD))
            if scan.head_ended and not scan.head_prepared:
                self._cut_off_tail()
            return
        inside = scan.begins == FileBeginning.INSIDE.value
        if tail is None or inside != (tail.kind is OpenAtEndKind.SEGMENT):
            where = "inside a stream segment" if inside else "inside a transaction"
            before = "nothing" if tail is None else f"a {tail.kind.value}"
            raise SequenceError(
                f"begins {where}, but {before} is open where the file before it ends: a file between them is missing"
            )
        tail.transaction.fragments.append((scan.file, HEAD))

    def _take_tail(self, scan: FileScan) -> None:
        """Keeps what is open where the file ends."""
        last = scan.open_fragment
        if last is not None and last.fragment == HEAD:
            return  # the head goes on into the next file, and so does the tail before it
        if last is None:
            self._cut_off_tail()
        elif last.kind == FragmentKind.TRANSACTION.value:
            self._cut_off_tail()
            begun = OpenTransaction(last.xid, [(scan.file, last.fragment)], lsn=last.commit_lsn)
            begun.origin, begun.origin_lsn = last.origin, last.origin_lsn
            for damage in scan.damages if last.is_damaged else ():
                if damage.fragment == last.fragment:
                    begun.record_damage(describe_transaction(scan, damage), self._possible_relations(damage))
            if last.is_damaged and begun.damage is None:
                begun.damage = transaction_without_beginning(scan.file)
            self._tail = OpenAtEnd(OpenAtEndKind.TRANSACTION, begun)
        elif last.fragment in scan.orphans:
            self._stream_stop()
        elif self._tail is None or self._tail.transaction.fragments[-1] != (scan.file, last.fragment):
            raise SequenceError(f"unit {last.fragment} is open where the file ends, but nothing began it")

    def _damage(self, scan: FileScan, damage: Damage) -> None:
        """Whatever is open where it stands may be the worse for it, and is not applied if it is committed."""
        reaches_end = damage.reaches(scan.size)
        nothing_open = damage.fragment == NO_FRAGMENT or (damage.fragment == HEAD and self._tail is None)
        if damage.is_torn and (nothing_open or not reaches_end):
            return  # the server sends it again; that it does so is seen to where something was cut off
        last = scan.open_fragment
        if (
            damage.is_torn
            and last is not None
            and (last.fragment, last.kind) == (damage.fragment, FragmentKind.TRANSACTION.value)
        ):
            return  # the next file tells; `_take_tail` keeps it with the transaction
        self.was_damaged = True
        reason = describe_transaction(scan, damage)
        lost = self._possible_relations(damage)
        owner = self._file.owners.get(damage.fragment)
        if owner is not None:
            owner.record_damage(reason, lost)
        elif damage.fragment in (NO_FRAGMENT, HEAD) or damage.fragment in scan.orphans:
            for transaction in (*self._streams.values(), *self._prepared.values()):
                transaction.record_damage(reason, lost)
        if not damage.is_torn and (lost is None or (owner is None and lost)):
            before = max(damage.commit_lsn, self._file.watermarks[0])
            self.unreadable_ranges.append(UnreadableRange(before + 1, lost, reason))

    def _possible_relations(self, damage: Damage) -> frozenset[int] | None:
        if damage.oids is None:
            return None
        known = frozenset(damage.oids) & self.relations.oids()
        return None if not known and damage.may_hold_rows else known

    def _damaged_transaction(self, scan: FileScan, ended: OpenFragment) -> None:
        """An ordinary one that ends in the file in which it begins."""
        assert ended.commit_lsn is not None
        own = [damage for damage in scan.damages if damage.fragment == ended.fragment]
        damaged = OpenTransaction(ended.xid, [(scan.file, ended.fragment)])
        for damage in own:
            damaged.record_damage(describe_transaction(scan, damage), self._possible_relations(damage))
        if not own:  # an orphan: what it began with stands before it
            damaged.damage = transaction_without_beginning(scan.file)
        status = (
            TransactionStatus.QUARANTINED
            if ended.commit_lsn > self._file.watermarks[ended.epoch]
            else TransactionStatus.RESENT
        )
        self._record_end(status, damaged, ended.commit_lsn, ended.commit_ts)

    def _orphan(self, scan: FileScan, fragment: int) -> None:
        """Rows of a transaction of which neither end can be read: committed after all that was before the damage."""
        before = min((damage.commit_lsn for damage in scan.damages), default=0)
        orphan = OpenTransaction(
            None, [(scan.file, fragment)], damage=f"file {scan.file}: neither end of the transaction can be read"
        )
        self._record_end(TransactionStatus.QUARANTINED, orphan, max(before, self._file.watermarks[0]) + 1)

    def _orphaned_segments(self, scan: FileScan) -> None:
        ended = (*(each.fragment for each in scan.damaged), *(each.fragment for each in scan.interrupted))
        elsewhere = {*ended, *self._file.owners}
        if scan.open_fragment is not None and scan.open_fragment.kind != FragmentKind.SEGMENT.value:
            elsewhere.add(scan.open_fragment.fragment)
        for fragment in scan.orphans:
            if fragment not in elsewhere:
                self._orphan(scan, fragment)

    def _interrupted(self, scan: FileScan, fragment: InterruptedFragment) -> None:
        """The server sends it again, whole, before anything that was committed later; bytes are missing otherwise."""
        lsn = fragment.commit_lsn
        interrupted = OpenTransaction(fragment.xid, [(scan.file, fragment.fragment)])
        if fragment.fragment in scan.orphans:
            self._orphan(scan, fragment.fragment)
            return
        damages = [damage for damage in scan.damages if damage.fragment == fragment.fragment and not damage.is_torn]
        is_new = lsn is not None and lsn > self._file.watermarks[fragment.epoch]
        if lsn is None or not is_new or (fragment.next_lsn is not None and fragment.next_lsn <= lsn):
            self._record_end(TransactionStatus.RESENT, interrupted)
        elif damages:
            for damage in damages:
                interrupted.record_damage(describe_transaction(scan, damage), self._possible_relations(damage))
            self._record_end(TransactionStatus.QUARANTINED, interrupted, lsn)
        elif fragment.next_lsn is None:
            self._cut_off_lsn = lsn
            self._record_end(TransactionStatus.RESENT, interrupted)
        else:
            raise SequenceError(
                f"goes on with the commit at {format_lsn(fragment.next_lsn)}, but the one at {format_lsn(lsn)} was "
                "begun and has not come: something is missing between them"
            )

    def _cut_off_tail(self) -> None:
        """The receiver connected again: the server sends anew what it had not sent whole."""
        tail, self._tail = self._tail, None
        if tail is None:
            return
        self._forget_streams((self._file.number + 1, HEAD))
        if tail.kind is OpenAtEndKind.SEGMENT:
            tail.transaction.cut_off = True
            return
        if tail.kind is OpenAtEndKind.PREPARED and tail.transaction.gid is not None:
            self._cut_off_gids.add(tail.transaction.gid)
        elif tail.transaction.lsn is not None and tail.transaction.lsn > self._file.watermarks[0]:
            self._cut_off_lsn = tail.transaction.lsn
        self._record_end(TransactionStatus.RESENT, tail.transaction)

    def _sent_again(self, scan: FileScan) -> None:
        """Commits go on no later than with that of the transaction that was cut off."""
        commits = [epoch[0] for epoch in scan.epochs if epoch is not None]
        if scan.open_fragment is not None and scan.open_fragment.commit_lsn is not None:
            commits.append(scan.open_fragment.commit_lsn)
        if self._cut_off_lsn is None or not commits:
            return
        if commits[0] > self._cut_off_lsn:
            raise SequenceError(
                f"goes on with the commit at {format_lsn(commits[0])}, but the one at {format_lsn(self._cut_off_lsn)} "
                "was begun and has not come: a file is missing"
            )
        self._cut_off_lsn = None

    def _not_cut_off(self, stream: OpenTransaction, message: str, row: ControlRow) -> None:
        if stream.cut_off and stream.damage is None:
            raise SequenceError(
                f"message {row.ordinal}: {message} of transaction {stream.xid}, the last segment of which is cut off: "
                "a file is missing"
            )

    def _control(self, row: ControlRow) -> None:
        in_stream = self._file.begins_in_stream if row.fragment == HEAD else row.in_stream
        message = decode(row.body, in_stream)
        match message:
            case Relation():
                stream = self._file.segments.get(row.fragment) if in_stream else None
                scope = None if stream is None else stream.scope
                self.relations.declare(message, (self._file.number, row.ordinal), scope)
            case Type():
                self.types[message.oid] = message
            case StreamStart():
                self._stream_start(message, row)
            case StreamStop():
                self._stream_stop()
            case Prepare():
                self._prepare(message, row)
            case Commit():
                self._commit_of_head(message, row)
            case Origin():
                owner = self._file.owners.get(row.fragment)
                if owner is not None:
                    owner.record_origin(message)
            case _:
                self._cut_off_tail()
                self._between_fragments(message, row)

    def _stream_stop(self) -> None:
        """Of a segment whose beginning can't be read, what was open before it is open no more."""
        tail = self._tail
        if tail is not None and tail.kind is OpenAtEndKind.PREPARED and tail.transaction.damage is not None:
            self._keep_prepared(tail.transaction)  # its Prepare is among what can't be read
        elif tail is not None and tail.kind is not OpenAtEndKind.SEGMENT:
            self._cut_off_tail()
        self._tail = None

    def _between_fragments(self, message: PgoutputMessage, row: ControlRow) -> None:
        match message:
            case StreamCommit():
                self._stream_commit(message, row)
            case BeginPrepare():
                streamed = self._streams.pop(message.xid, None)
                if streamed is not None:  # sent again after the receiver connected again, this time in one piece
                    self._record_end(TransactionStatus.RESENT, streamed)
                begun = OpenTransaction(
                    message.xid, [(self._file.number, row.fragment)], gid=message.gid, lsn=message.prepare_lsn
                )
                self._file.owners[row.fragment] = begun
                self._tail = OpenAtEnd(OpenAtEndKind.PREPARED, begun)
            case StreamPrepare():
                self._stream_prepare(message, row)
            case CommitPrepared():
                self._commit_prepared(message, row)
            case RollbackPrepared():
                self._rollback_prepared(message)
            case _:
                raise SequenceError(f"{type(message).__name__} is no control message")

    def _stream_start(self, message: StreamStart, row: ControlRow) -> None:
        self._cut_off_tail()
        stream = self._streams.get(message.xid)
        if message.first_segment and stream is not None:
            self._record_end(TransactionStatus.RESENT, stream)
        if message.first_segment or (stream is None and self.was_damaged):
            damage = None if message.first_segment else "the beginning of the stream can't be read"
            stream = OpenTransaction(message.xid, [], scope=self._next_scope, damage=damage)
            self._next_scope += 1
            self._streams[message.xid] = stream
        elif stream is None:
            raise SequenceError(
                f"message {row.ordinal}: Stream Start goes on with transaction {message.xid}, whose first segment is "
                "not in the archive: an earlier file is missing"
            )
        self._not_cut_off(stream, "Stream Start", row)
        stream.fragments.append((self._file.number, row.fragment))
        self._file.segments[row.fragment] = stream
        self._file.owners[row.fragment] = stream
        self._tail = OpenAtEnd(OpenAtEndKind.SEGMENT, stream)

    def _stream_commit(self, message: StreamCommit, row: ControlRow) -> None:
        stream = self._streams.pop(message.xid, None)
        if stream is None:
            if message.commit_lsn > self._watermark(row) and not self.was_damaged:
                raise SequenceError(
                    f"message {row.ordinal}: Stream Commit at {format_lsn(message.commit_lsn)} of transaction "
                    f"{message.xid}, which is not whole in the archive: an earlier file is missing"
                )
            return
        self._not_cut_off(stream, "Stream Commit", row)
        self._promote(stream, row)
        self._end(stream, message.commit_lsn, message.commit_timestamp, row)

    def _stream_aborts(self, aborts: StreamAborts) -> None:
        """Each drops the transaction, or the changes of one subtransaction and nothing else.

        PostgreSQL 18 sends it for transactions that it never streamed, too.
        """
        self._cut_off_tail()
        for xid in np.unique(aborts.xids).tolist():
            stream = self._streams.get(xid)
            if stream is None:
                continue
            subxids = aborts.subxids[aborts.xids == xid]
            is_whole = subxids == xid
            stream.aborted_subxids.extend(subxids[~is_whole].tolist())
            if is_whole.any():
                del self._streams[xid]
                self._record_end(TransactionStatus.ABORTED, stream)

    def _prepare(self, message: Prepare, row: ControlRow) -> None:
        """PostgreSQL 18 sends it without a Begin Prepare for a transaction that has an xid and nothing to decode; so do
        earlier versions for one that is rolled back while it is decoded."""
        tail = self._tail
        begun = None if tail is None or tail.kind is not OpenAtEndKind.PREPARED else tail.transaction
        if row.fragment in self._file.orphans:
            damage, fragments = transaction_without_beginning(self._file.number), [(self._file.number, row.fragment)]
            begun = OpenTransaction(message.xid, fragments, gid=message.gid, damage=damage)
            self._file.owners[row.fragment] = begun
        if begun is not None and (begun.xid, begun.gid) == (message.xid, message.gid):
            self._tail = None
            self._keep_prepared(begun)
        elif row.fragment == NO_FRAGMENT or (row.fragment == HEAD and not self._file.head_has_changes):
            self._cut_off_tail()
            self._empty_prepared.add(message.gid)
        else:
            raise SequenceError(
                f"message {row.ordinal}: Prepare of transaction {message.xid} ends what another one's Begin Prepare "
                "began: a file between them is missing"
            )

    def _stream_prepare(self, message: StreamPrepare, row: ControlRow) -> None:
        stream = self._streams.pop(message.xid, None)
        if stream is None and self.was_damaged:
            return
        if stream is None:
            raise SequenceError(
                f"message {row.ordinal}: Stream Prepare of transaction {message.xid}, which is not whole: "
                "an earlier file is missing"
            )
        self._not_cut_off(stream, "Stream Prepare", row)
        self._promote(stream, row)
        stream.gid = message.gid
        self._keep_prepared(stream)

    def _keep_prepared(self, transaction: OpenTransaction) -> None:
        assert transaction.xid is not None
        self._cut_off_gids.discard(transaction.gid or "")
        again = self._prepared.pop(transaction.xid, None)
        if again is not None:
            self._record_end(TransactionStatus.RESENT, again)
        self._prepared[transaction.xid] = transaction

    def _commit_prepared(self, message: CommitPrepared, row: ControlRow) -> None:
        """Before PostgreSQL 18 a transaction that was empty was never sent: there is nothing to commit of it. One whose
        Prepare was in a file that is missing looks the same."""
        transaction = self._take_prepared(message.xid, message.gid)
        is_new = message.commit_lsn > self._watermark(row)
        if transaction is None and is_new and message.gid in self._cut_off_gids:
            raise SequenceError(
                f"message {row.ordinal}: Commit Prepared of transaction {message.xid}, which was cut off before its "
                "Prepare: a file is missing"
            )
        if transaction is not None:
            self._end(transaction, message.commit_lsn, message.commit_timestamp, row)
        elif message.gid in self._empty_prepared:
            self._empty_prepared.discard(message.gid)
        elif is_new:
            self.unknown_prepared.append(UnknownPrepared(message.xid, message.gid, message.commit_lsn))

    def _rollback_prepared(self, message: RollbackPrepared) -> None:
        transaction = self._take_prepared(message.xid, message.gid)
        self._cut_off_gids.discard(message.gid)
        self._empty_prepared.discard(message.gid)
        if transaction is not None:
            self._record_end(TransactionStatus.ABORTED, transaction)

    def _take_prepared(self, xid: int, gid: str) -> OpenTransaction | None:
        transaction = self._prepared.get(xid)
        if transaction is None or transaction.gid != gid:
            return None
        return self._prepared.pop(xid)

    def _commit_of_head(self, message: Commit, row: ControlRow) -> None:
        tail = self._tail
        is_open = tail is not None and tail.kind is OpenAtEndKind.TRANSACTION
        if (
            tail is None
            or not is_open
            or (tail.transaction.lsn != message.commit_lsn and tail.transaction.damage is None)
        ):
            raise SequenceError(
                f"message {row.ordinal}: Commit at {format_lsn(message.commit_lsn)} of a transaction that the file "
                "before it doesn't leave open: a file between them is missing"
            )
        self._tail = None
        if tail.transaction.xid in self._streams:
            self.replaced(tail.transaction.xid)
        self._end(tail.transaction, message.commit_lsn, message.commit_timestamp, row)

    def _end(self, transaction: OpenTransaction, lsn: int, time: int, row: ControlRow) -> None:
        if transaction.xid is not None:
            if self._newest_before is not None and not is_newer(transaction.xid, self._newest_before):
                self.overlapping_xids.add(transaction.xid)
            self._record_xid(transaction.xid)
        self.record_commit(lsn, time)
        status = TransactionStatus.COMMITTED if self.origins.accepts(transaction.origin) else TransactionStatus.REFUSED
        status = status if transaction.damage is None else TransactionStatus.QUARANTINED
        status = status if lsn > self._watermark(row) else TransactionStatus.RESENT
        self._record_end(status, transaction, lsn, time)

    def _record_end(
        self, status: TransactionStatus, transaction: OpenTransaction, lsn: int | None = None, time: int | None = None
    ) -> None:
        """Nothing more comes of this sending of the transaction."""
        if transaction.scope is not None:
            self.relations.end(transaction.scope)
        self.outcomes.append(outcome_of(status, transaction, lsn, time))

    def _promote(self, stream: OpenTransaction, row: ControlRow) -> None:
        assert stream.scope is not None
        self.relations.promote(stream.scope, (self._file.number, row.ordinal))

    def _watermark(self, row: ControlRow) -> int:
        return self._file.watermarks[row.epoch]

    def state(self) -> dict[str, Any]:
        """What the next run has to know, for JSON. Relations and types are kept apart."""
        tail = None
        if self._tail is not None:
            tail = {"kind": self._tail.kind.value, "of": self._tail.transaction.to_state()}
        return {
            "version": STATE_VERSION,
            "last_commit_lsn": self.last_commit_lsn,
            "next_scope": self._next_scope,
            "streams": [stream.to_state() for stream in self._streams.values()],
            "prepared": [transaction.to_state() for transaction in self._prepared.values()],
            "tail": tail,
            "cut_off_lsn": self._cut_off_lsn,
            "cut_off_gids": sorted(self._cut_off_gids),
            "empty_prepared": sorted(self._empty_prepared),
            "was_damaged": self.was_damaged,
            "highest_xid": self._newest_xid or 0,
            "unreliable_from": self.unreliable_from,
            "last_commit_ts": self.last_commit_ts,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], relations: RelationHistory, types: dict[int, Type]) -> Assembly:
        assembly = cls(relations)
        assembly.types = dict(types)
        assembly.last_commit_lsn = state["last_commit_lsn"]
        assembly._next_scope = state["next_scope"]
        assembly._cut_off_lsn = state["cut_off_lsn"]
        assembly._cut_off_gids = set(state["cut_off_gids"])
        assembly._empty_prepared = set(state.get("empty_prepared", ()))  # what an earlier ledger doesn't say
        assembly.was_damaged = state["was_damaged"]
        assembly._newest_xid = state["highest_xid"] or None
        assembly.last_commit_ts = state.get("last_commit_ts")  # what a ledger from before it was kept doesn't say
        if state["unreliable_from"] is not None:
            lsn, reason = state["unreliable_from"]
            assembly.unreliable_from = (lsn, reason)
        streams = [OpenTransaction.from_state(s) for s in state["streams"]]
        assembly._streams = {s.xid: s for s in streams if s.xid is not None}
        prepared = [OpenTransaction.from_state(s) for s in state["prepared"]]
        assembly._prepared = {s.xid: s for s in prepared if s.xid is not None}
        if state["tail"] is not None:
            kind = OpenAtEndKind(state["tail"]["kind"])
            of = OpenTransaction.from_state(state["tail"]["of"])
            # A segment's stream is one of the streams, not a copy of it.
            of = assembly._streams[of.xid] if kind is OpenAtEndKind.SEGMENT and of.xid is not None else of
            assembly._tail = OpenAtEnd(kind, of)
        relations.keep_scopes(open_scopes(state))
        return assembly


NOTHING_OPEN: dict[str, Any] = {"streams": [], "prepared": []}  # in the form of Assembly.state


def open_scopes(state: Mapping[str, Any]) -> list[int]:
    """Of the streamed transactions that have not ended, in the form of Assembly.state."""
    return [each["scope"] for each in (*state["streams"], *state["prepared"]) if each["scope"] is not None]
