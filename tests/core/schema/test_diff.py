"""The origins of a table's columns in the version before, and the cases that are ambiguous."""

from __future__ import annotations

import pytest

from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import Relation, ReplicaIdentity
from pgoutput_etl.schema.column_matching import Declared
from pgoutput_etl.schema.declarations import Declarations
from pgoutput_etl.schema.diff import ChangeKind, lineage
from tests.support.small_archives import table

INT, BIGINT = 23, 20
FULL = ReplicaIdentity.FULL


def ints(*names: str) -> Relation:
    """A table with a text key and integer columns."""
    return table("id", *((name, INT) for name in names))


def described(old: Relation, new: Relation, declared: Declared | None = None) -> list[str]:
    """`new<old` for a column with an origin, `new` for a new column, `!new` for a newly published one, `-old` for a
    dropped one, `?old` for a retired one."""
    columns = lineage(old, new, Declarations(declared or {}))
    names = [column.name for column in old.columns]
    pairs = zip(new.columns, columns.origins, strict=True)
    unsent = {new.columns[place].name for place in columns.unsent}
    after = [
        "!" * (c.name in unsent) + c.name if o is None else f"{c.name}<{names[o]}"
        for c, o in pairs
        if o is None or names[o] != c.name
    ]
    gone = [n for place, n in enumerate(names) if place not in columns.origins]
    retired = {names[place] for place in columns.retired}
    return [*after, *(f"{'?' if name in retired else '-'}{name}" for name in gone)]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (ints("a"), ints("a"), []),
        (ints("a"), table("id", ("a", INT), name="renamed"), []),
        # added and dropped
        (ints("a"), ints("a", "b", "c"), ["b", "c"]),
        (ints("a", "b"), ints("a"), ["-b"]),
        (ints("a", "b"), ints("b"), ["-a"]),
        (ints("a", "b", "c"), ints("b", "d"), ["d", "-a", "?c"]),
        (ints("a"), table("id", "x"), ["x", "?a"]),  # of another type: perhaps retyped, too
        # renamed, in front of a remaining column
        (ints("a", "b"), ints("x", "b"), ["x<a"]),
        (ints("a", "b", "c"), ints("x", "y", "c"), ["x<a", "y<b"]),
        (ints("a", "b"), table("key", ("a", INT), ("b", INT), key=["key"]), ["key<id"]),
        (ints("a", "b"), table("id", ("x", BIGINT), ("b", INT)), ["x<a"]),  # and retyped
        (ints("a", "b", "c"), ints("x", "b", "c", "d"), ["x<a", "d"]),
        # newly published, and perhaps one of them renamed
        (ints("b"), table("id", "a", ("b", INT)), ["!a"]),
        (ints("a", "b"), table("id", "x", "y", ("b", INT)), ["!x", "!y", "?a"]),
        # the last column: renamed, or dropped and added
        (ints("a"), ints("b"), ["b", "?a"]),
        (ints("a", "b"), ints("a", "c"), ["c", "?b"]),
        (ints("a", "b"), ints("x", "y"), ["x", "y", "?a", "?b"]),
        (table("id", ("a", INT), "b"), table("id", ("x", INT)), ["x", "?a", "?b"]),
        # retyped in its place
        (ints("a"), table("id", ("a", BIGINT)), []),
    ],
)
def test_origins_of_columns(old: Relation, new: Relation, expected: list[str]) -> None:
    assert described(old, new) == expected


@pytest.mark.parametrize(
    ("old", "new", "declared", "expected"),
    [
        (ints("a"), ints("b"), {"b": "a"}, ["b<a"]),
        (ints("a"), ints("b"), {"b": None}, ["b", "-a"]),
        (ints("a", "b", "c"), ints("x", "c"), {"x": "b"}, ["x<b", "-a"]),
        (ints("a", "b"), ints("b", "a"), {"b": "a", "a": "b"}, ["b<a", "a<b"]),
        (ints("a", "b"), ints("b", "a"), {"a": None}, ["a", "-a"]),
        (ints("a", "x", "b"), ints("b", "x", "a"), {"b": "a", "a": "b"}, ["b<a", "a<b"]),
        (ints("a", "c"), ints("b", "c"), {"b": None}, ["!b", "-a"]),
        (ints("a", "c"), ints("x", "b", "c"), {"b": None}, ["x<a", "!b"]),
        # A declaration does not affect other columns.
        (ints("b", "a"), ints("b", "a", "c"), {"b": "a", "a": "b"}, ["c"]),
        (ints("b"), ints("b", "c"), {"b": "a"}, ["c"]),
        (ints("a"), ints("b"), {"b": "nothing"}, ["b", "?a"]),
    ],
)
def test_declared_origins(old: Relation, new: Relation, declared: Declared, expected: list[str]) -> None:
    assert described(old, new, declared) == expected


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (ints("a", "b"), ints("b", "a"), "names that both versions have are out of order"),
        (table("id", ("a", INT), "b"), table("id", "b", ("a", INT)), "names that both versions have are out of order"),
        (ints("a", "b", "c"), ints("x", "c"), "some of a, b were renamed and others dropped"),
        (table("id", ("a", INT), "b", "z"), table("id", ("x", INT), "z"), "some of a, b were renamed"),
        (ints("b"), ints("a", "b"), "b was renamed to a, and its name given to a new column; or a is newly published"),
        (table("id", ("a", INT), ("b", BIGINT)), table("id", ("a", BIGINT)), "a has the type that b had, which is"),
        (ints("a", "b"), ints("x", "b", "a"), "names that both versions have are out of order"),
    ],
)
def test_ambiguous_columns_are_refused(old: Relation, new: Relation, why: str) -> None:
    with pytest.raises(TableError, match="^the archive does not show which columns these are: " + why):
        lineage(old, new, Declarations({}))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (table("id", "v"), table("id", "v", key=["v"]), "key changed (id to v)"),
        (table("id", "v"), table("id", "v", key=["id", "v"]), "key changed (id to id, v)"),
        (table("id", "v"), table("id", "v", key=[]), "key changed (id to none)"),
        (table("id", "v"), table("id", "v", identity=FULL), "key changed (id to the whole row)"),
        (table("id", "v", identity=FULL), table("id", "v"), "key changed (the whole row to id)"),
        (table("id", "v"), table("key", "v", key=["key"]), "column renamed: key (was id)"),
        (table("id", "v"), table("id", "v", "w"), "column added: w"),
        (table("id", "v", "w"), table("id", "v"), "column dropped: w"),
        (table("id", "v"), table("id", ("v", INT)), "column retyped: v"),
    ],
)
def test_changes_in_words(old: Relation, new: Relation, expected: str) -> None:
    assert [str(change) for change in lineage(old, new, Declarations({})).changes] == [expected]


def test_a_retired_column_is_reported() -> None:
    kinds = [change.kind for change in lineage(ints("a"), ints("b"), Declarations({})).changes]
    assert kinds == [ChangeKind.RETIRED, ChangeKind.ADDED]
