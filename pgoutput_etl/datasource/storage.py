"""Lists and reads an archive without Spark: local files, and files at any URL that fsspec supports.

A backend of fsspec finds its credentials as its documentation describes: in environment variables, in the machine's
role, or in fsspec's configuration files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.extras import installing
from pgoutput_etl.inspection.local_runner import is_local, list_local, read_local
from pgoutput_etl.landing.file_index import Listing
from pgoutput_etl.landing.fingerprint import LandedFile
from pgoutput_etl.landing.local_files import is_hidden
from pgoutput_etl.plain_file import is_pattern


@dataclass(frozen=True, slots=True)
class ArchiveStorage:
    """systems: fsspec's file systems, by the scheme of the files' URLs. Sent to executors."""

    systems: Mapping[str, Any]

    def read(self, path: str) -> bytes:
        """A file's stored bytes. Raises ArchiveError."""
        scheme, separator, _ = path.partition("://")
        if not separator:
            return read_local(path)
        try:
            content: bytes = self.systems[scheme].cat_file(path)
        except OSError as error:
            raise ArchiveError(f"{path}: can't be read: {type(error).__name__}") from None
        return content


def list_archive(paths: Iterable[str]) -> tuple[Listing, ArchiveStorage]:
    """The named files, all files below named folders, and all matches of globs, except hidden ones. Raises ConfigError
    for a path without a match."""
    files: dict[str, LandedFile] = {}
    not_plain: dict[str, str] = {}
    systems: dict[str, Any] = {}
    for path in paths:
        if is_local(path):
            # Executors may have another working folder.
            listing = list_local([path if path.startswith("file:") else os.path.abspath(path)])  # noqa: PTH100
            files |= {file.path: file for file in listing.files()}
            not_plain |= listing.not_plain
            continue
        system, root = _file_system(path)
        found = {file.path: file for file in _found(system, root)}
        if not found:
            raise ConfigError(f"{path} does not exist")
        files |= found
        systems |= {name.partition("://")[0]: system for name in found}
    return Listing.of(files.values(), not_plain), ArchiveStorage(systems)


def _file_system(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        system, root = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{url}: {error}. For URLs: {installing('storage')}, and fsspec's backend") from None
    return system, root


def _found(system: Any, root: str) -> Iterator[LandedFile]:
    for top in system.glob(root) if is_pattern(root) else [root]:
        for path, entry in system.find(top, detail=True).items():
            below = path.removeprefix(top).strip("/").split("/")
            if entry["type"] == "file" and not any(map(is_hidden, below)):
                yield LandedFile(system.unstrip_protocol(path), entry["size"], 0)
