"""Quarantined data of earlier runs that is still unresolved. A run without new files reports it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_TRANSACTION_REASON = "transaction"  # how the reason of a quarantined transaction begins


@dataclass(frozen=True, slots=True)
class Leftovers:
    """damages: one line per quarantined byte range. transactions: number in quarantine. refused_files: the reasons."""

    damages: tuple[str, ...] = ()
    transactions: int = 0
    refused_files: tuple[str, ...] = ()

    @classmethod
    def of(cls, quarantine: Iterable[Mapping[str, Any]]) -> Leftovers:
        """quarantine: rows of the ledger's table, without those of held tables."""
        rows = sorted(quarantine, key=lambda row: (row["file"], row["offset"] or 0))
        ranges = [row for row in rows if row["offset"] is not None]
        transactions = [row for row in ranges if row["reason"].startswith(_TRANSACTION_REASON)]
        return cls(
            tuple(
                bytes_in_words(row["path"], row["offset"], row["length"], row["reason"])
                for row in ranges
                if row not in transactions
            ),
            len({(row["xid"], row["lsn"]) for row in transactions}),
            tuple(row["reason"] for row in rows if row["offset"] is None),
        )


def bytes_in_words(path: str, offset: int, length: int, reason: str) -> str:
    return f"{path}: {length:,} bytes at offset {offset:,}: {reason}"
