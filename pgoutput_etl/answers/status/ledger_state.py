"""The state of a source according to its ledger: batches, claims, open transactions, and quarantine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.answers.status.report import ActiveRun, Quarantine, UnfinishedBatch, UnfinishedTransactions
from pgoutput_etl.ledger.claims import CLAIM_COLUMNS, newest
from pgoutput_etl.ledger.reader import LedgerReader
from pgoutput_etl.ledger.recent_batches import iso, state_of, utc
from pgoutput_etl.ledger.tables import erasure_of, table_state, verified_through
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.reasons import ReasonKind, kind_of, with_reason
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.cutoff import Leftovers

_SET_ASIDE = ("relation", "file", "path", "offset", "length", "lsn", "xid", "reason", "reason_kind", "redriven")


def claim_at_work(reader: LedgerReader, now: datetime, last_done: int) -> ActiveRun | None:
    """The claim of an active run, judged by its date. last_done: the last finished batch."""
    rows = [{**row, "at": utc(row["at"])} for row in reader.rows("claims", CLAIM_COLUMNS, last_done)]
    claim = newest(rows)
    if claim is None or claim.has_ended() or not claim.is_fresh(now):
        return None
    since = min(row["at"] for row in rows if row["run"] == claim.run)
    return ActiveRun(claim.batch, str(claim.process), iso(since), iso(claim.at))


def unfinished(begun: Mapping[str, Any] | None, claim: ActiveRun | None) -> UnfinishedBatch | None:
    if begun is None:
        return None
    is_dead = claim is None or claim.batch != begun["batch"]
    is_backfill = begun["backfill"] is not None
    erasure = (erasure_of(begun["backfill"]) or {}).get("reference")
    return UnfinishedBatch(begun["batch"], iso(begun["at"]), len(begun["files"] or ()), is_backfill, is_dead, erasure)


def table_states(last: Mapping[str, Any] | None) -> dict[int, TableState]:
    """The tables after a batch, by OID."""
    return {row["oid"]: table_state(row) for row in (last or {}).get("tables") or ()}


def complete_since(states: Iterable[TableState]) -> dict[str, str]:
    """The value of `Status.complete_since`, by table. Tables that an older version wrote are left out."""
    known = {state.full_name: state.complete_since for state in states if state.complete_since is not None}
    return {name: f"{since.kind.value} at {format_lsn(since.lsn)}" for name, since in sorted(known.items())}


def verified_tables(reader: LedgerReader, states: Mapping[int, TableState]) -> dict[str, str]:
    """The value of `Status.verified_through`, by table."""
    through = verified_through(reader.rows("verifications", ("oid", "lsn")))
    return dict(sorted((states[o].full_name, format_lsn(lsn)) for o, lsn in through.items() if o in states))


def open_transactions(reader: LedgerReader, last: Mapping[str, Any] | None, since: int) -> UnfinishedTransactions:
    """Transactions without an end; the ledger may still have rows of others, which are excluded. since: see
    `RecentBatches.since`."""
    outcomes = Assembly(state=state_of(last)).open_outcomes()
    fragments = {fragment for outcome in outcomes for fragment in outcome.fragments}
    if not fragments:
        return UnfinishedTransactions(len(outcomes))
    stored = reader.columns("open_transactions", ("file", "unit", "begin", "end"), since)
    size = pc.subtract(stored.column("end"), stored.column("begin"))
    sizes = pa.table({"file": stored.column("file"), "unit": stored.column("unit"), "size": size})
    totals = sizes.group_by(["file", "unit"]).aggregate([("size", "sum")]).to_pylist()
    return UnfinishedTransactions(
        len(outcomes), sum(t["size_sum"] for t in totals if (t["file"], t["unit"]) in fragments)
    )


def quarantine(reader: LedgerReader) -> Quarantine:
    """Unreadable bytes and transactions. Rows of refused files are not counted, because the files may have been fixed
    since then."""
    rows = [
        with_reason(r) for r in reader.rows("quarantine", _SET_ASIDE) if r["redriven"] is None and r["relation"] is None
    ]
    ranges = [row for row in rows if row["offset"] is not None]
    resent = [row for row in ranges if kind_of(row["reason"]) is ReasonKind.TORN]
    left = [row for row in ranges if kind_of(row["reason"]) is not ReasonKind.TORN]
    leftovers = Leftovers.of(left)
    return Quarantine(_covered(left), leftovers.transactions, leftovers.damages, resent_bytes=_covered(resent))


def _covered(ranges: Iterable[Mapping[str, Any]]) -> int:
    """The number of bytes in any of these ranges: a transaction's range includes its unreadable bytes."""
    total, end = 0, (-1, 0)
    for row in sorted(ranges, key=lambda row: (row["file"], row["offset"])):
        first, last = (row["file"], row["offset"]), (row["file"], row["offset"] + row["length"])
        total += max(0, last[1] - (max(first, end)[1] if end[0] == first[0] else first[1]))
        end = max(end, last)
    return total
