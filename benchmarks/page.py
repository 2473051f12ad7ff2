"""The tables of docs/performance.md, from what was measured last: `python -m benchmarks.page`.

Between `<!-- figures: PART -->` and `<!-- end -->` the page has what this writes; the words around it are people's.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.corpora import BUILD, ROOT

PAGE = ROOT / "docs/performance.md"
DRAWING = ROOT / "docs/img/growth.svg"
_LARGE, _NIGHT = 200_000_000, 6  # bytes, hours
_MARKED = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Found = Any


def page(text: str, found: Mapping[str, Any]) -> str:
    """The page with the figures of every part that has some."""

    def figures(match: re.Match[str]) -> str:
        head, name, tail = match[1], match[2], match[3]
        part = _OF_PART.get(name, name)
        if part not in found:
            return match[0]
        of_part = found[part]
        said = f"Scale {of_part['scale']:g}, medians of {of_part['runs']}, {of_part['cores']} cores.\n"
        return f"{head}{_TABLES[name](of_part)}\n{said}{tail}"

    return _MARKED.sub(figures, text)


def table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """In Markdown; the first column is words."""
    lines = [f"| {' | '.join(names)} |", f"| --- |{' ---: |' * (len(names) - 1)}"]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.3g}"


def _decoding(part: Found) -> str:
    found = part["found"]
    rows = [(f["what"], f["seconds"], f["MB_per_s"], f["million_messages_per_s"]) for f in found["figures"]]
    ratios = [(f["against"], f["ratio"], f["goal"]) for f in found["ratios"]]
    speeds = table(("one core", "seconds", "MB/s", "million messages/s"), rows)
    return f"{speeds}\n{table(('typed Arrow columns against', 'times as fast', 'goal'), ratios)}"


def _job(part: Found) -> str:
    found = part["found"]
    columns = ("scenario", "messages", "bytes", "files", "floor", "append", "job", "ratio", "ratio_to_append")
    rows = [[f[name] for name in columns] for f in found]
    names = ("", "messages", "bytes", "files", "MERGE alone, s", "append, s", "job, s", "job / MERGE", "job / append")
    stages = [*dict.fromkeys(stage for f in found for stage in f["stages"])]
    of_stages = [[f["scenario"], *(f["stages"].get(stage) for stage in stages)] for f in found]
    return f"{table(names, rows)}\n{table(('seconds', *stages), of_stages)}"


def _terabyte(part: Found) -> str:
    """Of the archives that are large enough for their bytes to count."""
    rows = []
    for f in part["found"]:
        if f["bytes"] >= _LARGE:
            core_seconds = f["job"] * part["cores"]
            hours = core_seconds / f["bytes"] * 1e12 / 3600
            rows.append((f["scenario"], f["bytes"] / 1e6 / core_seconds, hours, math.ceil(hours / _NIGHT)))
    return table(("", "MB/s of a core", "core hours for a terabyte", f"cores for one in {_NIGHT} hours"), rows)


def _merge(part: Found) -> str:
    found = part["found"]
    rows = [(f"{f['question']}: {f['variant']}", f["seconds"], f["ratio"]) for f in found]
    return table(("", "seconds", "ratio"), rows)


def _growth(part: Found) -> str:
    found = part["found"]
    rows = [
        (f"{f['series']}, {f['cores']} cores", f["size"], f["seconds"], f["size_times"], f["seconds_times"])
        for f in found
    ]
    return table(("what grows", "size", "seconds", "size, times", "seconds, times"), rows)


def _memory(part: Found) -> str:
    found = part["found"]
    names = ("archive", "file", "worker", "workers_together", "jvm", "driver_python", "worker_per_file")
    rows = [(f["series"], *(f[name] for name in names)) for f in found["held"]]
    titles = ("archive", "largest file", "worker", "all workers", "JVM", "driver's Python", "worker / file")
    slope = found["worker_bytes_per_byte_of_file"]
    return table(("MB", *titles), rows) + f"\nA worker holds {slope:.1f} bytes more for each byte of its file.\n"


def _heap(part: Found) -> str:
    rows = [(f["file"], f["heap"], f["too_small"]) for f in part["found"]]
    return table(("a file of, MB", "passes in a heap of, MiB", "not in, MiB"), rows)


def _known(part: Found) -> str:
    rows = [(f["way"], *(f[name] for name in ("known", "plan", "shipped", "scan"))) for f in part["found"]]
    return table(("known files as", "files", "planning, s", "bytes in each task", "scan of a new file, s"), rows)


_TABLES: dict[str, Callable[[Found], str]] = {
    "decoding": _decoding,
    "job": _job,
    "terabyte": _terabyte,
    "merge": _merge,
    "growth": _growth,
    "memory": _memory,
    "heap": _heap,
    "known": _known,
}


_OF_PART = {"terabyte": "job"}


def main() -> None:
    found = json.loads((BUILD / "bench.json").read_text())
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    if (BUILD / "growth.svg").exists():
        DRAWING.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(BUILD / "growth.svg", DRAWING)


if __name__ == "__main__":
    main()
