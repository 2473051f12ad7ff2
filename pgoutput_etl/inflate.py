"""Compressed bytes, decompressed part by part and never past a limit: a small file may expand without end."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import pyarrow as pa

from pgoutput_etl.errors import FramingError

# What Spark's binaryFile carries at most, and Arrow's binary columns hold.
MAX_SIZE = 2**31 - 1
TRUNCATED = "Truncated compressed stream"  # Arrow's words
_AT_ONCE = 1 << 20
_BUNZIP2_BYTES = 1 << 16  # what follows a member is copied: not the whole file for each


def inflate(data: bytes, codec: str, max_size: int = MAX_SIZE) -> bytes:
    """All of it; codec: gzip, zstd, lz4 or bz2. Several members or frames one after another are one.

    Raises OSError or pa.ArrowException for what is damaged or cut off, and FramingError, with no more than `max_size`
    bytes held, for what expands to more.
    """
    content = BytesIO()
    for part in parts(data, codec, max_size):
        content.write(part)
    return content.getvalue()


def parts(data: bytes, codec: str, max_size: int = MAX_SIZE, at_once: int = _AT_ONCE) -> Iterator[bytes]:
    """As inflate, at most `at_once` bytes at a time: of what is cut off or damaged, those before."""
    size = 0
    for part in _bunzip2(data, at_once) if codec == "bz2" else _with_arrow(data, codec, at_once):
        size += len(part)
        if size > max_size:
            raise FramingError(
                f"offset 0: expected {codec} data that expands to {max_size:,} bytes at most, "
                f"found that {len(data):,} bytes of it expand to more"
            )
        yield part


def _with_arrow(data: bytes, codec: str, at_once: int) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        while part := stream.read(at_once):
            yield part


def _bunzip2(data: bytes, at_once: int) -> Iterator[bytes]:
    """Arrow's bz2 fails on an empty member before others; Python's bz2.decompress ignores bytes behind the last one."""
    import bz2  # not every build of Python has it

    member = bz2.BZ2Decompressor()
    for begin in range(0, len(data), _BUNZIP2_BYTES):
        rest = data[begin : begin + _BUNZIP2_BYTES]
        while rest or not (member.eof or member.needs_input):
            if member.eof:
                member = bz2.BZ2Decompressor()
            yield member.decompress(rest, at_once)
            rest = member.unused_data
    if not member.eof:
        raise OSError(TRUNCATED)
