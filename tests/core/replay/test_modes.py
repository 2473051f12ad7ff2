"""Compares the reference for modes history and soft_delete with the mirror as of each commit."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.targets.modes import METADATA_COLUMNS
from tests.spark.load.test_net_effect import random_history
from tests.support.kept_rows import as_of, counted
from tests.support.modes_reference import table_histories
from tests.support.small_archives import (
    TOAST,
    Messages,
    T,
    copydata,
    delete,
    delete_full,
    insert,
    replayed,
    table,
    transaction,
    truncate,
    update,
)

KEYS = {"public.configured": ("id",)}


def assert_is_the_mirror_as_of_every_commit(replay: Replay, keys: Mapping[str, tuple[str, ...]]) -> None:
    """For tables whose columns don't change."""
    found = table_histories(replay, keys)
    commits = sorted({row["commit_lsn"] for row in replay.committed()})
    for lsn in (0, *commits, commits[-1] + 1):
        mirrors = replay.tables(keys, until=lsn)
        for oid, kept in found.items():
            names = [*(column.name for column in kept.shape.columns), *METADATA_COLUMNS]
            expected = mirrors[oid].rows if oid in mirrors else []
            assert counted(as_of(kept.versions, lsn), names) == counted(expected, names), (
                kept.shape.relation.name,
                lsn,
            )


@settings(max_examples=3)
@given(st.integers(0, 2**32))
def test_versions_as_of_a_commit_equal_the_mirror(seed: int) -> None:
    assert_is_the_mirror_as_of_every_commit(_replay_of(seed, 40), KEYS)


@pytest.mark.soak
@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_versions_as_of_a_commit_equal_the_mirror_in_long_histories(seed: int) -> None:
    assert_is_the_mirror_as_of_every_commit(_replay_of(seed, 150), KEYS)


@settings(max_examples=8)
@given(st.integers(0, 2**32))
def test_living_rows_equal_the_mirror_with_one_row_per_key(seed: int) -> None:
    replay = _replay_of(seed, 60)
    mirrors = replay.tables(KEYS)
    for oid, kept in table_histories(replay, KEYS).items():
        if kept.latest is None:
            assert kept.shape.is_bag
            continue
        living = [row for row in kept.latest if not row["_pg_deleted"]]
        names = [*(column.name for column in kept.shape.columns), *METADATA_COLUMNS]
        assert counted(living, names) == counted(mirrors[oid].rows, names)
        key = [kept.shape.columns[i].name for i in kept.shape.key]
        assert set(counted(kept.latest, [*key, "_pg_unrepresentable"]).values()) <= {1}


def _replay_of(seed: int, transactions: int) -> Replay:
    replay = Replay()
    replay.add_file("0", copydata(random_history(Random(seed), transactions)))
    return replay


def versions_of(messages: Messages) -> list[tuple[Any, ...]]:
    """The table's columns, valid_from and valid_to."""
    kept = table_histories(replayed(messages))[T]
    names = [column.name for column in kept.shape.columns]
    found = ((*(row[n] for n in names), row["_pg_valid_from_lsn"], row["_pg_valid_to_lsn"]) for row in kept.versions)
    return sorted(found, key=repr)


def latest_of(messages: Messages) -> list[tuple[Any, ...]]:
    """The table's columns, commit LSN and deleted flag."""
    kept = table_histories(replayed(messages))[T]
    assert kept.latest is not None
    names = [column.name for column in kept.shape.columns]
    return sorted(tuple(row[n] for n in (*names, "_pg_commit_lsn", "_pg_deleted")) for row in kept.latest)


def test_overwritten_states_within_a_transaction_are_no_versions() -> None:
    messages = [
        *transaction(1, 100, table(), insert("1", "a"), update("1", "b"), insert("2", "x"), delete("2", None)),
        *transaction(2, 200, delete("1", None), insert("1", "c"), update("1", "d")),
        *transaction(3, 300, truncate(), insert("1", "e")),
    ]
    assert versions_of(messages) == [("1", "b", 100, 200), ("1", "d", 200, 300), ("1", "e", 300, None)]
    assert latest_of(messages) == [("1", "e", 300, False)]


def test_a_moved_row_keeps_unsent_values_and_deletes_its_old_key() -> None:
    messages = [
        *transaction(1, 100, table("id", "v", "big"), insert("1", "a", "long")),
        *transaction(2, 200, update("2", "b", TOAST, old_key=("1", None, None))),
        *transaction(3, 300, delete("2", None, None)),
    ]
    assert versions_of(messages) == [("1", "a", "long", 100, 200), ("2", "b", "long", 200, 300)]
    assert latest_of(messages) == [("1", "a", "long", 200, True), ("2", "b", "long", 300, True)]


def test_a_delete_ends_the_newest_of_equal_rows() -> None:
    bag = table("v", identity=ReplicaIdentity.FULL)
    messages = [
        *transaction(1, 100, bag, insert("a"), insert("a")),
        *transaction(2, 200, insert("a")),
        *transaction(3, 300, delete_full("a")),
        *transaction(4, 400, delete_full("a"), insert("a")),
    ]
    assert versions_of(messages) == [("a", 100, 400), ("a", 100, None), ("a", 200, 300), ("a", 400, None)]


def test_ended_versions_get_the_current_columns() -> None:
    messages = [
        *transaction(1, 100, table("id", "gone", "n"), insert("1", "x", "a"), insert("2", "y", "b")),
        *transaction(2, 200, delete("1", None, None)),
        *transaction(3, 300, table("id", "n", "more"), update("2", "c", "m")),
    ]
    assert versions_of(messages) == [("1", "a", None, 100, 200), ("2", "b", None, 100, 300), ("2", "c", "m", 300, None)]
