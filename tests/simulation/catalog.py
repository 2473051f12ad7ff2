"""Catalog Messages in a simulated archive: true ones, those that must not count, and some that were never landed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

from pgoutput_etl.protocol.catalog_message import PREFIX
from pgoutput_etl.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    Message,
    PgoutputMessage,
    Relation,
    StreamCommit,
    StreamStart,
    StreamStop,
    Update,
)
from tests.support.catalog_messages import CatalogSender, definition, signed

# By OID: true if the definition is known, and the number of losses since its first one.
Known = Mapping[int, tuple[bool, int]]

_MOST = 4  # Messages behind a row, or fewer
_KINDS = ("true", "true", "true", "lost", "late", "copied", "forged")


class Sent(NamedTuple):
    """counts: False for a Message that nobody may believe. known: after it."""

    message: PgoutputMessage
    counts: bool
    known: Known


class _Numbered(NamedTuple):
    number: int
    after: tuple[int, ...]
    is_lost: bool


class _Defined(NamedTuple):
    """content: None once others are missing. losses: before the table's first definition."""

    content: dict[str, Any] | None
    losses: int


@dataclass(slots=True)
class _Open:
    """What a transaction has sent. has_named: it looked for the numbers that no Message has named. last: the number of
    its last Message that was landed. numbered, defined: what counts once it commits."""

    has_named: bool = False
    last: int = 0
    numbered: list[_Numbered] = field(default_factory=list)
    defined: dict[int, _Defined] = field(default_factory=dict)


@dataclass(slots=True)
class Catalog:
    """The server, and what a reader can know. aborted: xids. first: the number of the archive's first Message. live:
    committed numbers that no committed Message has named. reserved: numbers that transactions have drawn and not used.
    start: the first xid; smaller ones are of the next epoch."""

    aborted: Collection[int]
    chance: Random
    sender: CatalogSender = field(default_factory=CatalogSender)
    first: int = 0
    live: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    reserved: list[int] = field(default_factory=list)
    start: int = 0
    losses: int = 0
    defined: dict[int, _Defined] = field(default_factory=dict)
    open: dict[int, _Open] = field(default_factory=dict)

    def known(self) -> Known:
        return {oid: (found.content is not None, self.losses - found.losses) for oid, found in self.defined.items()}

    def message(self, xid: int, relation: Relation, numbers: list[int], is_open: bool) -> tuple[Message | None, bool]:
        """None for a lost one, and whether it counts. Its xid is not set. is_open: the transaction has not ended."""
        self.start = self.start or xid
        self.sender.epoch = 3 + (xid < self.start // 2)
        if xid in self.aborted:
            others = definition(relation, [number + 1000 for number in numbers])
            return self.sender.message(xid, others, after=sorted(self.live)), False
        own, kind = self.open.setdefault(xid, _Open()), self.chance.choice(_KINDS)
        if kind in ("true", "lost") or (kind == "late" and not own.last):
            return self._true(xid, definition(relation, numbers), kind == "lost", is_open), True
        false = definition(replace(relation, name="false"), numbers)
        if kind == "late":
            return self.sender.message(xid, false, after=[], number=own.last - 1), False
        body = {"version": 1, "xid": xid, "transaction": xid, "number": 1 << 40, "tables": [false]}
        if kind == "copied":
            return Message(None, True, 5, PREFIX, signed({**body, "transaction": xid + 1})), False
        return Message(None, True, 5, PREFIX, signed(body, b"guessed")), False

    def _true(self, xid: int, content: dict[str, Any], is_lost: bool, is_open: bool) -> Message | None:
        """The first Message of a transaction names others. It may have drawn its number before others did."""
        own = self.open[xid]
        named = {number for other in self.open.values() for sent in other.numbered for number in sent.after}
        after = [] if own.has_named else sorted(self.live - named)
        number = self.sender.number = self.sender.number + 1
        if not own.has_named and self.reserved and self.chance.random() < 0.5:
            number = self.reserved.pop(0)
        elif self.chance.random() < 0.2:
            self.reserved.append(self.sender.number + 1)
            self.sender.number += 1
        own.has_named = True
        own.numbered.append(_Numbered(number, (*after,), is_lost))
        if not is_open:
            self.commit(xid)
            self.open[xid] = replace(own, numbered=[])
        if is_lost:
            return None
        own.last = self.open[xid].last = number
        defined = own.defined if is_open else self.defined
        before = defined.get(content["oid"]) or self.defined.get(content["oid"]) or _Defined(None, self.losses)
        if before.content != content:
            defined[content["oid"]] = _Defined(content, before.losses)
        return self.sender.message(xid, content, after=after, number=number, command="send_catalog")

    def commit(self, xid: int) -> None:
        own = self.open.pop(xid, _Open())
        for number, after, is_lost in own.numbered:
            self.live = (self.live | {number}) - {*after}
            if is_lost:
                self.lost.add(number)
                continue
            self.first = self.first or number
            if any(earlier > self.first for earlier in self.lost & {*after}):
                self._lose()
        self.defined |= own.defined

    def _lose(self) -> None:
        """Counts for all definitions but committed ones that are unknown already."""
        self.losses += 1
        for oid, (content, losses) in self.defined.items():
            self.defined[oid] = _Defined(None, losses + (content is None))
        for other in self.open.values():
            other.defined = {oid: _Defined(None, losses) for oid, (_, losses) in other.defined.items()}


def with_catalog(messages: Iterable[PgoutputMessage], aborted: Collection[int], chance: Random) -> list[Sent]:
    """The messages of one connection. aborted: xids."""
    catalog, numbers = Catalog(aborted, chance), dict[tuple[int, str], int]()
    relations: dict[int, Relation] = {}
    sent: list[Sent] = []
    xid, stream, is_prepared = 0, None, False
    for message in messages:
        match message:
            case Begin(xid=begun) | BeginPrepare(xid=begun):
                xid, is_prepared = begun, isinstance(message, BeginPrepare)
            case StreamStart(xid=begun):
                xid = stream = begun
            case StreamStop():
                stream = None
            case Commit():
                catalog.open.pop(xid, None)
            case StreamCommit(xid=ended) | CommitPrepared(xid=ended):
                catalog.commit(ended)
            case Relation():
                relations[message.oid] = message
            case _:
                pass
        sent.append(Sent(message, True, catalog.known()))
        if not isinstance(message, Insert | Update | Delete) or message.relation_oid not in relations:
            continue
        relation = relations[message.relation_oid]
        own = [numbers.setdefault((relation.oid, c.name), len(numbers) + 1) for c in relation.columns]
        for _ in range(chance.randrange(_MOST)):
            found, counts = catalog.message(xid, relation, own, stream is not None or is_prepared)
            if found is not None:
                sent.append(Sent(replace(found, xid=stream), counts, catalog.known()))
    return sent
