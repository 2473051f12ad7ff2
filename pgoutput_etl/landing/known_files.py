"""Parts of landed files that earlier runs recorded, and the landed files that may contain something new."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from pgoutput_etl.landing.fingerprint import (
    FilePart,
    FileStatus,
    KnownContents,
    LandedFile,
    Prefix,
    UnkeyedContents,
    uncompressed_name,
)

_DIGITS = re.compile(r"(\d+)")


@lru_cache(1 << 14)  # a run with thousands of new files needs each one's key several times
def natural_order(path: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key for paths: runs of digits count as numbers, so 9.bin comes before 10.bin."""
    parts = _DIGITS.split(path)
    return tuple((0, int(part), part) if i % 2 else (1, 0, part) for i, part in enumerate(parts))


@dataclass(frozen=True)
class KnownFiles:
    """The ledger's records of all files, or only those that matter to a run (file_index.py).

    parts: by number. roots: for each part, the first part of its content. names: by first part, the last path of each
    content that was read. by_path: the last record of each path. extended: parts that a later one continues. unread: by
    path, the last record of each file that no run has read any bytes of. last: the part where the archive ends.
    other_newest: the last name, in archive order, among contents that are not in `names`.
    """

    parts: Mapping[int, FilePart]
    roots: Mapping[int, int]
    names: Mapping[int, str]
    by_path: Mapping[str, tuple[int, FilePart]]
    extended: Collection[int]
    unread: Mapping[str, int]
    last: int | None
    next_number: int
    other_newest: str | None = None

    @cached_property
    def newest(self) -> str | None:
        """The last name, in archive order, among the names of contents."""
        return newest_of([*self.names.values(), self.other_newest])

    @property
    def left_unread(self) -> dict[str, int]:
        """The unread files that sort before files that were read, and that tables may depend on."""
        newest = None if self.newest is None else natural_order(self.newest)
        needed = {path: n for path, n in self.unread.items() if not self.by_path[path][1].is_needless}
        return {path: n for path, n in needed.items() if newest is not None and natural_order(path) < newest}

    def places(self, paths: Collection[str]) -> set[str]:
        """All paths that matter when files with these paths are selected."""
        return {*paths, *map(uncompressed_name, paths), *self.names.values(), *self.by_path, *self.unread}

    def contents(self, unkeyed: UnkeyedContents | None = None) -> KnownContents:
        """The contents that new files may begin with. unkeyed: contents without heads for lookup."""
        return KnownContents.of((self._prefix(n, part) for n, part in self.parts.items() if part.has_content), unkeyed)

    def _prefix(self, number: int, part: FilePart) -> Prefix:
        is_refused = part.status == FileStatus.REFUSED.value
        name = uncompressed_name(part.path if is_refused else self.names[self.roots[number]])
        distinctive, continued = part.distinctive and not is_refused, number in self.extended
        content = (part.consumed, part.prefix_hash or "", number)
        return Prefix(*content, name, distinctive, continued, part.framing, part.ends_in_stream)


NOTHING_KNOWN = KnownFiles({}, {}, {}, {}, frozenset(), {}, last=None, next_number=0)


def newest_of(paths: Iterable[str | None]) -> str | None:
    return max((path for path in paths if path is not None), key=natural_order, default=None)


def candidates(landed: Iterable[LandedFile], known: KnownFiles) -> dict[int, LandedFile]:
    """The files that may have new content, by the number that each gets if they are read in name order."""
    files = {file.path: file for file in landed}
    chosen = {path: file for path, file in files.items() if not is_unchanged(file, known)}
    last = None if known.last is None else known.names[known.roots[known.last]]
    left_unread = known.left_unread
    for path in known.unread:
        part = known.by_path[path][1]
        # A version that didn't check whether bytes can become a message recorded no reason for leaving them.
        is_due = path in left_unread or part.reason is None
        if path in files and part.is_left and (chosen or is_due):
            chosen[path] = files[path]
    if chosen and last in files and known.by_path[last][1].unfinished:
        chosen[last] = files[last]
    in_order = sorted(chosen.values(), key=lambda file: (file.path != last, natural_order(file.path)))
    return dict(enumerate(in_order, start=known.next_number))


def is_unchanged(file: LandedFile, known: KnownFiles) -> bool:
    """True if the last record of the path has the file's size and time."""
    _, part = known.by_path.get(file.path, (None, None))
    return part is not None and part.listed == file
