"""Changes of chosen rows are found by any image, in every transaction, with the other keys that the rows had; without
all of them the archive replays to the same tables without these rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from pgoutput_etl.changes.row_search import Condition, FoundChange, RowKey, RowSearch
from pgoutput_etl.errors import ArchiveError, TableError
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.replay.mirror import ReplayedTable
from pgoutput_etl.schema.column_matching import UndecidedError
from pgoutput_etl.types import load_text
from tests.support.archived_tables import landed
from tests.support.erased_changes import Landed, keys_of
from tests.support.model.history import random_history, random_options
from tests.support.small_archives import (
    TOAST,
    Change,
    Messages,
    T,
    copydata,
    delete,
    delete_full,
    insert,
    segment,
    stream_abort,
    table,
    transaction,
    update,
)

_AT_ONCE = 50


def small(*messages: Messages) -> Landed:
    return Landed([copydata(part) for part in messages])


def others(changes: Iterable[FoundChange]) -> set[RowKey]:
    return {key for change in changes for key in change.other_keys}


def numbers(changes: Iterable[FoundChange]) -> list[tuple[int, int]]:
    return sorted((change.file, change.ordinal) for change in changes)


def test_a_key_is_every_row_that_has_it_and_a_condition_every_version_that_fulfills_it() -> None:
    """In every transaction. The other keys of these changes are those that Ada had."""
    archive = small(
        transaction(1, 0x100, table("id", "name"), insert("1", "Ada"), insert("2", "Bob")),
        [
            *transaction(2, 0x200, update("7", "Ada!", old_key=("1", None)), insert("1", "Eve")),
            *transaction(3, 0x300, update("1", "Eve!"), delete("7", None), insert("7", "Kim")),
            *segment(4, insert("9", "Ada"), update("8", "x", old_key=("9", None)), update("2", "Rob"), first=True),
            *stream_abort(4),
        ],
    )
    by_name = archive.found(T, {"name": "Ada"})
    assert (numbers(by_name), others(by_name)) == ([(0, 2), (1, 10)], {(("id", "1"),), (("id", "9"),)})
    by_key = archive.found(T, {"id": "1"})
    assert (numbers(by_key), others(by_key)) == ([(0, 2), (1, 1), (1, 2), (1, 5)], {(("id", "7"),)})
    conditions, found = archive.all_found(T, {"name": "Ada"})
    assert [*conditions] == [{"name": "Ada"}, {"id": "1"}, {"id": "9"}, {"id": "7"}, {"id": "8"}]
    assert numbers(found) == [(0, 2), (1, 1), (1, 2), (1, 5), (1, 6), (1, 7), (1, 10), (1, 11)]
    again = archive.without(found)
    assert b"Ada" not in b"".join(again.files)
    assert [row["name"] for row in again.replayed().tables()[T].rows] == ["Bob"]


def test_a_condition_sees_only_values_that_a_row_version_has() -> None:
    """An unchanged TOASTed value is not in the message, a deleted row's name neither: their key finds both."""
    archive = small(
        transaction(1, 0x100, table("id", "v", "name"), insert("1", "phone", "Ada"), insert("2", "fax", "Bob")),
        transaction(2, 0x200, update("1", "telex", TOAST), delete("1", None, None)),
    )
    found = archive.found(T, {"name": "Ada"})
    assert (numbers(found), others(found)) == ([(0, 2)], {(("id", "1"),)})
    found = archive.found(T, {"name": "Ada"}, {"id": "1"})
    assert (numbers(found), others(found)) == ([(0, 2), (1, 1), (1, 2)], set())


def test_a_value_that_an_old_tuple_has_belongs_to_the_new_one() -> None:
    archive = small(
        transaction(1, 0x100, table("id", "v", "name", identity=FULL), update("1", "a", TOAST, old=("1", "b", "Ada"))),
    )
    assert others(archive.found(T, {"v": "b"})) == {(("id", "1"), ("v", "a"), ("name", "Ada"))}


def test_a_row_is_found_under_a_partitions_key_that_its_root_lacks() -> None:
    root, partition = table("id", "name", key=()), table("id", "name", oid=1, name="t_1")
    archive = small(
        transaction(1, 0x100, root, partition, insert("1", "Ada"), insert("2", "Bob"), delete("1", None)),
    )
    assert numbers(archive.found(T, {"id": "1"})) == [(0, 3), (0, 5)]


FULL = ReplicaIdentity.FULL


@pytest.mark.parametrize(
    ("versions", "key", "conditions"),
    [
        pytest.param(
            [
                (table("id", "v"), [insert("1", "Ada"), insert("2", "Bob")]),
                (table("id", "v", identity=FULL), [update("1", "x", old=("1", "Ada")), delete_full("1", "x")]),
                (table("id", "v"), [update("2", "Rob")]),
            ],
            None,
            [{"id": "1"}],
            id="FULL for a while",
        ),
        pytest.param(
            [
                (table("a", "v", identity=FULL), [insert("1", "Ada"), insert("2", "Bob")]),
                (table("a", "v", "b", identity=FULL), [update("1", "x", None, old=("1", "Ada", None))]),
                (table("a", "v", "b", identity=FULL), [update("3", "x", "y", old=("1", "x", None))]),
            ],
            None,
            [{"a": "1", "v": "x"}, {"a": "3", "v": "x", "b": "y"}],
            id="no key: all values",
        ),
        pytest.param(
            [
                (table("id", "v", "n"), [insert("1", "Ada", "a"), insert("2", "Bob", "b"), insert("3", "Ada", None)]),
                (table("id", "v", "n", key=("id", "n")), [update("1", "x", "a"), insert("1", "Eve", "c")]),
                (table("id", "v", "n", key=("n",)), [delete(None, None, "a")]),
            ],
            None,
            [{"id": "1"}, {"n": "a"}, {"id": "1", "n": "a"}, {"id": "3"}, {"n": "c"}],
            id="all keys of the table",
        ),
        pytest.param(
            [
                (table("a", "v", "id", key=("id",)), [insert("1", "Ada", "10"), insert("2", "Bob", "20")]),
                (table("a", "v", "id", identity=FULL), [update("1", "x", "10"), delete_full("1", "x", "10")]),
            ],
            ("a",),
            [{"a": "1"}, {"id": "10"}],
            id="another key than the configured one",
        ),
        pytest.param(
            [
                (table("i", "v", identity=FULL), [insert("1", "Ada"), insert("2", "Bob")]),
                (table("id", "v", identity=FULL), [update("1", "x", old=("1", "Ada")), delete_full("1", "x")]),
            ],
            ("id",),
            [{"id": "1"}],
            id="a configured key with a new name",
        ),
    ],
)
def test_other_keys_are_asked_for_until_none_is_left_over(
    versions: list[tuple[Relation, list[Change]]], key: tuple[str, ...] | None, conditions: list[Condition]
) -> None:
    messages = [transaction(n, 0x100 * n, relation, *changes) for n, (relation, changes) in enumerate(versions, 1)]
    archive = replace(small(*messages), key=key)
    (first, *asked), _ = archive.all_found(T, {"v": "Ada"})
    assert first == {"v": "Ada"}
    assert sorted(map(str, asked)) == sorted(map(str, conditions))


def test_a_column_of_the_request_that_may_have_been_renamed() -> None:
    """What another column was called does not matter."""
    columns = ("email", 25), ("phone", 25)
    archive = small(
        transaction(1, 0x100, table("id", columns[0]), insert("1", "ada@example.org")),
        transaction(2, 0x200, table("id", columns[1]), insert("2", "110")),
    )
    archive.found(T, {"id": "1"})
    with pytest.raises(TableError, match="whether 'email', a column of the request, was renamed"):
        archive.found(T, {"email": "ada@example.org"})


def test_the_first_description_is_in_an_aborted_stream() -> None:
    archive = small(
        [*segment(9, table("id", "v"), update("1", "Ada"), first=True), *stream_abort(9)],
        transaction(1, 0x100, table("id", "v", "w"), update("1", "Ada", "x")),
    )
    assert numbers(archive.found(T, {"v": "Ada"})) == [(0, 2), (1, 2)]


def test_a_condition_may_spell_a_value_otherwise() -> None:
    archive = small(transaction(1, 0x100, table(("id", 23), ("price", 1700)), insert("7", "30.0"), insert("8", "1")))
    for condition in ({"id": "007"}, {"price": "30.0"}, {"id": "7", "price": "30.0"}):
        assert numbers(archive.found(T, condition)) == [(0, 2)], condition
    relation = replace(table(("id", 23), "n"), columns=(RelationColumn(True, "n", 1700, (10 << 16 | 2) + 4),))
    archive = small(transaction(1, 0x100, relation, insert("30.00")))
    assert numbers(archive.found(T, {"n": "30"})) == [(0, 2)]
    assert [*archive.search(T, {"n": "30"}, {"n": "030"}).spellings()] == [("30", "30.00"), ("030", "30.00")]


def test_no_relation_message_is_an_error() -> None:
    archive = small(transaction(1, 0x100, insert("1")))
    with pytest.raises(ArchiveError, match="file 0, offset 51: expected a Relation message of 16384, found none"):
        archive.found(16384, {"id": "1"})


def rows_without(table: ReplayedTable, search: RowSearch, conditions: Iterable[Condition]) -> list[dict[str, Any]]:
    """The table's rows without those that meet a condition."""
    columns = search.columns[search.versions.relations.index(table.shape.relation)]
    named = {  # without retired columns, which come last
        search._latest_names[c]: own for c, own in zip(columns, table.shape.columns, strict=False)
    }
    gone = [
        [(named[n].name, load_text(named[n].type, [str(text).encode()]).array[0].as_py()) for n, text in own.items()]
        for own in conditions
        if own.keys() <= named.keys()
    ]
    return [row for row in table.rows if not any(all(row[n] == value for n, value in own) for own in gone)]


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(n, n + _AT_ONCE), marks=() if n < _AT_ONCE else pytest.mark.soak)
        for n in range(0, 4_000, _AT_ONCE)
    ],
    ids=lambda seeds: f"{seeds.start}",
)
def test_the_archive_replays_to_the_tables_without_these_rows(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        chance = random.Random(seed)
        history = random_history(chance, replace(random_options(chance), evicts_prepared=False))
        archive = Landed([landed(file, chance) for night in history.nights(chance) for file in night])
        try:
            before = archive.replayed().tables()
        except UndecidedError:  # columns renamed and dropped between two changes
            seen["undecided before"] += 1
            continue
        keyed = sorted(oid for oid, table in before.items() if table.shape.key)
        if not keyed:
            continue
        oid = chance.choice(keyed)
        search, changes = archive.search(oid), archive.changes(oid)
        try:
            keys = keys_of(search, changes)
        except (ArchiveError, TableError):
            seen["undescribed"] += 1
            continue
        if not keys:  # only truncates
            continue
        try:
            conditions, found = archive.all_found(oid, dict(chance.choice(keys)))
        except TableError:  # a column of the key may have been renamed
            seen["refused"] += 1
            continue
        seen["several keys"] += len({tuple(condition) for condition in conditions}) > 1
        erased = archive.without(found)
        try:
            after = erased.replayed().tables()
        except TableError:  # a form of the columns that no other change shows is gone
            seen["undecided"] += 1
            continue
        assert {o: t.rows for o, t in after.items() if o != oid} == {o: t.rows for o, t in before.items() if o != oid}
        left = after[oid].rows if oid in after else []
        wanted = rows_without(before[oid], search, conditions)
        if oid in after and after[oid].shape.columns != before[oid].shape.columns:
            # No other row was committed under the last version, so the archive does not show that it ever held.
            seen["other columns"] += 1
            assert len(left) == len(wanted), f"seed {seed}"
        else:
            assert sorted(left, key=repr) == sorted(wanted, key=repr), f"seed {seed}"
        assert not erased.found(oid, *conditions)
        seen["erased"] += len(found)
        seen["kept"] += len(changes) - len(found)
        seen["rows"] += len(before[oid].rows) - len(left)
    assert seen["erased"] > len(seeds)
    assert seen["kept"] > len(seeds)
    assert seen["rows"] > 0
    assert seen["undescribed"] < len(seeds) / 2
    assert seen["other columns"] < len(seeds) / 5
    assert seen["undecided"] < len(seeds) / 10
    assert seen["undecided before"] + seen["refused"] < len(seeds) / 10
