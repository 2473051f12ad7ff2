"""The benchmarks' archives, generated once under build/bench/corpora, and their expected tables.

Each has two nights: the first creates the tables, the second is measured. The generator computes the expected tables
from its own numbers, not from the archive.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.landing_files import Landed
from benchmarks.typed_columns import TableFiles

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/bench"
_VERSION = 4  # of the generators' output; a new version regenerates all archives

Parameters = Mapping[str, int | str]


@dataclass(frozen=True, slots=True)
class Corpus:
    """An archive on disk. first, second: the folders of its two nights."""

    name: str
    first: Path
    second: Path
    landed: Landed
    tables: tuple[TableFiles, ...]


# Writes the two nights and the expected tables into three folders; returns the size of the second night and the tables.
Generator = Callable[[Path, Path, Path], tuple[Landed, list[TableFiles]]]


def corpus(name: str, parameters: Parameters, generate: Generator) -> Corpus:
    """The archive with these parameters, generated unless it exists."""
    suffix = "-".join(f"{key}={value}" for key, value in parameters.items())
    folder = BUILD / "corpora" / f"{name}-{_VERSION}-{suffix}"
    manifest = folder / "manifest.json"
    first, second, expected = folder / "first", folder / "second", folder / "expected"
    if not manifest.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        landed, tables = generate(first, second, expected)
        manifest.write_text(json.dumps({"landed": asdict(landed), "tables": [asdict(table) for table in tables]}))
    values = json.loads(manifest.read_text())
    tables = [TableFiles(**{**table, "key": tuple(table["key"])}) for table in values["tables"]]
    return Corpus(name, first, second, Landed(**values["landed"]), tuple(tables))
