"""Writes the tables of docs/performance.md and docs/benchmarks.md from the latest figures: `python -m benchmarks.page`.

Tables are between `<!-- figures: PART -->` and `<!-- end -->`; the text around them is written by hand. Larger machines
have files of their own, in benchmarks/machines.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.corpora import BUILD, ROOT
from benchmarks.model import (
    REQUESTS,
    S3_PRICES,
    TABLES_AT_A_TIME,
    TERABYTE_FILES,
    TERABYTE_TABLES,
    LargeNight,
    estimate,
    rates_of,
)

PAGES = (ROOT / "docs/performance.md", ROOT / "docs/benchmarks.md")
DRAWING = ROOT / "docs/img/growth.svg"
MACHINES = ROOT / "benchmarks/machines"  # files of `python -m benchmarks larger`
_MARKED = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Part = Any  # one part of bench.json


def page(text: str, parts: Mapping[str, Part]) -> str:
    """Return the page with the figures of every part in `parts`; other figures stay."""

    def figures(match: re.Match[str]) -> str:
        head, name, tail = match[1], match[2], match[3]
        part = parts.get(_PART_NAMES.get(name, name))
        if part is None:
            return match[0]
        written = f"{head}{_TABLES[name](part)}\n"
        if name == "machines":  # each row has its own conditions
            return f"{written}{tail}"
        return f"{written}Scale {part['scale']:g}, medians of {part['runs']}, {part['cores']} cores.\n{tail}"

    return _MARKED.sub(figures, text)


def table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; the first column is left-aligned, the others right-aligned."""
    lines = [f"| {' | '.join(names)} |", f"| --- |{' ---: |' * (len(names) - 1)}"]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.3g}"


def _decoding(part: Part) -> str:
    results = part["found"]
    rows = [(f["what"], f["seconds"], f["MB_per_s"], f["million_messages_per_s"]) for f in results["figures"]]
    ratios = [(f["against"], f["ratio"], f["goal"]) for f in results["ratios"]]
    speeds = table(("one core", "seconds", "MB/s", "million messages/s"), rows)
    return f"{speeds}\n{table(('typed Arrow columns against', 'times as fast', 'goal'), ratios)}"


def _job(part: Part) -> str:
    results = part["found"]
    columns = ("scenario", "messages", "bytes", "files", "floor", "append", "job", "ratio", "ratio_to_append")
    rows = [[f[name] for name in columns] for f in results]
    names = ("", "messages", "bytes", "files", "MERGE alone, s", "append, s", "job, s", "job / MERGE", "job / append")
    stages = [*dict.fromkeys(stage for f in results for stage in f["stages"])]
    stage_rows = [[f["scenario"], *(f["stages"].get(stage) for stage in stages)] for f in results]
    return f"{table(names, rows)}\n{table(('seconds', *stages), stage_rows)}"


def _typing(part: Part) -> str:
    rows = [(f["scenario"], f["bytes"], f["seconds"], f["MB_per_s"]) for f in part["found"]]
    return table(("archive", "bytes", "seconds", "MB/s"), rows)


def _baselines(part: Part) -> str:
    columns = ("way", "bytes", "seconds", "seconds_times_job", "bytes_times_job")
    rows = [[f[name] for name in columns] for f in part["found"]]
    return table(("", "bytes read", "seconds", "seconds, times the job's", "bytes, times the job's"), rows)


def _small(part: Part) -> str:
    rows = [(f["night"], f["tables"], f["jobs"], f["cpu"], f["seconds"]) for f in part["found"]]
    return table(("session", "changed tables", "Spark jobs", "CPU seconds", "seconds"), rows)


def _late(part: Part) -> str:
    """In two tables, because one would be too wide."""
    kinds = ("seconds", "server", "requests", "GET", "HEAD", "LIST", "PUT", "DELETE")
    places = ("logs of tables", "data of tables", "ledger", "landing", "claims")
    rows = [
        [(f["night"], f["tables"], *(f[name] for name in names)) for f in part["found"]] for names in (kinds, places)
    ]
    by_kind = table(("night", "tables", "seconds", "server, CPU seconds", *kinds[2:]), rows[0])
    return f"{by_kind}\n{table(('requests of a night', 'tables', *places), rows[1])}"


def _cold(part: Part) -> str:
    return table(
        ("command, with its start", "CPU seconds", "seconds"),
        [(f["command"], f["cpu"], f["seconds"]) for f in part["found"]],
    )


def _whole(part: Part) -> str:
    columns = ("command", "cpu", "seconds", "rows_per_s", "mb_per_s", "memory")
    names = ("command, with its start", "CPU seconds", "seconds", "rows/s", "MB/s", "MB of memory at peak")
    return table(names, [[f[name] for name in columns] for f in part["found"]])


def _work(part: Part) -> str:
    """Warm nights; executors' seconds are of Java and Python."""
    rows = []
    for f in part["found"]:
        if not f["cold"]:
            executors = f["executors"] + f["python_workers"]
            moved = (f[name] / 1e6 for name in ("read", "shuffled", "written", "collected"))
            objects = f["target_objects"] + f["ledger_objects"]
            driver = f["driver_python"] + f["driver_jvm"]
            counts = (f["bytes"] / 1e6, f["jobs"], f["single"])
            rows.append(
                (f"{f['night']}, on {f['workers']}", *counts, executors, f["single_cpu"], driver, *moved, objects)
            )
    names = (
        "MB landed",
        "Spark jobs",
        "stages of one task",
        "CPU s of executors",
        "of it in one task",
        "CPU s of the driver",
    )
    return table(("night, on workers", *names, "MB read", "shuffled", "written", "to the driver", "new objects"), rows)


def _rates(part: Part) -> str:
    rows = []
    for kind in _kinds(part):
        rates = rates_of(_on_two(part), kind)
        for name, costs in (("executors", rates.parallel), ("one task", rates.single), ("driver", rates.driver)):
            rows.append((f"{kind}: {name}", costs.messages, costs.table, costs.file, costs.fixed))
    return table(("CPU seconds", "a million messages", "a table", "a file", "a night"), rows)


def _terabyte(part: Part) -> str:
    rows = []
    for kind in _kinds(part):
        rates = rates_of(_on_two(part), kind)
        night = LargeNight(1e12 / rates.bytes_per_message, TERABYTE_TABLES, TERABYTE_FILES)
        for cores in (16, 64):
            e = estimate(rates, night, cores, TABLES_AT_A_TIME, REQUESTS, S3_PRICES)
            times = (seconds / 3600 for seconds in (e.parallel, e.single, e.driver, e.seconds))
            rows.append((f"{kind}, {cores} cores", *times, 100 * e.serial, 1e6 / e.seconds / cores, e.dollars))
    names = (
        "hours in parallel",
        "in one task",
        "driver",
        "hours at most",
        "% serial",
        "MB/s of a core",
        "dollars of requests",
    )
    return table(("a terabyte", *names), rows)


def _kinds(part: Part) -> list[str]:
    """The archives whose messages were counted."""
    return [kind for kind in ("pgbench", "wide") if any(night["night"] == kind for night in part["found"])]


def _on_two(part: Part) -> list[Any]:
    return [night for night in part["found"] if night["workers"] == 2]


def _sizes(part: Part) -> str:
    rows = []
    for f in part["found"]:
        memory = (f[name] / 1000 for name in ("total", "jvm", "workers", "driver_python"))
        ledger = f["stages"]["read the ledger, list files"] + f["stages"]["write the ledger"]
        rows.append((f["size"], f["bytes"] / 1e6, f["files"], f["seconds"], f["cpu"], f["jobs"], ledger, *memory))
    names = ("MB landed", "files", "seconds", "CPU seconds", "Spark jobs", "s for the ledger")
    return table(("", *names, "GB at peak", "of the JVM", "of workers", "of the driver's Python"), rows)


def _merge(part: Part) -> str:
    rows = [(f"{f['question']}: {f['variant']}", f["seconds"], f["ratio"]) for f in part["found"]]
    return table(("", "seconds", "ratio"), rows)


def _growth(part: Part) -> str:
    rows = [
        (f"{f['series']}, {f['cores']} cores", f["size"], f["seconds"], f["size_times"], f["seconds_times"])
        for f in part["found"]
    ]
    return table(("what grows", "size", "seconds", "size, times", "seconds, times"), rows)


def _memory(part: Part) -> str:
    results = part["found"]
    names = ("archive", "file", "worker", "workers_together", "jvm", "driver_python", "worker_per_file")
    rows = [(f["series"], *(f[name] for name in names)) for f in results["held"]]
    titles = ("archive", "largest file", "worker", "all workers", "JVM", "driver's Python", "worker / file")
    slope = results["worker_bytes_per_byte_of_file"]
    return table(("MB", *titles), rows) + f"\nA worker holds {slope:.1f} bytes more for each byte of its file.\n"


def _heap(part: Part) -> str:
    rows = [(f["file"], f["heap"], f["too_small"]) for f in part["found"]]
    return table(("a file of, MB", "passes in a heap of, MiB", "not in, MiB"), rows)


def _known(part: Part) -> str:
    rows = [(f["way"], *(f[name] for name in ("known", "plan", "shipped", "scan"))) for f in part["found"]]
    return table(("known files as", "files", "planning, s", "bytes in each task", "scan of a new file, s"), rows)


def _machines(files: Part) -> str:
    """A row for each file; in two tables, because one would be too wide."""
    names = [*dict.fromkeys(run["scenario"] for file in files for run in file["found"]["scenarios"])]
    compared, speeds = [], []
    for file in files:
        runs = {run["scenario"]: run for run in file["found"]["scenarios"]}
        found = [runs.get(name) for name in names]
        machine = _machine(file)
        compared.append((machine, file["scale"], file["runs"], _versions(file), *map(_compared, found)))
        speeds.append((machine, *(run and run["mb_per_s"] for run in found)))
    seconds = table(("seconds / by the model, at most", "scale", "runs", "versions", *names), compared)
    return f"{seconds}\n{table(('MB/s', *names), speeds)}"


def _machine(file: Part) -> str:
    machine = file["found"]["machine"]
    return (
        f"{machine['cores']} cores, {file['memory_GiB']:g} GiB, driver of {machine['memory']}, {file['processor']}, "
        f"{machine['master']}, {machine['storage']}"
    )


def _versions(file: Part) -> str:
    machine = file["found"]["machine"]
    own = f"pgoutput_etl {machine['pgoutput_etl']}, Spark {machine['spark']}"
    return f"{own}, Java {machine['java']}, Python {file['python']}"


def _compared(run: Part) -> str | None:
    if run is None or run["failed"]:
        return run and "failed"
    return f"{_cell(run['seconds'])} / {_cell(run['predicted']) or '-'}"


_TABLES: dict[str, Callable[[Part], str]] = {
    "decoding": _decoding,
    "typing": _typing,
    "job": _job,
    "baselines": _baselines,
    "small": _small,
    "cold": _cold,
    "whole": _whole,
    "late": _late,
    "terabyte": _terabyte,
    "merge": _merge,
    "growth": _growth,
    "memory": _memory,
    "heap": _heap,
    "known": _known,
    "work": _work,
    "rates": _rates,
    "sizes": _sizes,
    "machines": _machines,
}


_PART_NAMES = {"terabyte": "work", "rates": "work"}  # of tables that show another part's figures


def kept_machines() -> dict[str, Part]:
    """The part `machines`, unless there are no files."""
    files = [json.loads(path.read_text())["larger"] for path in sorted(MACHINES.glob("*.json"))]
    return {"machines": files} if files else {}


def main() -> None:
    figures = BUILD / "bench.json"
    parts = {**(json.loads(figures.read_text()) if figures.exists() else {}), **kept_machines()}
    for path in PAGES:
        path.write_text(page(path.read_text(encoding="utf-8"), parts), encoding="utf-8")
    if (BUILD / "growth.svg").exists():
        DRAWING.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(BUILD / "growth.svg", DRAWING)


if __name__ == "__main__":
    main()
