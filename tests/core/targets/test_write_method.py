"""Every chosen write method gives the same rows as applying one change after the other, whichever facts are proven."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from typing import TypeAlias

import pytest

from pgoutput_etl.targets.write_method import WriteFacts, WriteMethod, absence_matters, need_reduction, write_method

# (operation, key, number): the number tells a row from others that had its key. In a bag the key is the whole row.
Change: TypeAlias = tuple[str, str, int]
Rows: TypeAlias = "Counter[tuple[str, int]]"
KEYS = "ab"


def replayed(target: dict[str, int], changes: tuple[Change, ...]) -> Rows:
    """Like replay.mirror.KeyedRows: an INSERT of an existing key replaces the row."""
    rows = dict(target)
    for op, key, number in changes:
        if op == "D":
            rows.pop(key, None)
        else:
            rows[key] = number
    return Counter(rows.items())


def written(target: dict[str, int], changes: tuple[Change, ...], facts: WriteFacts) -> Rows:
    """Like load/mirror.py and Delta. Raises AssertionError where Delta would fail."""
    if need_reduction(facts):
        changes = tuple({change[1]: change for change in changes}.values())
    there = Counter(target.items())
    kept = Counter((key, number) for op, key, number in changes if op != "D")
    match write_method(facts):
        case WriteMethod.OVERWRITE:
            return kept
        case WriteMethod.APPEND:
            return there + Counter((key, number) for _, key, number in changes)
        case _:
            matched = Counter(key for _, key, _ in changes if key in target)
            assert max(matched.values(), default=0) < 2, "several rows of the source match one row of the target"
            if facts.only_inserts:
                assert all(op != "D" for op, _, _ in changes)
            return Counter({row: n for row, n in there.items() if row[0] not in matched}) + kept


def cases() -> Iterator[tuple[dict[str, int], tuple[Change, ...]]]:
    for present in product((False, True), repeat=len(KEYS)):
        target = {key: 0 for key, is_there in zip(KEYS, present, strict=True) if is_there}
        for length in range(4):
            for drawn in product(product("IUD", KEYS), repeat=length):
                yield target, tuple((op, key, number) for number, (op, key) in enumerate(drawn, 1))


def truth(target: dict[str, int], changes: tuple[Change, ...]) -> WriteFacts:
    keys = [key for _, key, _ in changes]
    return WriteFacts(
        has_key=True,
        is_empty=not target,
        only_inserts=all(op == "I" for op, _, _ in changes),
        keys_are_unique=len(set(keys)) == len(keys),
        keys_are_absent=not target.keys() & set(keys),
    )


def less_known(facts: WriteFacts) -> Iterator[WriteFacts]:
    """The facts with every subset of them unproven."""
    names = [field.name for field in fields(facts) if field.name != "has_key"]
    for chosen in product((False, True), repeat=len(names)):
        known = {name: getattr(facts, name) and wanted for name, wanted in zip(names, chosen, strict=True)}
        yield WriteFacts(facts.has_key, **known)


def test_any_proven_facts_give_the_rows_of_sequential_changes() -> None:
    found: Counter[WriteMethod] = Counter()
    for target, changes in cases():
        expected = replayed(target, changes)
        for facts in less_known(truth(target, changes)):
            assert written(target, changes, facts) == expected, (target, changes, facts)
            found[write_method(facts)] += 1
    assert found.keys() == set(WriteMethod) - {WriteMethod.REWRITE}


def test_the_search_detects_an_unproven_fact() -> None:
    """The search detects the false assumption that inserted keys are new."""
    changes: tuple[Change, ...] = (("I", "a", 1),)
    presumed = WriteFacts(True, only_inserts=True, keys_are_unique=True, keys_are_absent=True)
    assert written({"a": 0}, changes, presumed) == Counter({("a", 0): 1, ("a", 1): 1})


def test_absent_keys_are_checked_only_if_the_method_depends_on_it() -> None:
    for has_key, is_empty, only_inserts, are_unique in product((False, True), repeat=4):
        unknown = WriteFacts(has_key, is_empty, only_inserts, are_unique)
        proven = replace(unknown, keys_are_absent=True)
        assert absence_matters(unknown) == (write_method(unknown) != write_method(proven))


@pytest.mark.parametrize(
    ("is_empty", "only_inserts", "method"),
    [
        (True, True, WriteMethod.OVERWRITE),
        (True, False, WriteMethod.OVERWRITE),
        (False, True, WriteMethod.APPEND),
        (False, False, WriteMethod.REWRITE),
    ],
)
def test_bags(is_empty: bool, only_inserts: bool, method: WriteMethod) -> None:
    facts = WriteFacts(has_key=False, is_empty=is_empty, only_inserts=only_inserts)
    assert (write_method(facts), need_reduction(facts)) == (method, False)
