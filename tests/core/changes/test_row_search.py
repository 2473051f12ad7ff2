"""Chosen rows are found under all their keys, in every transaction; without their changes the archive replays to the
same tables without these rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from pgoutput_etl.changes.row_search import FoundChange, Identity, RowSearch
from pgoutput_etl.errors import ArchiveError, TableError
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.replay.mirror import ReplayedTable
from pgoutput_etl.types import load_text
from tests.support.archived_tables import landed
from tests.support.erased_changes import Landed, Place
from tests.support.model.history import random_history, random_options
from tests.support.small_archives import (
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


def numbers(changes: Iterable[FoundChange]) -> list[tuple[int, int]]:
    return sorted((change.file, change.ordinal) for change in changes)


def test_a_row_is_found_under_all_its_keys() -> None:
    archive = small(
        transaction(1, 0x100, table("id", "name"), insert("1", "Ada"), insert("2", "Bob")),
        [
            *transaction(2, 0x200, update("7", "Ada", old_key=("1", None)), insert("1", "Eve")),
            *transaction(3, 0x300, update("1", "Eve!"), delete("7", None), insert("7", "Kim")),
            *segment(4, insert("9", "Ada"), update("8", "x", old_key=("9", None)), update("2", "Rob"), first=True),
            *stream_abort(4),
            *segment(5, update("1", "phone"), delete("7", None), first=True),
            *stream_abort(5),
        ],
    )
    chosen = archive.chosen(16384, {"name": "Ada"})
    assert chosen.keys == {(((0, 0), key),) for key in "17"}
    assert numbers(chosen.changes) == [(0, 2), (1, 1), (1, 6), (1, 10), (1, 11), (1, 16), (1, 17)]
    again = archive.without(chosen.changes)
    assert b"Ada" not in b"".join(again.files)
    rows = again.replayed().tables()[16384].rows
    assert sorted(row["name"] for row in rows) == ["Bob", "Eve!", "Kim"]


def test_a_row_is_found_under_a_partitions_key_that_its_root_lacks() -> None:
    root, partition = table("id", "name", key=()), table("id", "name", oid=1, name="t_1")
    archive = small(
        transaction(1, 0x100, root, partition, insert("1", "Ada"), insert("2", "Bob"), delete("1", None)),
    )
    assert numbers(archive.chosen(T, {"id": "1"}).changes) == [(0, 3), (0, 5)]


FULL = ReplicaIdentity.FULL


@pytest.mark.parametrize(
    ("versions", "key", "found"),
    [
        pytest.param(
            [
                (table("id", "v"), [insert("1", "Ada"), insert("2", "Bob")]),
                (table("id", "v", identity=FULL), [update("1", "x", old=("1", "Ada")), delete_full("1", "x")]),
                (table("id", "v"), [update("2", "Rob")]),
            ],
            None,
            [(0, 2), (1, 2), (1, 3)],
            id="FULL for a while",
        ),
        pytest.param(
            [
                (table("a", "v", identity=FULL), [insert("1", "Ada"), insert("2", "Bob")]),
                (table("a", "v", "b", identity=FULL), [update("1", "x", "y", old=("1", "Ada", None))]),
                (table("v", "b", identity=FULL), [delete_full("x", "y"), insert("z", "y")]),
            ],
            None,
            [(0, 2), (1, 2), (2, 2)],
            id="no key, other columns",
        ),
        pytest.param(
            [
                (table("id", "v", "n"), [insert("1", "Ada", "a"), insert("2", "Bob", "b")]),
                (table("id", "v", "n", key=("id", "n")), [update("1", "x", "a"), insert("1", "Eve", "c")]),
                (table("id", "v", "n", key=("n",)), [delete(None, None, "a")]),
            ],
            None,
            [(0, 2), (1, 2), (2, 2)],
            id="other keys",
        ),
        pytest.param(
            [
                (
                    table("id", "v", "n"),
                    [
                        insert("1", "Ada", "a"),
                        insert("2", "Bob", "a"),
                        insert("3", "Eve", None),
                        insert("4", "Kim", None),
                        update("1", "x", "b"),
                        insert("5", "Zoe", "b"),
                        delete("5", None, None),
                    ],
                ),
                (
                    table("id", "v", "n", key=("n",)),
                    [update("1", "y", "b"), delete(None, None, "b"), insert("6", "Lin", "b")],
                ),
                (table("id", "v", "n", key=("n",)), [update("2", "Robert", "a"), update("6", "Lina", "b")]),
            ],
            None,
            [(0, 2), (0, 6), (1, 2), (1, 3)],
            id="a key that was not unique before",
        ),
        pytest.param(
            [
                (table("a", "v", "id", key=("id",)), [insert("1", "Ada", "10"), insert("2", "Bob", "20")]),
                (table("a", "v", "id", key=("id",)), [update("1", "x", "10"), delete(None, None, "10")]),
            ],
            ("a",),
            [(0, 2), (1, 2), (1, 3)],
            id="another key than the configured one",
        ),
        pytest.param(
            [
                (table("i", "v", identity=FULL), [insert("1", "Ada"), insert("2", "Bob")]),
                (table("id", "v", identity=FULL), [update("1", "x", old=("1", "Ada")), delete_full("1", "x")]),
            ],
            ("id",),
            [(0, 2), (1, 2), (1, 3)],
            id="a configured key with a new name",
        ),
    ],
)
def test_rows_are_followed_through_other_keys(
    versions: list[tuple[Relation, list[Change]]], key: tuple[str, ...] | None, found: list[Place]
) -> None:
    messages = [transaction(n, 0x100 * n, relation, *changes) for n, (relation, changes) in enumerate(versions, 1)]
    archive = replace(small(*messages), key=key)
    chosen = archive.chosen(T, {"v": "Ada"})
    assert numbers(chosen.changes) == found


@pytest.mark.parametrize(
    ("versions", "key", "error"),
    [
        ([table("id", "v"), table("id", "v", "u", key=("u",))], None, "its key has 'u', a column that it has only in"),
        ([table("a", identity=FULL), table("b", "c", identity=FULL)], None, "no column is in all of its versions"),
        ([table("id", "v", identity=FULL)], ("x",), "it never had all columns of key: x"),
        (
            [table("id", "v"), table("id", "v", identity=FULL), table("id", "v", key=("v",))],
            None,
            "its key has changed, and it had none for a while",
        ),
    ],
)
def test_rows_that_nothing_links(versions: list[Relation], key: tuple[str, ...] | None, error: str) -> None:
    messages = [transaction(n, 0x100 * n, relation) for n, relation in enumerate(versions, 1)]
    with pytest.raises(TableError, match=error):
        _ = replace(small(*messages), key=key).search(T).keys


def test_the_first_description_is_in_an_aborted_stream() -> None:
    archive = small(
        [*segment(9, table("id", "v"), update("1", "Ada"), first=True), *stream_abort(9)],
        transaction(1, 0x100, table("id", "v", "w"), update("1", "Ada", "x")),
    )
    assert numbers(archive.chosen(T, {"v": "Ada"}).changes) == [(0, 2), (1, 2)]


def test_a_condition_may_spell_a_value_otherwise() -> None:
    archive = small(transaction(1, 0x100, table(("id", 23), ("price", 1700)), insert("7", "30.0"), insert("8", "1")))
    for condition in ({"id": "007"}, {"price": "30.0"}, {"id": "7", "price": "30.0"}):
        assert numbers(archive.chosen(T, condition).changes) == [(0, 2)], condition
    relation = replace(table(("id", 23), "n"), columns=(RelationColumn(True, "n", 1700, (10 << 16 | 2) + 4),))
    archive = small(transaction(1, 0x100, relation, insert("30.00")))
    assert numbers(archive.chosen(T, {"n": "30"}).changes) == [(0, 2)]
    assert [*archive.search(T, {"n": "30"}, {"n": "030"}).spellings()] == [("30", "30.00"), ("030", "30.00")]


def test_no_relation_message_is_an_error() -> None:
    archive = small(transaction(1, 0x100, insert("1")))
    with pytest.raises(ArchiveError, match="file 0, offset 51: expected a Relation message of 16384, found none"):
        archive.found(16384, {"id": "1"})


def rows_without(table: ReplayedTable, search: RowSearch, identities: Iterable[Identity]) -> list[dict[str, Any]]:
    """The table's rows without those with these keys."""
    shape = table.shape
    columns = search.columns[search.versions.relations.index(shape.relation)]
    key = sorted(shape.key, key=lambda i: columns[i])
    gone = set()
    for identity in identities:
        if [column for column, _ in identity] == [columns[i] for i in key]:
            texts = [None if text is None else text.encode() for _, text in identity]
            types = [shape.columns[i].type for i in key]
            gone.add(tuple(load_text(t, [x]).array[0].as_py() for t, x in zip(types, texts, strict=True)))
    names = [shape.columns[i].name for i in key]
    return [row for row in table.rows if tuple(row[name] for name in names) not in gone]


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
        before = archive.replayed().tables()
        keyed = sorted(oid for oid, table in before.items() if table.shape.key)
        if not keyed:
            continue
        oid = chance.choice(keyed)
        try:
            everything = archive.found(oid)
        except (ArchiveError, TableError):
            seen["undescribed"] += 1
            continue
        identities = sorted({use.identity for change in everything for use in change.keys}, key=repr)
        if not identities:  # only truncates
            continue
        search = archive.search(oid)
        chosen = {
            search.versions.relations[number].columns[place].name: text
            for (number, place), text in chance.choice(identities)
        }
        rows = archive.chosen(oid, chosen)
        if not rows.keys_are_unique:
            seen["impossible"] += 1
            continue
        seen["several keys"] += len(search.keys) > 1
        erased = archive.without(rows.changes)
        after = erased.replayed().tables()
        assert {o: t.rows for o, t in after.items() if o != oid} == {o: t.rows for o, t in before.items() if o != oid}
        left = after[oid].rows if oid in after else []
        wanted = rows_without(before[oid], search, rows.at_the_end)
        if oid in after and after[oid].shape.columns != before[oid].shape.columns:
            # No other row was committed under the last version, so the archive does not show that it ever held.
            seen["other columns"] += 1
            assert len(left) == len(wanted), f"seed {seed}"
        else:
            assert sorted(left, key=repr) == sorted(wanted, key=repr), f"seed {seed}"
        assert not [change for change in erased.found(oid, chosen) if change.is_chosen]
        seen["erased"] += len(rows.changes)
        seen["rows"] += len(before[oid].rows) - len(left)
    assert seen["erased"] > len(seeds)
    assert seen["rows"] > 0
    assert seen["undescribed"] < len(seeds) / 2
    assert seen["impossible"] < len(seeds) / 10
    assert seen["other columns"] < len(seeds) / 5
