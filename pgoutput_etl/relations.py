"""Versions of each relation, and the one in force for a row.

A Relation message describes a table from where it stands on. Outside stream segments it holds for everything behind
it, also when it came inside a prepared transaction that is rolled back later. Inside a stream segment it holds for
that transaction alone, until the transaction's Stream Commit or Stream Prepare, and from there for all; if the
transaction is aborted it never does. This is what pgoutput itself keeps track of (pgoutput.c, RelationSyncEntry).

Positions are (file's number, message's ordinal), and so order messages across files and runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from pgoutput_etl.messages import Relation

Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class InForce:
    """From `position` on, `relation` describes its OID: for all, or for one streamed transaction (`scope`).

    resent: it came with a transaction that the archive had before. It describes the rows behind it, as any other, but
    tells nothing new about the table: the server is on its way from the past to where it was.
    """

    position: Position
    relation: Relation
    scope: int | None
    resent: bool = False


class RelationView(Protocol):
    """How rows stand in a batch's blocks, where that is not as they were sent."""

    def seen(self, relation: Relation) -> Relation: ...

    def done_to(self, oid: int) -> Mapping[str, str]:
        """By column what is done to its values."""

    def why_not(self, oid: int) -> str | None:
        """Why a table can't go on with what is done to its columns."""


@dataclass(slots=True)
class RelationHistory:
    """All that is known of all relations. Grows with the number of their versions, not with that of messages.

    entries: as they were sent. view: how `latest` and `versions` show them.
    """

    entries: list[InForce] = field(default_factory=list)
    view: RelationView | None = None
    _in_force: dict[tuple[int, int | None], InForce] = field(default_factory=dict)
    _declared: dict[tuple[int, int | None], Position] = field(default_factory=dict)
    _latest: dict[int, Relation] = field(default_factory=dict)
    _holders: dict[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[InForce]) -> RelationHistory:
        """From entries as an earlier run kept them, in any order."""
        history = cls()
        for entry in sorted(entries, key=lambda e: e.position):
            history._add(entry)
        return history

    def declare(self, relation: Relation, position: Position, scope: int | None, resent: bool = False) -> None:
        """A Relation message, in a stream segment of transaction `scope` or outside of any (None)."""
        relation = replace(relation, xid=None)
        slot = (relation.oid, scope)
        known = self._in_force.get(slot)
        says_something = known is None or known.relation != relation
        if scope is None and not resent:
            holder = self._holders.get((relation.namespace, relation.name))
            says_something |= holder != relation.oid or self._latest.get(relation.oid) != relation
        if says_something:
            self._add(InForce(position, relation, scope, resent))
        self._declared[slot] = position

    def promote(self, scope: int, position: Position, resent: bool = False) -> None:
        """Stream Commit or Stream Prepare: what the transaction knew, all know, unless told later themselves."""
        for (oid, of_scope), entry in list(self._in_force.items()):
            if of_scope != scope:
                continue
            if self._declared[oid, scope] > self._declared.get((oid, None), (-1, -1)):
                self.declare(entry.relation, position, None, resent)

    def _add(self, entry: InForce) -> None:
        relation = entry.relation
        slot = (relation.oid, entry.scope)
        self.entries.append(entry)
        self._in_force[slot] = entry
        self._declared[slot] = entry.position
        if entry.scope is None and not entry.resent:
            self._latest[relation.oid] = relation
            self._holders[relation.namespace, relation.name] = relation.oid

    def latest(self, oid: int) -> Relation | None:
        """What holds for all at the end of what was read."""
        found = self._latest.get(oid)
        return None if found is None else self.seen(found)

    def seen(self, relation: Relation) -> Relation:
        return relation if self.view is None else self.view.seen(relation)

    def name_holders(self) -> dict[tuple[str, str], int]:
        """(namespace, name) -> OID of the relation that bore it last: a table that took another's place."""
        return dict(self._holders)

    def oids(self) -> frozenset[int]:
        return frozenset(oid for oid, _ in self._in_force)

    def done_to(self, oid: int) -> Mapping[str, str]:
        """By column what is done to its values, of those that don't stay as they were sent."""
        return {} if self.view is None else self.view.done_to(oid)

    def as_sent(self, oid: int) -> tuple[RelationVersions, Relation]:
        """`versions` without the view, and the relation that the table is known by."""
        versions = self._versions(oid, [entry for entry in self.entries if entry.relation.oid == oid])
        return versions, self._latest.get(oid, versions.relations[-1])

    def versions(self, oid: int) -> RelationVersions:
        """What is needed to find the version of any row of one relation: small, and shipped to executors."""
        mine = [entry for entry in self.entries if entry.relation.oid == oid]
        return self._versions(oid, [replace(entry, relation=self.seen(entry.relation)) for entry in mine])

    def _versions(self, oid: int, mine: list[InForce]) -> RelationVersions:
        relations = list(dict.fromkeys(entry.relation for entry in mine))
        numbers = {relation: number for number, relation in enumerate(relations)}
        scopes: dict[int | None, list[tuple[Position, int]]] = {}
        for entry in sorted(mine, key=lambda e: e.position):
            scopes.setdefault(entry.scope, []).append((entry.position, numbers[entry.relation]))
        return RelationVersions(oid, tuple(relations), {s: tuple(e) for s, e in scopes.items()})


@dataclass(frozen=True, slots=True)
class RelationVersions:
    """One relation's versions, and from which position each holds, for all (None) and within streamed transactions."""

    oid: int
    relations: tuple[Relation, ...]
    holds_from: Mapping[int | None, tuple[tuple[Position, int], ...]]

    def at(self, position: Position, scope: int | None) -> int | None:
        """The index in `relations` of the version in force at a message; None if nothing described it by then."""
        found = None if scope is None else self._last_before(position, scope)
        return self._last_before(position, None) if found is None else found

    def _last_before(self, position: Position, scope: int | None) -> int | None:
        entries = self.holds_from.get(scope, ())
        index = bisect_right(entries, position, key=lambda entry: entry[0])
        return entries[index - 1][1] if index else None


Place = tuple[int, int, int]  # of a committed row: commit LSN, file, ordinal


@dataclass(frozen=True, slots=True)
class Run:
    """From the row at `start` on, in the order of commits, a table's rows stood under `relation`."""

    start: Place
    relation: Relation
