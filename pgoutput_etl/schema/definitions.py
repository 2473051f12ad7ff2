"""Definitions of tables in the server's catalog, from catalog Messages.

An event trigger writes a Message where a table's definition changes, in the transaction that changes it. It therefore
precedes the table's next Relation message, which it completes: with the columns' numbers in the catalog, the values
that a new column has in older rows, and the number of rewrites whose values were never sent. A Relation message that
differs from the definition is used as it was sent, and its columns are matched as in an archive without such Messages.

A definition applies to the transaction that sent it and, once that has committed, to all. A change of a definition
locks the table until then, so the newest applicable definition is the right one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from pgoutput_etl.protocol.catalog_message import (
    TABLE,
    CatalogMessage,
    CatalogMessageError,
    DefinedTable,
    MessagePlace,
    read_catalog_message,
)
from pgoutput_etl.protocol.messages import CatalogMark, Message, Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.protocol.partition_bound import PartitionBound

_TABLE_NAMES = (2205, 2206, 2210, 2211)  # regclass and regtype, and their arrays

Position = tuple[int, int]  # as in relation_history

# True if a column's values must not be stored. Arguments: schema, table, and column name.
IsMasked = Callable[[str, str, str], bool]


def _nothing(_schema: str, _table: str, _column: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class RemovedPartition:
    """A partition that was detached, dropped, or truncated. bounds: its own and those of its parents, which contain its
    rows; None if they can't be determined. message: identifies the Message."""

    oid: int
    name: str
    bounds: tuple[PartitionBound, ...] | None
    message: int | None = None


@dataclass(frozen=True, slots=True)
class Definition:
    """A table's name and columns; no columns if they are unknown or the table was dropped. mark: added to its next
    Relation message. partitions: OIDs, if it is a root. parent, bound: if it is a partition. removed: partitions that
    left a root with this definition. omitted: numbers of generated columns that no publication sends. is_verified: the
    Message's key proves that the table was dropped. comments: by column number, 0 for the table, without masked
    columns; "" if a comment was removed."""

    oid: int
    namespace: str
    name: str
    columns: tuple[RelationColumn, ...]
    mark: CatalogMark
    partitions: tuple[int, ...] = ()
    omitted: tuple[int, ...] = ()
    is_dropped: bool = False
    parent: int | None = None
    bound: PartitionBound | None = None
    removed: tuple[RemovedPartition, ...] = ()
    is_verified: bool = False
    comments: tuple[tuple[int, str], ...] = field(default=(), repr=False)

    def completed(self, relation: Relation) -> Relation | None:
        """The Relation message with information from the catalog; None if it doesn't match this definition."""
        columns: list[RelationColumn] = []
        left = iter(self.columns)
        for sent in relation.columns:
            known = next((c for c in left if c.described_as == sent.described_as), None)
            if known is None:
                return None
            columns.append(replace(known, is_key=sent.is_key))
        ordinary = {column.number for column in self.columns} - set(self.omitted)
        is_whole = ordinary <= {column.number for column in columns}
        return replace(relation, columns=tuple(columns), catalog=replace(self._mark_of_relation, is_whole=is_whole))

    @property
    def _mark_of_relation(self) -> CatalogMark:
        """Without TABLE, which stands for numbers that the next Message has."""
        return replace(self.mark, computed=tuple(number for number in self.mark.computed if number != TABLE))

    def applied(self, relation: Relation) -> Relation:
        """An earlier description with all changes, including the columns if the publication sends all of them."""
        followed = self.followed(relation)
        if relation.catalog is None or not relation.catalog.is_whole or not self.columns:
            return followed
        is_full = relation.replica_identity is ReplicaIdentity.FULL
        keys = {column.number for column in relation.columns if column.is_key}
        sent = (column for column in self.columns if column.number not in self.omitted)
        columns = tuple(replace(c, is_key=is_full or c.number in keys) for c in sent)
        return replace(followed, columns=columns, catalog=replace(self._mark_of_relation, is_whole=True))

    def followed(self, relation: Relation) -> Relation:
        """An earlier description with changes that don't need a row: the name, rewrites, and the forms of types."""
        relation = replace(relation, namespace=self.namespace, name=self.name)
        if relation.catalog is None or not self.columns:
            return relation
        known = {(column.number, column.type_oid): column for column in self.columns}
        now = ((c, known.get((c.number, c.type_oid), c)) for c in relation.columns)
        columns = (replace(c, form=new.form, types=new.types) for c, new in now)
        mark = replace(relation.catalog, rewrites=self.mark.rewrites, unlogged=self.mark.unlogged, gaps=self.mark.gaps)
        return replace(relation, columns=tuple(columns), catalog=mark)

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def has_names(self) -> bool:
        """True if values may be names of tables."""
        return any(column.type_oid in _TABLE_NAMES for column in self.columns)

    def rewritten(self, is_cast: bool = False) -> Definition:
        rewrites, casts = self.mark.rewrites + (not is_cast), self.mark.casts + is_cast
        return replace(self, mark=replace(self.mark, rewrites=rewrites, casts=casts), removed=())

    def filled(self) -> Definition:
        """The definition after the server has computed columns that the command adds. The Message that has them
        follows; until then, TABLE stands for their numbers."""
        return replace(self, mark=replace(self.mark, computed=(*self.mark.computed, TABLE)), removed=())

    def dropped(self, is_verified: bool) -> Definition:
        return replace(self, columns=(), parent=None, bound=None, removed=(), is_dropped=True, is_verified=is_verified)

    def unlogged(self) -> Definition:
        """The definition after the table was UNLOGGED: not all of its rows are sent, even if it is new."""
        mark = replace(self.mark, unlogged=self.mark.unlogged + 1, is_created=False)
        return replace(self, mark=mark, removed=())


def _rewritten(known: Definition, found: CatalogMessage) -> Definition:
    if found.is_unlogged:
        return known.unlogged()
    return known.filled() if found.is_filled else known.rewritten(found.is_cast)


@dataclass(frozen=True, slots=True)
class DefinitionEntry:
    """A definition from `position` on. xid: of the open transaction that sent it; None once it has committed. subxid:
    of its subtransaction, in a stream segment. commit_lsn: None if it is open or unreadable. commit_ts, top_xid: of the
    transaction, once it has committed. command: tag of the command that made the change. before: the definition that it
    replaces for all transactions."""

    position: Position
    definition: Definition
    xid: int | None = None
    subxid: int | None = None
    commit_lsn: int | None = None
    commit_ts: int | None = None
    top_xid: int | None = None
    command: str = ""
    before: Definition | None = None

    @property
    def at(self) -> tuple[int, int, int]:
        """The entry's place in commit order: commit LSN (-1 without one) and position."""
        return (-1 if self.commit_lsn is None else self.commit_lsn, *self.position)


@dataclass(slots=True)
class Definitions:
    """The definitions of all tables. Grows with their changes.

    key: for the Messages' digests; None accepts any. added: applicable definitions since the catalog was loaded.
    refused: numbers of Messages that were ignored, by reason.
    """

    key: bytes | None = field(default=None, repr=False)
    is_masked: IsMasked = field(default=_nothing, repr=False)
    added: list[DefinitionEntry] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    _committed: dict[int, DefinitionEntry] = field(default_factory=dict)
    _open: dict[int, list[DefinitionEntry]] = field(default_factory=dict)  # by transaction xid
    _comments_before: dict[int, tuple[tuple[int, str], ...]] = field(default_factory=dict)  # for tables in `added`
    # By the root's OID and the Message's identity, so that a Message that is sent again counts once.
    _removals: dict[int, dict[int | None, DefinitionEntry]] = field(default_factory=dict)
    _children: dict[int, set[int]] = field(default_factory=dict)  # OIDs of all current and former partitions, by parent

    @classmethod
    def of(cls, entries: Iterable[DefinitionEntry], still_open: Collection[Position] = ()) -> Definitions:
        """From stored entries. still_open: positions of those whose transactions are open."""
        definitions = cls()
        for entry in sorted(entries, key=lambda e: e.position):
            if entry.xid is None or entry.position in still_open:
                definitions._keep(entry)
        return definitions

    def __bool__(self) -> bool:
        return bool(self._committed or self._open)

    def dropped(self) -> set[int]:
        """OIDs of dropped tables."""
        return {oid for oid, entry in self._committed.items() if entry.definition.is_dropped}

    def removals(self, root: int) -> list[DefinitionEntry]:
        """The times when partitions left a root, in commit order."""
        return sorted(self._removals.get(root, {}).values(), key=lambda entry: entry.at)

    def left_at(self, oid: int) -> list[tuple[int, DefinitionEntry]]:
        """The roots that a table left as a partition, with the entries that show it."""
        found = ((root, entry) for root, entries in self._removals.items() for entry in entries.values())
        return [(root, entry) for root, entry in found if any(p.oid == oid for p in entry.definition.removed)]

    def to_store(self) -> list[DefinitionEntry]:
        """The new definitions, and all definitions of open transactions."""
        return [*self.added, *(entry for entries in self._open.values() for entry in entries)]

    def read(self, message: Message, place: MessagePlace) -> CatalogMessage:
        """The catalog Message; an empty one if it must be ignored."""
        if not message.transactional or not message.content:
            return CatalogMessage()
        try:
            found = read_catalog_message(message.content, self.key)
            if place.xid is None:
                return CatalogMessage(is_unknown=True, xid=found.xid)
            found.check_is_original(place)
        except CatalogMessageError as error:
            self.refused[str(error)] = self.refused.get(str(error), 0) + 1
            return CatalogMessage()
        return found

    def add(
        self,
        found: CatalogMessage,
        position: Position,
        xid: int | None,
        commit_lsn: int | None,
        commit_ts: int | None = None,
        top_xid: int | None = None,
    ) -> None:
        """xid: of the open transaction that sent the Message; None if it has committed."""
        removed = self._removed_by(found, xid)
        rewritten = [known for oid in found.rewritten if (known := self.definition(oid, xid))]
        changed = [_rewritten(known, found) for known in rewritten]
        for oid in (*found.unpublished, *found.published):
            known = self.definition(oid, xid)
            if known is not None and (oid in found.unpublished) is not bool(known.mark.gaps % 2):
                changed.append(replace(known, mark=replace(known.mark, gaps=known.mark.gaps + 1), removed=()))
        gone = [known for oid in found.dropped if (known := self.definition(oid, xid))]
        changed += [known.dropped(found.is_verified) for known in gone]
        if gone or any(self._is_renamed(table, xid) for table in found.tables):
            changed += [known.rewritten() for known in self._known(xid) if known.has_names and known not in gone]
        if found.is_unknown:
            changed += [replace(known.rewritten(), columns=()) for known in self._known(xid)]
        sent_by = (xid, None if xid is None else found.xid, commit_lsn, commit_ts, top_xid, found.command)
        for definition in changed:
            self._add(DefinitionEntry(position, definition, *sent_by))
        for table in found.tables:
            known = self.definition(table.oid, xid)
            definition = self._defined(table, found, known, xid)
            if known is None or definition != replace(known, removed=()):
                self._add(DefinitionEntry(position, definition, *sent_by))
        for root, partitions in removed.items():
            if (known := self.definition(root, xid)) is not None:
                self._add(DefinitionEntry(position, replace(known, removed=partitions), *sent_by))
            for oid in (partition.oid for partition in partitions if partition.oid not in found.truncated):
                if (known := self.definition(oid, xid)) is not None and known.parent is not None:
                    self._add(DefinitionEntry(position, replace(known, parent=None, bound=None), *sent_by))

    def _removed_by(self, found: CatalogMessage, xid: int | None) -> dict[int, tuple[RemovedPartition, ...]]:
        """By root, the partitions that left it according to a Message."""
        again = {
            root: entries[found.identity].definition.removed
            for root, entries in self._removals.items()
            if found.identity is not None and found.identity in entries
        }
        described = {table.oid: table.partitions for table in found.tables if table.partitions is not None}
        gone = {oid for parent, left in described.items() for oid in self._children.get(parent, set()) - set(left)}
        removed: dict[int, list[RemovedPartition]] = {}
        for oid in sorted(gone | {*found.dropped, *found.truncated}):
            known = self.definition(oid, xid)
            if known is None or known.parent is None or known.parent in found.dropped:
                continue
            if oid in gone and oid not in found.dropped and known.parent not in described:
                continue  # it has another parent by now
            root, bounds = self._bounds(known, xid)
            is_certain = found.is_verified and not found.is_resent and root.columns and None not in bounds
            held = tuple(bound for bound in bounds if bound is not None) if is_certain else None
            partition = RemovedPartition(oid, f"{known.namespace}.{known.name}", held, found.identity)
            removed.setdefault(root.oid, []).append(partition)
        return again or {root: tuple(partitions) for root, partitions in removed.items()}

    def _bounds(self, partition: Definition, xid: int | None) -> tuple[Definition, list[PartitionBound | None]]:
        """A partition's root, and the bounds of the partition and its parents below the root."""
        bounds, seen = list[PartitionBound | None](), set[int]()
        while partition.parent is not None and partition.oid not in seen:
            seen.add(partition.oid)
            bounds.append(partition.bound)
            partition = self.definition(partition.parent, xid) or replace(partition, columns=(), parent=None)
        return partition, bounds

    def _defined(
        self, table: DefinedTable, message: CatalogMessage, earlier: Definition | None, xid: int | None
    ) -> Definition:
        """The table's new definition. A rewrite removes initial values from the catalog, but a later row may be the
        first to reveal the column."""
        new = CatalogMark(0, table.last_number, is_created=table.is_created)
        mark = new if earlier is None else earlier.mark
        mark = replace(mark, last_number=max(mark.last_number, table.last_number), keys=table.keys)
        known = {} if earlier is None else {column.number: column.initial for column in earlier.columns}
        if TABLE in mark.computed:
            added = (column.number for column in table.columns if column.number not in known)
            mark = replace(mark, computed=tuple(sorted({*mark.computed, *filter(None, added)} - {TABLE})))
        columns = [
            replace(c, initial=known[c.number]) if c.initial is None and known.get(c.number) is not None else c
            for c in table.columns
        ]
        masked = [c.initial is not None and self.is_masked(table.namespace, table.name, c.name) for c in columns]
        columns = [replace(c, initial=None) if hide else c for c, hide in zip(columns, masked, strict=True)]
        partitions = tuple(other.oid for other in message.tables if other.root == table.oid)
        of_partition = (table.parent, None if self._has_masked_bound(table, message, xid) else table.bound)
        definition = Definition(
            *(table.oid, table.namespace, table.name, tuple(columns), mark, partitions, table.omitted),
            False,
            *of_partition,
        )
        definition = replace(definition, comments=self._comments(table, earlier))
        is_new = any(hide and c.number not in known for c, hide in zip(columns, masked, strict=True))
        return definition.rewritten() if is_new and earlier is not None else definition

    def _comments(self, table: DefinedTable, earlier: Definition | None) -> tuple[tuple[int, str], ...]:
        shown = {c.number for c in table.columns if not self.is_masked(table.namespace, table.name, c.name)} | {TABLE}
        left = {TABLE, *(column.number for column in table.columns)}
        known = () if earlier is None else earlier.comments
        removed = {number: "" for number, _ in known if number in left}
        sent = {number: text for number, text in table.comments if number in shown}
        return tuple(sorted({**removed, **sent}.items()))

    def has_new_comments(self, oid: int) -> bool:
        """True if a comment was set, changed, or removed since the definitions were loaded."""
        return oid in self._comments_before and self._committed[oid].definition.comments != self._comments_before[oid]

    def _has_masked_bound(self, table: DefinedTable, message: CatalogMessage, xid: int | None) -> bool:
        known = None if table.root is None else self.definition(table.root, xid)
        names = {(t.namespace, t.name) for t in message.tables if t.oid in (table.oid, table.root)}
        names |= set() if known is None else {(known.namespace, known.name)}
        columns = () if table.bound is None else table.bound.columns
        return any(self.is_masked(*name, column) for name in names for column in columns)

    def _is_renamed(self, table: DefinedTable, xid: int | None) -> bool:
        known = self.definition(table.oid, xid)
        return known is not None and (known.namespace, known.name) != (table.namespace, table.name)

    def _known(self, xid: int | None) -> list[Definition]:
        oids = {*self._committed, *(entry.definition.oid for entry in self._open.get(xid or 0, ()))}
        return [known for oid in sorted(oids) if (known := self.definition(oid, xid)) and known.columns]

    def definition(self, oid: int, xid: int | None) -> Definition | None:
        """The newest definition for a transaction; for None, the one for all."""
        own = () if xid is None else self._open.get(xid, ())
        found = next((entry for entry in reversed(own) if entry.definition.oid == oid), self.committed(oid))
        return None if found is None else found.definition

    def committed(self, oid: int) -> DefinitionEntry | None:
        return self._committed.get(oid)

    def completed(self, relation: Relation, xid: int | None) -> Relation:
        """A Relation message, with information from the catalog."""
        known = self.definition(relation.oid, xid)
        return relation if known is None else known.completed(relation) or relation

    def typed(self, relation: Relation) -> Relation:
        """A description from elsewhere, with the user types that the catalog knows, which never change."""
        defined = (column for entry in self._committed.values() for column in entry.definition.columns)
        known = {column.type_oid: column.types for column in defined}
        columns = tuple(replace(c, types=known.get(c.type_oid, c.types)) for c in relation.columns)
        return replace(relation, columns=columns)

    def end(
        self,
        xid: int,
        is_committed: bool,
        commit_lsn: int | None,
        aborted_subxids: Sequence[int] = (),
        commit_ts: int | None = None,
    ) -> None:
        """Ends an open transaction, or one sending of it."""
        self.abort(xid, aborted_subxids)
        for entry in self._open.pop(xid, ()):
            if is_committed:
                committed = replace(entry, xid=None, subxid=None, commit_lsn=commit_lsn)
                self._add(replace(committed, commit_ts=commit_ts, top_xid=xid))

    def record_time(self, commit_lsn: int, commit_ts: int) -> None:
        """Adds the commit time of an ordinary transaction that began in an earlier file, which is known from its first
        message."""
        for entry in [e for e in self.added if (e.commit_lsn, e.commit_ts) == (commit_lsn, None)]:
            if entry.definition.removed:
                self._removals[entry.definition.oid][entry.definition.removed[0].message] = timed = replace(
                    entry, commit_ts=commit_ts
                )
                self.added.append(timed)

    def abort(self, xid: int, subxids: Collection[int]) -> None:
        """Ends subtransactions of an open transaction."""
        if xid in self._open and len(subxids):
            self._open[xid] = [entry for entry in self._open[xid] if entry.subxid not in subxids]

    def lose(self, position: Position, xid: int | None, commit_lsn: int) -> None:
        """Marks definitions as unknown because Messages are missing before `position`. xid: of the open transaction
        that shows it, whose own definitions are newer."""
        for known in self._known(None):
            self._add(DefinitionEntry(position, replace(known.rewritten(), columns=()), commit_lsn=commit_lsn))
        for other, entries in self._open.items():
            rewritten = [replace(entry, definition=entry.definition.rewritten()) for entry in entries]
            unknown = [replace(entry, definition=replace(entry.definition, columns=())) for entry in rewritten]
            entries[:] = rewritten if other == xid else unknown

    def unknown(self) -> set[int]:
        """OIDs of tables whose definitions must be sent again."""
        known = (entry.definition for entry in self._committed.values())
        return {definition.oid for definition in known if not definition.columns and not definition.is_dropped}

    def _add(self, entry: DefinitionEntry) -> None:
        if entry.xid is None:
            before = self.definition(entry.definition.oid, None)
            self.added.append(replace(entry, before=before))
            self._comments_before.setdefault(entry.definition.oid, () if before is None else before.comments)
        self._keep(entry)

    def _keep(self, entry: DefinitionEntry) -> None:
        oid, parent, removed = entry.definition.oid, entry.definition.parent, entry.definition.removed
        if parent is not None:
            self._children.setdefault(parent, set()).add(oid)
        if entry.xid is not None:
            self._open.setdefault(entry.xid, []).append(entry)
            return
        self._committed[oid] = entry
        if removed:
            self._removals.setdefault(oid, {})[removed[0].message] = entry
