"""Recognizes the content of a landed file by its bytes: entirely known, known up to an offset, or new.

A file is identified by its bytes, not its name. For content that was read, the ledger has the SHA-256 of its first
`consumed` bytes, decompressed. A file that begins with these bytes has that content, and is read from there on. It may
have grown, been renamed, or been compressed since.

The same few bytes may occur in two files: an Insert alone doesn't identify a file. A content is *distinctive* once it
has a message with a commit LSN, or frames with two LSNs. Until then, it is only recognized under its own name, or if no
file has that name any more.
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

# Sizes, in bytes, of the prefixes that serve as a content's lookup keys
HEAD_SIZES = (2, 4, 8, 16, 32, 64, 256, 1024, 4096)

_KEY_DIGITS = 16


class FileStatus(Enum):
    """How a landed file, or part of one, is used."""

    READ = "read"
    SAME = "same"  # nothing new: the file was written again, unchanged
    MOVED = "moved"  # nothing new: the content was read under a name that no longer exists
    DUPLICATE = "duplicate"  # nothing new: the content was read from a file that still exists
    REFUSED = "refused"  # not applied, and nothing depends on it: a name that was read before, with other content
    UNREADABLE = "unreadable"  # not read, but has a place in the order: later rows of its relations may depend on it


@dataclass(frozen=True, slots=True)
class LandedFile:
    """A file in the landing folder. modified: microseconds since 1970, UTC."""

    path: str
    size: int
    modified: int


@dataclass(frozen=True, slots=True)
class FilePart:
    """The ledger's record of a file: content[offset:consumed], decompressed, was read from its first `size` bytes.

    same_as: the number of the part that this one continues, or that ends where this file ends. unfinished: the bytes
    after `consumed` were not a whole message yet. reason: why they were not, or why the file was refused.
    decompressed_size: of the whole content. head: the key of content[:consumed], one of `heads_of`. oids: relations of
    which a file without content may have rows, separated by spaces; None: any relation. Older ledgers don't have the
    last three.
    """

    path: str
    size: int
    modified: int
    status: str = FileStatus.READ.value
    offset: int = 0
    consumed: int = 0
    prefix_hash: str | None = None  # of content[:consumed]: SHA-256, in hexadecimal digits
    distinctive: bool = False
    varied: bool = False  # not all of its messages are the same
    framing: str | None = None
    begins_in_stream: bool | None = None  # None: unknown
    ends_in_stream: bool | None = None
    same_as: int | None = None
    unfinished: bool = False
    reason: str | None = None
    decompressed_size: int | None = None
    head: str | None = None
    oids: str | None = None

    @property
    def listed(self) -> LandedFile:
        """The file as it was listed when the part was recorded."""
        return LandedFile(self.path, self.size, self.modified)

    @property
    def was_read(self) -> bool:
        """True if the part has whole messages."""
        return self.status == FileStatus.READ.value and self.consumed > self.offset

    @property
    def has_content(self) -> bool:
        """True if its bytes are known, so that they can be recognized under any name."""
        is_known = self.was_read or self.status == FileStatus.REFUSED.value
        return is_known and bool(self.consumed) and self.prefix_hash is not None

    @property
    def is_set_aside(self) -> bool:
        """True if the file is quarantined as a whole. Without content, its stored bytes count in the accounts."""
        return self.status in (FileStatus.REFUSED.value, FileStatus.UNREADABLE.value)

    @property
    def relations(self) -> frozenset[int] | None:
        """The OIDs of relations that a file without content may have rows of; None: any relation."""
        return None if self.oids is None else frozenset(map(int, self.oids.split()))

    @property
    def is_needless(self) -> bool:
        """True if the file was set aside and no table depends on it."""
        return self.is_set_aside and self.oids == ""

    @property
    def has_tail(self) -> bool:
        """True if a later run has to continue reading after `consumed`."""
        return self.status in (FileStatus.READ.value, FileStatus.MOVED.value) and self.unfinished

    @property
    def is_left(self) -> bool:
        """True if the file had bytes and all of them were left for a later run."""
        return self.status == FileStatus.READ.value and self.unfinished and not self.consumed


@dataclass(frozen=True, slots=True)
class Prefix:
    """content[:consumed] of the part with this number. continued: a later part has more of the same content."""

    consumed: int
    hash: str
    number: int
    name: str  # the file's uncompressed_name, which identifies even content that isn't distinctive
    distinctive: bool
    continued: bool
    framing: str | None
    ends_in_stream: bool | None


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """prefix: the known content with which a file begins. resembles: number of a part with which it may begin."""

    prefix: Prefix | None = None
    resembles: int | None = None


@dataclass(frozen=True, slots=True)
class KnownContents:
    """Contents that were read, by length and hash. unkeyed: contents without heads for lookup."""

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
        """The known content of the file with this name, if the file begins with it: another session may have sent more
        of the same bytes. Otherwise, the longest known prefix; if several are equal, the one with this name, or else
        the last.

        A file that continues a prefix differently than the known content was sent again, and continues nothing.
        """
        lengths = sorted(length for length in self.by_length if 0 < length <= len(hashes.data))
        name = uncompressed_name(path)
        digests = [hashes.of(length) for length in lengths]
        same = [self.by_length[n].get(digest, ()) for n, digest in zip(lengths, digests, strict=True)]
        same.reverse()
        own = next((p for prefixes in same for p in prefixes if p.name == name and not p.continued), None)
        if own is not None:
            return PrefixMatch(own)
        resembles = None
        for prefixes in same:
            known = [prefix for prefix in prefixes if prefix.distinctive or name == prefix.name]
            if known:
                best = max(known, key=lambda p: (not p.continued, name == p.name, p.number))
                return PrefixMatch(best) if not best.continued or best.consumed == len(hashes.data) else PrefixMatch()
            if prefixes and resembles is None:
                resembles = max(prefix.number for prefix in prefixes)
        return PrefixMatch(None, resembles)


def uncompressed_name(path: str) -> str:
    """a.bin for a.bin.gz: the file's name before it was compressed."""
    name, dot, suffix = path.rpartition(".")
    return name if f"{dot}{suffix.lower()}" in COMPRESSED else path


class Hashes:
    """SHA-256 of prefixes of a content, in hexadecimal digits. Each call continues from the previous one unless its
    prefix is shorter, so prefixes in order of length take a single pass."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._running = hashlib.sha256()
        self._length = 0

    def of(self, length: int) -> str:
        """The hash of data[:length]."""
        if length < self._length:
            self._running, self._length = hashlib.sha256(), 0
        self._running.update(memoryview(self.data)[self._length : length])
        self._length = length
        return self._running.hexdigest()


def heads_of(data: bytes) -> list[str]:
    """Keys of the prefixes of HEAD_SIZES that a content has: the first digits of their SHA-256."""
    sizes = HEAD_SIZES[: bisect_right(HEAD_SIZES, len(data))]
    return [hashlib.sha256(data[:size]).hexdigest()[:_KEY_DIGITS] for size in sizes]


def head_of(consumed: int, heads: list[str]) -> str | None:
    """The head that is the key for a file's first `consumed` bytes; None if these are too few."""
    number = bisect_right(HEAD_SIZES, consumed)
    return heads[number - 1] if number else None


@dataclass(frozen=True, slots=True)
class UnkeyedContents:
    """Contents from versions that stored no heads, in order of length, with the first 8 bytes of their SHA-256.

    A large archive has a few hundred kilobytes of them, which take a tenth of a second to search.
    """

    lengths: npt.NDArray[np.int64]
    digests: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.int64]

    @classmethod
    def of(cls, contents: Iterable[tuple[int, str, int]]) -> UnkeyedContents:
        """contents: length, SHA-256 in hexadecimal digits, number of the part."""
        in_order = sorted(contents)
        return cls(
            np.array([length for length, _, _ in in_order], np.int64),
            _short_digests(digits for _, digits, _ in in_order),
            np.array([number for _, _, number in in_order], np.int64),
        )

    def beginnings(self, data: bytes) -> list[int]:
        """The numbers of the contents that the data begin with."""
        end = np.searchsorted(self.lengths, len(data), "right")
        lengths, counts = np.unique(self.lengths[:end], return_counts=True)
        own = _short_digests(map(Hashes(data).of, lengths.tolist()))
        matches: list[int] = self.numbers[:end][self.digests[:end] == np.repeat(own, counts)].tolist()
        return matches


def _short_digests(hashes: Iterable[str]) -> npt.NDArray[np.uint64]:
    return np.array([int(digits[:_KEY_DIGITS], 16) for digits in hashes], np.uint64)


@dataclass(frozen=True, slots=True)
class ScanTask:
    """A file to scan. known_part, end: the part to read and its end, if an earlier run determined them.

    leaves_tail: leaves bytes at the end unread that may become a message. may_grow: reads only the first `size` bytes.
    Any other file was complete when a later one began, even if an outdated listing shows a smaller size.
    """

    number: int
    size: int
    leaves_tail: bool = True
    known_part: FilePart | None = None
    end: int | None = None
    may_grow: bool = False


def task_again(number: int, part: FilePart) -> ScanTask:
    """Reads a part exactly as before, even if its file has grown since. Also reads the bytes that were left after it,
    because without them a torn message may look whole."""
    end = part.consumed if part.decompressed_size is None else part.decompressed_size
    return ScanTask(number, part.size, part.unfinished, part, end)


def tasks_of(parts: Mapping[int, FilePart]) -> dict[str, ScanTask]:
    """Tasks by path, for parts by number. Only the newest file may end within a message."""
    newest = max((n for n, part in parts.items() if part.was_read or part.unfinished), default=None)
    return {part.path: ScanTask(n, part.size, n == newest, part, may_grow=n == newest) for n, part in parts.items()}
