"""An archive's report as a notebook shows it: a few small tables of HTML. Names from an archive are text there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from pgoutput_etl.identifiers import printable
from pgoutput_etl.inspection.report_model import ArchiveReport

_SHOWN = 50

_NUMBERS = "text-align: right"

_TEXTS = "text-align: left"


def sentence(report: ArchiveReport) -> str:
    """All of it on one line."""
    ended = ", ".join(f"{count:,} {status}" for status, count in report.transactions.items() if count)
    damaged = "; damaged or incomplete" if report.is_damaged else ""
    messages = sum(report.messages.values())
    return (
        f"{_counted(len(report.files), 'file')}, {report.content_bytes:,} bytes of content, {messages:,} messages; "
        f"transactions: {ended or 'none'}{damaged}"
    )


def page(report: ArchiveReport) -> str:
    """HTML: what there is, its tables, and whatever is wrong with it."""
    parts = [f"<p><b>Archive.</b> {_text(sentence(report))}.</p>", _facts(report), _tables(report)]
    wrong = [*report.unreadable, *report.damages, *report.gaps]
    if wrong:
        listed = "".join(f"<li>{_text(line)}</li>" for line in wrong[:_SHOWN])
        more = f"<li>… and {len(wrong) - _SHOWN:,} more</li>" if len(wrong) > _SHOWN else ""
        parts.append(f"<p><b>Damaged, missing or out of order:</b></p><ul>{listed}{more}</ul>")
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
        ("Messages", ", ".join(report.prefixes)),
        ("bytes", ", ".join(f"{size:,} {name}" for name, size in report.accounts.items())),
    ]
    return _table((), [row for row in rows if row[1]], {1: _TEXTS})


def _span(first: str | None, last: str | None) -> str:
    return "" if first is None or last is None else f"{first} to {last}"


def _tables(report: ArchiveReport) -> str:
    rows = []
    for relation in report.relations[:_SHOWN]:
        name = "not described here" if relation.schema is None else f"{relation.schema}.{relation.table}"
        key = [column.name for column in relation.versions[-1].columns if column.is_key] if relation.versions else []
        counts = [f"{relation.committed[op]:,}" for op in "IUDT"]
        others = ", ".join(f"{count:,} {status}" for status, count in relation.others.items())
        rows.append((name, ", ".join(key), str(len(relation.versions)), *counts, others))
    if len(report.relations) > _SHOWN:
        rows.append((f"… and {len(report.relations) - _SHOWN:,} more", *("" for _ in range(7))))
    heads = ("table", "key", "versions", "inserts", "updates", "deletes", "truncates", "not counted")
    return _table(heads, rows, {0: _TEXTS, 1: _TEXTS, 7: _TEXTS}) if rows else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], styles: dict[int, str]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        said = (f'<{tag} style="{styles.get(i, _NUMBERS)}">{_text(cell)}</{tag}>' for i, cell in enumerate(cells))
        return f"<tr>{''.join(said)}</tr>"

    head = f"<thead>{line(heads, 'th')}</thead>" if heads else ""
    return f"<table>{head}<tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"


def _text(text: str) -> str:
    return escape(printable(text))


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
