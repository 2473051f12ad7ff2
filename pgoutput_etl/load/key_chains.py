"""Chains of a key's changes (changes/key_chains.py), computed by Spark."""

from __future__ import annotations

from functools import partial

from pyspark.sql import Column
from pyspark.sql import functions as F

from pgoutput_etl.changes.events import INSERTED, MOVED_IN
from pgoutput_etl.changes.key_chains import ENDING, PRESUMING, not_unique
from pgoutput_etl.errors import TableError
from pgoutput_etl.load.target_columns import lsn_text
from pgoutput_etl.schema.table_shape import CHAIN_NUMBERS, TableShape


def chain_of_key(shape: TableShape) -> Column:
    """An aggregate that computes the chain of a key's events. events: with `_seq`. Evaluating it raises TableError, as
    changes/key_chains.py does."""
    event = F.struct("_seq", "_op", "_lsn", "_xid", "_chain")
    return _folded(F.array_sort(F.collect_list(event)), shape)


def _folded(events: Column, shape: TableShape) -> Column:
    """The chain of a key's events, in order. While folding, `last`, `last_lsn`, and `last_xid` are the operation,
    commit LSN, and xid of the last event."""
    none, zero = F.lit(None).cast("long"), F.lit(0).cast("long")
    unknown = ("bad_lsn", "bad_xid", "last_lsn", "last_xid", "lsn", "xid")
    fields = {"missing": zero, "doubled": zero, **dict.fromkeys(unknown, none)}
    text = F.lit(None).cast("string")
    start = F.struct(*(value.alias(name) for name, value in fields.items()), text.alias("op"), text.alias("last"))
    folded = F.aggregate(events, start, partial(_with_event, shape))
    return F.struct(*(folded[name].alias(name) for name in ("op", *CHAIN_NUMBERS)))


def _with_event(shape: TableShape, chain: Column, event: Column) -> Column:
    own = event["_chain"]
    op, lsn, xid = (F.coalesce(own[name], event[f"_{name}"]) for name in ("op", "lsn", "xid"))
    is_first, has_ended = chain["last"].isNull(), chain["last"].isin(*ENDING)
    is_missing = ~is_first & has_ended & op.isin(*PRESUMING)
    is_twice = ~has_ended & (op == INSERTED) & (lsn == chain["last_lsn"]) & (xid == chain["last_xid"])
    if not shape.has_unique_key:
        is_twice = F.when(is_twice, _raise_not_unique(shape, lsn, xid)).otherwise(F.lit(False))
    is_doubled = ~is_first & ((~has_ended & (op == MOVED_IN)) | is_twice)
    is_bad = F.coalesce(is_missing | is_doubled, F.lit(False))
    zero = F.lit(0).cast("long")
    counts = {
        name: chain[name] + F.coalesce(own[name], zero) + F.coalesce(bad, F.lit(False)).cast("long")
        for name, bad in (("missing", is_missing), ("doubled", is_doubled))
    }
    firsts = {
        f"bad_{name}": F.coalesce(chain[f"bad_{name}"], F.when(is_bad, value), own[f"bad_{name}"])
        for name, value in (("lsn", lsn), ("xid", xid))
    }
    begun = {name: F.when(is_first, value).otherwise(chain[name]) for name, value in (("lsn", lsn), ("xid", xid))}
    last = {"last_lsn": event["_lsn"], "last_xid": event["_xid"]}
    fields = {**counts, **firsts, **last, **begun, "op": F.when(is_first, op).otherwise(chain["op"])}
    return F.struct(*(value.alias(name) for name, value in fields.items()), event["_op"].alias("last"))


def _raise_not_unique(shape: TableShape, lsn: Column, xid: Column) -> Column:
    """raise_error has no custom error classes, so a line in the form of a worker's traceback names TableError."""
    before, between, after = not_unique(shape, "\0", "\0").split("\0")
    whose = f"\n{TableError.__module__}.{TableError.__name__}: {before}"
    return F.raise_error(F.concat(F.lit(whose), xid.cast("string"), F.lit(between), lsn_text(lsn), F.lit(after + "\n")))
