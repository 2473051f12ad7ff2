"""The compiled loop finds the messages that decoder.py decodes, with the same fields, and no others."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl import jit
from pgoutput_etl.errors import WireError
from pgoutput_etl.identifiers import bytes_of
from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.protocol.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Origin,
    PgoutputMessage,
    Relation,
    StreamCommit,
    StreamStart,
    TupleData,
    Type,
    Update,
)
from pgoutput_etl.scan.fast import messages as columnar
from pgoutput_etl.scan.fast.messages import MessageFields
from tests.support import encoder
from tests.support.mutations import Tell, mutated_messages

pytestmark = pytest.mark.skipif(not jit.AVAILABLE, reason=f"no kernels: {jit.WHY_NOT}")

FRAMED = (Framing.LENGTH_PREFIXED, Framing.COPYDATA, Framing.PGCOPY)
FOUND = MessageFields()


def framed(message: bytes, framing: Framing) -> tuple[bytes, int]:
    """A file of one message, and where its frame begins."""
    row = encoder.Row(0x1000000, 7, message)
    match framing:
        case Framing.LENGTH_PREFIXED:
            return encoder.length_prefixed([message]), 0
        case Framing.COPYDATA:
            return encoder.copydata([row]), 0
        case Framing.PGCOPY:
            return encoder.pgcopy([row]), 19
        case _:
            return encoder.recvlogical([message]), 0


def found_in(data: bytes, framing: Framing, position: int, in_stream: bool) -> MessageFields:
    columnar.find(np.frombuffer(data, np.uint8), framing, position, in_stream, columnar.MOST_MESSAGES, FOUND)
    return FOUND


def tuples(message: PgoutputMessage) -> tuple[TupleData | None, TupleData | None]:
    match message:
        case Insert():
            return None, message.new
        case Update():
            return message.old, message.new
        case Delete():
            return message.old, None
        case _:
            return None, None


def is_taken(message: PgoutputMessage, data: bytes) -> bool:
    """True if the loop accepts the message: it rejects what salvage.SalvageReader treats as wrong."""
    if data[0] not in columnar.FREQUENT:
        return False
    values = (zip(each.kinds, each.values, strict=True) for each in tuples(message) if each is not None)
    if any(kind == ord("t") and value is not None and b"\0" in value for row in values for kind, value in row):
        return False
    match message:
        case Relation():
            names = [message.namespace, message.name, *(column.name for column in message.columns)]
        case Type():
            names = [message.namespace, message.name]
        case Origin():
            names = [message.name]
        case Message():
            names = [message.prefix]
        case _:
            names = []
    return all(bytes_of(name).isascii() for name in names)


def check(data: bytes, in_stream: bool, framing: Framing) -> str:
    """Compares one message as read by the loop and by decoder.py."""
    file, position = framed(data, framing)
    found = found_in(file, framing, position, in_stream)
    try:
        message = decode(data, in_stream)
    except WireError:
        assert found.messages == 0
        return "refused"
    if not is_taken(message, data):
        assert found.messages == 0
        return "left"
    assert found.messages == 1
    fields = found.values[0]
    assert file[fields[columnar.START] : fields[columnar.END]] == data
    assert (fields[columnar.OFFSET], chr(fields[columnar.TAG])) == (position, chr(data[0]))
    assert fields[columnar.LSN] == (0 if framing is Framing.LENGTH_PREFIXED else 0x1000000)
    assert bool(fields[columnar.IN_STREAM]) == in_stream
    check_fields(message, file, found)
    return "found"


def check_fields(message: PgoutputMessage, file: bytes, found: MessageFields) -> None:
    fields = found.values[0]
    match message:
        case Insert() | Update() | Delete():
            old, new = tuples(message)
            old_kind = None if isinstance(message, Insert) or message.old_kind is None else message.old_kind.value
            assert fields[columnar.XID] == (message.xid or 0)
            assert fields[columnar.RELATION] == message.relation_oid
            assert (chr(fields[columnar.OLD_KIND]) if fields[columnar.OLD_KIND] else None) == old_kind
            extents = [
                file[fields[begin] : fields[end]]
                for begin, end in ((columnar.OLD, columnar.OLD_END), (columnar.NEW, columnar.NEW_END))
            ]
            assert extents == [b"" if each is None else each.to_bytes() for each in (old, new)]
            unchanged = found.unchanged[: fields[columnar.UNCHANGED_END]].tolist()
            assert unchanged == list(() if new is None else new.unchanged())
        case Begin(lsn, time, xid):
            assert fields[[columnar.COMMIT_LSN, columnar.COMMIT_TS, columnar.XID]].tolist() == [signed(lsn), time, xid]
        case Commit(lsn, _, time) | StreamCommit(_, lsn, _, time):
            assert fields[[columnar.COMMIT_LSN, columnar.COMMIT_TS]].tolist() == [signed(lsn), time]
        case StreamStart(xid, _):
            assert fields[columnar.XID] == xid
        case Relation() | Type():
            assert fields[columnar.XID] == (message.xid or 0)
        case Message():
            assert bool(fields[columnar.COMMIT_LSN]) == message.transactional
            assert fields[columnar.COMMIT_TS] == signed(message.lsn)
            assert fields[columnar.XID] == (columnar.NO_XID if message.xid is None else message.xid)
        case Origin():
            assert fields[columnar.COMMIT_LSN] == signed(message.commit_lsn)
        case _:
            pass


def signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


@given(encoder.messages, st.sampled_from(FRAMED))
def test_every_message_is_found_as_it_decodes(message: tuple[PgoutputMessage, bool], framing: Framing) -> None:
    check(encoder.encode(message[0]), message[1], framing)


def both_ways(seed: int, count: int) -> Counter[str]:
    found: Counter[str] = Counter()
    dice = random.Random(seed)
    for data, in_stream in mutated_messages(seed, count):
        found[check(data, in_stream, dice.choice(FRAMED)) if data else "empty"] += 1
    return found


def test_mutated_messages_are_found_where_they_decode() -> None:
    found = both_ways(11, 20_000)
    assert min(found["found"], found["refused"]) > 1_000


@pytest.mark.soak
def test_a_million_mutated_messages_are_found_where_they_decode(tell: Tell) -> None:
    tell("messages", dict(both_ways(12, 1_000_000)))


@given(st.lists(st.one_of(encoder.in_either(False), encoder.outside_segments), max_size=6))
def test_where_new_lines_stand_between_messages_all_are_found_up_to_a_rare_one(messages: list[PgoutputMessage]) -> None:
    whole = [encoder.encode(message) for message in messages]
    found = found_in(encoder.recvlogical(whole), Framing.RECVLOGICAL, 0, False)
    ends = np.cumsum([len(message) + 1 for message in whole]).tolist()
    extents = [[end - 1 - len(message), end - 1] for message, end in zip(whole, ends, strict=True)]
    assert found.values[: found.messages, [columnar.START, columnar.END]].tolist() == extents[: found.messages]
    for message in whole[found.messages : found.messages + 1]:
        assert message[:1] == b"A" or not is_taken(decode(message, False), message)


def insert_of(value: bytes) -> bytes:
    return encoder.encode(Insert(None, 16384, TupleData(b"t", (value,))))


@pytest.mark.parametrize("behind", [0, 1, 63, 64, 140])
def test_a_nul_is_seen_wherever_it_stands(behind: int) -> None:
    """behind: the number of bytes after the value, which is checked 64 bytes at a time."""
    for size in (*range(1, 10), 31, 32, 62, 63, 64, 65, 66, 127, 128, 129):
        for at in range(size):
            for other in (0x7F, 0x80):
                value = bytes([0x61] * at + [0] + [other] * (size - at - 1))
                data = encoder.length_prefixed([insert_of(value)]) + b"\xff" * behind
                assert found_in(data, Framing.LENGTH_PREFIXED, 0, False).messages == 0, (size, at, other)
        fine = encoder.length_prefixed([insert_of(b"\x01" * size)]) + b"\0" * behind
        assert found_in(fine, Framing.LENGTH_PREFIXED, 0, False).messages == 1
        for accented in ("é".encode(), b"\xe9"):
            data = encoder.length_prefixed([insert_of(accented * size)])
            assert found_in(data, Framing.LENGTH_PREFIXED, 0, False).messages == 1


def test_a_binary_value_may_hold_any_byte() -> None:
    message = encoder.encode(Insert(None, 16384, TupleData(b"bt", (bytes(range(256)), b"a"))))
    assert found_in(encoder.length_prefixed([message]), Framing.LENGTH_PREFIXED, 0, False).messages == 1


def test_it_stops_where_its_arrays_are_full_and_says_so() -> None:
    toast = encoder.encode(Insert(None, 16384, TupleData(b"u" * 1664, (None,) * 1664)))
    many = columnar.MOST_MESSAGES + 5
    for messages in ([toast] * 100, [insert_of(b"x" * 900_000)] * 10, [insert_of(b"x")] * many):
        data = encoder.length_prefixed(messages)
        position, found, calls = 0, 0, 0
        while position < len(data):
            FOUND.messages = 0
            result = found_in(data, Framing.LENGTH_PREFIXED, position, False)
            position = int(result.values[result.messages - 1, columnar.NEXT])
            found, calls = found + result.messages, calls + 1
            assert result.more == (position < len(data))
        assert found == len(messages)
        assert calls > 1
