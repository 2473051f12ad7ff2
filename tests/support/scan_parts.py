"""Parts of archives that begin and end anywhere, many of them damaged, for scanners to read."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache

from pgoutput_etl.compression import decompress
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.landing.fingerprint import KnownContents, ScanTask
from pgoutput_etl.landing.incremental_scan import scan_part
from pgoutput_etl.protocol.framing import Frame, Framing, detect, frames
from pgoutput_etl.protocol.messages import Origin
from pgoutput_etl.scan.request import ScanRequest, ScanResult
from tests.support import encoder
from tests.support.captures import CAPTURES, files_of
from tests.support.mutations import mutated

FRAMINGS = (Framing.LENGTH_PREFIXED, Framing.COPYDATA, Framing.PGCOPY, Framing.RECVLOGICAL)


def scan_file(
    path: str, file: int, content: bytes, framing: Framing = Framing.AUTO, salvages: bool = False
) -> ScanResult:
    """Scans a whole file, given its stored bytes."""
    task = ScanTask(file, len(content), leaves_tail=False)
    return scan_part(path, content, task, KnownContents({}), framing, salvages)


def landed(messages: Sequence[bytes], framing: Framing, chance: random.Random) -> bytes:
    rows = [encoder.Row(0x1000000 + 8 * i, 1, message) for i, message in enumerate(messages)]
    match framing:
        case Framing.LENGTH_PREFIXED:
            return encoder.length_prefixed(messages)
        case Framing.COPYDATA:
            return encoder.copydata(rows, keepalives=range(chance.randrange(3), len(rows) + 1, 3))
        case Framing.PGCOPY:
            return encoder.pgcopy(rows)
        case _:
            return encoder.recvlogical(messages)


@cache
def messages_of(slot: str) -> list[bytes]:
    found = []
    for path in files_of(CAPTURES / slot):
        data = decompress(path.read_bytes(), path.name)
        found += [data[frame.start : frame.end] for frame in frames(data, detect(data))]
    return found


def parts(slot: str, chance: random.Random, count: int, most: int) -> Iterator[ScanRequest]:
    """Parts of a slot's archive that begin and end anywhere, many of them damaged, read in all ways."""
    whole = messages_of(slot)
    for _ in range(count):
        begin = chance.randrange(len(whole))
        messages = whole[begin : begin + chance.choice([10, 60, most])]
        if chance.random() < 0.4:
            messages = disordered(messages, chance)
        framing = chance.choice(FRAMINGS)
        data = landed(messages, framing, chance)
        start = 0
        if chance.random() < 0.2:
            start = chance.choice([frame.offset for frame in frames_of(data, framing)] or [0])
        if chance.random() < 0.6:
            data = spoilt(data, chance)
        if start <= len(data):
            yield ScanRequest(
                data,
                3,
                framing,
                salvages=chance.random() < 0.5,
                leaves_tail=chance.random() < 0.5,
                start=start,
                begins_in_stream=chance.choice([None, None, True, False]),
            )


def frames_of(data: bytes, framing: Framing) -> list[Frame]:
    try:
        return list(frames(data, framing))
    except ArchiveError:
        return []


def spoilt(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    match chance.randrange(4):
        case 0:
            return mutated(chance, data, data)
        case 1:
            size = chance.choice([1, 64, 300, 4096])
            return data[:at] + bytes(len(data[at : at + size])) + data[at + size :]
        case 2:
            return data[:at]
        case _:
            return data[:at] + data[at + chance.choice([1, 30, 1000]) :]


def disordered(messages: list[bytes], chance: random.Random) -> list[bytes]:
    """Whole messages in an order, or with numbers, that no server sends."""
    messages = list(messages)
    for _ in range(chance.choice([1, 1, 3])):
        at = chance.randrange(len(messages))
        match chance.randrange(4):
            case 0:
                del messages[at : at + chance.choice([1, 5])]
            case 1:
                messages[at:at] = messages[: chance.randrange(1, 20)]
            case 2:
                messages.insert(at, chance.choice(messages))
            case _:
                messages[at] = renumbered(messages[at], chance)
        if not messages:
            return [encoder.encode(Origin(1, "elsewhere"))]
    return messages


def renumbered(message: bytes, chance: random.Random) -> bytes:
    """Another LSN, time, xid or OID."""
    at = {b"B": 1, b"C": 2, b"c": 6, b"S": 1, b"I": 1, b"U": 1, b"D": 1}.get(message[:1])
    if at is None:
        return message
    at += 8 * chance.randrange(2) if message[:1] in b"BCc" else 0
    number = chance.choice([bytes(8), b"\xff" * 8, b"\x7f" + b"\xff" * 7, message[at : at + 7] + b"\0"])
    return message[:at] + number[: 8 if message[:1] in b"BCc" else 4] + message[at + 8 :]
