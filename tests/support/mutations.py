"""Hostile bytes: real messages and files with wrong lengths, counts, kinds, and flags, the same for the same seed."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import cycle, islice
from struct import pack
from typing import Any

import pyarrow as pa

from pgoutput_etl.compression import decompress
from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.framing import detect, frames
from pgoutput_etl.protocol.messages import Delete, Insert, Relation, Type, Update
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.schema.table_shape import TableShape, table_shape
from pgoutput_etl.types import UserTypes
from tests.support.captures import DATA, files_of
from tests.support.encoder import Row, copydata, length_prefixed, pgcopy, recvlogical

Tell = Callable[[str, object], None]  # the fixture `tell`: prints a figure of a long test
Mutate = Callable[[random.Random, bytes, bytes], bytes]

SLOTS = (
    *("pg10/v1", "pg14/v1_binary", "pg14/v2_stream", "pg16/v1", "pg16/v1_binary", "pg16/v3_twophase"),
    *("pg16/v4_parallel", "pg16/v4_twophase_parallel_binary", "random16/v2", "random16/v4b"),
)
_LONGEST = 4000  # bytes of a message; longer ones differ only in one value
_MESSAGES_OF_A_FILE = 120
_PER_TAG = 120  # messages of one type from each slot
# Integers that lie: lengths, counts, kinds, flags.
_NUMBERS = tuple(
    pack(form, number)
    for form, numbers in (
        (">B", (0, 1, 0x7F, 0x80, 0xFF, *b"nutbKON")),
        (">h", (0, 1, -1, 0x7FFF, -0x8000, 1664, 1665)),
        (">i", (0, 1, -1, 0x7FFFFFFF, -0x80000000, 0x10000, 0x3FFFFFFF)),
        (">q", (0, -1, 2**63 - 1, -(2**63))),
    )
    for number in numbers
)


class HangError(BaseException):
    """Not an Exception, so that the tested code can't handle it."""


@contextmanager
def no_hang(seconds: float) -> Iterator[None]:
    """Fails the test if its body takes longer than this, which should be far more than it needs."""

    def ring(_signal: int, _frame: object) -> None:
        raise HangError(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _span(dice: random.Random, data: bytes) -> tuple[int, int]:
    begin = dice.randrange(len(data) + 1)
    return begin, min(len(data), begin + dice.choice((1, 1, 2, 4, 8, dice.randrange(1, 200))))


def flip(dice: random.Random, data: bytes, _other: bytes) -> bytes:
    if not data:
        return data
    at = dice.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]


def delete(dice: random.Random, data: bytes, _other: bytes) -> bytes:
    begin, end = _span(dice, data)
    return data[:begin] + data[end:]


def insert(dice: random.Random, data: bytes, _other: bytes) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + dice.randbytes(dice.choice((1, 2, 4, 30))) + data[at:]


def swap(dice: random.Random, data: bytes, _other: bytes) -> bytes:
    a, b, c, d = sorted(dice.randrange(len(data) + 1) for _ in range(4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def truncate(dice: random.Random, data: bytes, _other: bytes) -> bytes:
    return data[: dice.randrange(len(data) + 1)]


def duplicate(dice: random.Random, data: bytes, _other: bytes) -> bytes:
    begin, end = _span(dice, data)
    return data[:end] + data[begin:end] * dice.choice((1, 1, 2, 20)) + data[end:]


def overwrite_number(dice: random.Random, data: bytes, _other: bytes) -> bytes:
    number = dice.choice(_NUMBERS)
    at = dice.randrange(len(data) + 1)
    return data[:at] + number + data[at + len(number) :]


def splice(dice: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: dice.randrange(len(data) + 1)] + other[dice.randrange(len(other) + 1) :]


MUTATORS: tuple[Mutate, ...] = (flip, delete, insert, swap, truncate, duplicate, overwrite_number, splice)


def mutated(dice: random.Random, data: bytes, other: bytes) -> bytes:
    """Mutated mostly once, sometimes several times, to reach checks behind the first one."""
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        data = dice.choice(MUTATORS)(dice, data, other)
    return data


def messages_of(slot: str) -> Iterator[tuple[bytes, bool]]:
    """The messages of a slot's files, each with a flag: inside a stream segment."""
    in_stream = False
    for path in files_of(DATA / slot):
        data = decompress(path.read_bytes(), path.name)
        for frame in frames(data, detect(data)):
            message = data[frame.start : frame.end]
            yield message, in_stream
            in_stream = message[:1] == b"S" or (in_stream and message[:1] not in b"EBbcAKrpP")


@cache
def real_messages() -> tuple[tuple[bytes, bool], ...]:
    """The first messages of each type from each slot, which cover all kinds of tables."""
    messages: dict[tuple[bytes, bool], None] = {}
    for slot in SLOTS:
        counts: dict[bytes, int] = {}
        for message, in_stream in messages_of(slot):
            tag = message[:1]
            if counts.get(tag, 0) < _PER_TAG and len(message) <= _LONGEST and (message, in_stream) not in messages:
                messages[message, in_stream] = None
                counts[tag] = counts.get(tag, 0) + 1
    return tuple(messages)


Seen = tuple[Relation, Insert | Update | Delete]


@cache
def real_changes() -> tuple[Seen, ...]:
    """Changes with their Relations, of tables with all kinds of types, with text and binary values."""
    changes: list[Seen] = []
    for slot in ("pg16/v1", "pg16/v1_binary"):
        relations: dict[int, Relation] = {}
        counts: dict[int, int] = {}
        for data, in_stream in messages_of(slot):
            message = decode(data, in_stream) if data[:1] in b"RIUD" else None
            if isinstance(message, Relation):
                relations[message.oid] = message
            elif isinstance(message, Insert | Update | Delete) and counts.get(message.relation_oid, 0) < 30:
                counts[message.relation_oid] = counts.get(message.relation_oid, 0) + 1
                changes.append((relations[message.relation_oid], message))
    return tuple(changes)


@cache
def real_types() -> UserTypes:
    messages = (decode(data, in_stream) for data, in_stream in messages_of("pg16/v1_binary") if data[:1] == b"Y")
    return UserTypes.of((message for message in messages if isinstance(message, Type)), {})


def shape_of(relation: Relation) -> TableShape:
    history = RelationHistory()
    history.declare(relation, (0, 0), None)
    everything = frozenset(range(len(relation.columns)))
    return table_shape(relation, history.versions(relation.oid), None, everything, True, real_types())


def row_of(message: Insert | Update | Delete) -> dict[str, Any]:
    old = None if isinstance(message, Insert) else message.old
    old_kind = None if isinstance(message, Insert) or message.old_kind is None else message.old_kind.value
    return {
        "file": 0,
        "ordinal": 1,
        "offset": 7,
        "tag": type(message).__name__[0],
        "old_kind": old_kind,
        "old": None if old is None else old.to_bytes(),
        "new": None if isinstance(message, Delete) else message.new.to_bytes(),
        "commit_lsn": 1,
        "commit_ts": 0,
        "top_xid": 1,
        "scope": None,
    }


def mutated_messages(seed: int, count: int) -> Iterator[tuple[bytes, bool]]:
    """`count` hostile messages, equally many of each type: mutated real ones, sometimes in the wrong segment."""
    dice = random.Random(seed)
    by_tag: dict[bytes, list[tuple[bytes, bool]]] = {}
    for message, in_stream in real_messages():
        by_tag.setdefault(message[:1], []).append((message, in_stream))
    tags = cycle(sorted(by_tag))
    others = real_messages()
    for _ in range(count):
        message, in_stream = dice.choice(by_tag[next(tags)])
        yield mutated(dice, message, dice.choice(others)[0]), in_stream ^ (dice.random() < 0.05)


def mutated_files(seed: int, count: int, files: Sequence[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    dice = random.Random(seed)
    for _ in range(count):
        path, data = dice.choice(files)
        yield path, mutated(dice, data, dice.choice(files)[1])


@cache
def real_files() -> tuple[tuple[str, bytes], ...]:
    """Paths and bytes: the beginnings of some slots, in every framing, plain and compressed."""
    files: list[tuple[str, bytes]] = []
    for slot in SLOTS:
        messages = [message for message, _ in islice(messages_of(slot), _MESSAGES_OF_A_FILE)]
        rows = [Row(0x1000000 + i, 700, message) for i, message in enumerate(messages)]
        plain = {
            "recvlogical": recvlogical(messages),
            "length_prefixed": length_prefixed(messages),
            "pgcopy": pgcopy(rows),
            "copydata": copydata(rows, keepalives=(0, 7, len(rows))),
        }
        files += [(f"{framing}.bin", data) for framing, data in plain.items()]
        files += [(f"copydata.bin{suffix}", compress(plain["copydata"], suffix)) for suffix in CODECS]
    return tuple(files)


CODECS = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4", ".bz2": "bz2"}


def compress(data: bytes, suffix: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, CODECS[suffix]) as stream:
        stream.write(data)
    whole: bytes = sink.getvalue().to_pybytes()
    return whole
