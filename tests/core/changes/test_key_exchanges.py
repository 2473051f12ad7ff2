"""Rows that exchange their keys within a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest

from pgoutput_etl.changes.key_exchanges import exchanging, key_uses, without_exchanges
from pgoutput_etl.protocol.messages import PgoutputMessage, ReplicaIdentity, Truncate
from tests.core.changes.test_events import Change, batch, shape_of
from tests.support.deferred_keys import COLUMNS, DeferredKeys
from tests.support.small_archives import (
    TOAST,
    T,
    Value,
    delete_full,
    in_subtransaction,
    insert,
    replayed,
    segment,
    stream_abort,
    stream_commit,
    table,
    tables,
    transaction,
    truncate,
    tuple_data,
    update,
)

KEY = {"public.t": ("pos",)}
FULL = table("pos", "v", identity=ReplicaIdentity.FULL)
SHAPE = shape_of(FULL, key=("pos",))


def moved(old: str, new: str, value: str) -> Change:
    return update(new, value, old=(old, value))


def serial(*changes: Change) -> list[tuple[str, int]]:
    """The tags and ordinals of one transaction's changes, without exchanges."""
    return [(row["tag"], row["ordinal"]) for row in without_exchanges(batch(*changes), SHAPE).to_pylist()]


def after(*changes: Change | Truncate, before: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The rows after a transaction."""
    messages = transaction(1, 100, FULL, *(insert(*row) for row in before)) + transaction(2, 200, *changes)
    found = replayed(messages).tables(KEY)[T]
    assert found.mismatches is None
    return sorted((row["pos"], row["v"]) for row in found.rows)


@pytest.mark.parametrize("seed", range(12))
def test_random_exchanges_replayed(seed: int) -> None:
    """Some transactions are streamed, in two segments."""
    random = Random(seed)
    server, messages = DeferredKeys(random), list[PgoutputMessage]()
    for number in range(1, 13):
        changes, lsn = server.transaction(), number * 1000
        if number == 1 or random.random() < 0.5:
            messages += transaction(number, lsn, *([server.relation] if number == 1 else []), *changes)
        else:
            half = len(changes) // 2
            messages += segment(number, *changes[:half], first=True) + segment(number, *changes[half:])
            messages += stream_commit(number, lsn)
        if number % 4 == 0:
            found = replayed(messages).tables(KEY)[T]
            assert sorted(tuple(row[name] for name in COLUMNS) for row in found.rows) == sorted(server.rows)
            assert found.mismatches is None


BEFORE = [("1", "a"), ("2", "b"), ("3", "c")]


def test_a_chain_whose_first_key_is_used_again() -> None:
    chain = [moved("1", "2", "a"), moved("2", "3", "b"), moved("3", "4", "c")]
    assert after(*chain, insert("1", "n"), before=BEFORE) == [("1", "n"), ("2", "a"), ("3", "b"), ("4", "c")]
    assert after(insert("1", "n"), *chain, before=BEFORE) == [("1", "n"), ("2", "a"), ("3", "b"), ("4", "c")]
    ended = [*chain[:2], delete_full("3", "c")]
    assert after(*ended, before=BEFORE) == [("2", "a"), ("3", "b")]


def test_circles_and_rows_that_move_twice() -> None:
    circle = [moved("1", "2", "a"), moved("2", "3", "b"), moved("3", "1", "c")]
    assert after(*circle, before=BEFORE) == [("1", "c"), ("2", "a"), ("3", "b")]
    back = [moved("1", "2", "a"), moved("2", "3", "b"), moved("2", "1", "a"), moved("3", "2", "b")]
    assert after(*back, before=BEFORE[:2]) == BEFORE[:2]
    again = [moved("1", "2", "a"), moved("2", "5", "a"), update("5", "x", old=("5", "a")), moved("2", "1", "b")]
    assert after(*again, before=BEFORE) == [("1", "b"), ("3", "c"), ("5", "x")]


def test_a_row_that_passes_the_key_of_another_row() -> None:
    assert after(moved("1", "2", "a"), moved("2", "5", "a"), before=BEFORE) == [("2", "b"), ("3", "c"), ("5", "a")]
    assert after(insert("2", "n"), delete_full("2", "n"), before=BEFORE) == BEFORE
    assert after(insert("2", "n"), moved("2", "5", "n"), before=BEFORE) == [*BEFORE, ("5", "n")]


def test_equal_rows_change_places() -> None:
    before = [("1", "same"), ("2", "same")]
    assert after(moved("1", "2", "same"), moved("2", "1", "same"), before=before) == before
    assert after(insert("2", "same"), delete_full("2", "same"), before=before) == before


def test_a_truncate_in_the_middle() -> None:
    changes = [moved("1", "2", "a"), moved("2", "1", "b"), truncate(), insert("2", "n"), moved("2", "1", "n")]
    assert after(*changes, before=BEFORE) == [("1", "n")]


def test_a_subtransaction_that_is_rolled_back() -> None:
    inner = [in_subtransaction(8, moved("1", "2", "a")), in_subtransaction(8, moved("2", "1", "b"))]
    first = transaction(1, 100, FULL, insert("1", "a"), insert("2", "b"))
    streamed = segment(7, *inner, first=True) + stream_abort(7, 8)
    streamed += segment(7, moved("2", "3", "b"), moved("1", "2", "a")) + stream_commit(7, 200)
    assert tables(replayed(first + streamed), t=("pos",))["t"] == [("2", "a"), ("3", "b")]


def test_values_of_a_retired_column_move_along() -> None:
    """But for the one row of a circle that is deleted and inserted."""
    wide, other = (table("pos", "v", name, identity=ReplicaIdentity.FULL) for name in ("old", "new"))
    first = transaction(1, 100, wide, *(insert(key, value, value.upper()) for key, value in BEFORE))
    shifts = [update(str(int(key) + 1), v, "n", old=(key, v, None)) for key, v in BEFORE]
    messages = first + transaction(2, 200, other, *shifts)
    moved_along = [("2", "a", "n", "A"), ("3", "b", "n", "B"), ("4", "c", "n", "C")]
    assert tables(replayed(messages), t=("pos",))["t"] == moved_along
    swap = [update("3", "a", "n", old=("2", "a", "n")), update("2", "b", "n", old=("3", "b", "n"))]
    found = tables(replayed(messages + transaction(3, 300, *swap)), t=("pos",))["t"]
    assert found == [("2", "b", "n", "B"), ("3", "a", "n", None), ("4", "c", "n", "C")]


def test_net_changes_keep_the_positions_of_a_transaction() -> None:
    """The rows of a circle need one more: it is the one before the first."""
    assert serial(moved("1", "2", "a"), moved("2", "3", "b")) == [("U", 1), ("U", 2)]
    assert serial(moved("1", "2", "a"), moved("2", "1", "b")) == [("D", 0), ("U", 1), ("I", 2)]
    rows = without_exchanges(batch(moved("1", "2", "a"), moved("2", "1", "b"), first=0), SHAPE)
    first, *_ = rows.to_pylist()
    assert (first["tag"], first["file"], first["ordinal"]) == ("D", 6, 2**31 - 1)


ORDINARY: list[list[Change]] = [
    [moved("2", "3", "b"), moved("1", "2", "a")],
    [delete_full("1", "a"), insert("1", "b"), update("1", "c", old=("1", "b")), delete_full("1", "c")],
    [update("1", "b", old=("1", "a")), moved("1", "2", "b"), insert("1", "a")],
]


@pytest.mark.parametrize("changes", ORDINARY)
def test_other_transactions_stay_as_they_are(changes: list[Change]) -> None:
    rows = batch(*changes)
    assert without_exchanges(rows, SHAPE) is rows
    other_key = shape_of(table("pos", "v", key=("pos",)))
    assert without_exchanges(rows, other_key) is rows


def test_a_table_that_keeps_changes_keeps_rows_that_come_and_go() -> None:
    rows = batch(insert("2", "n"), update("2", "m", old=("2", "n")), delete_full("2", "m"))
    assert without_exchanges(rows, SHAPE, keeps_changes=True) is rows
    assert without_exchanges(rows, SHAPE).num_rows == 0


def test_a_transaction_without_whole_old_tuples_stays_as_it_is() -> None:
    """As of a partition with another identity than its root."""
    rows = batch(update("2", "a", old_key=("1", None)), update("1", "b", old_key=("2", None)))
    assert without_exchanges(rows, SHAPE) is rows


def test_a_tuple_that_cannot_be_read_is_left_to_the_events() -> None:
    rows = batch(moved("1", "2", "a"), moved("2", "3", "b"), insert("4"))
    assert without_exchanges(rows, SHAPE) is rows


def test_a_long_chain_and_a_long_circle() -> None:
    keys = [str(n) for n in range(5000)]
    chain = [moved(a, b, a) for a, b in pairwise(keys)]
    rows = without_exchanges(batch(*chain), SHAPE)
    assert [row["ordinal"] for row in rows.to_pylist()] == list(range(1, 5000))
    circle = without_exchanges(batch(*chain, moved(keys[-1], keys[0], keys[-1])), SHAPE)
    assert circle.num_rows == 5001
    assert len(exchanging(key_uses(rows, SHAPE), keeps_changes=False)) == 0
    assert len(exchanging(key_uses(circle, SHAPE), keeps_changes=False)) == 0


def test_a_large_value_that_is_sent_once() -> None:
    """The last change leaves it unchanged."""
    shape = shape_of(table("pos", "v", "w", identity=ReplicaIdentity.FULL), key=("pos",), toast=("w",))
    wide: tuple[Value, ...] = ("1", "a", "new")
    changes = (
        update(*wide, old=("1", "a", "old")),
        update("2", "a", TOAST, old=wide),
        update("3", "b", TOAST, old=("2", "b", "other")),
    )
    rows = without_exchanges(batch(*changes), shape).to_pylist()
    assert [row["new"] for row in rows] == [
        tuple_data("3", "b", TOAST).to_bytes(),
        tuple_data("2", "a", "new").to_bytes(),
    ]
