"""Determines who may read local files: everybody, or only this user and a configured group."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@contextmanager
def _where_supported() -> Iterator[None]:
    """Ignores errors of file systems without permissions, such as FUSE mounts of object storage."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOSYS):
            raise


@dataclass(frozen=True, slots=True)
class Access:
    """Permissions of files and folders. group: its ID; None for the process's own group."""

    file_mode: int
    folder_mode: int
    group: int | None = None

    @classmethod
    def of_group(cls, group: int) -> Access:
        return cls(0o640, 0o750, group)

    def make_folder(self, folder: Path) -> None:
        """Creates the folder, or changes its permissions. Raises OSError."""
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                folder.mkdir(0o700)
        self.give(folder)

    def give(self, path: Path) -> None:
        """Sets a file's permissions, unless it belongs to another user or has just been deleted."""
        with suppress(FileNotFoundError, PermissionError), _where_supported():
            stat = path.stat(follow_symlinks=False)
            mode = self.folder_mode if path.is_dir() else self.file_mode
            if self.group is not None and stat.st_gid != self.group:
                try:
                    os.chown(path, -1, self.group)
                except PermissionError:  # as in a sandbox without this call: the group gets no access
                    mode &= 0o700
            if stat.st_mode & 0o777 != mode:
                path.chmod(mode)

    def give_all(self, folder: Path) -> None:
        """Like `give`, for everything below the folder: everybody can read what Spark and delta-rs write."""
        self.give(folder)
        for parent, folders, files in os.walk(folder):
            for name in (*folders, *files):
                if not Path(parent, name).is_symlink():
                    self.give(Path(parent, name))


# For files with values of rows.
PRIVATE = Access(0o600, 0o700)

# For files without values, which other programs read.
PUBLIC = Access(0o644, 0o755)
