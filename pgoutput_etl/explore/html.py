"""An archive's report as HTML for notebooks. Names from an archive are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from pgoutput_etl.console import counted
from pgoutput_etl.identifiers import printable
from pgoutput_etl.inspection.report_model import ArchiveReport

_MAX_ROWS = 50

_NUMBERS = "text-align: right"

_TEXTS = "text-align: left"


def summary_line(report: ArchiveReport) -> str:
    ended = ", ".join(f"{count:,} {status}" for status, count in report.transactions.items() if count)
    damaged = "; damaged or incomplete" if report.is_damaged else ""
    messages = sum(report.messages.values())
    content = f"{report.content_bytes:,} bytes of content, {messages:,} messages"
    return f"{counted(len(report.files), 'file')}, {content}; transactions: {ended or 'none'}{damaged}"


def report_html(report: ArchiveReport) -> str:
    """HTML with the archive's facts, tables, and damage."""
    parts = [f"<p><b>Archive.</b> {_text(summary_line(report))}.</p>", _facts(report), _tables(report)]
    problems = [*report.unreadable, *report.damages, *report.gaps]
    if problems:
        items = "".join(f"<li>{_text(line)}</li>" for line in problems[:_MAX_ROWS])
        more = f"<li>… and {len(problems) - _MAX_ROWS:,} more</li>" if len(problems) > _MAX_ROWS else ""
        parts.append(f"<p><b>Damaged, missing or out of order:</b></p><ul>{items}{more}</ul>")
    return "".join(parts)


def _facts(report: ArchiveReport) -> str:
    rows = [
        ("server", report.server),
        ("protocol", report.protocol),
        ("framing", ", ".join(report.framings) or "unknown"),
        ("settings", "; ".join(f"{name} {', '.join(values)}" for name, values in report.settings.items())),
        ("commits", _span(report.first_commit_lsn, report.last_commit_lsn)),
        ("committed", _span(report.first_commit_time, report.last_commit_time)),
        ("origins", ", ".join(f"{name} {count:,}" for name, count in report.origins.items())),
        ("message prefixes", ", ".join(report.prefixes)),
        ("bytes", ", ".join(f"{size:,} {name}" for name, size in report.accounts.items())),
    ]
    return _table((), [row for row in rows if row[1]], {1: _TEXTS})


def _span(first: str | None, last: str | None) -> str:
    return "" if first is None or last is None else f"{first} to {last}"


def _tables(report: ArchiveReport) -> str:
    rows = []
    for relation in report.relations[:_MAX_ROWS]:
        name = "no Relation message" if relation.schema is None else f"{relation.schema}.{relation.table}"
        key = [column.name for column in relation.versions[-1].columns if column.is_key] if relation.versions else []
        counts = [f"{relation.committed[op]:,}" for op in "IUDT"]
        others = ", ".join(f"{count:,} {status}" for status, count in relation.others.items())
        rows.append((name, ", ".join(key), str(len(relation.versions)), *counts, others))
    if len(report.relations) > _MAX_ROWS:
        rows.append((f"… and {len(report.relations) - _MAX_ROWS:,} more", *("" for _ in range(7))))
    heads = ("table", "key", "versions", "inserts", "updates", "deletes", "truncates", "not committed")
    return _table(heads, rows, {0: _TEXTS, 1: _TEXTS, 7: _TEXTS}) if rows else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], styles: dict[int, str]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        elements = (f'<{tag} style="{styles.get(i, _NUMBERS)}">{_text(cell)}</{tag}>' for i, cell in enumerate(cells))
        return f"<tr>{''.join(elements)}</tr>"

    head = f"<thead>{line(heads, 'th')}</thead>" if heads else ""
    return f"<table>{head}<tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"


def _text(text: str) -> str:
    return escape(printable(text))
