"""Which content a landed file has: known whole, known up to some byte, or new.

A file is what its bytes are, whatever it is called. What was read of a content is kept as the SHA-256 of its first
`consumed` bytes, decompressed; a file that begins with them is that content, and is read from there on. It may have
grown, been renamed, been compressed since.

The same few bytes may well stand in two files: an Insert on its own is not known by them. A content is *distinctive*
once it has a message that bears the LSN of a commit, or frames with two LSNs. One that isn't yet is known again only
under its own name, or where the file of that name is gone.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

COMPRESSED = (".gz", ".zst", ".lz4", ".bz2")

DISTINCTIVE_TAGS = frozenset("BCbPKrcp")

# Of how many of its first bytes a content has a key to be looked up by.
HEAD_SIZES = (2, 4, 8, 16, 32, 64, 256, 1024, 4096)

_KEY_DIGITS = 16


class FileStatus(Enum):
    """What was done with a landed file, or with a part of one."""

    READ = "read"
    SAME = "same"  # nothing new in it: written again, as it was
    MOVED = "moved"  # nothing new in it: its content was read, under a name that it doesn't bear any more
    DUPLICATE = "duplicate"  # nothing new in it: its content was read, from a file that is still there
    REFUSED = "refused"  # it bears the name of a file that was read, and holds something else


@dataclass(frozen=True, slots=True)
class LandedFile:
    """A file as it lies in the landing folder; `modified` in microseconds since 1970, UTC."""

    path: str
    size: int
    modified: int


@dataclass(frozen=True, slots=True)
class FilePart:
    """What the ledger has of a file: content[offset:consumed], decompressed, was read from its first `size` bytes.

    same_as: the number of the part that this one goes on from, or that ends where this file ends. unfinished: behind
    `consumed` stood what was not a whole message yet. reason: why that was so, or why the file was refused.
    decompressed_size: of all the content that there was; head: the key of content[:consumed], as `heads_of` has it.
    Both are None in a ledger from before they were kept.
    """

    path: str
    size: int
    modified: int
    status: str = FileStatus.READ.value
    offset: int = 0
    consumed: int = 0
    prefix_hash: str | None = None  # of content[:consumed]: SHA-256, in hexadecimal digits
    distinctive: bool = False
    varied: bool = False  # not all its messages are the same
    framing: str | None = None
    begins_in_stream: bool | None = None  # None: that was not known
    ends_in_stream: bool | None = None
    same_as: int | None = None
    unfinished: bool = False
    reason: str | None = None
    decompressed_size: int | None = None
    head: str | None = None

    @property
    def was_read(self) -> bool:
        """Whether there were whole messages in it."""
        return self.status == FileStatus.READ.value and self.consumed > self.offset

    @property
    def has_content(self) -> bool:
        """Whether its bytes are known, so that they are found again under any name."""
        is_known = self.was_read or self.status == FileStatus.REFUSED.value
        return is_known and bool(self.consumed) and self.prefix_hash is not None

    @property
    def has_tail(self) -> bool:
        """Whether a later run has to read on behind `consumed`."""
        return self.status in (FileStatus.READ.value, FileStatus.MOVED.value) and self.unfinished

    @property
    def is_left(self) -> bool:
        """Whether the file had bytes, and all of them were left for a later run."""
        return self.status == FileStatus.READ.value and self.unfinished and not self.consumed


@dataclass(frozen=True, slots=True)
class Prefix:
    """content[:consumed] of a part with this number; `goes_on`: a later part has more of the same content."""

    consumed: int
    hash: str
    number: int
    name: str  # uncompressed_name of the file, under which it is known even if it is not distinctive
    distinctive: bool
    goes_on: bool
    framing: str | None
    ends_in_stream: bool | None


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """prefix: what the file begins with; resembles: the number of a part that it may begin with."""

    prefix: Prefix | None = None
    resembles: int | None = None


@dataclass(frozen=True, slots=True)
class KnownContents:
    """What was read, or some of it, to be found by content. unkeyed: contents that have no heads to look them up by."""

    by_length: Mapping[int, Mapping[str, tuple[Prefix, ...]]]
    unkeyed: UnkeyedContents | None = None

    @classmethod
    def of(cls, prefixes: Iterable[Prefix], unkeyed: UnkeyedContents | None = None) -> KnownContents:
        by_length: dict[int, dict[str, tuple[Prefix, ...]]] = {}
        for prefix in prefixes:
            same_length = by_length.setdefault(prefix.consumed, {})
            same_length[prefix.hash] = (*same_length.get(prefix.hash, ()), prefix)
        return cls(by_length, unkeyed)

    def match(self, path: str, hashes: Hashes) -> PrefixMatch:
        """What is known of the file of that name, if it begins with that: another session may have been sent more of
        the same bytes. Else the longest known prefix; of several parts with the same, that of its name or the last.

        A content that goes on otherwise than the known one does was sent anew: it is no continuation.
        """
        lengths = sorted(length for length in self.by_length if 0 < length <= len(hashes.data))
        name = uncompressed_name(path)
        digests = [hashes.of(length) for length in lengths]
        same = [self.by_length[n].get(digest, ()) for n, digest in zip(lengths, digests, strict=True)]
        same.reverse()
        own = next((p for prefixes in same for p in prefixes if p.name == name and not p.goes_on), None)
        if own is not None:
            return PrefixMatch(own)
        resembles = None
        for prefixes in same:
            known = [prefix for prefix in prefixes if prefix.distinctive or name == prefix.name]
            if known:
                best = max(known, key=lambda p: (not p.goes_on, name == p.name, p.number))
                return PrefixMatch(best) if not best.goes_on or best.consumed == len(hashes.data) else PrefixMatch()
            if prefixes and resembles is None:
                resembles = max(prefix.number for prefix in prefixes)
        return PrefixMatch(None, resembles)


def uncompressed_name(path: str) -> str:
    """a.bin for a.bin.gz, which it was before it was compressed."""
    name, dot, suffix = path.rpartition(".")
    return name if f"{dot}{suffix.lower()}" in COMPRESSED else path


class Hashes:
    """SHA-256 of the beginnings of a content, in hexadecimal digits. Each goes on from the one asked for before, if it
    is no shorter: all of them together cost one pass."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._running = hashlib.sha256()
        self._length = 0

    def of(self, length: int) -> str:
        """Of data[:length]."""
        if length < self._length:
            self._running, self._length = hashlib.sha256(), 0
        self._running.update(memoryview(self.data)[self._length : length])
        self._length = length
        return self._running.hexdigest()


def heads_of(data: bytes) -> list[str]:
    """The keys of a content's beginnings, one for each of HEAD_SIZES that it has: the first digits of their SHA-256."""
    sizes = HEAD_SIZES[: bisect_right(HEAD_SIZES, len(data))]
    return [hashlib.sha256(data[:size]).hexdigest()[:_KEY_DIGITS] for size in sizes]


def head_of(consumed: int, heads: list[str]) -> str | None:
    """Of the heads of a file, the key of its first `consumed` bytes; None if these are too few."""
    number = bisect_right(HEAD_SIZES, consumed)
    return heads[number - 1] if number else None


@dataclass(frozen=True, slots=True)
class UnkeyedContents:
    """Contents that a version read which kept no heads: by the first eight bytes of their SHA-256, in order of their
    lengths. Many are a few hundred kilobytes, and are looked through in a tenth of a second."""

    lengths: npt.NDArray[np.int64]
    digests: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.int64]

    @classmethod
    def of(cls, contents: Iterable[tuple[int, str, int]]) -> UnkeyedContents:
        """Length, SHA-256 in hexadecimal digits, number of the part."""
        listed = sorted(contents)
        return cls(
            np.array([length for length, _, _ in listed], np.int64),
            np.array([int(digits[:_KEY_DIGITS], 16) for _, digits, _ in listed], np.uint64),
            np.array([number for _, _, number in listed], np.int64),
        )

    def beginnings(self, data: bytes) -> list[int]:
        """The numbers of those that the data begin with."""
        end = np.searchsorted(self.lengths, len(data), "right")
        lengths, counts = np.unique(self.lengths[:end], return_counts=True)
        running, done, content = hashlib.sha256(), 0, memoryview(data)
        digests = []
        for length in lengths.tolist():
            running.update(content[done:length])
            done = length
            digests.append(running.digest()[: _KEY_DIGITS // 2])
        own = np.frombuffer(b"".join(digests), ">u8")
        found: list[int] = self.numbers[:end][self.digests[:end] == np.repeat(own, counts)].tolist()
        return found


@dataclass(frozen=True, slots=True)
class ScanTask:
    """How a file is to be read: its first `size` bytes. part: what of it, if that was decided before; end: of its
    content, if that was.

    leaves_tail: bytes at its end that may become a message are left unread.
    """

    number: int
    size: int
    leaves_tail: bool = True
    known_part: FilePart | None = None
    end: int | None = None


def task_again(number: int, part: FilePart) -> ScanTask:
    """To read a part as it was read before, however its file has gone on since. The bytes that were left behind it are
    looked at once more: without them, a message that was cut off may seem to be a whole one."""
    end = part.consumed if part.decompressed_size is None else part.decompressed_size
    return ScanTask(number, part.size, part.unfinished, part, end)


def tasks_of(parts: Mapping[int, FilePart]) -> dict[str, ScanTask]:
    """By path, of parts by number. Only the newest file may end within a message."""
    newest = max((n for n, part in parts.items() if part.was_read or part.unfinished), default=None)
    return {part.path: ScanTask(n, part.size, n == newest, part) for n, part in parts.items()}
