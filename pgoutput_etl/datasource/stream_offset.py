"""The offset of `spark.readStream.format("pgoutput")`: what a stream has returned so far, as JSON in its checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pgoutput_etl.compression import read_content
from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.inspection.archive import Inspection
from pgoutput_etl.landing.fingerprint import Hashes, uncompressed_name
from pgoutput_etl.lsn import format_lsn, parse_lsn

_VERSION = 1


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """lsn: every commit through it has been returned, and none after it. file, size: the last file, without a suffix of
    compression, and its whole messages in decompressed bytes. reread: the first file with a part of a transaction that
    is open at the end of the last one. digest: SHA-256 of the contents from `reread` on. before: the number of files
    before the last one."""

    lsn: int = 0
    file: str = ""
    size: int = 0
    reread: str = ""
    digest: str = ""
    before: int = 0

    @classmethod
    def of(cls, inspection: Inspection, lsn: int) -> StreamOffset:
        """The end of an archive. lsn: see above."""
        numbers = sorted(inspection.paths)
        if not numbers:
            return cls()
        last, scans = numbers[-1], inspection.scans
        open_files = (file for outcome in inspection.assembled.open for file, _ in outcome.fragments)
        reread = min((file for file in open_files if file in inspection.paths), default=last)
        names = (uncompressed_name(inspection.paths[number]) for number in (last, reread))
        last_hash = scans[last].prefix_hash or ""
        digest = _digest(inspection, reread, last, last_hash)
        file, reread_name = names
        return cls(lsn, file, scans[last].consumed, reread_name, digest, len(numbers) - 1)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> StreamOffset:
        """Raises ConfigError for the offset of another version."""
        if values.get("version") != _VERSION:
            raise ConfigError(
                f"checkpoint: expected an offset of version {_VERSION}, found {values.get('version')}: "
                "use the version of pgoutput-etl that wrote it, or a new checkpoint"
            )
        own = {name: value for name, value in values.items() if name != "version"}
        return cls(**{**own, "lsn": parse_lsn(own["lsn"])})

    def to_json(self) -> dict[str, Any]:
        return {"version": _VERSION, **asdict(self), "lsn": format_lsn(self.lsn)}

    def check(self, inspection: Inspection, read: Callable[[str], bytes]) -> None:
        """Raises ArchiveError if the archive no longer has the files that the stream still needs, as they were. read:
        returns a file's stored bytes."""
        if not self.file:
            return
        numbers = {uncompressed_name(path): number for number, path in sorted(inspection.paths.items())}
        for name in (self.reread, self.file):
            if name not in numbers:
                raise ArchiveError(f"{name}: the stream has read it and still needs it, but it is missing: put it back")
        reread, last = numbers[self.reread], numbers[self.file]
        before = sum(number < last for number in inspection.paths)
        if before > self.before:
            raise ArchiveError(
                f"{self.file}: expected at most {self.before:,} files before it, as the stream has read, found "
                f"{before:,}: a file landed late, and the stream can't return its changes. Begin a new checkpoint"
            )
        size, found = self.size, inspection.scans[last].consumed
        path = inspection.paths[last]
        if found == size:
            last_hash = inspection.scans[last].prefix_hash or ""
        else:  # it has grown, or its end is read in another way since another file follows
            data = read_content(read(path), path).data
            found, last_hash = len(data), Hashes(data).of(size)
        if found < size:
            raise ArchiveError(
                f"{path}: expected at least {size:,} bytes, as the stream has read, found {found:,}: put it back"
            )
        if _digest(inspection, reread, last, last_hash) != self.digest:
            since = "" if reread == last else f", and the files from {self.reread} on,"
            raise ArchiveError(
                f"{path}: expected its first {size:,} bytes{since} as the stream has read them (SHA-256 "
                f"{self.digest[:16]}…), found others: put the files back"
            )


def _digest(inspection: Inspection, first: int, last: int, last_hash: str) -> str:
    """The SHA-256 of the hashes of some files. last_hash: the last one's."""
    digest = hashlib.sha256()
    for number, scan in sorted(inspection.scans.items()):
        if first <= number < last:
            digest.update((scan.prefix_hash or "").encode())
    digest.update(last_hash.encode())
    return digest.hexdigest()
