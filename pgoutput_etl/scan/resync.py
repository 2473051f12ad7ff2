"""Behind bytes that are no message: where whole messages begin again.

A receiver that is killed while it writes leaves the first part of a message; one that is started again on the same
file writes whole messages behind it. What is cut off may claim to go on over them, so that they are looked for from
its second byte on. The first place counts from which messages follow one another; a stray message or two that only
look like some, inside a value, don't.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgoutput_etl.errors import FramingError, WireError
from pgoutput_etl.protocol.decoder import MESSAGE_TAGS, decode
from pgoutput_etl.protocol.framing import Frame, Framing, frame_at, stands_in_stream
from pgoutput_etl.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    PgoutputMessage,
    RollbackPrepared,
    StreamCommit,
)

_ENOUGH = 16  # messages in a row are no accident

_FEW = 4  # are enough where the next bytes are no message either

_TIMES = range(2**53)  # microseconds since 2000: up to the year 2285

_LAST_LSN = 2**56

# What is tried costs no more than reading the file this many times, then the rest of it is given up.
_PASSES = 16

_LEAST_BUDGET = 1 << 20

_COST_OF_A_TRIAL = 32


_TAG = b"[" + re.escape(bytes(sorted(MESSAGE_TAGS))) + b"]"

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


# What only a new connection begins with, its first bytes: more than a value is likely to have.
_BEGINS_ANEW = {
    Framing.RECVLOGICAL: re.compile(rb"B\0\0|S[\0-\xff]{4}[\0\1]\n"),
    Framing.COPYDATA: re.compile(rb"d\0[\0-\xff]{3}[wk](?:\0|\Z)"),
    Framing.LENGTH_PREFIXED: re.compile(rb"\0\0\0(?:\x15B(?:\0|\Z)|\x06S|\x1ac|\x09A|\x19A)"),
}


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where whole messages begin again, and whether inside a stream segment."""

    position: int
    in_stream: bool


def next_whole(
    data: bytes,
    framing: Framing,
    start: int,
    in_stream: bool,
    within: tuple[int, int] | None = None,
    budget: Budget | None = None,
) -> Resumption | None:
    """From `start` on, of what may well be the rest of something; None: nothing but such bytes follows.

    `in_stream`: the reading to try first. `within`: only messages that begin in the one range, and of which some are
    past its end: those that something in front claims as its own. `budget`: of all searches in a file together.
    """
    budget = budget or Budget.of(data)
    last = len(data) if within is None else within[1]
    found = _next_convincing(data, framing, start, in_stream, within, budget)
    return found or next_connection(data, framing, start, last, budget)


def next_connection(data: bytes, framing: Framing, start: int, last: int, budget: Budget) -> Resumption | None:
    """Between `start` and `last`, where a new connection begins whose messages go on past `last`, or of whose first one
    the file's end cuts off the rest: that receiver died as well."""
    pattern = _BEGINS_ANEW.get(framing)
    for match in () if pattern is None else pattern.finditer(data, start):
        position = match.start()
        if position >= last or budget.left < 0:
            return None
        trial = follow(data, framing, position, False, last)
        budget.left -= _COST_OF_A_TRIAL + trial.scanned_to - position
        if trial.to_the_end or (trial.is_convincing(framing) and trial.end > last):
            return Resumption(position, False)
    return None


def _next_convincing(
    data: bytes, framing: Framing, start: int, in_stream: bool, within: tuple[int, int] | None, budget: Budget
) -> Resumption | None:
    last = len(data) if within is None else within[1]
    for match in _MAY_BEGIN[framing].finditer(data, start):
        position = match.start()
        if position >= last or budget.left < 0:
            return None
        for reading in (in_stream, not in_stream):
            trial = follow(data, framing, position, reading, 0 if within is None else last)
            budget.left -= _COST_OF_A_TRIAL + trial.scanned_to - position
            if trial.is_convincing(framing) and (within is None or trial.end > last):
                return Resumption(position, reading)
    return None


@dataclass(slots=True)
class Budget:
    """How many bytes may yet be read in search of messages: a file may be made of what begins like one."""

    left: int

    @classmethod
    def of(cls, data: bytes) -> Budget:
        return cls(max(_PASSES * len(data), _LEAST_BUDGET))


@dataclass(slots=True)
class FrameRun:
    """How far frames follow one another from some place on. to_the_end: of the file, or of all but a last part.

    looked_to: what was read is longer where the last of them turned out to be none.
    """

    end: int
    scanned_to: int
    frames: int = 0
    has_time: bool = False
    to_the_end: bool = False

    def is_convincing(self, framing: Framing) -> bool:
        """CopyData looks like nothing else, so that one is enough."""
        return self.frames >= (1 if framing is Framing.COPYDATA else _FEW) or (self.to_the_end and self.has_time)


def follow(data: bytes, framing: Framing, position: int, in_stream: bool, past: int = 0) -> FrameRun:
    """Reads a few frames, and no more than it takes to get past some place."""
    trial = FrameRun(position, position)
    try:
        while trial.end < len(data):
            frame = frame_at(data, framing, trial.end, in_stream)
            trial.scanned_to = frame.next
            if framing is Framing.COPYDATA and not _has_plausible_head(data, frame):
                return trial
            if frame.has_message:
                message = decode(data[frame.start : frame.end], in_stream)
                if not _is_plausible(message):
                    return trial
                trial.has_time |= isinstance(message, _WITH_TIME)
                in_stream = stands_in_stream(data[frame.start], in_stream)
            trial.frames += 1
            trial.end = frame.next
            if trial.frames >= _ENOUGH and trial.end > past:
                return trial
        trial.to_the_end = True
    except FramingError as error:
        trial.to_the_end = error.short
        trial.scanned_to = max(trial.scanned_to, error.looked_to)
    except WireError:
        pass
    return trial


def _has_plausible_head(data: bytes, frame: Frame) -> bool:
    """Of XLogData or a keepalive: the LSN that both begin with, and the time when it was sent."""
    head = frame.offset + 6
    time_at = head + (16 if frame.has_message else 8)
    lsn, time = (int.from_bytes(data[at : at + 8], "big") for at in (head, time_at))
    return lsn < _LAST_LSN and time in _TIMES and (frame.has_message or data[frame.next - 1] in (0, 1))


_WITH_TIME = (Begin, Commit, BeginPrepare, StreamCommit, CommitPrepared, RollbackPrepared)


def _is_plausible(message: PgoutputMessage) -> bool:
    match message:
        case Begin():
            return 0 < message.final_lsn < _LAST_LSN and message.commit_timestamp in _TIMES
        case Commit() | StreamCommit() | CommitPrepared():
            return 0 < message.commit_lsn < _LAST_LSN and message.commit_timestamp in _TIMES
        case BeginPrepare():
            return 0 < message.prepare_lsn < _LAST_LSN and message.prepare_timestamp in _TIMES
        case RollbackPrepared():
            return message.rollback_timestamp in _TIMES
        case _:
            return True
