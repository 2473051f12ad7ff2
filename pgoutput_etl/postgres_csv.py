"""What PostgreSQL's `COPY … TO … WITH (FORMAT csv, HEADER)` writes: records of fields, NULL told from empty text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pgoutput_etl.errors import ArchiveError

Record = list[str | None]
_FIELD = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^,"\r\n]*))(,|\r\n|\r|\n|\Z)')


def records(data: bytes, path: str) -> Iterator[Record]:
    """Unquoted and empty is NULL, quoted and empty an empty string. The last record may lack its newline.

    Raises ArchiveError that names the file, the record and the character; never what stands there.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ArchiveError(f"{path}, offset {error.start}: expected UTF-8: COPY … (ENCODING 'UTF8')") from None
    width, number, position = None, 0, 0
    while position < len(text):
        record, position = _record(text, position, path, number)
        width = len(record) if width is None else width
        if len(record) != width:
            raise ArchiveError(f"{path}, record {number}: expected {width} fields, as in the header, not {len(record)}")
        yield record
        number += 1


_HEADER = 1 << 20


def header(data: bytes, path: str) -> list[str]:
    """The first record's names. Raises ArchiveError for a file without any."""
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
                f"{path}, record {number}, character {position}: expected a field of PostgreSQL's CSV, quoted by \" if "
                "it has quotes, commas or newlines, and a comma or a newline behind it"
            )
        quoted, plain, end = match.groups()
        record.append(quoted.replace('""', '"') if quoted is not None else plain or None)
        position = match.end()
        if end != ",":
            return record, position
