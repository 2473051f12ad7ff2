"""Two nights of a shop that executors write: every table has more changes than a driver types, in every mode."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.replay.mirror import Replay
from tests.support.small_archives import (
    TOAST,
    Change,
    Messages,
    copydata,
    delete,
    delete_full,
    insert,
    segment,
    stream_commit,
    table,
    transaction,
    update,
)

ORDERS, BAG, PAST, SOFT, EVENTS = range(701, 706)
MIRRORS = (ORDERS, BAG)
NAMES = {ORDERS: "orders", BAG: "bag", PAST: "past", SOFT: "soft", EVENTS: "events"}
RULES = (
    "tables=[{match: public.past, mode: history}, {match: public.soft, mode: soft_delete}, "
    "{match: public.events, mode: append}]"
)
ROWS = 2_000  # of each table
_BODY = 400  # random bytes of a row, as digits: more than 1 MB of changes for each table
_CHANGES = 100  # of a transaction
_FILES = 5  # of a night; the last one is compressed
_STREAMED = 90

_RELATIONS = [
    table(
        "id", "v", "body", oid=oid, name=name, identity=ReplicaIdentity.FULL if oid == BAG else ReplicaIdentity.DEFAULT
    )
    for oid, name in NAMES.items()
]


@dataclass(slots=True)
class BusyNights:
    """Makes the nights one after the other, and replays them. random: of the values, and of which rows change."""

    random: Random
    replay: Replay = field(default_factory=Replay)
    bodies: dict[tuple[int, int], str] = field(default_factory=dict)
    """The body of each row, by table and key."""
    lsn: int = 0x1000
    landed: int = 0

    def first(self) -> list[Messages]:
        """Every row is inserted. A streamed transaction stays open."""
        changes: list[Change] = [
            insert(f"{key}", "new", self._body(oid, key), oid=oid) for key in range(ROWS) for oid in NAMES
        ]
        streamed = segment(_STREAMED, *_RELATIONS, *self._more(ROWS), first=True)
        return [*self._transactions(changes), streamed]

    def second(self) -> list[Messages]:
        """A third of the rows is updated, moved (in orders), or deleted, each, and the streamed transaction commits."""
        changes = [change for key in range(ROWS) for oid in NAMES for change in self._changed(oid, key)]
        transactions = self._transactions(changes)
        self.lsn += 0x100
        return [*transactions, [*segment(_STREAMED, *self._more(2 * ROWS)), *stream_commit(_STREAMED, self.lsn)]]

    def land(self, night: list[Messages], *landings: Path) -> None:
        size = len(night) // _FILES + 1
        for begin in range(0, len(night), size):
            messages = [message for part in night[begin : begin + size] for message in part]
            content = copydata(messages, 0x1000000 * (self.landed + 1))
            is_last = begin + size >= len(night)
            name = f"{self.landed:03}.bin" + (".gz" if is_last else "")
            for landing in landings:
                (landing / name).write_bytes(gzip.compress(content, 1) if is_last else content)
            self.replay.add_file(name, content)
            self.landed += 1

    def _transactions(self, changes: list[Change]) -> list[Messages]:
        result = []
        for begin in range(0, len(changes), _CHANGES):
            self.lsn += 0x100
            result.append(transaction(self.lsn, self.lsn, *_RELATIONS, *changes[begin : begin + _CHANGES]))
        return result

    def _more(self, key: int) -> list[Change]:
        return [insert(f"{key + n}", "streamed", self._body(ORDERS, key + n), oid=ORDERS) for n in range(50)]

    def _changed(self, oid: int, key: int) -> list[Change]:
        old = (f"{key}", "new", self.bodies[oid, key])
        if oid == BAG:
            gone = delete_full(*old, oid=oid)
            return [gone] if key % 3 else [gone, insert(f"{key}", "again", self._body(oid, key), oid=oid)]
        match key % 3:
            case 0:
                return [update(f"{key}", "changed", self._body(oid, key), oid=oid)]
            case 1 if oid == ORDERS:
                moved = update(f"{key}m", "moved", TOAST, old_key=[f"{key}", None, None], oid=oid)
                return [moved, insert(f"{key}", "after", self._body(oid, key), oid=oid)]
            case _:
                return [delete(f"{key}", None, None, oid=oid)]

    def _body(self, oid: int, key: int) -> str:
        self.bodies[oid, key] = self.random.randbytes(_BODY).hex()
        return self.bodies[oid, key]
