"""A simulated landing folder, and the receiver that lands an archive in it."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from types import MappingProxyType

import pyarrow as pa

from pgoutput_etl.compression import MAX_SIZE, read_content
from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.ingest.executors import pack_blocks
from pgoutput_etl.ingest.scanned_blocks import ScannedBlocks
from pgoutput_etl.landing.file_index import Listing
from pgoutput_etl.landing.fingerprint import Hashes, KnownContents, LandedFile, ScanTask
from pgoutput_etl.landing.incremental_scan import scan_error, scan_part
from pgoutput_etl.masking.mask_rows import MaskingPolicy, withhold_rows
from pgoutput_etl.masking.policy import has_masks
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.blocks import BLOCK_SCHEMA, BlockKind
from pgoutput_etl.scan.message_row import ScanError
from tests.simulation.archives import Archive
from tests.simulation.scheduler import Scheduler, SimProcess
from tests.simulation.storage import Storage

CURRENT = "landing/w-current.bin"


@cache
def compressed(content: bytes) -> bytes:
    return gzip.compress(content, 1, mtime=0)


@dataclass(slots=True)
class Folder:
    """files: contents and times of the last changes, by path."""

    scheduler: Scheduler
    files: dict[str, tuple[bytes, float]] = field(default_factory=dict)

    @property
    def contents(self) -> dict[str, bytes]:
        return {path: content for path, (content, _) in self.files.items()}

    def put(self, path: str, content: bytes) -> None:
        self.files[path] = (content, self.scheduler.now)

    def remove(self, path: str) -> None:
        del self.files[path]

    def listing(self, first: str, last: str) -> list[LandedFile]:
        """A page of the listing, from one path to another."""
        return [
            LandedFile(path, len(content), int(at * 1e6))
            for path, (content, at) in sorted(self.files.items())
            if content and first <= path < last
        ]


@dataclass(slots=True)
class Receiver:
    """Lands the archive's messages. renames: its open file has a name of its own, as pg_recvlogical's. parts: of the
    open file, the numbers of messages and torn bytes. landed: the parts of every content that a file ever had, with
    the file's number. reached: by the SHA-256 of a file's content, and by its number, how many of the archive's
    messages were landed with it. erased: messages that an erasure replaced, by number. stale: SHA-256 of contents with
    such messages."""

    folder: Folder
    archive: Archive
    chance: Random
    renames: bool
    tears: float
    number: int = 1
    sent: int = 0
    broken: int = 0
    parts: tuple[int | bytes, ...] = ()
    landed: list[tuple[int, tuple[int | bytes, ...]]] = field(default_factory=list)
    reached: dict[str, dict[int, int]] = field(default_factory=dict)
    erased: dict[int, bytes] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)
    compressing: str | None = None

    @property
    def path(self) -> str:
        return CURRENT if self.renames else self._numbered(self.number)

    @property
    def is_done(self) -> bool:
        return self.sent == len(self.archive.frames)

    def _numbered(self, number: int) -> str:
        return f"landing/w-{number:04}.bin"

    def act(self) -> None:
        kind = self.chance.random()
        if self.compressing is not None:
            if kind < 0.7:
                self.folder.remove(self.compressing)
                self.compressing = None
        elif kind < 0.65:
            self.grow(self.chance.choice((1, 2, 5, 12)))
        elif kind < 0.85:
            self.rotate()
        else:
            self._compress()

    def grow(self, count: int) -> None:
        """Lands so many messages, or fewer, up to the end of a connection."""
        if self.sent in self.archive.breaks and self.sent != self.broken:
            self._break()
        end = min(
            b
            for b in (*self.archive.breaks, len(self.archive.frames))
            if b > self.sent or b == len(self.archive.frames)
        )
        numbers = range(self.sent, min(self.sent + count, end))
        if numbers:
            self.sent = numbers.stop
            self._append(*numbers)

    def _break(self) -> None:
        """The connection ends, maybe within a message."""
        self.broken = self.sent
        if self.parts and self.chance.random() < self.tears:
            frame = self.chance.choice(self.archive.frames)
            self._append(frame[: self.chance.randrange(1, len(frame))])
        if self.chance.random() < 0.5:
            self.rotate()

    def _append(self, *parts: int | bytes) -> None:
        """An erasure may have rewritten the file meanwhile."""
        before = self.folder.contents[self.path] if self.parts else b""
        self.parts += parts
        self.landed.append((self.number, self.parts))
        self._know(self.number, self.parts)
        self.folder.put(self.path, before + self._joined(parts))

    def _joined(self, parts: Iterable[int | bytes], erased: Mapping[int, bytes] = MappingProxyType({})) -> bytes:
        frames = self.archive.frames
        return b"".join(erased.get(part, frames[part]) if isinstance(part, int) else part for part in parts)

    def _know(self, number: int, parts: tuple[int | bytes, ...]) -> None:
        sent = max((part + 1 for part in parts if isinstance(part, int)), default=0)
        as_sent, now = (hashlib.sha256(self._joined(parts, own)).hexdigest() for own in ({}, self.erased))
        for content in (as_sent, now):
            self.reached.setdefault(content, {})[number] = sent
        if as_sent != now:
            self.stale.add(as_sent)

    def erase(self, frames: Iterable[bytes]) -> None:
        """frames: the first ones, as an erasure leaves them."""
        self.erased = {n: new for n, new in enumerate(frames) if new != self.archive.frames[n]}
        for number, parts in self.landed:
            self._know(number, parts)

    def sent_with(self, content: str, path: str, before: int) -> int:
        """How many messages were landed with a file; 0 if unknown. content: its SHA-256. Several files may have had the
        same few bytes: the path's number tells which one, or how many messages were sent before it."""
        by_number = self.reached.get(content, {})
        number = re.search(r"w-(\d+)", path)
        if number is not None and int(number[1]) in by_number:
            return by_number[int(number[1])]
        return min((sent for sent in by_number.values() if sent > before), default=0)

    def rotate(self) -> None:
        if not self.parts or (self.renames and self.is_done):
            return
        if self.renames:
            self.folder.put(self._numbered(self.number), self.folder.contents[CURRENT])
            self.folder.remove(CURRENT)
        self.number += 1
        self.parts = ()
        if self.renames:  # the receiver opens a new file of the same name at once
            self.grow(1)

    def _compress(self) -> None:
        complete = [self._numbered(n) for n in range(1, self.number) if self._numbered(n) in self.folder.files]
        if complete:
            path = self.chance.choice(complete)
            self.folder.put(f"{path}.gz", compressed(self.folder.files[path][0]))
            self.compressing = path


@dataclass(frozen=True, slots=True)
class SimLandingFolder:
    """landing_folder.LandingFolder, for one process."""

    config: Config
    folder: Folder
    storage: Storage
    process: SimProcess

    def lenient(self) -> SimLandingFolder:
        return self

    def listing(self) -> Listing:
        """In pages, as object stores list: between two of them, the receiver may rename its files."""
        return Listing.of(self._pages())

    def names(self) -> list[str]:
        return [file.path for file in self._pages()]

    def _pages(self) -> list[LandedFile]:
        page = f"landing/w-{self.storage.scheduler.chance.randrange(8):04}"
        files: list[LandedFile] = []
        for first, last in (("", page), (page, "~")):
            listed = partial(self.folder.listing, first, last)
            files += self.storage.read(self.process, "list landing", listed)
        return files

    def oversized(self, files: Iterable[LandedFile]) -> dict[str, ScanError]:  # noqa: ARG002
        return {}

    def scan(
        self, tasks: Mapping[str, ScanTask], known: KnownContents, policy: MaskingPolicy | None = None
    ) -> ScannedBlocks:
        withhold = withhold_rows if has_masks(self.config) else None
        mask = withhold if policy is None else policy.mask
        scanned = self._scanned(tasks, known)
        batches = pack_blocks(scanned if mask is None else map(mask, scanned), BlockKind.CHANGE)
        return ScannedBlocks(None, local=pa.Table.from_batches(batches, BLOCK_SCHEMA))

    def _scanned(self, tasks: Mapping[str, ScanTask], known: KnownContents) -> Iterator[pa.RecordBatch]:
        for path, task in tasks.items():
            content = self.read(path)
            if content is None:
                raise ArchiveError(f"{path}: it can't be read: it no longer exists, or this job may not read it")
            try:
                yield from scan_part(path, content, task, known, Framing.AUTO, True).batches
            except ArchiveError as error:
                yield scan_error(error).note(task.number)

    def find(self, paths: list[str], known: KnownContents) -> Mapping[int, Collection[str]]:
        matches: dict[int, list[str]] = {}
        for path in paths:
            try:
                match = known.match(path, Hashes(self.content(path)))
            except ArchiveError:
                continue
            if match.prefix is not None:
                matches.setdefault(match.prefix.number, []).append(path)
        return matches

    def content(self, path: str) -> bytes:
        stored = self.read(path)
        if stored is None:
            raise ArchiveError(f"{path}: it no longer exists")
        return read_content(stored, path, MAX_SIZE).data

    def read(self, path: str) -> bytes | None:
        return self.storage.read(self.process, f"read {path}", lambda: self.folder.files.get(path, (None,))[0])
