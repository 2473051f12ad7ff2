"""Measures how the driver's time per night depends on earlier nights' streamed transactions and on xid wraparound.

Runs assembly alone, without Spark; its state passes from night to night in the ledger's form.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from pgoutput_etl.protocol.messages import PgoutputMessage
from pgoutput_etl.schema.relation_history import RelationEntry, RelationHistory
from pgoutput_etl.transactions.assembly import NOTHING_OPEN, Assembly, open_scopes
from pgoutput_etl.transactions.outcome import control_rows
from pgoutput_etl.xid import XIDS
from tests.support.scan_parts import scan_file
from tests.support.small_archives import copydata, insert, segment, stream_commit, table, transaction

Progress = Callable[[str], None]
NIGHTS = 7
_STREAMED, _TABLES = 1000, 3
_FILES, _BEFORE_WRAP = 50, 3


@dataclass(frozen=True, slots=True)
class NightCost:
    """seconds: the driver's, to assemble the night's files. kept: Relation messages in the ledger, `loaded` of them
    read. looked_back: files whose transactions are compared with those of all nights before."""

    series: str
    night: int
    seconds: float
    kept: int
    loaded: int
    looked_back: int


def measure_nights(scale: float, progress: Progress) -> list[NightCost]:
    progress(f"{NIGHTS} nights of streamed transactions")
    streamed = [[_streamed_night(night, max(1, round(_STREAMED * scale)))] for night in range(NIGHTS)]
    progress(f"{NIGHTS} nights with an xid wraparound")
    wrapping = [[_ordinary_file(night * _FILES + n) for n in range(_FILES)] for night in range(NIGHTS)]
    return [*_night_costs("streamed transactions", streamed), *_night_costs("xids that begin again", wrapping)]


def _streamed_night(night: int, transactions: int) -> bytes:
    messages: list[PgoutputMessage] = []
    for n in range(night * transactions, (night + 1) * transactions):
        described = [table(oid=oid, name=f"t{oid}") for oid in range(_TABLES)]
        rows = [insert(str(n), "v", oid=oid) for oid in range(_TABLES)]
        changes = (message for pair in zip(described, rows, strict=True) for message in pair)
        messages += segment(1000 + n, *changes, first=True)
        messages += stream_commit(1000 + n, 1000 + 10 * n)
    return copydata(messages)


def _ordinary_file(number: int) -> bytes:
    """Ten transactions per file, whose xids wrap around after some nights."""
    messages: list[PgoutputMessage] = []
    for n in range(10 * number, 10 * number + 10):
        xid = (XIDS - 10 * _FILES * _BEFORE_WRAP + n) % XIDS
        described = [table(key=())] if not n else []
        messages += transaction(max(xid, 3), 1000 + 10 * n, *described, insert(str(n), "v"))
    return copydata(messages)


def _night_costs(series: str, nights: list[list[bytes]]) -> list[NightCost]:
    state: str | None = None
    stored: list[RelationEntry] = []
    costs = []
    file = 0
    for night, contents in enumerate(nights, start=1):
        scanned = [scan_file(str(file + n), file + n, content) for n, content in enumerate(contents)]
        file += len(contents)
        controls = [control_rows(result.batches) for result in scanned]
        started = perf_counter()
        scopes = open_scopes(NOTHING_OPEN if state is None else json.loads(state))
        loaded = [entry for entry in stored if entry.scope is None or entry.scope in scopes]
        assembly = Assembly()
        if state is not None:
            assembly = Assembly(RelationHistory.of(loaded), json.loads(state))
        for result, rows in zip(scanned, controls, strict=True):
            assembly.add_file(result.summary, rows)
        seconds = perf_counter() - started
        stored += assembly.relations.entries[len(loaded) :]
        state = json.dumps(assembly.state())
        costs.append(NightCost(series, night, seconds, len(stored), len(loaded), len(assembly.overlaps)))
    return costs
