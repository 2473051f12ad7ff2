"""How fast the readable scanner is, against what memory allows, and where the time of a whole job goes.

    python -m benchmarks [--runs 5] [--job-runs 3] [--json]

Throughput is in bytes of decompressed archive. Machines differ, and so do minutes on one machine: read the ratios. The
archive fits into a processor's cache: memcpy is a ceiling that nothing which looks at the bytes comes near.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from pgoutput_etl.config import load_config
from pgoutput_etl.decode import decode
from pgoutput_etl.framing import Framing, frames
from pgoutput_etl.scan import scan_file
from pgoutput_etl.spark import start_session

ROOT = Path(__file__).parents[1]
# Protocol 1 alone, and whole slots: each begins outside any transaction, and so may follow on another in one file.
SLOTS = ("pg16/v1", "pg14/v1", "pg10/v1", "random16/v1")
LANDING = ROOT / "tests/data/random16/v2"


def corpus() -> bytes:
    files = [path for slot in SLOTS for path in sorted((ROOT / "tests/data" / slot).glob("*.gz"))]
    return b"".join(gzip.decompress(path.read_bytes()) for path in files)


def cut(data: bytes) -> list[bytes]:
    return [data[frame.start : frame.end] for frame in frames(data, Framing.COPYDATA)]


def seconds(work: Callable[[], object], runs: int) -> float:
    """The median of several runs, after one that isn't counted."""
    taken = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return median(taken[1:])


def decoding(runs: int) -> list[dict[str, float | str]]:
    data = corpus()
    messages = len(cut(data))
    fresh = memoryview(bytearray(len(data)))

    def memcpy() -> None:
        fresh[:] = data

    works: dict[str, Callable[[], object]] = {
        "memcpy, into memory in use": memcpy,
        "copy, into fresh memory": lambda: bytearray(data),
        "frames: cut into messages": lambda: cut(data),
        "+ decode: to dataclasses": lambda: [decode(message, False) for message in cut(data)],
        "scan_file: all that, to Arrow rows": lambda: scan_file("bench.copydata", 0, data, Framing.COPYDATA),
    }
    times = {name: seconds(work, runs) for name, work in works.items()}
    scan = times["scan_file: all that, to Arrow rows"]
    return [
        {
            "what": name,
            "bytes": len(data),
            "messages": messages,
            "seconds": taken,
            "MB_per_s": len(data) / taken / 1e6,
            "messages_per_s": messages / taken,
            "times_scan_file": scan / taken,
        }
        for name, taken in times.items()
    ]


class Stages:
    """A job's progress, as the seconds at which its parts began."""

    def __init__(self) -> None:
        self.began: dict[str, float] = {}

    def __call__(self, step: str) -> None:
        known = {"looking for": "list files", "batch": "scan, assemble, plan", "writing the ledger": "write the ledger"}
        stage = next((stage for prefix, stage in known.items() if step.startswith(prefix)), "write the tables")
        self.began.setdefault(stage, time.perf_counter())

    def taken(self, ended: float) -> dict[str, float]:
        ends = [*list(self.began.values())[1:], ended]
        return {stage: end - begin for (stage, begin), end in zip(self.began.items(), ends, strict=True)}


def job(runs: int) -> list[dict[str, float | str]]:
    """The whole job on the demo's archive, each time into new tables, in one warm session on two cores."""
    from pgoutput_etl.pipeline import apply

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for the workers
    spark = start_session("benchmarks", {"spark.master": "local[2]", "spark.log.level": "ERROR"})
    taken: list[dict[str, float]] = []
    try:
        for _ in range(runs + 1):
            with tempfile.TemporaryDirectory() as folder:
                overrides = [f"source.landing={LANDING}", f"target.root={folder}/tables"]
                config = load_config(str(ROOT / "conf/demo.yaml"), overrides)
                stages = Stages()
                apply(spark, config, stages)
                taken.append(stages.taken(time.perf_counter()))
    finally:
        spark.stop()
    medians = {stage: median(run[stage] for run in taken[1:]) for stage in taken[0]}
    return [{"stage": stage, "seconds": s, "share": s / sum(medians.values())} for stage, s in medians.items()]


def show(title: str, rows: list[dict[str, float | str]]) -> None:
    grid = Table(title=title, title_justify="left")
    for name, value in rows[0].items():
        grid.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        grid.add_row(*(v if isinstance(v, str) else f"{v:,.0f}" if v >= 100 else f"{v:,.3g}" for v in row.values()))
    Console(width=None if sys.stdout.isatty() else 120).print(grid)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--runs", type=int, default=5, help="of each decoding; the median counts")
    parser.add_argument("--job-runs", type=int, default=3, help="of the whole job on Spark; 0: leave it out")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {"decoding": decoding(arguments.runs), "job": job(arguments.job_runs) if arguments.job_runs else []}
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    show("Decoding, one core, archives of protocol 1 in memory", found["decoding"])
    if found["job"]:
        show("The job on the demo's archive, local[2], warm", found["job"])


if __name__ == "__main__":
    main()
