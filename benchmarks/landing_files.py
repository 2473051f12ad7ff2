"""Writes encoded messages to landed files, in every framing, cut at any message."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import pack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.wire_arrays import Ints, fixed, joined
from pgoutput_etl.protocol.framing import Framing

_COPY_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + pack(">Ii", 0, 0)


@dataclass(frozen=True, slots=True)
class Block:
    """Messages in the order in which they were sent, with their LSNs."""

    messages: pa.Array
    lsns: Ints


@dataclass(frozen=True, slots=True)
class Landed:
    """The contents of a landing folder: numbers of files, messages, and bytes."""

    files: int
    messages: int
    bytes: int


def framed(block: Block, framing: Framing) -> pa.Array:
    """Each message within its frame."""
    size = len(block.messages)
    lengths = pc.binary_length(block.messages).to_numpy()
    match framing:
        case Framing.RECVLOGICAL:
            return joined([block.messages, b"\n"], size)
        case Framing.LENGTH_PREFIXED:
            return joined([fixed((">i4", lengths), size=size), block.messages], size)
        case Framing.COPYDATA:
            head = fixed(
                ("S1", b"d"),
                (">i4", lengths + 4 + 25),
                ("S1", b"w"),
                (">i8", block.lsns),
                (">i8", block.lsns),
                (">i8", 0),
                size=size,
            )
            return joined([head, block.messages], size)
        case Framing.PGCOPY:
            head = fixed(
                (">i2", 3), (">i4", 8), (">i8", block.lsns), (">i4", 4), (">u4", 0), (">i4", lengths), size=size
            )
            return joined([head, block.messages], size)
        case Framing.AUTO:
            raise ValueError("expected a framing to write, found auto")


def even_cuts(messages: int, files: int) -> Sequence[int]:
    """The numbers of messages after which a file ends, for files of about the same size."""
    return [messages * number // files for number in range(1, files)]


def initial_cuts(rows: int) -> Sequence[int]:
    """For the first night of a large table: a million rows in each file, as a worker holds four times its file."""
    return even_cuts(rows, -(-rows // 1_000_000))


def land(folder: Path, blocks: Iterable[Block], framing: Framing, cuts: Sequence[int] = ()) -> Landed:
    """Writes files that end after `cuts` messages, and one with the rest. Names sort in the order of writing."""
    folder.mkdir(parents=True)
    files = messages = size = 0
    for parts, count in _files(blocks, framing, cuts):
        path = folder / f"{files:06}.bin"
        with path.open("wb") as file:
            file.writelines(parts)
        files, messages, size = files + 1, messages + count, size + path.stat().st_size
    return Landed(files, messages, size)


def _files(
    blocks: Iterable[Block], framing: Framing, cuts: Sequence[int]
) -> Iterator[tuple[list[bytes | pa.Buffer], int]]:
    """Each file's bytes, in parts, and the number of its messages."""
    head, tail = (_COPY_SIGNATURE, pack(">h", -1)) if framing is Framing.PGCOPY else (b"", b"")
    ends = iter(cuts)
    end = next(ends, sys.maxsize)
    held: list[pa.Buffer] = []
    count = written = 0
    for block in blocks:
        frames = framed(block, framing)
        offsets = np.frombuffer(frames.buffers()[1], np.int32)[: len(frames) + 1]
        at = 0
        while at < len(frames):
            stop = min(len(frames), at + end - written - count)
            held.append(frames.buffers()[2].slice(int(offsets[at]), int(offsets[stop] - offsets[at])))
            count, at = count + stop - at, stop
            if written + count == end:
                yield [head, *held, tail], count
                held, count, written, end = [], 0, end, next(ends, sys.maxsize)
    if held:
        yield [head, *held, tail], count


def interleaved(kinds: Iterable[pa.Array], order: Ints) -> pa.Array:
    """The messages of all kinds in `order`: indices into the concatenated kinds."""
    return pa.concat_arrays([*kinds]).take(pa.array(order))
