"""Versions of each relation, and the one in force for a row.

A Relation message describes a table from where it stands on. Outside stream segments it holds for everything behind
it, also when it came inside a prepared transaction that is rolled back later. Inside a stream segment it holds for
that transaction alone, until the transaction's Stream Commit or Stream Prepare, and from there for all; if the
transaction is aborted it never does. This is what pgoutput itself keeps track of (pgoutput.c, RelationSyncEntry).

Decoding rows is all that a Relation message does. A target's columns, key, name and place follow the *committed* rows
that stand under a version (versions.py), because a message can come in a transaction that never commits.

Positions are (file's number, message's ordinal), and so order messages across files and runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from pgoutput_etl.protocol.messages import Relation

Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RelationEntry:
    """From `position` on, `relation` describes its OID: for all, or for one streamed transaction (`scope`)."""

    position: Position
    relation: Relation
    scope: int | None


class RelationMask(Protocol):
    """How rows stand in a batch's blocks, where that is not as they were sent."""

    def masked(self, relation: Relation) -> Relation: ...

    def masks_of(self, oid: int) -> Mapping[str, str]:
        """By column what is done to its values."""

    def reason_unmaskable(self, oid: int) -> str | None:
        """Why a table can't go on with what is done to its columns."""


_OF_SNAPSHOT = 1 << 62  # ordinals that no message in a file has


def snapshot_position(last_file: int, batch: int) -> Position:
    """Where a table is described that a snapshot's server described, and no archive: behind all that was read."""
    return last_file, _OF_SNAPSHOT + batch


def is_of_snapshot(entry: RelationEntry) -> bool:
    return entry.position[1] >= _OF_SNAPSHOT


@dataclass(slots=True)
class _Scope:
    """Relation messages of one streamed transaction that has not ended: by OID the entry in force, if its stream says
    something else than what holds for all, and the position of the newest message."""

    entries: dict[int, RelationEntry] = field(default_factory=dict)
    declared: dict[int, Position] = field(default_factory=dict)


@dataclass(slots=True)
class RelationHistory:
    """All that is known of all relations. Grows with the number of their versions, not with that of messages.

    entries: as they were sent. view: how `newest` and `versions` show them.
    """

    entries: list[RelationEntry] = field(default_factory=list)
    mask: RelationMask | None = None
    _by_oid: dict[int, list[RelationEntry]] = field(default_factory=dict)
    _for_all: dict[int, RelationEntry] = field(default_factory=dict)
    _declared: dict[int, Position] = field(default_factory=dict)
    _scopes: dict[int, _Scope] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[RelationEntry]) -> RelationHistory:
        """From entries as an earlier run stored them, in any order."""
        history = cls()
        for entry in sorted(entries, key=lambda e: e.position):
            history._add(entry)
        return history

    def declare(self, relation: Relation, position: Position, scope: int | None) -> None:
        """A Relation message, in a stream segment of transaction `scope` or outside of any (None)."""
        relation = replace(relation, xid=None)
        oid = relation.oid
        if scope is None:
            # A stream that knows the table otherwise must not make its own version everyone's after this message.
            known = None if self._is_contested(relation) else self._for_all.get(oid)
        else:
            own = self._scopes.get(scope, _Scope()).entries
            known = own.get(oid, self._for_all.get(oid))
        if known is None or known.relation != relation:
            self._add(RelationEntry(position, relation, scope))
        elif scope is None:
            self._declared[oid] = position
        elif scope in self._scopes:
            self._scopes[scope].declared[oid] = position

    def _is_contested(self, relation: Relation) -> bool:
        """Whether an open stream has another description of it."""
        others = (stream.entries.get(relation.oid) for stream in self._scopes.values())
        return any(entry is not None and entry.relation != relation for entry in others)

    def promote(self, scope: int, position: Position) -> None:
        """Stream Commit or Stream Prepare: what the transaction knew, all know, unless told later themselves."""
        stream = self._scopes.pop(scope, _Scope())
        for oid, entry in stream.entries.items():
            if stream.declared[oid] > self._declared.get(oid, (-1, -1)):
                self.declare(entry.relation, position, None)

    def keep_scopes(self, scopes: Collection[int]) -> None:
        """The streamed transactions that have not ended. Entries of others describe their rows, and nothing else."""
        self._scopes = {scope: stream for scope, stream in self._scopes.items() if scope in scopes}

    def end(self, scope: int) -> None:
        """The transaction is over, or is sent again: nothing more is declared in its scope."""
        self._scopes.pop(scope, None)

    def _add(self, entry: RelationEntry) -> None:
        oid = entry.relation.oid
        self.entries.append(entry)
        self._by_oid.setdefault(oid, []).append(entry)
        if entry.scope is None:
            self._for_all[oid] = entry
            self._declared[oid] = entry.position
        else:
            stream = self._scopes.setdefault(entry.scope, _Scope())
            stream.entries[oid] = entry
            stream.declared[oid] = entry.position

    def newest(self, oid: int) -> Relation | None:
        """The last description of a relation, whether or not its transaction was committed: for people, and where no
        committed row says more. None if nothing describes it."""
        return self.masked(self._newest_unmasked(oid)) if oid in self._by_oid else None

    def _newest_unmasked(self, oid: int) -> Relation:
        return self._for_all.get(oid, self._by_oid[oid][-1]).relation

    def masked(self, relation: Relation) -> Relation:
        return relation if self.mask is None else self.mask.masked(relation)

    def oids(self) -> frozenset[int]:
        return frozenset(self._by_oid)

    def masks_of(self, oid: int) -> Mapping[str, str]:
        """By column what is done to its values, of those that don't stay as they were sent."""
        return {} if self.mask is None else self.mask.masks_of(oid)

    def unmasked(self, oid: int) -> tuple[RelationVersions, Relation]:
        """`versions` without the view, and the relation that the table is known by."""
        entries = self._by_oid[oid]
        return self._versions(oid, entries), self._newest_unmasked(oid)

    def versions(self, oid: int) -> RelationVersions:
        """What is needed to find the version of any row of one relation: small, and shipped to executors."""
        mine = self._by_oid.get(oid, [])
        return self._versions(oid, [replace(entry, relation=self.masked(entry.relation)) for entry in mine])

    def _versions(self, oid: int, mine: list[RelationEntry]) -> RelationVersions:
        in_order = sorted(mine, key=lambda e: e.position)
        relations = list(dict.fromkeys(entry.relation for entry in in_order))
        numbers = {relation: number for number, relation in enumerate(relations)}
        scopes: dict[int | None, list[tuple[Position, int]]] = {}
        for entry in in_order:
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


CommitPosition = tuple[int, int, int]  # of a committed row: commit LSN, file, ordinal


@dataclass(frozen=True, slots=True)
class RelationSpan:
    """From the row at `start` on, in the order of commits, a table's rows stood under `relation`."""

    start: CommitPosition
    relation: Relation
