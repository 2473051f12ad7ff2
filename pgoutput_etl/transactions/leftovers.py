"""What an earlier run set aside, and nothing has taken up since: a run that finds nothing new says it once more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_OF_TRANSACTIONS = "transaction"  # how the reason begins why one is in quarantine


@dataclass(frozen=True, slots=True)
class Leftovers:
    """damages: byte ranges in quarantine, a line each; transactions: how many are; refused_files: why they were."""

    damages: tuple[str, ...] = ()
    transactions: int = 0
    refused_files: tuple[str, ...] = ()

    @classmethod
    def of(cls, quarantine: Iterable[Mapping[str, Any]]) -> Leftovers:
        """`quarantine`: rows of the ledger's table, without those of held tables."""
        rows = sorted(quarantine, key=lambda row: (row["file"], row["offset"] or 0))
        of_bytes = [row for row in rows if row["offset"] is not None]
        of_transactions = [row for row in of_bytes if row["reason"].startswith(_OF_TRANSACTIONS)]
        return cls(
            tuple(bytes_in_words(**_named(row)) for row in of_bytes if row not in of_transactions),
            len({(row["xid"], row["lsn"]) for row in of_transactions}),
            tuple(row["reason"] for row in rows if row["offset"] is None),
        )


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("path", "offset", "length", "reason")}


def bytes_in_words(path: str, offset: int, length: int, reason: str) -> str:
    return f"{path}: {length:,} bytes at offset {offset:,}: {reason}"
