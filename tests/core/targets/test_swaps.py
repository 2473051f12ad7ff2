"""Tables that are swapped in for another one, night by night, and tables that only look like it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgoutput_etl.config.rules import TableRule
from pgoutput_etl.identifiers import is_named_after
from pgoutput_etl.ledger.tables import table_row
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.targets.plan import CompleteSince, Since
from pgoutput_etl.targets.swaps import SuspectedSwap, suspected_swaps
from tests.support.nights import CONFIG, Nights
from tests.support.small_archives import Messages, copydata, insert, table, transaction

PRICES = table("id", "v", oid=1, name="prices")
FIRST = transaction(1, 10, PRICES, insert("1", "load 1", oid=1))


def loaded(oid: int, lsn: int, name: str = "prices_new", columns: tuple[str, ...] = ("id", "v")) -> Messages:
    """A night that creates a table and loads it."""
    row = insert(*map(str, range(len(columns))), oid=oid)
    return transaction(oid, lsn, table(*columns, oid=oid, name=name), row)


def copied(lsn: int) -> Messages:
    return transaction(lsn, lsn, insert(str(lsn), "copied", oid=1))


def after(*files: Messages, nights: Nights | None = None) -> list[SuspectedSwap]:
    """The suspicion after one night per file."""
    nights = nights or Nights()
    for file in files:
        nights.night([copydata(file)])
    return list(suspected_swaps(nights.states))


def test_a_table_that_stands_still_while_newcomers_replace_each_other() -> None:
    assert after(FIRST, loaded(2, 20)) == [], "an ordinary new table"
    [swap] = after(FIRST, loaded(2, 20), loaded(3, 30))
    assert swap == SuspectedSwap("public.prices", "public.prices_new", 10, 1)
    [swap] = after(FIRST, loaded(2, 20), loaded(3, 30), loaded(4, 40))
    assert str(swap).startswith(
        "public.prices has had no change since LSN 0/A, while tables named public.prices_new replace each other (2 "
        "displaced): it looks as if each is renamed to public.prices."
    )


def test_a_change_of_columns_does_not_hide_the_swap() -> None:
    wider = ("id", "v", "w")
    [swap] = after(FIRST, loaded(2, 20, columns=wider), loaded(3, 30, columns=wider))
    assert swap.table == "public.prices"


def test_a_staging_table_that_is_copied_into_the_other_is_no_swap() -> None:
    assert after(FIRST, [*loaded(2, 20), *copied(21)], [*loaded(3, 30), *copied(31)], loaded(4, 40)) == []
    together = transaction(3, 30, table(oid=3, name="prices_new"), insert("1", "v", oid=3), insert("5", "v", oid=1))
    assert after(FIRST, loaded(2, 20), copied(25), together, loaded(4, 40)) == []


def test_a_row_after_the_rename_shows_it() -> None:
    renamed = transaction(9, 25, table(oid=2, name="prices"), insert("9", "after", oid=2))
    nights = Nights()
    assert after(FIRST, [*loaded(2, 20), *renamed], loaded(3, 30), nights=nights) == []
    [swap] = after(loaded(4, 40), nights=nights)
    assert (swap.since, swap.displaced) == (25, 1), "the next load was renamed without a row"


@pytest.mark.parametrize(
    "newcomers",
    [
        [loaded(2, 20, "other"), loaded(3, 30, "other"), loaded(4, 40, "other")],
        [loaded(2, 20, "prices"), loaded(3, 30, "prices"), loaded(4, 40, "prices")],
        [loaded(n, 10 * n, "prices_log", ("at", "line")) for n in (2, 3, 4)],
        [loaded(2, 20), loaded(3, 30, "prices_2027"), loaded(4, 40, "prices_2028")],
    ],
)
def test_other_tables_that_are_dropped_and_created_again(newcomers: list[Messages]) -> None:
    assert after(FIRST, *newcomers) == []


def test_a_snapshot_ends_the_suspicion() -> None:
    nights = Nights()
    assert after(FIRST, loaded(2, 20), loaded(3, 30), nights=nights)
    state = replace(nights.states[1], complete_since=CompleteSince(Since.SNAPSHOT, 35))
    nights.tables[0] = table_row(state)
    assert after(loaded(4, 40), nights=nights) == [], "the tables of the nights before are in the snapshot"
    assert after(loaded(5, 50), nights=nights)


def test_skipped_newcomers_end_the_suspicion() -> None:
    nights = Nights(replace(CONFIG, tables=(TableRule("public.*_new", skip=True),)))
    assert after(FIRST, loaded(2, 20), loaded(3, 30), loaded(4, 40), nights=nights) == []


@pytest.mark.parametrize("name", ["prices", "prices_new"])
def test_tables_of_another_schema_are_no_newcomers(name: str) -> None:
    """They may be another tenant's."""

    def others(oid: int, lsn: int) -> Messages:
        relation: Relation = replace(table(oid=oid, name=name), namespace="tenant_2")
        return transaction(oid, lsn, relation, insert("1", "v", oid=oid))

    assert after(FIRST, others(2, 20), others(3, 30), others(4, 40)) == []


@pytest.mark.parametrize(
    ("other", "name", "expected"),
    [
        ("t_new", "t", True),
        ("new_t", "t", True),
        ("t2", "t", False),
        ("text", "t", False),
        ("person2026", "person", True),
        ("itest15", "itest1", False),
        ("oldperson", "person", True),
        ("person", "person_new", False),
        ("person", "person", False),
        ("personal", "other", False),
    ],
)
def test_names_with_an_addition(other: str, name: str, expected: bool) -> None:
    assert is_named_after(("public", other), ("public", name)) is expected
