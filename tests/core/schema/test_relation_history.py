"""Versions of relations: the positions and the transactions for which each holds."""

from __future__ import annotations

from dataclasses import replace

from pgoutput_etl.protocol.messages import Relation, RelationColumn, TypeDefinition
from pgoutput_etl.schema.relation_history import RelationEntry, RelationHistory
from tests.support.small_archives import T, table

V1 = table("id", "v")
V2 = table("id", "v", "w")
V3 = table("id", "w")
STREAM = 7  # a streamed transaction's scope


def history(*declared: tuple[Relation, tuple[int, int], int | None]) -> RelationHistory:
    history = RelationHistory()
    for relation, position, scope in declared:
        history.declare(relation, position, scope)
    return history


def in_force(
    known: RelationHistory, position: tuple[int, int], scope: int | None = None, oid: int = T
) -> Relation | None:
    versions = known.versions(oid)
    number = versions.at(position, scope)
    return None if number is None else versions.relations[number]


def test_a_version_holds_from_its_message_to_the_next() -> None:
    known = history((V1, (0, 5), None), (V2, (1, 3), None))
    assert in_force(known, (0, 4)) is None
    assert [in_force(known, at) for at in ((0, 5), (0, 9), (1, 2))] == [V1, V1, V1]
    assert [in_force(known, at) for at in ((1, 3), (1, 4), (9, 0))] == [V2, V2, V2]
    assert known.newest(T) == V2
    assert in_force(known, (9, 0), oid=T + 1) is None
    assert known.newest(T + 1) is None


def test_a_version_may_return() -> None:
    known = history((V1, (0, 1), None), (V2, (0, 3), None), (V1, (0, 5), None))
    assert [in_force(known, (0, n)) for n in (1, 3, 5)] == [V1, V2, V1]
    assert len(known.versions(T).relations) == 2


def test_a_repeated_message_adds_no_version() -> None:
    known = RelationHistory()
    for n in range(100):
        known.declare(V1, (0, n), None)
        known.declare(replace(V1, xid=n), (1, n), STREAM)
    assert len(known.entries) == 1


def test_types_stay_when_no_catalog_message_describes_a_later_version() -> None:
    posint = TypeDefinition(16500, "d", "public", "posint", 23)
    typed = replace(V1, columns=(*V1.columns, RelationColumn(False, "n", 16500, -1, 3, types=(posint,))))
    bare = replace(
        V2, columns=(*V2.columns, RelationColumn(False, "n", 16500, -1), RelationColumn(False, "o", 16501, -1))
    )
    known = history((V1, (0, 0), None), (bare, (0, 1), None), (typed, (0, 2), None), (bare, (0, 3), None))
    assert in_force(known, (0, 1)) == bare
    later = in_force(known, (0, 3))
    assert later is not None
    assert [column.types for column in later.columns] == [(), (), (), (posint,), ()]


def test_in_a_segment_a_version_holds_for_its_transaction_only() -> None:
    known = history((V1, (0, 1), None), (V2, (0, 3), STREAM))
    assert in_force(known, (0, 4), STREAM) == V2
    assert in_force(known, (0, 4)) == V1
    assert in_force(known, (0, 4), STREAM + 1) == V1
    assert in_force(known, (0, 2), STREAM) == V1
    assert known.newest(T) == V1


def test_at_stream_commit_a_version_holds_for_all() -> None:
    known = history((V1, (0, 1), None), (V2, (0, 3), STREAM))
    known.promote(STREAM, (0, 8))
    assert [in_force(known, (0, n)) for n in (7, 8, 9)] == [V1, V2, V2]
    assert known.newest(T) == V2


def test_a_later_message_for_all_outlives_the_stream_s_version() -> None:
    known = history((V1, (0, 1), STREAM), (V2, (0, 3), None))
    known.promote(STREAM, (0, 8))
    assert in_force(known, (0, 9)) == V2
    assert known.newest(T) == V2


def test_the_end_of_one_stream_does_not_affect_others() -> None:
    known = history((V1, (0, 1), None), (V2, (0, 3), STREAM), (V3, (0, 4), STREAM + 1))
    known.promote(STREAM + 1, (0, 8))
    assert in_force(known, (0, 9)) == V3
    assert in_force(known, (0, 9), STREAM) == V2


def test_a_history_stored_by_an_earlier_run_is_the_same_in_any_order() -> None:
    known = history((V1, (0, 1), None), (V2, (0, 3), STREAM), (table(oid=T + 1, name="u"), (0, 4), None))
    again = RelationHistory.of(reversed(known.entries))
    for one in (known, again):
        one.promote(STREAM, (1, 0))
        one.declare(V3, (1, 4), None)
    assert again.versions(T) == known.versions(T)
    assert again.newest(T) == V3


def test_a_stream_without_a_new_version_adds_no_entry() -> None:
    """A night may have thousands of streamed transactions, each with its own Relation messages."""
    known = history((V1, (0, 1), None))
    for scope in range(1000):
        known.declare(replace(V1, xid=scope), (1, 2 * scope), scope)
        known.promote(scope, (1, 2 * scope + 1))
    assert known.entries == [RelationEntry((0, 1), V1, None)]


def test_a_stream_that_has_ended_promotes_nothing() -> None:
    known = history((V1, (0, 1), None), (V2, (0, 3), STREAM))
    known.end(STREAM)
    known.promote(STREAM, (0, 8))
    assert in_force(known, (0, 9)) == V1
    assert in_force(known, (0, 7), STREAM) == V2  # its rows are still decoded


def test_a_repeated_message_for_all_outlives_the_night() -> None:
    """A subtransaction of the stream changed the table and was rolled back; then the version for all was sent again."""
    known = history((V1, (0, 1), None), (V2, (0, 3), STREAM), (V1, (0, 5), None))
    again = RelationHistory.of(known.entries)
    again.promote(STREAM, (1, 0))
    assert in_force(again, (1, 1)) == V1
