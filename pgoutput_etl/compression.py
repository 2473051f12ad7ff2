"""Decompresses landed files in parts and up to a limit, because a small file may expand to any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import PurePosixPath

import pyarrow as pa

from pgoutput_etl.error_codes import ErrorCode
from pgoutput_etl.errors import FramingError

# The limit of Spark's binaryFile and of Arrow's binary columns.
MAX_SIZE = 2**31 - 1

TRUNCATED = "Truncated compressed stream"  # Arrow's message

_PART_SIZE = 1 << 20

_UNMEASURED_SIZE = 1 << 26  # larger content that expands unusually is measured before it is kept

_USUAL_RATIO = 32  # content size to data size; receivers' files expand less

_BZ2_INPUT_SIZE = 1 << 16  # the input after the end of a member is copied, so it must not be the whole rest of the file


class ExpansionError(FramingError):
    """A compressed file that expands beyond a reader's limit, and so much that no receiver can have written it."""

    code = ErrorCode.EXPANSION


def _inflate(data: bytes, codec: str, max_size: int, part_size: int) -> tuple[bytes, str | None]:
    """Decompresses data of the codec gzip, zstd, lz4, or bz2 in parts of `part_size` bytes. Returns the content, and
    the error at its end if the data are damaged or truncated.

    Raises FramingError if the content is larger than `max_size`, without keeping all of it: content that is much larger
    than its data is measured first, and the error is then an ExpansionError.
    """
    content, size, usual = BytesIO(), 0, _USUAL_RATIO * len(data)
    kept = max(_UNMEASURED_SIZE, usual)
    try:
        for part in _parts(data, codec, part_size):
            size += len(part)
            if size > max_size:
                refusal = (
                    f"offset 0: expected {codec} data that expands to at most {max_size:,} bytes, "
                    f"found {len(data):,} bytes that expand to more"
                )
                raise ExpansionError(refusal) if max_size > usual else FramingError(refusal)
            if size <= kept:
                content.write(part)
            elif content.tell():
                content = BytesIO()
        error = None
    except (OSError, pa.ArrowException) as reason:
        error = str(reason)
    return (content.getvalue() if size <= kept else _first(data, codec, part_size, size)), error


def _first(data: bytes, codec: str, part_size: int, size: int) -> bytes:
    """The first `size` bytes of content that is at least that long."""
    content = BytesIO()
    parts = _parts(data, codec, part_size)
    while content.tell() < size:
        content.write(next(parts))
    return content.getvalue()


def _parts(data: bytes, codec: str, part_size: int) -> Iterator[bytes]:
    return _bz2_parts(data, part_size) if codec == "bz2" else _arrow_parts(data, codec, part_size)


def _arrow_parts(data: bytes, codec: str, part_size: int) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        while part := stream.read(part_size):
            yield part


def _bz2_parts(data: bytes, part_size: int) -> Iterator[bytes]:
    """Uses Python's bz2: Arrow's fails on an empty member before others. bz2.decompress would ignore trailing bytes."""
    import bz2  # missing in some builds of Python

    member = bz2.BZ2Decompressor()
    for begin in range(0, len(data), _BZ2_INPUT_SIZE):
        rest = data[begin : begin + _BZ2_INPUT_SIZE]
        while rest or not (member.eof or member.needs_input):
            if member.eof:
                member = bz2.BZ2Decompressor()
            yield member.decompress(rest, part_size)
            rest = member.unused_data
    if not member.eof:
        raise OSError(TRUNCATED)


@dataclass(frozen=True, slots=True)
class Content:
    """A file's decompressed bytes.

    cut_off: the error if the compressed data is truncated. remark: a mismatch between the file's name and its content.
    """

    data: bytes
    cut_off: str | None = None
    remark: str | None = None


_CODECS = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4", ".bz2": "bz2"}

# zstd and lz4 files may begin with a skippable frame, and then only the file's name tells them apart. Other files may
# begin with bzip2's first 4 bytes, but not also with the block or end number that follows them.
_SKIPPABLE = tuple(bytes((kind, 0x2A, 0x4D, 0x18)) for kind in range(0x50, 0x60))

_MAGIC = {
    "gzip": (b"\x1f\x8b",),
    "zstd": (b"\x28\xb5\x2f\xfd",),
    "lz4": (b"\x04\x22\x4d\x18",),
    "bz2": tuple(b"BZh%d" % level + number for level in range(1, 10) for number in (b"1AY&SY", b"\x17rE8P\x90")),
}

_SALVAGE_PART_SIZE = 1 << 10  # for a truncated stream


def decompress(data: bytes, path: str, max_size: int = MAX_SIZE) -> bytes:
    """A file's bytes, decompressed if they are compressed (gzip, zstd, lz4, or bzip2), regardless of the file's name.

    Consecutive members or frames are concatenated. Raises FramingError for a compressed file that is truncated or
    damaged, or that expands to more than `max_size` bytes.
    """
    content = read_content(data, path, max_size)
    if content.cut_off is not None:
        raise FramingError(content.cut_off, short=True)
    return content.data


def read_content(data: bytes, path: str, max_size: int = MAX_SIZE) -> Content:
    """Like decompress, but returns the readable part of a truncated file."""
    suffix = PurePosixPath(path).suffix.lower()
    named = _CODECS.get(suffix)
    codec = _codec(data, named)
    if codec is None:
        if named is not None and any(magic.startswith(data) for magic in _MAGIC[named]):
            return Content(b"", f"offset 0: expected {named} data in a {suffix} file, found {len(data)} bytes")
        return Content(data, None, None if named is None else f"named {suffix}, but not compressed")
    remark = None if named == codec else f"contains {codec} data, which its name doesn't indicate"
    content, error = _inflate(data, codec, max_size, _PART_SIZE)
    if error is None:
        return Content(content, None, remark)
    refusal = f"offset 0: expected {len(data)} bytes of {codec} data, found: {error}"
    if TRUNCATED not in error:
        raise FramingError(refusal)
    # The last part before the end is lost, so parts must be small.
    return Content(_inflate(data, codec, max_size, _SALVAGE_PART_SIZE)[0], refusal, remark)


def compress_like(original: bytes, path: str, content: bytes) -> bytes:
    """Compresses a file's new content in the same way as the old one. original: the file's old bytes."""
    codec = _codec(original, _CODECS.get(PurePosixPath(path).suffix.lower()))
    if codec is None:
        return content
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(content)
    compressed: bytes = sink.getvalue().to_pybytes()
    return compressed


def _codec(data: bytes, named: str | None) -> str | None:
    for codec, magic in _MAGIC.items():
        if data.startswith(magic):
            return codec
    return named if named in ("zstd", "lz4") and data.startswith(_SKIPPABLE) else None
