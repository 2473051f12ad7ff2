"""Folders for caches, so that processes don't repeat each other's work."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def cache_folders() -> list[Path]:
    """The folder named by NUMBA_CACHE_DIR, or else one next to the package and one of the user's. They may not
    exist."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(chosen) / __package__]
    folders = [Path(__file__).parent / "__pycache__"]
    with suppress(RuntimeError):  # no home
        home = os.environ.get("LOCALAPPDATA") if os.name == "nt" else os.environ.get("XDG_CACHE_HOME")
        folders.append((Path(home) if home else Path.home() / ".cache") / __package__)
    return folders
