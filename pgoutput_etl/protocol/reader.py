"""A bounded big-endian reader. A short read is an error, never a short value."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from pgoutput_etl.errors import WireError
from pgoutput_etl.identifiers import name_of

_Unpack = Callable[[bytes, int], tuple[int, ...]]

_UINT16: _Unpack = Struct(">H").unpack_from
_INT32: _Unpack = Struct(">i").unpack_from
_UINT32: _Unpack = Struct(">I").unpack_from
_INT64: _Unpack = Struct(">q").unpack_from
_UINT64: _Unpack = Struct(">Q").unpack_from

# The longest accepted string, in bytes. PostgreSQL's names have at most 63, an origin's 512, and a gid 199; a prefix
# has no limit. Without this limit, the search for messages after damage would read a long value again from each of its
# bytes.
MAX_STRING = 8192


class Reader:
    """Reads the fields of one message from data[start:end], in order.

    Errors name the `message` and count offsets from `start`. only_utf8: reject other text.
    """

    __slots__ = ("data", "end", "message", "only_utf8", "position", "start")

    def __init__(
        self, data: bytes, start: int = 0, end: int | None = None, message: str = "Message", only_utf8: bool = False
    ) -> None:
        self.data = data
        self.start = start
        self.position = start
        self.end = len(data) if end is None else end
        self.message = message
        self.only_utf8 = only_utf8

    def fail(self, field: str, expected: str, found: str, offset: int | None = None, short: bool = False) -> WireError:
        """The error for a field at `offset` (by default the reader's position), for the caller to raise."""
        at = self.position if offset is None else offset
        return WireError(at - self.start, self.message, field, expected, found, short)

    def take(self, size: int, field: str) -> int:
        """Moves past `size` bytes and returns the position of the first one."""
        begin = self.position
        left = self.end - begin
        if size > left:
            raise self.fail(field, f"{size} bytes", f"{left} before the end of the message", short=True)
        self.position = begin + size
        return begin

    def raw(self, size: int, field: str) -> bytes:
        return self.data[self.take(size, field) : self.position]

    def uint8(self, field: str) -> int:
        return self.data[self.take(1, field)]

    def uint16(self, field: str) -> int:
        return _UINT16(self.data, self.take(2, field))[0]

    def int32(self, field: str) -> int:
        return _INT32(self.data, self.take(4, field))[0]

    def uint32(self, field: str) -> int:
        return _UINT32(self.data, self.take(4, field))[0]

    def int64(self, field: str) -> int:
        return _INT64(self.data, self.take(8, field))[0]

    def uint64(self, field: str) -> int:
        return _UINT64(self.data, self.take(8, field))[0]

    def flags(self, field: str, expected: str, most: int = 1) -> int:
        """A byte from 0 to `most`."""
        begin = self.position
        value = self.uint8(field)
        if value > most:
            raise self.fail(field, expected, str(value), begin)
        return value

    def letter(self, field: str, allowed: str) -> str:
        """A byte that is one of the allowed ASCII characters."""
        begin = self.position
        code = self.uint8(field)
        if chr(code) not in allowed:
            raise self.fail(field, "one of " + " ".join(allowed), f"byte 0x{code:02X}", begin)
        return chr(code)

    def length(self, field: str) -> int:
        """An Int32: the number of bytes that follow."""
        begin = self.position
        size = self.int32(field)
        if size < 0:
            raise self.fail(field, "a length of 0 or more", str(size), begin)
        return size

    def string(self, field: str) -> str:
        """A String of the protocol, which ends with a NUL byte, as a name. The server of a SQL_ASCII database sends any
        bytes, and a server that was asked for another encoding sends bytes in that encoding."""
        begin = self.position
        end = min(self.end, begin + MAX_STRING)
        nul = self.data.find(b"\0", begin, end)
        if nul < 0 and end < self.end:
            raise self.fail(field, f"a NUL byte that ends the string within {MAX_STRING:,}", "none")
        if nul < 0:
            raise self.fail(field, "a NUL byte that ends the string", "the end of the message", short=True)
        self.position = nul + 1
        self.check_text(begin, nul, field)
        return name_of(self.data[begin:nul])

    def check_text(self, begin: int, end: int, field: str) -> None:
        if not self.only_utf8:
            return
        try:
            self.data[begin:end].decode()
        except UnicodeDecodeError as error:
            raise self.fail(field, "UTF-8 text", "another byte sequence", begin + error.start) from None

    def done(self) -> None:
        """Raises WireError if bytes of the message remain."""
        if self.position != self.end:
            raise self.fail("end", "the end of the message", f"{self.end - self.position} bytes left over")
