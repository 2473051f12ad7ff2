"""Charts of consecutive days as SVG, drawn by matplotlib. The page's last table has all their figures as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pgoutput_etl.console import duration

Values = Sequence[float | None]

_COLORS = ("#2a78d6", "#1baf7a", "#eda100", "#7a4fc9", "#d64a7c")
_INK = "#808b97"  # legible on the page's light and dark cards

_LABELED_DAYS = 7  # every seventh day is labeled with its date

_UNITS = (86_400, 3600, 60, 1)


@dataclass(frozen=True, slots=True)
class Chart:
    """described: a description for screen readers."""

    title: str
    svg: Markup
    described: str
    note: str = ""


def byte_count(count: float) -> str:
    return _scaled(count, ("bytes", "kB", "MB", "GB", "TB", "PB"))


def number(count: float) -> str:
    return _scaled(count, ("", "k", "M", "G", "T"))


def _scaled(count: float, units: Sequence[str]) -> str:
    step = 0
    while abs(count) >= 1000 and step < len(units) - 1:
        count, step = count / 1000, step + 1
    digits = f"{count:.0f}" if step == 0 or count >= 100 else f"{count:.1f}".removesuffix(".0")
    return f"{digits} {units[step]}".rstrip()


def bars(
    title: str, days: Sequence[str], series: Mapping[str, Values], show: Callable[[float], str], note: str = ""
) -> Chart:
    """Stacked bars. days: consecutive dates, ISO 8601. series: at most five, with a value or None for each day. show:
    formats a value."""

    def draw(axes: Axes) -> None:
        base = [0.0] * len(days)
        for color, (name, values) in zip(_COLORS, series.items(), strict=False):
            heights = [value or 0.0 for value in values]
            axes.bar(range(len(days)), heights, 0.72, base, color=color, label=name)
            base = [low + height for low, height in zip(base, heights, strict=True)]
        if len(series) > 1:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False, fontsize=8, labelcolor=_INK)
        axes.set_ylim(0, 1.05 * max(base) or 1)

    totals = [
        None if all(values[i] is None for values in series.values()) else sum(v[i] or 0 for v in series.values())
        for i in range(len(days))
    ]
    return Chart(title, _svg(title, days, draw, show), _described(days, totals, show), note)


def durations(title: str, days: Sequence[str], seconds: Values, note: str = "") -> Chart:
    """A line with gaps where a day has no value. Its axis has whole seconds, minutes, hours, or days."""
    highest = max((value for value in seconds if value is not None), default=0.0)
    unit = next((unit for unit in _UNITS if unit <= highest), 1)

    def draw(axes: Axes) -> None:
        heights = [float("nan") if value is None else value / unit for value in seconds]
        axes.plot(heights, "o-", color=_COLORS[0], markersize=3.5)
        axes.set_ylim(0, 1.05 * highest / unit or 1)

    svg = _svg(title, days, draw, lambda value: duration(value * unit))
    return Chart(title, svg, _described(days, seconds, duration), note)


def _svg(title: str, days: Sequence[str], draw: Callable[[Axes], None], show: Callable[[float], str]) -> Markup:
    # Text remains text, and equal figures result in equal files.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.family": "sans-serif"}):
        figure = Figure(figsize=(5.6, 1.9), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.set_xlim(-0.6, len(days) - 0.4)
        labeled = range(len(days) - 1, -1, -_LABELED_DAYS)
        axes.set_xticks(labeled, [days[i][5:] for i in labeled])
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
        axes.tick_params(length=0, labelsize=8, labelcolor=_INK)
        axes.spines[:].set_visible(False)
        axes.grid(axis="y", color=_INK, alpha=0.25, linewidth=0.8)
        axes.set_axisbelow(True)
        file = StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    return Markup(svg[svg.index("<svg") :])


def _described(days: Sequence[str], values: Values, show: Callable[[float], str]) -> str:
    known = [(value, day) for value, day in zip(values, days, strict=True) if value is not None]
    span = f"{days[0]} to {days[-1]}"
    if not known:
        return f"{span}: no figures."
    (highest, when), (latest, last) = max(known), known[-1]
    return f"{span}: {show(latest)} on {last}; at most {show(highest)}, on {when}."
