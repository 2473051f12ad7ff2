"""Rows that an old tuple means, compared with a server's that changes values without sending them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from pgoutput_etl.changes.bag import Bag, Values
from pgoutput_etl.schema.table_shape import NEVER


def test_the_newest_of_equal_rows_goes() -> None:
    bag: Bag[str] = Bag([NEVER])
    for lsn, row in ((1, "old"), (3, "newest"), (2, "newer")):
        bag.add(("x",), lsn, row)
    assert [taken.row for _ in range(4) if (taken := bag.take(("x",), 9))] == ["newest", "newer", "old"]


def test_a_row_older_than_its_columns_change_is_found() -> None:
    bag = with_rows([NEVER, 5], ("1", "NULL", 4), ("2", "NULL", 4), ("3", "NULL", 6))
    taken = bag.take(("1", "7"), 9)
    assert taken is not None
    assert (taken.row, taken.proven) == (("1", "NULL", 4), 5)
    assert bag.take(("3", "7"), 9) is None  # it was sent with NULL


def test_an_equal_row_comes_first() -> None:
    bag = with_rows([NEVER, 5], ("1", "NULL", 4), ("1", "7", 6))
    taken = bag.take(("1", "7"), 9)
    assert taken is not None
    assert (taken.row, taken.proven) == (("1", "7", 6), NEVER)


def test_of_rows_that_differ_none_is_taken() -> None:
    bag = with_rows([NEVER, 5, 8], ("1", "NULL", "NULL", 4), ("1", "7", "NULL", 6))
    assert bag.take(("1", "7", "9"), 9) is None
    assert bag.take(("1", "8", "9"), 9) is not None  # the row of LSN 6 has another value


def test_without_changes_of_columns_only_equal_rows_are_found() -> None:
    bag = with_rows([NEVER, NEVER], ("1", "NULL", 4))
    assert bag.take(("1", "7"), 9) is None


@pytest.mark.parametrize(
    ("stored", "old"),
    [
        ("(1,x)", "(1,x,)"),  # ADD ATTRIBUTE
        ("(1,x)", "(1,x,,)"),
        ('("a ""b"", (c\\\\",)', '("a ""b"", (c\\\\",,)'),
        ("(1,x,2)", "(1,2)"),  # DROP ATTRIBUTE
        ("(1,x)", "(1)"),
    ],
)
def test_a_composite_is_found_with_another_number_of_attributes(stored: str, old: str) -> None:
    bag = composites(("1", stored, 4), ("2", stored, 4), ("1", "(other)", 4))
    taken = bag.take(("1", old), 9)
    assert taken is not None
    assert (taken.row, taken.proven) == (("1", stored, 4), 8)
    assert bag.has_any_until(taken.proven)


@pytest.mark.parametrize(
    ("stored", "old"),
    [
        ("(1,x)", "(1,y)"),
        ("(1,x)", "(1,x,2)"),  # a new attribute is NULL
        ("(1,x)", "(1,y,)"),
        ("(1,x)", "(x,1,)"),
        ("(1,x,2)", "(2,1)"),
        ("(1,x)", "(1,,)"),
        ("(1,x)", "[1,x,)"),
        ("a", "b"),
    ],
)
def test_another_composite_is_another_row(stored: str, old: str) -> None:
    assert composites(("1", stored, 4)).take(("1", old), 9) is None


def test_of_composites_that_differ_none_is_taken() -> None:
    assert composites(("1", "(1,2)", 4), ("1", "(1,3)", 4)).take(("1", "(1)"), 9) is None


def composites(*rows: tuple[str, str, int]) -> Bag[object]:
    bag = with_rows([NEVER, NEVER], *rows)
    bag.may_be_rows = {1}
    return bag


def with_rows(changed_at: list[int], *rows: tuple[str, str, int] | tuple[str, str, str, int]) -> Bag[object]:
    bag: Bag[object] = Bag(changed_at)
    for row in rows:
        *values, lsn = row
        bag.add(tuple(map(str, values)), int(lsn), row)
    return bag


COLUMNS = 3


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_rows_are_the_servers_or_something_is_known_against_them(first: int) -> None:
    for seed in range(first, first + 100):
        assert_right_or_known(seed)


def assert_right_or_known(seed: int) -> None:
    chance = random.Random(seed)
    bag: Bag[Values] = Bag([NEVER] * COLUMNS)
    server: list[list[str]] = []  # each row, and the values of which the server has sent none
    unsent: list[set[int]] = []
    not_found, found_stale = 0, []
    for lsn in range(1, 40):
        match chance.choice("IIUUDA"):
            case "I":
                server.append([chance.choice("ab") for _ in range(COLUMNS)])
                unsent.append(set())
                bag.add(tuple(server[-1]), lsn, tuple(server[-1]))
            case "A":
                column, default = chance.randrange(1, COLUMNS), chance.choice(["x", "y", "NULL"])
                rows = [(own, value_with(row, column, "NULL")) for equal in bag.equal.values() for own, row in equal]
                bag = Bag([lsn if i == column else old for i, old in enumerate(bag.changed_at)])
                for own, row in rows:
                    bag.add(row, own, row)
                for values, hidden in zip(server, unsent, strict=True):
                    values[column] = default
                    hidden.add(column)
            case _ if not server:
                pass
            case op:
                place = chance.randrange(len(server))
                taken = bag.take(tuple(server[place]), lsn)
                not_found += taken is None
                found_stale += [] if taken is None else [taken.proven]
                if op == "D":
                    del server[place], unsent[place]
                else:
                    server[place][chance.randrange(COLUMNS)] = chance.choice("abc")
                    unsent[place] = set()
                    bag.add(tuple(server[place]), lsn, tuple(server[place]))
    if not_found or bag.has_any_until(max(found_stale, default=NEVER)):
        return
    # A change of a column that no old tuple has shown stays unknown; all other values are the server's.
    known = Counter(shown(values, hidden) for values, hidden in zip(server, unsent, strict=True))
    stored = [values for equal in bag.equal.values() for _, values in equal]
    assert sum(known.values()) == sum(len(rows) for rows in bag.equal.values())
    assert known <= Counter(pattern for values in stored for pattern in hidden_patterns(values))


def shown(values: Sequence[str | tuple[str, str]], hidden: set[int]) -> Values:
    return tuple("?" if i in hidden else value for i, value in enumerate(values))


def hidden_patterns(values: Values) -> list[Values]:
    """A stored row with any of its values hidden."""
    return [shown(values, {i for i in range(COLUMNS) if mask >> i & 1}) for mask in range(1 << COLUMNS)]


def value_with(row: Values, column: int, value: str) -> Values:
    return (*row[:column], value, *row[column + 1 :])
