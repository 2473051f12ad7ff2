"""Numbers the rows that had a key one after the other, by its uses in commit order."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pgoutput_etl.changes.row_search import RowSearch
from pgoutput_etl.errors import RunError
from pgoutput_etl.load.net_effect import any_of
from pgoutput_etl.lsn import MAX_STORED_LSN
from pgoutput_etl.schema.relation_history import CommitPosition

AFTER_ALL_COMMITS = MAX_STORED_LSN - 1  # the LSN of open transactions

# For tables with several keys, by OID: the LSNs from and before which the table had each key, by number. None: still
Spans = Mapping[int, list[tuple[int, int | None]]]

Truncates = Mapping[int, Sequence[CommitPosition]]  # in order, by OID

ROW = ["relation", "identity", "row"]  # row: as in KeyTimes

_KEY = ["relation", "identity"]

_AT = ["lsn", "file", "ordinal"]


def spans_of_keys(uses: DataFrame, searches: Mapping[int, RowSearch]) -> Spans:
    """A key that no change of a row has used is none, unless it is the first. Raises RunError if a table had a key
    again after another one."""
    several = {oid: search for oid, search in searches.items() if len(search.keys) > 1}
    if not several:
        return {}
    at = F.struct(*_AT)
    own = uses.where(~F.col("is_later") & F.col("relation").isin(*several))
    committed = own.where(_is_committed()).groupBy("relation", "number")
    rows = committed.agg(F.min(at).alias("first"), F.max(at).alias("last")).collect()
    ranges = {(row["relation"], row["number"]): row for row in rows}
    opened = own.where(_is_open()).select("relation", "number").distinct().collect()
    is_open = {(row["relation"], row["number"]) for row in opened}
    spans: dict[int, list[tuple[int, int | None]]] = {}
    for oid, search in several.items():
        own_spans: list[tuple[int, int | None]] = []
        later: Any = None  # where the next key begins
        for number in reversed(range(len(search.keys))):
            used = ranges.get((oid, number))
            end = None if later is None else int(later["lsn"])
            if used is not None and later is not None and used["last"] > later:
                raise RunError(
                    f"nothing was erased: {search.versions.relations[-1].full_name}: it had one of its keys again "
                    "after another one, so its rows can't be followed through all changes"
                )
            later = later if used is None else used["first"]
            never = AFTER_ALL_COMMITS if (oid, number) in is_open else MAX_STORED_LSN
            begin = int(used["first"]["lsn"]) if used is not None else never if end is None else end
            first = begin if number else 0
            own_spans.append((first, end))
        spans[oid] = own_spans[::-1]
    return spans


def without_cut_off(
    uses: DataFrame, searches: Mapping[int, RowSearch], spans: Spans, truncates: Truncates
) -> DataFrame:
    """Open transactions that were cut off change no row. Those that still run hold locks on their rows and tables, so
    that no other one changes the rows or the table's key, or truncates the table."""
    keyed = [oid for oid, search in searches.items() if search.has_key]
    own = uses.where(F.col("relation").isin(*keyed) & ~F.col("is_later") & F.col("lsn").isNotNull())
    at = F.struct("file", "ordinal")
    by = own.withColumn("by", F.when(_is_open(), F.col("top_xid")))
    latest = by.groupBy(*_KEY, "by").agg(F.max(at).alias("latest"))
    is_by_another = F.col("by").isNull() | (F.col("by") != F.col("top_xid"))
    opened = own.where(_is_open())
    overtaken = opened.join(latest, _KEY).where(is_by_another & (F.col("latest") > at)).select("top_xid")
    is_cut_off = _is_outside(spans) | _is_before_truncate(truncates)
    cut_off = overtaken.union(opened.where(is_cut_off).select("top_xid")).distinct().collect()
    is_row_change = ~(_is_open() & F.col("top_xid").isin(*(row["top_xid"] for row in cut_off)))
    return uses.withColumn("lsn", F.when(is_row_change, F.col("lsn")))


def _is_before_truncate(truncates: Truncates) -> Column:
    """True for a use that was sent before a TRUNCATE of its table."""
    before = F.lit(False)
    for oid, own in truncates.items():
        file, ordinal = max((file, ordinal) for _, file, ordinal in own)
        is_earlier = (F.col("file") < file) | ((F.col("file") == file) & (F.col("ordinal") < ordinal))
        before |= (F.col("relation") == oid) & is_earlier
    return before


def _held(spans: Spans) -> dict[int, list[int]]:
    """The numbers of the keys that the tables had at a time."""
    return {
        oid: [number for number, (first, end) in enumerate(own) if first not in (end, MAX_STORED_LSN)]
        for oid, own in spans.items()
    }


def _is_outside(spans: Spans) -> Column:
    """True for a use of a key that is not the table's then."""
    lsn = F.col("lsn")
    return _is_of(
        (oid, number, (lsn < first) if end is None else (lsn < first) | (lsn >= end))
        for oid, own in spans.items()
        for number, (first, end) in enumerate(own)
    )


def _is_of(keys: Iterable[tuple[int, int, Column]]) -> Column:
    """True for one of these keys, by OID and number, of which the condition is true."""
    of_keys = [(F.col("relation") == oid) & (F.col("number") == number) & is_met for oid, number, is_met in keys]
    return any_of(of_keys) if of_keys else F.lit(False)


def numbered(uses: DataFrame, spans: Spans, truncates: Truncates) -> DataFrame:
    """Adds `row`; `starts`: true for a row's first use; `leaves`: true if its commit leaves the key without a row; and
    `is_first_use`: true after a TRUNCATE. The last change of a row under a key of the table is the first use of its
    next one."""
    own = uses.where(~F.col("is_later"))
    done = _numbered(own.where(F.col("number") == 0)).localCheckpoint()
    for number in range(1, max(map(len, spans.values()), default=1)):
        next_key = own.where(F.col("number") == number).unionByName(_begun(uses, done, number, spans, truncates))
        done = done.unionByName(_numbered(next_key)).localCheckpoint()
    return done


def _begun(uses: DataFrame, done: DataFrame, number: int, spans: Spans, truncates: Truncates) -> DataFrame:
    """The uses of a key by the last changes of rows before it became the table's, as far as these have it, and were not
    truncated since."""
    before = [
        (
            oid,
            own[own.index(number) - 1],
            F.col("truncates") == bisect(truncates.get(oid, ()), (spans[oid][number][0],)),
        )
        for oid, own in _held(spans).items()
        if number in own
    ]
    place = ["relation", "file", "ordinal"]
    later = uses.where(F.col("is_later") & (F.col("number") == number))
    has_it = done.where(_is_of(before)).join(later.select(*place, F.lit(True).alias("has_next")), place, "left")
    at = F.struct(*_AT)
    rows = has_it.groupBy(*ROW).agg(
        F.max_by("ends", at).alias("is_left"),
        F.max(F.when(F.col("has_next"), at)).alias("last"),
    )
    live = rows.where(~F.col("is_left") & F.col("last").isNotNull()).select("relation", "last.file", "last.ordinal")
    return later.join(live, place, "left_semi")


def _numbered(uses: DataFrame) -> DataFrame:
    """See `numbered`; for keys with one number. A DELETE and what follows it in the same commit leave no time between
    two rows."""
    in_order = Window.partitionBy(*_KEY).orderBy(*_AT)
    is_followed = F.coalesce(F.lead("lsn").over(in_order) == F.col("lsn"), F.lit(False))
    follows = F.coalesce(F.lag("ends").over(in_order) & (F.lag("lsn").over(in_order) == F.col("lsn")), F.lit(False))
    limits = uses.withColumns({"starts": F.col("begins") | follows, "leaves": F.col("ends") & ~is_followed})
    left = F.coalesce(F.lag("leaves").over(in_order), F.lit(False))
    passed = limits.withColumn("passed", F.col("starts").cast("long") + left.cast("long"))
    row = F.sum("passed").over(in_order) + F.col("truncates")
    is_first_use = F.coalesce(F.lag("truncates").over(in_order), F.lit(0)) < F.col("truncates")
    return passed.withColumns({"row": row, "is_first_use": is_first_use}).drop("passed")


def limits_of(rows: DataFrame, keys: DataFrame) -> DataFrame:
    """The limits and first uses of KeyTimes, of some keys. rows: as `numbered` returns them."""
    own = rows.join(keys.select(*_KEY).distinct(), _KEY, "left_semi")
    starts = own.where(F.col("starts") | F.col("is_first_use")).select(*_KEY, *_AT, "starts", "is_first_use")
    zero, no = F.lit(0).cast("long"), F.lit(False)
    left = own.where("leaves").select(*_KEY, F.col("lsn") + 1, zero, zero, ~no, no)
    return starts.union(left)


def _is_open() -> Column:
    return F.col("lsn") == AFTER_ALL_COMMITS


def _is_committed() -> Column:
    return F.col("lsn") < AFTER_ALL_COMMITS
