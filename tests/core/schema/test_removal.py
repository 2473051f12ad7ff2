"""Which rows leave with a partition, by Messages that are sent again, forged, or about columns that say nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from pgoutput_etl.ledger.tables import catalog_entry, catalog_row
from pgoutput_etl.protocol.catalog_message import CatalogMessage, DefinedTable
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.protocol.partition_bound import PartitionBound, read_bound
from pgoutput_etl.schema.definitions import Definitions
from pgoutput_etl.schema.removal import removal_of, removed_from
from pgoutput_etl.schema.table_shape import table_columns
from pgoutput_etl.types import NO_USER_TYPES

ROOT, LEAF, MIDDLE = 10, 11, 12
INT, TEXT, DATE, NUMERIC, FLOAT = 23, 25, 1082, 1700, 701
TWO_DIGITS = (8 << 16 | 2) + 4  # numeric(8,2)


def column(number: int, name: str, type_oid: int, modifier: int = -1) -> RelationColumn:
    return RelationColumn(False, name, type_oid, modifier, number)


def table(oid: int, columns: tuple[RelationColumn, ...], *partitions: int, **of: Any) -> DefinedTable:
    given = {"partitions": partitions or None, **of}
    return DefinedTable(oid, "public", f"t{oid}", columns, is_root=oid == ROOT, **given)


COLUMNS = (column(1, "p", INT), column(2, "v", TEXT))
LISTED = read_bound("FOR VALUES IN (1, NULL)", ["p"])
TREE = (table(ROOT, COLUMNS, LEAF), table(LEAF, COLUMNS, root=ROOT, parent=ROOT, bound=LISTED))
ATTACHED = CatalogMessage(TREE, xid=1, number=1, is_verified=True)
DROPPED = CatalogMessage(dropped=(LEAF,), xid=2, number=2, is_verified=True)


def definitions(*messages: CatalogMessage, masked: str = "") -> Definitions:
    found = Definitions(is_masked=lambda _schema, _table, name: name == masked)
    for ordinal, message in enumerate(messages):
        found.add(message, (0, ordinal), None, 100 + ordinal, 7, 9)
    return found


def bounds(found: Definitions) -> list[tuple[PartitionBound, ...] | None]:
    return [partition.bounds for entry in found.removals(ROOT) for partition in entry.definition.removed]


def gone(bound: str, names: list[str], columns: tuple[RelationColumn, ...], rows: list[tuple[Any, ...]]) -> list[bool]:
    leaf = table(LEAF, columns, root=ROOT, parent=ROOT, bound=read_bound(bound, names))
    found = definitions(replace(ATTACHED, tables=(table(ROOT, columns, LEAF), leaf)), DROPPED)
    [entry] = found.removals(ROOT)
    relation = Relation(None, ROOT, "public", "t", ReplicaIdentity.DEFAULT, columns)
    removal = removal_of(entry, relation, table_columns(relation, (), NO_USER_TYPES), {})
    assert (removal.lsn, removal.ts, removal.xid, removal.unknown) == (101, 7, 9, ())
    is_gone = removed_from(removal)
    texts = [{c.name: value[1:] for c, value in zip(columns, row, strict=True) if _is_text(value)} for row in rows]
    values = [{c.name: None if _is_text(v) else v for c, v in zip(columns, row, strict=True)} for row in rows]
    return [is_gone(*row) for row in zip(values, texts, strict=True)]


def _is_text(value: object) -> bool:
    """`=infinity` stands for a value that the column's type can't hold."""
    return isinstance(value, str) and value.startswith("=")


def test_a_list_with_null() -> None:
    rows = [(1, "a"), (None, "a"), (2, "a")]
    assert gone("FOR VALUES IN (1, NULL)", ["p"], COLUMNS, rows) == [True, True, False]


def test_values_that_the_type_does_not_hold_lie_outside() -> None:
    at = (column(1, "at", DATE),)
    rows = [(date(2024, 1, 1),), ("=-infinity",), ("=0044-03-15 BC",), ("=infinity",), (None,)]
    lowest, highest = "FOR VALUES FROM (MINVALUE) TO ('2024-01-01')", "FOR VALUES FROM ('2024-01-01') TO (MAXVALUE)"
    assert gone(lowest, ["at"], at, rows) == [False, True, True, False, False]
    assert gone(highest, ["at"], at, rows) == [True, False, False, True, False]


def test_ranges_of_several_columns_are_ordered_by_the_first_that_differs() -> None:
    columns = (column(1, "a", INT), column(2, "b", NUMERIC, TWO_DIGITS))
    rows = [
        (1, Decimal("1.49")),
        (1, Decimal("1.50")),
        (1, Decimal(9)),
        (2, Decimal(-3)),
        (2, Decimal("-2.5")),
        (1, None),
    ]
    expected = [False, True, True, True, False, False]
    assert gone("FOR VALUES FROM (1, 1.5) TO (2, '-2.5')", ["a", "b"], columns, rows) == expected
    whole = "FOR VALUES FROM (1, MINVALUE) TO (1, MAXVALUE)"
    assert gone(whole, ["a", "b"], columns, rows) == [True, True, True, False, False, False]


@pytest.mark.parametrize(
    ("columns", "masks"),
    [
        ((column(2, "v", TEXT),), {}),
        (COLUMNS, {"p": "redact"}),
        ((column(1, "p", FLOAT), column(2, "v", TEXT)), {}),
        ((column(1, "p", NUMERIC), column(2, "v", TEXT)), {}),
        ((column(1, "p", DATE), column(2, "v", TEXT)), {}),
    ],
)
def test_a_column_that_can_not_be_compared_leaves_all_rows(
    columns: tuple[RelationColumn, ...], masks: dict[str, str]
) -> None:
    """Not sent, masked, a float, a numeric that is stored as text, or of a type that the bound does not fit."""
    [entry] = definitions(ATTACHED, DROPPED).removals(ROOT)
    relation = Relation(None, ROOT, "public", "t", ReplicaIdentity.DEFAULT, columns)
    removal = removal_of(entry, relation, table_columns(relation, (), NO_USER_TYPES), masks)
    assert (removal.partitions, removal.names, removal.unknown) == ((), (), ("public.t11",))


@pytest.mark.parametrize(
    "found",
    [
        definitions(ATTACHED, replace(DROPPED, is_verified=False)),
        definitions(ATTACHED, DROPPED, masked="p"),
        definitions(ATTACHED, CatalogMessage((table(ROOT, COLUMNS, LEAF + 5),), is_resent=True, is_verified=True)),
        definitions(ATTACHED, CatalogMessage(is_unknown=True), DROPPED),
    ],
)
def test_what_is_not_certain_has_no_bounds(found: Definitions) -> None:
    """No signature, a masked column, a catalog that was sent later, or after an unknown change."""
    assert bounds(found) == [None]


def test_a_dropped_root_keeps_its_rows() -> None:
    assert bounds(definitions(ATTACHED, replace(DROPPED, dropped=(LEAF, ROOT)))) == []


def test_a_partition_leaves_once() -> None:
    detached = CatalogMessage((table(ROOT, COLUMNS, LEAF + 5),), xid=2, number=2, is_verified=True)
    assert bounds(definitions(ATTACHED, detached, replace(DROPPED, xid=3, number=3))) == [(LISTED,)]


def test_a_message_that_is_sent_again_moves_to_its_later_place() -> None:
    found = definitions(ATTACHED, DROPPED)
    found.add(DROPPED, (1, 0), None, 101, 7, 9)
    assert [entry.at for entry in found.removals(ROOT)] == [(101, 1, 0)]


def test_a_truncated_partition_stays_one() -> None:
    truncated = CatalogMessage(truncated=(LEAF,), xid=2, number=2, is_verified=True)
    found = definitions(ATTACHED, truncated, replace(truncated, number=3), replace(DROPPED, number=4))
    assert bounds(found) == [(LISTED,), (LISTED,), (LISTED,)]


def test_a_nested_partition_is_within_all_bounds() -> None:
    middle = table(MIDDLE, COLUMNS, LEAF, root=ROOT, parent=ROOT, bound=LISTED)
    inner = read_bound("FOR VALUES FROM ('a') TO ('b')", ["v"])
    leaf = table(LEAF, COLUMNS, root=ROOT, parent=MIDDLE, bound=inner)
    tree = replace(ATTACHED, tables=(table(ROOT, COLUMNS, MIDDLE), middle, leaf))
    assert bounds(definitions(tree, DROPPED)) == [(inner, LISTED)]
    whole = definitions(tree, replace(DROPPED, dropped=(LEAF, MIDDLE)))
    assert bounds(whole) == [(LISTED,)]


def test_an_aborted_transaction_removes_nothing() -> None:
    found = definitions(ATTACHED)
    found.add(DROPPED, (0, 5), 700, None)
    found.end(700, False, None)
    assert bounds(found) == []
    found.add(DROPPED, (0, 6), 700, None)
    found.end(700, True, 900, (), 5)
    [entry] = found.removals(ROOT)
    assert (entry.at, entry.commit_ts, entry.top_xid) == ((900, 0, 6), 5, 700)


def test_the_ledger_keeps_bounds_as_bytes() -> None:
    stored = [catalog_row(entry) for entry in definitions(ATTACHED, DROPPED).to_store()]
    again = Definitions.of(map(catalog_entry, stored))
    assert bounds(again) == [(LISTED,)]
    assert all(isinstance(row["removed"], bytes | None) and isinstance(row["bound"], bytes | None) for row in stored)
    older = [
        {name: row[name] for name in row if name not in ("removed", "bound", "parent", "commit_ts")} for row in stored
    ]
    assert bounds(Definitions.of(map(catalog_entry, older))) == []
