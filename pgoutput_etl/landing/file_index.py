"""What a run has to know of landed files, picked out of a listing and of all that the ledger has, as columns.

Files that are as they were never become Python objects: whatever the archive's size, a run looks at files that are new
or not as they were, at the contents that bear their names, at the content where the archive ends, and at contents that
begin with the same few bytes as a new file. `KnownFiles` decides about these as it would if it had all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.landing.fingerprint import (
    FilePart,
    FileStatus,
    KnownContents,
    LandedFile,
    ScanTask,
    UnkeyedContents,
    uncompressed_name,
)
from pgoutput_etl.landing.known_files import KnownFiles, natural_order
from pgoutput_etl.landing.selection import FileSelection, select_files
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.message_row import ScanError

_TYPES = {"int": pa.int64(), "str": pa.string(), "bool": pa.bool_()}

_FIELDS = [pa.field(field.name, _TYPES[str(field.type).partition(" ")[0]]) for field in fields(FilePart)]

INDEX_SCHEMA = pa.schema([pa.field("file", pa.int64()), *_FIELDS])

LISTING_SCHEMA = pa.schema([("path", pa.string()), ("size", pa.int64()), ("modified", pa.int64())])

_SUFFIX = r"(?i)\.(gz|zst|lz4|bz2)$"

_EVIDENCE = 3  # names before a new one that tell whether names are numbered


Rows = npt.NDArray[np.int64]

Flags = npt.NDArray[np.bool_]

# Scans files, by their paths, with contents that they may begin with: what is found, or why not, by their numbers.
Scan = Callable[[Mapping[str, ScanTask], KnownContents], tuple[Mapping[int, FileScan], Mapping[int, ScanError]]]


@dataclass(frozen=True, slots=True)
class Listing:
    """The landing folder's files (LISTING_SCHEMA)."""

    table: pa.Table

    @classmethod
    def of(cls, files: Iterable[LandedFile]) -> Listing:
        return cls(pa.Table.from_pylist([asdict(file) for file in files], LISTING_SCHEMA))

    def files(self, chosen: pa.Array | pa.ChunkedArray | None = None) -> list[LandedFile]:
        table = self.table if chosen is None else self.table.filter(chosen)
        return [LandedFile(**row) for row in table.to_pylist()]

    def named(self, paths: Collection[str]) -> list[LandedFile]:
        """Those of these paths that are there."""
        return self.files(pc.is_in(self.table.column("path"), pa.array(sorted(paths), pa.string())))

    def among(self, paths: Collection[str]) -> frozenset[str]:
        """Those of these paths that are there."""
        return frozenset(file.path for file in self.named(paths))


class FileIndex:
    """Parts of files (INDEX_SCHEMA), each number once. A row is a part's place in the order of numbers."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table.take(pc.sort_indices(table, [("file", "ascending")])).combine_chunks()
        self._file = self._numbers("file")
        self._consumed = self._numbers("consumed")
        self._is_read = self._has_status(FileStatus.READ)
        self._was_read = self._is_read & (self._consumed > self._numbers("offset"))
        self._roots = self._find_roots()

    @classmethod
    def of(cls, parts: Mapping[int, FilePart]) -> FileIndex:
        rows = [{"file": number, **asdict(part)} for number, part in parts.items()]
        return cls(pa.Table.from_pylist(rows, INDEX_SCHEMA))

    def with_parts(self, parts: Mapping[int, FilePart]) -> FileIndex:
        """And those of a batch that was begun, some of which may be there."""
        others = pc.invert(pc.is_in(self._column("file"), pa.array(sorted(parts), pa.int64())))
        return FileIndex(pa.concat_tables([self.table.filter(others), FileIndex.of(parts).table]))

    @property
    def next_number(self) -> int:
        return int(self._file[-1]) + 1 if len(self._file) else 0

    # What a run asks for

    def to_inspect(self, listing: Listing) -> list[LandedFile]:
        """The files that are new or not as they were, and those of which bytes were left: no other is a candidate."""
        changed = self._changed(listing)
        seen = {file.path for file in changed}
        left = listing.named([self._path(row) for row in (*self._left, *self._name_of_last)])
        return [*changed, *(file for file in left if file.path not in seen)]

    def tails(self, listing: Listing) -> list[FilePart]:
        """Of the files that are there, those of which bytes were left for a later run."""
        may_wait = self._has_status(FileStatus.READ, FileStatus.MOVED) & self._flags("unfinished")
        parts = self._parts(self._latest[may_wait[self._latest]].tolist()).values()
        there = listing.among([part.path for part in parts])
        return [part for part in parts if part.path in there]

    def known(self, paths: Collection[str], numbers: Iterable[int] = ()) -> KnownFiles:
        """What matters of files with these paths, and of the parts with these numbers."""
        rows = {*self._bearing(paths), *self._left, *self._last, *self._rows_of(numbers)}
        latest = self._latest_of([*paths, *map(self._path, (*self._left, *self._name_of_last))])
        parts = self._parts({*rows, *latest})
        roots = {number: int(self._roots[row]) for number, row in zip(parts, self._rows_of(parts), strict=True)}
        names = {root: row for root in roots.values() if (row := int(self._name_rows[root])) >= 0}
        return KnownFiles(
            parts,
            {number: int(self._file[root]) for number, root in roots.items()},
            {int(self._file[root]): self._path(row) for root, row in names.items()},
            {parts[number].path: (number, parts[number]) for number in self._file[latest].tolist()},
            frozenset(np.intersect1d(self._extended, list(parts)).tolist()),
            {self._path(row): int(self._file[row]) for row in self._left},
            next((int(self._file[row]) for row in self._last), None),
            self.next_number,
            self._newest_but(names),
        )

    def every_file(self) -> KnownFiles:
        return KnownFiles.of(self._parts(range(len(self._file))))

    def unkeyed(self) -> UnkeyedContents | None:
        """The contents that an older version read."""
        rows = np.flatnonzero(self._has_content & ~self._has("head"))
        if not len(rows):
            return None
        hashes = self.table.column("prefix_hash").take(pa.array(rows)).to_pylist()
        return UnkeyedContents.of(zip(self._consumed[rows].tolist(), hashes, self._file[rows].tolist(), strict=True))

    def select(
        self,
        files: Mapping[int, LandedFile],
        listing: Listing,
        known: KnownFiles,
        scans: Mapping[int, FileScan],
        errors: Mapping[int, ScanError],
        scan: Scan,
    ) -> tuple[FileSelection, dict[int, FileScan]]:
        """What to read of files that were scanned with the contents of `known`, and what is known of them now. `scan`
        is called once at the most, for files that may begin with further contents."""
        tasks = scan_tasks(files)
        alike = self._lookalikes({n: file.path for n, file in files.items()}, scans, errors, known)
        found, failed, others = dict(scans), dict(errors), set[int]()
        if alike:
            known = self.known(tasks, set[int]().union(*alike.values()))
            doubtful = {path: task for path, task in tasks.items() if task.number in alike}
            closer, closer_errors = scan(doubtful, known.contents())
            others = {n for n, each in closer.items() if n in errors or each.same_as != scans[n].same_as}
            same = {n: replace(scans[n], resembles=each.resembles) for n, each in closer.items() if n not in others}
            found |= same | {n: closer[n] for n in others}
            failed = {n: error for n, error in {**errors, **closer_errors}.items() if n not in closer}
            found = {n: each for n, each in found.items() if n not in failed}
        arrangement = select_files(files, found, failed, known, listing.among(known.places(tasks)))
        if others.intersection(arrangement.to_read):
            arrangement = replace(arrangement, rescan=True)
        return arrangement, found

    def _lookalikes(
        self,
        paths: Mapping[int, str],
        scans: Mapping[int, FileScan],
        errors: Mapping[int, ScanError],
        known: KnownFiles,
    ) -> dict[int, set[int]]:
        """By the numbers of files that were scanned with the contents of `known`: parts of which a file may be more,
        or a copy. Not of a file that is known to be what its name says."""
        looked_at: dict[int, FileScan | ScanError] = {**scans, **errors}
        by_head = self._by_head({head for scan in looked_at.values() for head in scan.heads})
        found = {}
        for number, scan in looked_at.items():
            if isinstance(scan, FileScan) and _is_known_by_name(paths[number], scan.same_as, known):
                continue
            alike = [each for head in scan.heads for each in by_head.get(head, ())]
            like = {part for part, size in alike if size >= scan.offset} | set(scan.unkeyed)
            if like - known.parts.keys():
                found[number] = like
        return found

    def around(self, paths: Collection[str]) -> list[str]:
        """The known paths that sort where these do or behind them, and the few before them."""
        names, key = self._paths.dictionary.to_pylist(), self._keys.__getitem__
        in_order = sorted(range(len(names)), key=key)
        first = bisect_left(in_order, min(map(natural_order, paths)), key=key)
        return [names[code] for code in in_order[max(first - _EVIDENCE, 0) :]]

    # Columns

    def _column(self, name: str) -> pa.ChunkedArray:
        return self.table.column(name)

    def _numbers(self, name: str) -> Rows:
        return np.asarray(self._column(name).fill_null(-1), np.int64)

    def _flags(self, name: str) -> Flags:
        return np.asarray(self._column(name).fill_null(False), np.bool_)

    def _has(self, name: str) -> Flags:
        return np.asarray(self._column(name).is_valid(), np.bool_)

    def _has_status(self, *status: FileStatus) -> Flags:
        return np.asarray(pc.is_in(self._column("status"), pa.array([each.value for each in status])), np.bool_)

    def _find_roots(self) -> Rows:
        """The row of each part's first part: by way of the part before it, and then by twice as many at each step."""
        roots = np.arange(len(self._file), dtype=np.int64)
        goes_on = self._has("same_as")
        roots[goes_on] = np.searchsorted(self._file, self._numbers("same_as")[goes_on])
        while not np.array_equal(roots, further := roots[roots]):
            roots = further
        return roots

    @cached_property
    def _extended(self) -> Rows:
        """The numbers of parts that a later one goes on from."""
        return np.unique(self._numbers("same_as")[self._was_read & self._has("same_as")])

    @cached_property
    def _has_content(self) -> Flags:
        is_known = self._was_read | self._has_status(FileStatus.REFUSED)
        return is_known & (self._consumed > 0) & self._has("prefix_hash")

    @cached_property
    def _paths(self) -> pa.DictionaryArray:
        return self._column("path").combine_chunks().dictionary_encode()

    @cached_property
    def _codes(self) -> Rows:
        """Of each row, the place of its path among all paths."""
        return np.asarray(self._paths.indices, np.int64)

    @cached_property
    def _keys(self) -> list[tuple[tuple[int, int, str], ...]]:
        """Of each path, by its code, what it is sorted by."""
        return [natural_order(path) for path in self._paths.dictionary.to_pylist()]

    # Rows, of which -1 is none

    @cached_property
    def _latest(self) -> Rows:
        """Of each path, by its code, the last row."""
        return _last_of(self._codes, np.arange(len(self._file)), len(self._paths.dictionary))

    @cached_property
    def _last_read(self) -> Rows:
        """Of each content, by its root, the last row that was read."""
        read = np.flatnonzero(self._was_read)
        return _last_of(self._roots[read], read, len(self._file))

    @cached_property
    def _name_rows(self) -> Rows:
        """Of each content that was read, by its root, the last row that names it."""
        naming = np.flatnonzero(self._has_status(FileStatus.READ, FileStatus.MOVED))
        return np.where(self._last_read >= 0, _last_of(self._roots[naming], naming, len(self._file)), -1)

    @cached_property
    def _last(self) -> list[int]:
        """Where the archive ends: one row, or none."""
        return _listed(np.flatnonzero(self._was_read)[-1:])

    @cached_property
    def _name_of_last(self) -> list[int]:
        return [int(self._name_rows[self._roots[row]]) for row in self._last]

    @cached_property
    def _left(self) -> list[int]:
        """Of files of which all bytes were left, and none has been read since. What is set aside is left still."""
        counted = np.flatnonzero(~self._has_status(FileStatus.REFUSED))
        last = _last_of(self._codes[counted], counted, len(self._paths.dictionary))
        is_left = self._is_read & (self._consumed == 0) & self._flags("unfinished")
        rows = last[last >= 0]
        return _listed(np.sort(rows[is_left[rows]]))

    # Choices

    def _path(self, row: int) -> str:
        path: str = self._column("path")[row].as_py()
        return path

    def _parts(self, rows: Iterable[int]) -> dict[int, FilePart]:
        chosen = self.table.take(pa.array(sorted(rows), pa.int64())).to_pylist()
        return {row.pop("file"): FilePart(**row) for row in chosen}

    def _rows_of(self, numbers: Iterable[int]) -> list[int]:
        return _listed(np.searchsorted(self._file, np.array([*numbers], np.int64)))

    def _latest_of(self, paths: Iterable[str]) -> list[int]:
        codes = pc.drop_null(pc.index_in(pa.array(sorted(set(paths)), pa.string()), self._paths.dictionary))
        return _listed(self._latest[np.asarray(codes, np.int64)])

    def _bearing(self, paths: Iterable[str]) -> list[int]:
        """The last rows of contents that bear these names, compressed or not, and the rows of those refused under
        them."""
        plain = pc.replace_substring_regex(self._paths.dictionary, _SUFFIX, "")
        asked = pa.array(sorted({uncompressed_name(path) for path in paths}), pa.string())
        is_asked = np.asarray(pc.is_in(plain, asked), np.bool_)
        roots = np.flatnonzero(self._name_rows >= 0)
        roots = roots[is_asked[self._codes[self._name_rows[roots]]]]
        refused = self._has_content & self._has_status(FileStatus.REFUSED) & is_asked[self._codes]
        return [*self._last_read[roots].tolist(), *np.flatnonzero(refused).tolist()]

    def _by_head(self, heads: Collection[str]) -> dict[str, list[tuple[int, int]]]:
        """Numbers and sizes of contents that have one of these heads."""
        is_asked = np.asarray(pc.is_in(self._column("head"), pa.array(sorted(heads), pa.string())), np.bool_)
        rows = np.flatnonzero(is_asked & self._has_content)
        found: dict[str, list[tuple[int, int]]] = {}
        for head, number, size in zip(
            self._column("head").take(pa.array(rows)).to_pylist(), self._file[rows], self._consumed[rows], strict=True
        ):
            found.setdefault(head, []).append((int(number), int(size)))
        return found

    def _newest_but(self, roots: Collection[int]) -> str | None:
        """The last name, in the archive's order, of all other contents."""
        rows = np.delete(self._name_rows, list(roots))
        codes = self._codes[rows[rows >= 0]]
        if not len(codes):
            return None
        newest: str = self._paths.dictionary[max(np.unique(codes).tolist(), key=self._keys.__getitem__)].as_py()
        return newest

    def _changed(self, listing: Listing) -> list[LandedFile]:
        codes = pc.index_in(listing.table.column("path"), self._paths.dictionary)
        is_known = np.asarray(pc.is_valid(codes), np.bool_)
        rows = self._latest[np.asarray(codes.fill_null(0), np.int64)[is_known]]
        is_same = is_known.copy()
        for name in ("size", "modified"):
            now = np.asarray(listing.table.column(name), np.int64)
            is_same[is_known] &= now[is_known] == self._numbers(name)[rows]
        return listing.files(pa.array(~is_same))


def scan_tasks(files: Mapping[int, LandedFile]) -> dict[str, ScanTask]:
    """By path: each file whole."""
    return {file.path: ScanTask(number, file.size) for number, file in files.items()}


def _last_of(groups: Rows, rows: Rows, count: int) -> Rows:
    """Of each of `count` groups, the last row; -1 if it has none. `groups`: of the rows, which ascend."""
    found = np.full(count, -1, np.int64)
    found[groups] = rows
    return found


def _listed(rows: Rows) -> list[int]:
    found: list[int] = rows.tolist()
    return found


def _is_known_by_name(path: str, number: int | None, known: KnownFiles) -> bool:
    if number is None or number in known.extended:
        return False
    part = known.parts[number]
    name = part.path if part.status == FileStatus.REFUSED.value else known.names[known.roots[number]]
    return uncompressed_name(name) == uncompressed_name(path)
