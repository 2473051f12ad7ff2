"""toc.dat of `pg_dump -Fd`: which file has the rows of which table, and which columns, in which order.

The layout is that of pg_backup_archiver.c (WriteHead, WriteToc): integers are a sign byte and `int_size` bytes, least
first; a string is its length and its bytes, with length -1 for none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgoutput_etl.errors import ArchiveError

_MAGIC = b"PGDMP"

# 1.12: PostgreSQL 9.0; 1.13: 10.3; 1.14: 12 (table access methods); 1.15: 16 (compression); 1.16: 17 (relkind).
_OLDEST, _NEWEST = (1, 12), (1, 16)

_COPY = re.compile(
    r'COPY (?:ONLY )?(?:"(?:[^"]|"")*"|[^".\s]+)(?:\.(?:"(?:[^"]|"")*"|[^".\s(]+))? (?:\((.*)\))? ?FROM stdin;',
    re.DOTALL,
)

_NAME = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^",\s]+))\s*(,|\Z)')


@dataclass(frozen=True, slots=True)
class DumpedTable:
    """file: in the dump's folder; a compressed one has a suffix besides."""

    schema: str
    name: str
    oid: int
    columns: tuple[str, ...]
    file: str


def read_toc(data: bytes, path: str) -> list[DumpedTable]:
    """The tables that have rows in the dump. Raises ArchiveError for a file of another kind or version, one that is cut
    off, and rows in other forms than COPY's in UTF-8."""
    return _Toc(data, path).tables()


class _Toc:
    def __init__(self, data: bytes, path: str) -> None:
        self.data, self.path, self.at = data, path, 0
        self.int_size = 0
        self.version = (0, 0)

    def tables(self) -> list[DumpedTable]:
        self._head()
        found = []
        for _ in range(self._int()):
            entry = self._entry()
            if entry is not None:
                found.append(entry)
        return found

    def _fail(self, expected: str) -> ArchiveError:
        return ArchiveError(f"{self.path}, offset {self.at}: expected {expected}")

    def _bytes(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise self._fail("more of a table of contents, found the file's end: it is cut off")
        found = self.data[self.at : self.at + count]
        self.at += count
        return found

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _int(self) -> int:
        is_negative = self._byte()
        number = int.from_bytes(self._bytes(self.int_size), "little")
        return -number if is_negative else number

    def _str(self) -> str | None:
        length = self._int()
        if length < 0:
            return None
        try:
            return self._bytes(length).decode()
        except UnicodeDecodeError:
            raise self._fail("names in UTF-8: pg_dump --encoding=UTF8") from None

    def _head(self) -> None:
        if self._bytes(len(_MAGIC)) != _MAGIC:
            raise self._fail("PGDMP, as toc.dat of pg_dump -Fd begins")
        self.version = (self._byte(), self._byte())
        self._byte()  # the revision
        if not _OLDEST <= self.version <= _NEWEST:
            major, minor = self.version
            raise self._fail(
                f"an archive of version 1.12 to 1.16 (pg_dump of PostgreSQL 10 to 18), found {major}.{minor}"
            )
        self.int_size = self._byte()
        self._bytes(2)  # the size of offsets, the format
        if self.version >= (1, 15):
            self._byte()
        else:
            self._int()  # the level of compression
        for _ in range(7):
            self._int()  # when it was begun
        for _ in range(3):
            self._str()  # the database, and the versions of server and pg_dump

    def _entry(self) -> DumpedTable | None:
        self._int()  # its number in the dump
        self._int()  # whether it has data
        self._str()  # the catalog's OID
        oid, tag, kind = self._str(), self._str(), self._str()
        self._int()  # the section
        definition = self._str()
        self._str()
        copy, schema = self._str(), self._str()
        self._str()  # the tablespace
        if self.version >= (1, 14):
            self._str()  # the access method
        if self.version >= (1, 16):
            self._int()  # relkind
        self._str()
        self._str()
        while self._str() is not None:
            pass  # what it depends on
        file = self._str()
        if kind == "ENCODING" and "'UTF8'" not in (definition or ""):
            raise self._fail("a dump in UTF-8: pg_dump --encoding=UTF8")
        if kind != "TABLE DATA" or not file:
            return None
        return DumpedTable(schema or "", tag or "", int(oid or 0), self._columns(copy), file)

    def _columns(self, copy: str | None) -> tuple[str, ...]:
        found = _COPY.fullmatch((copy or "").strip())
        if found is None:
            raise self._fail("the rows of tables as COPY: pg_dump without --inserts")
        names, position, listed = [], 0, found[1] or ""
        while position < len(listed):
            name = _NAME.match(listed, position)
            if name is None:
                raise self._fail("COPY's list of columns")
            names.append(name[1].replace('""', '"') if name[1] is not None else name[2])
            position = name.end()
        return tuple(names)
