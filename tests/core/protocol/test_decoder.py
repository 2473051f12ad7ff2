"""All message types: literal bytes checked by hand against the protocol chapter, round trips, errors, real archives."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.compression import decompress
from pgoutput_etl.errors import ArchiveError, WireError
from pgoutput_etl.protocol.decoder import MAX_COLUMNS, MESSAGE_TAGS, decode, message_end, read_tuple
from pgoutput_etl.protocol.framing import detect, frames
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
from tests.support.captures import DATA
from tests.support.encoder import encode, messages, tuples

LSN, END = 0x16_B374_D848, 0x16_B374_D878
LSN_HEX, END_HEX = "00000016 B374D848", "00000016 B374D878"
TIME, TIME_HEX = 0x0002_9E8D_6080_0000, "00029E8D 60800000"
BEFORE_2000, BEFORE_2000_HEX = -1, "FFFFFFFF FFFFFFFF"
XID, XID_HEX = 0xFFFF_FFFE, "FFFFFFFE"  # an xid and an OID past 2^31: they are unsigned
OID, OID_HEX = 0x8000_4001, "80004001"

ROW = TupleData(b"tnub", (b"\xc3\xa9", None, None, b"\xff\x00"))
ROW_HEX = "0004 74 00000002 C3A9 6E 75 62 00000002 FF00"
KEY, KEY_HEX = TupleData(b"tn", (b"7", None)), "0002 74 00000001 37 6E"
EMPTY, EMPTY_HEX = TupleData(b"t", (b"",)), "0001 74 00000000"

RELATION_HEX = f"""{OID_HEX} 7075626C696300 7000 64 0002
    01 696400 00000017 FFFFFFFF
    00 7100 000006A4 000A0006"""
RELATION = (
    OID,
    "public",
    "p",
    ReplicaIdentity.DEFAULT,
    (RelationColumn(True, "id", 23, -1), RelationColumn(False, "q", 1700, 0xA0006)),
)

LITERALS: list[tuple[str, PgoutputMessage, bool]] = [
    (f"42 {LSN_HEX} {TIME_HEX} {XID_HEX}", Begin(LSN, TIME, XID), False),
    (f"4D 01 {LSN_HEX} 6100 00000003 620063", Message(None, True, LSN, "a", b"b\0c"), False),
    (f"4D 00 {LSN_HEX} 00 00000000", Message(None, False, LSN, "", b""), False),
    (f"4D {XID_HEX} 01 {LSN_HEX} 6100 00000001 FF", Message(XID, True, LSN, "a", b"\xff"), True),
    (f"43 00 {LSN_HEX} {END_HEX} {BEFORE_2000_HEX}", Commit(LSN, END, BEFORE_2000), False),
    (f"4F {LSN_HEX} 6F7200", Origin(LSN, "or"), False),
    (f"4F {LSN_HEX} 6F7200", Origin(LSN, "or"), True),  # no xid, not even in a segment
    (f"52 {RELATION_HEX}", Relation(None, *RELATION), False),
    (f"52 {XID_HEX} {RELATION_HEX}", Relation(XID, *RELATION), True),
    (
        "52 00000001 00 7000 66 0000",  # an empty namespace is pg_catalog
        Relation(None, 1, "pg_catalog", "p", ReplicaIdentity.FULL, ()),
        False,
    ),
    (f"59 {OID_HEX} 7300 C3A900", Type(None, OID, "s", "é"), False),
    (f"59 {XID_HEX} {OID_HEX} 00 6D00", Type(XID, OID, "pg_catalog", "m"), True),
    (f"49 {OID_HEX} 4E {ROW_HEX}", Insert(None, OID, ROW), False),
    (f"49 {XID_HEX} {OID_HEX} 4E 0000", Insert(XID, OID, TupleData(b"", ())), True),
    (f"55 {OID_HEX} 4E {ROW_HEX}", Update(None, OID, None, None, ROW), False),
    (f"55 {OID_HEX} 4B {KEY_HEX} 4E {ROW_HEX}", Update(None, OID, OldTupleKind.KEY, KEY, ROW), False),
    (f"55 {XID_HEX} {OID_HEX} 4F {EMPTY_HEX} 4E {ROW_HEX}", Update(XID, OID, OldTupleKind.OLD, EMPTY, ROW), True),
    (f"44 {OID_HEX} 4B {KEY_HEX}", Delete(None, OID, OldTupleKind.KEY, KEY), False),
    (f"44 {XID_HEX} {OID_HEX} 4F {EMPTY_HEX}", Delete(XID, OID, OldTupleKind.OLD, EMPTY), True),
    (f"54 00000002 01 {OID_HEX} 00000007", Truncate(None, TruncateOption.CASCADE, (OID, 7)), False),
    (f"54 {XID_HEX} 00000001 02 {OID_HEX}", Truncate(XID, TruncateOption.RESTART_IDENTITY, (OID,)), True),
    (f"53 {XID_HEX} 01", StreamStart(XID, True), False),
    (f"53 {XID_HEX} 00", StreamStart(XID, False), False),
    ("45", StreamStop(), True),
    (f"63 {XID_HEX} 00 {LSN_HEX} {END_HEX} {TIME_HEX}", StreamCommit(XID, LSN, END, TIME), False),
    (f"41 {XID_HEX} 00000007", StreamAbort(XID, 7, None, None), False),
    (f"41 {XID_HEX} 00000007 {LSN_HEX} {TIME_HEX}", StreamAbort(XID, 7, LSN, TIME), False),
    (f"62 {LSN_HEX} {END_HEX} {TIME_HEX} {XID_HEX} 6700", BeginPrepare(LSN, END, TIME, XID, "g"), False),
    (f"50 00 {LSN_HEX} {END_HEX} {TIME_HEX} {XID_HEX} 6700", Prepare(LSN, END, TIME, XID, "g"), False),
    (f"4B 00 {LSN_HEX} {END_HEX} {TIME_HEX} {XID_HEX} 6700", CommitPrepared(LSN, END, TIME, XID, "g"), False),
    (
        f"72 00 {LSN_HEX} {END_HEX} {TIME_HEX} {BEFORE_2000_HEX} {XID_HEX} 6700",
        RollbackPrepared(LSN, END, TIME, BEFORE_2000, XID, "g"),
        False,
    ),
    (f"70 00 {LSN_HEX} {END_HEX} {TIME_HEX} {XID_HEX} 6700", StreamPrepare(LSN, END, TIME, XID, "g"), False),
]
LITERAL_IDS = [f"{type(message).__name__}-{in_stream}" for _, message, in_stream in LITERALS]


def is_short_abort(data: bytes) -> bool:
    """The first nine bytes of a Stream Abort of protocol 4 are a whole one of protocol 2."""
    return data[:1] == b"A" and len(data) == 9


def test_literals_cover_every_message() -> None:
    assert {bytes.fromhex(text)[0] for text, _, _ in LITERALS} == set(b"BMCORYIUDTSEcAbPKrp") == MESSAGE_TAGS


@pytest.mark.parametrize(("text", "message", "in_stream"), LITERALS, ids=LITERAL_IDS)
def test_literal(text: str, message: PgoutputMessage, in_stream: bool) -> None:
    data = bytes.fromhex(text)
    assert decode(data, in_stream) == message
    assert encode(message) == data


def assert_nothing_but_the_whole(data: bytes, in_stream: bool) -> None:
    for size in range(len(data)):
        if not is_short_abort(data[:size]):
            with pytest.raises(WireError):
                decode(data[:size], in_stream)
    for extra in (b"\0", b"\n", b"N"):
        with pytest.raises(WireError):
            decode(data + extra, in_stream)


@pytest.mark.parametrize(("text", "_message", "in_stream"), LITERALS, ids=LITERAL_IDS)
def test_prefixes_and_bytes_left_over_are_refused(text: str, _message: PgoutputMessage, in_stream: bool) -> None:
    assert_nothing_but_the_whole(bytes.fromhex(text), in_stream)


@given(messages)
def test_decode_undoes_encode(message_and_segment: tuple[PgoutputMessage, bool]) -> None:
    message, in_stream = message_and_segment
    data = encode(message)
    assert decode(data, in_stream) == message
    assert_nothing_but_the_whole(data, in_stream)


@given(messages, messages)
def test_message_end_is_found_without_a_length(
    first: tuple[PgoutputMessage, bool], then: tuple[PgoutputMessage, bool]
) -> None:
    message, in_stream = first
    data = encode(message)
    start = 3
    assert message_end(b"???" + data, start, in_stream) == start + len(data)
    assert message_end(b"???" + data + b"\n" + encode(then[0]), start, in_stream) == start + len(data)


@given(tuples)
def test_a_tuple_alone(row: TupleData) -> None:
    assert read_tuple(row.to_bytes()) == row
    assert row.to_bytes() == encode(Insert(None, 0, row))[6:]
    assert row.unchanged() == tuple(i for i in range(len(row.kinds)) if row.kinds[i : i + 1] == b"u")
    with pytest.raises(WireError, match="left over"):
        read_tuple(row.to_bytes() + b"n")


PREPARED_FIXED = f"{LSN_HEX} {END_HEX} {TIME_HEX} {XID_HEX}"
REFUSED = [
    ("", False, 0, "Message", "tag", "expected 1 bytes, found 0"),
    ("7A", False, 0, "Message", "tag", "found byte 0x7A"),
    ("0A", False, 0, "Message", "tag", "found byte 0x0A"),
    (f"42 {LSN_HEX} {TIME_HEX} FFFF", False, 17, "Begin", "xid", "expected 4 bytes, found 2"),
    (f"43 01 {LSN_HEX} {END_HEX} {TIME_HEX}", False, 1, "Commit", "flags", "found 1"),
    (f"63 {XID_HEX} 02 {LSN_HEX} {END_HEX} {TIME_HEX}", False, 5, "Stream Commit", "flags", "found 2"),
    (f"50 01 {PREPARED_FIXED} 6700", False, 1, "Prepare", "flags", "found 1"),
    (f"70 01 {PREPARED_FIXED} 6700", False, 1, "Stream Prepare", "flags", "found 1"),
    (f"4B 01 {PREPARED_FIXED} 6700", False, 1, "Commit Prepared", "flags", "found 1"),
    (f"72 80 {LSN_HEX} {PREPARED_FIXED} 6700", False, 1, "Rollback Prepared", "flags", "found 128"),
    (f"62 {PREPARED_FIXED} 6767", False, 29, "Begin Prepare", "gid", "NUL byte"),
    (f"53 {XID_HEX} 02", False, 5, "Stream Start", "first_segment", "found 2"),
    (f"41 {XID_HEX} 00000007 {LSN_HEX}", False, 17, "Stream Abort", "abort_timestamp", "found 0"),
    (f"4D 02 {LSN_HEX} 00 00000000", False, 1, "Message", "flags", "found 2"),
    (f"4D 01 {LSN_HEX} 00 FFFFFFFF", False, 11, "Message", "length", "found -1"),
    (f"4D 01 {LSN_HEX} 00 7FFFFFFF 41", False, 15, "Message", "content", "expected 2147483647 bytes, found 1"),
    ("52 00000001 7300 7000 78 0000", False, 9, "Relation", "replica_identity", "found byte 0x78"),
    ("52 00000001 7300 7000 FF 0000", False, 9, "Relation", "replica_identity", "found byte 0xFF"),
    ("52 00000001 7300 7000 64 0681", False, 10, "Relation", "columns", "found 1665"),
    ("52 00000001 7300 7000 64 0001", False, 12, "Relation", "columns[0].flags", "found 0"),
    ("52 00000001 7300 7000 64 0001 02 6100 00000017 FFFFFFFF", False, 12, "Relation", "columns[0].flags", "found 2"),
    ("52 00000001 7300 7000 64 0001 00 61", False, 13, "Relation", "columns[0].name", "NUL byte"),
    ("49 00000001 4B 0000", False, 5, "Insert", "new.kind", "found byte 0x4B"),
    ("49 00000001 4E FFFF", False, 6, "Insert", "columns", "found 65535"),
    ("49 00000001 4E 0002 6E 78", False, 9, "Insert", "new[1].kind", "found byte 0x78"),
    ("49 00000001 4E 0002 6E", False, 9, "Insert", "new[1].kind", "found 0"),
    ("49 00000001 4E 0001 74 FFFFFFFF", False, 9, "Insert", "new[0].length", "found -1"),
    ("49 00000001 4E 0001 62 80000000", False, 9, "Insert", "new[0].length", "found -2147483648"),
    ("49 00000001 4E 0001 74 7FFFFFFF 61", False, 13, "Insert", "new[0].value", "expected 2147483647 bytes, found 1"),
    ("49 FFFFFFFE 00000001 58", True, 9, "Insert", "new.kind", "found byte 0x58"),
    ("55 00000001 58", False, 5, "Update", "tuple.kind", "one of K O N, found byte 0x58"),
    ("55 00000001 4B 0000 4F 0000", False, 8, "Update", "new.kind", "found byte 0x4F"),
    ("55 00000001 4B 0001 78", False, 8, "Update", "old[0].kind", "found byte 0x78"),
    ("44 00000001 4E 0000", False, 5, "Delete", "old.kind", "one of K O, found byte 0x4E"),
    ("54 00000001 04 00000001", False, 5, "Truncate", "options", "found 4"),
    ("54 FFFFFFFF 00 00000001", False, 1, "Truncate", "relations", "found -1"),
    ("54 7FFFFFFF 00 00000001", False, 1, "Truncate", "relations", "found 2147483647"),
    ("54 00000002 00 00000001", False, 1, "Truncate", "relations", "found 2"),
    ("45 00", True, 1, "Stream Stop", "end", "1 bytes left over"),
]


@pytest.mark.parametrize(("text", "in_stream", "offset", "message", "field", "words"), REFUSED)
def test_refusal_names_offset_message_and_field(
    text: str, in_stream: bool, offset: int, message: str, field: str, words: str
) -> None:
    with pytest.raises(WireError) as raised:
        decode(bytes.fromhex(text), in_stream)
    assert str(raised.value).startswith(f"{message}.{field} at byte {offset}: expected ")
    assert words in str(raised.value)


NOT_UTF8 = [
    (f"62 {PREPARED_FIXED} 67FF00", False, 30, "Begin Prepare", "gid", "UTF-8"),
    (f"4F {LSN_HEX} 6F80 00", False, 10, "Origin", "name", "UTF-8"),
    ("52 00000001 FF00 7000 64 0000", False, 5, "Relation", "namespace", "UTF-8"),
    ("52 00000001 7300 70C300 64 0000", False, 8, "Relation", "name", "UTF-8"),
    ("59 00000001 7300 FE00", False, 7, "Type", "name", "UTF-8"),
    ("49 00000001 4E 0001 74 00000003 6162ED", False, 15, "Insert", "new[0].value", "UTF-8"),
]


@pytest.mark.parametrize(("text", "in_stream", "offset", "message", "field", "words"), NOT_UTF8)
def test_text_that_is_not_utf8_is_refused_only_where_bytes_may_be_no_message(
    text: str, in_stream: bool, offset: int, message: str, field: str, words: str
) -> None:
    with pytest.raises(WireError) as raised:
        decode(bytes.fromhex(text), in_stream, only_utf8=True)
    assert str(raised.value).startswith(f"{message}.{field} at byte {offset}: expected {words} text, ")
    assert encode(decode(bytes.fromhex(text), in_stream)) == bytes.fromhex(text)


def test_as_many_columns_as_a_tuple_can_have() -> None:
    widest = TupleData(b"n" * MAX_COLUMNS, (None,) * MAX_COLUMNS)
    assert decode(encode(Insert(None, 1, widest)), in_stream=False) == Insert(None, 1, widest)


def test_binary_cells_are_bytes_and_not_text() -> None:
    assert read_tuple(bytes.fromhex("0001 62 00000002 C328")).values == (b"\xc3\x28",)


def refusal(data: bytes, in_stream: bool) -> WireError | None:
    try:
        decode(data, in_stream)
    except WireError as error:
        return error
    return None


@given(st.data(), st.booleans())
def test_no_refusal_shows_a_cell(data: st.DataObject, in_stream: bool) -> None:
    cell = "hunter2-é".encode()
    row = TupleData(b"tb", (cell, cell))
    whole = encode(Update(None, 1, OldTupleKind.OLD, row, row))
    damaged = bytearray(whole[: data.draw(st.integers(1, len(whole)))])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    error = refusal(bytes(damaged), in_stream)
    if error is not None:
        shown = "".join(traceback.format_exception_only(error)) + repr(error)
        assert not any(part in shown for part in ("hunter", "unter2", "é"))
        assert error.__suppress_context__ or error.__context__ is None


@given(st.sampled_from(sorted(MESSAGE_TAGS)) | st.integers(0, 255), st.binary(max_size=60), st.booleans())
def test_any_bytes_are_a_message_or_a_wire_error(tag: int, rest: bytes, in_stream: bool) -> None:
    data = bytes([tag]) + rest
    error = refusal(data, in_stream)
    if error is not None:
        assert 0 <= error.offset <= len(data)
    elif b"pg_catalog\0" not in data:  # that, spelled out, means the same as its empty short form
        assert encode(decode(data, in_stream)) == data


ARCHIVES = sorted(p for p in DATA.rglob("*") if p.suffix == ".gz")


def read_archive(path: Path, begins_in_stream: bool) -> list[tuple[bytes, PgoutputMessage]]:
    data = decompress(path.read_bytes(), path.name)
    in_stream = begins_in_stream
    found = []
    for frame in frames(data, detect(data), begins_in_stream):
        raw = data[frame.start : frame.end]
        message = decode(raw, in_stream)
        if isinstance(message, StreamStart | StreamStop):
            in_stream = isinstance(message, StreamStart)
        found.append((raw, message))
    return found


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda p: str(p.relative_to(DATA)))
def test_a_real_archive_decodes_and_encodes_to_the_same_bytes(path: Path) -> None:
    try:
        found = read_archive(path, begins_in_stream=False)
    except ArchiveError:  # one that begins inside a stream segment
        found = read_archive(path, begins_in_stream=True)
    assert found
    assert [raw for raw, message in found if encode(message) != raw] == []


def test_the_real_archives_are_there() -> None:
    kinds = {"".join(p.suffixes) for p in ARCHIVES}
    assert kinds == {".copydata.gz", ".bin.gz", ".pgcopy.gz"}
