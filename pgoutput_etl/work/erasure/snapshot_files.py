"""Erases rows from the snapshot files that the request names.

As with landed files, every file is planned before any is changed. The plan has rows' positions, but no values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
from pydantic import TypeAdapter
from pyspark.sql import DataFrame

from pgoutput_etl.changes.row_search import RowImage, RowSearch, Text, meets_any
from pgoutput_etl.compression import compress_like, decompress
from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.ingest.binary_files import map_files
from pgoutput_etl.ingest.listing import reading_files
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.postgres.copy_format import Field
from pgoutput_etl.types import ColumnType
from pgoutput_etl.work.erasure.find import STORED_KEYS, Columns, row_images, stored_keys
from pgoutput_etl.work.erasure.landing import digest
from pgoutput_etl.work.erasure.request import SnapshotErasure
from pgoutput_etl.work.erasure.stored_files import StoredFiles
from pgoutput_etl.work.snapshot.sources import Dump, TableFiles, row_files

_AT_ONCE = 10_000  # rows

_PLAN = pa.schema(
    [
        *((name, pa.string()) for name in ("path", "before", "after")),
        ("rows", pa.list_(pa.list_(pa.int64()))),
    ]
)


@dataclass(frozen=True, slots=True)
class CutFile:
    """before, after: SHA-256 of the stored file. rows: where they begin and end in the decompressed file."""

    path: str
    before: str
    after: str
    rows: tuple[tuple[int, int], ...]

    def cut(self, files: StoredFiles) -> None:
        """Rewrites the file unless that is done already. Raises ArchiveError if its content has changed."""
        stored = files.read(self.path)
        if digest(stored) == self.before:
            files.write(self.path, _without(stored, decompress(stored, self.path), self.path, self.rows))
        elif digest(stored) != self.after:
            raise ArchiveError(f"{self.path}: expected the file as it was when the erasure began, found other content")


@dataclass(frozen=True, slots=True)
class _Format:
    """columns: of the fields in a row, in order."""

    files: TableFiles
    columns: Columns

    def rows(self, content: bytes, path: str) -> Iterator[tuple[RowImage, tuple[int, int]]]:
        spans = self.files.spans(content, path)
        while some := list(islice(spans, _AT_ONCE)):
            texts = [
                [self._text(fields[n], own_type) for _, _, fields in some]
                for n, (_, own_type) in enumerate(self.columns)
            ]
            for image, (begin, end, _) in zip(row_images(texts, self.columns), some, strict=True):
                yield image, (begin, end)

    def _text(self, field: Field, own_type: ColumnType) -> Text:
        if field is None:
            return None
        return (own_type.binary_text(field) if self.files.is_binary else field).decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class SnapshotFiles:
    """The files of one table."""

    archive: DeltaArchive
    search: RowSearch
    sizes: Mapping[str, int]
    format: _Format

    @classmethod
    def of(cls, archive: DeltaArchive, searches: Mapping[int, RowSearch], wanted: SnapshotErasure) -> SnapshotFiles:
        """Raises ConfigError if there are no such files, if their columns differ from the table's, or if several tables
        had this name and it is unknown which one the files belong to."""
        own = {oid: searches[oid] for oid in archive.oids_by_name()[wanted.table]}
        oid = _loaded_table(archive, own, wanted)
        files = _files(archive, wanted, own[oid])
        for number, relation in reversed(list(enumerate(own[oid].versions.relations))):
            if {column.name for column in relation.columns} == set(files.names):
                typed = {name: (column_id, own_type) for name, column_id, own_type in own[oid].columns_of(number)}
                columns = tuple(typed[name] for name in files.names)
                return cls(archive, own[oid], files.sizes, _Format(files, columns))
        raise ConfigError(f"snapshots: {wanted.path} has other columns than {wanted.table} in the archive")

    def other_keys(self) -> DataFrame:
        """Other keys of the rows that meet a condition, as STORED_KEYS."""
        search, own_format, oid = self.search, self.format, self.search.versions.oid

        def identify(files: Iterator[tuple[str, bytes]]) -> Iterator[pa.RecordBatch]:
            for path, stored in files:
                images = (image for image, _ in own_format.rows(decompress(stored, path), path))
                chosen = (image for image in images if meets_any(image, search.wanted))
                yield stored_keys(oid, {key for image in chosen for key in search.other_keys(image)})

        with reading_files(self.sizes):
            return map_files(self.archive.spark, self.sizes, identify, STORED_KEYS, self.sizes).localCheckpoint()

    def planned(self) -> list[CutFile]:
        """The files with rows that meet a condition."""
        search, own_format = self.search, self.format

        def plan(files: Iterator[tuple[str, bytes]]) -> Iterator[pa.RecordBatch]:
            for path, stored in files:
                content = decompress(stored, path)
                rows = [span for row, span in own_format.rows(content, path) if meets_any(row, search.wanted)]
                if rows:
                    new = _without(stored, content, path, rows)
                    planned = {"path": path, "before": digest(stored), "after": digest(new), "rows": rows}
                    yield pa.RecordBatch.from_pylist([planned], _PLAN)

        with reading_files(self.sizes):
            files = map_files(self.archive.spark, self.sizes, plan, _PLAN, self.sizes).toArrow().to_pylist()
        return TypeAdapter(list[CutFile]).validate_python(sorted(files, key=lambda file: str(file["path"])))


def _loaded_table(archive: DeltaArchive, oids: Iterable[int], wanted: SnapshotErasure) -> int:
    """The OID of the table that was loaded from these files."""
    known = [(oid, lsn) for oid in sorted(oids) for lsn in sorted(archive.ledger.batches.snapshots_of(oid))]
    fitting = {oid for oid, lsn in known if wanted.lsn in (None, lsn)}
    if len(fitting) != 1:
        lsns = ", ".join(format_lsn(lsn) for _, lsn in known) or "none"
        raise ConfigError(
            f"snapshots: expected the lsn of the snapshot that {wanted.path} is of. Those of {wanted.table}: {lsns}"
        )
    return fitting.pop()


def _files(archive: DeltaArchive, wanted: SnapshotErasure, search: RowSearch) -> TableFiles:
    files = row_files(archive.spark, wanted.format, wanted.path, wanted.columns)
    if isinstance(files, Dump) and wanted.table not in files.tables:
        raise ConfigError(f"snapshots: {wanted.path} has no rows of {wanted.table}")
    return files.of_table(wanted.table, [column.name for column in search.versions.relations[-1].columns])


def _without(stored: bytes, content: bytes, path: str, rows: Iterable[tuple[int, int]]) -> bytes:
    """The new file. stored, content: the old one as stored, and decompressed."""
    parts, position = [], 0
    for begin, end in rows:
        parts.append(content[position:begin])
        position = end
    return compress_like(stored, path, b"".join([*parts, content[position:]]))
