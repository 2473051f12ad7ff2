"""The replica identities of partitions that are published through their root.

Their rows are sent under the root's OID, but an old tuple has the columns of the partition's replica identity, which
may differ from the root's: a key that only the partitions have, or REPLICA IDENTITY FULL or USING INDEX on one side
only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import Relation, ReplicaIdentity


def of_columns(partitions: Iterable[Relation], relation: Relation) -> tuple[Relation, ...]:
    """The partitions that have a replica identity and the columns of this version of their root. Others have not been
    described since its columns changed, or PostgreSQL rejects UPDATE and DELETE of their rows."""
    names = {column.name for column in relation.columns}
    return tuple(p for p in partitions if names <= {c.name for c in p.columns} and identity_of(p))


def identity_of(relation: Relation) -> tuple[str, ...]:
    """The columns of the replica identity, which an old tuple contains."""
    return tuple(column.name for column in relation.columns if column.is_key)


def has_same_identity(one: Relation, other: Relation) -> bool:
    return one.replica_identity is other.replica_identity and identity_of(one) == identity_of(other)


def own_key(relation: Relation) -> tuple[str, ...]:
    """The key; empty under FULL, where no message shows which columns are unique."""
    return () if relation.replica_identity is ReplicaIdentity.FULL else identity_of(relation)


def are_full(partitions: Sequence[Relation]) -> bool:
    """True if every old tuple has all columns."""
    return bool(partitions) and all(p.replica_identity is ReplicaIdentity.FULL for p in partitions)


def key_of_root(relation: Relation, partitions: Sequence[Relation]) -> tuple[str, ...] | None:
    """A key that, according to the server's catalog, is unique across all partitions, and that all their old tuples
    contain. None if there is no such key, or if none is needed because all old tuples are whole."""
    if relation.catalog is None or not partitions or are_full(partitions):
        return None
    common, names = set(common_identity(relation, partitions)), {c.number: c.name for c in relation.columns}
    keys = (tuple(names.get(number, "") for number in key) for key in relation.catalog.keys)
    return next((key for key in keys if common.issuperset(key)), None)


def check_identities(relation: Relation, key: Sequence[str], partitions: Sequence[Relation]) -> None:
    """Raises TableError if a partition's old tuples don't identify rows of the root. key: empty for a bag."""
    for partition in partitions:
        identity = identity_of(partition)
        lacking = [name for name in key if name not in identity]
        if lacking or not (key or are_full([partition])):
            harm = f"which lacks {lacking[0]!r} of the key ({', '.join(key)})" if key else "and the root has no key"
            raise TableError(
                f"rows of {relation.full_name} can't be identified: its partition {partition.full_name} has the "
                f"replica identity ({', '.join(identity)}), {harm}. {_remedies(relation, partitions)}"
            )


def common_identity(relation: Relation, partitions: Iterable[Relation]) -> tuple[str, ...]:
    """The columns that are in the old tuples of all partitions."""
    names = [column.name for column in relation.columns]
    common = set(names).intersection(*map(identity_of, partitions))
    return tuple(name for name in names if name in common)


def _remedies(relation: Relation, partitions: Sequence[Relation]) -> str:
    common = common_identity(relation, partitions)
    server = "set REPLICA IDENTITY FULL for the partitions on the server, and load a snapshot"
    if not common or are_full(partitions):
        return f"Configure a `key` that all partitions' identities have, or {server}"
    key = f"`key: [{', '.join(common)}]`"
    return f"If it is unique across all partitions, configure {key} and rebuild the table; or {server}"
