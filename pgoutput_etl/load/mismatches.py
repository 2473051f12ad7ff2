"""Counts the changes of a batch that contradict their table's rows (targets/mismatches.py).

The chains of the net rows (changes/key_chains.py) contain the contradictions among the batch's own changes. What
remains is to compare the first change of each chain with the target's row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.changes.event_log import TRUNCATED
from pgoutput_etl.changes.events import INSERTED, MOVED_IN
from pgoutput_etl.changes.key_chains import PRESUMING
from pgoutput_etl.changes.key_facts import Ranges, interval, ranged
from pgoutput_etl.load.bag_deletes import may_be_stale, ranked, settled, survivors
from pgoutput_etl.load.commit import WriteResult
from pgoutput_etl.load.key_chains import chain_of_key
from pgoutput_etl.load.key_match import rows_within, same_key
from pgoutput_etl.load.merge import RowMerge
from pgoutput_etl.load.net_effect import (
    event_key_parts,
    keyed_columns,
    net_of_bag,
    rows_with_content,
    with_sequence,
)
from pgoutput_etl.load.row_states import EventLog, next_truncate, truncates_of
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.delta import files_left
from pgoutput_etl.targets.mismatches import Mismatches


def counted(chain: str, is_stored: Column) -> dict[str, Column]:
    """Aggregates over net rows, for `counted_in`. chain: the name of the chain column. is_stored: true if the target
    had a row with the key."""
    op, no, zero = F.col(f"{chain}.op"), F.lit(False), F.lit(0).cast("long")
    is_missing = F.coalesce(op.isin(*PRESUMING) & ~is_stored, no)
    is_doubled = F.coalesce((op == MOVED_IN) & is_stored, no)
    first = {
        name: F.when(is_missing | is_doubled, F.col(f"{chain}.{name}")).otherwise(F.col(f"{chain}.bad_{name}"))
        for name in ("lsn", "xid")
    }
    totals = {
        name: F.coalesce(F.sum(F.coalesce(F.col(f"{chain}.{name}"), zero) + is_one.cast("long")), zero)
        for name, is_one in (("missing", is_missing), ("doubled", is_doubled))
    }
    return {**totals, "first_lsn": F.min(first["lsn"]), "first_xid": F.min_by(first["xid"], first["lsn"])}


def counted_in(values: Mapping[str, Any]) -> Mismatches | None:
    """The mismatches, from the results of the aggregates of `counted`; None if there are none."""
    if not values["missing"] + values["doubled"]:
        return None
    return Mismatches(values["missing"], values["doubled"], values["first_lsn"], values["first_xid"])


def mismatches_with(net: DataFrame, shape: TableShape, stored: DataFrame | None) -> Mismatches | None:
    """Compares net rows with the target's rows before them. stored: these rows; None if there were none."""
    if stored is None:
        return _aggregated(net, counted("_chain", F.lit(False)))
    # A chain that begins with an INSERT assumes nothing.
    is_compared = (F.col("_chain.op") != INSERTED) | (F.col("_chain.missing") + F.col("_chain.doubled") > 0)
    rows = net.where(is_compared).select(F.struct("*").alias("s"))
    pairs = rows.join(stored.alias("t"), same_key(shape, {}), "left")
    return _aggregated(pairs, counted("s._chain", F.col("t._pg_commit_lsn").isNotNull()))


def _aggregated(rows: DataFrame, aggregates: Mapping[str, Column]) -> Mismatches | None:
    row = rows.agg(*(value.alias(name) for name, value in aggregates.items())).collect()[0]
    return counted_in(row.asDict())


@dataclass(frozen=True, slots=True)
class Chains:
    """Facts about the chains of a batch's net rows. presuming: chains that begin with a change of an existing row.
    moved: those that begin with a move to the key. others: those that begin with a move or an INSERT. own:
    contradictions within chains. ranges: key ranges of `others`."""

    presuming: int
    moved: int
    others: int
    own: Mismatches | None
    ranges: Ranges


def chain_facts(shape: TableShape) -> dict[str, Column]:
    """Aggregates over materialized net rows, for `chains_in`."""
    presumes = _presumes()
    counts = {"presuming": presumes, "moved": F.col("_chain.op") == MOVED_IN, "others": ~presumes}
    limits = {
        f"{limit.__name__}{i}": limit(F.when(~presumes, F.col(f"c{i}")))
        for i in ranged(shape)
        for limit in (F.min, F.max)
    }
    known = {name: F.count_if(column) for name, column in counts.items()}
    return {**counted("_chain", F.lit(None).cast("boolean")), **known, **limits}


def _presumes(alias: str = "") -> Column:
    return F.coalesce(F.col(f"{alias}_chain.op").isin(*PRESUMING), F.lit(False))


def chains_in(values: Mapping[str, Any], shape: TableShape) -> Chains:
    """The chains, from the results of the aggregates of `chain_facts`."""
    ranges = {i: interval(values[f"min{i}"], values[f"max{i}"]) for i in ranged(shape)}
    return Chains(values["presuming"], values["moved"], values["others"], counted_in(values), ranges)


def chains_of(net: DataFrame, shape: TableShape) -> Chains:
    """Computes facts about chains with one Spark job. net: materialized net rows."""
    facts = net.agg(*(value.alias(name) for name, value in chain_facts(shape).items()))
    return chains_in(facts.toArrow().to_pylist()[0], shape)  # collect() converts times to another zone


@dataclass(frozen=True, slots=True)
class Presumptions:
    """The assumptions that the net rows of a MERGE make about the target's rows. Made before the MERGE.

    target: reads its rows at a version. is_known: `found` has the mismatches, whatever the MERGE does. others_are_new:
    the target has no row under the keys of `chains.others`.
    """

    net: DataFrame
    shape: TableShape
    target: Callable[[int | None], DataFrame]
    chains: Chains
    is_known: bool
    found: Mismatches | None
    others_are_new: bool = False

    @classmethod
    def of(
        cls, net: DataFrame, shape: TableShape, target: Callable[[int | None], DataFrame], chains: Chains
    ) -> Presumptions:
        """target: reads its rows at a version; None is the newest. chains: of the net rows."""
        if not (chains.presuming or chains.moved):
            return cls(net, shape, target, chains, True, chains.own)
        if chains.others and _any_stored(net, shape, target(None), chains.ranges):
            return cls(net, shape, target, chains, True, mismatches_with(net, shape, target(None)))
        return cls(net, shape, target, chains, False, None, others_are_new=chains.others > 0)

    def narrowed(self, merge: RowMerge) -> RowMerge:
        """The MERGE, which compares only net rows that may match: a join has less to broadcast."""
        return replace(merge, condition=_presumes("s.") & merge.condition) if self.others_are_new else merge

    def checked(self, result: WriteResult) -> WriteResult:
        """The MERGE's result with its mismatches. If only rows that must exist can match, the MERGE's metrics tell
        whether all of them did."""
        if self.is_known:
            return replace(result, mismatches=self.found)
        if result.updated + result.deleted == self.chains.presuming:
            return replace(result, mismatches=self.chains.own)
        return replace(result, mismatches=mismatches_with(self.net, self.shape, self.target(result.version - 1)))


def _any_stored(net: DataFrame, shape: TableShape, stored: DataFrame, ranges: Ranges) -> bool:
    """True if the target has a row under a key whose chain doesn't assume one. ranges: of these keys."""
    if ranges and files_left(stored, rows_within(stored, shape, ranges)) == 0:
        return False
    others = net.where(~_presumes()).select(F.struct("*").alias("s"))
    return bool(others.join(stored.alias("t"), same_key(shape, ranges), "left_semi").limit(1).count())


def mismatches_in_log(events: EventLog, shape: TableShape, current: DataFrame | None) -> Mismatches | None:
    """Compares all events of a table, or those after its last truncate, with the target's rows. current: the target's
    rows that also exist in PostgreSQL; None if there are none."""
    if events.are_plain:
        return None
    changes = with_sequence(events.frame)
    if events.has_truncates:
        truncates = F.broadcast(truncates_of(changes))
        kept = changes.where(F.col("_op") != TRUNCATED).crossJoin(truncates).where(next_truncate().isNull())
        changes = kept.drop("_truncates")
        if current is not None:
            current = current.join(truncates.where(F.size("_truncates") == 0), F.lit(True), "left_semi")
    if shape.is_bag:
        return missing_in_bag(net_deletes(changes, shape), shape, current)
    keyed = changes.groupBy(*keyed_columns(event_key_parts(shape))).agg(
        chain_of_key(shape).alias("_chain"),
        *(F.first(f"c{i}").alias(f"c{i}") for i in shape.key),
        F.first("_unrep").alias("_unrep"),
    )
    return mismatches_with(keyed, shape, current)


def net_deletes(events: DataFrame, shape: TableShape) -> DataFrame:
    """A bag's DELETEs, including those from UPDATEs, of rows that the batch didn't insert. events: with `_seq`."""
    return net_of_bag(events, shape).where(F.col("_op") != INSERTED)


def missing_in_bag(deletes: DataFrame, shape: TableShape, stored: DataFrame | None) -> Mismatches | None:
    """Compares DELETEs of rows in the target with its rows before them. deletes: from `net_deletes`. stored: None if
    there were no rows."""
    found = ranked(deletes, shape)
    return missing_among(found if stored is None else settled(found, stored, shape), shape, stored)


def missing_among(deletes: DataFrame, shape: TableShape, stored: DataFrame | None) -> Mismatches | None:
    """Like `missing_in_bag`, for DELETEs that are already settled."""
    missing = deletes
    if stored is not None:
        rows = rows_with_content(stored, shape).groupBy("content").agg(F.count("*").alias("copies"))
        is_missing = F.col("copies").isNull() | (F.col("nth") > F.col("copies"))
        if may_be_stale(shape) and _leaves_wrong_rows(deletes, stored, shape):
            is_missing |= F.col("proven").isNotNull()
        missing = deletes.join(rows, F.col("gone") == F.col("content"), "left").where(is_missing)
    first = {"first_lsn": F.min("_lsn"), "first_xid": F.min_by("_xid", "_lsn")}
    return _aggregated(missing, {"missing": F.count("*"), "doubled": F.lit(0), **first})


def _leaves_wrong_rows(deletes: DataFrame, stored: DataFrame, shape: TableShape) -> bool:
    """True if stored rows remain whose values are proven outdated by the rows that the DELETEs remove."""
    proven = deletes.agg(F.max("proven")).collect()[0][0]
    if proven is None:
        return False
    left = survivors(stored, deletes, shape).where(F.col("row._pg_commit_lsn") <= proven)
    return bool(left.limit(1).count())
