"""Archives from which the changes of chosen rows are erased, and a simple reference for which changes these are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pgoutput_etl.changes.row_search import Condition, FoundChange, Identity, KeyUse, RowSearch
from pgoutput_etl.landing.erasure import erase
from pgoutput_etl.protocol.framing import detect
from pgoutput_etl.replay.mirror import Replay, fragment_outcomes
from pgoutput_etl.scan.message_row import CHANGE_TAGS
from pgoutput_etl.transactions.outcome import TransactionStatus

Place = tuple[int, int]  # file, ordinal


@dataclass(frozen=True)
class ChosenRows:
    """keys: that the chosen rows ever had. at_the_end: those that they have. keys_are_unique: False if rows had the
    same value, or NULL, when it became the table's key, as PostgreSQL does not allow."""

    changes: list[FoundChange]
    keys: set[Identity]
    at_the_end: set[Identity]
    keys_are_unique: bool


@dataclass(frozen=True)
class Landed:
    files: list[bytes]
    key: tuple[str, ...] | None = None

    def replayed(self) -> Replay:
        replay = Replay()
        for number, data in enumerate(self.files):
            replay.add_file(f"{number:03}", data)
        return replay

    @cached_property
    def _replay(self) -> Replay:
        return self.replayed()

    def search(self, oid: int, *conditions: Condition) -> RowSearch:
        return RowSearch(self._replay.assembly.relations.versions(oid), conditions, self.key)

    def changes(self, *oids: int) -> list[dict[str, Any]]:
        """Of tables, with what the assembly says of their transactions, as rows_with_status has it."""
        replay = self._replay
        outcomes = fragment_outcomes(replay.assembly)
        committed = {(row["file"], row["ordinal"]) for row in replay.committed()}
        rows = []
        for row in (row for row in replay._messages if row["tag"] in CHANGE_TAGS and row["relation"] in oids):
            outcome = outcomes.get((row["file"], row["unit"]))
            if (row["file"], row["ordinal"]) in committed:
                fate = TransactionStatus.COMMITTED
            elif outcome is None:
                fate = TransactionStatus.RESENT
            else:
                is_aborted = row["xid"] in outcome.aborted_subxids
                fate = TransactionStatus.ABORTED if is_aborted else outcome.status
            commit: dict[str, int | None] = {"scope": None}
            if outcome is not None:
                commit = {"scope": outcome.scope, "commit_lsn": outcome.commit_lsn, "top_xid": outcome.xid}
            rows.append({**row, **commit, "fate": fate.value})
        return rows

    def found(self, oid: int, *conditions: Condition) -> list[FoundChange]:
        search = self.search(oid, *conditions)
        return [search.find(row) for row in self.changes(oid) if row["tag"] != "T"]

    def chosen(self, oid: int, *conditions: Condition) -> ChosenRows:
        """Follows each row from change to change, as the server did. On Spark, jobs/forget/find.py joins them."""
        rows, search = [row for row in self.changes(oid) if row["tag"] != "T"], self.search(oid, *conditions)
        found = {(row["file"], row["ordinal"]): search.find(row) for row in rows}
        committed = [(r["file"], r["ordinal"]) for r in self._replay.committed() if r["relation"] == oid]
        opened: list[Place] = []
        others: dict[int | None, list[FoundChange]] = {}
        cut_off = _cut_off(rows, found, committed) if search.has_key else set()
        for row in rows:
            place = row["file"], row["ordinal"]
            if row["fate"] == TransactionStatus.OPEN.value and row["top_xid"] not in cut_off:
                opened.append(place)
            elif place not in committed:
                others.setdefault(row["top_xid"], []).append(found[place])
        followed = _Followed()
        for place in committed:
            if place in found:
                followed.add(found[place])
            else:
                followed.rows.clear()  # a TRUNCATE
        first = {key: followed.changes[row][0] for key, row in followed.rows.items()}
        for place in opened:
            followed.add(found[place])
        chosen = {row for row, changes in followed.changes.items() if any(change.is_chosen for change in changes)}
        erased = [change for row in chosen for change in followed.changes[row]]
        keys = {use.identity for change in erased for use in own_uses(change)}
        keys |= {identity for change, identity in followed.begun if change in erased}
        for changes in others.values():
            erased += _also_rolled_back(changes, keys)
        at_the_end = {key for key, change in first.items() if change in erased}
        return ChosenRows(erased, keys, at_the_end, followed.keys_are_unique)

    def without(self, changes: Iterable[FoundChange]) -> Landed:
        by_file: dict[int, dict[int, bool]] = {}
        for change in changes:
            by_file.setdefault(change.file, {})[change.offset] = change.in_stream
        files = [
            erase(data, detect(data), by_file[number]).data if number in by_file else data
            for number, data in enumerate(self.files)
        ]
        return Landed(files)


def _cut_off(
    rows: Sequence[dict[str, Any]], found: Mapping[Place, FoundChange], committed: Sequence[Place]
) -> set[int | None]:
    """The open transactions whose rows, or whose table's key, another one has changed since, or whose table one has
    truncated: they hold no locks."""
    is_committed = {place for place in committed if place in found}
    truncate = max((place for place in committed if place not in found), default=(-1, -1))
    numbers = {use.number for place in is_committed for use in own_uses(found[place])}
    users: dict[Identity, list[tuple[Place, int | None]]] = {}  # None: a committed transaction
    for row in rows:
        place = row["file"], row["ordinal"]
        is_open = row["fate"] == TransactionStatus.OPEN.value
        if is_open or place in is_committed:
            for use in own_uses(found[place]):
                users.setdefault(use.identity, []).append((place, row["top_xid"] if is_open else None))
    cut_off = set()
    for row in (row for row in rows if row["fate"] == TransactionStatus.OPEN.value):
        place = row["file"], row["ordinal"]
        for use in own_uses(found[place]):
            is_overtaken = any(at > place and by != row["top_xid"] for at, by in users[use.identity])
            if is_overtaken or place < truncate or use.number < max(numbers, default=0):
                cut_off.add(row["top_xid"])
    return cut_off


def own_uses(change: FoundChange) -> list[KeyUse]:
    """Of the key that the table had at the change."""
    return [use for use in change.keys if not use.is_later]


@dataclass
class _Followed:
    """rows: the number of the row that has a key. changes: of each row, the last one first. begun: the last changes
    before a table's key changed, with the rows' new keys. Equal rows in a table without a key join rows."""

    rows: dict[Identity, int] = field(default_factory=dict)
    changes: dict[int, list[FoundChange]] = field(default_factory=dict)
    begun: list[tuple[FoundChange, Identity]] = field(default_factory=list)
    keys_are_unique: bool = True
    _count: int = 0
    _number: int = 0

    def add(self, change: FoundChange) -> None:
        uses = own_uses(change)
        if any(use.number > self._number for use in uses):
            self._number = uses[0].number
            live = set(self.rows.values())
            later = {
                row: next(((c, u) for c in self.changes[row] for u in c.keys if u.number == self._number), None)
                for row in live
            }
            self.rows = {known[1].identity: row for row, known in later.items() if known is not None}
            self.keys_are_unique &= len(self.rows) == len(live)
            self.begun += [(known[0], known[1].identity) for known in later.values() if known is not None]
        known = {self.rows[u.identity] for u in uses if not u.begins and u.identity in self.rows}
        row = self._count = self._count + 1
        self.changes[row] = [change, *(c for other in known for c in self.changes.pop(other))]
        self.rows = {key: row if other in known else other for key, other in self.rows.items()}
        for use in uses:
            if use.ends:
                self.rows.pop(use.identity, None)
            else:
                self.rows[use.identity] = row


def _also_rolled_back(changes: Iterable[FoundChange], keys: Iterable[Identity]) -> list[FoundChange]:
    """changes: of a transaction that changed no row."""
    linked, erased, waiting = set(keys), list[FoundChange](), list(changes)
    while found := [c for c in waiting if c.is_chosen or any(use.identity in linked for use in own_uses(c))]:
        linked |= {use.identity for change in found for use in own_uses(change)}
        erased += found
        waiting = [change for change in waiting if change not in found]
    return erased
