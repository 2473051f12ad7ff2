"""The status as one self-contained HTML file: no scripts, no links, no fonts. Names from an archive are escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path

from pgoutput_etl.console import duration
from pgoutput_etl.errors import RunError
from pgoutput_etl.jobs.next_commands import next_lines
from pgoutput_etl.jobs.status.charts import (
    Chart,
    byte_count,
    duration_step,
    number,
    spark_bars,
    spark_line,
    text,
)
from pgoutput_etl.jobs.status.nights import NIGHTS
from pgoutput_etl.jobs.status.report import Night, NightTable, Status, clock, facts, verdict
from pgoutput_etl.jobs.status.style import STYLE
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.replace_file import replace_file

_STAGES = {"look": "find files", "read": "scan", "prepare": "plan", "write": "write tables", "ledger": "write ledger"}

_SHOWN_TABLES = 100

_SHOWN_LINES = 20

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_page(status: Status, path: str) -> None:
    """Raises RunError."""
    try:
        replace_file(Path(path), page(status))
    except OSError as error:
        raise RunError(f"{path}: the page can't be written: {error.strerror}") from None


def page(status: Status) -> str:
    """HTML."""
    source = text(status.source)
    body = "".join((_header(status), _facts(status), _attention(status), _charts(status), _tables(status)))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{source}: {text(verdict(status))}</title><style>{STYLE}</style></head>"
        f"<body><main>{body}{_figures(status.nights)}</main></body></html>\n"
    )


def _header(status: Status) -> str:
    kind = "bad" if status.problems else "good"
    words = verdict(status)
    badge = f'<span class="badge {kind}">{text(words[:1].upper() + words[1:])}</span>'
    return f'<header><h1>{text(status.source)}</h1>{badge}<div class="when">As of {clock(status.at)}</div></header>'


def _card(title: str, content: str) -> str:
    return f'<section class="card"><h2>{text(title)}</h2>{content}</section>'


def _facts(status: Status) -> str:
    pairs = [*facts(status), ("Tables", f"{status.tables:,}")]
    items = "".join(f"<dt>{text(title)}</dt><dd>{text(words)}</dd>" for title, words in pairs)
    return f'<div class="stack">{_card("Status", f"<dl>{items}</dl>")}</div>'


def _attention(status: Status) -> str:
    """Held tables, quarantine, and the commands to run."""
    cards = []
    if status.held:
        rows = [(table.name, format_lsn(table.lsn), table.reason) for table in status.held]
        heads = ("table", "complete through", "reason")
        cards.append(_card("Held tables", _table(heads, rows, words=(2,))))
    set_aside = status.quarantine
    lines = [f"In quarantine: {line}" for line in set_aside.ranges]
    lines += [f"Not applied: {line}" for line in set_aside.refused_files]
    lines += [f"Left unread, although later files were read: {path}" for path in set_aside.unread_files]
    if lines:
        more = [f"… and {len(lines) - _SHOWN_LINES:,} more"] if len(lines) > _SHOWN_LINES else []
        items = "".join(f"<li>{text(line)}</li>" for line in (*lines[:_SHOWN_LINES], *more))
        cards.append(_card("Not applied", f"<ul>{items}</ul>"))
    if status.next:
        cards.append(_card("Next", f"<pre>{text_lines(next_lines(status.next)[1:])}</pre>"))
    return f'<div class="stack">{"".join(cards)}</div>' if cards else ""


def text_lines(lines: Iterable[str]) -> str:
    return "\n".join(map(text, lines))


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
    cards = (_card(title, f'<div class="scroll">{svg}</div>{_note(notes.get(title, ""))}') for title, svg in charts)
    return f'<div class="grid">{"".join(cards)}</div>'


def _note(words: str) -> str:
    return f'<p class="note">{text(words)}</p>' if words else ""


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 or value == int(value) else f"{value:.1f} s"


def _tables(status: Status) -> str:
    """Current rows and the changes of the last days, with the most changed tables first."""
    by_name: dict[str, dict[str, NightTable]] = {}
    for night in status.nights:
        for table in night.tables:
            by_name.setdefault(table.name, {})[night.day] = table
    if not by_name:
        return ""
    current = {table.name for table in status.nights[-1].tables}
    changed = {name: sum(table.changed or 0 for table in own.values()) for name, own in by_name.items()}
    names = sorted(current, key=lambda name: (-changed[name], name))
    days = _days(status)
    rows = [_table_row(name, [by_name[name].get(day) for day in days]) for name in names[:_SHOWN_TABLES]]
    heads = ("table", "rows", "inserted", "updated", "deleted", f"changed rows, {NIGHTS} days", f"rows, {NIGHTS} days")
    more = f"{len(names) - _SHOWN_TABLES:,} more tables changed less." if len(names) > _SHOWN_TABLES else ""
    title = f"Tables, and their changes on {status.nights[-1].day}"
    content = _card(title, f'<div class="scroll">{_raw_table(heads, rows)}</div>{_note(more)}')
    return f'<div class="stack">{content}</div>'


def _table_row(name: str, days: Sequence[NightTable | None]) -> list[str]:
    """Cells, escaped."""
    last = next(table for table in reversed(days) if table is not None)
    counts = [_count(value) for value in (last.rows, last.inserted, last.updated, last.deleted)]
    changed = [None if table is None else table.changed for table in days]
    rows = [None if table is None else table.rows for table in days]
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
    table = _table(heads, rows)
    return f'<details class="card"><summary>Figures of {NIGHTS} days</summary>{table}</details>' if rows else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: Iterable[int] = ()) -> str:
    """words: numbers of columns of prose."""
    escaped = ([text(cell) for cell in row] for row in rows)
    return f'<div class="scroll">{_raw_table(heads, escaped, words)}</div>'


def _raw_table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: Iterable[int] = ()) -> str:
    """rows: cells as HTML."""
    prose = set(words)

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = (' class="words"' if i in prose else "" for i in range(len(cells)))
        return "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))

    head = line([text(head) for head in heads], "th")
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
