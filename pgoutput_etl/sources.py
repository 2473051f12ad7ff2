"""Which landed files a run reads, and in which order."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.sql import SparkSession

from pgoutput_etl.config import Config
from pgoutput_etl.errors import RunError
from pgoutput_etl.spark import LandedFile, check_sizes, list_landing

_DIGITS = re.compile(r"(\d+)")


def natural_order(path: str) -> tuple[tuple[int, int, str], ...]:
    """A key to sort paths by: runs of digits count as numbers, so that 9.bin comes before 10.bin."""
    parts = _DIGITS.split(path)
    return tuple((0, int(part), part) if i % 2 else (1, 0, part) for i, part in enumerate(parts))


def new_files(
    landed: list[LandedFile], known: Mapping[str, tuple[int, int]], first_number: int
) -> dict[int, LandedFile]:
    """The files that no batch has read, numbered on in natural order. `known`: path -> number and size.

    Raises RunError for a file that is not as it was when it was read, and for a new one that belongs before one that
    was read already: what it holds would come too late.
    """
    for file in landed:
        number_and_size = known.get(file.path)
        if number_and_size is not None and number_and_size[1] != file.size:
            raise RunError(
                f"{file.path} has {file.size:,} bytes, and had {number_and_size[1]:,} when it was read. Land finished "
                "files only: what was added to it can't be told from what was changed yet"
            )
    new = sorted((file for file in landed if file.path not in known), key=lambda f: natural_order(f.path))
    newest = max(known, key=natural_order, default=None)
    if new and newest is not None and natural_order(new[0].path) < natural_order(newest):
        raise RunError(
            f"{new[0].path} is new, but belongs before {newest}, which was read already: its transactions would come "
            "too late. Give new files names that sort behind the older ones"
        )
    return dict(enumerate(new, start=first_number))


def files_to_read(spark: SparkSession, config: Config, known: Mapping[str, tuple[int, int]]) -> dict[int, LandedFile]:
    """Raises ConfigError, RunError, or ArchiveError for a file too large to carry."""
    landed = list_landing(spark, config.source.landing)
    first_number = 1 + max((number for number, _ in known.values()), default=-1)
    files = new_files(landed, known, first_number)
    check_sizes(spark, files.values())
    return files
