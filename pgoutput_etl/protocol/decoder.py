"""Bytes to messages: the readable decoder, the reference for everything faster.

Every message of pgoutput's protocol versions 1 to 4; the version is never configured. Two things a message doesn't
say about itself: whether it stands inside a stream segment (then I U D T R Y M carry an xid first), which the caller
knows, and whether Stream Abort has the LSN and time of parallel streaming, which its length tells.

Strict: a short read, bytes left over, an unknown tag, kind or flag, a count that can't be, text that is not UTF-8 is
a WireError naming offset, message and field.

Source: PostgreSQL documentation, "Logical Replication Message Formats"; src/backend/replication/logical/proto.c.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pgoutput_etl.errors import WireError
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
    TruncateOption,
    TupleData,
    Type,
    Update,
)
from pgoutput_etl.protocol.reader import Reader

# MaxTupleAttributeNumber of src/include/access/htup_details.h: no tuple has more columns.
MAX_COLUMNS = 1664

_KNOWN_TRUNCATE_OPTIONS = TruncateOption.CASCADE | TruncateOption.RESTART_IDENTITY

_MOST_OIDS = 1 << 28  # of a Truncate: PostgreSQL builds no message of more than 1 GiB

_ABORT_WITH_LSN = 1 + 4 + 4 + 8 + 8

_TUPLE_N, _TUPLE_U, _TUPLE_T, _TUPLE_B = b"nutb"


def decode(data: bytes, in_stream: bool) -> PgoutputMessage:
    """One whole message. `in_stream`: it stands between Stream Start and Stream Stop.

    Raises WireError, its offset counted from the first byte of `data`.
    """
    reader = Reader(data)
    message = read_message(reader, in_stream)
    reader.done()
    return message


def message_end(data: bytes, start: int, in_stream: bool) -> int:
    """Where the message that begins at data[start] ends: for a framing that doesn't say.

    Raises WireError, its offset counted from `start`, and `looked_to` set.
    """
    reader = Reader(data, start)
    if data[start : start + 1] == b"A":
        reader.end = _abort_end(data, start)
    try:
        read_message(reader, in_stream)
    except WireError as error:
        raise replace(error, looked_to=reader.position) from None
    return reader.position


def _abort_end(data: bytes, start: int) -> int:
    """Stream Abort's length is told by what follows it: a new line and then a message, or the end.

    An LSN's first byte is a new line only past 720 PB of WAL, so that the short form is tried first.
    """
    short = start + 9
    if data[short : short + 1] in (b"", b"\n") and (short + 1 >= len(data) or data[short + 1] in _READERS):
        return min(short, len(data))
    return min(start + _ABORT_WITH_LSN, len(data))


def read_message(reader: Reader, in_stream: bool) -> PgoutputMessage:
    """The message at the reader's position. Bytes behind it are left for the caller, but for Stream Abort, which
    takes the reader's end for its own. Raises WireError."""
    tag = reader.uint8("tag")
    entry = _READERS.get(tag)
    if entry is None:
        raise reader.fail("tag", "a pgoutput message type", f"byte 0x{tag:02X}", reader.start)
    reader.message, read = entry
    return read(reader, in_stream)


def _xid(reader: Reader, in_stream: bool) -> int | None:
    return reader.uint32("xid") if in_stream else None


def _no_flags(reader: Reader) -> None:
    begin = reader.position
    flags = reader.uint8("flags")
    if flags != 0:
        raise reader.fail("flags", "0 (none are defined)", str(flags), begin)


def _begin(reader: Reader, _in_stream: bool) -> Begin:
    return Begin(reader.uint64("final_lsn"), reader.int64("commit_timestamp"), reader.uint32("xid"))


def _commit(reader: Reader, _in_stream: bool) -> Commit:
    _no_flags(reader)
    return Commit(reader.uint64("commit_lsn"), reader.uint64("end_lsn"), reader.int64("commit_timestamp"))


def _origin(reader: Reader, _in_stream: bool) -> Origin:
    return Origin(reader.uint64("commit_lsn"), reader.string("name"))


def _message(reader: Reader, in_stream: bool) -> Message:
    xid = _xid(reader, in_stream and not _stands_outside(reader))
    begin = reader.position
    flags = reader.uint8("flags")
    if flags not in (0, 1):
        raise reader.fail("flags", "0 or 1 (transactional)", str(flags), begin)
    lsn = reader.uint64("lsn")
    prefix = reader.string("prefix")
    return Message(xid, flags == 1, lsn, prefix, reader.raw(reader.length("length"), "content"))


def _stands_outside(reader: Reader) -> bool:
    """Whether a Message has no xid, though the stream segment before it has not ended.

    The receiver connected again inside the segment, and this is the first message of the new connection. It is not
    transactional, as others have Begin or Stream Start before them; in a segment all are. Where an xid would be it has
    flags of 0 and three bytes of an LSN, then one more of those where a segment's would have flags of 1.
    """
    head = reader.data[reader.position : reader.position + 5]
    return head[:1] == b"\0" and len(head) == 5 and (head[:4] == b"\0\0\0\0" or head[4] != 1)


def _relation(reader: Reader, in_stream: bool) -> Relation:
    xid = _xid(reader, in_stream)
    oid = reader.uint32("oid")
    namespace = reader.string("namespace")
    name = reader.string("name")
    identity = _replica_identity(reader)
    count = _column_count(reader)
    columns = tuple(_relation_column(reader, i) for i in range(count))
    # An empty namespace stands for pg_catalog (proto.c, logicalrep_write_namespace).
    return Relation(xid, oid, namespace or "pg_catalog", name, identity, columns)


def _replica_identity(reader: Reader) -> ReplicaIdentity:
    begin = reader.position
    code = reader.uint8("replica_identity")
    try:
        return ReplicaIdentity(chr(code))
    except ValueError:
        raise reader.fail("replica_identity", "one of d n f i", f"byte 0x{code:02X}", begin) from None


def _column_count(reader: Reader) -> int:
    begin = reader.position
    count = reader.uint16("columns")
    if count > MAX_COLUMNS:
        raise reader.fail("columns", f"at most {MAX_COLUMNS} columns", str(count), begin)
    return count


def _relation_column(reader: Reader, index: int) -> RelationColumn:
    begin = reader.position
    flags = reader.uint8(f"columns[{index}].flags")
    if flags not in (0, 1):
        raise reader.fail(f"columns[{index}].flags", "0 or 1 (part of the key)", str(flags), begin)
    return RelationColumn(
        flags == 1,
        reader.string(f"columns[{index}].name"),
        reader.uint32(f"columns[{index}].type_oid"),
        reader.int32(f"columns[{index}].type_modifier"),
    )


def _type(reader: Reader, in_stream: bool) -> Type:
    xid = _xid(reader, in_stream)
    oid = reader.uint32("oid")
    namespace = reader.string("namespace")
    return Type(xid, oid, namespace or "pg_catalog", reader.string("name"))


def _insert(reader: Reader, in_stream: bool) -> Insert:
    xid = _xid(reader, in_stream)
    relation_oid = reader.uint32("relation_oid")
    _kind(reader, "new", "N")
    return Insert(xid, relation_oid, _tuple(reader, "new"))


def _update(reader: Reader, in_stream: bool) -> Update:
    xid = _xid(reader, in_stream)
    relation_oid = reader.uint32("relation_oid")
    old_kind, old = None, None
    kind = _kind(reader, "tuple", "KON")
    if kind != "N":
        old_kind, old = OldTupleKind(kind), _tuple(reader, "old")
        _kind(reader, "new", "N")
    return Update(xid, relation_oid, old_kind, old, _tuple(reader, "new"))


def _delete(reader: Reader, in_stream: bool) -> Delete:
    xid = _xid(reader, in_stream)
    relation_oid = reader.uint32("relation_oid")
    old_kind = OldTupleKind(_kind(reader, "old", "KO"))
    return Delete(xid, relation_oid, old_kind, _tuple(reader, "old"))


def _kind(reader: Reader, field: str, allowed: str) -> str:
    begin = reader.position
    code = reader.uint8(f"{field}.kind")
    if chr(code) not in allowed:
        raise reader.fail(f"{field}.kind", "one of " + " ".join(allowed), f"byte 0x{code:02X}", begin)
    return chr(code)


def _tuple(reader: Reader, field: str) -> TupleData:
    count = _column_count(reader)
    kinds = bytearray()
    values: list[bytes | None] = []
    for i in range(count):
        begin = reader.position
        kind = reader.uint8(f"{field}[{i}].kind")
        if kind in (_TUPLE_N, _TUPLE_U):
            values.append(None)
        elif kind in (_TUPLE_T, _TUPLE_B):
            size = reader.length(f"{field}[{i}].length")
            value = reader.raw(size, f"{field}[{i}].value")
            if kind == _TUPLE_T:
                reader.text(reader.position - size, reader.position, f"{field}[{i}].value")
            values.append(value)
        else:
            raise reader.fail(f"{field}[{i}].kind", "one of n u t b", f"byte 0x{kind:02X}", begin)
        kinds.append(kind)
    return TupleData(bytes(kinds), tuple(values))


def read_tuple(data: bytes) -> TupleData:
    """A TupleData alone, as the messages stage keeps it. Raises WireError."""
    reader = Reader(data, message="TupleData")
    result = _tuple(reader, "tuple")
    reader.done()
    return result


def _truncate(reader: Reader, in_stream: bool) -> Truncate:
    xid = _xid(reader, in_stream)
    begin = reader.position
    count = reader.int32("relations")
    options_at = reader.position
    options = reader.uint8("options")
    if options & ~_KNOWN_TRUNCATE_OPTIONS:
        raise reader.fail("options", "bits 1 (CASCADE) and 2 (RESTART IDENTITY)", str(options), options_at)
    left = (reader.end - reader.position) // 4
    if not 1 <= count <= left:
        refusal = reader.fail("relations", "a count of OIDs that fill the message, 1 or more", str(count), begin)
        raise replace(refusal, short=left < count <= _MOST_OIDS)
    return Truncate(xid, options, tuple(reader.uint32(f"relation_oids[{i}]") for i in range(count)))


def _stream_start(reader: Reader, _in_stream: bool) -> StreamStart:
    xid = reader.uint32("xid")
    begin = reader.position
    first = reader.uint8("first_segment")
    if first not in (0, 1):
        raise reader.fail("first_segment", "0 or 1", str(first), begin)
    return StreamStart(xid, first == 1)


def _stream_stop(_reader: Reader, _in_stream: bool) -> StreamStop:
    return StreamStop()


def _stream_commit(reader: Reader, _in_stream: bool) -> StreamCommit:
    xid = reader.uint32("xid")
    _no_flags(reader)
    return StreamCommit(xid, reader.uint64("commit_lsn"), reader.uint64("end_lsn"), reader.int64("commit_timestamp"))


def _stream_abort(reader: Reader, _in_stream: bool) -> StreamAbort:
    xid, subxid = reader.uint32("xid"), reader.uint32("subxid")
    if reader.position == reader.end:
        return StreamAbort(xid, subxid, None, None)
    return StreamAbort(xid, subxid, reader.uint64("abort_lsn"), reader.int64("abort_timestamp"))


def _begin_prepare(reader: Reader, _in_stream: bool) -> BeginPrepare:
    return BeginPrepare(*_prepared(reader, "prepare_lsn", "prepare_timestamp"))


def _prepare(reader: Reader, _in_stream: bool) -> Prepare:
    _no_flags(reader)
    return Prepare(*_prepared(reader, "prepare_lsn", "prepare_timestamp"))


def _stream_prepare(reader: Reader, _in_stream: bool) -> StreamPrepare:
    _no_flags(reader)
    return StreamPrepare(*_prepared(reader, "prepare_lsn", "prepare_timestamp"))


def _commit_prepared(reader: Reader, _in_stream: bool) -> CommitPrepared:
    _no_flags(reader)
    return CommitPrepared(*_prepared(reader, "commit_lsn", "commit_timestamp"))


def _prepared(reader: Reader, lsn: str, time: str) -> tuple[int, int, int, int, str]:
    return (
        reader.uint64(lsn),
        reader.uint64("end_lsn"),
        reader.int64(time),
        reader.uint32("xid"),
        reader.string("gid"),
    )


def _rollback_prepared(reader: Reader, _in_stream: bool) -> RollbackPrepared:
    _no_flags(reader)
    return RollbackPrepared(
        reader.uint64("prepare_end_lsn"),
        reader.uint64("rollback_end_lsn"),
        reader.int64("prepare_timestamp"),
        reader.int64("rollback_timestamp"),
        reader.uint32("xid"),
        reader.string("gid"),
    )


_READERS: dict[int, tuple[str, Callable[[Reader, bool], PgoutputMessage]]] = {
    ord("B"): ("Begin", _begin),
    ord("M"): ("Message", _message),
    ord("C"): ("Commit", _commit),
    ord("O"): ("Origin", _origin),
    ord("R"): ("Relation", _relation),
    ord("Y"): ("Type", _type),
    ord("I"): ("Insert", _insert),
    ord("U"): ("Update", _update),
    ord("D"): ("Delete", _delete),
    ord("T"): ("Truncate", _truncate),
    ord("S"): ("Stream Start", _stream_start),
    ord("E"): ("Stream Stop", _stream_stop),
    ord("c"): ("Stream Commit", _stream_commit),
    ord("A"): ("Stream Abort", _stream_abort),
    ord("b"): ("Begin Prepare", _begin_prepare),
    ord("P"): ("Prepare", _prepare),
    ord("K"): ("Commit Prepared", _commit_prepared),
    ord("r"): ("Rollback Prepared", _rollback_prepared),
    ord("p"): ("Stream Prepare", _stream_prepare),
}

MESSAGE_TAGS = frozenset(_READERS)
