"""Rewrites landed files without the changes of erased rows, and records them in the ledger as the same files.

The plan contains no values, so an interrupted run can be finished from the ledger alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from pgoutput_etl.compression import compress_like, decompress
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.landing.erasure import Erased, erase
from pgoutput_etl.landing.fingerprint import FilePart, Hashes, head_of, heads_of
from pgoutput_etl.landing.known_files import is_unchanged
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS, time_of
from pgoutput_etl.work.erasure.stored_files import StoredFiles


@dataclass(frozen=True, slots=True)
class NewPart:
    """The part of a file after its rewrite, as recorded in the ledger: see FilePart."""

    file: int
    offset: int
    consumed: int
    prefix_hash: str | None
    head: str | None
    decompressed_size: int | None


@dataclass(frozen=True, slots=True)
class FileErasure:
    """before, after: SHA-256 of the stored file; size, new_size: its bytes. offsets: of the frames to erase, in the old
    decompressed content; True within a stream segment."""

    path: str
    framing: str
    before: str
    size: int
    offsets: tuple[tuple[int, bool], ...]
    after: str = ""
    new_size: int = 0
    parts: tuple[NewPart, ...] = ()

    def erased(self, stored: bytes, content: bytes) -> tuple[bytes, Erased]:
        """The new stored file and its content. content: the old stored file, decompressed."""
        done = erase(content, Framing(self.framing), dict(self.offsets))
        return compress_like(stored, self.path, done.data), done


def plan_files(stored: StoredFiles, offsets: Mapping[int, Mapping[int, bool]]) -> list[FileErasure]:
    """The landed files with changes to erase. offsets: by the number of a part. Raises ArchiveError for a file that has
    changed since it was read, or that a receiver may still write."""
    archive = stored.archive
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
            data = stored.read(file.path, archive.config.source.landing)
            content = decompress(data, file.path)
            if is_unchanged(file, known) or is_content_of(last, content):
                found.add(root)
                parts = {n: part for n, part in known.parts.items() if known.roots[n] == root}
                files += _planned(file.path, data, content, parts, of_content[root])
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
    """Empty for a copy of the content's beginning that ends before the changes. parts: the content's."""
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


_SETTLED = 60  # seconds without an append


def rewrite(stored: StoredFiles, files: Iterable[FileErasure]) -> None:
    """Rewrites the files that are not yet rewritten, and records all of them. Keeps bytes that were appended since the
    erasure began, for the next run of `apply`. Raises ArchiveError for a file that has other content or has just been
    appended to."""
    archive, files = stored.archive, list(files)
    modified = {file.path: file.modified / 1e6 for file in archive.landing.listing().files()}
    for file in files:
        data = stored.read(file.path, archive.config.source.landing)
        known, appended = data[: file.size], data[file.size :]
        if digest(known) == file.before:
            if appended and archive.ledger.machine.time() - modified.get(file.path, 0) < _SETTLED:
                raise ArchiveError(
                    f"{file.path}: expected a file that no receiver writes to, found one that grows: let the receiver "
                    f"begin another file, and run again after {_SETTLED} s"
                )
            new, _ = file.erased(known, decompress(known, file.path))
            stored.write(file.path, new + appended)
        elif digest(data[: file.new_size]) != file.after:
            raise ArchiveError(f"{file.path}: expected the file as it was when the erasure began, found other content")
    _record(stored, files)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _record(stored: StoredFiles, files: Collection[FileErasure]) -> None:
    """Updates the ledger's `files` table."""
    if not files:
        return
    archive = stored.archive
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
    stored.record([*rows.values()])
