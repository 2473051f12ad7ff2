"""Finds where whole messages resume after unreadable bytes.

A receiver that is killed while it writes leaves the first part of a message. If it is restarted on the same file, it
writes whole messages after that part, which the length in the torn message may cover. The search therefore begins at
the second byte of the torn message. It accepts the first position from which several messages follow one another; one
or two that occur by accident inside a value are not enough.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgoutput_etl.errors import FramingError, WireError
from pgoutput_etl.protocol import messages as pgoutput
from pgoutput_etl.protocol.decoder import MESSAGE_TAGS, decode
from pgoutput_etl.protocol.framing import Frame, Framing, frame_at, stands_in_stream
from pgoutput_etl.protocol.reader import MAX_STRING

_MAX_FRAMES = 16  # to read from one position; so many in a row can't be an accident

_CONVINCING_FRAMES = 4  # even if unreadable bytes follow

_TIMES = range(2**53)  # microseconds since 2000, up to the year 2285

_LAST_LSN = 2**56

_NEAR = 2**44  # bytes of WAL between LSNs in an archive: no server keeps 16 TiB for a receiver

# Distance from a frame's first byte to its message, and from there to the LSN in a message that begins a connection
MESSAGE_AT = {Framing.RECVLOGICAL: 0, Framing.PGCOPY: 26, Framing.COPYDATA: 30, Framing.LENGTH_PREFIXED: 4}

_LSN_AT = {b"B": 1, b"M": 2}

_TAGS_WITH_TIME = b"BCbcKr"  # messages whose times are checked by _is_plausible

# The search may read at most this many times the bytes of the file, and then gives up on the rest of the file.
_PASSES = 16

_LEAST_BUDGET = 1 << 20

_COST_OF_A_TRIAL = 32

_TAG = b"[" + re.escape(bytes(sorted(MESSAGE_TAGS))) + b"]"

# Possible first bytes of any frame
_MAY_BEGIN = {
    Framing.RECVLOGICAL: re.compile(
        rb"(?=[IUD].{4}(?:.{4})?[NKO][\0-\6]|B.{20}\n|C\0.{24}\n|S.{4}[\0\1]\n|E\n|c.{4}\0.{24}\n|A.{8}(?:.{16})?\n"
        rb"|[bOKPrp]\0|M(?:.{4})?[\0\1]\0|T(?:.{4})?\0\0|[RY].{4}(?:.{4})?[^\0]{0,255}\0)",
        re.DOTALL,
    ),
    Framing.PGCOPY: re.compile(rb"(?=\x00\x03\x00\x00\x00\x08|\xff\xff\Z)"),
    Framing.COPYDATA: re.compile(rb"(?=d[\x00-\x7f][\x00-\xff]{3}[wk])"),
    Framing.LENGTH_PREFIXED: re.compile(rb"(?=[\x00-\x7f][\x00-\xff]{3}" + _TAG + rb")"),
}

# First bytes with which only a new connection begins; a value is unlikely to contain them. The first message may be a
# Message that is not transactional.
_BEGINS_CONNECTION = {
    Framing.RECVLOGICAL: re.compile(rb"B\0\0|M\0\0|S[\0-\xff]{4}[\0\1]\n"),
    Framing.COPYDATA: re.compile(rb"d\0[\0-\xff]{3}[wk](?:\0|\Z)"),
    Framing.LENGTH_PREFIXED: re.compile(
        rb"\0\0\0(?:\x15B(?:\0|\Z)|\x06S|\x1ac|\x09A|\x19A)|\0\0[\0-\xff]{2}M(?:\0|\Z)"
    ),
}


# A Message's prefix, or its first bytes
_PREFIX = re.compile(rb"[^\0-\x1f\x7f]+(?:\0|\Z)|\Z")


@dataclass(frozen=True, slots=True)
class Resumption:
    """The position at which whole messages resume. in_stream: inside a stream segment."""

    position: int
    in_stream: bool


@dataclass(slots=True)
class Budget:
    """The number of bytes that all searches in a file may still read, because any byte of a file can look like a
    beginning. near: an LSN of previous messages; those of a new connection are not far from it."""

    left: int
    near: int | None = None

    @classmethod
    def of(cls, data: bytes) -> Budget:
        return cls(max(_PASSES * len(data), _LEAST_BUDGET))


def next_whole(
    data: bytes,
    framing: Framing,
    start: int,
    in_stream: bool,
    within: tuple[int, int] | None = None,
    budget: Budget | None = None,
) -> Resumption | None:
    """Searches data[start:], which may begin with the remainder of something, for whole messages. None if there are
    none.

    in_stream: the assumption to try first. within: the extent of a frame that may be torn; accepts only messages that
    begin in it and continue past its end.
    """
    budget = budget or Budget.of(data)
    last = len(data) if within is None else within[1]
    for match in _MAY_BEGIN[framing].finditer(data, start):
        position = match.start()
        if position >= last or budget.left < 0:
            break
        for reading in (in_stream, not in_stream):
            run = follow(data, framing, position, reading, 0 if within is None else last)
            budget.left -= _COST_OF_A_TRIAL + run.scanned_to - position
            if run.is_convincing(framing) and (within is None or run.end > last):
                return Resumption(position, reading)
    return next_connection(data, framing, start, last, budget)


def next_connection(data: bytes, framing: Framing, start: int, last: int, budget: Budget) -> Resumption | None:
    """Searches data[start:last] for the beginning of a connection whose messages continue past `last`, or whose first
    message is cut off by the end of the file because its receiver also died."""
    pattern = _BEGINS_CONNECTION.get(framing)
    for match in () if pattern is None else pattern.finditer(data, start):
        position = match.start()
        if position >= last or budget.left < 0:
            return None
        run = follow(data, framing, position, False, last)
        budget.left -= _COST_OF_A_TRIAL + run.scanned_to - position
        if run.frames == 0 and run.to_the_end and not _may_begin_connection(data, framing, position, budget.near):
            continue
        if run.to_the_end or (run.is_convincing(framing) and run.end > last):
            return Resumption(position, False)
    return None


def _may_begin_connection(data: bytes, framing: Framing, position: int, near: int | None) -> bool:
    """True if data[position:] can be the first part of a new connection's first message.

    The end of an LSN and the time after it can look like a Message: M with flags of 0. But a time, read as an LSN, is
    far from those of the archive, and the bytes of LSNs, times, and xids are not a prefix.
    """
    start = position + MESSAGE_AT[framing]
    tag = data[start : start + 1]
    if framing is Framing.COPYDATA:
        return data[position + 6 : position + 14] == bytes(8) or _is_near(data[position + 6 : position + 14], near)
    if tag not in _LSN_AT:
        return True
    lsn_at = start + _LSN_AT[tag]
    rest = data[lsn_at + 8 : lsn_at + 8 + MAX_STRING]
    if not _is_near(data[lsn_at : lsn_at + 8], near):
        return False
    return _least(rest[:8]) in _TIMES if tag == b"B" else _PREFIX.match(rest) is not None


def _is_near(part: bytes, near: int | None) -> bool:
    """True if these are the first bytes of an LSN close to `near`."""
    if near is None:
        return _least(part) < _LAST_LSN
    return _least(part) < near + _NEAR and int.from_bytes(part.ljust(8, b"\xff"), "big") > max(near - _NEAR, 0)


def _least(part: bytes) -> int:
    """The smallest Int64 that begins with these bytes."""
    return int.from_bytes(part.ljust(8, b"\0"), "big")


@dataclass(slots=True)
class FrameRun:
    """Consecutive valid frames up to `end`.

    scanned_to: beyond `end` if the last frame read was not valid. to_the_end: the frames reach the end of the file, or
    are followed only by the first part of one.
    """

    end: int
    scanned_to: int
    frames: int = 0
    has_time: bool = False
    to_the_end: bool = False

    def is_convincing(self, framing: Framing) -> bool:
        """A single frame of CopyData is enough, because few other bytes look like one."""
        least = 1 if framing is Framing.COPYDATA else _CONVINCING_FRAMES
        return self.frames >= least or (self.to_the_end and self.has_time)


def follow(data: bytes, framing: Framing, position: int, in_stream: bool, past: int = 0) -> FrameRun:
    """Reads frames from a position on: _MAX_FRAMES, or more until they extend beyond `past`."""
    run = FrameRun(position, position)
    try:
        while run.end < len(data):
            frame = frame_at(data, framing, run.end, in_stream)
            run.scanned_to = frame.next
            if framing is Framing.COPYDATA and not _has_plausible_head(data, frame):
                return run
            if frame.has_message:
                message = decode(data[frame.start : frame.end], in_stream, only_utf8=True)
                if not _is_plausible(message):
                    return run
                run.has_time |= data[frame.start] in _TAGS_WITH_TIME
                in_stream = stands_in_stream(data[frame.start], in_stream)
            run.frames += 1
            run.end = frame.next
            if run.frames >= _MAX_FRAMES and run.end > past:
                return run
        run.to_the_end = True
    except FramingError as error:
        run.to_the_end = error.short
        run.scanned_to = max(run.scanned_to, error.scanned_to)
    except WireError:
        pass
    return run


def _has_plausible_head(data: bytes, frame: Frame) -> bool:
    """Checks the LSN at the beginning of XLogData and keepalives, and the time when they were sent."""
    head = frame.offset + 6
    time_at = head + (16 if frame.has_message else 8)
    lsn, time = (int.from_bytes(data[at : at + 8], "big") for at in (head, time_at))
    return lsn < _LAST_LSN and time in _TIMES and (frame.has_message or data[frame.next - 1] in (0, 1))


def _is_plausible(message: pgoutput.PgoutputMessage) -> bool:
    match message:
        case pgoutput.Begin():
            return 0 < message.final_lsn < _LAST_LSN and message.commit_timestamp in _TIMES
        case pgoutput.Commit() | pgoutput.StreamCommit() | pgoutput.CommitPrepared():
            return 0 < message.commit_lsn < _LAST_LSN and message.commit_timestamp in _TIMES
        case pgoutput.BeginPrepare():
            return 0 < message.prepare_lsn < _LAST_LSN and message.prepare_timestamp in _TIMES
        case pgoutput.RollbackPrepared():
            return message.rollback_timestamp in _TIMES
        case _:
            return True
