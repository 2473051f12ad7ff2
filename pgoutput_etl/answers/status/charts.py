"""Charts as inline SVG: bars, stacked bars and a line over consecutive days, and sparklines for table rows.

Colors are classes of the page's style sheet. Every figure is also text: a title for each mark, and a description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import floor, log10

from pgoutput_etl.answers.page.parts import text

_WIDTH, _HEIGHT = 560, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 8, 12, 26
_TICKS = 4
_LABELED_DAYS = 7  # every seventh day has its date below the axis

_SPARK_WIDTH, _SPARK_HEIGHT = 150, 26

_DURATIONS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800)

Values = Sequence[float | None]


def byte_count(count: float) -> str:
    return _scaled(count, 1000, ("bytes", "kB", "MB", "GB", "TB", "PB"))


def number(count: float) -> str:
    return _scaled(count, 1000, ("", "k", "M", "G", "T"))


def _scaled(count: float, base: int, units: Sequence[str]) -> str:
    step = 0
    while abs(count) >= base and step < len(units) - 1:
        count, step = count / base, step + 1
    digits = f"{count:.0f}" if step == 0 or count >= 100 else f"{count:.1f}".removesuffix(".0")
    return f"{digits} {units[step]}".rstrip()


def step_of(highest: float) -> float:
    """A round distance between the axis' lines: 1, 2 or 5 times a power of ten."""
    least = max(highest, 1e-9) / _TICKS
    power = 10.0 ** floor(log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least)


def duration_step(highest: float) -> float:
    """Like `step_of`, for seconds: whole minutes, hours or days."""
    least = highest / _TICKS
    longest = _DURATIONS[-1]
    return next((float(step) for step in _DURATIONS if step >= least), -(-least // longest) * longest)


@dataclass(frozen=True, slots=True)
class Chart:
    """The common parts of all charts. days: consecutive dates, ISO 8601. show: a value as text. step: for the axis'
    lines."""

    title: str
    days: Sequence[str]
    show: Callable[[float], str]
    step: Callable[[float], float] = step_of

    def bars(self, values: Values) -> str:
        return self.stacked({"": values})

    def stacked(self, series: Mapping[str, Values]) -> str:
        """series: at most five, with a value or None for each day."""
        totals = [
            None if all(values[i] is None for values in series.values()) else sum(v[i] or 0 for v in series.values())
            for i in range(len(self.days))
        ]
        scale = _Scale.of(totals, self.step)
        marks = []
        for i, day in enumerate(self.days):
            base = 0.0
            for kind, (name, values) in enumerate(series.items()):
                value = values[i]
                if value is None:
                    continue
                what = f"{name}: {self.show(value)}" if name else self.show(value)
                marks.append(self._bar(i, scale, base, value, kind, f"{day}, {what}"))
                base += value
        legend = _legend(list(series)) if len(series) > 1 else ""
        return self._svg(totals, scale, marks) + legend

    def line(self, values: Values) -> str:
        """Breaks where a day has no value."""
        scale, marks = _Scale.of(values, self.step), []
        points = [None if v is None else (self._center(i), scale.y(v)) for i, v in enumerate(values)]
        for is_gap, run in groupby(points, key=lambda point: point is None):
            if not is_gap:
                path = " ".join(f"{point[0]:.1f},{point[1]:.1f}" for point in run if point is not None)
                marks.append(f'<polyline class="line" points="{path}"/>')
        for day, value, point in zip(self.days, values, points, strict=True):
            if point is not None and value is not None:
                place, title = f'cx="{point[0]:.1f}" cy="{point[1]:.1f}"', text(f"{day}, {self.show(value)}")
                marks.append(f'<circle class="mark dot" {place} r="3.5"><title>{title}</title></circle>')
        return self._svg(values, scale, marks)

    def _slot(self) -> float:
        return (_WIDTH - _LEFT - _RIGHT) / len(self.days)

    def _center(self, i: int) -> float:
        return _LEFT + (i + 0.5) * self._slot()

    def _bar(self, i: int, scale: _Scale, base: float, value: float, kind: int, title: str) -> str:
        width = self._slot() * 0.72
        top, bottom = scale.y(base + value), scale.y(base)
        if value > 0:
            top = min(top, bottom - 1)  # a small value is still visible
        place = f'x="{self._center(i) - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}"'
        return f'<rect class="mark s{kind}" {place} rx="1"><title>{text(title)}</title></rect>'

    def _svg(self, values: Values, scale: _Scale, marks: Iterable[str]) -> str:
        name = "".join(c if c.isalnum() else "-" for c in self.title.lower())
        lines = []
        for value in scale.ticks:
            y = scale.y(value)
            lines.append(f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            label = text(self.show(value))
            lines.append(f'<text class="axis" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        for i in range(len(self.days) - 1, -1, -_LABELED_DAYS):
            day = text(self.days[i][5:])
            x = min(self._center(i), _WIDTH - _RIGHT - 16)
            lines.append(f'<text class="axis" x="{x:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{day}</text>')
        return (
            f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="{name} {name}-text">'
            f'<title id="{name}">{text(self.title)}</title>'
            f'<desc id="{name}-text">{text(self._described(values))}</desc>'
            f"{''.join(lines)}{''.join(marks)}</svg>"
        )

    def _described(self, values: Values) -> str:
        known = [(value, day) for value, day in zip(values, self.days, strict=True) if value is not None]
        span = f"{self.days[0]} to {self.days[-1]}"
        if not known:
            return f"{span}: no figures."
        (highest, when), (latest, last) = max(known), known[-1]
        return f"{span}: {self.show(latest)} on {last}; at most {self.show(highest)}, on {when}."


@dataclass(frozen=True, slots=True)
class _Scale:
    """The vertical axis. ticks: from 0 to the highest line."""

    ticks: tuple[float, ...]

    @classmethod
    def of(cls, values: Values, step: Callable[[float], float]) -> _Scale:
        highest = max((value for value in values if value is not None), default=0.0)
        distance = step(highest) if highest > 0 else 1.0
        count = max(-int(-highest // distance), 1)
        return cls(tuple(distance * i for i in range(count + 1)))

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * max(value, 0.0) / self.ticks[-1]


def _legend(names: Sequence[str]) -> str:
    items = (f'<li><span class="key s{kind}"></span>{text(name)}</li>' for kind, name in enumerate(names))
    return f'<ul class="legend">{"".join(items)}</ul>'


def spark_bars(label: str, values: Values) -> str:
    """A bar per day. label: the name of the counted things."""
    highest = max((value for value in values if value is not None), default=0.0) or 1.0
    slot, marks = _SPARK_WIDTH / len(values), []
    for i, value in enumerate(values):
        if value:
            height = max((_SPARK_HEIGHT - 2) * value / highest, 1)
            place = (
                f'x="{i * slot:.1f}" y="{_SPARK_HEIGHT - height:.1f}" width="{slot * 0.72:.1f}" height="{height:.1f}"'
            )
            marks.append(f'<rect class="s0" {place}/>')
    return _spark(label, marks)


def spark_line(label: str, values: Values) -> str:
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    slot, height = _SPARK_WIDTH / len(values), _SPARK_HEIGHT - 6
    points = [
        f"{(i + 0.5) * slot:.1f},{3 + height * (1 - (value - low) / (high - low) if high > low else 0.5):.1f}"
        for i, value in enumerate(values)
        if value is not None
    ]
    marks = [f'<polyline class="line" points="{" ".join(points)}"/>'] if points else []
    if points:
        x, y = points[-1].split(",")
        marks.append(f'<circle class="dot" cx="{x}" cy="{y}" r="2.5"/>')
    return _spark(label, marks)


def _spark(label: str, marks: Iterable[str]) -> str:
    box = f'viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" width="{_SPARK_WIDTH}" height="{_SPARK_HEIGHT}"'
    return f'<svg class="spark" {box} role="img" aria-label="{text(label)}">{"".join(marks)}</svg>'
