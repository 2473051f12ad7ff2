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
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pgoutput_etl.changes.row_search import FoundChange, Identity, KeyPeriod, KeyUse, RowSearch
from pgoutput_etl.errors import RunError
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.load.net_effect import any_of
from pgoutput_etl.lsn import MAX_STORED_LSN
from pgoutput_etl.protocol.messages import Message
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.spark.arrow_types import spark_schema
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

# lsn: orders the changes of rows; NULL for one that changes no row. truncates: the number of TRUNCATEs before it.
# truncated: the LSN of the next one
_FOUND = pa.schema(
    [
        *((name, pa.int64()) for name in ("relation", "version", "offset", "top_xid", "truncates", "truncated")),
        *_AT,
        *((name, pa.bool_()) for name in ("in_stream", "is_chosen")),
        ("keys", pa.list_(_KEY)),
    ]
)

# A stored row: its OID, its key in JSON, the key's number, and the position of the change that wrote it
STORED_KEYS = pa.schema([("relation", pa.int64()), ("identity", pa.string()), ("number", pa.int32()), *_AT])

_ROW = ["relation", "identity", "row"]  # row: the number of the row, or of a time without one

_AFTER_ALL_COMMITS = MAX_STORED_LSN - 1  # of open transactions

Truncates = Mapping[int, Sequence[CommitPosition]]  # in order, by OID

# For tables with several keys, by OID and the key's number: the LSNs from and before which the table had the key
Spans = Mapping[int, Mapping[int, tuple[int, int]]]

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
    found = _found(changes.where(F.col("tag") != "T"), searches, _truncates(changes)).localCheckpoint()
    at = ["relation", "top_xid", "lsn", "file", "ordinal", "truncates", "truncated", "is_chosen"]
    sent = found.select(*at, F.inline("keys")).localCheckpoint()
    spans = _spans_of_keys(sent, searches)
    uses = _without_cut_off(sent, searches, spans)
    of_rows = _numbered(uses.where(F.col("lsn").isNotNull()), max(len(s.keys) for s in searches.values()))
    limits = _limits(of_rows)
    stored = (_rows_of(_while_key(seed, spans, of_rows), limits) for seed in seeds)
    rows = _linked(of_rows, reduce(DataFrame.union, stored, of_rows.where("is_chosen").select(*_ROW)), _ROW)
    others = _of_no_row(uses.where(F.col("lsn").isNull() & ~F.col("is_later")), rows)
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
    periods = _periods(rows, limits, searches, spans)
    return FoundChanges(offsets, erased_at, counts, periods, _unseen(found, versions))


def _truncates(changes: DataFrame) -> Truncates:
    truncates: dict[int, list[CommitPosition]] = {}
    rows = changes.where(F.col("tag") == "T").select("relation", "fate", "commit_lsn", "file", "ordinal")
    for row in rows.toArrow().to_pylist():
        if row["fate"] in ONCE_COMMITTED:
            truncates.setdefault(row["relation"], []).append((row["commit_lsn"], row["file"], row["ordinal"]))
    return {oid: sorted(own) for oid, own in truncates.items()}


def _spans_of_keys(uses: DataFrame, searches: Mapping[int, RowSearch]) -> Spans:
    """Raises RunError if a table had a key again after another one."""
    several = [oid for oid, search in searches.items() if len(search.keys) > 1]
    if not several:
        return {}
    at = F.struct("lsn", "file", "ordinal")
    own = uses.where(_is_committed() & ~F.col("is_later") & F.col("relation").isin(*several))
    ranges = own.groupBy("relation", "number").agg(F.min(at).alias("first"), F.max(at).alias("last")).collect()
    spans: dict[int, dict[int, tuple[int, int]]] = {}
    later: dict[int, Any] = {}  # where the next key begins
    for row in sorted(ranges, key=lambda row: row["number"], reverse=True):
        oid, end = row["relation"], later.get(row["relation"])
        if end is not None and row["last"] > end:
            name = searches[oid].versions.relations[-1].full_name
            raise RunError(
                f"nothing was erased: {name}: it had one of its keys again after another one, so its rows can't be "
                "followed through all changes"
            )
        first = row["first"]["lsn"] if row["number"] else 0
        spans.setdefault(oid, {})[row["number"]] = (first, MAX_STORED_LSN if end is None else end["lsn"])
        later[oid] = row["first"]
    return spans


def _without_cut_off(uses: DataFrame, searches: Mapping[int, RowSearch], spans: Spans) -> DataFrame:
    """Open transactions that were cut off change no row. Those that still run hold locks on their rows and tables, so
    that no other one changes the rows, or the table's key."""
    keyed = [oid for oid, search in searches.items() if search.has_key]
    own = uses.where(F.col("relation").isin(*keyed) & ~F.col("is_later"))
    key, at = ["relation", "identity"], F.struct("file", "ordinal")
    changed = own.where(_is_committed()).groupBy(*key).agg(F.max(at).alias("changed"))
    opened = own.where(_is_open()).join(changed, key, "left")
    is_cut_off = F.coalesce(F.col("changed") > at, F.lit(False)) | _had_before(spans, F.col("lsn"))
    xids = [row["top_xid"] for row in opened.where(is_cut_off).select("top_xid").distinct().collect()]
    is_row_change = ~(_is_open() & F.col("top_xid").isin(*xids))
    return uses.withColumn("lsn", F.when(is_row_change, F.col("lsn")))


def _had_before(spans: Spans, lsn: Column) -> Column:
    """True for a key that the table had only before this LSN."""
    return _is_of([(oid, number, lsn >= end) for oid, own in spans.items() for number, (_, end) in own.items()])


def _is_of(keys: Iterable[tuple[int, int, Column]]) -> Column:
    """True for one of these keys, by OID and number, of which the condition is true."""
    of_keys = [(F.col("relation") == oid) & (F.col("number") == number) & is_met for oid, number, is_met in keys]
    return any_of(of_keys) if of_keys else F.lit(False)


def _while_key(stored: DataFrame, spans: Spans, numbered: DataFrame) -> DataFrame:
    """Without keys that the table no longer had. One that it did not have yet stays if no change tells who had it when
    the table got it: then it may be this row."""
    lsn = F.col("lsn")
    begun = numbered.where("is_later").select(F.col("relation").alias("r"), F.col("identity").alias("i"))
    is_early = _is_of([(oid, number, lsn < first) for oid, own in spans.items() for number, (first, _) in own.items()])
    is_known = (F.col("relation") == F.col("r")) & (F.col("identity") == F.col("i")) & is_early
    return stored.where(~_had_before(spans, lsn)).join(begun, is_known, "left_anti")


def _numbered(uses: DataFrame, keys: int) -> DataFrame:
    """Adds `row`; `starts`: true for the first use of a row; and `ended`: the LSN of the commit after which the row no
    longer has the key. keys: the largest number of a table's keys. The last change of a row under a key is the first
    use of its next one."""
    own = uses.where(~F.col("is_later"))
    numbered = _numbered_by(own.where(F.col("number") == 0)).localCheckpoint()
    for number in range(1, keys):
        last = F.max_by(F.struct("file", "ordinal", "ends"), F.struct("lsn", "file", "ordinal")).alias("last")
        rows = numbered.where(F.col("number") == number - 1).groupBy(*_ROW).agg(last)
        live = rows.where(~F.col("last.ends")).select("relation", "last.file", "last.ordinal")
        later = uses.where(F.col("is_later") & (F.col("number") == number))
        begun = later.join(live, ["relation", "file", "ordinal"], "left_semi")
        next_key = _numbered_by(own.where(F.col("number") == number).unionByName(begun))
        numbered = numbered.unionByName(next_key).localCheckpoint()
    return numbered


def _numbered_by(uses: DataFrame) -> DataFrame:
    """See _numbered; for keys with one number. A time without a row has a number of its own, so a row that comes back
    without a change is another one: a snapshot brought it."""
    in_order = Window.partitionBy("relation", "identity").orderBy("lsn", "file", "ordinal")
    is_truncated = F.col("truncated").isNotNull() & (
        F.coalesce(F.lead("truncates").over(in_order), F.lit(-1)) != F.col("truncates")
    )
    ended = uses.withColumn("ended", F.when(F.col("ends"), F.col("lsn")).when(is_truncated, F.col("truncated")))
    follows_at_once = F.coalesce(F.lag("ended").over(in_order) == F.col("lsn"), F.lit(False))
    is_followed = F.coalesce(F.lead("lsn").over(in_order) == F.col("ended"), F.lit(False))
    limits = ended.withColumn("starts", F.col("begins") | follows_at_once)
    limits = limits.withColumn("leaves", F.col("ended").isNotNull() & ~is_followed)
    left = F.coalesce(F.lag("leaves").over(in_order), F.lit(False))
    return (
        limits.withColumn("passed", F.col("starts").cast("long") + left.cast("long"))
        .withColumn("row", F.sum("passed").over(in_order))
        .drop("passed")
    )


def _limits(numbered: DataFrame) -> DataFrame:
    """The positions at which a key's next row, or a time without one, begins."""
    key = ["relation", "identity"]
    starts = numbered.where("starts").select(*key, "lsn", "file", "ordinal")
    after = numbered.where("leaves").select(*key, F.col("ended") + 1, F.lit(0).cast("long"), F.lit(0).cast("long"))
    return starts.union(after)


def _rows_of(stored: DataFrame, limits: DataFrame) -> DataFrame:
    """The rows that had these keys at their positions."""
    at = F.struct("s.lsn", "s.file", "s.ordinal") <= F.struct("t.lsn", "t.file", "t.ordinal")
    same = (F.col("s.relation") == F.col("t.relation")) & (F.col("s.identity") == F.col("t.identity")) & at
    joined = stored.alias("t").join(limits.alias("s"), same, "left")
    key = [F.col(f"t.{name}") for name in STORED_KEYS.names]
    return joined.groupBy(*key).agg(F.count("s.lsn").alias("row")).select(*_ROW)


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


def _periods(
    rows: DataFrame, limits: DataFrame, searches: Mapping[int, RowSearch], spans: Spans
) -> dict[int, list[KeyPeriod]]:
    """Of rows of `_linked`."""
    positions: dict[tuple[int, str], list[CommitPosition]] = {}
    own = limits.join(rows.select("relation", "identity").distinct(), ["relation", "identity"], "left_semi")
    for limit in own.toArrow().to_pylist():
        position = limit["lsn"], limit["file"], limit["ordinal"]
        positions.setdefault((limit["relation"], limit["identity"]), []).append(position)
    periods: dict[int, list[KeyPeriod]] = {}
    for row in rows.toArrow().to_pylist():
        oid, identity = row["relation"], identity_of(json.loads(row["identity"]))
        ends = [None, *sorted(positions.get((oid, row["identity"]), ())), None]
        period = KeyPeriod(identity, *ends[row["row"] : row["row"] + 2])
        if (span := spans.get(oid, {}).get(searches[oid].number_of(identity))) is not None:
            period = period.within(*((lsn, 0, 0) for lsn in span))
        if not period.is_empty:
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
    before = 0 if lsn is None else bisect(truncates, (lsn, change.file, change.ordinal))
    return {
        "relation": row["relation"],
        "version": change.version,
        "offset": change.offset,
        "top_xid": -1 if row["top_xid"] is None else row["top_xid"],
        "truncates": before,
        "truncated": truncates[before][0] if before < len(truncates) else None,
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
        return _AFTER_ALL_COMMITS
    lsn: int | None = row["commit_lsn"] if row["fate"] in ONCE_COMMITTED else None
    return lsn


def _is_open() -> Column:
    return F.col("lsn") == _AFTER_ALL_COMMITS


def _is_committed() -> Column:
    return F.col("lsn") < _AFTER_ALL_COMMITS


def identity_of(key: Iterable[tuple[tuple[int, int], str | None]]) -> Identity:
    """The key, from lists as JSON has them."""
    return tuple(((number, place), text) for (number, place), text in key)
