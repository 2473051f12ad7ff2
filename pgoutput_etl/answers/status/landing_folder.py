"""Lists the landing folder without Spark, but as Spark would, and finds the files that wait in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from posixpath import normpath
from urllib.parse import urlsplit

from pyarrow.fs import FileSelector, FileType

from pgoutput_etl.answers.status.report import WaitingFiles
from pgoutput_etl.config.object_storage import StorageFolder, place_of, without_secrets
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.inspection.local_runner import expand_braces, list_local
from pgoutput_etl.landing.file_index import FileIndex, Listing
from pgoutput_etl.landing.fingerprint import LandedFile
from pgoutput_etl.landing.known_files import KnownFiles, candidates, is_unchanged
from pgoutput_etl.landing.local_files import is_hidden
from pgoutput_etl.plain_file import outside_landing, outside_root

_MILLISECOND = 1000  # Hadoop's times have no microseconds


def list_files(landing: str, spark: Mapping[str, str]) -> Listing:
    """The files that a run would list, with the same paths. Raises ConfigError if nothing exists there, or RunError.

    spark: Spark's settings. Empty files are left out, as Spark does.
    """
    place = place_of(landing, spark, "source.landing")
    try:
        listing = _local_files(place.path) if place.s3 is None else _objects(place, landing)
    except ConfigError:
        raise ConfigError(f"source.landing: {landing} does not exist") from None
    except OSError as error:
        raise RunError(f"source.landing can't be listed: {without_secrets(str(error), place)}") from None
    return listing.with_content()


def _local_files(landing: str) -> Listing:
    is_volume = landing.startswith("/Volumes/") and "DATABRICKS_RUNTIME_VERSION" in os.environ
    absolute = os.path.abspath(landing)  # noqa: PTH100 # Spark does not resolve links
    return list_local([absolute]).under_uris("dbfs" if is_volume else "file")


def _objects(place: StorageFolder, landing: str) -> Listing:
    """The objects below a folder, or below matches of a glob, if Spark would read them by their names; with Spark's
    paths."""
    assert place.s3 is not None
    bucket = urlsplit(landing).netloc
    store, files = place.s3.file_system(bucket), list[LandedFile]()
    patterns = [pattern.rstrip("/") for pattern in expand_braces(place.path)]
    for folder in sorted({_folder_of(pattern) for pattern in patterns}):
        for found in store.get_file_info(FileSelector(folder, allow_not_found=True, recursive=True)):
            if found.type is FileType.File and _is_read(found.path, patterns):
                path = f"{landing.partition('://')[0]}://{normpath(found.path)}"
                modified = found.mtime_ns // 1000 // _MILLISECOND * _MILLISECOND
                files.append(LandedFile(path, found.size or 0, modified))
    if not files:
        raise ConfigError("")
    outside = {path: outside_landing(path) for path in outside_root((file.path for file in files), landing)}
    return Listing.of((file for file in files if file.path not in outside), outside)


def _folder_of(pattern: str) -> str:
    """The folder above the first path component that is a pattern."""
    parts = pattern.split("/")
    first = next((i for i, part in enumerate(parts) if any(c in part for c in "*?[")), len(parts))
    return "/".join(parts[:first])


def _is_read(path: str, patterns: Iterable[str]) -> bool:
    parts = path.split("/")
    for pattern in patterns:
        wanted = pattern.split("/")
        names = parts[len(wanted) :] or parts[-1:]
        matches = len(parts) >= len(wanted) and all(map(_matches, parts, wanted))
        if matches and not any(is_hidden(name) for name in names if name not in (".", "..")):
            return True
    return False


def _matches(part: str, pattern: str) -> bool:
    return part == pattern or fnmatchcase(part, pattern.replace("[^", "[!"))


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The files that a run would find. refused: the reasons, one per file. unread: files that are left for `backfill
    --from-quarantine`."""

    waiting: WaitingFiles
    refused: tuple[str, ...]
    unread: tuple[str, ...]

    @classmethod
    def of(cls, listing: Listing, index: FileIndex) -> FoundFiles:
        to_inspect = index.to_inspect(listing)
        known = index.known([file.path for file in to_inspect])
        waiting = [file for file in candidates(to_inspect, known).values() if not is_unchanged(file, known)]
        refused = (*(part.reason or part.path for part in index.refused(listing)), *listing.not_plain.values())
        left = listing.among(known.left_unread)
        return cls(_waiting(waiting, known), refused, tuple(sorted(left)))


def _waiting(files: list[LandedFile], known: KnownFiles) -> WaitingFiles:
    if not files:
        return WaitingFiles()
    before = {path: part.size for path, (_, part) in known.by_path.items()}
    sizes = (file.size - before.get(file.path, 0) for file in files)
    oldest = datetime.fromtimestamp(min(file.modified for file in files) / 1e6, timezone.utc)
    return WaitingFiles(len(files), sum(max(size, 0) for size in sizes), oldest.isoformat(timespec="seconds"))
