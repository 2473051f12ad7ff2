"""The daily figures of recent runs, from the ledger's `batches` and `files`."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pgoutput_etl.answers.status.report import Day, DayTable
from pgoutput_etl.landing.fingerprint import FileStatus
from pgoutput_etl.ledger.reader import LedgerReader
from pgoutput_etl.ledger.recent_batches import commit_time, utc
from pgoutput_etl.load.summary import ROW_OPERATIONS

MOST_DAYS = 30  # including the report's

_FILE = ("batch", "status", "size", "offset", "consumed", "messages")


def file_counts(reader: LedgerReader, first_batch: int) -> dict[int, Counter[str]]:
    """The numbers of files that were read, of their bytes (see `Batch.size`), and of their messages, by batch, from
    `first_batch` on."""
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for row in reader.rows("files", _FILE, first_batch):
        # An older ledger has no status: it only recorded files that were read.
        if row["status"] in (None, FileStatus.READ.value):
            size = row["consumed"] - row["offset"] if row["offset"] else row["size"]
            messages = sum(count for _, count in row["messages"] or ())
            counts[row["batch"]].update(files=1, bytes=size, messages=messages)
    return counts


def days_of(batches: Iterable[Mapping[str, Any]], counts: Mapping[int, Counter[str]]) -> tuple[Day, ...]:
    """One per day with a finished batch. batches: rows of the ledger, in order. counts: file counts by batch."""
    by_day: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for batch in batches:
        by_day[utc(batch["at"]).date().isoformat()].append(batch)
    return tuple(_day(day, rows, counts) for day, rows in sorted(by_day.items()))


def _day(day: str, batches: list[Mapping[str, Any]], counts: Mapping[int, Counter[str]]) -> Day:
    last = batches[-1]
    # A redrive records all files again.
    total = sum((counts.get(b["batch"], Counter()) for b in batches if b["backfill"] is None), Counter[str]())
    measured = [json.loads(batch["metrics"]) for batch in batches if batch["metrics"] is not None]
    stages = dict.fromkeys(stage for metrics in measured for stage in metrics["seconds"])
    seconds = {stage: round(sum(m["seconds"].get(stage, 0.0) for m in measured), 3) for stage in stages}
    tables = _tables(last, [metrics["rows"] for metrics in measured])
    return Day(day, len(batches), total["files"], total["bytes"], total["messages"], seconds, _lag(last), tables)


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
