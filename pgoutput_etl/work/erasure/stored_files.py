"""The bytes of files that rows are erased from, and the files' records in the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import functions as F

from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.file_access import PUBLIC
from pgoutput_etl.ingest import binary_files
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.replace_file import replace_file
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.object_folder import ObjectFolder
from pgoutput_etl.spark.platform import local_path

_RECORD = pa.schema(
    [
        *((name, pa.int64()) for name in ("file", "offset", "consumed", "decompressed_size", "size")),
        *((name, pa.string()) for name in ("prefix_hash", "head")),
        ("modified", pa.timestamp("us", tz="UTC")),
    ]
)


class StoredFiles(Protocol):
    @property
    def archive(self) -> LedgerArchive: ...

    def read(self, path: str, landing: str | None = None) -> bytes:
        """landing: as in map_files. Raises ArchiveError if the file is missing or not a plain file."""

    def write(self, path: str, content: bytes) -> None:
        """Replaces the file atomically. Raises ArchiveError for a file with hard links."""

    def refuse_other_names(self, path: str) -> None:
        """Raises ArchiveError for a local file with hard links: its other names would keep the old bytes."""

    def record(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Updates the ledger's `files` table. rows: new values, with `file` as the key."""


@dataclass(frozen=True, slots=True)
class SparkFiles:
    """Files on any file system that Spark can read."""

    archive: DeltaArchive

    def read(self, path: str, landing: str | None = None) -> bytes:
        try:
            return binary_files.read_file(self.archive.spark, path, landing)
        except FileNotFoundError:
            raise ArchiveError(f"{path} no longer exists, but an erasure has to rewrite it") from None

    def write(self, path: str, content: bytes) -> None:
        self.refuse_other_names(path)
        local = local_path(self.archive.spark, path)
        if local is not None:
            replace_file(Path(local), content, PUBLIC)  # keeps its permissions
            checksum = Path(local).with_name(f".{Path(local).name}.crc")  # written by Hadoop, of the old content
            checksum.unlink(missing_ok=True)
        else:
            folder, _, name = path.rpartition("/")
            ObjectFolder(self.archive.spark, folder).replace(name, content)

    def refuse_other_names(self, path: str) -> None:
        local = local_path(self.archive.spark, path)
        if local is not None and (names := Path(local).lstat().st_nlink) > 1:
            raise ArchiveError(
                f"{path}: expected a file with one name, found one with {names:,} (hard links), and the others would "
                "keep the erased rows: remove them, and run again. To keep an old copy knowingly, copy the file in "
                "place first"
            )

    def record(self, rows: Sequence[Mapping[str, Any]]) -> None:
        archive = self.archive
        source = frame(archive.spark, pa.Table.from_pylist([*map(dict, rows)], _RECORD)).alias("s")
        target = archive.ledger.store.delta("files").alias("t")
        is_current = (F.col("t.source") == archive.ledger.source) & (F.col("t.batch") >= archive.last.since)
        target.merge(source, is_current & (F.col("t.file") == F.col("s.file"))).whenMatchedUpdate(
            set={name: F.col(f"s.{name}") for name in _RECORD.names if name != "file"}
        ).execute()
