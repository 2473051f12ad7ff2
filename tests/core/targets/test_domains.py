"""Retypes between domains and their base types: values as they were sent, and what a run says of them."""

from __future__ import annotations

import pytest

from pgoutput_etl.protocol.messages import PgoutputMessage, Relation, RelationColumn, ReplicaIdentity, Type
from pgoutput_etl.targets.target_plan import TargetPlan
from tests.support.nights import Nights
from tests.support.small_archives import Change, T, copydata, insert, transaction

INT, NUMERIC, VARCHAR, D62, D83, V5 = 23, 1700, 1043, 20001, 20002, 20003
NUMERIC_6_2, VARCHAR_5 = (6 << 16 | 2) + 4, 5 + 4
TYPES = tuple(
    Type(None, oid, "pg_catalog", name) for oid, name in ((D62, "numeric"), (D83, "numeric"), (V5, "varchar"))
)


def table(*types: tuple[int, int], key: int = 0) -> Relation:
    """A column per type and modifier. key: its position."""
    columns = tuple(RelationColumn(i == key, f"c{i}", *of_type) for i, of_type in enumerate(types))
    return Relation(None, T, "public", "t", ReplicaIdentity.DEFAULT, columns)


def apply(nights: Nights, *changes: Change) -> TargetPlan:
    number = nights.files + 1
    messages: list[PgoutputMessage] = transaction(number, number * 0x100, *TYPES, *changes)
    return nights.night([copydata(messages, 0x1000 * number)])


def values(nights: Nights) -> list[tuple[object, ...]]:
    _, rows = nights.events(T)
    return sorted(tuple(row[f"c{i}"] for i in range(1, 3)) for row in rows)


DOMAINS, BASES = table((INT, -1), (D62, -1), (V5, -1)), table((INT, -1), (NUMERIC, NUMERIC_6_2), (VARCHAR, VARCHAR_5))


def test_to_the_base_type_and_back() -> None:
    nights = Nights()
    apply(nights, DOMAINS, insert("1", "1.50", "ab"))
    assert apply(nights, BASES, insert("2", "2.25", "cd")).tables.tasks[0].remarks == ()
    assert [(str(number), text) for number, text in values(nights)] == [("1.50", "ab"), ("2.25", "cd")]
    plan = apply(nights, DOMAINS, insert("3", "3.00", "ef"))
    assert [remark.partition(",")[0] for remark in plan.tables.tasks[0].remarks] == [
        "the type of c1 changed to a domain"
    ]
    assert values(nights) == [("1.50", "ab"), ("2.25", "cd"), ("3.00", "ef")]


def test_another_domain_keeps_values_and_says_so() -> None:
    nights = Nights()
    apply(nights, DOMAINS, insert("1", "1.50", "ab"))
    plan = apply(nights, table((INT, -1), (D83, -1), (V5, -1)), insert("2", "2.125", "cd"))
    [remark] = plan.tables.tasks[0].remarks
    assert "c1 changed to a domain, whose modifier the archive does not show" in remark
    assert values(nights) == [("1.50", "ab"), ("2.125", "cd")]
    assert apply(nights, insert("3", "3.000", "ef")).tables.tasks[0].remarks == ()


@pytest.mark.parametrize("before", [(D62, -1), (NUMERIC, NUMERIC_6_2)])
def test_a_key_that_may_have_new_texts_holds_the_table(before: tuple[int, int]) -> None:
    nights = Nights()
    apply(nights, table(before, (INT, -1)), insert("1.50", "1"))
    [held] = apply(nights, table((D83, -1), (INT, -1)), insert("2.125", "2")).tables.held
    assert "the type of key column 'c0' changed to a domain" in held.reason
