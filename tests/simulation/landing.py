"""A simulated landing folder, and the receiver that lands an archive in it."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from random import Random

import pyarrow as pa

from pgoutput_etl.compression import MAX_SIZE, read_content
from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.ingest.executors import pack_blocks
from pgoutput_etl.ingest.scanned_blocks import ScannedBlocks
from pgoutput_etl.landing.file_index import Listing
from pgoutput_etl.landing.fingerprint import Hashes, KnownContents, LandedFile, ScanTask
from pgoutput_etl.landing.incremental_scan import scan_error, scan_part
from pgoutput_etl.masking.mask_rows import MaskingPolicy
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.blocks import BLOCK_SCHEMA, BlockKind
from tests.simulation.archives import Archive
from tests.simulation.scheduler import Scheduler, SimProcess
from tests.simulation.storage import Storage

CURRENT = "landing/w-current.bin"


@cache
def compressed(content: bytes) -> bytes:
    return gzip.compress(content, 1, mtime=0)


@dataclass(slots=True)
class Folder:
    """contents: by path. _listed: what listings show of a path, each from a time on; a size of None: nothing."""

    scheduler: Scheduler
    chance: Random
    lag: float
    contents: dict[str, bytes] = field(default_factory=dict)
    _listed: dict[str, list[tuple[float, int | None, int]]] = field(default_factory=dict)

    def put(self, path: str, content: bytes) -> None:
        self.contents[path] = content
        self._show(path, len(content))

    def remove(self, path: str) -> None:
        del self.contents[path]
        self._show(path, None)

    def _show(self, path: str, size: int | None) -> None:
        now = self.scheduler.now
        after = self.chance.random() * 90 if self.chance.random() < self.lag else 0
        self._listed.setdefault(path, []).append((now + after, size, int(now * 1e6)))

    def listing(self) -> list[LandedFile]:
        files = []
        for path, states in self._listed.items():
            visible = [state for state in states if state[0] <= self.scheduler.now]
            if visible and visible[-1][1]:
                files.append(LandedFile(path, visible[-1][1], visible[-1][2]))
        return files

    def show_all(self) -> None:
        self._listed = {p: [(0.0, size, at)] for p, states in self._listed.items() for _, size, at in states[-1:]}


@dataclass(slots=True)
class Receiver:
    """Lands the archive's messages. renames: its open file has a name of its own, as pg_recvlogical's. reached: by the
    SHA-256 of a file's content so far, the number of the archive's messages that were landed with it."""

    folder: Folder
    archive: Archive
    chance: Random
    renames: bool
    tears: float
    number: int = 1
    sent: int = 0
    content: bytes = b""
    reached: dict[str, int] = field(default_factory=dict)
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
        elif kind < 0.55:
            self.grow(self.chance.choice((1, 2, 5, 12)))
        elif kind < 0.8:
            self.rotate()
        elif kind < 0.8 + self.tears and self.archive.starts and not self.is_done:
            self._tear()
        else:
            self._compress()

    def grow(self, count: int) -> None:
        frames = self.archive.frames[self.sent : self.sent + count]
        if not frames:
            return
        self.content += b"".join(frames)
        self.sent += len(frames)
        self._put()

    def _put(self) -> None:
        self.reached[hashlib.sha256(self.content).hexdigest()] = self.sent
        self.folder.put(self.path, self.content)

    def rotate(self) -> None:
        if not self.content:
            return
        if self.renames:
            self.folder.put(self._numbered(self.number), self.content)
            self.folder.remove(CURRENT)
        self.number += 1
        self.content = b""

    def _tear(self) -> None:
        """Dies within a message, and connects again: the server sends again from the beginning of a transaction."""
        frame = self.archive.frames[self.sent]
        self.content += frame[: self.chance.randrange(1, len(frame))]
        self._put()
        self.rotate()
        self.sent = max(start for start in (0, *self.archive.starts) if start <= self.sent)

    def _compress(self) -> None:
        complete = [self._numbered(n) for n in range(1, self.number) if self._numbered(n) in self.folder.contents]
        if complete:
            path = self.chance.choice(complete)
            self.folder.put(f"{path}.gz", compressed(self.folder.contents[path]))
            self.compressing = path


@dataclass(frozen=True, slots=True)
class SimLandingFolder:
    """landing_folder.LandingFolder, for one process."""

    config: Config
    folder: Folder
    storage: Storage
    process: SimProcess

    def listing(self) -> Listing:
        return self.storage.read(self.process, "list landing", lambda: Listing.of(self.folder.listing()))

    def names(self) -> list[str]:
        return self.storage.read(self.process, "list names", lambda: [file.path for file in self.folder.listing()])

    def check_sizes(self, files: Iterable[LandedFile]) -> None: ...

    def scan(
        self, tasks: Mapping[str, ScanTask], known: KnownContents, policy: MaskingPolicy | None = None
    ) -> ScannedBlocks:
        assert policy is None
        batches = pack_blocks(self._scanned(tasks, known), BlockKind.CHANGE)
        return ScannedBlocks(None, local=pa.Table.from_batches(batches, BLOCK_SCHEMA))

    def _scanned(self, tasks: Mapping[str, ScanTask], known: KnownContents) -> Iterator[pa.RecordBatch]:
        for path, task in tasks.items():
            content = self._read(path)
            if content is None:
                raise ArchiveError(f"{path}: it can't be read: it no longer exists, or this job may not read it")
            try:
                yield from scan_part(path, content, task, known, Framing.AUTO, True).batches
            except ArchiveError as error:
                yield scan_error(error).note(task.number)

    def find(self, paths: list[str], known: KnownContents) -> Mapping[int, Collection[str]]:
        matches: dict[int, list[str]] = {}
        for path in paths:
            content = self._read(path)
            if content is None:
                continue
            try:
                match = known.match(path, Hashes(read_content(content, path, MAX_SIZE).data))
            except ArchiveError:
                continue
            if match.prefix is not None:
                matches.setdefault(match.prefix.number, []).append(path)
        return matches

    def _read(self, path: str) -> bytes | None:
        return self.storage.read(self.process, f"read {path}", lambda: self.folder.contents.get(path))
