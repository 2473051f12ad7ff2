"""Parts of landed files that earlier runs recorded, and the landed files that may hold something new."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

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


def natural_order(path: str) -> tuple[tuple[int, int, str], ...]:
    """A key to sort paths by: runs of digits count as numbers, so that 9.bin comes before 10.bin."""
    parts = _DIGITS.split(path)
    return tuple((0, int(part), part) if i % 2 else (1, 0, part) for i, part in enumerate(parts))


@dataclass(frozen=True)
class KnownFiles:
    """What the ledger has of files and parts of files: of all (`of`), or of those that matter to a run (file_index.py).

    parts: by number. roots: of each of these, the first part of its content. names: by first part, where the content
    was found last, if anything of it was read. by_path: what was said of a path last. extended: the parts that a later
    one goes on from. left: the files of which a run left all bytes, and none has read any since, by path: the number
    under which that was noted last. last: the part where the archive ends. other_newest: the last name, in the
    archive's order, of contents that are not among `names`.
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

    @classmethod
    def of(cls, parts: Mapping[int, FilePart]) -> KnownFiles:
        in_order = dict(sorted(parts.items()))
        roots: dict[int, int] = {}
        for number, part in in_order.items():
            roots[number] = number if part.same_as is None else roots[part.same_as]
        read = [number for number, part in in_order.items() if part.was_read]
        return cls(
            in_order,
            roots,
            _names(in_order, roots, {roots[number] for number in read}),
            {part.path: (number, part) for number, part in in_order.items()},
            {before for number in read if (before := in_order[number].same_as) is not None},
            _left(in_order),
            max(read, default=None),
            max(in_order, default=-1) + 1,
        )

    @cached_property
    def newest(self) -> str | None:
        """Of the names under which contents were found last, the last one in the archive's order."""
        return newest_of([*self.names.values(), self.other_newest])

    @property
    def left_unread(self) -> dict[str, int]:
        """Of the files that were left, those behind which others were read since."""
        newest = self.newest
        if newest is None:
            return {}
        return {path: n for path, n in self.unread.items() if natural_order(path) < natural_order(newest)}

    def places(self, looked_at: Iterable[str]) -> set[str]:
        """All paths that matter if files with the paths `looked_at` are arranged."""
        paths = set(looked_at)
        return {*paths, *map(uncompressed_name, paths), *self.names.values(), *self.by_path, *self.unread}

    def contents(self, unkeyed: UnkeyedContents | None = None) -> KnownContents:
        """`unkeyed`: those that can't be looked up."""
        found = []
        for number, part in self.parts.items():
            refused = part.status == FileStatus.REFUSED.value
            if part.has_content:
                name = part.path if refused else self.names[self.roots[number]]
                found.append(
                    Prefix(
                        part.consumed,
                        part.prefix_hash or "",
                        number,
                        uncompressed_name(name),
                        part.distinctive and not refused,
                        number in self.extended,
                        part.framing,
                        part.ends_in_stream,
                    )
                )
        return KnownContents.of(found, unkeyed)


def _names(parts: Mapping[int, FilePart], roots: Mapping[int, int], read_roots: Collection[int]) -> dict[int, str]:
    kept = (FileStatus.READ.value, FileStatus.MOVED.value)
    named = {roots[number]: part.path for number, part in parts.items() if part.status in kept}
    return {root: path for root, path in named.items() if root in read_roots}


def _left(parts: Mapping[int, FilePart]) -> dict[str, int]:
    """A file that was set aside since is left still."""
    found: dict[str, int] = {}
    for number, part in parts.items():
        if part.is_left:
            found[part.path] = number
        elif part.status != FileStatus.REFUSED.value:
            found.pop(part.path, None)
    return found


def newest_of(paths: Iterable[str | None]) -> str | None:
    return max((path for path in paths if path is not None), key=natural_order, default=None)


def candidates(landed: Iterable[LandedFile], known: KnownFiles) -> dict[int, LandedFile]:
    """The files that may hold something new, by the number that each gets if its place is its name's."""
    files = {file.path: file for file in landed}
    found = {path: file for path, file in files.items() if not _is_as_it_was(file, known)}
    last = None if known.last is None else known.names[known.roots[known.last]]
    behind = known.left_unread
    for path in known.unread:
        part = known.by_path[path][1]
        # A version that didn't ask whether bytes can become a message gave no reason for leaving them.
        is_due = path in behind or part.reason is None
        if path in files and part.is_left and (found or is_due):
            found[path] = files[path]
    if found and last in files and is_unfinished(last, known):
        found[last] = files[last]
    in_order = sorted(found.values(), key=lambda file: (file.path != last, natural_order(file.path)))
    return dict(enumerate(in_order, start=known.next_number))


def _is_as_it_was(file: LandedFile, known: KnownFiles) -> bool:
    _, part = known.by_path.get(file.path, (None, None))
    return part is not None and (part.size, part.modified) == (file.size, file.modified)


def is_unfinished(path: str, known: KnownFiles) -> bool:
    return known.by_path[path][1].unfinished
