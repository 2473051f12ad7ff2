"""A file's messages, and the bytes between them that are none."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

from pgoutput_etl.errors import ArchiveError, FramingError, SequenceError, WireError
from pgoutput_etl.lsn import MAX_STORED_LSN, format_lsn
from pgoutput_etl.protocol.decoder import decode, message_end
from pgoutput_etl.protocol.framing import (
    Frame,
    Framing,
    first_framing,
    frame_at,
    frames,
    may_become_frame,
    stands_in_stream,
)
from pgoutput_etl.protocol.messages import (
    Begin,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    Message,
    PgoutputMessage,
    Prepare,
    StreamCommit,
    TupleData,
    Update,
)
from pgoutput_etl.scan.file_summary import Damage
from pgoutput_etl.scan.message_row import STORED_TIMES
from pgoutput_etl.scan.resync import Budget, Resumption, follow, next_connection, next_whole

# What begins or ends a transaction, or is about one as a whole, whatever was open before it.
_BEGIN_ANEW = frozenset(b"BSbcAKrp")

_CONTROL = frozenset(bytes((tag,)) for tag in b"BCSEbPcAKrpOMY")

_CONTROL_SIZES = frozenset((1, 6, 9, 21, 25, 26, 30))  # of those that are always as long

_MOST_OF_ONE_CONTROL_MESSAGE = 256

_MESSAGE_AT = {Framing.RECVLOGICAL: 0, Framing.PGCOPY: 26, Framing.COPYDATA: 30, Framing.LENGTH_PREFIXED: 4}

_ROW_TAG = re.compile(rb"[IUDTR]")

_SHORT = 1024

_TEXT = ord("t")

_MOST_TRIED = 1 << 16

_MOST_OIDS = 4096

_MOST_GAPS = 1000  # in a file; what is behind them is one with the last


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes that can't be read: data[offset:end]; behind them messages go on, inside a stream segment or not.

    cut_short: they are the first part of a message, as a receiver leaves it that dies while it writes. may_grow: the
    file ends with them, and further bytes may make a message of them.
    """

    offset: int
    end: int
    in_stream: bool
    reason: str
    cut_short: bool
    is_one_message: bool = False  # and nothing else can have been there
    may_grow: bool = False


# No server sends it: these bytes were zeroed, or belong to what was written behind a message that is cut off.
_NUL_IN_TEXT = WireError(0, "TupleData", "value", "text, which has no NUL byte", "one")

Read = tuple[PgoutputMessage, Frame]


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Where a reader stands that took `messages` of them: before another one that is whole and right, or at the end."""

    messages: int
    position: int
    in_stream: bool


@dataclass(frozen=True, slots=True)
class SalvageReader:
    """How a file is to be read from data[start] on. refuses: asked at bytes that can't be read, whether to raise.

    takes: may take many messages at once, from the frame of one that is right on; then they aren't given. begun: asked
    for the commit LSN that the Begin of the open transaction announced, if that can be relied on.
    """

    data: bytes
    framing: Framing
    begins_in_stream: bool
    start: int
    must_refuse: Callable[[], bool]
    read_fast: Callable[[Frame, bool], ReadPosition | None] | None = None
    announced_commit: Callable[[], int | None] = lambda: None

    def messages(self) -> Iterator[Read | Gap]:
        """All messages in order, and what stands between them. Raises ArchiveError naming offset and LSN."""
        position, in_stream, ordinal = self.start, self.begins_in_stream, 0
        budget = Budget.of(self.data)
        for number in count(1):
            gap, ordinal = yield from self._until_gap(position, in_stream, ordinal, budget)
            if gap is None:
                return
            if number == _MOST_GAPS:
                reason = f"{gap.reason}; the last of {number:,} that are told"
                gap = replace(gap, end=len(self.data), reason=reason, cut_short=False, may_grow=False)
            yield gap
            position, in_stream = gap.end, gap.in_stream
            if position >= len(self.data):
                return

    def rest(self, position: int, in_stream: bool, reason: str) -> Gap:
        """What begins at a position where a frame was refused."""
        return self._refused(position, in_stream, reason, Budget.of(self.data))

    def _until_gap(
        self, position: int, in_stream: bool, ordinal: int, budget: Budget
    ) -> Generator[Read | Gap, None, tuple[Gap | None, int]]:
        """A message is given once it is known that one follows it, or the file's end: one that is cut off may claim
        what was written behind it, and decode."""
        walk = frames(self.data, self.framing, in_stream, position)
        held: Read | None = None
        held_in_stream = in_stream
        while True:
            frame, refusal = _next(walk)
            message, error = (None, None) if frame is None else self._decoded(frame, in_stream, held)
            if held is not None:
                wrong = refusal or error
                inside = None if wrong is None else self._inside(held[1], held_in_stream, budget)
                if wrong is not None and inside is not None:
                    if self.must_refuse():
                        raise located_error(held[1], ordinal, wrong)
                    return self._gap(held[1].offset, inside, held_in_stream, str(wrong), budget), ordinal
                yield held
                ordinal += 1
                position = held[1].next
            if refusal is not None:
                if self.must_refuse():
                    raise refusal
                return self._refused(position, in_stream, str(refusal), budget), ordinal
            if frame is None:
                return None, ordinal
            if error is not None or message is None:
                assert error is not None
                if self.must_refuse():
                    raise located_error(frame, ordinal, error)
                return self._unreadable(frame, in_stream, error, budget), ordinal
            reached = None if self.read_fast is None else self.read_fast(frame, in_stream)
            if reached is not None:
                ordinal += reached.messages
                position, in_stream = reached.position, reached.in_stream
                walk, held = self._after(reached)
                if held is None:
                    continue
                message, frame = held
            held, held_in_stream = (message, frame), in_stream
            in_stream = stands_in_stream(self.data[frame.start], in_stream)

    def _after(self, reached: ReadPosition) -> tuple[Iterator[Frame], Read | None]:
        """The frames from there on; or those behind the message that stands there, if it is right, with that."""
        if reached.position < len(self.data):
            walk = frames(self.data, self.framing, reached.in_stream, reached.position)
            frame = next(walk)
            message, _ = self._decoded(frame, reached.in_stream, None)
            if message is not None:
                return walk, (message, frame)
        return frames(self.data, self.framing, reached.in_stream, reached.position), None

    def _decoded(
        self, frame: Frame, in_stream: bool, before: Read | None
    ) -> tuple[PgoutputMessage | None, WireError | None]:
        """`before`: the message before it, if that was not given yet."""
        try:
            message = decode(self.data[frame.start : frame.end], in_stream)
        except WireError as error:
            return None, error
        if _has_nul(message):
            return None, _NUL_IN_TEXT
        wrong = None if self.must_refuse() else _wrong_commit(message, self._announced(before))
        return (message, None) if wrong is None else (None, wrong)

    def _announced(self, before: Read | None) -> int | None:
        last = None if before is None else before[0]
        return last.final_lsn if isinstance(last, Begin) else self.announced_commit()

    def _refused(self, position: int, in_stream: bool, reason: str, budget: Budget) -> Gap:
        """Of the keepalives that stand before what is refused, the last may be cut off and claim what follows."""
        before: Frame | None = None
        try:
            while not (frame := frame_at(self.data, self.framing, position, in_stream)).has_message:
                before, position = frame, frame.next
        except FramingError:
            pass
        if before is not None:
            inside = self._inside(before, in_stream, budget)
            if inside is not None:
                return self._gap(before.offset, inside, in_stream, reason, budget)
        resumed = next_whole(self.data, self.framing, position + 1, in_stream, None, budget)
        gap = self._gap(position, resumed, in_stream, reason, budget)
        is_one = self.framing is Framing.RECVLOGICAL and _differs_by_one_byte(self.data[position : gap.end], in_stream)
        return replace(gap, is_one_message=is_one)

    def _inside(self, frame: Frame, in_stream: bool, budget: Budget) -> Resumption | None:
        """Where messages begin that a frame claims as its own, and that go on past its end; or, where those are cut off
        in turn, the ones behind them."""
        extent = (frame.offset, frame.next)
        inside = next_whole(self.data, self.framing, frame.offset + 1, in_stream, extent, budget)
        if inside is not None:
            return inside
        behind = next_whole(self.data, self.framing, frame.next + 1, in_stream, None, budget)
        behind = behind or Resumption(len(self.data), in_stream)
        return behind if self._claims_a_first_part(frame.offset, frame.next, behind.position, budget) else None

    def _claims_a_first_part(self, offset: int, claimed: int, end: int, budget: Budget) -> bool:
        """Whether in data[offset:claimed] a connection begins whose first message is cut off at `end`."""
        budget.left -= end - offset
        extent = self.data[offset:end]
        return next_connection(extent, self.framing, 1, claimed - offset, budget) is not None

    def _unreadable(self, frame: Frame, in_stream: bool, error: WireError, budget: Budget) -> Gap:
        """A whole frame without a message in it, or a part of one that claims what follows."""
        anew = next_connection(self.data, self.framing, frame.offset + 1, frame.next, budget)
        if anew is not None:
            return self._gap(frame.offset, anew, in_stream, str(error), budget)
        behind = follow(self.data, self.framing, frame.next, in_stream)
        resumed: Resumption | None = Resumption(frame.next, in_stream)
        if behind.frames < (1 if behind.to_the_end else 2):
            inside = next_whole(self.data, self.framing, frame.offset + 1, in_stream, None, budget)
            resumed = inside if frame.next < len(self.data) else inside or resumed
        gap = self._gap(frame.offset, resumed, in_stream, str(error), budget)
        return replace(gap, is_one_message=gap.end == frame.next)

    def _gap(self, offset: int, resumed: Resumption | None, in_stream: bool, reason: str, budget: Budget) -> Gap:
        end = len(self.data) if resumed is None else resumed.position
        cut_short = may_become_frame(self.data[offset:end], self.framing, begins_file=offset == 0)
        cut_short = cut_short or self._claims_a_first_part(offset, end, end, budget)
        in_stream = in_stream if resumed is None else resumed.in_stream
        return Gap(offset, end, in_stream, reason, cut_short, may_grow=cut_short and end == len(self.data))


def framing_of_damaged(data: bytes) -> Framing | None:
    """Of a file whose first message is damaged: that in which messages follow it, the nearest; or in which the file is
    the first part of one message. None if there is no such framing."""
    found: list[tuple[int, Framing]] = []
    begins = first_framing(data)
    for framing in _MESSAGE_AT:
        resumed = None if framing is Framing.PGCOPY else next_whole(data, framing, 1, False)
        if resumed is None:
            continue
        if begins is None or follow(data, framing, resumed.position, resumed.in_stream).frames:
            found.append((resumed.position, framing))
    return min(found, key=lambda each: each[0])[1] if found else begins


def _next(walk: Iterator[Frame]) -> tuple[Frame | None, FramingError | None]:
    try:
        return next(walk, None), None
    except FramingError as error:
        return None, error


def damage_of(
    data: bytes,
    framing: Framing,
    gap: Gap,
    fragment: int,
    ordinal: int,
    lsn: int | None,
    commit_lsn: int,
    may_end_with: Callable[[Prepare], bool],
) -> Damage:
    """What the driver is told of a gap. `may_end_with`: whether a Prepare may end what is open where the gap stands."""
    extent = data[gap.offset : gap.end]
    begins_anew = _begins_anew(data, framing, gap, may_end_with)
    message = extent[_MESSAGE_AT[framing] :]
    is_control = message[:1] in _CONTROL or len(message) in _CONTROL_SIZES
    return Damage(
        fragment,
        ordinal,
        gap.offset,
        len(extent),
        lsn,
        commit_lsn,
        gap.reason,
        gap.cut_short,
        begins_anew,
        not is_control or len(extent) > _MOST_OF_ONE_CONTROL_MESSAGE,
        _oids(extent) if gap.is_one_message else None,
    )


def _has_nul(message: PgoutputMessage) -> bool:
    match message:
        case Insert():
            tuples: tuple[TupleData | None, ...] = (message.new,)
        case Update():
            tuples = (message.old, message.new)
        case Delete():
            tuples = (message.old,)
        case _:
            return False
    return any(
        value is not None and b"\0" in value and kind == _TEXT
        for data in tuples
        if data is not None
        for kind, value in zip(data.kinds, data.values, strict=True)
    )


def _wrong_commit(message: PgoutputMessage, begun: int | None) -> WireError | None:
    """What shows that a Commit, or its like, was cut off, and has the bytes behind it for its own."""
    match message:
        case Commit() | StreamCommit() | CommitPrepared():
            pass
        case _:
            return None
    name = type(message).__name__
    if message.commit_lsn > MAX_STORED_LSN:
        return WireError(0, name, "commit_lsn", "an LSN that a BIGINT holds", format_lsn(message.commit_lsn))
    if message.commit_timestamp not in STORED_TIMES:
        return WireError(0, name, "commit_timestamp", "a time in the years 1 to 9999", "another")
    if isinstance(message, Commit) and begun not in (None, message.commit_lsn):
        announced = format_lsn(begun or 0)
        return WireError(0, name, "commit_lsn", f"{announced}, as Begin says", format_lsn(message.commit_lsn))
    return None


def _differs_by_one_byte(extent: bytes, in_stream: bool) -> bool:
    """From one message with its new line: where nothing but decoding tells a message's end."""
    if len(extent) > _MOST_TRIED or not extent.endswith(b"\n"):
        return False
    try:
        message_end(extent, 0, in_stream)
    except WireError as error:
        at = error.offset
    else:
        return False
    for other in range(256):
        try:
            if message_end(extent[:at] + bytes((other,)) + extent[at + 1 :], 0, in_stream) == len(extent) - 1:
                return True
        except WireError:
            continue
    return False


def _begins_anew(data: bytes, framing: Framing, gap: Gap, may_end_with: Callable[[Prepare], bool]) -> bool:
    """A Message that is not transactional may stand before what a new connection begins with."""
    if gap.end == len(data):
        return True
    try:
        for frame in frames(data, framing, gap.in_stream, gap.end):
            message = decode(data[frame.start : frame.end], gap.in_stream)
            if isinstance(message, Prepare):
                return not may_end_with(message)
            if not isinstance(message, Message) or message.transactional:
                return data[frame.start] in _BEGIN_ANEW
    except (FramingError, WireError):
        pass  # what follows that tells
    return True


def _oids(extent: bytes) -> tuple[int, ...] | None:
    """Every four bytes that may be a relation's OID: all of a short extent, those behind a row's tag of a long one."""
    if len(extent) <= _SHORT:
        at: Iterable[int] = range(len(extent) - 3)
    else:
        at = (match.start() + behind for match in _ROW_TAG.finditer(extent) for behind in (1, 5))
    found = {extent[i : i + 4] for i in islice(at, _MOST_OIDS + 1)}
    if len(found) > _MOST_OIDS:
        return None
    return tuple(sorted(int.from_bytes(four, "big") for four in found if len(four) == 4))


def located_error(frame: Frame, ordinal: int, error: ArchiveError) -> SequenceError:
    where = "" if frame.lsn is None else f" (LSN {format_lsn(frame.lsn)})"
    return SequenceError(f"offset {frame.offset}{where}, message {ordinal}: {error}")
