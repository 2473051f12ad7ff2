"""The versions of each relation, and the version in force for a row.

A Relation message describes a table from its position on. Outside of stream segments, it applies to everything after
it, even if it is part of a prepared transaction that is later rolled back. Inside a stream segment, it applies only to
that transaction, until the transaction's Stream Commit or Stream Prepare makes it apply to all transactions. If the
transaction is aborted, it never does. pgoutput keeps the same state (pgoutput.c, RelationSyncEntry).

A Relation message is only used to decode rows. A target's columns, key, name, and place follow the *committed* rows
under each version (version_spans.py), because a message may be part of a transaction that never commits.

Positions are (number of the file, ordinal of the message), which orders messages across files and runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

from pgoutput_etl.protocol.catalog_message import CatalogMessage, DefinedTable
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.schema.definitions import DefinitionEntry, Definitions

Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RelationEntry:
    """`relation` describes its OID from `position` on, for all transactions (scope None) or for one streamed
    transaction. root: the OID that a partition's rows are sent under, if it is published through its root."""

    position: Position
    relation: Relation
    scope: int | None
    root: int | None = None


class RelationMask(Protocol):
    """The difference between the rows in a batch's blocks and the rows as they were sent."""

    def masked(self, relation: Relation) -> Relation: ...

    def masks_of(self, oid: int) -> Mapping[str, str]:
        """The masks of a table, by column."""

    def reason_unmaskable(self, oid: int) -> str | None:
        """Why a table can't continue with its masks, or None."""


_SNAPSHOT_ORDINAL = 1 << 62  # no message in a file has this ordinal


def snapshot_position(last_file: int, batch: int) -> Position:
    """The position of a description from a snapshot's server: after everything that was read."""
    return last_file, _SNAPSHOT_ORDINAL + batch


def is_of_snapshot(entry: RelationEntry) -> bool:
    return entry.position[1] >= _SNAPSHOT_ORDINAL


@dataclass(slots=True)
class _Scope:
    """Relation messages for all transactions or of an open streamed one, by OID. entries: those in force; for a
    streamed transaction, only where they differ from those for all. declared: positions of the newest messages."""

    entries: dict[int, RelationEntry] = field(default_factory=dict)
    declared: dict[int, Position] = field(default_factory=dict)


@dataclass(slots=True)
class RelationHistory:
    """The versions of all relations. Grows with the number of versions, not of messages.

    entries: as they were sent. mask: applied by `newest` and `versions`. definitions: complete the next messages.
    """

    entries: list[RelationEntry] = field(default_factory=list)
    mask: RelationMask | None = None
    definitions: Definitions = field(default_factory=Definitions)
    _by_oid: dict[int, list[RelationEntry]] = field(default_factory=dict)
    _partitions: dict[int, set[int]] = field(default_factory=dict)  # by the root's OID
    _for_all: _Scope = field(default_factory=_Scope)
    _scopes: dict[int, _Scope] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[RelationEntry]) -> RelationHistory:
        """Builds the history from stored entries, in any order."""
        history = cls()
        for entry in sorted(entries, key=lambda e: e.position):
            history._add(entry)
        return history

    def declare(self, relation: Relation, position: Position, scope: int | None, root: int | None = None) -> None:
        """Adds a Relation message in a stream segment of transaction `scope`, or outside of segments (None). root: the
        OID that its rows are sent under (its own for an ordinary table), or None if the archive doesn't show it."""
        relation = self._typed(replace(relation, xid=None))
        oid = relation.oid
        # After this message, an open stream with another version must not make its own version apply to all.
        is_contested = scope is None and self._is_contested(relation)
        known = None if is_contested else self._in_force(oid, scope)
        if root is None and oid in self._by_oid:
            root = self._by_oid[oid][-1].root
        elif root == oid:
            root = None
        if known is None or (known.relation, known.root) != (relation, root):
            self._add(RelationEntry(position, relation, scope, root))
        else:
            self._scope(scope).declared[oid] = position

    def _scope(self, scope: int | None) -> _Scope:
        return self._for_all if scope is None else self._scopes.setdefault(scope, _Scope())

    def _typed(self, relation: Relation) -> Relation:
        """The relation with user types from the previous description, where no catalog Message describes them: they
        never change."""
        former = self._by_oid[relation.oid][-1].relation.columns if relation.oid in self._by_oid else ()
        known = {column.type_oid: column.types for column in former if column.types}
        if not known:
            return relation
        columns = tuple(c if c.types else replace(c, types=known.get(c.type_oid, ())) for c in relation.columns)
        return replace(relation, columns=columns)

    def _is_contested(self, relation: Relation) -> bool:
        """True if an open stream has another version of the relation."""
        others = (stream.entries.get(relation.oid) for stream in self._scopes.values())
        return any(entry is not None and entry.relation != relation for entry in others)

    def follow(self, message: CatalogMessage, position: Position, scope: int | None, xid: int | None) -> None:
        """Updates the descriptions in force from a catalog Message, which may come without a row: names, and the roots
        of partitions. If nothing has changed, it completes their columns. xid: as in Definitions.add."""
        for table in message.tables:
            known = self._in_force(table.oid, scope)
            if known is None:
                continue
            relation = replace(known.relation, namespace=table.namespace, name=table.name)
            definition = self.definitions.definition(table.oid, xid)
            if definition is not None:
                relation = definition.followed(relation)
            if (message.is_resent or table.is_created or message.is_after_rows) and relation.catalog is None:
                relation = self.definitions.completed(relation, xid)
            self.declare(relation, position, scope, self._root_of(table, known) or table.oid)
        for oid in self._detached_by(message):
            known = self._in_force(oid, scope)
            if known is not None and known.root is not None:
                self.declare(known.relation, position, scope, oid)

    def _in_force(self, oid: int, scope: int | None) -> RelationEntry | None:
        own = self._for_all if scope is None else self._scopes.get(scope, self._for_all)
        return own.entries.get(oid, self._for_all.entries.get(oid))

    def _root_of(self, table: DefinedTable, known: RelationEntry) -> int | None:
        """The OID that a partition's rows are sent under: the root's, if the root is published."""
        return table.root if known.root is not None or table.root in self._by_oid else None

    def _detached_by(self, message: CatalogMessage) -> set[int]:
        """Tables that, according to a Message, are no longer partitions."""
        roots = {table.oid for table in message.tables if table.is_root}
        left = {oid for root in roots for oid in self._partitions.get(root, ())}
        return (left - {table.oid for table in message.tables}) | set(message.dropped)

    def promote(self, scope: int, position: Position) -> None:
        """Called at Stream Commit or Stream Prepare: the stream's versions now apply to all, unless a newer one
        does."""
        stream = self._scopes.pop(scope, _Scope())
        for oid, entry in stream.entries.items():
            if stream.declared[oid] > self._for_all.declared.get(oid, (-1, -1)):
                self.declare(entry.relation, position, None, entry.root)

    def keep_scopes(self, scopes: Collection[int]) -> None:
        """Keeps the scopes of open streamed transactions. Entries of other scopes only describe those transactions'
        rows."""
        self._scopes = {scope: stream for scope, stream in self._scopes.items() if scope in scopes}

    def end(self, scope: int) -> None:
        """Ends a scope, because its transaction has ended or is sent again."""
        self._scopes.pop(scope, None)

    def _add(self, entry: RelationEntry) -> None:
        oid = entry.relation.oid
        self.entries.append(entry)
        self._by_oid.setdefault(oid, []).append(entry)
        if entry.root is not None:
            self._partitions.setdefault(entry.root, set()).add(oid)
        scope = self._scope(entry.scope)
        scope.entries[oid] = entry
        scope.declared[oid] = entry.position

    def newest(self, oid: int) -> Relation | None:
        """The last description of a relation, committed or not; None without any. For display, and for tables without
        committed rows."""
        return self.masked(self._newest_unmasked(oid)) if oid in self._by_oid else None

    def _newest_unmasked(self, oid: int) -> Relation:
        return self._for_all.entries.get(oid, self._by_oid[oid][-1]).relation

    def numbered(self, relation: Relation, since: Position) -> Relation:
        """A description in force at `since` that no definition completed, with the columns' numbers from a later
        Message. If it had numbers before, a rewrite since then may have been lost."""
        if relation.catalog is not None:
            return relation
        entries = sorted((e for e in self._by_oid.get(relation.oid, ()) if e.scope is None), key=lambda e: e.position)
        place = bisect_right(entries, since, key=lambda e: e.position)
        earlier, later = entries[:place], entries[place:]
        if not earlier or earlier[-1].relation.catalog is not None:
            return relation  # from a snapshot
        found = next((self.masked(entry.relation) for entry in later if entry.relation.catalog is not None), None)
        if found is None or found.catalog is None or not is_described_alike(relation, found):
            return relation
        known = next((e.relation.catalog for e in reversed(earlier) if e.relation.catalog is not None), found.catalog)
        return replace(relation, columns=found.columns, catalog=replace(found.catalog, rewrites=known.rewrites))

    def masked(self, relation: Relation) -> Relation:
        return relation if self.mask is None else self.mask.masked(relation)

    def partitions(self, root: int, since: Position) -> tuple[Relation, ...]:
        """The descriptions of a root's partitions that are in force at `since` or later, as they were sent."""
        found: list[Relation] = []
        for oid in sorted(self._partitions.get(root, ())):
            entries = sorted((e for e in self._by_oid[oid] if e.scope is None), key=lambda e: e.position)
            first = max(bisect_right(entries, since, key=lambda e: e.position) - 1, 0)
            found += [entry.relation for entry in entries[first:] if entry.root == root]
        return tuple(dict.fromkeys(found))

    def roots(self) -> dict[Relation, Relation]:
        """The newest descriptions of partitions that are published through their root, each with that of the root."""
        newest = (entries[-1] for entries in self._by_oid.values())
        return {e.relation: self._newest_unmasked(e.root) for e in newest if e.root in self._by_oid}

    def attached(self, root: int, since: Position) -> tuple[RelationEntry, ...]:
        """For each table that became a partition of a root after `since`, its description at that point. A partition
        without an earlier description was created as one."""
        moves = (move for oid in sorted(self._partitions.get(root, ())) for move in self._moves(oid, since))
        return tuple(entry for _, entry in moves if entry.root == root)

    def detached(self, root: int, since: Position) -> tuple[RelationEntry, ...]:
        """The first description, after `since`, of each table that ceased to be a partition of the root."""
        moves = (move for oid in sorted(self._partitions.get(root, ())) for move in self._moves(oid, since))
        return tuple(entry for former, entry in moves if former == root)

    def former_roots(self, oid: int, since: Position) -> tuple[Relation, ...]:
        """The roots that a relation was detached from after `since` to become a table of its own."""
        left = (former for former, entry in self._moves(oid, since) if entry.root is None)
        return tuple(relation for former in left if former is not None and (relation := self.newest(former)))

    def _moves(self, oid: int, since: Position) -> Iterator[tuple[int | None, RelationEntry]]:
        """The descriptions of a relation after `since` whose root has changed, with the previous root."""
        for before, entry in pairwise(sorted(self._by_oid.get(oid, ()), key=lambda e: e.position)):
            if entry.root != before.root and entry.position > since:
                yield before.root, entry

    def oids(self) -> frozenset[int]:
        return frozenset(self._by_oid)

    def masks_of(self, oid: int) -> Mapping[str, str]:
        """The masks of a table, by column."""
        return {} if self.mask is None else self.mask.masks_of(oid)

    def unmasked(self, oid: int) -> tuple[RelationVersions, Relation]:
        """`versions` and `newest` without the mask."""
        entries = self._by_oid[oid]
        return self._versions(oid, entries), self._newest_unmasked(oid)

    def versions(self, oid: int) -> RelationVersions:
        """The versions of one relation, small enough to ship to executors."""
        entries = self._by_oid.get(oid, [])
        return self._versions(oid, [replace(entry, relation=self.masked(entry.relation)) for entry in entries])

    def _versions(self, oid: int, entries: list[RelationEntry]) -> RelationVersions:
        in_order = sorted(entries, key=lambda e: e.position)
        relations = list(dict.fromkeys(entry.relation for entry in in_order))
        numbers = {relation: number for number, relation in enumerate(relations)}
        scopes: dict[int | None, list[tuple[Position, int]]] = {}
        for entry in in_order:
            scopes.setdefault(entry.scope, []).append((entry.position, numbers[entry.relation]))
        return RelationVersions(oid, tuple(relations), {s: tuple(e) for s, e in scopes.items()})


def is_described_alike(one: Relation, other: Relation) -> bool:
    return [column.described_as for column in one.columns] == [column.described_as for column in other.columns]


@dataclass(frozen=True, slots=True)
class RelationVersions:
    """One relation's versions. holds_from: where each version starts to apply, by scope (None: all transactions)."""

    oid: int
    relations: tuple[Relation, ...]
    holds_from: Mapping[int | None, tuple[tuple[Position, int], ...]]

    def at(self, position: Position, scope: int | None) -> int | None:
        """The index in `relations` of the version in force at a message; None if nothing describes it."""
        number = None if scope is None else self._last_before(position, scope)
        return self._last_before(position, None) if number is None else number

    def _last_before(self, position: Position, scope: int | None) -> int | None:
        entries = self.holds_from.get(scope, ())
        index = bisect_right(entries, position, key=lambda entry: entry[0])
        return entries[index - 1][1] if index else None


CommitPosition = tuple[int, int, int]  # of a committed row: commit LSN, file, and ordinal


@dataclass(frozen=True, slots=True)
class RelationSpan:
    """The rows of a table under `relation`, in commit order from the row at `start` on. removal: partitions that left
    the table before them."""

    start: CommitPosition
    relation: Relation
    removal: DefinitionEntry | None = None
