"""How fast bytes become messages, rows and typed columns, on one core: against memory itself, and against others.

Everything works on the same file, in memory, in rounds; what counts are seconds of processor time, as other programs on
the machine stretch all others. What is slow is given whole transactions from its beginning, as many as
take some seconds: throughput is what is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.decoder_corpus import TABLE, decoder_corpus
from benchmarks.kernels import ALL_KEPT, BY_BATCH, kernels
from benchmarks.peers.running import built_peers, run_peer
from benchmarks.scenarios import scaled
from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.framing import Framing, frames
from pgoutput_etl.scan.scan_file import scan_file

_ENOUGH = 4.0  # seconds
_GO = "Go: pglogrepl, typed by pgx"
_TRIED = 2_000  # messages

Progress = Callable[[str], None]
Work = Callable[[bytes, int], object]  # of bytes with so many messages


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians. bytes: how many of the file's it was given."""

    what: str
    bytes: int
    seconds: float
    MB_per_s: float
    million_messages_per_s: float


def measure_decoding(scale: float, runs: int, progress: Progress) -> dict[str, Any]:
    file = next(decoder_corpus(scaled(14_600, scale, 20)).second.iterdir())
    data = file.read_bytes()
    ends = _message_ends(data)
    taken: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    works = _works()
    for what, work in works.items():
        progress(f"{what}: how much of it")
        counts[what] = _enough(work, data, ends)
    peers, missing = built_peers(progress)
    for number in range(runs):
        for what, work in works.items():
            progress(f"round {number + 1} of {runs}: {what}")
            given = data if counts[what] == len(ends) else data[: ends[counts[what] - 1]]
            taken.setdefault(what, []).append(_seconds(work, given, counts[what]))
        for peer in peers:
            progress(f"round {number + 1} of {runs}: {peer.language}")
            for decoded in run_peer(peer, file, 2):  # the second time counts
                if decoded.messages != len(ends):
                    raise AssertionError(f"{decoded.decoder}: expected {len(ends)} messages, found {decoded.messages}")
                taken.setdefault(decoded.decoder, []).append(decoded.seconds[-1])
                counts[decoded.decoder] = len(ends)
    measured = [_rates(what, ends[counts[what] - 1], counts[what], median(of)) for what, of in taken.items()]
    return {"messages": len(ends), "figures": measured, "ratios": _ratios(measured), "left_out": missing}


def _works() -> dict[str, Work]:
    works: dict[str, Work] = {
        "memcpy, into memory in use": _memcpy_warm(),
        "memcpy, into fresh memory": lambda data, _: bytearray(data),
        "plain Python: cut into messages": lambda data, _: sum(1 for _ in frames(data, Framing.LENGTH_PREFIXED)),
        "plain Python: to messages, as dataclasses": lambda data, _: _decode_all(data),
        "scan: to Arrow rows of messages": lambda data, _: scan_file("bench", 0, data, Framing.LENGTH_PREFIXED),
    }
    return {**works, **kernels(TABLE)}


def _memcpy_warm() -> Work:
    held = bytearray()

    def copy(data: bytes, _: int) -> None:
        if len(held) != len(data):
            held[:] = bytes(len(data))
        memoryview(held)[:] = data

    return copy


def _decode_all(data: bytes) -> None:
    for frame in frames(data, Framing.LENGTH_PREFIXED):
        decode(data[frame.start : frame.end], False)


def _message_ends(data: bytes) -> list[int]:
    ends, at = [], 0
    while at < len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "big")
        ends.append(at)
    return ends


def _enough(work: Work, data: bytes, ends: list[int]) -> int:
    """How many messages it gets through in some seconds. It is tried twice: some are compiled when first called."""
    tried = min(_TRIED, len(ends))
    part = data[: ends[tried - 1]]
    _seconds(work, part, tried)
    return min(len(ends), max(tried, int(_ENOUGH * tried / max(_seconds(work, part, tried), 1e-6))))


def _seconds(work: Work, data: bytes, messages: int) -> float:
    started = time.process_time()
    work(data, messages)
    return time.process_time() - started


def _rates(what: str, size: int, messages: int, seconds: float) -> Measured:
    return Measured(what, size, seconds, size / seconds / 1e6, messages / seconds / 1e6)


def _ratios(measured: list[Measured]) -> list[dict[str, Any]]:
    """What is asked of the way to typed columns: None where there is nothing to compare with.

    The others let go of each message once they have it, and memcpy keeps all: so do the columns, each time.
    """
    rate = {of.what: of.MB_per_s for of in measured}
    fastest_rust = max((value for what, value in rate.items() if what.startswith("Rust")), default=None)
    goals = (
        ("typed Go, as in pglogrepl's example", BY_BATCH, rate.get(f"{_GO}, rows as maps"), 20.0),
        ("typed Go, its rows as slices", BY_BATCH, rate.get(f"{_GO}, rows as slices"), 20.0),
        ("the fastest Rust, untyped", BY_BATCH, fastest_rust, 1.0),
        ("memcpy into fresh memory", ALL_KEPT, rate["memcpy, into fresh memory"], 0.2),
    )
    return [
        {"against": name, "ratio": None if ours not in rate or other is None else rate[ours] / other, "goal": goal}
        for name, ours, other, goal in goals
    ]
