"""Declared conversions between timestamp and timestamptz: `types/conversion.py` applies them."""

from __future__ import annotations

from dataclasses import dataclass

TIMESTAMP, TIMESTAMPTZ = "timestamp", "timestamptz"


@dataclass(frozen=True, slots=True)
class ZoneConversion:
    """Declared for a column: its type was `before`, and the session that altered it had this time zone."""

    before: str
    zone: str

    @property
    def after(self) -> str:
        return TIMESTAMPTZ if self.before == TIMESTAMP else TIMESTAMP
