"""The status as an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path

from pgoutput_etl.answers.next_commands import next_lines
from pgoutput_etl.answers.page.parts import (
    bullets,
    card,
    document,
    facts_card,
    header,
    note,
    raw_table,
    stack,
    table,
    text,
    text_lines,
)
from pgoutput_etl.answers.status.charts import Chart, byte_count, duration_step, number, spark_bars, spark_line
from pgoutput_etl.answers.status.nights import NIGHTS
from pgoutput_etl.answers.status.report import Night, NightTable, Status, clock, facts, verdict
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
    """HTML."""
    words = verdict(status)
    counted = [("Tables", f"{status.tables:,}")]
    if status.consistency is not None:
        counted.append(("Consistent", status.consistency.removesuffix(".")))
    facts_of = facts_card("Status", [*facts(status), *counted])
    parts = (
        header(status.source, words, not status.problems, f"As of {clock(status.at)}"),
        stack([facts_of]),
        stack(_attention(status)),
        _charts(status),
        _tables(status),
        _figures(status.nights),
    )
    return document(f"{status.source}: {words}", "".join(parts))


def _attention(status: Status) -> list[str]:
    """Tables with a condition, quarantine, tables that seem to be replaced, and the commands to run."""
    cards = []
    if status.conditions:
        rows = [(c.name, c.state.value, format_lsn(c.lsn), c.reason) for c in status.conditions[:_SHOWN_TABLES]]
        heads = ("table", "state", "applied through", "reason")
        more = len(status.conditions) - _SHOWN_TABLES
        rest = note(f"{more:,} more tables are in these states." if more > 0 else "")
        cards.append(card("Tables that are not consistent", table(heads, rows, words=(1, 3)) + rest))
    set_aside = status.quarantine
    lines = [f"In quarantine: {line}" for line in set_aside.ranges]
    lines += [f"Not applied: {line}" for line in set_aside.refused_files]
    lines += [f"Left unread, although later files were read: {path}" for path in set_aside.unread_files]
    if lines:
        cards.append(card("Not applied", bullets(lines)))
    if status.swaps:
        cards.append(card("Possibly replaced", bullets([*status.swaps.values()])))
    if status.next:
        cards.append(card("Next", f"<pre>{text_lines(next_lines(status.next)[1:])}</pre>"))
    return cards


def _days(status: Status) -> list[str]:
    last = date.fromisoformat(status.at[:10])
    return [(last - timedelta(days=i)).isoformat() for i in range(NIGHTS - 1, -1, -1)]


def _charts(status: Status) -> str:
    """Days without a batch have no bar."""
    days, by_day = _days(status), {night.day: night for night in status.nights}

    def values(figure: Callable[[Night], float | None]) -> list[float | None]:
        return [figure(by_day[day]) if day in by_day else None for day in days]

    stages = [stage for stage in _STAGES if any(stage in night.seconds for night in status.nights)]
    seconds = {_STAGES[stage]: values(lambda night, s=stage: night.seconds.get(s)) for stage in stages}  # type: ignore[misc]
    charts = [
        ("Landed bytes", Chart("Landed bytes", days, byte_count).bars(values(lambda night: night.bytes))),
        ("Messages", Chart("Messages", days, number).bars(values(lambda night: night.messages))),
        ("Seconds by stage", Chart("Seconds by stage", days, _seconds).stacked(seconds or {"": [None] * len(days)})),
        ("Lag", Chart("Lag", days, duration, duration_step).line(values(lambda night: night.lag_seconds))),
    ]
    notes = {
        "Seconds by stage": "" if seconds else "The batches of these days recorded no times.",
        "Lag": "From the archive's last commit to the end of the day's last batch.",
    }
    cards = (card(title, f'<div class="scroll">{svg}</div>{note(notes.get(title, ""))}') for title, svg in charts)
    return f'<div class="grid">{"".join(cards)}</div>'


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 or value == int(value) else f"{value:.1f} s"


def _tables(status: Status) -> str:
    """Current rows and the changes of the last days, with the most changed tables first."""
    by_name: dict[str, dict[str, NightTable]] = {}
    for night in status.nights:
        for one in night.tables:
            by_name.setdefault(one.name, {})[night.day] = one
    if not by_name:
        return ""
    current = {one.name for one in status.nights[-1].tables}
    changed = {name: sum(one.changed or 0 for one in own.values()) for name, own in by_name.items()}
    names = sorted(current, key=lambda name: (-changed[name], name))
    days = _days(status)
    rows = [_table_row(name, [by_name[name].get(day) for day in days]) for name in names[:_SHOWN_TABLES]]
    heads = ("table", "rows", "inserted", "updated", "deleted", f"changed rows, {NIGHTS} days", f"rows, {NIGHTS} days")
    more = f"{len(names) - _SHOWN_TABLES:,} more tables changed less." if len(names) > _SHOWN_TABLES else ""
    title = f"Tables, and their changes on {status.nights[-1].day}"
    return stack([card(title, f'<div class="scroll">{raw_table(heads, rows)}</div>{note(more)}')])


def _table_row(name: str, days: Sequence[NightTable | None]) -> list[str]:
    """Cells, escaped."""
    last = next(one for one in reversed(days) if one is not None)
    counts = [_count(value) for value in (last.rows, last.inserted, last.updated, last.deleted)]
    changed = [None if one is None else one.changed for one in days]
    rows = [None if one is None else one.rows for one in days]
    sparks = (spark_bars(f"Changed rows of {name}", changed), spark_line(f"Rows of {name}", rows))
    return [text(name), *counts, *sparks]


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _figures(nights: Sequence[Night]) -> str:
    """All figures of the charts, as text."""
    heads = ("day", "batches", "files", "bytes", "messages", *_STAGES.values(), "lag")
    rows = []
    for night in reversed(nights):
        counts = (night.batches, night.files, night.bytes, night.messages)
        stages = ("" if (value := night.seconds.get(stage)) is None else _seconds(value) for stage in _STAGES)
        lag = "" if night.lag_seconds is None else duration(night.lag_seconds)
        rows.append((night.day, *(f"{count:,}" for count in counts), *stages, lag))
    if not rows:
        return ""
    return f'<details class="card"><summary>Figures of {NIGHTS} days</summary>{table(heads, rows)}</details>'
