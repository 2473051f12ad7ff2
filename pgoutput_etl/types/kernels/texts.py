r"""Kernels for text and bytea columns, in two steps: first the offsets of all values, then their bytes.

Their arguments are described in numbers.py, except for `offsets`, which has one more entry than there are values. The
second step returns -1 if a text isn't UTF-8, or isn't bytes in hex form.
"""

from __future__ import annotations

from typing import Any

from pgoutput_etl.jit import compiled, copy_bytes, inlined, np
from pgoutput_etl.types.kernels.numbers import BINARY, LENGTH, ODD

# The binary forms of types that are kept as text, then the forms of bytes: any bytes unchanged, and a bytea.
AS_TEXT, VERSIONED, UUID, NO_FORM, AS_IS, HEX = range(6)

_UUID_TEXT = 36

_0, _1 = np.uint64(0), np.uint64(1)


@compiled
def is_utf8(data: Any, begin: Any, end: Any) -> bool:
    """True for strict UTF-8, as Python decodes it: no overlong forms, no surrogates, nothing beyond U+10FFFF."""
    p = begin
    while p < end:
        byte = data[p]
        p += _1
        if byte < 0x80:
            continue
        if byte < 0xC2 or byte > 0xF4:
            return False
        more = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        if end - p < np.uint64(more):
            return False
        least, most = np.uint8(0x80), np.uint8(0xBF)
        if byte == 0xE0:
            least = np.uint8(0xA0)
        elif byte == 0xED:
            most = np.uint8(0x9F)
        elif byte == 0xF0:
            least = np.uint8(0x90)
        elif byte == 0xF4:
            most = np.uint8(0x8F)
        if data[p] < least or data[p] > most:
            return False
        for k in range(1, more):
            if data[p + np.uint64(k)] & 0xC0 != 0x80:
                return False
        p += np.uint64(more)
    return True


@compiled
def text_offsets(data: Any, at: Any, size: Any, chosen: Any, form: Any, offsets: Any, states: Any) -> None:
    """The last offset is -1 if the texts take 2 GiB or more."""
    total = np.int64(0)
    offsets[0] = 0
    for i in range(chosen.shape[0]):
        t = chosen[i]
        length = size[t] if t >= 0 else np.int32(-1)
        states[i] = length >= 0
        if length >= 0:
            p = np.uint64(at[t])
            if length & BINARY:
                length &= LENGTH
                if form == VERSIONED and length >= 1 and data[p] == 1:
                    total += length - 1
                elif form == UUID and length == 16:
                    total += _UUID_TEXT
                elif form == AS_TEXT or form >= AS_IS:
                    total += length
                else:
                    states[i] = ODD
            elif form != HEX:
                total += length
            elif length >= 2 and length % 2 == 0 and data[p] == 0x5C and data[p + _1] == 0x78:
                total += length // 2 - 1
            else:
                states[i] = ODD
        if total >= 2**31:
            offsets[chosen.shape[0]] = -1
            return
        offsets[i + 1] = total


@inlined
def _hex_digit(nibble: Any) -> Any:
    return np.uint8(nibble + (48 if nibble < 10 else 87))


@inlined
def _nibble(digit: Any) -> Any:
    """The value of a hex digit; 16 if the byte isn't one."""
    if 0x30 <= digit <= 0x39:
        return np.int64(digit) - 0x30
    lower = np.int64(digit) | 0x20
    return lower - 0x57 if 0x61 <= lower <= 0x66 else np.int64(16)


@compiled
def texts(data: Any, at: Any, size: Any, chosen: Any, form: Any, offsets: Any, out: Any) -> int:
    """`out` has room for PADDING bytes more than needed."""
    for i in range(chosen.shape[0]):
        count = np.int64(offsets[i + 1]) - np.int64(offsets[i])
        if count == 0:
            continue
        t = chosen[i]
        p = np.uint64(at[t])
        o = np.uint64(offsets[i])
        is_binary = size[t] & BINARY
        if is_binary and form == UUID:
            for k in range(16):
                if k in (4, 6, 8, 10):
                    out[o] = 0x2D
                    o += _1
                byte = data[p + np.uint64(k)]
                out[o] = _hex_digit(byte >> 4)
                out[o + _1] = _hex_digit(byte & 15)
                o += _1 + _1
            continue
        if is_binary and form == VERSIONED:
            p += _1
        end = p + np.uint64(count)
        if copy_bytes(data, p, end, out, o) != _0 and not is_utf8(data, p, end) and form != AS_IS:
            return -1
    return 0


@compiled
def bytea(data: Any, at: Any, size: Any, chosen: Any, _form: Any, offsets: Any, out: Any) -> int:
    """`out` has room for PADDING bytes more than needed."""
    for i in range(chosen.shape[0]):
        count = np.int64(offsets[i + 1]) - np.int64(offsets[i])
        if count == 0:
            continue
        p, o = np.uint64(at[chosen[i]]), np.uint64(offsets[i])
        if size[chosen[i]] & BINARY:
            copy_bytes(data, p, p + np.uint64(count), out, o)
            continue
        invalid = np.int64(0)
        for k in range(count):
            p += _1 + _1
            upper, lower = _nibble(data[p]), _nibble(data[p + _1])
            invalid |= (upper | lower) & 16
            out[o + np.uint64(k)] = np.uint8(upper << 4 | lower)
        if invalid:
            return -1
    return 0
