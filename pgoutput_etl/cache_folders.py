"""The folders for caches of what each process would otherwise compute again."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def cache_folders() -> list[Path]:
    """The folder that NUMBA_CACHE_DIR names; otherwise, folders beside the package and of the user. They may not
    exist."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(chosen) / __package__]
    folders = [Path(__file__).parent / "__pycache__"]
    with suppress(RuntimeError):  # no home
        home = os.environ.get("LOCALAPPDATA") if os.name == "nt" else os.environ.get("XDG_CACHE_HOME")
        folders.append((Path(home) if home else Path.home() / ".cache") / __package__)
    return folders
