"""The offset of `spark.readStream.format("pgoutput")`: what a stream has returned so far, stored as JSON in its
checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pgoutput_etl.compression import read_content
from pgoutput_etl.console import counted
from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.inspection.archive import Inspection
from pgoutput_etl.landing.fingerprint import Hashes, uncompressed_name
from pgoutput_etl.lsn import format_lsn, parse_lsn

_VERSION = 1


@dataclass(frozen=True, slots=True)
class StreamedFile:
    """A file of an inspected archive. size: decompressed bytes of its whole messages. hash: their SHA-256."""

    path: str
    size: int
    hash: str


@dataclass(frozen=True, slots=True)
class StreamedFiles:
    """The files that count, in order. reread: index of the first file with part of a transaction that is open at the
    end of the last file; the last file's index if no transaction is open. last_lsn: of the last commit."""

    files: tuple[StreamedFile, ...]
    reread: int
    last_lsn: int

    @classmethod
    def of(cls, inspection: Inspection) -> StreamedFiles:
        scans, numbers = inspection.scans, sorted(inspection.scans)
        files = (StreamedFile(inspection.paths[n], scans[n].consumed, scans[n].prefix_hash or "") for n in numbers)
        is_open = {number for outcome in inspection.assembled.open for number, _ in outcome.fragments}
        last = len(numbers) - 1
        reread = next((index for index, number in enumerate(numbers) if number in is_open), last)
        return cls(tuple(files), reread, inspection.assembled.assembly.last_commit_lsn)


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """lsn: every commit through it has been returned, and none after it. file: the last file, without a compression
    suffix. size, reread: as in StreamedFiles. digest: SHA-256 of the contents from `reread` on. before: number of files
    before the last one."""

    lsn: int = 0
    file: str = ""
    size: int = 0
    reread: str = ""
    digest: str = ""
    before: int = 0

    @classmethod
    def of(cls, streamed: StreamedFiles, lsn: int) -> StreamOffset:
        """The end of an archive. lsn: as in the class."""
        if not streamed.files:
            return cls()
        needed = streamed.files[streamed.reread :]
        names = [uncompressed_name(file.path) for file in needed]
        digest = _digest(file.hash for file in needed)
        return cls(lsn, names[-1], needed[-1].size, names[0], digest, len(streamed.files) - 1)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> StreamOffset:
        """Raises ConfigError for an offset from another version."""
        if values.get("version") != _VERSION:
            raise ConfigError(
                f"checkpoint: expected an offset of version {_VERSION}, found {values.get('version')}: "
                "use the version of pgoutput-etl that wrote it, or a new checkpoint"
            )
        own = {name: value for name, value in values.items() if name != "version"}
        return cls(**{**own, "lsn": parse_lsn(own["lsn"])})

    def to_json(self) -> dict[str, Any]:
        return {"version": _VERSION, **asdict(self), "lsn": format_lsn(self.lsn)}

    def check(self, files: Sequence[StreamedFile], read: Callable[[str], bytes]) -> None:
        """Raises ArchiveError if the archive no longer has the files that the stream still needs, unchanged. read:
        returns a file's stored bytes."""
        if not self.file:
            return
        indexes = {uncompressed_name(file.path): index for index, file in enumerate(files)}
        for name in (self.reread, self.file):
            if name not in indexes:
                raise ArchiveError(f"{name}: the stream has read it and still needs it, but it is missing: put it back")
        first, last = indexes[self.reread], indexes[self.file]
        if last > self.before:
            raise ArchiveError(
                f"{self.file}: expected {counted(self.before, 'file')} or fewer before it, as the stream has read, "
                f"found {last:,}: a file landed late, and the stream can't return its changes. Begin a new checkpoint"
            )
        found = _digest([*(file.hash for file in files[first:last]), _beginning(files[last], self.size, read)])
        if found != self.digest:
            others = "" if first == last else f", and the files from {self.reread} on"
            raise ArchiveError(
                f"{files[last].path}: the stream has read other contents of its first {self.size:,} bytes{others}: "
                f"expected the SHA-256 {self.digest[:16]}…, found {found[:16]}…. Put the files back"
            )


def _beginning(file: StreamedFile, size: int, read: Callable[[str], bytes]) -> str:
    """The SHA-256 of the first `size` bytes."""
    if file.size == size:
        return file.hash
    # It has grown, or its end is read differently now that another file follows.
    data = read_content(read(file.path), file.path).data
    if len(data) < size:
        raise ArchiveError(
            f"{file.path}: expected at least {size:,} bytes, as the stream has read, found {len(data):,}: put it back"
        )
    return Hashes(data).of(size)


def _digest(hashes: Iterable[str]) -> str:
    return hashlib.sha256("".join(hashes).encode()).hexdigest()
