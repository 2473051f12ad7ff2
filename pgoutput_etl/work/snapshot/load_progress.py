"""Reports the progress of loading a server's tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

from pgoutput_etl.console import Progress, duration
from pgoutput_etl.postgres import queries

_EVERY = 30.0  # seconds


@dataclass(slots=True)
class LoadProgress:
    """total: bytes of all tables on the server. ask: runs a query on the server while others read."""

    total: int
    ask: Callable[[str], Sequence[dict[str, Any]]]
    progress: Progress
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    read_since: float = 0

    @contextmanager
    def reading(self, what: str, rows: int | None, size: int) -> Iterator[None]:
        """Within the context, COPY reads tables. rows: approximate number, None if unknown. size: their bytes."""
        self.progress(f"reading {what}: {f'about {rows:,} rows, ' if rows else ''}{_megabytes(size)}")
        self.read_since = time.monotonic()
        copied, is_read = dict[tuple[int, str], int](), Event()

        def watch() -> None:
            while not is_read.wait(_EVERY):
                try:
                    self.ask("SELECT pg_catalog.pg_stat_clear_snapshot()")
                    copied.update({(row["pid"], row["query"]): row["rows"] for row in self.ask(queries.COPIED)})
                except Exception:  # noqa: BLE001  # before PostgreSQL 14, there is no such view; the rows are read anyway
                    return
                count = sum(copied.values())
                self._report(f"{count:,} rows so far", size * min(count / rows, 1) if rows else None)

        thread = Thread(target=watch, name="load progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_read.set()
            thread.join()
        self.done += size

    def report(self, rows: int | None) -> None:
        """Prints the last read's rows and rate, and the time left. rows: number read last; None if unknown."""
        seconds = time.monotonic() - self.read_since
        counted = "read" if rows is None else f"read {rows:,} rows"
        rate = "" if rows is None else f", {rows / seconds:,.0f} per second"
        self._report(f"{counted} in {seconds:.1f} s{rate}", 0)

    def _report(self, text: str, beside: float | None) -> None:
        """beside: bytes read so far in addition to finished tables; without them, nothing is estimated."""
        if beside is None:
            self.progress(text)
            return
        done, seconds = self.done + beside, time.monotonic() - self.began
        left = f", about {duration((self.total - done) * seconds / done)} left" if done else ""
        of_all = f"{_megabytes(done)} of {_megabytes(self.total)}, {_megabytes(done / seconds)} per second"
        self.progress(f"{text}; {of_all}{left}")


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f} MB"
