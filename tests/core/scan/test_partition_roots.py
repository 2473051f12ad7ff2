"""The root of each partition, from the Relations and the row that follow one another."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pgoutput_etl.protocol.messages import Type
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.outcome import control_rows
from tests.support.scan_parts import scan_file
from tests.support.small_archives import (
    Change,
    Messages,
    T,
    copydata,
    delete,
    insert,
    segment,
    stream_commit,
    table,
    transaction,
    truncate,
    update,
)

LEAF, OTHER_LEAF, OTHER = T + 1, T + 2, T + 3
ROOT = table(key=())
KEYED = table(oid=LEAF, name="leaf")
WHOLE = table(oid=LEAF, name="leaf", key=("id", "v"))
MOOD = Type(None, 99000, "public", "mood")


def history_of(*files: Messages) -> RelationHistory:
    assembly = Assembly()
    for number, messages in enumerate(files):
        scan = scan_file(f"{number}", number, copydata(messages))
        assembly.add_file(scan.summary, control_rows(scan.batches))
    return assembly.relations


def partitions(*files: Messages, since: tuple[int, int] = (0, 0)) -> Sequence[object]:
    return history_of(*files).partitions(T, since)


@pytest.mark.parametrize("row", [insert("1", "a"), update("1", "b"), delete("1", None)])
def test_a_partitions_relation_stands_between_its_roots_and_a_row_of_the_root(row: Change) -> None:
    assert partitions(transaction(3, 10, ROOT, KEYED, row)) == (KEYED,)
    assert partitions(transaction(3, 10, MOOD, ROOT, MOOD, KEYED, MOOD, row)) == (KEYED,)
    assert partitions([*segment(3, MOOD, ROOT, KEYED, row, first=True), *stream_commit(3, 10)]) == (KEYED,)


def test_each_partition_is_found_after_many_rows() -> None:
    other = table(oid=OTHER_LEAF, name="other_leaf", key=())
    rows = [insert(f"{n}", "a") for n in range(20_000)]
    changes: tuple[Change, ...] = (
        ROOT,
        KEYED,
        *rows,
        ROOT,
        other,
        *rows,
        table(oid=OTHER, name="other"),
        insert("1", "a", oid=OTHER),
    )
    assert partitions(transaction(3, 10, *changes)) == (KEYED, other)


def test_relations_in_a_row_are_not_taken_for_partitions() -> None:
    other = table(oid=LEAF, name="other")
    row = insert("1", "a")
    assert partitions(transaction(3, 10, ROOT, other, truncate(T, LEAF), row)) == ()
    assert partitions(transaction(3, 10, ROOT, other, insert("1", "a", oid=LEAF), row)) == ()
    assert partitions([*transaction(3, 10, ROOT, row, other), *transaction(4, 20, row)]) == ()
    assert partitions(transaction(3, 10, ROOT, row, other, row)) == ()
    assert partitions([*transaction(3, 10, ROOT, row), *transaction(4, 20, other), *transaction(5, 30, row)]) == ()


def test_a_file_may_begin_between_the_two_relations() -> None:
    messages = transaction(3, 10, ROOT, MOOD, KEYED, insert("1", "a"))
    for cut in (2, 3):
        assert partitions(messages[:cut], messages[cut:]) == (KEYED,)


def test_a_partitions_new_identity_replaces_the_former_one() -> None:
    row = insert("1", "a")
    messages = transaction(3, 10, ROOT, KEYED, row, ROOT, WHOLE, row)
    assert partitions(messages) == (KEYED, WHOLE)
    assert partitions(messages, since=(0, 3)) == (KEYED, WHOLE)
    assert partitions(messages, since=(0, 6)) == (WHOLE,)


def test_an_identity_without_a_row_is_that_of_the_known_partition() -> None:
    assert partitions(transaction(3, 10, ROOT, KEYED, insert("1", "a"), WHOLE), since=(0, 9)) == (WHOLE,)


def test_a_partition_that_became_a_table_is_none() -> None:
    rows = (insert("1", "a"), WHOLE, insert("1", "a", oid=LEAF))
    messages = transaction(3, 10, ROOT, KEYED, *rows)
    assert partitions(messages) == (KEYED,)
    assert partitions(messages, since=(0, 5)) == ()


def test_the_pairing_of_a_streamed_transaction_holds_after_its_commit() -> None:
    streamed = segment(3, ROOT, KEYED, insert("1", "a"), first=True)
    assert partitions(streamed) == ()
    assert partitions([*streamed, *stream_commit(3, 10)]) == (KEYED,)
