"""Reads the messages of a file and describes the gaps: the unreadable bytes between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

from pgoutput_etl.errors import ArchiveError, FramingError, SequenceError, WireError
from pgoutput_etl.lsn import MAX_STORED_LSN, format_lsn
from pgoutput_etl.protocol import messages as pgoutput
from pgoutput_etl.protocol.decoder import decode, message_end
from pgoutput_etl.protocol.framing import (
    Frame,
    Framing,
    detect,
    first_framing,
    frame_at,
    frames,
    may_become_frame,
    stands_in_stream,
)
from pgoutput_etl.protocol.messages import PgoutputMessage
from pgoutput_etl.scan.file_summary import Damage
from pgoutput_etl.scan.message_row import STORED_TIMES
from pgoutput_etl.scan.resync import MESSAGE_AT, Budget, Resumption, follow, next_connection, next_whole

# Messages that begin or end a transaction, or concern one as a whole, regardless of what is open before them
_BEGIN_ANEW = frozenset(b"BSbcAKrp")

_CONTROL = frozenset(bytes((tag,)) for tag in b"BCSEbPcAKrpOMY")

_CONTROL_SIZES = frozenset((1, 6, 9, 21, 25, 26, 30))  # of control messages of fixed length

_MAX_CONTROL_SIZE = 256  # estimate for a control message

_ROW_TAG = re.compile(rb"[IUDTR]")

_SHORT = 1024

_MOST_TRIED = 1 << 16

_MOST_OIDS = 4096

_MOST_GAPS = 1000  # per file; the last one extends to the end


@dataclass(frozen=True, slots=True)
class Gap:
    """Unreadable bytes: data[offset:end].

    in_stream: the messages after them are inside a stream segment. cut_short: they are the first part of a message,
    left by a receiver that died while writing. is_one_message: they can only be a single message. may_grow: the file
    ends with them, and further bytes may complete a message.
    """

    offset: int
    end: int
    in_stream: bool
    reason: str
    cut_short: bool
    is_one_message: bool = False
    may_grow: bool = False


# No server sends a NUL in text: either bytes were zeroed, or they belong to data written after a torn message.
_NUL_IN_TEXT = WireError(0, "TupleData", "value", "text, which has no NUL byte", "one")

Read = tuple[PgoutputMessage, Frame]


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The position after `messages` messages: the end, or another whole and valid message."""

    messages: int
    position: int
    in_stream: bool


@dataclass(frozen=True, slots=True)
class SalvageReader:
    """Reads data[start:].

    must_refuse: True if unreadable bytes currently raise an error. read_fast: may read many messages at once, starting
    at a valid one; messages() then skips them. announced_commit: the commit LSN in the Begin of the open transaction,
    if known.
    """

    data: bytes
    framing: Framing
    begins_in_stream: bool
    start: int
    must_refuse: Callable[[], bool]
    read_fast: Callable[[Frame, bool], ReadPosition | None] | None
    announced_commit: Callable[[], int | None]

    def messages(self) -> Iterator[Read | Gap]:
        """All messages and gaps in order. Raises ArchiveError, which names offset and LSN."""
        position, in_stream, ordinal = self.start, self.begins_in_stream, 0
        budget = Budget.of(self.data)
        for number in count(1):
            gap, ordinal = yield from self._until_gap(position, in_stream, ordinal, budget)
            if gap is None:
                return
            if number == _MOST_GAPS:
                reason = f"{gap.reason}; the last of {number:,} reported gaps"
                gap = replace(gap, end=len(self.data), reason=reason, cut_short=False, may_grow=False)
            yield gap
            position, in_stream = gap.end, gap.in_stream
            if position >= len(self.data):
                return

    def rest(self, position: int, in_stream: bool, reason: str) -> Gap:
        """The gap at a position where a frame was rejected."""
        return self._refused(position, in_stream, reason, Budget.of(self.data))

    def _until_gap(
        self, position: int, in_stream: bool, ordinal: int, budget: Budget
    ) -> Generator[Read | Gap, None, tuple[Gap | None, int]]:
        """Yields a message once it is followed by another one or the end, because a torn message may cover bytes
        written after it and still decode. Returns the gap, if any, and the number of messages read."""
        walk = frames(self.data, self.framing, in_stream, position)
        held: Read | None = None
        held_in_stream = in_stream
        while True:
            frame, refusal = _next(walk)
            message, error = (None, None) if frame is None else self._decoded(frame, in_stream, held)
            if held is not None:
                problem = refusal or error
                budget.near = self._lsn_near(held)
                inside = None if problem is None else self._inside(held[1], held_in_stream, budget)
                if problem is not None and inside is not None:
                    if self.must_refuse():
                        raise located_error(held[1], ordinal, problem)
                    return self._gap(held[1].offset, inside, held_in_stream, str(problem), budget), ordinal
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

    def _lsn_near(self, held: Read) -> int | None:
        """An LSN close to those after a message, or None."""
        message, frame = held
        if isinstance(message, pgoutput.Begin):
            return message.final_lsn
        if isinstance(message, (pgoutput.Commit, pgoutput.StreamCommit, pgoutput.CommitPrepared)):
            return message.commit_lsn
        return self.announced_commit() or frame.lsn or None

    def _after(self, reached: ReadPosition) -> tuple[Iterator[Frame], Read | None]:
        """The frames from the position on; if the message there is valid, also that message, with the frames after
        it."""
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
        """A frame's message, or the error if it can't be decoded or contradicts its surroundings. before: the preceding
        message, if it has not been yielded yet."""
        try:
            message = decode(self.data[frame.start : frame.end], in_stream)
        except WireError as error:
            return None, error
        if _has_nul(message):
            return None, _NUL_IN_TEXT
        if self.must_refuse():
            return message, None
        last = None if before is None else before[0]
        announced = last.final_lsn if isinstance(last, pgoutput.Begin) else self.announced_commit()
        invalid = _commit_error(message, announced)
        return (message, None) if invalid is None else (None, invalid)

    def _refused(self, position: int, in_stream: bool, reason: str, budget: Budget) -> Gap:
        """The gap at a rejected frame. The last keepalive before it may be torn and cover bytes written after it."""
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
        """The first message of a sequence that begins inside a frame and continues past its end; if that sequence is
        torn as well, the first message after it."""
        extent = (frame.offset, frame.next)
        inside = next_whole(self.data, self.framing, frame.offset + 1, in_stream, extent, budget)
        if inside is not None:
            return inside
        after = next_whole(self.data, self.framing, frame.next + 1, in_stream, None, budget)
        after = after or Resumption(len(self.data), in_stream)
        return after if self._has_torn_connection(frame.offset, frame.next, after.position, budget) else None

    def _has_torn_connection(self, offset: int, claimed: int, end: int, budget: Budget) -> bool:
        """True if a connection begins in data[offset:claimed] and its first message is cut off at `end`."""
        budget.left -= end - offset
        extent = self.data[offset:end]
        return next_connection(extent, self.framing, 1, claimed - offset, budget) is not None

    def _unreadable(self, frame: Frame, in_stream: bool, error: WireError, budget: Budget) -> Gap:
        """The gap at a frame without a valid message: the whole frame, or a torn part that covers bytes written after
        it."""
        connection = next_connection(self.data, self.framing, frame.offset + 1, frame.next, budget)
        if connection is not None:
            return self._gap(frame.offset, connection, in_stream, str(error), budget)
        after = follow(self.data, self.framing, frame.next, in_stream)
        resumed: Resumption | None = Resumption(frame.next, in_stream)
        if after.frames < (1 if after.to_the_end else 2):
            inside = next_whole(self.data, self.framing, frame.offset + 1, in_stream, None, budget)
            resumed = inside if frame.next < len(self.data) else inside or resumed
        gap = self._gap(frame.offset, resumed, in_stream, str(error), budget)
        return replace(gap, is_one_message=gap.end == frame.next)

    def _gap(self, offset: int, resumed: Resumption | None, in_stream: bool, reason: str, budget: Budget) -> Gap:
        end = len(self.data) if resumed is None else resumed.position
        cut_short = may_become_frame(self.data[offset:end], self.framing, begins_file=offset == 0)
        cut_short = cut_short or self._has_torn_connection(offset, end, end, budget)
        in_stream = in_stream if resumed is None else resumed.in_stream
        return Gap(offset, end, in_stream, reason, cut_short, may_grow=cut_short and end == len(self.data))


def find_framing(data: bytes, salvages: bool, leaves_tail: bool = False, fits: Framing | None = None) -> Framing:
    """The framing of a file, even if its first message is damaged (`salvages`) or still incomplete (`leaves_tail`).
    fits: a framing that is known to fit.

    Raises FramingError if no framing or more than one fits.
    """
    try:
        return detect(data, fits)
    except FramingError as error:
        if error.short and leaves_tail:
            framing = first_framing(data)
        else:
            framing = _framing_of_damaged(data) if salvages else None
        if framing is None:
            raise
        return framing


def _framing_of_damaged(data: bytes) -> Framing | None:
    """The framing that finds messages closest after a damaged first one, or that makes the file the first part of a
    single message. None if there is no such framing."""
    resumed: list[tuple[int, Framing]] = []
    begins = first_framing(data)
    for framing in MESSAGE_AT:
        whole = None if framing is Framing.PGCOPY else next_whole(data, framing, 1, False)
        if whole is None:
            continue
        if begins is None or follow(data, framing, whole.position, whole.in_stream).frames:
            resumed.append((whole.position, framing))
    return min(resumed, key=lambda candidate: candidate[0])[1] if resumed else begins


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
    commit_lsn: int,
    may_end_with: Callable[[pgoutput.Prepare], bool],
) -> Damage:
    """The facts about a gap that the driver needs. may_end_with: True if a Prepare may end the fragment that is open at
    the gap."""
    extent = data[gap.offset : gap.end]
    message = extent[MESSAGE_AT[framing] :]
    is_control = message[:1] in _CONTROL or len(message) in _CONTROL_SIZES
    return Damage(
        fragment=fragment,
        ordinal=ordinal,
        offset=gap.offset,
        size=len(extent),
        commit_lsn=commit_lsn,
        reason=gap.reason,
        cut_short=gap.cut_short,
        begins_anew=_begins_anew(data, framing, gap, may_end_with),
        may_hold_rows=not is_control or len(extent) > _MAX_CONTROL_SIZE,
        oids=_oids(extent) if gap.is_one_message else None,
    )


def _has_nul(message: PgoutputMessage) -> bool:
    match message:
        case pgoutput.Insert():
            tuples: tuple[pgoutput.TupleData | None, ...] = (message.new,)
        case pgoutput.Update():
            tuples = (message.old, message.new)
        case pgoutput.Delete():
            tuples = (message.old,)
        case _:
            return False
    return any(
        value is not None and b"\0" in value and kind == pgoutput.KIND_TEXT
        for data in tuples
        if data is not None
        for kind, value in zip(data.kinds, data.values, strict=True)
    )


def _commit_error(message: PgoutputMessage, announced: int | None) -> WireError | None:
    """The error in a Commit, Stream Commit, or Commit Prepared that was torn and covers bytes written after it."""
    if not isinstance(message, (pgoutput.Commit, pgoutput.StreamCommit, pgoutput.CommitPrepared)):
        return None
    name = type(message).__name__
    if message.commit_lsn > MAX_STORED_LSN:
        return WireError(0, name, "commit_lsn", "an LSN that fits in a BIGINT", format_lsn(message.commit_lsn))
    if message.commit_timestamp not in STORED_TIMES:
        return WireError(0, name, "commit_timestamp", "a time in the years 1 to 9999", "another")
    if isinstance(message, pgoutput.Commit) and announced not in (None, message.commit_lsn):
        expected = f"{format_lsn(announced or 0)}, as in Begin"
        return WireError(0, name, "commit_lsn", expected, format_lsn(message.commit_lsn))
    return None


def _differs_by_one_byte(extent: bytes, in_stream: bool) -> bool:
    """True if changing one byte turns the bytes into one message with its newline, in a framing without lengths."""
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


def _begins_anew(data: bytes, framing: Framing, gap: Gap, may_end_with: Callable[[pgoutput.Prepare], bool]) -> bool:
    """See Damage.begins_anew. A new connection may begin with Messages that are not transactional."""
    if gap.end == len(data):
        return True
    try:
        for frame in frames(data, framing, gap.in_stream, gap.end):
            message = decode(data[frame.start : frame.end], gap.in_stream)
            if isinstance(message, pgoutput.Prepare):
                return not may_end_with(message)
            if not isinstance(message, pgoutput.Message) or message.transactional:
                return data[frame.start] in _BEGIN_ANEW
    except (FramingError, WireError):
        pass  # the next gap decides
    return True


def _oids(extent: bytes) -> tuple[int, ...] | None:
    """All four-byte values that may be a relation's OID: anywhere in a short extent; in a long one, after a row's
    tag."""
    if len(extent) <= _SHORT:
        positions: Iterable[int] = range(len(extent) - 3)
    else:
        positions = (match.start() + distance for match in _ROW_TAG.finditer(extent) for distance in (1, 5))
    words = {extent[at : at + 4] for at in islice(positions, _MOST_OIDS + 1)}
    if len(words) > _MOST_OIDS:
        return None
    return tuple(sorted(int.from_bytes(word, "big") for word in words if len(word) == 4))


def located_error(frame: Frame, ordinal: int, error: ArchiveError) -> SequenceError:
    where = "" if frame.lsn is None else f" (LSN {format_lsn(frame.lsn)})"
    return SequenceError(f"offset {frame.offset}{where}, message {ordinal}: {error}")
