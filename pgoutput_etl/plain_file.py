"""Opens files in local folders that other programs write to: only plain files, without following links or blocking."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pgoutput_etl.error_codes import ErrorCode
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.identifiers import is_within

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}

_OTHER_KIND = "something else"

_NOT_FOLLOWED = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EMLINK)


class PlainFileError(ArchiveError):
    """A name that doesn't belong to a plain file."""

    code = ErrorCode.SPECIAL_FILE


def not_plain(path: str, mode: int) -> str:
    """The error for a path that isn't a plain file. mode: from os.lstat."""
    kind = _KINDS.get(stat.S_IFMT(mode), _OTHER_KIND)
    return f"{path}: expected a plain file, found {kind}: put the file itself there, or remove this"


def outside(path: str) -> str:
    """The error for a path with a link among its folders."""
    return f"{path}: expected a plain file, found one that a symbolic link leads to: put the file itself there"


def outside_landing(path: str) -> str:
    """The error for an object whose name leads out of the landing folder."""
    return (
        f"{path}: expected a file below source.landing, found an object whose name there leads to this path: remove it"
    )


@contextmanager
def opened(path: str, root: str | None = None) -> Iterator[int]:
    """A file descriptor. root: the folder above the file that the user chose, below which no link is followed; None for
    the file's own folder.

    Raises PlainFileError, and OSError if the file can't be opened.
    """
    try:
        descriptor = os.open(path, _FLAGS) if root is None else _open_below(root, path)
    except OSError as error:
        if error.errno not in _NOT_FOLLOWED:
            error.filename = path  # below root, only the last component is known
            raise
        raise PlainFileError(_found_at(path)) from None
    try:
        if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
            raise PlainFileError(not_plain(path, mode))
        yield descriptor
    finally:
        os.close(descriptor)


def read(path: str, root: str | None = None, most: int | None = None) -> bytes:
    """The file's bytes. most: maximum size. Raises errors like `opened`, and ArchiveError for a larger file."""
    with opened(path, root) as descriptor:
        size = os.fstat(descriptor).st_size
        if most is not None and size > most:
            raise ArchiveError(f"{path} has {size:,} bytes, and at most {most:,} can be read. Land smaller files")
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            return file.readall()


def _open_below(root: str, path: str) -> int:
    *folders, name = Path(path).relative_to(root).parts
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in folders:
            inner = os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(name, _FLAGS, dir_fd=folder)
    finally:
        os.close(folder)


def _found_at(path: str) -> str:
    with suppress(OSError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            return not_plain(path, mode)
    return outside(path)


_WILDCARDS = frozenset("*?[{\\")


def is_pattern(path: str) -> bool:
    """True for a glob, as Hadoop reads it."""
    return not _WILDCARDS.isdisjoint(path)


def root_of(pattern: str) -> str:
    """The folder above everything that a path or glob matches: the part before the first wildcard; for a file, its
    folder."""
    parts = pattern.split("/")
    end = next((n for n, part in enumerate(parts) if is_pattern(part)), len(parts))
    folder = "/".join(parts[:end]) or "/"
    return folder if end < len(parts) or not Path(folder).is_file() else str(Path(folder).parent)


_STORAGE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?")  # scheme and bucket or host


def outside_root(paths: Iterable[str], landing: str) -> list[str]:
    """The listed paths that are not below the folder above everything that `landing` matches. Compares the parts after
    the storage's name, which a listing may spell differently. A relative `landing` can't be checked."""
    root = _within_storage(root_of(landing)) or "/"
    if not root.startswith("/"):
        return []
    return [path for path in paths if not is_within(_within_storage(path), root)]


def _within_storage(path: str) -> str:
    return re.sub("^//+", "/", _STORAGE.sub("", path, count=1))
