"""The tests' own encoder of messages and of landed files in every framing, and strategies that generate messages.

Written from PostgreSQL's protocol chapter ("Logical Replication Message Formats", "Streaming Replication Protocol",
COPY's "Binary Format"), independently of the decoder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import pack

from hypothesis import strategies as st

from pgoutput_etl.identifiers import bytes_of
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
    RelationColumn,
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


def encode(message: PgoutputMessage) -> bytes:
    """The message as the server sends it; in its streamed variant if it has an xid that ordinary ones lack."""
    match message:
        case Begin(final_lsn, commit_timestamp, xid):
            return pack(">cQqI", b"B", final_lsn, commit_timestamp, xid)
        case Message(xid, transactional, lsn, prefix, content):
            head = b"M" + _xid(xid) + pack(">BQ", transactional, lsn)
            return head + _string(prefix) + pack(">i", len(content)) + content
        case Commit(commit_lsn, end_lsn, commit_timestamp):
            return pack(">cBQQq", b"C", 0, commit_lsn, end_lsn, commit_timestamp)
        case Origin(commit_lsn, name):
            return pack(">cQ", b"O", commit_lsn) + _string(name)
        case Relation(xid, oid, namespace, name, replica_identity, columns):
            head = b"R" + _xid(xid) + pack(">I", oid) + _namespace(namespace) + _string(name)
            head += replica_identity.value.encode() + pack(">H", len(columns))
            return head + b"".join(map(_column, columns))
        case Type(xid, oid, namespace, name):
            return b"Y" + _xid(xid) + pack(">I", oid) + _namespace(namespace) + _string(name)
        case Insert(xid, relation_oid, new):
            return b"I" + _xid(xid) + pack(">I", relation_oid) + b"N" + _tuple(new)
        case Update(xid, relation_oid, old_kind, old, new):
            before = b"" if old_kind is None or old is None else old_kind.value.encode() + _tuple(old)
            return b"U" + _xid(xid) + pack(">I", relation_oid) + before + b"N" + _tuple(new)
        case Delete(xid, relation_oid, old_kind, old):
            return b"D" + _xid(xid) + pack(">I", relation_oid) + old_kind.value.encode() + _tuple(old)
        case Truncate(xid, options, relation_oids):
            head = b"T" + _xid(xid) + pack(">iB", len(relation_oids), options)
            return head + b"".join(pack(">I", oid) for oid in relation_oids)
        case _:
            return _encode_streamed_or_prepared(message)


def _encode_streamed_or_prepared(message: PgoutputMessage) -> bytes:
    match message:
        case StreamStart(xid, first_segment):
            return pack(">cIB", b"S", xid, first_segment)
        case StreamStop():
            return b"E"
        case StreamCommit(xid, commit_lsn, end_lsn, commit_timestamp):
            return pack(">cIBQQq", b"c", xid, 0, commit_lsn, end_lsn, commit_timestamp)
        case StreamAbort(xid, subxid, None, None):
            return pack(">cII", b"A", xid, subxid)
        case StreamAbort(xid, subxid, abort_lsn, abort_timestamp):
            return pack(">cIIQq", b"A", xid, subxid, abort_lsn, abort_timestamp)
        case BeginPrepare(prepare_lsn, end_lsn, prepare_timestamp, xid, gid):
            return pack(">cQQqI", b"b", prepare_lsn, end_lsn, prepare_timestamp, xid) + _string(gid)
        case Prepare(prepare_lsn, end_lsn, prepare_timestamp, xid, gid):
            return pack(">cBQQqI", b"P", 0, prepare_lsn, end_lsn, prepare_timestamp, xid) + _string(gid)
        case CommitPrepared(commit_lsn, end_lsn, commit_timestamp, xid, gid):
            return pack(">cBQQqI", b"K", 0, commit_lsn, end_lsn, commit_timestamp, xid) + _string(gid)
        case RollbackPrepared(prepare_end, rollback_end, prepare_timestamp, rollback_timestamp, xid, gid):
            fixed = pack(">cBQQqqI", b"r", 0, prepare_end, rollback_end, prepare_timestamp, rollback_timestamp, xid)
            return fixed + _string(gid)
        case StreamPrepare(prepare_lsn, end_lsn, prepare_timestamp, xid, gid):
            return pack(">cBQQqI", b"p", 0, prepare_lsn, end_lsn, prepare_timestamp, xid) + _string(gid)
        case _:
            raise TypeError(f"{type(message).__name__} is not a pgoutput message")


def _xid(xid: int | None) -> bytes:
    return b"" if xid is None else pack(">I", xid)


def _string(text: str) -> bytes:
    return bytes_of(text) + b"\0"


def _namespace(name: str) -> bytes:
    """The chapter: "Namespace (empty string for pg_catalog)"."""
    return _string("" if name == "pg_catalog" else name)


def _column(column: RelationColumn) -> bytes:
    return pack(">B", column.is_key) + _string(column.name) + pack(">Ii", column.type_oid, column.type_modifier)


def _tuple(row: TupleData) -> bytes:
    cells = [
        bytes([kind]) if value is None else pack(">ci", bytes([kind]), len(value)) + value
        for kind, value in zip(row.kinds, row.values, strict=True)
    ]
    return pack(">H", len(cells)) + b"".join(cells)


# Framings


@dataclass(frozen=True, slots=True)
class Row:
    """A row of pg_logical_slot_get_binary_changes; without the xid, an XLogData message."""

    lsn: int
    xid: int
    data: bytes


def recvlogical(messages: Iterable[bytes]) -> bytes:
    return b"".join(message + b"\n" for message in messages)


def length_prefixed(messages: Iterable[bytes]) -> bytes:
    return b"".join(pack(">i", len(message)) + message for message in messages)


def pgcopy(rows: Iterable[Row], flags: int = 0, extension: bytes = b"") -> bytes:
    head = b"PGCOPY\n\xff\r\n\0" + pack(">Ii", flags, len(extension)) + extension
    body = (pack(">hiQiIi", 3, 8, r.lsn, 4, r.xid, len(r.data)) + r.data for r in rows)
    return head + b"".join(body) + pack(">h", -1)


def copydata(rows: Iterable[Row], keepalives: Iterable[int] = ()) -> bytes:
    """`keepalives`: the numbers of the rows before which to insert a keepalive; len(rows) is the end."""
    before = set(keepalives)
    parts = []
    number = -1
    for number, row in enumerate(rows):
        parts += [_keepalive()] if number in before else []
        parts.append(_copy_data(pack(">cQQq", b"w", row.lsn, row.lsn, 0) + row.data))
    return b"".join(parts) + (_keepalive() if number + 1 in before else b"")


def _keepalive() -> bytes:
    return _copy_data(pack(">cQqB", b"k", 0x16B374D848, 0, 0))


def _copy_data(body: bytes) -> bytes:
    return b"d" + pack(">i", 4 + len(body)) + body


# Generated messages

lsns = st.integers(0, 2**64 - 1)
oids = xids = st.integers(0, 2**32 - 1)
times = st.integers(-(2**63), 2**63 - 1)
# An LSN that begins with a newline would confuse readers of pg_recvlogical's files, but it is past 720 PB of WAL.
abort_lsns = st.integers(0, 2**59)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)
namespaces = st.sampled_from(["public", "pg_catalog", "a.b", 'q"ü']) | names.filter(bool)
cells = st.one_of(
    st.sampled_from([(b"n", None), (b"u", None)]),
    st.tuples(st.just(b"t"), st.text(max_size=9).map(str.encode)),
    st.tuples(st.just(b"b"), st.binary(max_size=9)),
)
tuples = st.lists(cells, max_size=5).map(
    lambda row: TupleData(b"".join(kind for kind, _ in row), tuple(value for _, value in row))
)
columns = st.builds(RelationColumn, st.booleans(), names, oids, st.integers(-(2**31), 2**31 - 1))

outside_segments: st.SearchStrategy[PgoutputMessage] = st.one_of(
    st.builds(Begin, lsns, times, xids),
    st.builds(Commit, lsns, lsns, times),
    st.builds(StreamCommit, xids, lsns, lsns, times),
    st.builds(StreamAbort, xids, xids, st.none(), st.none()),
    st.builds(StreamAbort, xids, xids, abort_lsns, times),
    st.builds(BeginPrepare, lsns, lsns, times, xids, names),
    st.builds(Prepare, lsns, lsns, times, xids, names),
    st.builds(CommitPrepared, lsns, lsns, times, xids, names),
    st.builds(RollbackPrepared, lsns, lsns, times, times, xids, names),
    st.builds(StreamPrepare, lsns, lsns, times, xids, names),
)


def in_either(in_stream: bool) -> st.SearchStrategy[PgoutputMessage]:
    """Messages inside stream segments (with an xid) or outside of them (without)."""
    xid: st.SearchStrategy[int | None] = xids if in_stream else st.none()
    old_kinds = st.sampled_from(OldTupleKind)
    identities = st.sampled_from(ReplicaIdentity)
    return st.one_of(
        st.builds(Origin, lsns, names),
        # In segments, all Messages are transactional, and no transaction has xid 0.
        st.builds(
            Message,
            xid.filter(lambda x: x != 0),
            st.booleans() if not in_stream else st.just(True),
            lsns,
            names,
            st.binary(max_size=9),
        ),
        st.builds(Relation, xid, oids, namespaces, names, identities, st.lists(columns, max_size=4).map(tuple)),
        st.builds(Type, xid, oids, namespaces, names),
        st.builds(Insert, xid, oids, tuples),
        st.builds(Update, xid, oids, st.none(), st.none(), tuples),
        st.builds(Update, xid, oids, old_kinds, tuples, tuples),
        st.builds(Delete, xid, oids, old_kinds, tuples),
        st.builds(Truncate, xid, st.integers(0, 3), st.lists(oids, min_size=1, max_size=4).map(tuple)),
    )


# A message, and True if it is inside a stream segment.
messages: st.SearchStrategy[tuple[PgoutputMessage, bool]] = st.one_of(
    st.tuples(outside_segments, st.just(False)),
    st.tuples(in_either(False), st.just(False)),
    st.tuples(in_either(True), st.just(True)),
    st.tuples(st.builds(StreamStart, xids, st.booleans()), st.just(False)),
    st.tuples(st.just(StreamStop()), st.just(True)),
)

_segments = st.builds(
    lambda start, inside, stop: [start, *inside, stop],
    st.builds(StreamStart, xids, st.booleans()),
    st.lists(in_either(True), max_size=4),
    st.just(StreamStop()),
)
_stretches = _segments | st.lists(outside_segments | in_either(False), max_size=4)
# The messages of a whole archive, in an order that keeps segments together; tests cut it into files anywhere.
archives: st.SearchStrategy[list[PgoutputMessage]] = st.lists(_stretches, max_size=5).map(
    lambda stretches: [message for stretch in stretches for message in stretch]
)
