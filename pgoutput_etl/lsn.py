"""Log sequence numbers: positions in PostgreSQL's WAL, unsigned 64-bit, written as two hexadecimal halves."""

from __future__ import annotations

import re

MAX_LSN = 2**64 - 1

# Spark and Delta have no unsigned 64-bit type, and no server has written 8 EiB of WAL.
MAX_STORED_LSN = 2**63 - 1

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def parse_lsn(text: str) -> int:
    """Parses `16/B374D848`. Raises ValueError."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"not an LSN: {text!r} (expected two hexadecimal halves, such as 16/B374D848)")
    return int(match[1], 16) << 32 | int(match[2], 16)


def format_lsn(lsn: int) -> str:
    """The form that PostgreSQL prints: `0/1786300`."""
    if not 0 <= lsn <= MAX_LSN:
        raise ValueError(f"not an LSN: {lsn} is outside 0 to 2^64-1")
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
