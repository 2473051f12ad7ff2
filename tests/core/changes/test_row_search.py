"""Chosen rows are found under all their keys, in every transaction; without their changes the archive replays to the
same tables without these rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pgoutput_etl.changes.row_search import Condition, FoundChange, Identity, RowSearch
from pgoutput_etl.errors import ArchiveError, TableError
from pgoutput_etl.landing.erasure import erase
from pgoutput_etl.protocol.framing import detect
from pgoutput_etl.replay.mirror import Replay, ReplayedTable, fragment_outcomes
from pgoutput_etl.scan.message_row import CHANGE_TAGS
from pgoutput_etl.types import load_text
from tests.support.archived_tables import landed
from tests.support.model.history import random_history, random_options
from tests.support.small_archives import (
    Messages,
    copydata,
    delete,
    insert,
    segment,
    stream_abort,
    table,
    transaction,
    update,
)

_AT_ONCE = 50


@dataclass(frozen=True)
class Landed:
    files: list[bytes]

    def replayed(self) -> Replay:
        replay = Replay()
        for number, data in enumerate(self.files):
            replay.add_file(f"{number:03}", data)
        return replay

    def search(self, oid: int, *conditions: Condition) -> RowSearch:
        return RowSearch(self.replayed().assembly.relations.versions(oid), conditions)

    def found(self, oid: int, *conditions: Condition) -> list[FoundChange]:
        replay = self.replayed()
        outcomes = fragment_outcomes(replay.assembly)
        search = RowSearch(replay.assembly.relations.versions(oid), conditions)
        changes = [row for row in replay._messages if row["tag"] in CHANGE_TAGS and row["tag"] != "T"]
        scopes = {f: outcome.scope for f, outcome in outcomes.items()}
        return [
            search.find({**row, "scope": scopes.get((row["file"], row["unit"]))})
            for row in changes
            if row["relation"] == oid
        ]

    def without(self, changes: Iterable[FoundChange]) -> Landed:
        by_file: dict[int, dict[int, bool]] = {}
        for change in changes:
            by_file.setdefault(change.file, {})[change.offset] = change.in_stream
        files = [
            erase(data, detect(data), by_file[number]).data if number in by_file else data
            for number, data in enumerate(self.files)
        ]
        return Landed(files)


def chosen_changes(found: Sequence[FoundChange]) -> tuple[list[FoundChange], frozenset[Identity]]:
    """The changes of chosen rows, and all identities that these rows had. On Spark, jobs/forget/find.py joins them."""
    linked: dict[Identity, list[FoundChange]] = {}
    for change in found:
        for identity in change.identities:
            linked.setdefault(identity, []).append(change)
    waiting = [change for change in found if change.is_chosen]
    chosen = {(change.file, change.ordinal): change for change in waiting}
    identities: set[Identity] = set()
    while waiting:
        for identity in waiting.pop().identities - identities:
            identities.add(identity)
            for change in linked[identity]:
                if (change.file, change.ordinal) not in chosen:
                    chosen[change.file, change.ordinal] = change
                    waiting.append(change)
    return list(chosen.values()), frozenset(identities)


def small(*messages: Messages) -> Landed:
    return Landed([copydata(part) for part in messages])


def numbers(changes: Iterable[FoundChange]) -> list[tuple[int, int]]:
    return sorted((change.file, change.ordinal) for change in changes)


def test_a_row_is_found_under_all_its_keys() -> None:
    archive = small(
        transaction(1, 0x100, table("id", "name"), insert("1", "Ada"), insert("2", "Bob")),
        [
            *transaction(2, 0x200, update("7", "Ada", old_key=("1", None)), insert("1", "Eve")),
            *transaction(3, 0x300, delete("7", None)),
            *segment(4, insert("9", "Ada"), update("2", "Robert"), first=True),
            *stream_abort(4),
        ],
    )
    changes, identities = chosen_changes(archive.found(16384, {"name": "Ada"}))
    assert identities == {(((0, 0), key),) for key in "179"}
    assert numbers(changes) == [(0, 2), (1, 1), (1, 2), (1, 5), (1, 8)]  # with Eve, who got the key 1
    again = archive.without(changes)
    assert b"Ada" not in b"".join(again.files)
    assert [row["name"] for row in again.replayed().tables()[16384].rows] == ["Bob"]


def test_no_relation_message_is_an_error() -> None:
    archive = small(transaction(1, 0x100, insert("1")))
    with pytest.raises(ArchiveError, match="file 0, offset 51: expected a Relation message of 16384, found none"):
        archive.found(16384, {"id": "1"})


def rows_without(table: ReplayedTable, search: RowSearch, identities: frozenset[Identity]) -> list[dict[str, Any]]:
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
        pytest.param(range(n, n + _AT_ONCE), marks=() if n < 100 else pytest.mark.soak)
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
        identities = sorted({i for change in everything for i in change.identities}, key=repr)
        if not identities:  # only truncates
            continue
        search = archive.search(oid)
        chosen = {
            search.versions.relations[number].columns[place].name: text
            for (number, place), text in chance.choice(identities)
        }
        changes, gone = chosen_changes(archive.found(oid, chosen))
        erased = archive.without(changes)
        after = erased.replayed().tables()
        assert {o: t.rows for o, t in after.items() if o != oid} == {o: t.rows for o, t in before.items() if o != oid}
        left = after[oid].rows if oid in after else []
        wanted = rows_without(before[oid], search, gone)
        if oid in after and after[oid].shape.columns != before[oid].shape.columns:
            # No other row was committed under the last version, so the archive does not show that it ever held.
            seen["other columns"] += 1
            assert len(left) == len(wanted), f"seed {seed}"
        else:
            assert sorted(left, key=repr) == sorted(wanted, key=repr), f"seed {seed}"
        assert not [c for c in erased.found(oid, chosen) if c.is_chosen or c.identities & gone]
        seen["erased"] += len(changes)
        seen["rows"] += len(before[oid].rows) - len(left)
    assert seen["erased"] > len(seeds)
    assert seen["rows"] > 0
    assert seen["undescribed"] < len(seeds) / 2
    assert seen["other columns"] < len(seeds) / 5
