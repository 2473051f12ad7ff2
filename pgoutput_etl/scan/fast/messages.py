"""Finds and checks the messages that make up most of an archive, in a compiled loop at memory speed.

It accepts frequent messages (all except Truncate, two-phase messages, names that are not ASCII, and Stream Abort in a
framing without lengths) that are valid by the rules of protocol/decoder.py and protocol/framing.py, with text as
salvage.py requires it. It stops silently before any other message; the readable code reports any error there.

Messages are described by numbers, one row of a table per message; their bytes stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pgoutput_etl import jit
from pgoutput_etl.jit import compiled, inlined, load_length, no_text_in_block
from pgoutput_etl.protocol.decoder import MAX_COLUMNS
from pgoutput_etl.protocol.framing import COPY_SIGNATURE, DETECTED_FROM, FRAMINGS, Framing
from pgoutput_etl.protocol.messages import KIND_BINARY, KIND_NULL, KIND_TEXT, KIND_UNCHANGED
from pgoutput_etl.protocol.reader import MAX_STRING

Bytes = NDArray[np.uint8]

Numbers = NDArray[np.int64]

# Per call: few enough that messages are still in the processor's caches when they are read.
MOST_MESSAGES = 16384
MOST_BYTES = 1 << 22
_MOST_UNCHANGED = 8 * MOST_MESSAGES

# The fields of a message; offsets in the data unless noted otherwise
OFFSET = 0  # of the frame
START = 1
END = 2
NEXT = 3  # the end of the frame
LSN = 4  # the frame's LSN, an unsigned 64-bit number; 0 if the framing has none
TAG = 5
IN_STREAM = 6  # 1 inside a stream segment, where XID is the message's
XID = 7  # B and S: their own; M: NO_XID if it has none
RELATION = 8
OLD_KIND = 9  # K, O or 0
OLD = 10  # OLD to NEW_END: where the tuples begin and end; 0 if there is no tuple
OLD_END = 11
NEW = 12
NEW_END = 13
UNCHANGED_END = 14  # number of unchanged columns in all messages up to this one
COMMIT_LSN = 15  # B, C, and c: unsigned; O: the LSN at the origin, unsigned; M: flags
COMMIT_TS = 16  # B, C, and c; M: its LSN, unsigned
FIELDS = 17

NO_XID = -1

_RECVLOGICAL, _PGCOPY, _COPYDATA, _LENGTH_PREFIXED = range(4)  # indexes in FRAMINGS

_STOPPED, _ARRAYS_FULL, _AT_END = range(3)

FREQUENT = frozenset(b"ABCDEIMORSUYc")
_A, _B, _C, _D, _E, _I, _M, _O, _R, _S, _U, _Y, _STREAM_COMMIT = b"ABCDEIMORSUYc"
_K, _N = b"KN"
_DEFAULT, _NOTHING, _FULL, _INDEX = b"dnfi"
_NEW_LINE, _COPY, _XLOGDATA, _KEEPALIVE = b"\ndwk"

_U64 = np.uint64
_I64 = cast("Callable[[object], int]", np.int64)
_BLOCK = 64
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(slots=True)
class MessageFields:
    """The messages that one call of `find` found. values[i, LSN] is the LSN of message i. unchanged: the positions of
    the unchanged TOAST columns in all messages, one message after another.

    The next call reuses the arrays.
    """

    messages: int = 0
    more: bool = False  # the arrays are full; the next message may also be frequent and valid
    to_the_end: bool = False  # nothing is left to read
    values: Numbers = field(default_factory=lambda: np.empty((MOST_MESSAGES, FIELDS), np.int64))
    unchanged: NDArray[np.int16] = field(default_factory=lambda: np.empty(_MOST_UNCHANGED, np.int16))


def find(data: Bytes, framing: Framing, position: int, in_stream: bool, limit: int, fields: MessageFields) -> None:
    """Finds up to `limit` messages, starting at the frame at data[position] and stopping at the first rare or invalid
    one.

    `in_stream`: the frame is inside a stream segment.
    """
    limit = min(limit, MOST_MESSAGES)
    fields.messages, reason = find_messages(
        data, FRAMINGS.index(framing), position, in_stream, limit, fields.values, fields.unchanged
    )
    fields.more, fields.to_the_end = reason == _ARRAYS_FULL, reason == _AT_END


def fitting(data: bytes) -> Framing | None:
    """The first framing that lets `find` accept as many messages at a file's start as framing.detect reads. None if no
    framing fits, or if there is no compiled code."""
    if not jit.AVAILABLE or data.startswith(COPY_SIGNATURE):
        return None
    fields = MessageFields(values=np.empty((DETECTED_FROM, FIELDS), np.int64))
    for framing in (Framing.COPYDATA, Framing.RECVLOGICAL, Framing.LENGTH_PREFIXED):
        find(np.frombuffer(data, np.uint8), framing, 0, False, DETECTED_FROM, fields)
        if fields.messages == DETECTED_FROM:
            return framing
    return None


@inlined
def _int32(data: Bytes, at: int) -> int:
    return _I64(np.int32(load_length(data, _U64(at))))


@inlined
def _uint32(data: Bytes, at: int) -> int:
    return _I64(load_length(data, _U64(at)))


@inlined
def _int64(data: Bytes, at: int) -> int:
    return _uint32(data, at) << 32 | _uint32(data, at + 4)


@compiled
def has_nul(data: Bytes, begin: int, end: int) -> bool:
    for i in range(begin, end):  # noqa: SIM110 - numba has no any()
        if data[_U64(i)] == 0:
            return True
    return False


@inlined
def _is_text_value(data: Bytes, begin: int, size: int) -> bool:
    """True if data[begin:begin+size] contains no NUL. Fast for ASCII, because most values are short and ASCII."""
    at, left = begin, size
    no_text = _U64(0)
    while left >= _BLOCK and at + _BLOCK <= len(data):
        no_text |= no_text_in_block(data, _U64(at))
        at += _BLOCK
        left -= _BLOCK
    if at + _BLOCK <= len(data):
        no_text |= no_text_in_block(data, _U64(at)) & ((_ALL >> _U64(1)) >> _U64(_BLOCK - 1 - left))
    elif left:
        no_text = _ALL
    return bool(no_text == _U64(0) or not has_nul(data, begin, begin + size))


@compiled
def _string_end(data: Bytes, begin: int, limit: int) -> int:
    """The offset after the NUL byte that ends an ASCII string; 0 for any other string."""
    last = min(limit, begin + MAX_STRING)
    i = begin
    while i < last:
        a = data[_U64(i)]
        i += 1
        if a == 0:
            return i
        if a >= 0x80:
            return 0
    return 0


@inlined
def _tuple_end(data: Bytes, begin: int, limit: int, unchanged: NDArray[np.int16], at: int) -> tuple[int, int]:
    """The offset after a TupleData, or 0 if it is invalid. Also writes the positions of its unchanged columns to
    unchanged[at:], and returns the index after them."""
    p = begin + 2
    if p > limit:
        return 0, at
    columns = _I64(data[_U64(begin)]) << 8 | _I64(data[_U64(begin + 1)])
    if columns > MAX_COLUMNS:
        return 0, at
    for column in range(columns):
        if p >= limit:
            return 0, at
        kind = data[_U64(p)]
        p += 1
        if kind in (KIND_TEXT, KIND_BINARY):
            p += 4
            if p > limit:
                return 0, at
            length = _I64(load_length(data, _U64(p - 4)))
            if length > limit - p or (kind == KIND_TEXT and not _is_text_value(data, p, length)):
                return 0, at
            p += length
        elif kind == KIND_UNCHANGED:
            unchanged[_U64(at)] = column
            at += 1
        elif kind != KIND_NULL:
            return 0, at
    return p, at


@compiled
def _relation_end(data: Bytes, identity: int, limit: int) -> int:
    """The offset after the Relation whose replica identity is data[identity]; 0 if it is invalid or has a column name
    that isn't ASCII."""
    p = identity + 3
    if p > limit or data[_U64(identity)] not in (_DEFAULT, _NOTHING, _FULL, _INDEX):
        return 0
    columns = _I64(data[_U64(identity + 1)]) << 8 | _I64(data[_U64(identity + 2)])
    if columns > MAX_COLUMNS:
        return 0
    for _ in range(columns):
        if p >= limit or data[_U64(p)] > 1:
            return 0
        p = _string_end(data, p + 1, limit)
        if p == 0 or p + 8 > limit:
            return 0
        p += 8
    return p


@compiled
def find_messages(  # noqa: C901 - one branch for each message
    data: Bytes, framing: int, position: int, in_stream: bool, limit: int, fields: Numbers, unchanged: NDArray[np.int16]
) -> tuple[int, int]:
    """Returns the number of messages, and the reason why the loop ended."""
    size = len(data)
    first = position
    most_unchanged = len(unchanged) - 2 * MAX_COLUMNS
    n = unchanged_end = 0
    while position < size:
        if n >= limit or position - first > MOST_BYTES or unchanged_end > most_unchanged:
            return n, _ARRAYS_FULL
        lsn = 0
        if framing == _RECVLOGICAL:
            start, end = position, size
        elif framing == _LENGTH_PREFIXED:
            start = position + 4
            if start > size:
                break
            length = _int32(data, position)
            end = start + length
            if length < 1 or end > size:
                break
        elif framing == _COPYDATA:
            start = position + 30
            if position + 5 > size or data[_U64(position)] != _COPY:
                break
            length = _int32(data, position + 1)
            end = position + 1 + length
            if length < 5 or end > size:
                break
            if data[_U64(position + 5)] == _KEEPALIVE and length == 22:
                position = end
                continue
            if data[_U64(position + 5)] != _XLOGDATA or end <= start:
                break
            lsn = _int64(data, position + 6)
        else:
            start = position + 26
            if start > size or data[_U64(position)] != 0 or data[_U64(position + 1)] != 3:
                break
            length = _int32(data, position + 22)
            end = start + length
            if length < 1 or end > size or _int32(data, position + 2) != 8 or _int32(data, position + 14) != 4:
                break
            lsn = _int64(data, position + 6)

        fields[_U64(n), IN_STREAM] = in_stream
        tag = data[_U64(start)]
        p = start + 1
        unchanged_to = unchanged_end
        if tag in (_I, _U, _D):
            fields[_U64(n), XID] = 0
            if in_stream and p + 4 <= end:
                fields[_U64(n), XID] = _uint32(data, p)
                p += 4
            elif in_stream:
                break
            p += 5
            if p > end:
                break
            fields[_U64(n), RELATION] = _uint32(data, p - 5)
            kind = data[_U64(p - 1)]
            fields[_U64(n), OLD_KIND] = 0
            fields[_U64(n), OLD] = 0
            fields[_U64(n), OLD_END] = 0
            fields[_U64(n), NEW] = 0
            fields[_U64(n), NEW_END] = 0
            if kind == _N:
                if tag == _D:
                    break
            else:
                if tag == _I or kind not in (_K, _O):
                    break
                fields[_U64(n), OLD_KIND] = kind
                fields[_U64(n), OLD] = p
                p, _ = _tuple_end(data, p, end, unchanged, unchanged_end)
                if p == 0:
                    break
                fields[_U64(n), OLD_END] = p
                if tag == _U:
                    if p >= end or data[_U64(p)] != _N:
                        break
                    p += 1
            if tag != _D:
                fields[_U64(n), NEW] = p
                p, unchanged_to = _tuple_end(data, p, end, unchanged, unchanged_end)
                if p == 0:
                    break
                fields[_U64(n), NEW_END] = p
        elif tag == _B:
            p += 20
            if p > end:
                break
            fields[_U64(n), COMMIT_LSN] = _int64(data, p - 20)
            fields[_U64(n), COMMIT_TS] = _int64(data, p - 12)
            fields[_U64(n), XID] = _uint32(data, p - 4)
            in_stream = False
        elif tag in (_C, _STREAM_COMMIT):
            p += 25 if tag == _C else 29
            if p > end or data[_U64(p - 25)] != 0:
                break
            fields[_U64(n), COMMIT_LSN] = _int64(data, p - 24)
            fields[_U64(n), COMMIT_TS] = _int64(data, p - 8)
            in_stream = in_stream and tag == _C
        elif tag == _S:
            p += 5
            if p > end or data[_U64(p - 1)] > 1:
                break
            fields[_U64(n), XID] = _uint32(data, p - 5)
            in_stream = True
        elif tag == _E:
            in_stream = False
        elif tag == _A and framing != _RECVLOGICAL and end - start in (9, 25):
            p = end
            in_stream = False
        elif tag in (_R, _Y):
            fields[_U64(n), XID] = 0
            if in_stream and p + 4 <= end:
                fields[_U64(n), XID] = _uint32(data, p)
                p += 4
            elif in_stream:
                break
            p = _string_end(data, p + 4, end)
            if p != 0:
                p = _string_end(data, p, end)
            if p != 0 and tag == _R:
                p = _relation_end(data, p, end)
            if p == 0:
                break
        elif tag == _O:
            if p + 8 > end:
                break
            fields[_U64(n), COMMIT_LSN] = _int64(data, p)
            p = _string_end(data, p + 8, end)
            if p == 0:
                break
        elif tag == _M:
            # A Message of a new connection has no xid; recognized as in decoder._is_outside.
            fields[_U64(n), XID] = NO_XID
            if in_stream and p + 5 <= end and (data[_U64(p)] != 0 or (_int32(data, p) != 0 and data[_U64(p + 4)] == 1)):
                fields[_U64(n), XID] = _uint32(data, p)
                p += 4
            if p + 9 > end or data[_U64(p)] > 1:
                break
            fields[_U64(n), COMMIT_LSN] = data[_U64(p)]
            fields[_U64(n), COMMIT_TS] = _int64(data, p + 1)
            p = _string_end(data, p + 9, end)
            if p == 0 or p + 4 > end:
                break
            length = _int32(data, p)
            p += 4 + length
            if length < 0 or p > end:
                break
        else:
            break

        if framing == _RECVLOGICAL:
            end = p
            if p >= size or data[_U64(p)] != _NEW_LINE:
                break
            p += 1
        else:
            if p != end:
                break
            p = end  # doesn't depend on the tuple, so the processor can start on the next message
        unchanged_end = unchanged_to
        fields[_U64(n), OFFSET] = position
        fields[_U64(n), LSN] = lsn
        fields[_U64(n), START] = start
        fields[_U64(n), END] = end
        fields[_U64(n), NEXT] = p
        fields[_U64(n), TAG] = tag
        fields[_U64(n), UNCHANGED_END] = unchanged_end
        position = p
        n += 1
    # In pgcopy, a trailer follows the last row.
    return n, _AT_END if position >= size and framing != _PGCOPY else _STOPPED
