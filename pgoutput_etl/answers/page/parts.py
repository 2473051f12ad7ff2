"""Parts of one self-contained HTML file: no scripts, no links, no fonts. Names from an archive are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from pgoutput_etl.answers.page.style import STYLE
from pgoutput_etl.identifiers import printable

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def text(words: str) -> str:
    """Escaped for HTML and SVG, without control characters."""
    return escape(printable(words))


def text_lines(lines: Iterable[str]) -> str:
    return "\n".join(map(text, lines))


def document(title: str, body: str) -> str:
    """A whole file."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def header(title: str, verdict: str, is_good: bool, when: str) -> str:
    kind = "good" if is_good else "bad"
    badge = f'<span class="badge {kind}">{text(verdict[:1].upper() + verdict[1:])}</span>'
    return f'<header><h1>{text(title)}</h1>{badge}<div class="when">{text(when)}</div></header>'


def card(title: str, content: str) -> str:
    return f'<section class="card"><h2>{text(title)}</h2>{content}</section>'


def stack(cards: Iterable[str]) -> str:
    content = "".join(cards)
    return f'<div class="stack">{content}</div>' if content else ""


def facts_card(title: str, pairs: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<dt>{text(name)}</dt><dd>{text(words)}</dd>" for name, words in pairs)
    return card(title, f"<dl>{items}</dl>")


def note(words: str) -> str:
    return f'<p class="note">{text(words)}</p>' if words else ""


def bullets(lines: Iterable[str], most: int = 20) -> str:
    """A list of the first lines."""
    shown = list(lines)
    more = [f"… and {len(shown) - most:,} more"] if len(shown) > most else []
    items = "".join(f"<li>{text(line)}</li>" for line in (*shown[:most], *more))
    return f"<ul>{items}</ul>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: Iterable[int] = ()) -> str:
    """words: numbers of columns of prose."""
    escaped = ([text(cell) for cell in row] for row in rows)
    return f'<div class="scroll">{raw_table(heads, escaped, words)}</div>'


def raw_table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: Iterable[int] = ()) -> str:
    """rows: cells as HTML."""
    prose = set(words)

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = (' class="words"' if i in prose else "" for i in range(len(cells)))
        return "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))

    head = line([text(head) for head in heads], "th")
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
