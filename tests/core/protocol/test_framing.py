"""Splitting landed files into messages: round trips, detection, and errors with their offsets."""

from __future__ import annotations

import random
import re
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import pack

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.compression import Content, decompress, read_content
from pgoutput_etl.errors import FramingError
from pgoutput_etl.protocol.framing import Frame, Framing, detect, first_framing, frame_at, frames, may_become_frame
from pgoutput_etl.protocol.messages import (
    Begin,
    Commit,
    Insert,
    PgoutputMessage,
    Prepare,
    StreamAbort,
    StreamStart,
    StreamStop,
    TupleData,
)
from tests.support.captures import DATA
from tests.support.encoder import (
    Row,
    archives,
    copydata,
    encode,
    length_prefixed,
    outside_segments,
    pgcopy,
    recvlogical,
)

CODECS = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4", ".bz2": "bz2"}
SUFFIXES = sorted(CODECS)
LSN = 0x16_B374_D848


def compress(data: bytes, suffix: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, CODECS[suffix]) as stream:
        stream.write(data)
    whole: bytes = sink.getvalue().to_pybytes()
    return whole


def rows(messages: Sequence[bytes]) -> list[Row]:
    return [Row(LSN + number, 700 + number, message) for number, message in enumerate(messages)]


LAND: dict[Framing, Callable[[Sequence[bytes]], bytes]] = {
    Framing.RECVLOGICAL: recvlogical,
    Framing.PGCOPY: lambda messages: pgcopy(rows(messages)),
    Framing.COPYDATA: lambda messages: copydata(rows(messages), keepalives=(0, 2, len(messages))),
    Framing.LENGTH_PREFIXED: length_prefixed,
}
FRAMINGS = list(LAND)
HAS_LSN = (Framing.PGCOPY, Framing.COPYDATA)

ROW = TupleData(b"tn", (b"line\nline", None))
BEGIN, INSERT = encode(Begin(LSN, 0, 700)), encode(Insert(None, 16384, ROW))
SEGMENT = [encode(StreamStart(700, True)), encode(Insert(700, 16384, ROW)), encode(StreamStop())]
ABORT, LONG_ABORT = encode(StreamAbort(700, 701, None, None)), encode(StreamAbort(700, 701, LSN, 0))


def cut(data: bytes, framing: Framing, begins_in_stream: bool = False) -> list[bytes]:
    return [data[f.start : f.end] for f in frames(data, framing, begins_in_stream)]


def refusal(data: bytes, framing: Framing) -> str:
    with pytest.raises(FramingError) as raised:
        cut(data, framing)
    return str(raised.value)


# Round trips


@pytest.mark.parametrize("framing", FRAMINGS)
@given(archives, st.sampled_from(["", *SUFFIXES]), st.data())
def test_what_lands_comes_back(
    framing: Framing, archive: list[PgoutputMessage], suffix: str, data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, len(archive)))
    begins_in_stream = in_segment(archive[:begin])
    messages = [encode(m) for m in archive[begin:]]
    file = LAND[framing](messages)
    landed = compress(file, suffix) if suffix else file
    content = decompress(landed, f"s3a://bucket/shop/000.wal{suffix}")
    assert content == file
    found = list(frames(content, framing, begins_in_stream))
    assert [content[f.start : f.end] for f in found] == messages
    assert [f.lsn for f in found] == [LSN + i if framing in HAS_LSN else None for i in range(len(messages))]
    if messages:
        assert detect(content) is framing


def in_segment(messages: Sequence[PgoutputMessage]) -> bool:
    marks = [m for m in messages if isinstance(m, StreamStart | StreamStop)]
    return bool(marks) and isinstance(marks[-1], StreamStart)


def test_offsets_are_where_frames_begin() -> None:
    messages = [BEGIN, INSERT]
    second = len(BEGIN) + 1
    assert list(frames(recvlogical(messages), Framing.RECVLOGICAL)) == [
        Frame(0, None, 0, len(BEGIN), len(BEGIN) + 1),
        Frame(second, None, second, second + len(INSERT), second + len(INSERT) + 1),
    ]
    assert [f.offset for f in frames(length_prefixed(messages), Framing.LENGTH_PREFIXED)] == [0, 4 + len(BEGIN)]
    assert [f.offset for f in frames(pgcopy(rows(messages)), Framing.PGCOPY)] == [19, 19 + 26 + len(BEGIN)]
    keepalive = 5 + 18
    with_keepalive = copydata(rows(messages), keepalives=[1])
    offsets = [f.offset for f in frames(with_keepalive, Framing.COPYDATA)]
    assert offsets == [0, 5 + 25 + len(BEGIN) + keepalive]


def test_the_bytes_of_copydata() -> None:
    keepalive = bytes.fromhex("64 00000016 6B 00000016B374D848 0000000000000000 00")
    xlogdata = bytes.fromhex("64 0000001E 77 00000016B374D848 00000016B374D878 0000000000000000 45")
    assert list(frames(keepalive + xlogdata, Framing.COPYDATA)) == [Frame(23, LSN, 53, 54, 54)]
    assert detect(keepalive) is Framing.COPYDATA


def test_the_bytes_of_pgcopy() -> None:
    head = bytes.fromhex("5047434F50590AFF0D0A00 00000000 00000000")
    row = bytes.fromhex("0003 00000008 00000016B374D848 00000004 FFFFFFFE 00000001 45")
    assert list(frames(head + row + b"\xff\xff", Framing.PGCOPY)) == [Frame(19, LSN, 45, 46, 46)]
    assert list(frames(head + b"\xff\xff", Framing.PGCOPY)) == []
    assert cut(pgcopy(rows([BEGIN]), flags=0x8001, extension=b"later"), Framing.PGCOPY) == [BEGIN]


@pytest.mark.parametrize("framing", FRAMINGS)
def test_an_empty_file_has_no_messages(framing: Framing) -> None:
    if framing is not Framing.PGCOPY:  # which has a header and a trailer
        assert cut(b"", framing) == []
    assert cut(b"", detect(b"")) == []


# Stream segments in recvlogical


def test_a_file_that_begins_inside_a_segment() -> None:
    file = recvlogical([*SEGMENT[1:], BEGIN, INSERT])
    assert cut(file, Framing.RECVLOGICAL, begins_in_stream=True) == [*SEGMENT[1:], BEGIN, INSERT]
    assert "(Insert.new.kind)" in refusal(file, Framing.RECVLOGICAL)


def test_a_segment_cut_off_by_a_new_connection() -> None:
    messages = [*SEGMENT[:2], BEGIN, INSERT, *SEGMENT, *SEGMENT[:2], LONG_ABORT, *SEGMENT[:2], *SEGMENT]
    assert cut(recvlogical(messages), Framing.RECVLOGICAL) == messages


@given(outside_segments.filter(lambda m: not isinstance(m, Commit | Prepare)))
def test_what_the_server_begins_anew_with_ends_a_segment(message: PgoutputMessage) -> None:
    messages = [*SEGMENT[:2], encode(message), INSERT]
    assert cut(recvlogical(messages), Framing.RECVLOGICAL) == messages


@pytest.mark.parametrize("after", [[], [BEGIN], [ABORT], [LONG_ABORT]])
def test_either_form_of_stream_abort(after: list[bytes]) -> None:
    messages = [ABORT, *after, LONG_ABORT, *after]
    assert cut(recvlogical(messages), Framing.RECVLOGICAL) == messages


# Compression


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_members_one_after_another_are_one_file(suffix: str) -> None:
    parts = [b"a" * 100_000, b"", b"b" * 7]
    whole = b"".join(compress(part, suffix) for part in parts)
    assert decompress(whole, f"000.copydata{suffix.upper()}") == b"".join(parts)
    assert decompress(compress(b"", suffix), f"0{suffix}") == b""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_compressed_file_cut_off_anywhere_is_refused(suffix: str) -> None:
    first, second = compress(b"first" * 9, suffix), compress(b"second" * 9, suffix)
    for size in range(len(first + second)):
        if size != len(first):  # where a whole file ends
            with pytest.raises(FramingError, match=rf"offset 0: expected .*{CODECS[suffix]} data"):
                decompress((first + second)[:size], f"0{suffix}")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_of_a_compressed_file_cut_off_what_is_there_can_be_read(suffix: str) -> None:
    """At least all written bytes but a kilobyte and one block or member of the format."""
    parts = [random.Random(n).randbytes(100_000) for n in range(20)]
    whole, file = b"".join(parts), b"".join(compress(part, suffix) for part in parts)
    for size in range(0, len(file), 199_999):
        content = read_content(file[:size], f"0{suffix}")
        assert content.cut_off is not None
        assert whole.startswith(content.data)
        assert len(content.data) > size - 300_000
    assert read_content(file, f"0{suffix}") == Content(whole)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("named", ["", ".bin", *SUFFIXES])
def test_bytes_tell_the_compression_and_a_name_that_does_not_is_remarked(suffix: str, named: str) -> None:
    file = copydata(rows([BEGIN] * 50))
    remark = None if named == suffix else f"contains {CODECS[suffix]} data, which its name doesn't indicate"
    assert read_content(compress(file, suffix), f"0{named}") == Content(file, None, remark)
    if named in SUFFIXES:
        remark = f"named {named}, but not compressed"
        assert read_content(file, f"0{named}") == Content(file, None, remark)
    assert read_content(b"", f"0{named}").data == b""


@pytest.mark.parametrize("framing", FRAMINGS)
def test_no_framing_looks_compressed(framing: Framing) -> None:
    """Not even a Begin whose LSN spells bzip2's first bytes."""
    lsn = int.from_bytes(b"Zh9AY&SY", "big")
    for messages in ([encode(Begin(lsn, 0, 1))], [BEGIN], SEGMENT):
        file = LAND[framing](messages)
        assert read_content(file, "000") == Content(file)


def test_a_skippable_frame_may_come_first() -> None:
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0size"
    for suffix in (".zst", ".lz4"):
        assert decompress(skippable + compress(b"data", suffix), f"0{suffix}") == b"data"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_bytes_left_over_are_refused(suffix: str) -> None:
    with pytest.raises(FramingError, match=f"bytes of {CODECS[suffix]} data, found"):
        decompress(compress(copydata(rows([BEGIN] * 50)), suffix) + b"tail", f"0{suffix}")


CHECKSUMMED = {  # by each format's own command line tool, from "pgoutput\n" ten times
    ".gz": "1f8b08000000000002032b48cf2f2d29282de12aa0360300d0d0e4a35a000000",
    ".zst": "28b52ffd245a8500004870676f75747075740a01004eb41c0174bb796c",
    ".lz4": "04224d186440a7130000009f70676f75747075740a09003950747075740a00000000c2361f88",
    ".bz2": "425a6839314159265359d4d4ce16000013c18000100080c600200020a54640c035353131313c4d4f27c5dc914e14243535338580",
}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_flipped_bit_is_refused(suffix: str) -> None:
    data = bytearray.fromhex(CHECKSUMMED[suffix])
    assert decompress(bytes(data), f"0{suffix}") == b"pgoutput\n" * 10
    data[-12] ^= 1
    with pytest.raises(FramingError, match=f"bytes of {CODECS[suffix]} data, found") as raised:
        decompress(bytes(data), f"0{suffix}")
    assert not raised.value.short, "more of it would not mend it"


# Detection


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("begin", [0, 1, 2])
def test_detection_from_either_side_of_a_segment(framing: Framing, begin: int) -> None:
    assert detect(LAND[framing]([*SEGMENT, ABORT, BEGIN][begin:] * 9)) is framing
    assert detect(LAND[framing](SEGMENT[begin : begin + 1])) is framing


def test_a_framing_is_known_from_its_first_message_however_the_file_goes_on() -> None:
    for framing, land in LAND.items():
        torn = land([BEGIN, INSERT, BEGIN])[:-5]
        assert detect(torn) is framing
        assert "before the end of" in refusal(torn, framing)


@pytest.mark.parametrize("path", sorted(DATA.rglob("00*.copydata.gz")), ids=lambda p: str(p.relative_to(DATA)))
def test_a_real_archive_landed_otherwise(path: Path) -> None:
    data = decompress(path.read_bytes(), path.name)
    assert detect(data) is Framing.COPYDATA
    messages = cut(data, Framing.COPYDATA)
    for begin in range(0, len(messages), 1 + len(messages) // 50):
        for framing, land in LAND.items():
            assert detect(land(messages[begin : begin + 20])) is framing


def test_what_is_no_archive_is_refused_with_what_to_do() -> None:
    with pytest.raises(FramingError) as raised:
        detect(b"LOG:  starting PostgreSQL 18.0\n")
    assert str(raised.value) == (
        "offset 0: expected one of the known framings, found none that fits: this is no archive of pgoutput, or its "
        "beginning is missing. Move the file out of the landing folder"
    )


@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_file_of_less_than_a_message_may_be_told_later(framing: Framing) -> None:
    """COPY's signature or a keepalive decides earlier."""
    file = LAND[framing]([INSERT])
    told = {Framing.PGCOPY: 11, Framing.COPYDATA: 5 + 18}.get(framing, len(file))
    for size in range(1, told):
        with pytest.raises(FramingError, match=r"offset 0: .*, found less than a message: fetch") as raised:
            detect(file[:size])
        assert raised.value.short
    assert detect(file[:told]) is framing


@pytest.mark.parametrize("framing", FRAMINGS)
@given(archives, st.data())
def test_every_first_part_of_a_frame_may_become_one(
    framing: Framing, archive: list[PgoutputMessage], data: st.DataObject
) -> None:
    file = LAND[framing]([encode(message) for message in archive])
    found = list(frames(file, framing))
    for frame in found:
        size = data.draw(st.integers(0, frame.next - frame.offset - 1))
        first = file[frame.offset : frame.offset + size]
        assert may_become_frame(first, framing, begins_file=False), first
        whole = file[frame.offset : frame.next]
        assert framing is Framing.RECVLOGICAL or not may_become_frame(whole, framing, begins_file=False), whole


@pytest.mark.parametrize("framing", FRAMINGS)
@given(archives, st.data())
def test_the_first_part_of_a_file_may_become_a_frame(
    framing: Framing, archive: list[PgoutputMessage], data: st.DataObject
) -> None:
    """COPY's header and a keepalive come before the first message."""
    file = LAND[framing]([encode(message) for message in archive])
    first = next((frame.offset for frame in frames(file, framing)), max(0, len(file) - 1))
    size = data.draw(st.integers(0, first if framing is Framing.PGCOPY else min(first, 22)))
    assert may_become_frame(file[:size], framing)


IMPOSSIBLE = {
    "no type of message": (Framing.RECVLOGICAL, b"\xff"),
    "a flag that is none": (Framing.RECVLOGICAL, b"C\7"),
    "no new line behind a message": (Framing.RECVLOGICAL, BEGIN + b"x"),
    "a whole message": (Framing.RECVLOGICAL, BEGIN + b"\n"),
    "no signature": (Framing.PGCOPY, b"PGCOPX"),
    "other fields": (Framing.PGCOPY, b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\0\4"),
    "another length of the LSN": (Framing.PGCOPY, b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\0\3\0\0\0\7"),
    "no CopyData": (Framing.COPYDATA, b"e"),
    "neither XLogData nor a keepalive": (Framing.COPYDATA, b"d\0\0\0\x40r"),
    "a keepalive that is too long": (Framing.COPYDATA, b"d\0\0\0\x40k"),
    "XLogData without a message": (Framing.COPYDATA, b"d\0\0\0\x1dw"),
    "a message of two gigabytes": (Framing.COPYDATA, b"d\x7f\xff\xff\xffw"),
    "a negative length": (Framing.LENGTH_PREFIXED, b"\xff"),
    "a length of more than a message has": (Framing.LENGTH_PREFIXED, b"\x41"),
    "a length of nothing": (Framing.LENGTH_PREFIXED, bytes(4)),
    "another type of message": (Framing.LENGTH_PREFIXED, b"\0\0\0\x40z"),
    "a message that is shorter than its frame": (Framing.LENGTH_PREFIXED, b"\0\0\0\x40" + BEGIN),
    "a Stream Abort of another length": (Framing.LENGTH_PREFIXED, b"\0\0\0\x0aA" + bytes(8)),
}


@pytest.mark.parametrize(("framing", "data"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_bytes_that_no_server_sends_become_no_frame(framing: Framing, data: bytes) -> None:
    assert not may_become_frame(data, framing)


def test_a_whole_stream_abort_may_be_the_first_part_of_a_longer_one() -> None:
    assert may_become_frame(LONG_ABORT[:9], Framing.RECVLOGICAL)
    assert may_become_frame(length_prefixed([LONG_ABORT])[:13], Framing.LENGTH_PREFIXED)


@given(st.binary(min_size=1, max_size=100))
def test_what_can_not_become_a_frame_is_never_the_first_part_of_one(data: bytes) -> None:
    """Bytes that are invalid for another reason than a missing rest stay invalid whatever follows."""
    for framing in (Framing.RECVLOGICAL, Framing.COPYDATA, Framing.LENGTH_PREFIXED):
        try:
            frame_at(data, framing, 0, False)
        except FramingError as error:
            if may_become_frame(data, framing):
                assert first_framing(data) is not None
            elif not error.short:
                with pytest.raises(FramingError):
                    frame_at(data + bytes(100), framing, 0, False)


def test_length_prefixed_is_known_by_its_message_types() -> None:
    with pytest.raises(FramingError, match="found none that fits"):
        detect(length_prefixed([b"zzz", b"zzz"]))


@given(st.binary(max_size=200))
def test_any_bytes_are_detected_or_refused(data: bytes) -> None:
    for framing in FRAMINGS:
        try:
            found = cut(data, framing)
        except FramingError:
            continue
        assert all(found)
        if found and all(message[0] in b"BE" for message in found):
            assert detect(data) is framing


def test_auto_is_for_detect() -> None:
    with pytest.raises(ValueError, match="detect"):
        list(frames(b"x", Framing.AUTO))


# Refusals


@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_file_cut_off_inside_a_message_is_refused(framing: Framing) -> None:
    """Whole messages come first, then the error; a file may end only between two frames (pgcopy has a trailer)."""
    messages = [BEGIN, LONG_ABORT, INSERT]
    file = LAND[framing](messages)
    found = list(frames(file, framing))
    whole_at = [frame.end + (framing is Framing.RECVLOGICAL) for frame in found]
    ends = set() if framing is Framing.PGCOPY else {*whole_at, *(frame.offset for frame in found)}
    for size in set(range(1, len(file))) - ends:
        before, error = cut_until_refused(file[:size], framing)
        assert before == messages[: sum(end <= size for end in whole_at)]
        assert re.match(r"offset \d+: expected .*, found .*", str(error))


def cut_until_refused(data: bytes, framing: Framing) -> tuple[list[bytes], FramingError | None]:
    found = []
    try:
        for frame in frames(data, framing):
            found.append(data[frame.start : frame.end])  # noqa: PERF401 - what came before the refusal counts
    except FramingError as error:
        return found, error
    return found, None


HEAD = b"PGCOPY\n\xff\r\n\0"
LSN_XID = pack(">hiQi", 3, 8, LSN, 4) + b"\0\0\0\1"
MOST = 2**31 - 1
REFUSED: dict[Framing, list[tuple[bytes, str]]] = {
    Framing.RECVLOGICAL: [
        (recvlogical([BEGIN, b"X"]), "offset 22: expected a pgoutput message type, found byte 0x58"),
        (BEGIN, "offset 21: expected a newline after the message, found the end of"),
        (BEGIN + BEGIN, "offset 21: expected a newline after the message, found byte 0x42"),
        (recvlogical([BEGIN, INSERT])[:-3], "offset 35: expected 9 bytes, found 8 before the end"),
    ],
    Framing.LENGTH_PREFIXED: [
        (pack(">i", 0), "offset 0: expected a length of message of 1 or more, found 0"),
        (pack(">i", -1) + b"B", "offset 0: expected a length of message of 1 or more, found -1"),
        (pack(">i", MOST) + b"B", "offset 4: expected 2147483647 bytes of message, found 1 before"),
        (length_prefixed([BEGIN]) + b"\0", "offset 25: expected 4 bytes of a message's length, found 1"),
    ],
    Framing.COPYDATA: [
        (b"H\0\0\0\4", "offset 0: expected 'd' (CopyData), found byte 0x48"),
        (b"d\0\0", "offset 0: expected 5 bytes of CopyData, found 3 before the end of the file"),
        (pack(">ci", b"d", 4), "offset 1: expected a length of CopyData of 5 or more, found 4"),
        (pack(">ci", b"d", -5), "offset 1: expected a length of CopyData of 5 or more, found -5"),
        (pack(">ci", b"d", MOST) + b"w", "offset 5: expected 2147483643 bytes of CopyData, found 1 before"),
        (copydata([Row(LSN, 1, b"")]), "offset 5: expected more than 25 bytes of XLogData, found 25"),
        (pack(">ci", b"d", 5) + b"w", "offset 5: expected more than 25 bytes of XLogData, found 1"),
        (pack(">ci", b"d", 6) + b"k\0", "offset 5: expected 18 bytes of keepalive, found 2"),
        (
            copydata(rows([BEGIN])) + pack(">cic", b"d", 5, b"r"),
            "offset 56: expected 'w' (XLogData) or 'k' (keepalive) from",
        ),
    ],
    Framing.PGCOPY: [
        (b"PGCOPY\n\xff\n\0\0\0\0\0", "offset 0: expected COPY BINARY's signature"),
        (HEAD + b"\0\0", "offset 0: expected 19 bytes of COPY BINARY's header, found 13 before"),
        (pgcopy([], flags=1 << 16), "offset 11: expected rows without OIDs, found the flag for OIDs"),
        (pgcopy([], flags=1 << 20), "offset 11: expected no critical flags, found flags 0x00100000"),
        (pgcopy([], flags=1 << 31), "offset 11: expected no critical flags, found flags 0x80000000"),
        (HEAD + pack(">ii", 0, -1), "offset 15: expected a length of the header extension of 0 or more, found -1"),
        (HEAD + pack(">ii", 0, MOST), "offset 19: expected 2147483647 bytes of the header extension, found 0"),
        (HEAD + pack(">iih", 0, 0, 2), "offset 19: expected 3 fields (lsn, xid, data), found 2"),
        (pgcopy(rows([BEGIN]))[:-2], "offset 66: expected 2 bytes of a row or the trailer, found 0 before"),
        (pgcopy(rows([BEGIN])) + b"\n", "offset 68: expected the end of the file after COPY's trailer, found 1"),
        (HEAD + pack(">iihi", 0, 0, 3, -1) + bytes(30), "offset 21: expected 8 as the length of lsn, found NULL"),
        (HEAD + pack(">iihiQi", 0, 0, 3, 8, LSN, 8) + bytes(30), "offset 33: expected 4 as the length of xid, found 8"),
        (HEAD + bytes(8) + LSN_XID + pack(">i", -1), "offset 41: expected a length of data of 1 or more, found -1"),
        (HEAD + bytes(8) + LSN_XID + pack(">i", 0), "offset 41: expected a length of data of 1 or more, found 0"),
        (HEAD + bytes(8) + LSN_XID + pack(">i", MOST), "offset 45: expected 2147483647 bytes of data, found 0"),
    ],
}


@pytest.mark.parametrize(("framing", "data", "words"), [(f, *case) for f, cases in REFUSED.items() for case in cases])
def test_refusal_names_the_offset_and_what_was_expected(framing: Framing, data: bytes, words: str) -> None:
    assert refusal(data, framing).startswith(words)


def test_hostile_lengths_take_no_memory() -> None:
    tracemalloc.start()
    try:
        for framing, cases in REFUSED.items():
            for data, _ in cases:
                refusal(data, framing)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
