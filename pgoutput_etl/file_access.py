"""Who may read local files: everybody, or only this user and a configured group."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


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
        """Leaves a file of another user, and one that is deleted meanwhile, as it is."""
        with suppress(FileNotFoundError, PermissionError):
            stat = path.stat(follow_symlinks=False)
            mode = self.folder_mode if path.is_dir() else self.file_mode
            if self.group is not None and stat.st_gid != self.group:
                os.chown(path, -1, self.group)
            if stat.st_mode & 0o777 != mode:
                path.chmod(mode)

    def give_all(self, folder: Path) -> None:
        """For everything below the folder, too: Spark and delta-rs let everybody read what they write."""
        self.give(folder)
        for parent, folders, files in os.walk(folder):
            for name in (*folders, *files):
                if not Path(parent, name).is_symlink():
                    self.give(Path(parent, name))


# For files with rows' values.
PRIVATE = Access(0o600, 0o700)

# For files without values, which other programs read.
PUBLIC = Access(0o644, 0o755)
