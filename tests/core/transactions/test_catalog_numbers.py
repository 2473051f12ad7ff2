"""Catalog Messages that somebody has copied, and those that the archive lacks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pgoutput_etl.protocol.messages import Message
from pgoutput_etl.schema.definitions import DefinitionEntry, Definitions
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.transactions.assembly import Assembly, open_messages
from pgoutput_etl.transactions.outcome import control_rows
from tests.support.catalog_messages import KEY, CatalogSender, definition
from tests.support.scan_parts import scan_file
from tests.support.small_archives import (
    Change,
    Messages,
    T,
    commit_prepared,
    copydata,
    insert,
    prepared,
    replayed,
    rollback_prepared,
    segment,
    stream_abort,
    stream_commit,
    stream_prepare,
    table,
    transaction,
)

TABLE, OTHER = table(), table(oid=T + 1, name="other")
OLD, NEW, ANOTHER = definition(TABLE, (1, 2)), definition(TABLE, (1, 3)), definition(OTHER, (1, 2))


@dataclass(frozen=True)
class Known:
    """numbers: of table t's columns; empty if its definition is unknown. copies: the number of refused Messages."""

    numbers: tuple[int | None, ...]
    rewrites: int = 0
    copies: int = 0


def read(nights: Sequence[Messages]) -> Known:
    """A file per night, with what the ledger stores in between."""
    assembly, stored, refused = Assembly(), list[DefinitionEntry](), 0
    for number, messages in enumerate(nights):
        definitions = assembly.relations.definitions
        definitions.key = KEY
        scan = scan_file(str(number), number, copydata(messages))
        assembly.add_file(scan.summary, control_rows(scan.batches))
        refused += sum(definitions.refused.values())
        assert definitions.refused.keys() <= {"they are copies of earlier ones"}
        stored += definitions.to_store()
        state: dict[str, Any] = json.loads(json.dumps(assembly.state()))
        relations = RelationHistory.of(assembly.relations.entries)
        relations.definitions = Definitions.of(stored, open_messages(state))
        assembly = Assembly(relations, state, assembly.types)
    found = assembly.relations.definitions.definition(T, None)
    assert found is not None
    assert (T in assembly.relations.definitions.unknown()) == (not found.columns)
    return Known(tuple(column.number for column in found.columns), found.mark.rewrites, refused)


def read_however_landed(messages: Messages) -> Known:
    """Equal for one file, and for a file and a night per message."""
    at_once = read([messages])
    assert read([[message] for message in messages]) == at_once
    return at_once


def streamed(xid: int, lsn: int, *changes: Message) -> Messages:
    parts = [segment(xid, change, first=number == 0) for number, change in enumerate(changes)]
    return [*(message for part in parts for message in part), *stream_commit(xid, lsn)]


def in_two_phases(xid: int, lsn: int, *changes: Message) -> Messages:
    return [*prepared(xid, *changes, lsn=lsn - 5), *commit_prepared(xid, lsn)]


WAYS = [transaction, streamed, in_two_phases]
NEWEST = Known((1, 3))


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_in_another_transaction_does_not_count(way: Any) -> None:
    server = CatalogSender()
    old, new = server.message(3, OLD), server.message(4, NEW)
    archive = [*transaction(3, 10, old, TABLE, insert("1", "a")), *way(4, 20, new)]
    assert read_however_landed(archive) == NEWEST
    assert read_however_landed([*archive, *way(5, 30, old)]) == Known((1, 3), copies=1)


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_in_the_same_transaction_does_not_count(way: Any) -> None:
    """Somebody may read a streamed transaction that is still open."""
    server = CatalogSender()
    old, new = server.message(3, OLD), server.message(3, NEW)
    assert read_however_landed([*way(3, 10, old, new, old)]) == Known((1, 3), copies=1)


@pytest.mark.parametrize("way", WAYS)
def test_a_transaction_that_is_sent_again_has_no_copies_and_lacks_none(way: Any) -> None:
    server = CatalogSender()
    one, two = way(3, 10, server.message(3, OLD)), way(4, 20, server.message(4, ANOTHER), server.message(4, NEW))
    for archive in ([*one, *two, *one, *two], [*one, *two[:2], *one, *two], [*one, *one, *two, *two]):
        assert read([archive]) == NEWEST
        assert read([one, archive]) == NEWEST


def streamed_and_prepared(xid: int, *sent: Change) -> Messages:
    return [*segment(xid, *sent, first=True), *stream_prepare(xid)]


@pytest.mark.parametrize("again", [prepared, streamed_and_prepared])
def test_a_prepared_transaction_that_is_sent_again_begins_with_the_former_definition(again: Any) -> None:
    server = CatalogSender()
    first, changed = server.message(3, OLD), server.message(4, NEW)
    sent = [table(), insert("1", "a"), changed, insert("2", "b")]
    archive = [*transaction(3, 10, first, TABLE), *again(4, *sent), *again(4, *sent), *commit_prepared(4, 20)]
    assert read_however_landed(archive) == NEWEST
    relations = replayed(archive).assembly.relations.entries
    assert {column.number for entry in relations for column in entry.relation.columns} == {1, 2}


@pytest.mark.parametrize("way", WAYS)
def test_a_lost_message_makes_definitions_unknown_until_they_are_sent_anew(way: Any) -> None:
    server = CatalogSender()
    first, lost, later = server.message(3, OLD), server.message(4, NEW), server.message(5, ANOTHER)
    archive = [*transaction(3, 10, first), *way(5, 30, later)]
    assert read_however_landed(archive) == Known((), 1)
    assert read_however_landed([*transaction(3, 10, first), *way(4, 20, lost), *way(5, 30, later)]) == NEWEST
    anew = server.message(6, NEW, command="send_catalog")
    assert read_however_landed([*archive, *transaction(6, 40, anew)]) == Known((1, 3), 1)


@pytest.mark.parametrize("way", WAYS)
def test_the_definitions_of_the_transaction_that_shows_a_loss_are_known(way: Any) -> None:
    server = CatalogSender()
    first = server.message(3, OLD)
    server.message(4, ANOTHER)
    assert read_however_landed([*transaction(3, 10, first), *way(5, 30, server.message(5, NEW))]) == Known((1, 3), 1)


def test_the_definitions_of_other_open_transactions_are_unknown_after_a_loss() -> None:
    """The lost Message may be of such a table, from before the transaction locked it."""
    server = CatalogSender()
    first, changed = server.message(3, OLD), server.message(4, NEW, after=[])
    server.number += 1
    shows = server.message(6, ANOTHER, after=[3])
    stream = segment(4, changed, first=True)
    archive = [*transaction(3, 10, first), *stream, *transaction(6, 30, shows), *stream_commit(4, 40)]
    assert read_however_landed(archive) == Known((), 1)


def test_rolled_back_messages_are_not_missing() -> None:
    server = CatalogSender()
    first = server.message(3, OLD)
    server.number += 1
    stream = [*segment(5, server.message(5, OLD), first=True), *stream_abort(5)]
    gone = [*prepared(6, server.message(6, OLD, after=[1])), *rollback_prepared(6)]
    server.rows = [1]
    archive = [*transaction(3, 10, first), *stream, *gone, *transaction(7, 30, server.message(7, NEW))]
    assert read_however_landed(archive) == NEWEST


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_rolled_back_subtransaction_is_not_missing_unless_a_later_message_names_it(is_prepared: bool) -> None:
    server = CatalogSender()
    first = server.message(3, OLD)
    undone = server.message(4, OLD, subxid=5)
    server.rows = [1]
    stream = [*segment(4, undone, first=True), *stream_abort(4, 5), *segment(4, server.message(4, NEW))]
    ends = [*stream_prepare(4), *commit_prepared(4, 20)] if is_prepared else stream_commit(4, 20)
    archive = [*transaction(3, 10, first), *stream, *ends]
    assert read_however_landed([*archive, *transaction(6, 30, server.message(6, ANOTHER))]) == NEWEST
    named = server.message(6, ANOTHER, after=[2])
    assert read_however_landed([*archive, *transaction(6, 30, named)]) == Known((), 1)


def test_messages_of_concurrent_transactions_come_in_the_order_of_their_commits() -> None:
    server = CatalogSender()
    one, two = server.message(3, OLD), server.message(4, ANOTHER, after=[])
    server.rows = [1, 2]
    archive = [*transaction(4, 10, two), *transaction(3, 20, one), *transaction(5, 30, server.message(5, NEW))]
    assert read_however_landed(archive) == NEWEST


def test_messages_from_before_the_archive_are_not_missing() -> None:
    server = CatalogSender()
    server.message(3, OLD)
    second, third = server.message(4, ANOTHER, after=[]), server.message(5, NEW, after=[1, 2])
    assert read_however_landed([*transaction(4, 20, second), *transaction(5, 30, third)]) == NEWEST


def test_the_state_of_a_ledger_without_numbers_loads() -> None:
    state = {name: value for name, value in Assembly().state().items() if name != "catalog_numbers"}
    assert Assembly(state=state).state() == Assembly().state()
