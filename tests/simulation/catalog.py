"""Catalog Messages in a simulated archive: true ones, and those that must not count."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from random import Random

from pgoutput_etl.protocol.catalog_message import PREFIX
from pgoutput_etl.protocol.messages import (
    Begin,
    BeginPrepare,
    Delete,
    Insert,
    Message,
    PgoutputMessage,
    Relation,
    StreamStart,
    StreamStop,
    Update,
)
from tests.support.catalog_messages import CatalogSender, definition, signed

Sent = list[tuple[PgoutputMessage, bool]]

_SHARE = 0.5  # of the rows have a Message behind them


def with_catalog(messages: Iterable[PgoutputMessage], aborted: Collection[int], chance: Random) -> Sent:
    """The messages of one connection, and for each whether it counts. aborted: xids."""
    server, numbers = CatalogSender(), dict[tuple[int, str], int]()
    relations: dict[int, Relation] = {}
    sent: Sent = []
    xid, stream = 0, None
    for message in messages:
        sent.append((message, True))
        match message:
            case Begin(xid=begun) | BeginPrepare(xid=begun):
                xid = begun
            case StreamStart(xid=begun):
                xid = stream = begun
            case StreamStop():
                stream = None
            case Relation():
                relations[message.oid] = message
            case Insert() | Update() | Delete() if chance.random() < _SHARE and message.relation_oid in relations:
                relation = relations[message.relation_oid]
                own = [numbers.setdefault((relation.oid, c.name), len(numbers) + 1) for c in relation.columns]
                found, counts = _message(server, xid, xid in aborted, relation, own, chance)
                sent.append((replace(found, xid=stream), counts))
            case _:
                pass
    return sent


def _message(
    server: CatalogSender, xid: int, is_aborted: bool, relation: Relation, numbers: list[int], chance: Random
) -> tuple[Message, bool]:
    """Its xid is not set."""
    if is_aborted:
        others = definition(relation, [number + 1000 for number in numbers])
        return server.message(xid, others, after=[]), False
    kind = chance.choice(("true", "true", "true", "copied", "forged"))
    if kind == "true":
        return server.message(xid, definition(relation, numbers), after=[], command="send_catalog"), True
    false = definition(replace(relation, name="false"), numbers)
    body = {"version": 1, "xid": xid, "transaction": xid, "number": 1 << 40, "tables": [false]}
    if kind == "copied":
        return Message(None, True, 5, PREFIX, signed({**body, "transaction": xid + 1})), False
    return Message(None, True, 5, PREFIX, signed(body, b"guessed")), False
