"""The status as an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path

from pgoutput_etl.answers.next_commands import next_lines
from pgoutput_etl.answers.page.render import render
from pgoutput_etl.answers.status.charts import Chart, bars, byte_count, durations, number
from pgoutput_etl.answers.status.days import MOST_DAYS
from pgoutput_etl.answers.status.report import Day, DayTable, Status, clock, facts, verdict
from pgoutput_etl.console import duration
from pgoutput_etl.errors import RunError
from pgoutput_etl.file_access import PUBLIC
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.replace_file import replace_file

_STAGES = {"look": "find files", "read": "scan", "prepare": "plan", "write": "write tables", "ledger": "write ledger"}

_SHOWN_TABLES = 100


def write_page(status: Status, path: str) -> None:
    """Raises RunError."""
    try:
        replace_file(Path(path), page(status), PUBLIC)
    except OSError as error:
        raise RunError(f"{path}: the page can't be written: {error.strerror}") from None


def page(status: Status) -> str:
    """The HTML text."""
    words = verdict(status)
    counted = [("Tables", f"{status.tables:,}")]
    if status.consistency is not None:
        counted.append(("Consistent", status.consistency.removesuffix(".")))
    shown = status.conditions[:_SHOWN_TABLES]
    return render(
        "status",
        title=f"{status.source}: {words}",
        heading=status.source,
        verdict=words,
        is_good=not status.problems,
        when=f"As of {clock(status.at)}",
        facts=[*facts(status), *counted],
        conditions=[(c.name, c.state.value, format_lsn(c.lsn), c.reason) for c in shown],
        more_conditions=_more(len(status.conditions), "tables are in these states"),
        not_applied=_not_applied(status),
        swaps=[*status.swaps.values()],
        next_lines=next_lines(status.next)[1:] if status.next else [],
        charts=_charts(status),
        days=MOST_DAYS,
        figure_heads=("day", "batches", "files", "bytes", "messages", *_STAGES.values(), "lag"),
        figures=[_figures(own) for own in reversed(status.days)],
        **_tables(status),
    )


def _more(count: int, what: str) -> str:
    return f"{count - _SHOWN_TABLES:,} more {what}." if count > _SHOWN_TABLES else ""


def _not_applied(status: Status) -> list[str]:
    set_aside = status.quarantine
    return [
        *(f"In quarantine: {line}" for line in set_aside.ranges),
        *(f"Not applied: {line}" for line in set_aside.refused_files),
        *(f"Left unread, although later files were read: {path}" for path in set_aside.unread_files),
    ]


def _days(status: Status) -> list[str]:
    last = date.fromisoformat(status.at[:10])
    return [(last - timedelta(days=i)).isoformat() for i in range(MOST_DAYS - 1, -1, -1)]


def _charts(status: Status) -> list[Chart]:
    """The charts; days without a batch have no bar."""
    days, by_day = _days(status), {own.day: own for own in status.days}

    def values(figure: Callable[[Day], float | None]) -> list[float | None]:
        return [figure(by_day[day]) if day in by_day else None for day in days]

    stages = [stage for stage in _STAGES if any(stage in own.seconds for own in status.days)]
    seconds = {_STAGES[stage]: values(lambda own, s=stage: own.seconds.get(s)) for stage in stages}  # type: ignore[misc]
    no_times = "" if seconds else "The batches of these days recorded no times."
    return [
        bars("Landed bytes", days, {"": values(lambda own: own.bytes)}, byte_count),
        bars("Messages", days, {"": values(lambda own: own.messages)}, number),
        bars("Seconds by stage", days, seconds or {"": [None] * len(days)}, _seconds, no_times),
        durations(
            "Lag",
            days,
            values(lambda own: own.lag_seconds),
            "From the archive's last commit to the end of the day's last batch.",
        ),
    ]


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 or value == int(value) else f"{value:.1f} s"


def _tables(status: Status) -> dict[str, object]:
    """Current rows and the changes of recent days; the most changed tables come first."""
    by_name: dict[str, dict[str, DayTable]] = {}
    for own in status.days:
        for one in own.tables:
            by_name.setdefault(one.name, {})[own.day] = one
    if not by_name:
        return {"tables": []}
    current = {one.name for one in status.days[-1].tables}
    changed = {name: sum(one.changed or 0 for one in own.values()) for name, own in by_name.items()}
    names = sorted(current, key=lambda name: (-changed[name], name))
    days = _days(status)
    return {
        "tables": [_table(name, [by_name[name].get(day) for day in days]) for name in names[:_SHOWN_TABLES]],
        "more_tables": _more(len(names), "tables changed less"),
        "last_day": status.days[-1].day,
    }


def _table(name: str, days: Sequence[DayTable | None]) -> dict[str, object]:
    last = next(one for one in reversed(days) if one is not None)
    counts = (last.rows, last.inserted, last.updated, last.deleted)
    return {
        "name": name,
        "counts": ["?" if count is None else f"{count:,}" for count in counts],
        "changed": [None if one is None else one.changed for one in days],
        "rows": [None if one is None else one.rows for one in days],
    }


def _figures(own: Day) -> list[str]:
    """All figures in the charts, as text."""
    counts = (own.batches, own.files, own.bytes, own.messages)
    stages = ("" if (value := own.seconds.get(stage)) is None else _seconds(value) for stage in _STAGES)
    lag = "" if own.lag_seconds is None else duration(own.lag_seconds)
    return [own.day, *(f"{count:,}" for count in counts), *stages, lag]
