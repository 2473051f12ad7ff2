"""Recognizes work so small that the JVM ends before its optimizing compiler and parallel collector pay off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pgoutput_etl.config.object_storage import place_of
from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import PgoutputEtlError

_BYTES = 1 << 24  # total size of the files as landed

_ROWS = 1_000_000  # in all tables; a MERGE may read all of them


def is_light(config: Config, is_whole: bool = False) -> bool:
    """True if few bytes landed since the last batch and all tables together have few rows. False if checking this
    without Spark isn't quick: only local storage is checked. is_whole: counts all bytes of the archive."""
    try:
        ledger, landing = place_of(config.state.root, {}, "state.root"), place_of(config.source.landing, {}, "landing")
        if config.spark.get("spark.remote") or ledger.s3 is not None or landing.s3 is not None:
            return False
        begun = Path(ledger.path, "batches", "_delta_log")
        since = max((path.stat().st_mtime for path in begun.glob("*.json")), default=0.0)
        landed = sum(file.st_size for file in _files(landing.path) if is_whole or file.st_mtime >= since)
        return landed <= _BYTES and (not since or has_few_rows(config))
    except (OSError, PgoutputEtlError):
        return False


is_small = partial(is_light, is_whole=True)


def has_few_rows(config: Config) -> bool:
    """True if all tables together have few rows. False if checking this without Spark isn't quick."""
    try:
        ledger = place_of(config.state.root, {}, "state.root")
        return not config.spark.get("spark.remote") and ledger.s3 is None and _stored_rows(config) <= _ROWS
    except (OSError, PgoutputEtlError):
        return False


def _files(folder: str) -> Iterator[os.stat_result]:
    """Raises OSError, including for a glob."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry.path)
            else:
                yield entry.stat()


def _stored_rows(config: Config) -> int:
    from pgoutput_etl.ledger.reader import LedgerReader  # takes a second to import

    reader = LedgerReader.of(config)
    last = reader.rows("batches", ("status", "tables"), reader.last_done())
    return sum(table["rows"] or 0 for row in last if row["status"] == "done" for table in row["tables"] or ())
