"""Finds the smallest heap in which a night with one file of a given size succeeds, one task at a time.

With a heap that is too small, the JVM dies, fails, or collects garbage without end. Each attempt therefore has its own
process and a time limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context

from benchmarks.jobs import configured, run_job
from benchmarks.scenarios import scaled
from benchmarks.sessions import WORK, fresh, linked, session
from benchmarks.wide_corpus import wide

_MB_OF_FILE = (25, 100, 200, 400)
_ROWS_PER_MB = 900
_HEAPS = (512, 640, 768, 1024, 1280, 1536, 2048, 3072, 4096)  # MiB; Spark requires at least 450
_TIMEOUT = 300  # seconds


@dataclass(frozen=True, slots=True)
class LeastHeap:
    """file: MB. heap: the smallest tried heap that was enough, in MiB, or None. too_small: the largest that was not
    enough, or None."""

    file: float
    heap: int | None
    too_small: int | None


def measure_heap(scale: float, progress: Callable[[str], None]) -> list[LeastHeap]:
    results: list[LeastHeap] = []
    begin = 0  # a larger file needs at least the same heap
    for megabytes in _MB_OF_FILE:
        rows = scaled(megabytes * _ROWS_PER_MB, scale, 1000)
        size = max(path.stat().st_size for path in wide(rows, 1).second.iterdir()) / 1e6
        least = too_small = None
        for number, heap in enumerate(_HEAPS[begin:], begin):
            progress(f"a file of {size:,.0f} MB in a heap of {heap:,} MiB")
            if _is_enough(rows, heap):
                least, begin = heap, number
                break
            too_small = heap
        results.append(LeastHeap(size, least, too_small))
    return results


def _is_enough(rows: int, heap: int) -> bool:
    process = get_context("spawn").Process(target=_night, args=(rows, heap))
    process.start()
    process.join(_TIMEOUT)
    if process.is_alive():
        process.kill()  # its JVM ends too, as its standard input is closed
        process.join()
    return process.exitcode == 0


def _night(rows: int, heap: int) -> None:
    corpus = wide(rows, 1)
    work = fresh(WORK / "heap")
    linked(corpus.first, work / "landing")
    linked(corpus.second, work / "landing")
    with session(1, f"{heap}m") as spark:
        run_job(spark, configured(work / "landing", work / "tables"), lambda _: None)
