"""Finds the changes of chosen rows, and chosen Messages, in all landed files, whatever became of their transactions.

A key belongs to one row after the other. Its uses in commit order are numbered by row, with the times between two rows:
a row may come back with a snapshot. Open transactions come last, as they hold locks on their rows. One that was rolled
back, cut off, or sent again changes no row, so its changes link only each other: they are found by any key that a
chosen row ever had.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.changes.key_times import KeyPeriod, KeyTimes
from pgoutput_etl.changes.row_search import FoundChange, Identity, KeyUse, RowSearch
from pgoutput_etl.jobs.forget.key_uses import (
    AFTER_ALL_COMMITS,
    ROW,
    Spans,
    Truncates,
    limits_of,
    numbered,
    spans_of_keys,
    without_cut_off,
)
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.protocol.messages import Message
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.transactions.logical_messages import decoded
from pgoutput_etl.transactions.outcome import ONCE_COMMITTED, TransactionStatus

_AT = [(name, pa.int64()) for name in ("lsn", "file", "ordinal")]

# A KeyUse. identity: in JSON
_KEY = pa.struct(
    [
        ("identity", pa.string()),
        ("number", pa.int32()),
        *((name, pa.bool_()) for name in ("begins", "ends", "is_later")),
    ]
)

# lsn: orders the changes of rows; NULL for one that changes no row. truncates: the number of TRUNCATEs before it
_FOUND = pa.schema(
    [
        *((name, pa.int64()) for name in ("relation", "version", "offset", "top_xid", "truncates")),
        *_AT,
        *((name, pa.bool_()) for name in ("in_stream", "is_chosen")),
        ("keys", pa.list_(_KEY)),
    ]
)

# A stored row: its OID, its key in JSON, and the position of the change that wrote it
STORED_KEYS = pa.schema([("relation", pa.int64()), ("identity", pa.string()), *_AT])

_ROWS = pa.schema([("relation", pa.int64()), ("identity", pa.string()), ("row", pa.int64())])

Times = Callable[[int, str], KeyTimes]  # by OID and key

POSITIONS = pa.schema([(name, pa.int64()) for name in ("file", "ordinal", "offset")])


@dataclass(frozen=True, slots=True)
class FoundChanges:
    """offsets: of the changes to erase, by the file's number, and whether each is in a stream segment. positions: their
    files, ordinals, and offsets. counts: by OID. periods: of the keys of the rows, by OID. unseen: OIDs of tables with
    several versions of the relation, one of which no other change shows."""

    offsets: Mapping[int, Mapping[int, bool]]
    positions: pa.Table
    counts: Mapping[int, int]
    periods: Mapping[int, Collection[KeyPeriod]]
    unseen: frozenset[int] = frozenset()

    def periods_of(self, oid: int) -> Collection[KeyPeriod]:
        return self.periods.get(oid, ())

    @property
    def messages(self) -> int:
        """Number of Messages."""
        return len(self.positions) - sum(self.counts.values())

    def plus(self, messages: Iterable[Mapping[str, Any]]) -> FoundChanges:
        """messages: rows of Messages."""
        offsets = {file: dict(own) for file, own in self.offsets.items()}
        rows = list(messages)
        for row in rows:
            offsets.setdefault(row["file"], {})[row["offset"]] = row["xid"] is not None
        positions = [{name: row[name] for name in POSITIONS.names} for row in rows]
        added = pa.Table.from_pylist(positions, POSITIONS)
        return replace(self, offsets=offsets, positions=pa.concat_tables([self.positions, added]))


def find_changes(
    archive: DeltaArchive, searches: Mapping[int, RowSearch], seeds: Iterable[DataFrame] = ()
) -> FoundChanges:
    """searches: by OID. seeds: chosen rows, in STORED_KEYS. Raises ArchiveError if a file is gone or has changed."""
    changes = archive.all_changes(searches)
    truncates = _truncates(changes)
    found = _found(changes.where(F.col("tag") != "T"), searches, truncates).localCheckpoint()
    at = ["relation", "top_xid", "lsn", "file", "ordinal", "truncates", "is_chosen"]
    sent = found.select(*at, F.inline("keys")).localCheckpoint()
    spans = spans_of_keys(sent, searches)
    uses = without_cut_off(sent, searches, spans, truncates)
    of_rows = numbered(uses.where(F.col("lsn").isNotNull()), spans, truncates)
    stored = pa.concat_tables([STORED_KEYS.empty_table(), *(seed.toArrow().cast(STORED_KEYS) for seed in seeds)])
    times = _times(of_rows, frame(changes.sparkSession, stored), truncates)
    known = frame(changes.sparkSession, pa.Table.from_pylist(_rows_of(stored, times, searches, spans), _ROWS))
    rows = _linked(of_rows, known.union(of_rows.where("is_chosen").select(*ROW)), ROW)
    others = _of_no_row(uses.where(F.col("lsn").isNull() & ~F.col("is_later")), rows)
    chosen = found.where("is_chosen").select("file", "ordinal")
    positions = chosen.union(_with_keys(of_rows, rows, ROW)).union(others).distinct()
    erased = found.join(positions, ["file", "ordinal"], "left_semi").drop("is_chosen", "keys").toArrow()
    offsets: dict[int, dict[int, bool]] = {}
    versions: Counter[tuple[int, int]] = Counter()
    for row in erased.to_pylist():
        offsets.setdefault(row["file"], {})[row["offset"]] = row["in_stream"]
        versions[row["relation"], row["version"]] += 1
    counts: Counter[int] = Counter()
    for (oid, _), number in versions.items():
        counts[oid] += number
    erased_at = erased.select(POSITIONS.names).cast(POSITIONS)
    periods = _periods(rows, _times(of_rows, rows, truncates), searches, spans)
    return FoundChanges(offsets, erased_at, counts, periods, _unseen(found, versions))


def _truncates(changes: DataFrame) -> Truncates:
    truncates: dict[int, list[CommitPosition]] = {}
    rows = changes.where(F.col("tag") == "T").select("relation", "fate", "commit_lsn", "file", "ordinal")
    for row in rows.toArrow().to_pylist():
        if row["fate"] in ONCE_COMMITTED:
            truncates.setdefault(row["relation"], []).append((row["commit_lsn"], row["file"], row["ordinal"]))
    return {oid: sorted(own) for oid, own in truncates.items()}


def _rows_of(
    stored: pa.Table, times: Times, searches: Mapping[int, RowSearch], spans: Spans
) -> list[dict[str, object]]:
    """The rows that had these keys at their positions, while the keys were the table's."""
    rows = []
    for key in stored.to_pylist():
        oid, identity, lsn = key["relation"], key["identity"], key["lsn"]
        first, end = _span_of(identity_of(json.loads(identity)), searches[oid], spans)
        if first <= lsn and (end is None or lsn < end):
            row = times(oid, identity).row_at((lsn, key["file"], key["ordinal"]))
            rows.append({"relation": oid, "identity": identity, "row": row})
    return rows


def _linked(uses: DataFrame, first: DataFrame, names: list[str]) -> DataFrame:
    """The keys that changes link with the first ones, also through others. names: of the columns of a key."""
    keys, count = first.distinct().localCheckpoint(), -1
    while (now := keys.count()) != count:
        changes = _with_keys(uses, keys, names).distinct()
        more = uses.join(changes, ["file", "ordinal"], "left_semi").select(*names)
        keys, count = keys.union(more).distinct().localCheckpoint(), now
    return keys


def _of_no_row(uses: DataFrame, rows: DataFrame) -> DataFrame:
    """The positions of changes of transactions that changed no row. rows: the chosen ones."""
    own = ["relation", "identity", "top_xid"]
    first = uses.join(rows, ["relation", "identity"], "left_semi").select(*own)
    return _with_keys(uses, _linked(uses, first.union(uses.where("is_chosen").select(*own)), own), own)


def _with_keys(uses: DataFrame, keys: DataFrame, names: list[str]) -> DataFrame:
    """The positions of the changes that have one of the keys."""
    return uses.join(keys, names, "left_semi").select("file", "ordinal")


def _span_of(identity: Identity, search: RowSearch, spans: Spans) -> tuple[int, int | None]:
    own = spans.get(search.versions.oid)
    return (0, None) if own is None else own[search.number_of(identity)]


def _times(numbered: DataFrame, keys: DataFrame, truncates: Truncates) -> Times:
    """The times of these keys. numbered: as in key_uses.py."""
    limits: dict[tuple[int, str], list[CommitPosition]] = {}
    first_uses: dict[tuple[int, str], list[CommitPosition]] = {}
    for limit in limits_of(numbered, keys).toArrow().to_pylist():
        key, position = (limit["relation"], limit["identity"]), (limit["lsn"], limit["file"], limit["ordinal"])
        for is_one, positions in ((limit["starts"], limits), (limit["is_first_use"], first_uses)):
            if is_one:
                positions.setdefault(key, []).append(position)

    @cache
    def times(oid: int, identity: str) -> KeyTimes:
        key = oid, identity
        return KeyTimes(sorted(limits.get(key, ())), sorted(first_uses.get(key, ())), truncates.get(oid, ()))

    return times


def _periods(
    rows: DataFrame, times: Times, searches: Mapping[int, RowSearch], spans: Spans
) -> dict[int, list[KeyPeriod]]:
    """Of rows of `_linked`."""
    periods: dict[int, list[KeyPeriod]] = {}
    for row in rows.toArrow().to_pylist():
        oid, identity = row["relation"], identity_of(json.loads(row["identity"]))
        span = _span_of(identity, searches[oid], spans)
        period = times(oid, row["identity"]).period(identity, row["row"], *span)
        if period is not None:
            periods.setdefault(oid, []).append(period)
    return periods


def _unseen(found: DataFrame, erased: Counter[tuple[int, int]]) -> frozenset[int]:
    """erased: numbers of changes by OID and version."""
    rows = found.groupBy("relation", "version").count().collect()
    changes = {(row["relation"], row["version"]): row["count"] for row in rows}
    versions = Counter(oid for oid, _ in changes)
    return frozenset(oid for (oid, n), count in changes.items() if versions[oid] > 1 and erased[oid, n] == count)


def find_messages(archive: DeltaArchive, is_chosen: Callable[[Message], bool]) -> list[dict[str, Any]]:
    """The rows of logical decoding Messages."""
    rows = archive.all_messages().select(*POSITIONS.names, "unit", "xid", "scope", "body").toArrow().to_pylist()
    return [row for row in rows if is_chosen(decoded(row["body"], row["unit"], row["xid"], row["scope"]))]


def _found(changes: DataFrame, searches: Mapping[int, RowSearch], truncates: Truncates) -> DataFrame:
    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [
                _row(row, searches[row["relation"]].find(row), truncates.get(row["relation"], ()))
                for row in batch.to_pylist()
            ]
            yield pa.RecordBatch.from_pylist(rows, _FOUND)

    return changes.mapInArrow(find, spark_schema(_FOUND))


def _row(row: Mapping[str, Any], change: FoundChange, truncates: Sequence[CommitPosition]) -> dict[str, object]:
    lsn = _place_in_order(row)
    return {
        "relation": row["relation"],
        "version": change.version,
        "offset": change.offset,
        "top_xid": -1 if row["top_xid"] is None else row["top_xid"],
        "truncates": 0 if lsn is None else bisect(truncates, (lsn, change.file, change.ordinal)),
        "lsn": lsn,
        "file": change.file,
        "ordinal": change.ordinal,
        "in_stream": change.in_stream,
        "is_chosen": change.is_chosen,
        "keys": [_key(use) for use in change.keys],
    }


def _key(use: KeyUse) -> dict[str, object]:
    others = {name: getattr(use, name) for name in ("number", "begins", "ends", "is_later")}
    return {"identity": json.dumps(use.identity), **others}


def _place_in_order(row: Mapping[str, Any]) -> int | None:
    """See _FOUND."""
    if row["fate"] == TransactionStatus.OPEN.value:
        return AFTER_ALL_COMMITS
    lsn: int | None = row["commit_lsn"] if row["fate"] in ONCE_COMMITTED else None
    return lsn


def identity_of(key: Iterable[tuple[tuple[int, int], str | None]]) -> Identity:
    """The key, from lists as JSON has them."""
    return tuple(((number, place), text) for (number, place), text in key)
