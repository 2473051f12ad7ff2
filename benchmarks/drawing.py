"""Draws the figures of growth.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.growth import Point

_PANELS = {"bytes": "MB of archive", "tables": "tables", "files": "files"}


def draw(points: Sequence[Point], path: Path) -> None:
    """Draws one panel per unit, with a line for each series and number of cores."""
    mpl.rcParams["svg.hashsalt"] = "growth"  # the same figures give the same file
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots(1, len(_PANELS))
    for axis, (unit, label) in zip(axes, _PANELS.items(), strict=True):
        divisor = 1e6 if unit == "bytes" else 1
        unit_points = [point for point in points if point.unit == unit]
        for series, cores in dict.fromkeys((point.series, point.cores) for point in unit_points):
            line = [point for point in unit_points if (point.series, point.cores) == (series, cores)]
            name = f"{cores} core{'s' if cores > 1 else ''}" if unit == "bytes" else series
            axis.plot([point.size / divisor for point in line], [point.seconds for point in line], "o-", label=name)
        axis.set_xlabel(label)
        axis.set_ylabel("seconds")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
