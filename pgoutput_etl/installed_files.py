"""Files that belong to the package: in the clone or, without one, where the installation put them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from pgoutput_etl.errors import RunError

LANDING_SCRIPTS, SHOP_ARCHIVE = "landing", "shop"

# As in pyproject.toml's data-files.
_IN_CLONE = {LANDING_SCRIPTS: "conf/landing", SHOP_ARCHIVE: "notebooks/data/shop"}


def installed_file(folder: str, name: str) -> Path:
    """Raises RunError if the file is not there."""
    for path in installed_files(folder):
        if path.name == name:
            return path
    raise RunError(f"{_IN_CLONE[folder]}/{name} is not installed: run the job in a clone")


def installed_files(folder: str) -> Iterator[Path]:
    """folder: one of the constants above."""
    clone = Path(__file__).parents[1] / _IN_CLONE[folder]
    if clone.is_dir():
        yield from clone.iterdir()
        return
    try:
        installed = files("pgoutput-etl") or ()
    except PackageNotFoundError:
        return
    yield from (Path(str(file.locate())) for file in installed if file.parts[-3:-1] == ("pgoutput_etl", folder))
