"""Compressed bytes, decompressed part by part and never past a limit: a small file may expand without end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import PurePosixPath

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


@dataclass(frozen=True, slots=True)
class Content:
    """A file's decompressed bytes; `cut_off`: what the compression says of its end, if that isn't there; `remark`: what
    is odd about its name."""

    data: bytes
    cut_off: str | None = None
    remark: str | None = None


_CODECS = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4", ".bz2": "bz2"}

# zstd and lz4 files may begin with a skippable frame; a name tells which. Begin may look like bzip2's first 4 bytes,
# but not like the number of a block or of the end behind them.
_SKIPPABLE = tuple(bytes((kind, 0x2A, 0x4D, 0x18)) for kind in range(0x50, 0x60))

_MAGIC = {
    "gzip": (b"\x1f\x8b",),
    "zstd": (b"\x28\xb5\x2f\xfd",),
    "lz4": (b"\x04\x22\x4d\x18",),
    "bz2": tuple(b"BZh%d" % level + number for level in range(1, 10) for number in (b"1AY&SY", b"\x17rE8P\x90")),
}

_SALVAGED_BYTES = 1 << 10  # at once, from a stream that is cut off


def decompress(data: bytes, path: str, max_size: int = MAX_SIZE) -> bytes:
    """A file's bytes, decompressed if they are compressed (gzip, zstd, lz4, bzip2), whatever its name says.

    Several compressed members or frames one after another are one file. Raises FramingError for a compressed file
    that is cut off or damaged, or that expands to more than `max_size` bytes.
    """
    content = read_content(data, path, max_size)
    if content.cut_off is not None:
        raise FramingError(content.cut_off, short=True)
    return content.data


def read_content(data: bytes, path: str, max_size: int = MAX_SIZE) -> Content:
    """As decompress; of a compressed file that is cut off, what is there."""
    suffix = PurePosixPath(path).suffix.lower()
    named = _CODECS.get(suffix)
    codec = _codec(data, named)
    if codec is None:
        if named is not None and any(magic.startswith(data) for magic in _MAGIC[named]):
            return Content(b"", f"offset 0: expected {named} data, as {suffix} says, found {len(data)} bytes")
        return Content(data, None, None if named is None else f"{suffix} says {named}, but it is not compressed")
    remark = None if named == codec else f"it is {codec} data, which its name doesn't say"
    try:
        return Content(inflate(data, codec, max_size), None, remark)
    except (OSError, pa.ArrowException) as error:
        refusal = f"offset 0: expected {len(data)} bytes of {codec} data, found: {error}"
        if TRUNCATED not in str(error):
            raise FramingError(refusal) from None
    return Content(_salvaged(data, codec, max_size), refusal, remark)


def _codec(data: bytes, named: str | None) -> str | None:
    for codec, magic in _MAGIC.items():
        if data.startswith(magic):
            return codec
    return named if named in ("zstd", "lz4") and data.startswith(_SKIPPABLE) else None


def _salvaged(data: bytes, codec: str, max_size: int) -> bytes:
    """What can be had of a stream that is cut off."""
    content = BytesIO()
    try:
        for part in parts(data, codec, max_size, _SALVAGED_BYTES):
            content.write(part)
    except (OSError, pa.ArrowException):
        pass
    return content.getvalue()
