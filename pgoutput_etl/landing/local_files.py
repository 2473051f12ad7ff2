"""Lists the plain files in local folders as Spark does, and identifies everything else among them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.landing.file_index import Listing
from pgoutput_etl.landing.fingerprint import LandedFile
from pgoutput_etl.plain_file import not_plain, outside

_Found = tuple[str, os.stat_result]


class LocalFiles:
    """Collects files by path. A folder or file that the user names may be a link, but nothing below it or matched by a
    glob may be."""

    def __init__(self) -> None:
        self._files: dict[str, LandedFile] = {}
        self._others: dict[str, str] = {}

    def add_named(self, path: str) -> None:
        """A folder or a file. Raises ConfigError if it doesn't exist, and ArchiveError for an unreadable folder."""
        if Path(path).is_dir():
            self._add(_below(path))
            return
        real = os.path.realpath(path) if Path(path).is_symlink() else path
        try:
            self._add([(real, os.lstat(real))])
        except OSError:
            raise ConfigError(f"{path} does not exist") from None

    def add_matched(self, paths: Iterable[str], root: str) -> None:
        """Adds folders and files that a glob matches. root: as in plain_file.root_of. Raises ArchiveError for an
        unreadable folder."""
        for path in paths:
            try:
                status = os.lstat(path)
            except FileNotFoundError:  # renamed meanwhile
                continue
            if not stat.S_ISLNK(status.st_mode) and not _is_below(path, root):
                self._others[path] = outside(path)
            elif stat.S_ISDIR(status.st_mode):
                self._add(_below(path))
            elif not is_hidden(Path(path).name):
                self._add([(path, status)])

    def _add(self, found: Iterable[_Found]) -> None:
        for path, status in found:
            if not _is_text(path):
                shown = os.fsencode(path).decode(errors="backslashreplace")
                self._others[shown] = f"{shown}: expected a name in UTF-8: rename the file"
            elif stat.S_ISREG(status.st_mode):
                self._files[path] = LandedFile(path, status.st_size, status.st_mtime_ns // 1000)
            else:
                self._others[path] = not_plain(path, status.st_mode)

    def listing(self) -> Listing:
        return Listing.of(self._files.values(), self._others)


def is_hidden(name: str) -> bool:
    """True for names that Spark (InMemoryFileIndex), and jobs without it, skip in a folder."""
    if name.startswith("_"):
        return "=" not in name and not name.startswith(("_metadata", "_common_metadata"))
    return name.startswith(".") or name.endswith("._COPYING_")


def _is_text(path: str) -> bool:
    """False for a name that isn't UTF-8, which Java couldn't open."""
    return not any("\udc80" <= character <= "\udcff" for character in path)


def _is_below(path: str, root: str) -> bool:
    """True if no folder in between is a link."""
    folder = Path(path).parent
    return Path(os.path.realpath(folder)) == Path(os.path.realpath(root), folder.relative_to(root))


def _below(path: str) -> Iterator[_Found]:
    """Everything that isn't hidden and isn't a folder. Links to folders are not followed."""
    for folder, folders, names in os.walk(path, onerror=_refuse):
        folders[:] = [name for name in folders if not is_hidden(name)]
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in (*links, *(name for name in names if not is_hidden(name))):
            file = os.path.join(folder, name)  # noqa: PTH118 # Path would take most of the time
            try:
                yield file, os.lstat(file)
            except FileNotFoundError:  # renamed meanwhile
                continue


def _refuse(error: OSError) -> None:
    """Raises an error for an unreadable folder, which may have files that come before others. A missing folder has just
    been removed."""
    if not isinstance(error, FileNotFoundError):
        raise ArchiveError(
            f"{error.filename}: can't be read: {error.strerror}. Until this is resolved, no files are applied, because "
            "later rows may depend on the files in it: let this job read the folder, or remove it"
        )
