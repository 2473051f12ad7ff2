"""Makes the messages of a real walsender and of the model's comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from pgoutput_etl.protocol.messages import (
    BeginPrepare,
    Origin,
    PgoutputMessage,
    Prepare,
    Relation,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    TupleData,
    Type,
)
from tests.support.model.catalog import MOOD
from tests.support.servers.statement_sql import PADDING

_FIRST_USER_OID = 16384


Connections = Sequence[Sequence[PgoutputMessage]]


def comparable(connections: Connections) -> list[list[PgoutputMessage]]:
    """Without empty segments, and with xids, OIDs and LSNs numbered in the order of their first appearance."""
    numbers = _Numbers()
    return [[numbers.renumbered(message) for message in _without_empty_segments(sent)] for sent in connections]


def is_within(part: Sequence[PgoutputMessage], whole: Sequence[PgoutputMessage]) -> bool:
    """True if `part` is `whole` without some Relation and Type messages."""
    left = list(reversed(part))
    for message in whole:
        if left and left[-1] == message:
            left.pop()
        elif not isinstance(message, Relation | Type):
            return False
    return not left


def _without_empty_segments(messages: Sequence[PgoutputMessage]) -> list[PgoutputMessage]:
    """Drop empty segments and transactions, and join adjacent segments of one transaction.

    A change of the catalog or of a TOASTed value consists of several WAL records, each of which may be a segment.
    """
    result: list[PgoutputMessage] = []
    streamed: set[int] = set()  # transactions with a segment in the result
    segments = [0]  # the transactions of the result's segments
    for message in messages:
        last = result[-1] if result else None
        match message:
            case StreamStart(xid) if isinstance(last, StreamStop) and segments[-1] == xid:
                result.pop()
                continue
            case StreamStart(xid):
                result.append(StreamStart(xid, xid not in streamed))
                segments.append(xid)
                continue
            case StreamStop() if isinstance(last, StreamStart):
                result.pop()
                segments.pop()
                continue
            case Prepare() if isinstance(last, BeginPrepare):
                result.pop()
                continue
            case StreamCommit(xid=xid) | StreamPrepare(xid=xid) | StreamAbort(xid=xid) if xid not in streamed:
                continue
            case _:
                pass
        if isinstance(last, StreamStart):
            streamed.add(last.xid)
        result.append(message)
    return result


class _Numbers:
    def __init__(self) -> None:
        self._seen: dict[str, dict[int, int]] = {}

    def _number(self, kind: str, value: int) -> int:
        numbers = self._seen.setdefault(kind, {})
        return numbers.setdefault(value, len(numbers) + 1)

    def renumbered(self, message: PgoutputMessage) -> PgoutputMessage:
        changed: dict[str, Any] = {}
        for name in (field.name for field in fields(message)):
            value = getattr(message, name)
            if name in ("xid", "subxid") and value is not None:
                changed[name] = self._number("xid", value)
            elif name in ("oid", "relation_oid") and not isinstance(message, Type):
                changed[name] = self._number("oid", value)
            elif name in ("final_lsn", "commit_lsn", "prepare_lsn") and not isinstance(message, Origin):
                changed[name] = self._number("lsn", value)
            elif name == "gid" or (isinstance(message, Origin) and name == "name"):
                changed[name] = value.split(" ", 1)[-1] if value.startswith("twin") else value
            elif name == "relation_oids":
                changed[name] = tuple(self._number("oid", oid) for oid in value)
            elif name == "lsn" or (name.endswith(("_lsn", "_timestamp")) and not isinstance(message, Origin)):
                changed[name] = None if value is None else 0
            elif isinstance(value, TupleData):
                changed[name] = _shortened(value)
            elif name == "columns":
                changed[name] = tuple(
                    replace(column, type_oid=MOOD) if column.type_oid >= _FIRST_USER_OID else column for column in value
                )
        if isinstance(message, Type):
            changed["oid"] = MOOD
        return replace(message, **changed)


def _shortened(data: TupleData) -> TupleData:
    return TupleData(data.kinds, tuple(v and v.removesuffix(PADDING.encode()) for v in data.values))


def without_repeated_relations(messages: Sequence[PgoutputMessage]) -> list[PgoutputMessage]:
    """Drop repeated Relation messages, and the Type messages before them.

    A walsender hears of catalog changes as they are committed, ahead of the WAL that it decodes. It then sends some
    Relation messages more often than the WAL requires.
    """
    known: dict[tuple[int | None, int], Relation] = {}
    result: list[PgoutputMessage] = []
    types: list[PgoutputMessage] = []
    scope: int | None = None
    for message in messages:
        match message:
            case Type():
                types.append(message)
                continue
            case Relation():
                described = replace(message, xid=None)
                if known.get((scope, message.oid)) != described:
                    result += [*types, message]
                    known[scope, message.oid] = described
                types = []
                continue
            case StreamStart(xid):
                scope = xid
            case StreamStop():
                scope = None
            case StreamCommit(xid):
                streamed = {oid: relation for (scope_xid, oid), relation in known.items() if scope_xid == xid}
                known.update({(None, oid): relation for oid, relation in streamed.items()})
            case _:
                pass
        result.append(message)
    return result
