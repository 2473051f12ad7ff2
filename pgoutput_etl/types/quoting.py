"""The quotes that values made of other values have in common, in PostgreSQL's text."""

from __future__ import annotations

from collections.abc import Callable


def quoted(text: bytes, must_quote: Callable[[bytes], object]) -> bytes:
    """As range_out and record_out do it: in double quotes where it must be, with quotes and backslashes doubled."""
    if not must_quote(text):
        return text
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'""') + b'"'
