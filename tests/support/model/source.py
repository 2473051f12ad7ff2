"""Messages as Python source that uses tests/support/small_archives.py, to paste a finding into a test.

LSNs, xids and OIDs become small numbers in the same order, times 0, and a gid that of small_archives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pgoutput_etl.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    Message,
    OldTupleKind,
    Origin,
    PgoutputMessage,
    Prepare,
    Relation,
    ReplicaIdentity,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TupleData,
    Type,
    Update,
)
from tests.support.model.catalog import TEXT

_ENDS = {Begin: Commit, BeginPrepare: Prepare, StreamStart: StreamStop}


def source_of(nights: Sequence[Sequence[Sequence[PgoutputMessage]]]) -> str:
    """A list of nights of files of messages."""
    names = _Names(message for night in nights for file in night for message in file)
    lines = ["["]
    for night in nights:
        lines.append("    [")
        for file in night:
            lines.append("        [")
            lines += (f"            {part}," for part in _parts(file, names))
            lines.append("        ],")
        lines.append("    ],")
    return "\n".join([*lines, "]"])


class _Names:
    """Small numbers for large ones."""

    def __init__(self, messages: Iterator[PgoutputMessage]) -> None:
        lsns = {lsn for message in messages for lsn in _lsns(message)}
        self._lsns = {lsn: 10 * number for number, lsn in enumerate(sorted(lsns), 1)}
        self._xids: dict[int, int] = {}
        self._oids: dict[int, str] = {}

    def lsn(self, lsn: int) -> int:
        return self._lsns[lsn]

    def xid(self, xid: int) -> int:
        return self._xids.setdefault(xid, 3 + len(self._xids))

    def oid(self, oid: int) -> str:
        return self._oids.setdefault(oid, f"T + {len(self._oids)}" if self._oids else "T")


def _lsns(message: PgoutputMessage) -> tuple[int, ...]:
    match message:
        case Begin(lsn) | Commit(lsn) | CommitPrepared(lsn) | Prepare(lsn) | BeginPrepare(lsn) | StreamPrepare(lsn):
            return (lsn,)
        case StreamCommit(_, lsn):
            return (lsn,)
        case StreamAbort(_, _, lsn, _) if lsn is not None:
            return (lsn,)
        case _:
            return ()


def _parts(messages: Sequence[PgoutputMessage], names: _Names) -> Iterator[str]:
    place = 0
    while place < len(messages):
        begin = messages[place]
        end = _ENDS.get(type(begin))
        place += 1
        if end is None:
            yield _alone(begin, names)
            continue
        top = begin.xid if isinstance(begin, StreamStart) else None
        changes = []
        while place < len(messages) and isinstance(messages[place], _INSIDE):
            changes.append(_change(messages[place], names, top))
            place += 1
        is_whole = place < len(messages) and type(messages[place]) is end
        place += is_whole
        begins_at = 0
        if top is not None and changes and changes[0].startswith("Origin("):  # `segment` doesn't accept it
            yield f"{_unit(begin, [], names)}[0]"
            yield changes.pop(0)
            begins_at = 1
        slice_ = f"[{begins_at or ''}:{'' if is_whole else -1}]"
        yield f"*{_unit(begin, changes, names)}{'' if slice_ == '[:]' else slice_}"


_INSIDE = (Relation, Type, Insert, Update, Delete, Truncate, Message, Origin)


def _unit(begin: PgoutputMessage, changes: Sequence[str], names: _Names) -> str:
    inside = "".join(f", {change}" for change in changes)
    match begin:
        case Begin(lsn, _, xid):
            return f"transaction({names.xid(xid)}, {names.lsn(lsn)}{inside})"
        case BeginPrepare(lsn, _, _, xid, _):
            return f"prepared({names.xid(xid)}{inside}, lsn={names.lsn(lsn)})"
        case StreamStart(xid, first):
            return f"segment({names.xid(xid)}{inside}{', first=True' if first else ''})"
        case _:
            raise TypeError(type(begin).__name__)


def _alone(message: PgoutputMessage, names: _Names) -> str:
    """A message that neither begins a fragment nor is in one that this file begins."""
    match message:
        case StreamCommit(xid, lsn):
            return f"*stream_commit({names.xid(xid)}, {names.lsn(lsn)})"
        case StreamAbort(xid, subxid, None, _):
            return f"*stream_abort({names.xid(xid)}, {names.xid(subxid)})"
        case StreamAbort(xid, subxid, lsn, _):
            return f"StreamAbort({names.xid(xid)}, {names.xid(subxid)}, {names.lsn(lsn or 0)}, 0)"
        case StreamPrepare(lsn, _, _, xid, _):
            return f"*stream_prepare({names.xid(xid)}, {names.lsn(lsn)})"
        case CommitPrepared(lsn, _, _, xid, _):
            return f"*commit_prepared({names.xid(xid)}, {names.lsn(lsn)})"
        case RollbackPrepared(xid=xid):
            return f"*rollback_prepared({names.xid(xid)})"
        case Prepare(lsn, _, _, xid, _):
            return f"prepared({names.xid(xid)}, lsn={names.lsn(lsn)})[-1]"
        case Commit(lsn):
            return f"transaction(0, {names.lsn(lsn)})[-1]"
        case StreamStop():
            return "StreamStop()"
        case _:
            return _change(message, names, None)


def _change(message: PgoutputMessage, names: _Names, top: int | None) -> str:
    """top: the transaction of the message's segment."""
    match message:
        case Relation(xid):
            text = _table(message, names)
        case Type(xid, oid, namespace, name):
            text = f"Type(None, {oid}, {namespace!r}, {name!r})"
        case Insert(xid, oid, new):
            text = f"insert({_values(new)}{_of(oid, names)})"
        case Update(xid, oid, kind, old, new):
            word = "old" if kind is OldTupleKind.OLD else "old_key"
            before = "" if old is None else f", {word}=({_values(old)},)"
            text = f"update({_values(new)}{before}{_of(oid, names)})"
        case Delete(xid, oid, kind, old):
            word = "delete_full" if kind is OldTupleKind.OLD else "delete"
            text = f"{word}({_values(old)}{_of(oid, names)})"
        case Truncate(xid, options, oids):
            text = f"truncate({', '.join(map(names.oid, oids))}{f', options={options}' if options else ''})"
        case Message(xid, transactional, lsn, prefix, content):
            text = f"Message(None, {transactional}, {lsn}, {prefix!r}, {content!r})"
        case Origin(lsn, name):
            return f"Origin({lsn}, {name!r})"
        case _:
            raise TypeError(type(message).__name__)
    if xid is not None and top is None:
        return f"replace({text}, xid={names.xid(xid)})"
    return text if xid in (None, top) else f"in_subtransaction({names.xid(xid)}, {text})"


def _table(relation: Relation, names: _Names) -> str:
    words = [repr(c.name) if c.type_oid == TEXT else f"({c.name!r}, {c.type_oid})" for c in relation.columns]
    words.append(f"name={relation.name!r}")
    if relation.replica_identity is ReplicaIdentity.FULL:
        words.append("identity=ReplicaIdentity.FULL")
    else:
        key = tuple(column.name for column in relation.columns if column.is_key)
        words.append(f"key={key!r}")
        if relation.replica_identity is not ReplicaIdentity.DEFAULT:
            words.append(f"identity={relation.replica_identity}")
    table = f"table({', '.join(words)}{_of(relation.oid, names)})"
    is_public = relation.namespace == "public"
    return table if is_public else f"replace({table}, namespace={relation.namespace!r})"


def _of(oid: int, names: _Names) -> str:
    name = names.oid(oid)
    return "" if name == "T" else f", oid={name}"


def _values(data: TupleData) -> str:
    return ", ".join(
        "TOAST" if kind == 0x75 else repr(None if value is None else value.decode())
        for kind, value in zip(data.kinds, data.values, strict=True)
    )
