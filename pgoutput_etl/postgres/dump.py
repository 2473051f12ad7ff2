"""Reads toc.dat from `pg_dump -Fd`: each table's file, and its columns in that file's order.

The layout is in pg_backup_archiver.c (WriteHead, WriteToc). An integer is a sign byte followed by `int_size` bytes,
least significant first. A string is its length followed by its bytes; length -1 means NULL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pgoutput_etl.errors import ArchiveError

_MAGIC = b"PGDMP"

# 1.12: PostgreSQL 9.0; 1.13: 10.3; 1.14: 12 (table access methods); 1.15: 16 (compression); 1.16: 17 (relkind).
_OLDEST, _NEWEST = (1, 12), (1, 16)

_COPY = re.compile(
    r'COPY (?:ONLY )?(?:"(?:[^"]|"")*"|[^".\s]+)(?:\.(?:"(?:[^"]|"")*"|[^".\s(]+))? (?:\((.*)\))? ?FROM stdin;',
    re.DOTALL,
)

_OID = re.compile(r"[0-9]{1,10}")

_MOST_COLUMNS = 1600  # of a table

_NAME = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^",\s]+))\s*(,|\Z)')


_QUALIFIED = r'(?:"(?:[^"]|"")*"|[^".\s]+)\.(?:"(?:[^"]|"")*"|[^".\s]+)'

_ATTACH = re.compile(rf"ALTER TABLE ONLY ({_QUALIFIED}) ATTACH PARTITION ({_QUALIFIED}) ")


@dataclass(frozen=True, slots=True)
class DumpedTable:
    """file: its name in the dump's folder, without the suffix of a compressed file. root: schema.table of the topmost
    partitioned table that it belongs to."""

    schema: str
    name: str
    oid: int
    columns: tuple[str, ...]
    file: str
    root: str | None = None


def read_toc(data: bytes, path: str) -> list[DumpedTable]:
    """The tables that have rows in the dump. Raises ArchiveError for a file of another kind or version, a truncated
    one, and rows that are not in COPY format and UTF-8."""
    return _Toc(data, path).tables()


def _unquoted(name: str) -> str:
    """The name without SQL quotes, as schema.table."""
    parts = re.findall(r'"((?:[^"]|"")*)"|([^".]+)', name)
    return ".".join(quoted.replace('""', '"') or plain for quoted, plain in parts)


class _Toc:
    def __init__(self, data: bytes, path: str) -> None:
        self.data, self.path, self.at = data, path, 0
        self.int_size = 0
        self.version = (0, 0)
        self.parents: dict[str, str] = {}  # of partitions

    def tables(self) -> list[DumpedTable]:
        self._head()
        entries = [self._entry() for _ in range(self._int())]
        return [replace(entry, root=self._root(entry)) for entry in entries if entry is not None]

    def _root(self, table: DumpedTable) -> str | None:
        """The topmost parent. Follows each parent once, because a forged file may have a cycle of them."""
        parents, root = dict(self.parents), None
        while (parent := parents.pop(root or f"{table.schema}.{table.name}", None)) is not None:
            root = parent
        return root

    def _fail(self, expected: str) -> ArchiveError:
        return ArchiveError(f"{self.path}, offset {self.at}: expected {expected}")

    def _bytes(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise self._fail("more of a table of contents, found the file's end")
        self.at += count
        return self.data[self.at - count : self.at]

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
            raise self._fail("PGDMP at the beginning of toc.dat of pg_dump -Fd")
        self.version = (self._byte(), self._byte())
        self._byte()  # revision
        if not _OLDEST <= self.version <= _NEWEST:
            major, minor = self.version
            raise self._fail(
                f"an archive of version 1.12 to 1.16 (pg_dump of PostgreSQL 10 to 18), found {major}.{minor}"
            )
        self.int_size = self._byte()
        self._bytes(2)  # size of offsets, format
        if self.version >= (1, 15):
            self._byte()
        else:
            self._int()  # compression level
        for _ in range(7):
            self._int()  # creation time
        for _ in range(3):
            self._str()  # database, versions of the server and of pg_dump

    def _entry(self) -> DumpedTable | None:
        self._int()  # dump ID
        self._int()  # 1 if it has data
        self._str()  # OID of the catalog table
        oid, tag, kind = self._str(), self._str(), self._str()
        self._int()  # section
        definition = self._str()
        self._str()
        copy, schema = self._str(), self._str()
        self._str()  # tablespace
        if self.version >= (1, 14):
            self._str()  # table access method
        if self.version >= (1, 16):
            self._int()  # relkind
        self._str()
        self._str()
        while self._str() is not None:
            pass  # dependencies
        file = self._str()
        for attached in _ATTACH.finditer(definition or "") if kind in ("TABLE", "TABLE ATTACH") else ():
            parent, partition = (_unquoted(name) for name in attached.groups())
            self.parents[partition] = parent
        if kind == "ENCODING" and "'UTF8'" not in (definition or ""):
            raise self._fail("a dump in UTF-8: pg_dump --encoding=UTF8")
        if kind != "TABLE DATA" or not file:
            return None
        if _OID.fullmatch(oid or "") is None:
            raise self._fail("a table's OID")
        return DumpedTable(schema or "", tag or "", int(oid or ""), self._columns(copy), file)

    def _columns(self, copy: str | None) -> tuple[str, ...]:
        statement = _COPY.fullmatch((copy or "").strip())
        if statement is None:
            raise self._fail("rows as COPY: pg_dump without --inserts")
        names, position, columns = [], 0, statement[1] or ""
        while position < len(columns):
            name = _NAME.match(columns, position)
            if name is None:
                raise self._fail("COPY's list of columns")
            names.append(name[1].replace('""', '"') if name[1] is not None else name[2])
            position = name.end()
            if len(names) > _MOST_COLUMNS:
                raise self._fail(f"at most {_MOST_COLUMNS:,} columns")
        return tuple(names)
