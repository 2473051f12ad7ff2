"""Rewrites landed files without the changes of erased rows, and records them in the ledger as the same files.

The plan has no values, so that a run that died can be finished from the ledger alone.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

from pgoutput_etl.compression import compress_like, decompress
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.file_access import PUBLIC
from pgoutput_etl.ingest import binary_files
from pgoutput_etl.landing.erasure import Erased, erase
from pgoutput_etl.landing.fingerprint import FilePart, Hashes, head_of, heads_of
from pgoutput_etl.landing.known_files import is_unchanged
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.replace_file import replace_file
from pgoutput_etl.spark.connect import frame
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
    """before, after: SHA-256 of the file as it is stored; size, new_size: its bytes. offsets: of the frames to erase,
    in the decompressed content before, and whether each is in a stream segment."""

    path: str
    framing: str
    before: str
    size: int
    offsets: tuple[tuple[int, bool], ...]
    after: str = ""
    new_size: int = 0
    parts: tuple[NewPart, ...] = ()

    def erased(self, stored: bytes, content: bytes) -> tuple[bytes, Erased]:
        """The new file and its content, from the old file. content: its bytes, decompressed."""
        done = erase(content, Framing(self.framing), dict(self.offsets))
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
    files, found = [], set[int]()
    for file in archive.landing.listing().files():
        if file.path not in known.by_path:
            continue
        number, last = known.by_path[file.path]
        if (root := known.roots[number]) in of_content:
            stored = read_file(archive, file.path, archive.config.source.landing)
            content = decompress(stored, file.path)
            if is_unchanged(file, known) or is_content_of(last, content):
                found.add(root)
                parts = {n: part for n, part in known.parts.items() if known.roots[n] == root}
                files += _planned(file.path, stored, content, parts, of_content[root])
    for root in of_content.keys() - found:
        raise ArchiveError(
            f"{known.names[root]}: expected a file that has been applied as it is now: run jobs/apply.py first"
        )
    return files


def is_content_of(part: FilePart, content: bytes) -> bool:
    """True if a file that was touched, or repaired and redriven, has the content that was applied."""
    return part.consumed == len(content) and part.prefix_hash == Hashes(content).of(part.consumed)


def _planned(
    path: str, stored: bytes, content: bytes, parts: Mapping[int, FilePart], offsets: Mapping[int, bool]
) -> list[FileErasure]:
    """Nothing for a copy of the content's beginning that has none of the changes. parts: of the content."""
    own = {number: part for number, part in parts.items() if part.consumed <= len(content)}
    if max(own.values(), key=lambda part: part.consumed).unfinished:
        raise ArchiveError(
            f"{path}: expected a file that no receiver writes to, found one that ends within a message: let the "
            "receiver begin another file, and run jobs/apply.py"
        )
    framing = next(part.framing for part in own.values() if part.framing)
    changes = tuple((offset, in_stream) for offset, in_stream in offsets.items() if offset < len(content))
    if not changes:
        return []
    planned = FileErasure(path, framing or "", digest(stored), len(stored), changes)
    new, done = planned.erased(stored, content)
    return [replace(planned, after=digest(new), new_size=len(new), parts=tuple(_new_parts(own, done)))]


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
            None if part.decompressed_size is None else done.moved(part.decompressed_size),
        )


def read_file(archive: DeltaArchive, path: str, landing: str | None = None) -> bytes:
    """landing: as in map_files. Raises ArchiveError if the file is gone, or not a plain file."""
    try:
        return binary_files.read_file(archive.spark, path, landing)
    except FileNotFoundError:
        raise ArchiveError(f"{path} no longer exists, but an erasure has to rewrite it") from None


def refuse_other_names(archive: DeltaArchive, path: str) -> None:
    """Raises ArchiveError for a local file with hard links: its other names would keep the old bytes."""
    local = local_path(archive.spark, path)
    if local is not None and (names := Path(local).lstat().st_nlink) > 1:
        raise ArchiveError(
            f"{path}: expected a file with one name, found one with {names:,} (hard links), and the others would keep "
            "the erased rows: remove them, and run again. To keep an old copy knowingly, copy the file in place first"
        )


def write_file(archive: DeltaArchive, path: str, content: bytes) -> None:
    """Readers see the old file or the new one. Raises ArchiveError for a file with hard links."""
    refuse_other_names(archive, path)
    local = local_path(archive.spark, path)
    if local is not None:
        replace_file(Path(local), content, PUBLIC)  # with the permissions that it has
        checksum = Path(local).with_name(f".{Path(local).name}.crc")  # Hadoop's, of the old content
        checksum.unlink(missing_ok=True)
    else:
        folder, _, name = path.rpartition("/")
        ObjectFolder(archive.spark, folder).replace(name, content)


_SETTLED = 60  # seconds without an append


def rewrite(archive: DeltaArchive, files: Iterable[FileErasure]) -> None:
    """Rewrites the files that have not been, and records all of them. What was appended since the erasure began stays,
    and is left to the next run of jobs/apply.py. Raises ArchiveError for a file with other content, or to which a
    receiver appends just now."""
    files = list(files)
    modified = {file.path: file.modified / 1e6 for file in archive.landing.listing().files()}
    for file in files:
        stored = read_file(archive, file.path, archive.config.source.landing)
        known, appended = stored[: file.size], stored[file.size :]
        if digest(known) == file.before:
            if appended and time.time() - modified.get(file.path, 0) < _SETTLED:
                raise ArchiveError(
                    f"{file.path}: expected a file that no receiver writes to, found one that grows: let the receiver "
                    f"begin another file, and run again after {_SETTLED} s"
                )
            new, _ = file.erased(known, decompress(known, file.path))
            write_file(archive, file.path, new + appended)
        elif digest(stored[: file.new_size]) != file.after:
            raise ArchiveError(f"{file.path}: expected the file as it was when the erasure began, found other content")
    _record(archive, files)


def digest(data: bytes) -> str:
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
            is_own = part.path == file.path
            modified = time_of((landed[file.path] if is_own else part).modified - POSTGRES_EPOCH_MICROSECONDS)
            if new.file not in rows or is_own:  # a copy of the file has the same parts
                size = file.new_size if is_own else part.size
                rows[new.file] = {**asdict(new), "size": size, "modified": modified}
    source = frame(archive.spark, pa.Table.from_pylist(list(rows.values()), _RECORD)).alias("s")
    target = archive.ledger.store.delta("files").alias("t")
    is_current = (F.col("t.source") == archive.ledger.source) & (F.col("t.batch") >= archive.last.since)
    target.merge(source, is_current & (F.col("t.file") == F.col("s.file"))).whenMatchedUpdate(
        set={name: F.col(f"s.{name}") for name in _FIELDS}
    ).execute()
