"""Quoting shared by ranges and composites."""

from __future__ import annotations

from collections.abc import Callable


def quoted(text: bytes, must_quote: Callable[[bytes], object]) -> bytes:
    """Quote like range_out and record_out: double quotes where necessary, quotes and backslashes doubled."""
    if not must_quote(text):
        return text
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'""') + b'"'
