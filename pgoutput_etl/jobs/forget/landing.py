"""Rewrites landed files without the changes of erased rows, and records them in the ledger as the same files.

The plan has no values, so that a run that died can be finished from the ledger alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from pgoutput_etl.compression import compress_like, decompress
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.ingest.binary_files import literal_paths
from pgoutput_etl.landing.erasure import Erased, erase
from pgoutput_etl.landing.fingerprint import FilePart, Hashes, head_of, heads_of
from pgoutput_etl.landing.known_files import is_unchanged
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.replace_file import replace_file
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.delta import delta_table
from pgoutput_etl.spark.object_folder import ObjectFolder
from pgoutput_etl.spark.platform import local_path
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS, time_of


@dataclass(frozen=True, slots=True)
class NewPart:
    """A part of a rewritten content, as the ledger records it: see FilePart."""

    file: int
    offset: int
    consumed: int
    prefix_hash: str | None
    head: str | None
    decompressed_size: int | None


@dataclass(frozen=True, slots=True)
class FileErasure:
    """before, after: SHA-256 of the file as it is stored. offsets: of the frames to erase, in the decompressed content
    before, and whether each is in a stream segment."""

    path: str
    framing: str
    before: str
    offsets: tuple[tuple[int, bool], ...]
    after: str = ""
    parts: tuple[NewPart, ...] = ()

    def erased(self, stored: bytes) -> tuple[bytes, Erased]:
        """The new file and its content, from the old file."""
        done = erase(decompress(stored, self.path), Framing(self.framing), dict(self.offsets))
        return compress_like(stored, self.path, done.data), done

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> FileErasure:
        parts = tuple(NewPart(**part) for part in fields["parts"])
        return cls(**{**fields, "offsets": tuple((o, s) for o, s in fields["offsets"]), "parts": parts})


def plan_files(archive: DeltaArchive, offsets: Mapping[int, Mapping[int, bool]]) -> list[FileErasure]:
    """The landed files with changes to erase. offsets: by the number of a part. Raises ArchiveError for one that has
    not been read as it is now, or that a receiver may still write."""
    known = archive.prior_state
    of_content: dict[int, dict[int, bool]] = {}
    for number, own in offsets.items():
        of_content.setdefault(known.roots[number], {}).update(own)
    files, planned_roots = [], set[int]()
    for path, root in contents(archive).items():
        if root in of_content:
            parts = {number: part for number, part in known.parts.items() if known.roots[number] == root}
            if any(part.unfinished for part in parts.values()):
                raise ArchiveError(
                    f"{path}: expected a file that no receiver writes to, found one that ends within a message: let "
                    "the receiver begin another file, and run jobs/apply.py"
                )
            framing = next(part.framing for part in parts.values() if part.framing)
            stored = read_file(archive, path)
            planned = FileErasure(path, framing or "", _digest(stored), tuple(of_content[root].items()))
            new, done = planned.erased(stored)
            files.append(replace(planned, after=_digest(new), parts=tuple(_new_parts(parts, done))))
            planned_roots.add(root)
    for root in of_content.keys() - planned_roots:
        raise ArchiveError(
            f"{known.names[root]}: expected a file that has been applied as it is now: run jobs/apply.py first"
        )
    return files


def _new_parts(parts: Mapping[int, FilePart], done: Erased) -> Iterator[NewPart]:
    hashes, heads = Hashes(done.data), heads_of(done.data)
    for number, part in sorted(parts.items()):
        consumed = done.moved(part.consumed)
        yield NewPart(
            number,
            done.moved(part.offset),
            consumed,
            None if part.prefix_hash is None else hashes.of(consumed),
            None if part.head is None else head_of(consumed, heads),
            None if part.decompressed_size is None else len(done.data),
        )


def contents(archive: DeltaArchive) -> dict[str, int]:
    """The paths of landed files that have been applied as they are now, each with the number of its content's first
    part."""
    known = archive.prior_state
    landed = archive.landing.listing().files()
    return {file.path: known.roots[known.by_path[file.path][0]] for file in landed if is_unchanged(file, known)}


def read_file(archive: DeltaArchive, path: str) -> bytes:
    """Raises ArchiveError if the file is gone."""
    try:
        rows = archive.spark.read.format("binaryFile").load(literal_paths([path])).select("content").collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise ArchiveError(f"{path} no longer exists, but an erasure has to rewrite it") from None
    return bytes(rows[0]["content"])


def write_file(archive: DeltaArchive, path: str, content: bytes) -> None:
    """Readers see the old file or the new one."""
    local = local_path(archive.spark, path)
    if local is not None:
        replace_file(Path(local), content)
        Path(local).with_name(f".{Path(local).name}.crc").unlink(
            missing_ok=True
        )  # Hadoop's checksum of the old content
    else:
        folder, _, name = path.rpartition("/")
        ObjectFolder(archive.spark, folder).replace(name, content)


def rewrite(archive: DeltaArchive, files: Iterable[FileErasure]) -> None:
    """Rewrites the files that have not been, and records all of them. Raises ArchiveError for a file with other
    content."""
    files = list(files)
    for file in files:
        stored = read_file(archive, file.path)
        if _digest(stored) == file.before:
            write_file(archive, file.path, file.erased(stored)[0])
        elif _digest(stored) != file.after:
            raise ArchiveError(f"{file.path}: expected the file as it was when the erasure began, found other content")
    _record(archive, files)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


_FIELDS = ("offset", "consumed", "decompressed_size", "size", "prefix_hash", "head", "modified")

_RECORD = pa.schema(
    [
        *((name, pa.int64()) for name in ("file", "offset", "consumed", "decompressed_size", "size")),
        *((name, pa.string()) for name in ("prefix_hash", "head")),
        ("modified", pa.timestamp("us", tz="UTC")),
    ]
)


def _record(archive: DeltaArchive, files: Collection[FileErasure]) -> None:
    """Updates the ledger's `files`."""
    if not files:
        return
    landed = {file.path: file for file in archive.landing.listing().files()}
    rows = {}
    for file in files:
        for new in file.parts:
            part = archive.prior_state.parts[new.file]
            stored = landed[file.path] if part.path == file.path else part
            modified = time_of(stored.modified - POSTGRES_EPOCH_MICROSECONDS)
            if new.file not in rows or part.path == file.path:  # a copy of the file has the same parts
                rows[new.file] = {**asdict(new), "size": stored.size, "modified": modified}
    source = frame(archive.spark, pa.Table.from_pylist(list(rows.values()), _RECORD)).alias("s")
    target = delta_table(archive.spark, archive.ledger.path("files")).alias("t")
    is_own = (F.col("t.file") == F.col("s.file")) & (F.col("t.source") == archive.ledger.source)
    target.merge(source, is_own).whenMatchedUpdate(set={name: F.col(f"s.{name}") for name in _FIELDS}).execute()
