"""Decodes pgoutput messages: the readable decoder, and the reference for faster ones.

It reads every message of protocol versions 1 to 4, without a configured version. A message doesn't show whether it is
inside a stream segment, where I, U, D, T, R, Y, and M begin with an xid, so the caller must know that. The length of a
Stream Abort shows whether it has the LSN and time of parallel streaming.

Short reads, surplus bytes, unknown tags, kinds, or flags, and impossible counts raise WireError with offset, message,
and field. Text that isn't UTF-8 doesn't make a message unreadable: values are bytes here, and identifiers.py reads
names.

Source: PostgreSQL documentation, "Logical Replication Message Formats"; src/backend/replication/logical/proto.c.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pgoutput_etl.errors import WireError
from pgoutput_etl.protocol import messages as pgoutput
from pgoutput_etl.protocol.messages import OldTupleKind, PgoutputMessage, ReplicaIdentity, TruncateOption, TupleData
from pgoutput_etl.protocol.reader import Reader

# MaxTupleAttributeNumber of src/include/access/htup_details.h: no tuple has more columns.
MAX_COLUMNS = 1664

_TRUNCATE_OPTIONS = TruncateOption.CASCADE | TruncateOption.RESTART_IDENTITY

_MOST_OIDS = 1 << 28  # in a Truncate: PostgreSQL doesn't build messages larger than 1 GiB

_ABORT_WITH_LSN = 1 + 4 + 4 + 8 + 8


def decode(data: bytes, in_stream: bool, only_utf8: bool = False) -> PgoutputMessage:
    """Decodes one whole message. in_stream: it is between Stream Start and Stream Stop. only_utf8: rejects other text,
    for bytes that may not be a message.

    Raises WireError with an offset from the first byte of `data`.
    """
    reader = Reader(data, only_utf8=only_utf8)
    message = _read_message(reader, in_stream)
    reader.done()
    return message


def message_end(data: bytes, start: int, in_stream: bool) -> int:
    """The end of the message that begins at data[start], for a framing without lengths.

    Raises WireError with an offset from `start`, and with `scanned_to`.
    """
    reader = Reader(data, start)
    if data[start : start + 1] == b"A":
        reader.end = _abort_end(data, start)
    try:
        _read_message(reader, in_stream)
    except WireError as error:
        raise replace(error, scanned_to=reader.position) from None
    return reader.position


def _abort_end(data: bytes, start: int) -> int:
    """The end of a Stream Abort, whose length follows from the bytes after it: a newline and a message, or the end.

    The short form is tried first: the LSN of the long one begins with a newline only after 720 PB of WAL.
    """
    short = start + 9
    if data[short : short + 1] in (b"", b"\n") and (short + 1 >= len(data) or data[short + 1] in _READERS):
        return min(short, len(data))
    return min(start + _ABORT_WITH_LSN, len(data))


def _read_message(reader: Reader, in_stream: bool) -> PgoutputMessage:
    """Reads the message at the reader's position. A Stream Abort extends to the reader's end; after any other message,
    bytes may remain."""
    tag = reader.uint8("tag")
    entry = _READERS.get(tag)
    if entry is None:
        raise reader.fail("tag", "a pgoutput message type", f"byte 0x{tag:02X}", reader.start)
    reader.message, read = entry
    return read(reader, in_stream)


def _xid(reader: Reader, in_stream: bool) -> int | None:
    return reader.uint32("xid") if in_stream else None


def _no_flags(reader: Reader) -> None:
    reader.flags("flags", "0 (none are defined)", most=0)


def _begin(reader: Reader, _in_stream: bool) -> pgoutput.Begin:
    return pgoutput.Begin(reader.uint64("final_lsn"), reader.int64("commit_timestamp"), reader.uint32("xid"))


def _commit(reader: Reader, _in_stream: bool) -> pgoutput.Commit:
    _no_flags(reader)
    return pgoutput.Commit(reader.uint64("commit_lsn"), reader.uint64("end_lsn"), reader.int64("commit_timestamp"))


def _origin(reader: Reader, _in_stream: bool) -> pgoutput.Origin:
    return pgoutput.Origin(reader.uint64("commit_lsn"), reader.string("name"))


def _message(reader: Reader, in_stream: bool) -> pgoutput.Message:
    xid = _xid(reader, in_stream and not _is_outside(reader))
    is_transactional = reader.flags("flags", "0 or 1 (transactional)") == 1
    lsn = reader.uint64("lsn")
    prefix = reader.string("prefix")
    return pgoutput.Message(xid, is_transactional, lsn, prefix, reader.raw(reader.length("length"), "content"))


def _is_outside(reader: Reader) -> bool:
    """True if a Message has no xid although the preceding stream segment has not ended.

    The receiver has then reconnected within the segment, and this is the first message of the new connection. It is not
    transactional: a transactional one follows a Begin or Stream Start, and in a segment, all are. Instead of an xid, it
    has flags of 0 and three bytes of an LSN, followed by a fourth one where a Message in a segment has flags of 1.
    """
    head = reader.data[reader.position : reader.position + 5]
    return head[:1] == b"\0" and len(head) == 5 and (head[:4] == b"\0\0\0\0" or head[4] != 1)


def _relation(reader: Reader, in_stream: bool) -> pgoutput.Relation:
    xid = _xid(reader, in_stream)
    oid = reader.uint32("oid")
    namespace = reader.string("namespace")
    name = reader.string("name")
    identity = ReplicaIdentity(reader.letter("replica_identity", "dnfi"))
    columns = tuple(_relation_column(reader, f"columns[{i}]") for i in range(_column_count(reader)))
    # An empty namespace stands for pg_catalog (proto.c, logicalrep_write_namespace).
    return pgoutput.Relation(xid, oid, namespace or "pg_catalog", name, identity, columns)


def _column_count(reader: Reader) -> int:
    begin = reader.position
    count = reader.uint16("columns")
    if count > MAX_COLUMNS:
        raise reader.fail("columns", f"at most {MAX_COLUMNS} columns", str(count), begin)
    return count


def _relation_column(reader: Reader, field: str) -> pgoutput.RelationColumn:
    is_key = reader.flags(f"{field}.flags", "0 or 1 (part of the key)") == 1
    name = reader.string(f"{field}.name")
    return pgoutput.RelationColumn(
        is_key, name, reader.uint32(f"{field}.type_oid"), reader.int32(f"{field}.type_modifier")
    )


def _type(reader: Reader, in_stream: bool) -> pgoutput.Type:
    xid = _xid(reader, in_stream)
    oid = reader.uint32("oid")
    namespace = reader.string("namespace")
    return pgoutput.Type(xid, oid, namespace or "pg_catalog", reader.string("name"))


def _insert(reader: Reader, in_stream: bool) -> pgoutput.Insert:
    xid = _xid(reader, in_stream)
    relation_oid = reader.uint32("relation_oid")
    reader.letter("new.kind", "N")
    return pgoutput.Insert(xid, relation_oid, _tuple(reader, "new"))


def _update(reader: Reader, in_stream: bool) -> pgoutput.Update:
    xid = _xid(reader, in_stream)
    relation_oid = reader.uint32("relation_oid")
    old_kind, old = None, None
    kind = reader.letter("tuple.kind", "KON")
    if kind != "N":
        old_kind, old = OldTupleKind(kind), _tuple(reader, "old")
        reader.letter("new.kind", "N")
    return pgoutput.Update(xid, relation_oid, old_kind, old, _tuple(reader, "new"))


def _delete(reader: Reader, in_stream: bool) -> pgoutput.Delete:
    xid = _xid(reader, in_stream)
    relation_oid = reader.uint32("relation_oid")
    old_kind = OldTupleKind(reader.letter("old.kind", "KO"))
    return pgoutput.Delete(xid, relation_oid, old_kind, _tuple(reader, "old"))


def _tuple(reader: Reader, field: str) -> TupleData:
    count = _column_count(reader)
    kinds = bytearray()
    values: list[bytes | None] = []
    for i in range(count):
        begin = reader.position
        kind = reader.uint8(f"{field}[{i}].kind")
        if kind in (pgoutput.KIND_NULL, pgoutput.KIND_UNCHANGED):
            values.append(None)
        elif kind in (pgoutput.KIND_TEXT, pgoutput.KIND_BINARY):
            size = reader.length(f"{field}[{i}].length")
            value = reader.raw(size, f"{field}[{i}].value")
            if kind == pgoutput.KIND_TEXT:
                reader.check_text(reader.position - size, reader.position, f"{field}[{i}].value")
            values.append(value)
        else:
            raise reader.fail(f"{field}[{i}].kind", "one of n u t b", f"byte 0x{kind:02X}", begin)
        kinds.append(kind)
    return TupleData(bytes(kinds), tuple(values))


def read_tuple(data: bytes) -> TupleData:
    """Decodes a TupleData on its own, as stored in message rows. Raises WireError."""
    reader = Reader(data, message="TupleData")
    result = _tuple(reader, "tuple")
    reader.done()
    return result


def _truncate(reader: Reader, in_stream: bool) -> pgoutput.Truncate:
    xid = _xid(reader, in_stream)
    begin = reader.position
    count = reader.int32("relations")
    options = reader.flags("options", "bits 1 (CASCADE) and 2 (RESTART IDENTITY)", most=_TRUNCATE_OPTIONS)
    left = (reader.end - reader.position) // 4
    if not 1 <= count <= left:
        is_short = left < count <= _MOST_OIDS
        raise reader.fail(
            "relations", "a count of OIDs that fill the message, 1 or more", str(count), begin, short=is_short
        )
    return pgoutput.Truncate(xid, options, tuple(reader.uint32(f"relation_oids[{i}]") for i in range(count)))


def _stream_start(reader: Reader, _in_stream: bool) -> pgoutput.StreamStart:
    return pgoutput.StreamStart(reader.uint32("xid"), reader.flags("first_segment", "0 or 1") == 1)


def _stream_stop(_reader: Reader, _in_stream: bool) -> pgoutput.StreamStop:
    return pgoutput.StreamStop()


def _stream_commit(reader: Reader, in_stream: bool) -> pgoutput.StreamCommit:
    xid = reader.uint32("xid")
    commit = _commit(reader, in_stream)
    return pgoutput.StreamCommit(xid, commit.commit_lsn, commit.end_lsn, commit.commit_timestamp)


def _stream_abort(reader: Reader, _in_stream: bool) -> pgoutput.StreamAbort:
    xid, subxid = reader.uint32("xid"), reader.uint32("subxid")
    if reader.position == reader.end:
        return pgoutput.StreamAbort(xid, subxid, None, None)
    return pgoutput.StreamAbort(xid, subxid, reader.uint64("abort_lsn"), reader.int64("abort_timestamp"))


def _prepared(
    message: Callable[[int, int, int, int, str], PgoutputMessage], event: str, has_flags: bool = True
) -> Callable[[Reader, bool], PgoutputMessage]:
    """A reader for Begin Prepare, Prepare, Commit Prepared, or Stream Prepare, which have the same fields."""

    def read(reader: Reader, _in_stream: bool) -> PgoutputMessage:
        if has_flags:
            _no_flags(reader)
        lsn, end_lsn = reader.uint64(f"{event}_lsn"), reader.uint64("end_lsn")
        return message(lsn, end_lsn, reader.int64(f"{event}_timestamp"), reader.uint32("xid"), reader.string("gid"))

    return read


def _rollback_prepared(reader: Reader, _in_stream: bool) -> pgoutput.RollbackPrepared:
    _no_flags(reader)
    return pgoutput.RollbackPrepared(
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
    ord("b"): ("Begin Prepare", _prepared(pgoutput.BeginPrepare, "prepare", has_flags=False)),
    ord("P"): ("Prepare", _prepared(pgoutput.Prepare, "prepare")),
    ord("K"): ("Commit Prepared", _prepared(pgoutput.CommitPrepared, "commit")),
    ord("r"): ("Rollback Prepared", _rollback_prepared),
    ord("p"): ("Stream Prepare", _prepared(pgoutput.StreamPrepare, "prepare")),
}

MESSAGE_TAGS = frozenset(_READERS)
