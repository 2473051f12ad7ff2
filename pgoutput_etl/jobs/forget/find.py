"""Finds the changes of chosen rows, and chosen Messages, in all landed files, whatever became of their transactions.

A key belongs to one row after the other. Its uses in commit order are numbered by row; those of open transactions come
last. A transaction that was rolled back, or sent again, changes no row, so its changes link only each other: they are
found by any key that a chosen row ever had.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pgoutput_etl.changes.row_search import FoundChange, Identity, KeyPeriod, RowSearch
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.lsn import MAX_STORED_LSN
from pgoutput_etl.protocol.messages import Message
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.transactions.logical_messages import decoded
from pgoutput_etl.transactions.outcome import ONCE_COMMITTED, TransactionStatus

_AT = [(name, pa.int64()) for name in ("lsn", "file", "ordinal")]

# identity: in JSON
_KEY = pa.struct([("identity", pa.string()), ("begins", pa.bool_()), ("ends", pa.bool_())])

# lsn: orders the changes of rows; NULL for one that changes no row
_FOUND = pa.schema(
    [
        *((name, pa.int64()) for name in ("relation", "version", "offset", "top_xid")),
        *_AT,
        *((name, pa.bool_()) for name in ("in_stream", "is_chosen")),
        ("keys", pa.list_(_KEY)),
    ]
)

# A stored row: its OID, its key in JSON, and the position of the change that wrote it
STORED_KEYS = pa.schema([("relation", pa.int64()), ("identity", pa.string()), *_AT])

_ROW = ["relation", "identity", "row"]  # row: the number of the row among those that had the key

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
    found = _found(archive.all_changes(searches), searches).localCheckpoint()
    uses = found.select(
        "relation", "top_xid", "lsn", "file", "ordinal", "is_chosen", F.inline("keys")
    ).localCheckpoint()
    of_rows = _numbered(uses.where(F.col("lsn").isNotNull())).localCheckpoint()
    starts = of_rows.where("starts").select(*_ROW, "lsn", "file", "ordinal")
    stored = (_rows_of(seed, starts) for seed in seeds)
    rows = _linked(of_rows, reduce(DataFrame.union, stored, of_rows.where("is_chosen").select(*_ROW)), _ROW)
    others = _of_no_row(uses.where(F.col("lsn").isNull()), rows)
    chosen = found.where("is_chosen").select("file", "ordinal")
    positions = chosen.union(_with_keys(of_rows, rows, _ROW)).union(others).distinct()
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
    return FoundChanges(offsets, erased_at, counts, _periods(rows, starts), _unseen(found, versions))


def _numbered(uses: DataFrame) -> DataFrame:
    """Adds `row`, and `starts`: true for its first use, unless it had the key before."""
    in_order = Window.partitionBy("relation", "identity").orderBy("lsn", "file", "ordinal")
    starts = F.col("begins") | F.coalesce(F.lag("ends").over(in_order), F.lit(False))
    numbered = uses.withColumn("starts", starts)
    return numbered.withColumn("row", F.sum(F.col("starts").cast("long")).over(in_order))


def _rows_of(stored: DataFrame, starts: DataFrame) -> DataFrame:
    """The rows that had these keys at their positions."""
    at = F.struct("s.lsn", "s.file", "s.ordinal") <= F.struct("t.lsn", "t.file", "t.ordinal")
    same = (F.col("s.relation") == F.col("t.relation")) & (F.col("s.identity") == F.col("t.identity")) & at
    joined = stored.alias("t").join(starts.alias("s"), same, "left")
    key = [F.col(f"t.{name}") for name in STORED_KEYS.names]
    return joined.groupBy(*key).agg(F.coalesce(F.max("s.row"), F.lit(0)).alias("row")).select(*_ROW)


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


def _periods(rows: DataFrame, starts: DataFrame) -> dict[int, list[KeyPeriod]]:
    """Of rows of `_linked`."""
    positions: dict[tuple[int, str], list[CommitPosition]] = {}
    own = starts.join(rows.select("relation", "identity").distinct(), ["relation", "identity"], "left_semi")
    for start in own.toArrow().to_pylist():
        position = start["lsn"], start["file"], start["ordinal"]
        positions.setdefault((start["relation"], start["identity"]), []).append(position)
    periods: dict[int, list[KeyPeriod]] = {}
    for row in rows.toArrow().to_pylist():
        limits = [None, *sorted(positions.get((row["relation"], row["identity"]), ())), None]
        start, end = limits[row["row"] : row["row"] + 2]
        periods.setdefault(row["relation"], []).append(KeyPeriod(identity_of(json.loads(row["identity"])), start, end))
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


def _found(changes: DataFrame, searches: Mapping[int, RowSearch]) -> DataFrame:
    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [_row(row, searches[row["relation"]].find(row)) for row in batch.to_pylist()]
            yield pa.RecordBatch.from_pylist(rows, _FOUND)

    return changes.mapInArrow(find, spark_schema(_FOUND))


def _row(row: Mapping[str, Any], change: FoundChange) -> dict[str, object]:
    keys = [{"identity": json.dumps(k.identity), "begins": k.begins, "ends": k.ends} for k in change.keys]
    return {
        "relation": row["relation"],
        "version": change.version,
        "offset": change.offset,
        "top_xid": -1 if row["top_xid"] is None else row["top_xid"],
        "lsn": _place_in_order(row),
        "file": change.file,
        "ordinal": change.ordinal,
        "in_stream": change.in_stream,
        "is_chosen": change.is_chosen,
        "keys": keys,
    }


def _place_in_order(row: Mapping[str, Any]) -> int | None:
    """See _FOUND."""
    if row["fate"] == TransactionStatus.OPEN.value:
        return MAX_STORED_LSN
    lsn: int | None = row["commit_lsn"] if row["fate"] in ONCE_COMMITTED else None
    return lsn


def identity_of(key: Iterable[tuple[tuple[int, int], str | None]]) -> Identity:
    """The key, from lists as JSON has them."""
    return tuple(((number, place), text) for (number, place), text in key)
