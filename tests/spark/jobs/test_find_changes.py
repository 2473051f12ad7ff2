"""Spark finds the changes that the reference finds by following each row."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.changes.row_search import Condition, RowSearch
from pgoutput_etl.errors import ArchiveError, RunError, TableError
from pgoutput_etl.ingest.executors import _WITH_STATUS
from pgoutput_etl.jobs.forget.find import FoundChanges, find_changes
from pgoutput_etl.jobs.forget.selection import RowSelection, StoredRow
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.spark.connect import frame
from tests.support.archived_tables import landed
from tests.support.erased_changes import Landed, Place
from tests.support.model.history import random_history, random_options
from tests.support.row_histories import PERSON, RowHistory
from tests.support.small_archives import (
    TOAST,
    Messages,
    T,
    copydata,
    delete,
    delete_full,
    in_subtransaction,
    insert,
    segment,
    stream_abort,
    table,
    transaction,
    truncate,
    update,
)

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Archive:
    """What find_changes reads of a DeltaArchive."""

    rows: DataFrame

    def all_changes(self, _: object) -> DataFrame:
        return self.rows


def find(
    spark: SparkSession, archive: Landed, oid: int, condition: Condition, stored: Iterable[StoredRow] = ()
) -> FoundChanges:
    """stored: rows of targets or snapshots."""
    search = archive.search(oid, condition)
    changes = frame(spark, pa.Table.from_pylist(archive.changes(oid), _WITH_STATUS))
    keys = RowSelection.of(search, (), search.wanted).keys_of_chosen(oid, stored)
    seeds = frame(spark, pa.Table.from_batches([keys]))
    return find_changes(Archive(changes), {oid: search}, [seeds])  # type: ignore[arg-type]


def positions(found: FoundChanges) -> set[Place]:
    return {(row["file"], row["ordinal"]) for row in found.positions.to_pylist()}


# In these, a key of the chosen row was also that of another row, which moved there or was there before.
REUSED = (51, 261, 278, 299, 495, 593, 700, 744, 776, 846, 888, 911, 1032, 1080)

# In these, the table's key was changed.
SEVERAL_KEYS = (27, 58, 69, 123, 174, 184, 185, 286, 312, 353)


@pytest.mark.soak
def test_random_histories(spark: SparkSession) -> None:
    seen: Counter[str] = Counter()
    for seed in (*range(20), *REUSED, *SEVERAL_KEYS):
        chance = random.Random(seed)
        history = random_history(chance, replace(random_options(chance), evicts_prepared=False))
        archive = Landed([landed(file, chance) for night in history.nights(chance) for file in night])
        keyed = sorted(oid for oid, table in archive.replayed().tables().items() if table.shape.key)
        if not keyed:
            continue
        oid = chance.choice(keyed)
        try:
            identities = sorted({use.identity for change in archive.found(oid) for use in change.keys}, key=repr)
        except (ArchiveError, TableError):
            continue
        search = archive.search(oid)
        if not identities or not search.has_key:
            continue
        columns = search.versions.relations
        condition = {columns[n].columns[place].name: text for (n, place), text in chance.choice(identities)}
        expected = archive.chosen(oid, condition)
        found = find(spark, archive, oid, condition)
        places = positions(found)
        assert places == {(change.file, change.ordinal) for change in expected.changes}, f"seed {seed}"
        assert {period.identity for period in found.periods_of(oid)} == expected.keys, f"seed {seed}"
        seen["histories"] += 1
        seen["several keys"] += len(search.keys) > 1
        seen["changes"] += len(places)
        kept = [c for c in archive.found(oid) if (c.file, c.ordinal) not in places]
        seen["reused"] += len(expected.keys & {use.identity for change in kept for use in change.keys})
    assert seen["histories"] > 20
    assert seen["changes"] > 40
    assert seen["reused"] >= len(REUSED)
    assert seen["several keys"] >= len(SEVERAL_KEYS)


WANTED = {"v": PERSON}


@pytest.mark.parametrize(
    "seeds", [range(40), *(pytest.param(range(n, n + 100), marks=pytest.mark.soak) for n in range(100, 1_100, 100))]
)
def test_all_changes_and_stored_rows_of_a_person_are_found_and_no_others(spark: SparkSession, seeds: range) -> None:
    """Against the truth: each history is a table of one archive."""
    histories, transactions = list[RowHistory](), list[Messages]()
    for seed in seeds:
        history = RowHistory(random.Random(seed), T + len(histories), len(transactions))
        history.run()
        if history.of_row:
            histories.append(history)
            transactions += history.transactions
    archive = Landed([copydata(messages) for messages in transactions])
    searches = {history.oid: archive.search(history.oid, WANTED) for history in histories}
    rows = {history.oid: list(stored_rows_of(history, searches[history.oid])) for history in histories}
    keys = [
        RowSelection.of(search, (), search.wanted).keys_of_chosen(oid, rows[oid]) for oid, search in searches.items()
    ]
    changes = frame(spark, pa.Table.from_pylist(archive.changes(*searches), _WITH_STATUS))
    seed_rows = frame(spark, pa.Table.from_batches(keys))
    found = find_changes(Archive(changes), searches, [seed_rows])  # type: ignore[arg-type]
    places = positions(found)
    seen: Counter[str] = Counter()
    for history in histories:
        of_person = {place for place, row in history.of_row.items() if row in history.persons}
        assert places & history.of_row.keys() == of_person, f"table {history.oid}"
        search = searches[history.oid]
        selection = RowSelection.of(search, found.periods_of(history.oid), search.wanted)
        erased = [selection.is_erased(row) for row in rows[history.oid]]
        assert erased == [version.row in history.persons for version in history.stored], f"table {history.oid}"
        seen["of the person"] += len(of_person)
        seen["of others"] += len(history.of_row) - len(of_person)
        seen["several keys"] += len(search.keys) > 1
    assert seen["of the person"] > len(seeds)
    assert seen["of others"] > len(seeds)
    assert seen["several keys"] > len(seeds) / 20


def stored_rows_of(history: RowHistory, search: RowSearch) -> Iterator[StoredRow]:
    [columns] = set(search.columns)
    for version in history.stored:
        yield StoredRow(dict(zip(columns, version.texts, strict=True)), version.at)


BEGIN = table("id", "v", "n")

BY_N = table("id", "v", "n", key=("n",))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("messages", "found"),
    [
        pytest.param(
            [
                transaction(1, 0x100, BEGIN, insert("1", "Ada", "a"), insert("2", "Bob", "b")),
                transaction(2, 0x200, update("1", "x", "c"), insert("5", "Zoe", "c"), delete("5", None, None)),
                transaction(3, 0x300, BY_N, update("1", "y", "d", old_key=(None, None, "c")), insert("2", "Eve", "c")),
                [*segment(4, update("1", "z", "d"), first=True), *stream_abort(4)],
                transaction(5, 0x500, delete(None, None, "d"), insert("1", "Kim", "d"), update("2", "Eva", "c")),
            ],
            [(0, 2), (1, 1), (2, 2), (3, 1), (4, 1)],
            id="another key, which was not unique before",
        ),
        pytest.param(
            [
                transaction(1, 0x100, BEGIN, insert("1", "Ada", "a"), insert("2", "Bob", "b"), update("2", "Rob", "b")),
                transaction(2, 0x200, truncate(T), insert("1", "Eve", "b"), update("1", "Eva", "b")),
                transaction(3, 0x300, BY_N, update("1", "Ede", "b")),
                transaction(4, 0x400, truncate(T)),
                transaction(5, 0x500, update("1", "Zoe", "b"), update("7", "Lin", "a")),
            ],
            [(0, 2)],
            id="truncates, and rows of a snapshot",
        ),
        pytest.param(
            [
                transaction(1, 0x100, BEGIN, insert("1", "Bob", "a"), insert("2", "Rob", "a")),
                segment(9, BEGIN, update("1", "Ada", "a"), insert("3", "Lin", "a"), first=True),  # cut off
                segment(8, BEGIN, update("2", "Ada", "a"), first=True),  # still runs
                transaction(2, 0x200, update("1", "Eve", "a")),
            ],
            [(0, 3), (1, 2), (2, 2)],
            id="cut off",
        ),
        pytest.param(
            [
                transaction(1, 0x100, BEGIN, insert("1", "Bob", "a"), insert("2", "Ada", "a"), insert("4", "Kim", "k")),
                segment(9, BEGIN, delete("2", None, None), insert("2", "Eve", "a"), first=True),  # still runs
                segment(8, BEGIN, in_subtransaction(80, update("1", "Ada", "a")), insert("3", "Lin", "a"), first=True),
                stream_abort(8, 80),
            ],
            [(0, 3), (1, 2), (2, 2)],
            id="open, with a savepoint",
        ),
        pytest.param(
            [
                transaction(1, 0x100, BEGIN, insert("1", "Bob", "a"), insert("2", "Ada", "b")),
                segment(9, BEGIN, update("1", "Ada", "a"), first=True),  # the table's key has changed since
                transaction(2, 0x200, BY_N, insert("3", "Eve", "c")),
            ],
            [(0, 3), (1, 2)],
            id="open under an earlier key",
        ),
        pytest.param(
            [
                transaction(1, 0x100, BEGIN, insert("1", "Ada", "a"), insert("2", "Bob", "a")),
                [*segment(9, BY_N, update("2", "x", "a"), first=True), *stream_abort(9)],
                transaction(2, 0x200, BEGIN, update("2", "Rob", "a")),
            ],
            [(0, 2)],
            id="a key of an aborted transaction",
        ),
        pytest.param(
            [
                transaction(1, 0x100, BEGIN, insert("1", "Ada", "a"), insert("2", "Bob", "b"), insert("3", "Eve", "c")),
                segment(7, BEGIN, delete("2", None, None), update("3", "Ada", "c"), first=True),  # cut off
                segment(8, BEGIN, update("2", "Ada", "b"), update("3", "Eva", "c"), first=True),  # the same, again
            ],
            [(0, 2), (0, 3), (1, 2), (1, 3), (2, 2)],
            id="cut off, and changed by an open one",
        ),
        pytest.param(
            [
                transaction(1, 0x100, BEGIN, insert("1", "Ada", "a"), insert("2", "Bob", "a")),
                transaction(2, 0x200, truncate(T)),
                transaction(3, 0x300, BY_N, insert("3", "Eve", "c")),
            ],
            [(0, 2)],
            id="truncated before the key changed",
        ),
        pytest.param(
            [
                transaction(1, 0x100, BEGIN, insert("1", "Ada", "a"), insert("2", "Bob", "b")),
                segment(9, BEGIN, update("1", "phone", "a"), update("2", "Ada", "b"), first=True),  # cut off
                transaction(2, 0x200, truncate(T)),
            ],
            [(0, 2), (1, 2), (1, 3)],
            id="cut off, and truncated",
        ),
        pytest.param(
            [
                transaction(1, 0x100, BEGIN, insert("1", "Ada", "a"), insert("2", "Bob", "b")),
                segment(
                    9, BY_N, update("1", "phone", "c", old_key=(None, None, "a")), update("1", "x", "c"), first=True
                ),
            ],
            [(0, 2), (1, 2), (1, 3)],
            id="open under a new key",
        ),
        pytest.param(
            [
                transaction(1, 0x100, BEGIN, insert("1", "Ada", "a"), update("1", "x", TOAST)),
                transaction(2, 0x200, BY_N, update("1", "phone", "a")),
            ],
            [(0, 2), (0, 3), (1, 2)],
            id="the last change without the next key",
        ),
    ],
)
def test_rows_are_found(spark: SparkSession, messages: list[Messages], found: list[Place]) -> None:
    archive = Landed([copydata(part) for part in messages])
    expected = archive.chosen(T, WANTED)
    assert sorted((change.file, change.ordinal) for change in expected.changes) == found
    spark_found = find(spark, archive, T, WANTED)
    assert sorted(positions(spark_found)) == found
    assert {period.identity for period in spark_found.periods_of(T)} == expected.keys


@pytest.mark.soak
def test_stored_rows_are_those_that_had_the_key_then(spark: SparkSession) -> None:
    """A snapshot brought the person, who was deleted and truncated, and others with the same keys."""
    archive = Landed(
        [
            copydata(transaction(1, 0x100, BEGIN, insert("1", "Zoe", "a"), delete("1", None, None))),
            copydata(transaction(2, 0x300, update("1", "x", "c"), delete("1", None, None))),
            copydata(transaction(3, 0x500, update("1", "y", "c"))),
            copydata(transaction(4, 0x600, truncate(T))),
            copydata(transaction(5, 0x800, update("1", "z", "c"))),
            copydata(transaction(6, 0x900, BY_N, update("1", "zz", "c"))),
            copydata(transaction(7, 0xA00, delete(None, None, "c"))),
        ]
    )
    search = archive.search(T, WANTED)
    [own] = set(search.columns)
    last = 1 << 62

    def chosen_at(lsn: int) -> list[int]:
        row = StoredRow(dict(zip(own, ("1", "Ada", "c"), strict=True)), (lsn, last, last))
        return sorted({file for file, _ in positions(find(spark, archive, T, WANTED, [row]))})

    assert chosen_at(0x80) == []
    assert chosen_at(0x100) == [0]
    assert chosen_at(0x200) == [1]
    assert chosen_at(0x300) == [1]
    assert chosen_at(0x400) == [2]
    assert chosen_at(0x700) == [4, 5, 6]
    assert chosen_at(0x900) == [4, 5, 6]
    assert chosen_at(0xB00) == []


@pytest.mark.soak
def test_a_truncate_ends_the_time_of_stored_rows_of_which_no_change_tells(spark: SparkSession) -> None:
    """Both rows came with snapshots."""
    archive = Landed(
        [
            copydata(transaction(1, 0x100, BEGIN, insert("2", "Bob", "b"))),
            copydata(transaction(2, 0x300, truncate(T), insert("3", "Mia", "m"))),
            copydata(transaction(3, 0x500, update("1", "Kim", "c"))),
        ]
    )
    [own] = set(archive.search(T).columns)
    last = 1 << 62
    row = StoredRow(dict(zip(own, ("1", "Ada", "c"), strict=True)), (0x200, last, last))
    found = find(spark, archive, T, WANTED, [row])
    assert positions(found) == set()
    assert [(period.start, period.end) for period in found.periods_of(T)] == [(None, (0x301, 0, 0))]


@pytest.mark.soak
def test_equal_stored_rows(spark: SparkSession) -> None:
    """In a table without a key; they were truncated and inserted again in one commit."""
    bag = table("v", "n", identity=ReplicaIdentity.FULL)
    archive = Landed(
        [
            copydata(transaction(1, 0x100, bag, insert("Ada", "a"))),
            copydata(transaction(2, 0x200, truncate(T), insert("Ada", "a"), insert("Ada", "a"), insert("Bob", "a"))),
            copydata(transaction(3, 0x300, delete_full("Ada", "a"))),
        ]
    )
    [own] = set(archive.search(T).columns)
    last = 1 << 62
    row = StoredRow(dict(zip(own, ("Ada", "a"), strict=True)), (0x200, last, last))
    found = find(spark, archive, T, WANTED, [row, row])
    assert sorted(positions(found)) == [(0, 2), (1, 2), (1, 3), (2, 1)]
    held = [[at for at in (0x100, 0x200, 0x300) if p.holds((at, last, last))] for p in found.periods_of(T)]
    assert sorted(held) == [[0x100], [0x200, 0x300]]


@pytest.mark.soak
def test_periods_end_with_the_row_and_the_key(spark: SparkSession) -> None:
    archive = Landed(
        [
            copydata(transaction(1, 0x100, BEGIN, insert("1", "Ada", "a"), insert("2", "Bob", "b"))),
            copydata(transaction(2, 0x200, BY_N, delete(None, None, "b"), update("1", "x", "a"))),
            copydata(transaction(3, 0x300, truncate(T))),
        ]
    )
    found = find(spark, archive, T, {"v": "Ada"})
    periods = {period.identity[0][1]: (period.start, period.end) for period in found.periods_of(T)}
    assert periods == {"1": ((0x100, 0, 2), (0x200, 0, 0)), "a": ((0x200, 0, 0), (0x301, 0, 0))}


@pytest.mark.soak
def test_a_key_that_the_table_had_before(spark: SparkSession) -> None:
    begun = [transaction(n, 0x100 * n, t, insert(f"{n}", "Ada", "a")) for n, t in enumerate((BEGIN, BY_N, BEGIN), 1)]
    with pytest.raises(RunError, match=r"public\.t: it had one of its keys again after another one"):
        find(spark, Landed([copydata(part) for part in begun]), T, WANTED)
