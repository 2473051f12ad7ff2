"""Finished batches and type names, read from the ledger without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pgoutput_etl.ledger.reader import LedgerReader
from pgoutput_etl.ledger.tables import check_format
from pgoutput_etl.timestamps import time_of
from pgoutput_etl.types import UserTypes

_BATCH = (
    *("batch", "status", "at", "last_commit_lsn", "state", "tables", "since", "files", "backfill", "metrics"),
    "format",
)


def utc(time: datetime) -> datetime:
    return time.replace(tzinfo=timezone.utc) if time.tzinfo is None else time.astimezone(timezone.utc)


def iso(time: datetime) -> str:
    return utc(time).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class RecentBatches:
    """The finished batches of recent days, oldest first, and the row of an unfinished batch."""

    done: list[dict[str, Any]]
    begun: dict[str, Any] | None

    @classmethod
    def of(cls, reader: LedgerReader, after: datetime) -> RecentBatches:
        """after: leaves out batches before this time, except for the last one.

        Raises RunError if a newer version wrote the ledger.
        """
        rows = reader.rows("batches", ("batch", "status", "at"))
        done = [row for row in rows if row["status"] == "done"]
        last = max((row["batch"] for row in done), default=0)
        recent = [row["batch"] for row in done if utc(row["at"]) >= after]
        full = reader.rows("batches", _BATCH, min([*recent, last])) if rows else []
        for row in full:
            check_format(row)
        begun = [row for row in full if row["status"] == "begun" and row["batch"] > last]
        finished = [row for row in full if row["status"] == "done"]
        return cls(sorted(finished, key=lambda row: row["batch"]), begun[0] if begun else None)

    @property
    def number(self) -> int:
        """The number of the last finished batch; 0 before the first."""
        return 0 if self.last is None else int(self.last["batch"])

    @property
    def last(self) -> dict[str, Any] | None:
        return self.done[-1] if self.done else None

    @property
    def since(self) -> int:
        """The first batch whose rows about files count."""
        return (self.last or {}).get("since") or 0


def state_of(batch: Mapping[str, Any] | None) -> dict[str, Any] | None:
    state: dict[str, Any] | None = None if batch is None or batch["state"] is None else json.loads(batch["state"])
    return state


def commit_time(batch: Mapping[str, Any] | None) -> datetime | None:
    """The time of the archive's last commit after a batch; None if it was not recorded."""
    time = (state_of(batch) or {}).get("last_commit_ts")
    return None if time is None else time_of(time)


def user_types(reader: LedgerReader, configured: Mapping[str, str]) -> UserTypes:
    """The newest name of every type. configured: `types` in the configuration."""
    rows = sorted(reader.rows("types", ("batch", "oid", "schema", "name")), key=lambda row: row["batch"])
    return UserTypes({row["oid"]: (row["schema"], row["name"]) for row in rows}, configured)
