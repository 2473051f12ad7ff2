"""A file read from one side of its beginning, message by message: its units, commits and rows, and its summary.

What is frequent and right is taken many messages at a time (columnar.py, bulk.py) where kernels can be had; whatever
else there is, one by one, and so is everything where they can't.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

import pyarrow as pa

from pgoutput_etl import jit
from pgoutput_etl.errors import ArchiveError, FramingError, SequenceError
from pgoutput_etl.lsn import MAX_STORED_LSN, format_lsn
from pgoutput_etl.protocol.framing import Frame
from pgoutput_etl.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    Message,
    Origin,
    PgoutputMessage,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TupleData,
    Type,
    Update,
)
from pgoutput_etl.scan.census import CENSUS_TAGS, MessageCensus
from pgoutput_etl.scan.fast.fragments import (
    HEAD_UNIT,
    KNOWN_ORIGIN,
    NO_KIND,
    NO_ORIGIN,
    OTHER,
    SEGMENT,
    TRANSACTION,
    ScanCursor,
)
from pgoutput_etl.scan.fast.messages import FREQUENT
from pgoutput_etl.scan.fast.rows import FastRows, FastScanner, OriginField
from pgoutput_etl.scan.file_summary import FileBeginning, FileScan, FragmentKind, InterruptedFragment, OpenFragment
from pgoutput_etl.scan.fragment import Fragment, HeadError, ScanRequest, ScanResult, check_time, stored_origin_lsn
from pgoutput_etl.scan.message_row import (
    DAMAGE_TAG,
    HEAD,
    LOGICAL_TAG,
    MESSAGE_SCHEMA,
    NO_FRAGMENT,
)
from pgoutput_etl.scan.salvage import Gap, ReadPosition, SalvageReader, damage_of, located_error
from pgoutput_etl.xid import widened

BATCH_ROWS = 8192


class Scanner:
    def __init__(
        self, part: ScanRequest, begins_in_stream: bool, head_too: bool = False, reads_messages: bool = True
    ) -> None:
        """reads_messages False: whose the head's Messages are is left to who knows what is open."""
        self.part = part
        self.data = part.data
        self.file = part.file
        self.framing = part.framing
        self.begins_in_stream = begins_in_stream
        self.salvages = part.salvages
        self.head_too = head_too
        self.reads_messages = reads_messages
        self.summary = FileScan(part.file, part.framing.value, len(part.data), FileBeginning.EITHER.value)
        self.summary.offset = part.start
        self.summary.begins_in_stream = part.begins_in_stream
        self.fragment: Fragment | None = Fragment(HEAD, FragmentKind.HEAD)
        self.units = 0
        self.head_matters = False
        self.head_reading: int | None = None  # of the head's Messages as they are read, to compare; None: none
        self.head_is_odd = False  # a Message's LSN in it is another than its frame's, which a server's isn't
        self.ordinal = 0
        self.offset = 0
        self.read_to = part.start
        self.accounted_to = part.start
        self.lsn: int | None = None
        self.commit_lsn = 0
        self.body = b""
        self.rows: list[dict[str, Any]] = []
        self.batches: list[pa.RecordBatch] = []
        self.bulk: FastScanner | None = None
        self.noted = MessageCensus() if part.notes else None

    @property
    def in_stream(self) -> bool:
        fragment = self.fragment
        if fragment is None:
            return False
        return self.begins_in_stream if fragment.kind is FragmentKind.HEAD else fragment.kind is FragmentKind.SEGMENT

    @property
    def head_is_certain(self) -> bool:
        return not (self.head_matters or self.head_reading is not None) or self.summary.head_ended

    @property
    def in_head(self) -> bool:
        return self.fragment is not None and self.fragment.kind is FragmentKind.HEAD

    def _refuses(self) -> bool:
        """In the head an error may mean that it is read from the wrong side."""
        return not self.salvages or (self.in_head and not self.head_too)

    def run(self) -> None:
        reading = SalvageReader(
            self.data,
            self.framing,
            self.begins_in_stream,
            self.part.start,
            self._refuses,
            self._take if jit.AVAILABLE else None,
            self._begun,
        )
        try:
            for read in reading.messages():
                if isinstance(read, Gap) and read.may_grow and self.part.leaves_tail:
                    self.summary.tail = read.reason
                elif isinstance(read, Gap):
                    self._damage(read)
                else:
                    self._frame(*read)
        except ArchiveError as error:
            if self.in_head and not self.head_too:
                raise HeadError(error, self.ordinal) from None
            if not self._is_tail(reading, error):
                raise
            self.summary.tail = str(error)
        self._finish()

    def _begun(self) -> int | None:
        fragment = self.fragment
        return (
            None
            if fragment is None or fragment.kind is not FragmentKind.TRANSACTION or fragment.is_damaged
            else fragment.commit_lsn
        )

    def _is_tail(self, reading: SalvageReader, error: ArchiveError) -> bool:
        """Whether what is refused behind the last whole message is left, as more bytes may make a message of it."""
        if not (isinstance(error, FramingError) and error.short and self.part.leaves_tail):
            return False
        return reading.rest(self.read_to, self.in_stream, str(error)).may_grow

    def _take(self, frame: Frame, in_stream: bool) -> ReadPosition | None:
        """Takes what begins at a frame that wasn't given yet, as long as it is frequent, right and the plain way."""
        tag = self.data[frame.start]
        if tag not in FREQUENT or (tag == ord(LOGICAL_TAG) and self.in_head):
            return None
        if self.bulk is None:
            self.bulk = FastScanner(self.data, self.framing, self.file)
        before, position = self.ordinal, frame.offset
        while self.bulk.find(position, in_stream):
            taken = self.bulk.take(self._cursor_here(), len(self.summary.epochs) - 1, self._known_origin())
            if not taken.messages:
                break
            self._compare(islice(self.bulk.bodies(), taken.messages))
            if self.noted is not None and not CENSUS_TAGS.isdisjoint(tag for tag, _ in taken.tags):
                self.noted.add_all(islice(self.bulk.bodies(), taken.messages), in_stream)
            self._restore(taken)
            position, in_stream = taken.position, taken.in_stream
            if not taken.more:
                break
        if self.ordinal == before:
            return None
        return ReadPosition(self.ordinal - before, position, in_stream)

    def _known_origin(self) -> OriginField | None:
        fragment = self.fragment
        return None if fragment is None or fragment.origin is None else (fragment.origin, fragment.origin_lsn)

    def _cursor_here(self) -> ScanCursor:
        unit, summary = self.fragment, self.summary
        epoch, xids = summary.epochs[-1], summary.xids
        is_pending = bool(summary.interrupted) and summary.interrupted[-1].next_lsn is None
        return ScanCursor(
            kind=fragment_kind(unit),
            fragment=self.fragment_number,
            fragments=self.units,
            fragment_xid=0 if unit is None else unit.xid or 0,
            fragment_lsn=0 if unit is None else unit.commit_lsn or 0,
            fragment_ts=0 if unit is None else unit.commit_ts or 0,
            changes=0 if unit is None else unit.changes,
            is_damaged=unit is not None and unit.is_damaged,
            is_pending=is_pending,
            has_commits=epoch is not None,
            first_commit=0 if epoch is None else epoch[0],
            last_commit=0 if epoch is None else epoch[1],
            commit_lsn=self.commit_lsn,
            has_xids=xids is not None,
            oldest_xid=0 if xids is None else xids[0],
            newest_xid=0 if xids is None else xids[1],
            first_lsn=summary.first_lsn or 0,
            last_lsn=summary.last_lsn or 0,
            head_matters=self.head_matters,
            ordinal=self.ordinal,
            accounted_to=self.accounted_to,
            origin=KNOWN_ORIGIN if unit is not None and unit.origin is not None else NO_ORIGIN,
        )

    def _restore(self, taken: FastRows) -> None:
        """Goes on behind what was taken."""
        place, summary = taken.cursor, self.summary
        if place.kind == NO_KIND:
            self.fragment = None
        elif self.fragment is None or self.fragment.number != place.fragment:
            if place.kind == TRANSACTION:
                self.fragment = Fragment(
                    place.fragment,
                    FragmentKind.TRANSACTION,
                    place.fragment_xid,
                    place.fragment_lsn,
                    place.fragment_ts,
                    place.changes,
                )
            else:
                self.fragment = Fragment(
                    place.fragment, FragmentKind.SEGMENT, place.fragment_xid, changes=place.changes
                )
        else:
            self.fragment.changes = place.changes
        if self.fragment is not None and taken.origin is not None:
            self.fragment.origin, self.fragment.origin_lsn = taken.origin
        self.units, self.commit_lsn = place.fragments, place.commit_lsn
        if place.has_commits:
            summary.epochs[-1] = (place.first_commit, place.last_commit)
        if place.has_xids:
            summary.xids = (place.oldest_xid, place.newest_xid)
        summary.first_lsn, summary.last_lsn = place.first_lsn or None, place.last_lsn or None
        self.head_matters = place.head_matters
        self.ordinal, self.accounted_to = place.ordinal, place.accounted_to
        self.offset, self.lsn, self.read_to = taken.offset, taken.lsn, taken.read_to
        for tag, count in taken.tags:
            summary.messages[tag] = summary.messages.get(tag, 0) + count
        for relation, count in taken.relations:
            summary.changes[relation] = summary.changes.get(relation, 0) + count
        if taken.batch is not None:
            self._flush()
            self.batches.append(taken.batch)

    def _compare(self, bodies: Iterable[bytes]) -> None:
        """Notes whether the next messages differ from the one before them."""
        if self.summary.varied:
            return
        for body in bodies:
            if self.body not in (b"", body):
                self.summary.varied = True
                return
            self.body = body

    def _frame(self, message: PgoutputMessage, frame: Frame) -> None:
        self._compare((self.data[frame.start : frame.end],))
        self.offset, self.lsn, self.read_to = frame.offset, frame.lsn, frame.next
        try:
            self._lsn_range(frame)
            check_time(message)
            self._message(message, frame)
            if self.noted is not None:
                self.noted.add(message)
        except SequenceError as error:
            raise located_error(frame, self.ordinal, error) from None
        self.ordinal += 1

    def _damage(self, gap: Gap) -> None:
        """What is open goes on behind it, unless something begins anew; what nothing has begun is an orphan."""
        place = (self.fragment_number, self.ordinal, self.lsn, self.commit_lsn)
        damage = damage_of(self.data, self.framing, gap, *place, self._may_end_with)
        self.summary.damages.append(damage)
        self.offset, self.read_to = gap.offset, gap.end
        self._append(DAMAGE_TAG, damage.fragment, body=self.data[gap.offset : gap.end])
        if not damage.begins_anew and (self.fragment is None or self.in_stream != gap.in_stream):
            self._new_fragment(FragmentKind.SEGMENT if gap.in_stream else FragmentKind.TRANSACTION, None)
            self.summary.orphans.append(self.units)
        if self.fragment is not None and (not damage.is_torn or gap.end == len(self.data)):
            self.fragment.is_damaged = True

    @property
    def fragment_number(self) -> int:
        return NO_FRAGMENT if self.fragment is None else self.fragment.number

    def _lsn_range(self, frame: Frame) -> None:
        tag = chr(self.data[frame.start])
        counts = self.summary.messages
        counts[tag] = counts.get(tag, 0) + 1
        if frame.lsn is None or frame.lsn == 0:
            return
        if frame.lsn > MAX_STORED_LSN:
            raise SequenceError(f"LSN {format_lsn(frame.lsn)} is past what a BIGINT holds")
        if self.summary.first_lsn is None:
            self.summary.first_lsn = frame.lsn
        self.summary.last_lsn = frame.lsn

    def _message(self, message: PgoutputMessage, frame: Frame) -> None:
        match message:
            case Insert() | Update() | Delete() | Truncate():
                self._change(message)
            case Relation() | Type():
                self._control(frame, xid=message.xid)
            case Message() | Origin():
                self._about_no_table(message, frame)
            case Begin():
                self._begin(message)
            case Commit():
                self._commit(message, frame)
            case StreamStop():
                self._stream_stop(frame)
            case Prepare():
                self._prepare(message, frame)
            case StreamStart():
                self._new_fragment(FragmentKind.SEGMENT, message.xid)
                self._control(frame)
            case BeginPrepare():
                self._new_fragment(FragmentKind.PREPARED, message.xid)
                self._control(frame)
            case StreamCommit() | CommitPrepared():
                self._end_fragment()
                self._committed(message.commit_lsn)
                self._control(frame)
            case StreamAbort() | StreamPrepare() | RollbackPrepared():
                self._end_fragment()
                self._control(frame)

    def _change(self, message: Insert | Update | Delete | Truncate) -> None:
        fragment = self._current_fragment(message)
        fragment.changes += 1
        match message:
            case Insert():
                self._row("I", fragment, message.xid, message.relation_oid, new=message.new)
            case Update():
                kind = None if message.old_kind is None else message.old_kind.value
                self._row("U", fragment, message.xid, message.relation_oid, kind, message.old, message.new)
            case Delete():
                self._row("D", fragment, message.xid, message.relation_oid, message.old_kind.value, message.old)
            case Truncate():
                for oid in message.relation_oids:
                    self._row("T", fragment, message.xid, oid)

    def _current_fragment(self, message: PgoutputMessage) -> Fragment:
        if self.fragment is None:
            raise SequenceError(f"{type(message).__name__} outside any transaction")
        if self.fragment.kind is FragmentKind.HEAD:
            self.head_matters = True
        return self.fragment

    def _about_no_table(self, message: Message | Origin, frame: Frame) -> None:
        if isinstance(message, Message):
            self._logical(message, frame)
        else:
            self._origin(message, frame)

    def _logical(self, message: Message, frame: Frame) -> None:
        """One that is not transactional belongs to no unit, wherever it stands; within one, its bytes are accounted for
        with what comes behind it."""
        if message.lsn > MAX_STORED_LSN:
            raise SequenceError(f"a Message's LSN {format_lsn(message.lsn)} is past what a BIGINT holds")
        body = self.data[frame.start : frame.end]
        if self.in_head:
            self._read_in_head(message, frame)
            if not self.reads_messages:
                self._append(LOGICAL_TAG, HEAD, body=body)
                return
        fragment = self.fragment
        if message.transactional:
            if fragment is None:
                raise SequenceError("Message outside any transaction")
            self._append(LOGICAL_TAG, fragment.number, body=body, xid=message.xid, **fragment.begin_fields())
        elif fragment is None:
            self._append(LOGICAL_TAG, NO_FRAGMENT, body=body, xid=message.xid)
        else:
            self._append(LOGICAL_TAG, NO_FRAGMENT, body=body, xid=message.xid, end=self.accounted_to)

    def _read_in_head(self, message: Message, frame: Frame) -> None:
        if message.xid is not None and not message.transactional:
            raise SequenceError("a Message in a stream segment that is not transactional")
        self.head_reading = hash((self.head_reading, message.xid, message.transactional, message.lsn))
        self.head_is_odd |= bool(frame.lsn) and frame.lsn != message.lsn
        self.summary.head_needs_owner |= message.transactional
        self.summary.head_may_have_owner |= message.transactional or not self.reads_messages

    def _origin(self, message: Origin, frame: Frame) -> None:
        """Told to the rows of a transaction that begins here; to the driver, of one that may go on in other files."""
        fragment = self.fragment
        if fragment is None:
            return
        if fragment.commit_lsn is None:
            self._control(frame)
        elif fragment.origin is None:
            fragment.origin, fragment.origin_lsn = message.name, stored_origin_lsn(message.commit_lsn)

    def _begin(self, message: Begin) -> None:
        if message.final_lsn > MAX_STORED_LSN:
            raise SequenceError(f"commit LSN {format_lsn(message.final_lsn)} is past what a BIGINT holds")
        self._new_fragment(FragmentKind.TRANSACTION, message.xid)
        assert self.fragment is not None
        self.fragment.commit_lsn, self.fragment.commit_ts = message.final_lsn, message.commit_timestamp
        self._continues_at(message.final_lsn)
        last = self._last_commit()
        if last is not None and message.final_lsn <= last:
            self.summary.epochs.append(None)

    def _commit(self, message: Commit, frame: Frame) -> None:
        fragment = self.fragment
        if fragment is not None and fragment.kind is FragmentKind.HEAD and not self.begins_in_stream:
            self._end_head()
            self._committed(message.commit_lsn)
            self._control(frame, fragment=HEAD)
            return
        if fragment is None or fragment.kind is not FragmentKind.TRANSACTION:
            raise SequenceError("Commit without a Begin before it")
        if fragment.is_damaged:
            lsn = min(fragment.commit_lsn or message.commit_lsn, message.commit_lsn)
            epoch = len(self.summary.epochs) - 1
            ended = OpenFragment(
                fragment.number, fragment.kind.value, fragment.xid, lsn, message.commit_timestamp, True, epoch
            )
            self.summary.damaged.append(ended)
        elif fragment.commit_lsn != message.commit_lsn:
            begun = format_lsn(fragment.commit_lsn or 0)
            raise SequenceError(
                f"Commit at {format_lsn(message.commit_lsn)} of a transaction that Begin put at {begun}"
            )
        if fragment.xid is not None:
            self.summary.xids = widened(self.summary.xids, fragment.xid)
        self._committed(message.commit_lsn)
        self._control(frame, fragment=fragment.number)
        self.fragment = None

    def _committed(self, lsn: int) -> None:
        """Notes the end of a transaction; an LSN that isn't past the last one begins a stretch."""
        if lsn > MAX_STORED_LSN:
            raise SequenceError(f"commit LSN {format_lsn(lsn)} is past what a BIGINT holds")
        self._continues_at(lsn)
        self.commit_lsn = max(self.commit_lsn, lsn)
        last = self._last_commit()
        if last is not None and lsn <= last:
            self.summary.epochs.append(None)
        current = self.summary.epochs[-1]
        self.summary.epochs[-1] = (lsn if current is None else current[0], lsn)

    def _continues_at(self, lsn: int) -> None:
        """The first commit behind what was interrupted."""
        for number in range(len(self.summary.interrupted) - 1, -1, -1):
            if self.summary.interrupted[number].next_lsn is not None:
                return
            self.summary.interrupted[number] = replace(self.summary.interrupted[number], next_lsn=lsn)

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

    def _prepare(self, message: Prepare, frame: Frame) -> None:
        """The end of what a Begin Prepare began; or of a transaction without anything to decode, which has none."""
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

    def _may_end_with(self, message: Prepare) -> bool:
        """Whether it ends what is open, as far as the file tells."""
        fragment = self.fragment
        if fragment is None or self.in_stream:
            return False
        if fragment.kind is FragmentKind.HEAD or fragment.number in self.summary.orphans:
            return True
        return fragment.kind is FragmentKind.PREPARED and fragment.xid == message.xid

    def _end_head(self) -> None:
        """The head ends with the end of what an earlier file began."""
        self.summary.head_ended = True
        self.head_matters = True
        self.fragment = None

    def _end_fragment(self) -> None:
        """Whatever is open here is cut off: the receiver connected again, and the server begins anew."""
        fragment = self.fragment
        if fragment is not None and fragment.kind is FragmentKind.HEAD:
            self.summary.head_ended = True
        if fragment is not None and fragment.kind is FragmentKind.TRANSACTION:
            self.summary.interrupted.append(
                InterruptedFragment(fragment.number, len(self.summary.epochs) - 1, fragment.xid, fragment.commit_lsn)
            )
        self.fragment = None

    def _new_fragment(self, kind: FragmentKind, xid: int | None) -> None:
        self._end_fragment()
        self.units += 1
        self.fragment = Fragment(self.units, kind, xid)

    def _control(self, frame: Frame, xid: int | None = None, fragment: int | None = None) -> None:
        current = self.fragment
        number = fragment if fragment is not None else NO_FRAGMENT if current is None else current.number
        body = self.data[frame.start : frame.end]
        tag = chr(body[0])
        if tag == "C" and current is not None:
            origin_lsn = current.origin_lsn if current.commit_lsn is not None else None
            told = current.begin_fields() | {"origin_lsn": origin_lsn}
            self._append(tag, number, body=body, changes=current.changes, **told)
        else:
            begin_fields = {} if current is None else current.begin_fields()
            self._append(tag, number, body=body, xid=xid, **begin_fields)

    def _row(
        self,
        tag: str,
        fragment: Fragment,
        xid: int | None,
        relation: int,
        old_kind: str | None = None,
        old: TupleData | None = None,
        new: TupleData | None = None,
    ) -> None:
        self.summary.changes[relation] = self.summary.changes.get(relation, 0) + 1
        self._append(
            tag,
            fragment.number,
            xid=xid,
            relation=relation,
            old_kind=old_kind,
            old=None if old is None else old.to_bytes(),
            new=None if new is None else new.to_bytes(),
            unchanged=None if new is None else new.unchanged() or None,
            **fragment.begin_fields(),
        )

    def _append(self, tag: str, fragment: int, **fields: Any) -> None:
        fields |= {"file": self.file, "ordinal": self.ordinal, "offset": self.offset, "lsn": self.lsn}
        fields |= {"tag": tag, "unit": fragment, "stretch": len(self.summary.epochs) - 1}
        fields = {"begin": self.accounted_to, "end": self.read_to, **fields}
        self.accounted_to = fields["end"]
        self.rows.append(fields)
        if len(self.rows) >= BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self.rows:
            return
        self.batches.append(pa.RecordBatch.from_pylist(self.rows, MESSAGE_SCHEMA))
        self.rows = []

    def _finish(self) -> None:
        if self.head_matters:
            self.summary.begins = (FileBeginning.INSIDE if self.begins_in_stream else FileBeginning.OUTSIDE).value
        if self.fragment is not None:
            fragment = self.fragment
            self.summary.open_fragment = OpenFragment(
                fragment.number,
                fragment.kind.value,
                fragment.xid,
                fragment.commit_lsn,
                fragment.commit_ts,
                fragment.is_damaged,
                origin=fragment.origin,
                origin_lsn=fragment.origin_lsn,
            )
        # Keepalives without a message are nothing to know a file by.
        ends = self.summary.tail is None and bool(self.ordinal or self.summary.damages or self.part.start)
        self.summary.consumed = len(self.data) if ends else self.read_to
        self._flush()

    def result(self) -> ScanResult:
        return ScanResult(self.summary, self.batches, self.summary.consumed - self.accounted_to, self.noted)


def fragment_kind(fragment: Fragment | None) -> int:
    if fragment is None:
        return NO_KIND
    match fragment.kind:
        case FragmentKind.HEAD:
            return HEAD_UNIT
        case FragmentKind.SEGMENT:
            return SEGMENT
        case FragmentKind.TRANSACTION:
            return OTHER if fragment.commit_lsn is None else TRANSACTION
        case FragmentKind.PREPARED:
            return OTHER
