"""Prints and saves figures."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table


def console(stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(width=None if stream.isatty() else 140, stderr=stderr, highlight=False)


def machine() -> dict[str, Any]:
    return {
        "cores": psutil.cpu_count(),
        "memory_GiB": round(psutil.virtual_memory().total / 2**30, 1),
        "processor": platform.machine(),
        "python": platform.python_version(),
    }


def show(title: str, rows: Iterable[Mapping[str, Any]]) -> None:
    rows = list(rows)
    if not rows:
        return
    grid = Table(title=title, title_justify="left")
    for name, value in rows[0].items():
        grid.add_column(name.replace("_", " "), justify="left" if isinstance(value, str) else "right")
    for row in rows:
        grid.add_row(*(_cell(value) for value in row.values()))
    console().print(grid)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, (str, bool)):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.3g}"


def previous_figures(path: Path, part: str, scale: float) -> Any:
    """The figures that `save` wrote for a part at the same scale; otherwise an empty list."""
    earlier = json.loads(path.read_text()).get(part, {}) if path.exists() else {}
    return earlier["found"] if earlier.get("scale") == scale else []


def save(path: Path, parts: Mapping[str, Any]) -> None:
    """Replaces these parts in the file; other parts stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    earlier = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**earlier, **parts}, indent=2) + "\n")
