"""The key of a root under REPLICA IDENTITY FULL, by the server's catalog."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgoutput_etl.config.column_rules import ColumnAction, ColumnRule, Salt
from pgoutput_etl.masking.mask_rows import masked_relation
from pgoutput_etl.protocol.messages import CatalogMark, Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.schema.partitions import key_of_root

FULL, DEFAULT = ReplicaIdentity.FULL, ReplicaIdentity.DEFAULT


def described(*key: str, identity: ReplicaIdentity = DEFAULT) -> Relation:
    columns = tuple(RelationColumn(n in key or not key, n, 25, -1, i) for i, n in enumerate(("id", "at", "v"), start=1))
    return Relation(None, 1, "public", "t", identity, columns)


def root(*keys: tuple[int, ...]) -> Relation:
    return replace(described(identity=FULL), catalog=CatalogMark(0, 3, keys=keys))


BY_KEY, WHOLE = described("id", "at"), described(identity=FULL)


@pytest.mark.parametrize(
    ("relation", "partitions", "key"),
    [
        (root((1, 2)), [BY_KEY], ("id", "at")),
        (root((2, 1)), [BY_KEY, WHOLE], ("at", "id")),
        (root((3,), (1, 2)), [BY_KEY], ("id", "at")),  # not by a key that old tuples lack
        (root((1, 2)), [BY_KEY, described("id")], None),
        (root((1, 4)), [BY_KEY], None),  # a column that is not published
        (root(), [BY_KEY], None),
        (root((1, 2)), [WHOLE], None),
        (root((1, 2)), [], None),
        (described(identity=FULL), [BY_KEY], None),
    ],
)
def test_it_is_unique_and_in_all_old_tuples(
    relation: Relation, partitions: list[Relation], key: tuple[str, ...] | None
) -> None:
    assert key_of_root(relation, partitions) == key


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        (ColumnRule(ColumnAction.REDACT), None),
        (ColumnRule(ColumnAction.DROP), None),
        (ColumnRule(ColumnAction.HASH, Salt(b"salt")), ("id", "at")),
    ],
)
def test_masks_leave_no_key_of_equal_values(rule: ColumnRule, key: tuple[str, ...] | None) -> None:
    assert key_of_root(masked_relation(root((1, 2)), {"at": rule}), [BY_KEY]) == key
