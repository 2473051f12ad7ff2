"""Histories, divided into nights at any place, that once made the plan and the replay differ."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from pgoutput_etl.config.column_settings import Setting
from pgoutput_etl.config.rules import TableRule
from pgoutput_etl.protocol.messages import PgoutputMessage
from pgoutput_etl.targets.plan import HELD, SKIPPED
from tests.support.nights import CONFIG, Nights
from tests.support.small_archives import (
    Change,
    Messages,
    T,
    commit_prepared,
    copydata,
    in_subtransaction,
    insert,
    prepared,
    rollback_prepared,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
    truncate,
)

A, B = 1, 2
OLD = [*transaction(3, 10, table(oid=A, name="a"), insert("1", "of a", oid=A)),
       *transaction(4, 20, table(oid=B, name="b"), insert("1", "of b", oid=B))]  # fmt: skip
SWAP = (table(oid=A, name="b"), insert("2", "of a", oid=A))


def nights(*files: Iterable[PgoutputMessage]) -> Nights:
    """Applies one file per night, and compares with the reference after each night."""
    found = Nights()
    for messages in files:
        found.night([copydata(messages)])
        found.assert_as_replayed()
    return found


def however_cut(messages: Messages) -> Nights:
    """In one night, in a night per message, and in two nights with every possible cut."""
    nights(*([message] for message in messages))
    for at in range(1, len(messages)):
        nights(messages[:at], messages[at:])
    return nights(messages)


def places(found: Nights) -> dict[str, int]:
    return {str(state.path): oid for oid, state in found.states.items()}


def test_a_rename_in_a_prepared_transaction_has_no_effect_yet() -> None:
    for end in ([], rollback_prepared(5)):
        found = however_cut([*OLD, *prepared(5, *SWAP, lsn=30), *end])
        assert places(found) == {"root/public/a": A, "root/public/b": B}
    found = however_cut([*OLD, *prepared(5, *SWAP, lsn=30), *commit_prepared(5, 40)])
    assert places(found) == {"root/public/b": A, "root/_pgoutput_etl/displaced/s/2": B}


def test_a_rename_in_a_streamed_transaction_has_no_effect_yet() -> None:
    """Also if the subtransaction of the rename is rolled back, and the rest is committed."""
    stream = segment(5, *SWAP, first=True)
    for end in ([], stream_abort(5)):
        assert places(however_cut([*OLD, *stream, *end])) == {"root/public/a": A, "root/public/b": B}
    rolled_back = segment(5, *(in_subtransaction(6, change) for change in SWAP), first=True)
    back = segment(5, table(oid=A, name="a"), insert("3", "of a", oid=A))
    found = however_cut([*OLD, *rolled_back, *stream_abort(5, 6), *back, *stream_commit(5, 40)])
    assert places(found) == {"root/public/a": A, "root/public/b": B}


def test_a_transaction_that_is_sent_at_commit_prepared_is_described_then() -> None:
    """It was prepared before the slot decoded two-phase transactions, so it comes after commits with higher LSNs."""
    wide = table("id", "v", "w")
    late = [*prepared(5, wide, insert("2", "b", "w"), lsn=15), *commit_prepared(5, 40)]
    found = however_cut([*transaction(3, 10, table(), insert("1", "a")), *transaction(4, 30, insert("9", "z")), *late])
    assert found.states[16384].relation == wide
    however_cut([*transaction(4, 30, table(oid=2, name="other"), insert("9", "z", oid=2)), *late])


@pytest.mark.parametrize("kind", ["ordinary", "prepared", "streamed"])
def test_columns_change_in_one_night_and_are_committed_in_another(kind: str) -> None:
    wide = table("id", "v", "w")
    changes: list[Change] = [insert("2", "b"), wide, insert("3", "c", "w")]
    begun = transaction(3, 10, table(), insert("1", "a"))
    match kind:
        case "ordinary":
            messages = transaction(5, 40, *changes)
        case "prepared":
            messages = [*prepared(5, *changes, lsn=20), *commit_prepared(5, 40)]
        case _:
            messages = [*segment(5, *changes, first=True), *segment(5, insert("4", "d", "w")), *stream_commit(5, 40)]
    found = however_cut([*begun, *messages, *transaction(6, 50, insert("5", "e", "w"))])
    assert [state.status for state in found.states.values()] == ["applied"]


def test_a_table_that_was_skipped_for_a_while_lacks_changes_and_is_held() -> None:
    skipping = replace(CONFIG, tables=(TableRule("public.t", skip=True),))
    found = Nights()
    found.night([copydata(transaction(3, 10, table(), insert("1", "a")))])
    planned = found.night([copydata(transaction(4, 20, insert("2", "b")))], skipping)
    assert (planned.tables.skipped, found.states[16384].status) == (["public.t"], SKIPPED)
    assert found.states[16384].last_commit_lsn == 10
    found.night([copydata(transaction(5, 30, table(oid=2, name="other"), insert("1", "x", oid=2)))], skipping)
    planned = found.night([copydata(transaction(6, 40, insert("3", "c")))])
    (held,) = planned.tables.held
    assert held.reason.startswith("it lacks changes that were committed while the configuration skipped it")
    assert held.reason.endswith("rebuild it from the archive")
    assert (found.states[16384].status, found.states[16384].last_commit_lsn) == (HELD, 10)


def test_a_table_that_was_skipped_from_its_beginning_is_not_created_later() -> None:
    skipping = replace(CONFIG, tables=(TableRule("public.t", skip=True),))
    found = Nights()
    found.night([copydata(transaction(3, 10, table(), insert("1", "a")))], skipping)
    assert found.states[16384].status == SKIPPED
    planned = found.night([copydata(transaction(4, 20, insert("2", "b")))])
    assert [held.oid for held in planned.tables.held] == [16384]
    found.assert_as_replayed()


def test_a_table_without_changes_while_it_was_skipped_continues() -> None:
    skipping = replace(CONFIG, tables=(TableRule("public.t", skip=True),))
    found = Nights()
    found.night([copydata(transaction(3, 10, table(), insert("1", "a")))])
    found.night([copydata(transaction(4, 20, table(oid=2, name="other"), insert("1", "x", oid=2)))], skipping)
    found.night([copydata(transaction(5, 30, insert("2", "b")))])
    found.assert_as_replayed()
    assert found.states[16384].status == "applied"


def test_a_held_table_keeps_its_rows_when_another_takes_its_name() -> None:
    """Its rows move away. Otherwise rebuilding it would overwrite the other table."""
    swapped = table(("id", 23), ("a", 23), ("b", 23), oid=A)
    exchanged = table(("id", 23), ("b", 23), ("a", 23), oid=A)
    found = Nights()
    found.night([copydata(transaction(3, 10, swapped, insert("1", "2", "3", oid=A)))])
    found.night([copydata(transaction(4, 20, exchanged, insert("2", "2", "3", oid=A)))])
    assert found.states[A].status == HELD
    found.night([copydata(transaction(5, 30, table(oid=B), insert("1", "of b", oid=B)))])
    assert places(found) == {"root/_pgoutput_etl/displaced/s/1": A, "root/public/t": B}
    assert len(found.rows(A)) == 1
    found.assert_as_replayed()


def test_a_streamed_truncate_removes_rows_that_were_committed_before() -> None:
    stream = [*segment(5, truncate(), insert("3", "c"), first=True)]
    middle = transaction(6, 20, insert("2", "b"))
    however_cut([*transaction(3, 10, table(), insert("1", "a")), *stream, *middle, *stream_commit(5, 30)])


def test_two_tables_swap_names_through_a_third() -> None:
    changes: list[Change] = [
        table(oid=A, name="b"), insert("2", "of a", oid=A), table(oid=B, name="a"), insert("2", "of b", oid=B)
    ]  # fmt: skip
    found = however_cut([*OLD, *transaction(5, 30, *changes)])
    assert places(found) == {"root/public/b": A, "root/public/a": B}


def test_a_column_has_a_declaration_for_each_of_several_changes() -> None:
    """price takes the name of a dropped column twice, and is dropped and added again at last; night by night, and in a
    rebuild of all nights."""
    steps: list[list[Change]] = [
        [table("id", "price", "price_new"), insert("1", "old", "new")],
        [table("id", "price"), insert("2", "b")],
        [table("id", "price", "price_new", "note"), insert("3", "c", "d", "e")],
        [table("id", "price", "note"), insert("4", "f", "g")],
        [table("id", "note", "price"), insert("5", "h", "i")],
    ]
    files = [copydata(transaction(n, 100 * n, *step)) for n, step in enumerate(steps, 1)]
    columns: dict[str, Setting] = {"price": [{"renamed_from": "price_new"}, {"renamed_from": "price_new"}, "added"]}
    config = replace(CONFIG, tables=(TableRule("*", columns=columns),))
    expected = {
        2: [("1", "new"), ("2", "b")],
        4: [("1", None), ("2", None), ("3", "d"), ("4", "f")],
        5: [("1", None), ("2", None), ("3", None), ("4", None), ("5", "i")],
    }
    for last, rows in expected.items():
        by_night, at_once = Nights(config), Nights(config)
        for file in files[:last]:
            by_night.night([file])
        at_once.night(files[:last])
        for found in (by_night, at_once):
            shape, events = found.events(T)
            price = [column.name for column in shape.columns].index("price")
            assert sorted((event["c0"], event[f"c{price}"]) for event in events) == rows
            assert found.states[T].doubts == ()
