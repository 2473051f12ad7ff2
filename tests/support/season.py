"""A season: five nights of one archive with tables in every mode, applied once and then only read.

It has a rename, a truncate, an added column, a rolled-back schema change, a resend, a streamed transaction that stays
open over a night, a held table, a quarantined table, and a skipped table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.work.files.report import RunSummary
from tests.support.jobs import Nights
from tests.support.small_archives import (
    Messages,
    copydata,
    delete,
    delete_full,
    insert,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
    truncate,
    update,
)

ORDERS, LINES, SOFT, PAST, EVENTS, BAG, ODD, EMPTIED, SPOILT, SKIPPED = range(501, 511)
SOURCE = "season"
RULES = (
    "tables=[{match: public.soft, mode: soft_delete}, {match: public.past, mode: history}, "
    "{match: public.events, mode: append}, {match: public.skipped, skip: true}]"
)
KEPT = (SOFT, PAST, EVENTS)
NAMES = {
    ORDERS: "orders",
    LINES: "lines",
    SOFT: "soft",
    PAST: "past",
    EVENTS: "events",
    ODD: "odd",
    EMPTIED: "emptied",
    SPOILT: "spoilt",
    SKIPPED: "skipped",
}
_TABLES = [
    *(table(oid=oid, name=name) for oid, name in NAMES.items()),
    table("a", "b", oid=BAG, name="bag", identity=ReplicaIdentity.FULL),
]
_SWAPPED = replace(_TABLES[[*NAMES].index(ODD)], columns=tuple(reversed(table().columns)))
_NEVER = table("id", "v", "never", oid=ORDERS, name="orders")
_AGAIN = transaction(7, 0x440, insert("1", "again", None, oid=ORDERS))

NIGHTS: list[Messages] = [
    [
        *transaction(1, 0x100, *_TABLES, *(insert("1", "a", oid=oid) for oid in NAMES)),
        *transaction(2, 0x180, *(insert("2", "b", oid=oid) for oid in (ORDERS, *KEPT, EMPTIED))),
        *transaction(10, 0x1C0, insert("3", "c", oid=ORDERS), *[insert("x", "1", oid=BAG)] * 3),
    ],
    [
        *transaction(3, 0x200, *(update("1", "aa", oid=oid) for oid in (ORDERS, *KEPT))),
        *transaction(14, 0x220, *(delete("2", None, oid=oid) for oid in (ORDERS, *KEPT))),
        *transaction(4, 0x240, delete_full("x", "1", oid=BAG), insert("y", None, oid=BAG)),
        *segment(9, _NEVER, insert("9", "z", "n", oid=ORDERS), first=True),
        *stream_abort(9),
        *transaction(8, 0x280, _SWAPPED, insert("b", "2", oid=ODD)),
    ],
    [
        *transaction(5, 0x300, table(oid=LINES, name="lines_2"), insert("2", "c", oid=LINES)),
        *transaction(11, 0x340, truncate(EMPTIED), insert("3", "c", oid=EMPTIED)),
        *transaction(12, 0x380, table("id", "v", "w", oid=ORDERS, name="orders"), insert("4", "d", "w", oid=ORDERS)),
    ],
    [
        *transaction(6, 0x400, insert("2", "spoilt", oid=SPOILT)),
        *_AGAIN,
        *segment(20, insert("5", "e", None, oid=ORDERS), first=True),
    ],
    [*_AGAIN, *stream_commit(20, 0x500)],
]
# A sixth night, which is only planned.
SIXTH = transaction(13, 0x600, update("3", "cc", None, oid=ORDERS), insert("6", "f", None, oid=ORDERS))


@dataclass(frozen=True, slots=True)
class Season:
    """The nights and their summaries, in order."""

    nights: Nights
    summaries: list[RunSummary]

    @property
    def ledger(self) -> str:
        return str(self.nights.job.folder / "tables" / "_pgoutput_etl")

    def values(self, name: str) -> list[tuple[object, ...]]:
        return self.nights.values(name)


def apply_season(nights: Nights) -> Season:
    nights.job.overrides.extend([f"source.name={SOURCE}", RULES])
    summaries = []
    for messages in NIGHTS:
        content = copydata(messages)
        path = nights.land(messages)
        path.write_bytes(content.replace(b"t\0\0\0\x06spoilt", b"?\0\0\0\x06spoilt"))
        summaries.append(nights.job.run())
    return Season(nights, summaries)
