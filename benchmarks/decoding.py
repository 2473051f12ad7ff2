"""Measures how fast one core decodes bytes to messages, rows, and typed columns, against memcpy and other decoders.

All decoders read the same file from memory, in rounds. Seconds are processor time, because other programs on the
machine stretch elapsed time. Slow decoders get only a few seconds' worth of whole transactions from the file's
beginning, because only throughput is compared.
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
from pgoutput_etl.scan.request import ScanRequest, ScanResult
from pgoutput_etl.scan.scan_file import scan_either_way

_ENOUGH = 4.0  # seconds
_GO = "Go: pglogrepl, typed by pgx"
_TRIED = 2_000  # messages

Progress = Callable[[str], None]
Work = Callable[[bytes, int], object]  # (data, number of messages)


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians. bytes: decoded in each round."""

    what: str
    bytes: int
    seconds: float
    MB_per_s: float
    million_messages_per_s: float


def measure_decoding(scale: float, runs: int, progress: Progress) -> dict[str, Any]:
    file = next(decoder_corpus(scaled(14_600, scale, 20)).second.iterdir())
    data = file.read_bytes()
    ends = _message_ends(data)
    times: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    works = _works()
    for what, work in works.items():
        progress(f"{what}: choosing the number of messages")
        counts[what] = _message_count(work, data, ends)
    peers, missing = built_peers(progress)
    for number in range(runs):
        for what, work in works.items():
            progress(f"round {number + 1} of {runs}: {what}")
            part = data if counts[what] == len(ends) else data[: ends[counts[what] - 1]]
            times.setdefault(what, []).append(_seconds(work, part, counts[what]))
        for peer in peers:
            progress(f"round {number + 1} of {runs}: {peer.language}")
            for decoded in run_peer(peer, file, 2):  # the second run counts
                if decoded.messages != len(ends):
                    raise AssertionError(f"{decoded.decoder}: expected {len(ends)} messages, found {decoded.messages}")
                times.setdefault(decoded.decoder, []).append(decoded.seconds[-1])
                counts[decoded.decoder] = len(ends)
    measured = [_rates(what, ends[counts[what] - 1], counts[what], median(times[what])) for what in times]
    return {"messages": len(ends), "figures": measured, "ratios": _ratios(measured), "left_out": missing}


def _works() -> dict[str, Work]:
    works: dict[str, Work] = {
        "memcpy, into memory in use": _memcpy_warm(),
        "memcpy, into fresh memory": lambda data, _: bytearray(data),
        "plain Python: cut into messages": lambda data, _: sum(1 for _ in frames(data, Framing.LENGTH_PREFIXED)),
        "plain Python: to messages, as dataclasses": lambda data, _: _decode_all(data),
        "scan: to Arrow rows of messages": lambda data, _: _scan(data),
    }
    return {**works, **kernels(TABLE)}


def _scan(data: bytes) -> ScanResult:
    return scan_either_way(ScanRequest(data, 0, Framing.LENGTH_PREFIXED, salvages=False))


def _memcpy_warm() -> Work:
    target = bytearray()

    def copy(data: bytes, _: int) -> None:
        if len(target) != len(data):
            target[:] = bytes(len(data))
        memoryview(target)[:] = data

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


def _message_count(work: Work, data: bytes, ends: list[int]) -> int:
    """The number of messages that take a few seconds. The first of two trials compiles functions and is not counted."""
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
    """The speed of decoding to typed columns as multiples of others, with goals; None without a figure to compare with.

    Other decoders drop each message after decoding it and are compared with batches that are dropped; memcpy keeps
    everything and is compared with columns that are all kept.
    """
    rate = {figure.what: figure.MB_per_s for figure in measured}
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
