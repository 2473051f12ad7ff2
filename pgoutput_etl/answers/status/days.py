"""The daily figures of recent runs, from the ledger's `batches` and `files`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgoutput_etl.answers.status.report import Day, DayTable
from pgoutput_etl.landing.fingerprint import FileStatus
from pgoutput_etl.ledger.reader import LedgerReader
from pgoutput_etl.ledger.recent_batches import commit_time, utc
from pgoutput_etl.load.summary import ROW_OPERATIONS

MOST_DAYS = 30  # including the report's

_FILE = ("batch", "status", "size", "offset", "consumed", "messages")


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """The files that a batch has read. bytes: see `Batch.size`."""

    files: int = 0
    bytes: int = 0
    messages: int = 0

    def __add__(self, other: ReadFiles) -> ReadFiles:
        return ReadFiles(self.files + other.files, self.bytes + other.bytes, self.messages + other.messages)


def file_counts(reader: LedgerReader, first_batch: int) -> dict[int, ReadFiles]:
    """The number, size, and messages of the files that were read, by batch, from `first_batch` on."""
    counts: dict[int, ReadFiles] = defaultdict(ReadFiles)
    for row in reader.rows("files", _FILE, first_batch):
        # An older ledger has no status: it only recorded files that were read.
        if row["status"] in (None, FileStatus.READ.value):
            size = row["consumed"] - row["offset"] if row["offset"] else row["size"]
            messages = sum(count for _, count in row["messages"] or ())
            counts[row["batch"]] += ReadFiles(1, size, messages)
    return counts


def days_of(batches: Iterable[Mapping[str, Any]], counts: Mapping[int, ReadFiles]) -> tuple[Day, ...]:
    """One per day with a finished batch. batches: rows of the ledger, in order. counts: file counts by batch."""
    by_day: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for batch in batches:
        by_day[utc(batch["at"]).date().isoformat()].append(batch)
    return tuple(_day(day, rows, counts) for day, rows in sorted(by_day.items()))


def _day(day: str, batches: list[Mapping[str, Any]], counts: Mapping[int, ReadFiles]) -> Day:
    last = batches[-1]
    # A redrive records all files again.
    landed = (counts.get(batch["batch"], ReadFiles()) for batch in batches if batch["backfill"] is None)
    total = sum(landed, ReadFiles())
    measured = [json.loads(batch["metrics"]) for batch in batches if batch["metrics"] is not None]
    stages = dict.fromkeys(stage for metrics in measured for stage in metrics["seconds"])
    seconds = {stage: round(sum(m["seconds"].get(stage, 0.0) for m in measured), 3) for stage in stages}
    tables = _tables(last, [metrics["rows"] for metrics in measured])
    return Day(day, len(batches), total.files, total.bytes, total.messages, seconds, _lag(last), tables)


def _lag(batch: Mapping[str, Any]) -> float | None:
    at: datetime = utc(batch["at"])
    commit = commit_time(batch)
    return None if commit is None else round((at - commit).total_seconds(), 3)


def _tables(last: Mapping[str, Any], changes: list[Mapping[str, Mapping[str, int]]]) -> tuple[DayTable, ...]:
    """The tables after a day's last batch. changes: counts by OID, for each batch that recorded them."""
    tables = []
    for state in sorted(last["tables"] or (), key=lambda table: (table["schema"], table["table"])):
        own = [rows.get(str(state["oid"]), {}) for rows in changes]
        sums = [sum(rows.get(name, 0) for rows in own) if changes else None for name in ROW_OPERATIONS]
        tables.append(DayTable(state["schema"], state["table"], state.get("rows"), *sums))
    return tuple(tables)
