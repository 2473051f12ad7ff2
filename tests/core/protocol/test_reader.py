"""The reader never returns less than requested, and never reads past its end."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from pgoutput_etl.errors import WireError
from pgoutput_etl.protocol.reader import Reader

FIELDS: list[tuple[Callable[[Reader, str], int], int, int]] = [
    (Reader.uint8, 1, 0xFF),
    (Reader.uint16, 2, 0xFFFF),
    (Reader.int32, 4, -1),
    (Reader.uint32, 4, 2**32 - 1),
    (Reader.int64, 8, -1),
    (Reader.uint64, 8, 2**64 - 1),
]


@pytest.mark.parametrize(("read", "size", "value"), FIELDS)
def test_fixed_size_fields(read: Callable[[Reader, str], int], size: int, value: int) -> None:
    reader = Reader(b"\xff" * size)
    assert read(reader, "field") == value
    reader.done()
    # The bytes exist, but after the end of the message.
    with pytest.raises(WireError, match=f"expected {size} bytes, found {size - 1}"):
        read(Reader(b"\xff" * (size + 8), end=size - 1), "field")


def test_big_endian() -> None:
    assert Reader(bytes(range(8))).uint64("lsn") == 0x0001020304050607


def test_offsets_count_from_where_the_reader_began() -> None:
    reader = Reader(b"-----ab\0cd", start=5, message="Type")
    assert reader.string("namespace") == "ab"
    with pytest.raises(WireError, match=r"Type\.name at byte 3: expected a NUL byte") as raised:
        reader.string("name")
    assert raised.value.offset == 3


def test_a_string_ends_before_the_message_does() -> None:
    with pytest.raises(WireError, match="NUL"):
        Reader(b"abc\0", end=3).string("name")


def test_text_that_is_not_utf8_is_refused_at_the_byte() -> None:
    with pytest.raises(WireError, match=r"Message\.name at byte 2: expected UTF-8 text"):
        Reader(b"ab\xffd\0", only_utf8=True).string("name")
    assert Reader(b"ab\xffd\0").string("name") == "ab\0ffd"


@pytest.mark.parametrize("data", [b"\x80\0\0\0", b"\xff\xff\xff\xff"])
def test_a_negative_length_is_refused(data: bytes) -> None:
    with pytest.raises(WireError, match=r"length at byte 0: expected a length of 0 or more, found -"):
        Reader(data + b"abc").length("length")


def test_raw_and_bytes_left_over() -> None:
    reader = Reader(b"abcde", message="Insert")
    assert reader.raw(3, "value") == b"abc"
    with pytest.raises(WireError, match=r"Insert\.end at byte 3: expected the end of the message, found 2 bytes left"):
        reader.done()
    assert reader.raw(2, "value") == b"de"
    assert reader.raw(0, "value") == b""
    reader.done()


def test_an_error_comes_back_whole_from_an_executor() -> None:
    error = WireError(7, "Insert", "new[0].length", "a length of 0 or more", "-2")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.offset) == (WireError, str(error), 7)
