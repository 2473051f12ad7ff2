"""The readable scanner: reads a file message by message, for one assumption about its beginning.

Where kernels are available, the fast path (scan/fast) reads runs of frequent, valid messages. Everything else is read
here, one message at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pgoutput_etl import jit
from pgoutput_etl.errors import ArchiveError, FramingError, SequenceError
from pgoutput_etl.lsn import MAX_STORED_LSN, format_lsn
from pgoutput_etl.protocol import messages as pgoutput
from pgoutput_etl.protocol.framing import Frame
from pgoutput_etl.protocol.messages import PgoutputMessage
from pgoutput_etl.scan.fast.handoff import FastPath
from pgoutput_etl.scan.file_summary import FileBeginning, Fragment, FragmentKind
from pgoutput_etl.scan.message_row import DAMAGE_TAG, HEAD, LOGICAL_TAG, NO_FRAGMENT, STORED_TIMES, with_catalog_tag
from pgoutput_etl.scan.partition_roots import partition_roots
from pgoutput_etl.scan.request import HeadError, ScanRequest, ScanResult, stored_origin_lsn
from pgoutput_etl.scan.row_buffer import ScanState
from pgoutput_etl.scan.salvage import Gap, ReadPosition, SalvageReader, damage_of, located_error
from pgoutput_etl.xid import widened


class Scanner(ScanState):
    def __init__(
        self, request: ScanRequest, begins_in_stream: bool, is_certain: bool = False, reads_head_messages: bool = True
    ) -> None:
        """is_certain: begins_in_stream is known to be right, so an error in the head is final. reads_head_messages:
        False leaves the head's Messages to transaction assembly, which knows the open transaction.
        """
        super().__init__(request)
        self.request = request
        self.begins_in_stream = begins_in_stream
        self.is_certain = is_certain
        self.reads_head_messages = reads_head_messages
        self.head_hash: int | None = None  # of the head's Messages as decoded; None if there are none
        self.head_is_cut_off = False  # another beginning, not an end, follows its changes
        self.head_lsns_differ = False  # a Message's LSN differs from its frame's, which a server never sends

    @property
    def in_stream(self) -> bool:
        fragment = self.fragment
        if fragment is None:
            return False
        return self.begins_in_stream if fragment.kind is FragmentKind.HEAD else fragment.kind is FragmentKind.SEGMENT

    @property
    def head_is_certain(self) -> bool:
        if self.head_is_cut_off:
            return False
        return not (self.head_matters or self.head_hash is not None) or self.summary.head_ended

    def _must_refuse(self) -> bool:
        """An error in the head may mean that begins_in_stream is wrong, so it isn't damage yet."""
        return not self.request.salvages or (self.in_head and not self.is_certain)

    def run(self) -> None:
        reader = SalvageReader(
            self.data,
            self.framing,
            self.begins_in_stream,
            self.request.start,
            self._must_refuse,
            self._fast_reader(),
            self._announced_commit,
        )
        try:
            for read in reader.messages():
                if isinstance(read, Gap) and read.may_grow and self.request.leaves_tail:
                    self.summary.tail = read.reason
                elif isinstance(read, Gap):
                    self._damage(read)
                else:
                    self._frame(*read)
        except ArchiveError as error:
            if self.in_head and not self.is_certain:
                raise HeadError(error, self.ordinal) from None
            if not self._is_tail(reader, error):
                raise
            self.summary.tail = str(error)
        self._finish()

    def _fast_reader(self) -> Callable[[Frame, bool], ReadPosition | None] | None:
        """The fast path; None without numba. Inspection, which prints every message, overrides this."""
        return FastPath(self).read if jit.AVAILABLE else None

    def _announced_commit(self) -> int | None:
        """The commit LSN in the open transaction's Begin; None after damage, where another transaction may have
        begun."""
        fragment = self.fragment
        if fragment is None or fragment.kind is not FragmentKind.TRANSACTION or fragment.is_damaged:
            return None
        return fragment.commit_lsn

    def _is_tail(self, reader: SalvageReader, error: ArchiveError) -> bool:
        """True if the bytes after the last whole message may become a message, and are left for a later run."""
        if not (isinstance(error, FramingError) and error.short and self.request.leaves_tail):
            return False
        return reader.rest(self.read_to, self.in_stream, str(error)).may_grow

    def _frame(self, message: PgoutputMessage, frame: Frame) -> None:
        self.compare((self.data[frame.start : frame.end],))
        self.offset, self.lsn, self.read_to = frame.offset, frame.lsn, frame.next
        try:
            self._count(frame)
            _check_commit(message)
            self._message(message, frame)
            if self.census is not None:
                self.census.add(message)
        except SequenceError as error:
            raise located_error(frame, self.ordinal, error) from None
        self.ordinal += 1

    def _damage(self, gap: Gap) -> None:
        """The open fragment continues after the gap unless another one begins there. A fragment that begins in the gap
        is an orphan."""
        position = (self.fragment_number, self.ordinal, self.commit_lsn)
        damage = damage_of(self.data, self.framing, gap, *position, self._may_end_with)
        self.summary.damages.append(damage)
        self.offset, self.read_to = gap.offset, gap.end
        self.append_row(DAMAGE_TAG, damage.fragment, body=self.data[gap.offset : gap.end])
        if not damage.begins_anew and (self.fragment is None or self.in_stream != gap.in_stream):
            self._new_fragment(FragmentKind.SEGMENT if gap.in_stream else FragmentKind.TRANSACTION, None)
            self.summary.orphans.append(self.fragments)
        if self.fragment is not None and (not damage.is_torn or gap.end == len(self.data)):
            self.fragment.is_damaged = True

    def _count(self, frame: Frame) -> None:
        tag = chr(self.data[frame.start])
        counts = self.summary.messages
        counts[tag] = counts.get(tag, 0) + 1
        if frame.lsn is None or frame.lsn == 0:
            return
        if frame.lsn > MAX_STORED_LSN:
            raise SequenceError(f"LSN {format_lsn(frame.lsn)} does not fit in a BIGINT")
        if self.summary.first_lsn is None:
            self.summary.first_lsn = frame.lsn
        self.summary.last_lsn = frame.lsn

    def _message(self, message: PgoutputMessage, frame: Frame) -> None:
        match message:
            case pgoutput.Insert() | pgoutput.Update() | pgoutput.Delete() | pgoutput.Truncate():
                self._change(message)
            case pgoutput.Relation() | pgoutput.Type():
                self._control(frame, xid=message.xid)
            case pgoutput.Message():
                self._logical(message, frame)
            case pgoutput.Origin():
                self._origin(message, frame)
            case pgoutput.Begin():
                self._begin(message)
            case pgoutput.Commit():
                self._commit(message, frame)
            case pgoutput.StreamStop():
                self._stream_stop(frame)
            case pgoutput.Prepare():
                self._prepare(message, frame)
            case pgoutput.StreamStart() | pgoutput.BeginPrepare():
                is_segment = isinstance(message, pgoutput.StreamStart)
                self._new_fragment(FragmentKind.SEGMENT if is_segment else FragmentKind.PREPARED, message.xid)
                self._control(frame)
            case pgoutput.StreamCommit() | pgoutput.CommitPrepared():
                self._end_fragment()
                self._committed(message)
                self._control(frame)
            case pgoutput.StreamAbort() | pgoutput.StreamPrepare() | pgoutput.RollbackPrepared():
                self._end_fragment()
                self._control(frame)

    def _change(self, message: pgoutput.Insert | pgoutput.Update | pgoutput.Delete | pgoutput.Truncate) -> None:
        fragment = self.fragment
        if fragment is None:
            raise SequenceError(f"{type(message).__name__} outside any transaction")
        if fragment.kind is FragmentKind.HEAD:
            self.head_matters = True
        fragment.changes += 1
        match message:
            case pgoutput.Insert():
                self.append_change("I", fragment, message.xid, message.relation_oid, new=message.new)
            case pgoutput.Update():
                kind = None if message.old_kind is None else message.old_kind.value
                self.append_change("U", fragment, message.xid, message.relation_oid, kind, message.old, message.new)
            case pgoutput.Delete():
                kind = message.old_kind.value
                self.append_change("D", fragment, message.xid, message.relation_oid, kind, message.old)
            case pgoutput.Truncate():
                for oid in message.relation_oids:
                    self.append_change("T", fragment, message.xid, oid)

    def _logical(self, message: pgoutput.Message, frame: Frame) -> None:
        """Non-transactional Messages belong to no fragment. Within one, the next row accounts for their bytes."""
        if message.lsn > MAX_STORED_LSN:
            raise SequenceError(f"a Message's LSN {format_lsn(message.lsn)} does not fit in a BIGINT")
        body = self.data[frame.start : frame.end]
        if self.in_head:
            self._read_in_head(message, frame)
            if not self.reads_head_messages:
                self.append_row(LOGICAL_TAG, HEAD, body=body)
                return
        fragment = self.fragment
        if message.transactional:
            if fragment is None:
                raise SequenceError("Message outside any transaction")
            self.append_row(LOGICAL_TAG, fragment.number, body=body, xid=message.xid, **fragment.begin_fields())
        else:
            end = self.read_to if fragment is None else self.accounted_to
            self.append_row(LOGICAL_TAG, NO_FRAGMENT, body=body, xid=message.xid, end=end)

    def _read_in_head(self, message: pgoutput.Message, frame: Frame) -> None:
        if message.xid is not None and not message.transactional:
            raise SequenceError("a Message inside a stream segment is not transactional")
        self.head_hash = hash((self.head_hash, message.xid, message.transactional, message.lsn))
        self.head_lsns_differ |= bool(frame.lsn) and frame.lsn != message.lsn
        self.summary.head_needs_owner |= message.transactional
        self.summary.head_may_have_owner |= message.transactional or not self.reads_head_messages

    def _origin(self, message: pgoutput.Origin, frame: Frame) -> None:
        """Adds the origin to the rows of a transaction that begins in this file. Other origins are for the driver."""
        fragment = self.fragment
        if fragment is None:
            return
        if fragment.commit_lsn is None:
            self._control(frame)
        elif fragment.origin is None:
            fragment.origin, fragment.origin_lsn = message.name, stored_origin_lsn(message.commit_lsn)

    def _begin(self, message: pgoutput.Begin) -> None:
        self._new_fragment(FragmentKind.TRANSACTION, message.xid)
        assert self.fragment is not None
        self.fragment.commit_lsn, self.fragment.commit_ts = message.final_lsn, message.commit_timestamp
        self._set_next_lsn(message.final_lsn)
        last = self._last_commit()
        if last is not None and message.final_lsn <= last:
            self.summary.epochs.append(None)

    def _commit(self, message: pgoutput.Commit, frame: Frame) -> None:
        fragment = self.fragment
        if fragment is not None and fragment.kind is FragmentKind.HEAD and not self.begins_in_stream:
            self._end_head()
            self._committed(message)
            self._control(frame, fragment=HEAD)
            return
        if fragment is None or fragment.kind is not FragmentKind.TRANSACTION:
            raise SequenceError("Commit without a Begin before it")
        if fragment.is_damaged:
            fragment.epoch = len(self.summary.epochs) - 1
            lsn = min(fragment.commit_lsn or message.commit_lsn, message.commit_lsn)
            self.summary.damaged.append(replace(fragment, commit_lsn=lsn, commit_ts=message.commit_timestamp))
        elif fragment.commit_lsn != message.commit_lsn:
            announced = format_lsn(fragment.commit_lsn or 0)
            raise SequenceError(
                f"Commit at {format_lsn(message.commit_lsn)} of a transaction whose Begin announced {announced}"
            )
        if fragment.xid is not None:
            self.summary.xids = widened(self.summary.xids, fragment.xid)
        self._committed(message)
        self._control(frame, fragment=fragment.number)
        self.fragment = None

    def _committed(self, message: pgoutput.Commit | pgoutput.StreamCommit | pgoutput.CommitPrepared) -> None:
        """Records a commit. An LSN that isn't greater than the last one begins a new epoch."""
        lsn = message.commit_lsn
        self._set_next_lsn(lsn)
        self.commit_lsn = max(self.commit_lsn, lsn)
        last = self._last_commit()
        if last is not None and lsn <= last:
            self.summary.epochs.append(None)
        current = self.summary.epochs[-1]
        self.summary.epochs[-1] = (lsn if current is None else current[0], lsn)

    def _set_next_lsn(self, lsn: int) -> None:
        """Records the first commit after the transactions that were interrupted last."""
        for fragment in reversed(self.summary.interrupted):
            if fragment.next_lsn is not None:
                return
            fragment.next_lsn = lsn

    def _last_commit(self) -> int | None:
        current = self.summary.epochs[-1]
        return None if current is None else current[1]

    def _stream_stop(self, frame: Frame) -> None:
        if not self.in_stream:
            raise SequenceError("Stream Stop outside a stream segment")
        assert self.fragment is not None
        number = self.fragment.number
        if self.fragment.kind is FragmentKind.HEAD:
            self._end_head()
        self.fragment = None
        self._control(frame, fragment=number)

    def _prepare(self, message: pgoutput.Prepare, frame: Frame) -> None:
        """Ends the fragment of a Begin Prepare. A prepared transaction with nothing to decode has no Begin Prepare."""
        number = NO_FRAGMENT
        if self.fragment is None or not self._may_end_with(message):
            self._end_fragment()
        else:
            number = self.fragment.number
            if self.in_head and (self.head_matters or self.summary.head_needs_owner):
                self._end_head()
            elif self.in_head:
                self.summary.head_ended = self.summary.head_prepared = True
        self.fragment = None
        self._control(frame, fragment=number)

    def _may_end_with(self, message: pgoutput.Prepare) -> bool:
        """True if a Prepare may end the open fragment, as far as this file shows."""
        fragment = self.fragment
        if fragment is None or self.in_stream:
            return False
        if fragment.kind is FragmentKind.HEAD or fragment.number in self.summary.orphans:
            return True
        return fragment.kind is FragmentKind.PREPARED and fragment.xid == message.xid

    def _end_head(self) -> None:
        """Ends the head with the end of a fragment that an earlier file began."""
        self.summary.head_ended = self.head_matters = True
        self.fragment = None

    def _end_fragment(self) -> None:
        """Cuts off the open fragment, if any: the receiver reconnected, and the server started over."""
        fragment, self.fragment = self.fragment, None
        if fragment is None:
            return
        if fragment.kind is FragmentKind.HEAD:
            self.summary.head_ended, self.head_is_cut_off = True, self.head_matters
        elif fragment.kind is FragmentKind.TRANSACTION:
            fragment.epoch = len(self.summary.epochs) - 1
            self.summary.interrupted.append(fragment)

    def _new_fragment(self, kind: FragmentKind, xid: int | None) -> None:
        self._end_fragment()
        self.fragments += 1
        self.fragment = Fragment(self.fragments, kind, xid)

    def _control(self, frame: Frame, xid: int | None = None, fragment: int | None = None) -> None:
        current = self.fragment
        number = self.fragment_number if fragment is None else fragment
        body = self.data[frame.start : frame.end]
        tag = chr(body[0])
        fields = {} if current is None else current.begin_fields()
        if tag == "C" and current is not None:
            fields["changes"] = current.changes
            fields["origin_lsn"] = None if current.commit_lsn is None else current.origin_lsn
        self.append_row(tag, number, body=body, xid=xid, **fields)

    def _finish(self) -> None:
        self.end_file()
        self.flush()
        if self.summary.messages.get("R"):
            self.summary.roots = partition_roots(self.batches)
        if self.summary.messages.get(LOGICAL_TAG):
            self.batches = [with_catalog_tag(batch) for batch in self.batches]

    def end_file(self) -> None:
        """Completes the summary, except for facts that are found in the rows."""
        if self.head_matters:
            self.summary.begins = FileBeginning.INSIDE if self.begins_in_stream else FileBeginning.OUTSIDE
        self.summary.open_fragment = self.fragment
        # A file that only has keepalives can't be recognized by its content.
        ends = self.summary.tail is None and bool(self.ordinal or self.summary.damages or self.request.start)
        self.summary.consumed = len(self.data) if ends else self.read_to

    def result(self) -> ScanResult:
        return ScanResult(
            self.summary, self.batches, self.summary.consumed - self.accounted_to, self.census, self.with_tuples
        )


def _check_commit(message: PgoutputMessage) -> None:
    """Raises SequenceError for a commit that tables can't hold. Called before the message changes the state, so that an
    error in the head may still mean that begins_in_stream is wrong, or that the message is damaged."""
    match message:
        case pgoutput.Begin():
            lsn = message.final_lsn
        case pgoutput.Commit() | pgoutput.StreamCommit() | pgoutput.CommitPrepared():
            lsn = message.commit_lsn
        case _:
            return
    if lsn > MAX_STORED_LSN:
        raise SequenceError(f"commit LSN {format_lsn(lsn)} does not fit in a BIGINT")
    if message.commit_timestamp not in STORED_TIMES:
        raise SequenceError("the commit time is outside the years 1 to 9999, which a TIMESTAMP holds")
