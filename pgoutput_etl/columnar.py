"""Bytes to messages at memory speed: the messages that archives are made of, found and checked by a compiled loop.

It takes what is frequent (all but Truncate, two-phase messages, names that are not ASCII, and Stream Abort where
nothing tells its length) and right, as decode.py and framing.py have it and with text as salvage.py wants it. It stops
before anything else, without a word: the readable code says what that is.

What was found is kept as numbers, a row of a table per message; the bytes stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pgoutput_etl.compiled import compiled
from pgoutput_etl.decode import MAX_COLUMNS
from pgoutput_etl.framing import Framing
from pgoutput_etl.wire import MAX_STRING

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

# At once: what is found is looked at again while it is in the processor's caches.
MOST_MESSAGES = 8192
MOST_BYTES = 1 << 21
_MOST_UNCHANGED = 8 * MOST_MESSAGES

# The fields of a message, all of them offsets in the data unless said otherwise.
OFFSET = 0  # of its frame
START = 1
END = 2
NEXT = 3  # behind its frame
LSN = 4  # the frame's, an unsigned 64-bit number; 0 where the framing has none
TAG = 5
IN_STREAM = 6  # 1 if it stands in a stream segment; then XID is the message's
XID = 7  # of B and S: theirs; of M it isn't kept
RELATION = 8
OLD_KIND = 9  # K, O or 0
OLD = 10  # the tuple's beginning and, next, its end; both 0 if there is none
OLD_END = 11
NEW = 12
NEW_END = 13
UNCHANGED_END = 14  # how many unchanged columns the messages up to this one have
COMMIT_LSN = 15  # of B, C and c, unsigned; of M: its flags
COMMIT_TS = 16  # of B, C and c
_FIELDS = 17

# Framings as numbers
_RECVLOGICAL, _PGCOPY, _COPYDATA, _LENGTH_PREFIXED = range(4)
_NUMBER_OF = {
    Framing.RECVLOGICAL: _RECVLOGICAL,
    Framing.PGCOPY: _PGCOPY,
    Framing.COPYDATA: _COPYDATA,
    Framing.LENGTH_PREFIXED: _LENGTH_PREFIXED,
}

_STOPPED, _ARRAYS_FULL, _AT_END = range(3)

_A, _B, _C, _D, _E, _I, _M, _O, _R, _S, _U, _Y, _COMMIT_OF_STREAM = b"ABCDEIMORSUYc"
_K, _N = b"KN"
_DEFAULT, _NOTHING, _FULL, _INDEX = b"dnfi"
_n, _u, _t, _b = b"nutb"
_NEW_LINE, _COPY, _XLOGDATA, _KEEPALIVE = b"\ndwk"
FREQUENT = frozenset(b"ABCDEIMORSUYc")

_U64 = np.uint64
_I64 = cast("Callable[[object], int]", np.int64)
_EIGHT = np.uint64(8)
_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(slots=True)
class Found:
    """The messages that one call of `find` found. fields[i, LSN] is the LSN of message i; `unchanged`: the positions
    of all columns of theirs that are unchanged TOAST.

    The arrays are used again by the next call.
    """

    messages: int = 0
    more: bool = False  # it stopped as the arrays are full, not at something that it doesn't take
    to_the_end: bool = False  # of the data, with nothing left to read
    fields: Numbers = field(default_factory=lambda: np.empty((MOST_MESSAGES, _FIELDS), np.int64))
    unchanged: NDArray[np.int16] = field(default_factory=lambda: np.empty(_MOST_UNCHANGED, np.int16))


def find(data: Bytes, framing: Framing, position: int, in_stream: bool, most: int, found: Found) -> None:
    """The messages from data[position] on, where a frame begins, in a stream segment or not, up to the first that is
    rare or wrong, and not more than `most`."""
    found.messages, why = _find(
        data, _NUMBER_OF[framing], position, in_stream, min(most, MOST_MESSAGES), found.fields, found.unchanged
    )
    found.more, found.to_the_end = why == _ARRAYS_FULL, why == _AT_END


@compiled
def _int32(a: int, b: int, c: int, d: int) -> int:
    """Four bytes, the first the highest, as a signed number."""
    return _I64(np.int32(_I64(a) << 24 | _I64(b) << 16 | _I64(c) << 8 | _I64(d)))


@compiled
def _uint32(a: int, b: int, c: int, d: int) -> int:
    return _I64(a) << 24 | _I64(b) << 16 | _I64(c) << 8 | _I64(d)


@compiled
def _int64(a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int) -> int:
    high = _I64(a) << 56 | _I64(b) << 48 | _I64(c) << 40 | _I64(d) << 32
    return high | _I64(e) << 24 | _I64(f) << 16 | _I64(g) << 8 | _I64(h)


@compiled
def _word(a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int) -> np.uint64:
    """Eight bytes as the processor has them."""
    low = _U64(a) | _U64(b) << _U64(8) | _U64(c) << _U64(16) | _U64(d) << _U64(24)
    high = _U64(e) << _U64(32) | _U64(f) << _U64(40) | _U64(g) << _U64(48) | _U64(h) << _U64(56)
    return low | high


@compiled
def is_text(data: Bytes, begin: int, end: int) -> bool:
    """Whether data[begin:end] is UTF-8 (RFC 3629) without NUL."""
    i = begin
    while i < end:
        a = _I64(data[_U64(i)])
        i += 1
        if a < 0x80:
            if a == 0:
                return False
            continue
        if a < 0xC2 or a > 0xF4:
            return False
        more = 1 if a < 0xE0 else 2 if a < 0xF0 else 3
        if i + more > end:
            return False
        b = _I64(data[_U64(i)])
        lowest = 0xA0 if a == 0xE0 else 0x90 if a == 0xF0 else 0x80
        highest = 0x9F if a == 0xED else 0x8F if a == 0xF4 else 0xBF
        if b < lowest or b > highest:
            return False
        for k in range(1, more):
            if _I64(data[_U64(i + k)]) & 0xC0 != 0x80:
                return False
        i += more
    return True


@compiled
def string_end(data: Bytes, begin: int, limit: int) -> int:
    """Behind the NUL byte that ends a string of ASCII; 0 for any other."""
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


@compiled
def _find(  # noqa: C901 - one loop, for speed
    data: Bytes,
    framing: int,
    position: int,
    in_stream: bool,
    most: int,
    fields: Numbers,
    unchanged: NDArray[np.int16],
) -> tuple[int, int]:
    """How many, and why not more."""
    size = len(data)
    first = position
    most_unchanged = len(unchanged) - MAX_COLUMNS
    n = 0
    unchanged_end = 0
    while position < size:
        if n >= most or position - first > MOST_BYTES or unchanged_end > most_unchanged:
            return n, _ARRAYS_FULL

        lsn = 0
        if framing == _RECVLOGICAL:
            start = position
            end = size
        elif framing == _LENGTH_PREFIXED:
            start = position + 4
            if start > size:
                break
            p = position
            length = _int32(data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)])
            end = start + length
            if length < 1 or end > size:
                break
        elif framing == _COPYDATA:
            body = position + 5
            if data[_U64(position)] != _COPY or body >= size:
                break
            p = position + 1
            length = _int32(data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)])
            end = body + length - 4
            if length < 5 or end > size:
                break
            if data[_U64(body)] == _KEEPALIVE:
                if end - body != 18:
                    break
                position = end
                continue
            start = body + 25
            if data[_U64(body)] != _XLOGDATA or end <= start:
                break
            p = body + 1
            lsn = _int64(
                data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)],
                data[_U64(p + 4)], data[_U64(p + 5)], data[_U64(p + 6)], data[_U64(p + 7)],
            )  # fmt: skip
        else:
            p = position
            start = position + 26
            if start > size or data[_U64(p)] != 0 or data[_U64(p + 1)] != 3:
                break
            if _int32(data[_U64(p + 2)], data[_U64(p + 3)], data[_U64(p + 4)], data[_U64(p + 5)]) != 8:
                break
            if _int32(data[_U64(p + 14)], data[_U64(p + 15)], data[_U64(p + 16)], data[_U64(p + 17)]) != 4:
                break
            length = _int32(data[_U64(p + 22)], data[_U64(p + 23)], data[_U64(p + 24)], data[_U64(p + 25)])
            end = start + length
            if length < 1 or end > size:
                break
            p = position + 6
            lsn = _int64(
                data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)],
                data[_U64(p + 4)], data[_U64(p + 5)], data[_U64(p + 6)], data[_U64(p + 7)],
            )  # fmt: skip

        tag = data[_U64(start)]
        stands_in_stream = in_stream
        unchanged_before = unchanged_end
        p = start + 1
        if tag in (_I, _U, _D):
            xid = 0
            if in_stream:
                if p + 4 > end:
                    break
                xid = _uint32(data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)])
                p += 4
            if p + 5 > end:
                break
            relation = _uint32(data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)])
            kind = data[_U64(p + 4)]
            p += 5
            is_old = kind != _N
            if is_old:
                if tag == _I or (kind != _K and kind != _O):
                    break
                fields[_U64(n), OLD_KIND] = kind
            else:
                if tag == _D:
                    break
                fields[_U64(n), OLD_KIND] = 0
                fields[_U64(n), OLD] = 0
                fields[_U64(n), OLD_END] = 0
            if tag == _D:
                fields[_U64(n), NEW] = 0
                fields[_U64(n), NEW_END] = 0
            is_right = True
            while True:  # over the tuples
                begin = p
                if p + 2 > end:
                    is_right = False
                    break
                columns = _I64(data[_U64(p)]) << 8 | _I64(data[_U64(p + 1)])
                p += 2
                if columns > MAX_COLUMNS:
                    is_right = False
                    break
                for column in range(columns):
                    if p >= end:
                        is_right = False
                        break
                    value = data[_U64(p)]
                    p += 1
                    if value == _t:
                        if p + 4 > end:
                            is_right = False
                            break
                        length = _int32(data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)])
                        p += 4
                        stop = p + length
                        if length < 0 or stop > end:
                            is_right = False
                            break
                        # A byte of 0 or past 127 leaves its highest bit, or one of a byte behind it.
                        odd = _U64(0)
                        i = p
                        while i + 8 <= stop:
                            word = _word(
                                data[_U64(i)], data[_U64(i + 1)], data[_U64(i + 2)], data[_U64(i + 3)],
                                data[_U64(i + 4)], data[_U64(i + 5)], data[_U64(i + 6)], data[_U64(i + 7)],
                            )  # fmt: skip
                            odd |= (word - _ONES) | word
                            i += 8
                        if i < stop:
                            if i + 8 <= size:
                                word = _word(
                                    data[_U64(i)], data[_U64(i + 1)], data[_U64(i + 2)], data[_U64(i + 3)],
                                    data[_U64(i + 4)], data[_U64(i + 5)], data[_U64(i + 6)], data[_U64(i + 7)],
                                )  # fmt: skip
                                mask = _ALL << (_U64(stop - i) * _EIGHT)
                                word = (word & ~mask) | (_ONES & mask)
                                odd |= (word - _ONES) | word
                            else:
                                odd = _HIGHS
                        if odd & _HIGHS != _U64(0) and not is_text(data, p, stop):
                            is_right = False
                            break
                        p = stop
                    elif value == _n:
                        pass
                    elif value == _u:
                        if not is_old:
                            unchanged[_U64(unchanged_end)] = column
                            unchanged_end += 1
                    elif value == _b:
                        if p + 4 > end:
                            is_right = False
                            break
                        length = _int32(data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)])
                        p += 4
                        if length < 0 or p + length > end:
                            is_right = False
                            break
                        p += length
                    else:
                        is_right = False
                        break
                if not is_right:
                    break
                if not is_old:
                    fields[_U64(n), NEW] = begin
                    fields[_U64(n), NEW_END] = p
                    break
                fields[_U64(n), OLD] = begin
                fields[_U64(n), OLD_END] = p
                if tag == _D:
                    break
                if p >= end or data[_U64(p)] != _N:
                    is_right = False
                    break
                p += 1
                is_old = False
            if not is_right:
                unchanged_end = unchanged_before
                break
            fields[_U64(n), RELATION] = relation
            fields[_U64(n), XID] = xid
        elif tag == _B:
            if p + 20 > end:
                break
            fields[_U64(n), COMMIT_LSN] = _int64(
                data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)],
                data[_U64(p + 4)], data[_U64(p + 5)], data[_U64(p + 6)], data[_U64(p + 7)],
            )  # fmt: skip
            fields[_U64(n), COMMIT_TS] = _int64(
                data[_U64(p + 8)], data[_U64(p + 9)], data[_U64(p + 10)], data[_U64(p + 11)],
                data[_U64(p + 12)], data[_U64(p + 13)], data[_U64(p + 14)], data[_U64(p + 15)],
            )  # fmt: skip
            fields[_U64(n), XID] = _uint32(
                data[_U64(p + 16)], data[_U64(p + 17)], data[_U64(p + 18)], data[_U64(p + 19)]
            )
            p += 20
            in_stream = False
        elif tag == _C:
            if p + 25 > end or data[_U64(p)] != 0:
                break
            p += 1
            fields[_U64(n), COMMIT_LSN] = _int64(
                data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)],
                data[_U64(p + 4)], data[_U64(p + 5)], data[_U64(p + 6)], data[_U64(p + 7)],
            )  # fmt: skip
            p += 16
            fields[_U64(n), COMMIT_TS] = _int64(
                data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)],
                data[_U64(p + 4)], data[_U64(p + 5)], data[_U64(p + 6)], data[_U64(p + 7)],
            )  # fmt: skip
            p += 8
        elif tag == _S:
            if p + 5 > end or data[_U64(p + 4)] > 1:
                break
            fields[_U64(n), XID] = _uint32(data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)])
            p += 5
            in_stream = True
        elif tag == _E:
            in_stream = False
        elif tag == _O:
            if p + 8 > end:
                break
            p = string_end(data, p + 8, end)
            if p == 0:
                break
        elif tag == _M:
            if in_stream:
                if p + 5 > end:
                    break
                # As decode.py tells one of a new connection, which bears no xid.
                head = _uint32(data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)])
                if data[_U64(p)] != 0 or (head != 0 and data[_U64(p + 4)] == 1):
                    p += 4
            if p + 9 > end or data[_U64(p)] > 1:
                break
            fields[_U64(n), COMMIT_LSN] = data[_U64(p)]
            p = string_end(data, p + 9, end)
            if p == 0 or p + 4 > end:
                break
            length = _int32(data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)])
            p += 4
            if length < 0 or p + length > end:
                break
            p += length
        elif tag in (_R, _Y):
            fields[_U64(n), XID] = 0
            if in_stream:
                if p + 4 > end:
                    break
                fields[_U64(n), XID] = _uint32(data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)])
                p += 4
            if p + 4 > end:
                break
            p = string_end(data, p + 4, end)
            if p == 0:
                break
            p = string_end(data, p, end)
            if p == 0:
                break
            if tag == _R:
                if p + 3 > end:
                    break
                identity = data[_U64(p)]
                columns = _I64(data[_U64(p + 1)]) << 8 | _I64(data[_U64(p + 2)])
                if identity not in (_DEFAULT, _NOTHING, _FULL, _INDEX) or columns > MAX_COLUMNS:
                    break
                p += 3
                for _ in range(columns):
                    if p >= end or data[_U64(p)] > 1:
                        p = 0
                        break
                    p = string_end(data, p + 1, end)
                    if p == 0 or p + 8 > end:
                        p = 0
                        break
                    p += 8
                if p == 0:
                    break
        elif tag == _COMMIT_OF_STREAM:
            if p + 29 > end or data[_U64(p + 4)] != 0:
                break
            p += 5
            fields[_U64(n), COMMIT_LSN] = _int64(
                data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)],
                data[_U64(p + 4)], data[_U64(p + 5)], data[_U64(p + 6)], data[_U64(p + 7)],
            )  # fmt: skip
            p += 16
            fields[_U64(n), COMMIT_TS] = _int64(
                data[_U64(p)], data[_U64(p + 1)], data[_U64(p + 2)], data[_U64(p + 3)],
                data[_U64(p + 4)], data[_U64(p + 5)], data[_U64(p + 6)], data[_U64(p + 7)],
            )  # fmt: skip
            p += 8
            in_stream = False
        elif tag == _A and framing != _RECVLOGICAL:
            p = end
            if end - start not in (9, 25):
                break
            in_stream = False
        else:
            break

        if framing == _RECVLOGICAL:
            end = p
            if p >= size or data[_U64(p)] != _NEW_LINE:
                unchanged_end = unchanged_before
                break
            p += 1
        elif p != end:
            unchanged_end = unchanged_before
            break
        fields[_U64(n), OFFSET] = position
        fields[_U64(n), START] = start
        fields[_U64(n), END] = end
        fields[_U64(n), NEXT] = p
        fields[_U64(n), LSN] = lsn
        fields[_U64(n), TAG] = tag
        fields[_U64(n), IN_STREAM] = stands_in_stream
        fields[_U64(n), UNCHANGED_END] = unchanged_end
        position = p
        n += 1
    # A file of COPY has a trailer.
    return n, _AT_END if position >= size and framing != _PGCOPY else _STOPPED
