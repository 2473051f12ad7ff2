"""The columns of every short sequence of ALTERs: right, held or named as a doubt; never under another column's name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product

import pytest
import yaml

from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import RelationColumn
from pgoutput_etl.schema.column_matching import DeclaredStep, Doubt, Identification, Versions, declaration, identify

INT, TEXT = 23, 25

# Number in the catalog, name, type: what the server knows.
Column = tuple[int, str, int]
Table = tuple[Column, ...]

NAMES = "abcd"


def tables_with(columns: int) -> list[Table]:
    """Of every mix of two types."""
    return [tuple(zip(range(columns), NAMES, types, strict=False)) for types in product((INT, TEXT), repeat=columns)]


def altered(table: Table, number: int) -> Iterator[Table]:
    """Every table after one ALTER. number: of a new column."""
    used = {name for _, name, _ in table}
    free = [name for name in NAMES if name not in used] + [next(name for name in "uvwxyz" if name not in used)]
    yield from ((*table, (number, name, type_oid)) for name, type_oid in product(free, (INT, TEXT)))
    for i, (catalog_number, name, type_oid) in enumerate(table):
        before, after = table[:i], table[i + 1 :]
        if before or after:
            yield before + after
        yield from ((*before, (catalog_number, new, type_oid), *after) for new in free)
        yield (*before, (catalog_number, name, TEXT if type_oid == INT else INT), *after)
    for i, j in combinations(range(len(table)), 2):
        swapped = list(table)
        swapped[i], swapped[j] = (table[i][0], table[j][1], table[i][2]), (table[j][0], table[i][1], table[j][2])
        yield tuple(swapped)


def outcomes(table: Table, most: int) -> dict[Table, int]:
    """Every table after up to so many ALTERs, with the least number of them."""
    found = {table: 0}
    for number in range(1, most + 1):
        latest = [former for former, count in found.items() if count == number - 1]
        for former in latest:
            for new in altered(former, len(NAMES) + number):
                found.setdefault(new, number)
    return found


def sent(table: Table) -> list[RelationColumn]:
    return [RelationColumn(name == "id", name, type_oid, -1) for _, name, type_oid in table]


def is_right(old: Table, new: Table, found: Identification) -> bool:
    places = {number: place for place, (number, _, _) in enumerate(old)}
    return all(found.origins.get(place) == places.get(number) for place, (number, _, _) in enumerate(new))


def commands(old: Table, new: Table, found: Identification) -> int:
    """The number of ALTERs that the reading takes."""
    pairs = [(old[origin], new[place]) for place, origin in found.origins.items()]
    renamed, retyped = (sum(before[i] != after[i] for before, after in pairs) for i in (1, 2))
    return renamed + retyped + len(old) + len(new) - 2 * len(pairs)


def judged(columns: int, most: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for old in tables_with(columns):
        for new, number in outcomes(old, most).items():
            try:
                found = identify(sent(old), sent(new), {})
            except TableError:
                counts["held"] += 1
                continue
            if is_right(old, new, found):
                counts["right"] += 1
            elif found.doubts:
                counts["named"] += 1
            else:
                assert commands(old, new, found) < number, (old, new, found)
                counts["needlessly complicated"] += 1  # nothing shows it: fewer ALTERs have the same result
    return counts


@pytest.mark.parametrize(
    ("columns", "most"),
    [
        (2, 3),
        (3, 2),
        (4, 2),
        pytest.param(3, 4, marks=pytest.mark.soak),
        pytest.param(4, 3, marks=pytest.mark.soak),
    ],
)
def test_no_value_stands_under_a_name_that_may_not_be_its_own(columns: int, most: int) -> None:
    counts = judged(columns, most)
    assert counts["right"] > 0 < counts["named"]
    assert counts["needlessly complicated"] < sum(counts.values()) / 50


def test_a_single_alter_is_never_wrong_without_a_word() -> None:
    assert judged(4, 1)["needlessly complicated"] == 0


def explanations(old: Table, new: Table) -> list[DeclaredStep]:
    """What a held table's message lists, or the readings of its doubts."""
    try:
        found = identify(sent(old), sent(new), {})
    except TableError:
        return Versions(sent(old), sent(new)).explanations({})
    return [{name: former for doubt in found.doubts for name, former in [(doubt.column, doubt.reading)]}]


def test_every_explanation_releases_the_table_for_good() -> None:
    listed = 0
    for old in tables_with(3):
        for new in outcomes(old, 2):
            choices = explanations(old, new)
            assert choices, (old, new)
            for declared in choices:
                found = identify(sent(old), sent(new), declared)
                assert found.doubts == [], (old, new, declared)
                names = {new[place][1]: old[origin][1] for place, origin in found.origins.items()}
                assert all(names.get(name) == former for name, former in declared.items()), (old, new, declared)
                assert identify(sent(new), sent(new), declared).origins == {place: place for place in range(len(new))}
                listed += 1
    assert listed > 1_000


def test_a_declaration_stays_in_the_configuration() -> None:
    """It does not change a later step."""
    old, new = sent(((0, "a", INT), (1, "b", INT))), sent(((1, "b", INT), (0, "a", INT)))
    declared = {"a": "b", "b": "a"}
    assert identify(old, new, declared).origins == {0: 0, 1: 1}
    assert identify(new, [*new, *sent(((5, "c", INT),))], declared).origins == {0: 0, 1: 1}


def test_an_impossible_declaration_is_an_error() -> None:
    old = sent(((0, "a", INT), (1, "b", INT)))
    new = sent(((5, "x", INT), (6, "y", INT)))
    with pytest.raises(TableError, match=r"columns: {x: {renamed_from: b}, y: {renamed_from: a}} is impossible"):
        identify(old, new, {"x": "b", "y": "a"})


def test_what_is_declared_is_no_choice() -> None:
    """Explanations that contradict it are not listed, even if none is left."""
    old = sent(tuple((i, f"c{i}", INT) for i in range(12)))
    new = [*old[:1], *reversed(old[2:5]), *sent(((20, "x", INT),)), *old[5:]]
    with pytest.raises(TableError, match="are out of order"):
        identify(old, new, {"x": None})
    with pytest.raises(TableError, match="are out of order"):
        identify(old, new, {"x": "c4"})


def test_a_doubt_in_words() -> None:
    kept, new = Doubt("age", True, ()), Doubt("total", False, ("count", "m"))
    assert str(kept) == (
        "age has kept its values under another type. Declare columns: {age: {renamed_from: age}}, or columns: "
        "{age: added}"
    )
    assert str(new) == (
        "total was read as a new column. Declare columns: {total: added}, or columns: {total: {renamed_from: count}} "
        "or columns: {total: {renamed_from: m}}"
    )


def test_names_are_quoted_in_a_declaration() -> None:
    names = {"no": 'a"b', "x y": None, "a\nb": "c: d"}
    text = declaration(names)
    assert text == r'columns: {"no": {renamed_from: "a\"b"}, "x y": added, "a\nb": {renamed_from: "c: d"}}'
    assert yaml.safe_load(text)["columns"] == {
        "no": {"renamed_from": 'a"b'},
        "x y": "added",
        "a\nb": {"renamed_from": "c: d"},
    }
