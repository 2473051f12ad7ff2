"""Reads the formats of PostgreSQL's COPY TO, and writes rows in its text format.

    text     COPY's default, and the rows of pg_dump -Fd: a line per row, tabs between fields, backslash escapes
    binary   COPY … WITH (FORMAT binary): a signature, then per row a count, and per field a length and bytes
    csv      COPY … WITH (FORMAT csv, HEADER)

`…_spans` yield where each row begins and ends, in bytes, with its fields.

`tuple_of` turns fields into TupleData, so rows in files are decoded like replicated rows. Errors name the file, the
row, and the offset, but never values.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from pgoutput_etl.errors import ArchiveError, FramingError, PgoutputEtlError, RowError, own_lines
from pgoutput_etl.protocol.framing import pgcopy_header

Field = bytes | None

Fields = Sequence[Field]

Span = tuple[int, int, Fields]  # where a row begins and ends, in bytes, and its fields

_END_OF_TEXT = b"\\."

_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.)|\Z)", re.DOTALL)

_CONTROLS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def tuple_of(fields: Fields, kind: bytes) -> bytes:
    """Makes a TupleData (protocol chapter, Logical Replication Message Formats). kind: t for text, b for binary."""
    parts = [struct.pack(">H", len(fields))]
    for field in fields:
        parts += (b"n",) if field is None else (kind, struct.pack(">I", len(field)), field)
    return b"".join(parts)


def text_spans(data: bytes, path: str, width: int) -> Iterator[Span]:
    """Rows up to the end mark `\\.` or the end of the file. Raises ArchiveError for a row of another width."""
    begin = number = 0
    while begin < len(data):
        end = data.find(b"\n", begin)
        if end < 0:
            raise ArchiveError(f"{path}, offset {begin}: expected a newline after row {number}: the file is truncated")
        line = data[begin:end]
        if line == _END_OF_TEXT:
            return
        fields = line.split(b"\t") if width or line else []
        if len(fields) != width:
            raise ArchiveError(f"{path}, offset {begin}: expected {width} fields in row {number}, found {len(fields)}")
        yield begin, end + 1, [_unescaped(field, path, begin) for field in fields]
        begin, number = end + 1, number + 1


def _unescaped(field: bytes, path: str, offset: int) -> Field:
    if b"\\" not in field:
        return field
    if field == b"\\N":
        return None

    def character(escape: re.Match[bytes]) -> bytes:
        octal, hexadecimal, other = escape.groups()
        if octal is not None:
            return bytes((int(octal, 8) & 0xFF,))
        if hexadecimal is not None:
            return bytes((int(hexadecimal, 16),))
        if other is None:
            raise ArchiveError(f"{path}, offset {offset}: expected a character after a backslash, found none")
        return _CONTROLS.get(other, other)

    return _ESCAPE.sub(character, field)


_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def text_line(texts: Iterable[str | None]) -> str:
    """A row of COPY's text format, without the newline."""
    return "\t".join(r"\N" if text is None else text.translate(_ESCAPES) for text in texts)


def binary_spans(data: bytes, path: str, width: int) -> Iterator[Span]:
    """Raises ArchiveError for a file in another format, a truncated one, or a row of another width."""
    try:
        position = pgcopy_header(data)
    except FramingError as error:
        raise ArchiveError(f"{path}, {error}. Make it with COPY … WITH (FORMAT binary)") from None
    view, number = memoryview(data), 0
    while True:
        (count,) = _unpack(">h", view, position, path)
        if count == -1:
            if position + 2 != len(view):
                raise ArchiveError(f"{path}, offset {position + 2}: expected the file's end after the trailer")
            return
        if count != width:
            raise ArchiveError(f"{path}, offset {position}: expected {width} fields in row {number}, found {count}")
        begin, position = position, position + 2
        fields: list[Field] = []
        for _ in range(count):
            (length,) = _unpack(">i", view, position, path)
            position += 4
            if length == -1:
                fields.append(None)
                continue
            if length < 0 or position + length > len(view):
                raise ArchiveError(f"{path}, offset {position - 4}: expected a field that ends within the file")
            fields.append(bytes(view[position : position + length]))
            position += length
        yield begin, position, fields
        number += 1


def _unpack(layout: str, view: memoryview, position: int, path: str) -> tuple[int, ...]:
    try:
        return struct.unpack_from(layout, view, position)
    except struct.error:
        raise ArchiveError(f"{path}, offset {position}: expected more of a COPY file, found its end") from None


Record = list[str | None]

_FIELD = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^,"\r\n]*))(,|\r\n|\r|\n|\Z)')


def records(data: bytes, path: str) -> Iterator[Record]:
    """See `record_spans`."""
    return (record for _, _, record in record_spans(data, path))


def record_spans(data: bytes, path: str) -> Iterator[tuple[int, int, Record]]:
    """The records of a CSV file. An empty unquoted field is NULL; an empty quoted one is an empty string. The last
    record may lack its newline. Raises ArchiveError."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ArchiveError(f"{path}, offset {error.start}: expected UTF-8: COPY … (ENCODING 'UTF8')") from None
    width = number = position = begin = 0
    while position < len(text):
        first = position
        record, position = _record(text, position, path, number)
        end = begin + len(text[first:position].encode())
        width = width or len(record)
        if len(record) != width:
            raise ArchiveError(f"{path}, record {number}: expected {width} fields, as in the header, not {len(record)}")
        yield begin, end, record
        begin, number = end, number + 1


def csv_tuples(data: bytes, width: int) -> pa.Array:
    """TupleData in text format from whole rows that a server sends for queries.copied_rows. Gives the same result as
    `records` and `tuple_of`, but without Python code per row. Uses several times the data's size in memory."""
    names = [str(i) for i in range(width + 1)]
    table = csv.read_csv(
        pa.BufferReader(data),
        csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ).combine_chunks()
    parts: list[pa.Array | bytes] = [struct.pack(">H", width)]
    for column in table.columns[1:]:
        text = column.combine_chunks()
        sizes = pa.py_buffer(pc.fill_null(pc.binary_length(text), 0).to_numpy().astype(">u4"))
        length = pa.FixedSizeBinaryArray.from_buffers(pa.binary(4), len(text), [None, sizes]).cast(pa.binary())
        head = pc.binary_join_element_wise(b"t", length, b"")
        parts += pc.if_else(text.is_null(), b"n", head), pc.fill_null(text, b"")
    return pc.binary_join_element_wise(*parts, b"") if width else pa.repeat(parts[0], table.num_rows)


_FILE_ERROR = re.compile(rf"(ArchiveError|FramingError|RowError|{'|'.join(RowError.classes)}): (.*)")


@contextmanager
def copy_errors() -> Iterator[None]:
    """Turns Spark's error about a file that a Python worker can't read into the worker's ArchiveError or subclass."""
    try:
        yield
    except PgoutputEtlError:
        raise
    except Exception as error:
        for found in filter(None, map(_FILE_ERROR.match, own_lines(error))):
            raise RowError.classes.get(found[1], ArchiveError)(found[2]) from None
        raise


_HEADER = 1 << 20


def header(data: bytes, path: str) -> list[str]:
    """The names in the first record of a CSV file. Raises ArchiveError for an empty file."""
    text = data[:_HEADER].decode(errors="replace")
    if not text:
        raise ArchiveError(f"{path}: expected a header: COPY … WITH (FORMAT csv, HEADER)")
    return [name or "" for name in _record(text, 0, path, 0)[0]]


def _record(text: str, position: int, path: str, number: int) -> tuple[Record, int]:
    record: Record = []
    while True:
        match = _FIELD.match(text, position)
        if match is None:
            raise ArchiveError(
                f"{path}, record {number}, character {position}: expected a field of PostgreSQL's CSV, in quotes if "
                "it has quotes, commas or newlines, and a comma or a newline after it"
            )
        quoted, plain, end = match.groups()
        record.append(quoted.replace('""', '"') if quoted is not None else plain or None)
        position = match.end()
        if end != ",":
            return record, position
