"""The shape of a target under one relation version: columns, key, types, and layout."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.schema.layout import NO_LAYOUT, Layout
from pgoutput_etl.schema.partitions import are_full, check_identities, key_of_root, of_columns
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.types import NO_USER_TYPES, ColumnType, UserTypes, type_of

NEVER = -1  # an LSN below all others

TIMESTAMP = pa.timestamp("us", tz="UTC")

UNREPRESENTABLE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))

# The changes of a key that an event stands for (changes/key_chains.py): operation, commit LSN, and xid of the first
# one; the numbers of contradictions; and commit LSN and xid of the first contradiction.
CHAIN_NUMBERS = ("lsn", "xid", "missing", "doubled", "bad_lsn", "bad_xid")
CHAIN = pa.struct([("op", pa.string()), *((name, pa.int64()) for name in CHAIN_NUMBERS)])


@dataclass(frozen=True, slots=True)
class TableColumn:
    """retired: no longer in the relation, but still in the target (column_matching.py)."""

    name: str
    type: ColumnType
    retired: bool = False


@dataclass(frozen=True, slots=True)
class TableShape:
    """Columns, key, types, and layout of a target under one version of its relation.

    columns: the relation's columns, then retired ones. key: positions of the key columns; empty for a bag. toast:
    positions of columns that an event may leave unchanged. moves_toast: True if even an event that moves its row to
    another key may do so. partitions: those published through the relation; its old tuples have their replica
    identities. layout: the configured layout, reduced to what a table with these columns can have (targets/layout.py).
    memory: bytes of Java heap available to write a row; None if unknown. changed_at: per column, see
    schema/column_changes.py; empty if no column was changed.
    """

    relation: Relation
    columns: tuple[TableColumn, ...]
    key: tuple[int, ...]
    versions: RelationVersions
    toast: tuple[int, ...] = ()
    moves_toast: bool = False
    partitions: tuple[Relation, ...] = ()
    layout: Layout = NO_LAYOUT
    memory: int | None = None
    changed_at: tuple[int, ...] = ()

    @property
    def is_bag(self) -> bool:
        return not self.key

    @property
    def has_whole_keys(self) -> bool:
        """True if old tuples of kind K have all columns."""
        return are_full(self.partitions)

    def check_partitions(self) -> None:
        """Raises TableError if a partition's old tuples don't identify rows."""
        check_identities(self.relation, [self.columns[i].name for i in self.key], self.partitions)

    @property
    def has_unique_key(self) -> bool:
        """True if PostgreSQL guarantees that keys are unique: the key is the table's replica identity."""
        flagged = {i for i, column in enumerate(self.relation.columns) if column.is_key}
        is_full = self.relation.replica_identity is ReplicaIdentity.FULL
        return bool(self.key) and set(self.key) == flagged and not is_full

    @property
    def may_exchange_keys(self) -> bool:
        """True if several rows may have the same key within a transaction: PostgreSQL accepts no deferrable index as a
        replica identity, but under FULL, any key may be configured."""
        return bool(self.key) and self.relation.replica_identity is ReplicaIdentity.FULL

    def event_schema(self) -> pa.Schema:
        """_file and _ordinal order events within a commit. u3: c3 is unchanged. f0… and _from_unrep: old key of a V
        event. _chain: NULL if the event stands only for itself."""
        fields = [
            ("_lsn", pa.int64()),
            ("_file", pa.int64()),
            ("_ordinal", pa.int64()),
            ("_ts", TIMESTAMP),
            ("_xid", pa.int64()),
            ("_op", pa.string()),
            ("_unrep", UNREPRESENTABLE),
            ("_from_unrep", UNREPRESENTABLE),
            ("_chain", CHAIN),
        ]
        fields += [(f"c{i}", column.type.arrow) for i, column in enumerate(self.columns)]
        fields += [(f"u{i}", pa.bool_()) for i in self.toast]
        fields += [(f"f{i}", self.columns[i].type.arrow) for i in self.key]
        return pa.schema(fields)

    def net_schema(self) -> pa.Schema:
        """The columns of an event that matter if no other event has its key. _delete: the event removes the row.
        _chain: as from `net_chains`."""
        events = self.event_schema()
        names = [f"c{i}" for i in range(len(self.columns))] + ["_lsn", "_ts", "_xid", "_unrep", "_chain"]
        return pa.schema([*(events.field(name) for name in names), pa.field("_delete", pa.bool_())])


def table_shape(
    relation: Relation,
    versions: RelationVersions,
    configured_key: tuple[str, ...] | None,
    unchanged: frozenset[int] = frozenset(),
    moves_toast: bool = True,
    user_types: UserTypes = NO_USER_TYPES,
    retired: tuple[RelationColumn, ...] = (),
    partitions: tuple[Relation, ...] = (),
) -> TableShape:
    """unchanged: positions that may have unchanged TOAST. partitions: those published through this relation.

    Raises TableError if old tuples lack columns of the configured key (under FULL they have all columns;
    `check_partitions` checks those of partitions).
    """
    partitions = of_columns(partitions, relation)
    columns = table_columns(relation, retired, user_types)
    if configured_key is None and relation.replica_identity is ReplicaIdentity.FULL:
        configured_key = key_of_root(relation, partitions)
    key = _key_positions(relation, configured_key, is_root=bool(partitions))
    toast = {i for i in unchanged if i < len(relation.columns)}
    if key:
        toast |= {i for i, column in enumerate(columns) if column.retired}
    # Under a root's REPLICA IDENTITY FULL, the old tuple of another identity doesn't fill in unchanged TOAST.
    fills_toast = relation.replica_identity is not ReplicaIdentity.FULL or not partitions or are_full(partitions)
    moves = moves_toast or bool(retired) or not fills_toast
    return TableShape(relation, columns, key, versions, tuple(sorted(toast)), moves, partitions)


def table_columns(
    relation: Relation, retired: tuple[RelationColumn, ...], user_types: UserTypes
) -> tuple[TableColumn, ...]:
    columns = [(column, False) for column in relation.columns] + [(column, True) for column in retired]
    return tuple(TableColumn(c.name, type_of(c, user_types), r) for c, r in columns)


def _key_positions(relation: Relation, configured: tuple[str, ...] | None, is_root: bool) -> tuple[int, ...]:
    names = [column.name for column in relation.columns]
    flagged = tuple(i for i, column in enumerate(relation.columns) if column.is_key)
    if configured is None:
        # Under FULL, every column is flagged, and none is known to be unique.
        return () if relation.replica_identity is ReplicaIdentity.FULL else flagged
    missing = [name for name in configured if name not in names]
    if missing:
        raise TableError(f"the configured key has a column {missing[0]!r} that the table lacks")
    key = tuple(names.index(name) for name in configured)
    if flagged and not is_root and not set(key) <= set(flagged):
        raise TableError(
            f"the configured key ({', '.join(configured)}) is not in the old tuples of this table, which have "
            f"({', '.join(sorted(names[i] for i in flagged))}); the key needs REPLICA IDENTITY FULL"
        )
    return key
