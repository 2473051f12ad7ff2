"""Selects the files and records that matter to a run, from a listing and from the ledger's records in columns.

Unchanged files never become Python objects. No matter how large the archive is, a run only considers new and changed
files, the contents with their names, the content where the archive ends, and contents that begin with the same few
bytes as a new file. `KnownFiles` decides about these as if it had all records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType

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

_FIELDS = [pa.field(column.name, _TYPES[str(column.type).partition(" ")[0]]) for column in fields(FilePart)]

INDEX_SCHEMA = pa.schema([pa.field("file", pa.int64()), *_FIELDS])

LISTING_SCHEMA = pa.schema([("path", pa.string()), ("size", pa.int64()), ("modified", pa.int64())])

_SUFFIX = r"(?i)\.(gz|zst|lz4|bz2)$"

_MILLISECOND = 1000  # Hadoop's times have no microseconds

_EVIDENCE = 3  # names to check before a new one, to see whether names are numbered


Rows = npt.NDArray[np.int64]

Flags = npt.NDArray[np.bool_]

# Scans files, given by path with the contents that they may begin with. Returns scans and errors by file number.
Scan = Callable[[Mapping[str, ScanTask], KnownContents], tuple[Mapping[int, FileScan], Mapping[int, ScanError]]]


@dataclass(frozen=True, slots=True)
class Listing:
    """The landing folder's files (LISTING_SCHEMA). not_plain: by path, the error for everything else among them, such
    as links; always empty for storage that Spark lists."""

    table: pa.Table
    not_plain: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Iterable[LandedFile], not_plain: Mapping[str, str] = MappingProxyType({})) -> Listing:
        return cls(pa.Table.from_pylist([asdict(file) for file in files], LISTING_SCHEMA), dict(not_plain))

    def under_uris(self, scheme: str = "file") -> Listing:
        """The listing of local files with Spark's paths and times, in milliseconds."""
        path, modified = self.table.column("path"), self.table.column("modified")
        uris = pc.binary_join_element_wise(f"{scheme}:", path, "")
        times = pc.multiply(pc.divide(modified, _MILLISECOND), _MILLISECOND)
        table = pa.table([uris, self.table.column("size"), times], LISTING_SCHEMA)
        return Listing(table, {f"{scheme}:{path}": reason for path, reason in self.not_plain.items()})

    def with_content(self) -> Listing:
        """The listing without empty files."""
        return replace(self, table=self.table.filter(pc.greater(self.table.column("size"), 0)))

    def files(self, chosen: pa.Array | pa.ChunkedArray | None = None) -> list[LandedFile]:
        table = self.table if chosen is None else self.table.filter(chosen)
        return [LandedFile(**row) for row in table.to_pylist()]

    def named(self, paths: Collection[str]) -> list[LandedFile]:
        """The files with these paths."""
        return self.files(pc.is_in(self.table.column("path"), pa.array(sorted(paths), pa.string())))

    def files_not_in(self, other: Listing) -> list[LandedFile]:
        """The files whose paths another listing lacks."""
        return self.files(pc.invert(pc.is_in(self.table.column("path"), other.table.column("path").combine_chunks())))

    def among(self, paths: Collection[str]) -> frozenset[str]:
        """The subset of paths that exist."""
        return frozenset(file.path for file in self.named(paths))


class FileIndex:
    """Parts of files (INDEX_SCHEMA), with unique numbers. A row number is a part's position in the order of numbers."""

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

    @classmethod
    def of_columns(cls, columns: pa.Table) -> FileIndex:
        """columns: from the ledger's table `files`, as in INDEX_SCHEMA except that `modified` is a timestamp."""
        modified = columns.column("modified").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        at = columns.column_names.index("modified")
        return cls(columns.set_column(at, "modified", modified).select(INDEX_SCHEMA.names).cast(INDEX_SCHEMA))

    def with_parts(self, parts: Mapping[int, FilePart]) -> FileIndex:
        """The index plus the parts of a batch that has begun, which it may already have."""
        others = pc.invert(pc.is_in(self._column("file"), pa.array(sorted(parts), pa.int64())))
        return FileIndex(pa.concat_tables([self.table.filter(others), FileIndex.of(parts).table]))

    @property
    def next_number(self) -> int:
        return int(self._file[-1]) + 1 if len(self._file) else 0

    def to_inspect(self, listing: Listing) -> list[LandedFile]:
        """The files that are new or changed, or have bytes left to read; no other file is a candidate."""
        changed = self._changed(listing)
        paths = {file.path for file in changed}
        left = listing.named([self._path(row) for row in (*self._left, *self._name_of_last)])
        return [*changed, *(file for file in left if file.path not in paths)]

    def tails(self, listing: Listing) -> list[FilePart]:
        """The last records of listed files that have bytes left for a later run."""
        has_tail = self._has_status(FileStatus.READ, FileStatus.MOVED) & self._flags("unfinished")
        parts = self._parts(self._latest[has_tail[self._latest]].tolist()).values()
        listed = listing.among([part.path for part in parts])
        return [part for part in parts if part.path in listed]

    def refused(self, listing: Listing) -> list[FilePart]:
        """The last records of listed files that were set aside and have not changed since."""
        is_set_aside = self._has_status(FileStatus.REFUSED, FileStatus.UNREADABLE)
        parts = self._parts(self._latest[is_set_aside[self._latest]].tolist()).values()
        landed = {*listing.named([part.path for part in parts])}
        return [part for part in parts if part.listed in landed]

    def known(self, paths: Collection[str], numbers: Iterable[int] = ()) -> KnownFiles:
        """The records that matter to files with these paths, and to parts with these numbers."""
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
        return self.known(self._paths.dictionary.to_pylist(), self._file.tolist())

    def unkeyed(self) -> UnkeyedContents | None:
        """Contents without a head for lookup, because an older version recorded them; None if all have one."""
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
        salvages: bool = False,
    ) -> tuple[FileSelection, dict[int, FileScan]]:
        """Selects among files that were scanned with the contents of `known`. Also returns their current scans.
        salvages: as in select_files.

        Calls `scan` at most once, for files that may begin with other contents.
        """
        tasks = scan_tasks(files)
        candidates = self._further_contents({n: file.path for n, file in files.items()}, scans, errors, known)
        scans, errors, changed = dict(scans), dict(errors), set[int]()
        if candidates:
            known = self.known(tasks, set[int]().union(*candidates.values()))
            doubtful = {path: task for path, task in tasks.items() if task.number in candidates}
            closer, closer_errors = scan(doubtful, known.contents())
            changed = {n for n, result in closer.items() if n in errors or result.same_as != scans[n].same_as}
            for n, result in closer.items():
                scans[n] = result if n in changed else replace(scans[n], resembles=result.resembles)
            errors = {n: error for n, error in {**errors, **closer_errors}.items() if n not in closer}
            scans = {n: result for n, result in scans.items() if n not in errors}
        selection = select_files(files, scans, errors, known, listing.among(known.places(tasks)), salvages)
        if changed.intersection(selection.to_read):
            selection = replace(selection, rescan=True)
        return selection, scans

    def _further_contents(
        self,
        paths: Mapping[int, str],
        scans: Mapping[int, FileScan],
        errors: Mapping[int, ScanError],
        known: KnownFiles,
    ) -> dict[int, set[int]]:
        """The parts outside `known` that each scanned file may copy or continue, by file number. Leaves out files with
        the content that is known under their name."""
        results: dict[int, FileScan | ScanError] = {**scans, **errors}
        by_head = self._by_head({head for result in results.values() for head in result.heads})
        further = {}
        for number, result in results.items():
            if isinstance(result, FileScan) and _is_known_by_name(paths[number], result.same_as, known):
                continue
            parts = {part for head in result.heads for part, size in by_head.get(head, ()) if size >= result.offset}
            parts.update(result.unkeyed)
            if parts - known.parts.keys():
                further[number] = parts
        return further

    def around(self, paths: Collection[str]) -> list[str]:
        """The known paths from the first of these on, in archive order, and a few before it."""
        names, key = self._paths.dictionary.to_pylist(), self._keys.__getitem__
        in_order = sorted(range(len(names)), key=key)
        first = bisect_left(in_order, min(map(natural_order, paths)), key=key)
        return [names[code] for code in in_order[max(first - _EVIDENCE, 0) :]]

    def _column(self, name: str) -> pa.ChunkedArray:
        return self.table.column(name)

    def _numbers(self, name: str) -> Rows:
        return np.asarray(self._column(name).fill_null(-1), np.int64)

    def _flags(self, name: str) -> Flags:
        return np.asarray(self._column(name).fill_null(False), np.bool_)

    def _has(self, name: str) -> Flags:
        return np.asarray(self._column(name).is_valid(), np.bool_)

    def _has_status(self, *status: FileStatus) -> Flags:
        return np.asarray(pc.is_in(self._column("status"), pa.array([s.value for s in status])), np.bool_)

    def _find_roots(self) -> Rows:
        """The row of each part's first part, found by pointer jumping: each step doubles the distance."""
        roots = np.arange(len(self._file), dtype=np.int64)
        continues = self._has("same_as")
        roots[continues] = np.searchsorted(self._file, self._numbers("same_as")[continues])
        while not np.array_equal(roots, further := roots[roots]):
            roots = further
        return roots

    @cached_property
    def _extended(self) -> Rows:
        """The numbers of parts that are continued by a later one."""
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
        """Per row, the code of its path in `_paths`."""
        return np.asarray(self._paths.indices, np.int64)

    @cached_property
    def _keys(self) -> list[tuple[tuple[int, int, str], ...]]:
        """The sort key of each path, by its code."""
        return [natural_order(path) for path in self._paths.dictionary.to_pylist()]

    @cached_property
    def _latest(self) -> Rows:
        """The last row of each path, by its code."""
        return _last_of(self._codes, np.arange(len(self._file)), len(self._paths.dictionary))

    @cached_property
    def _last_read(self) -> Rows:
        """The last read row of each content, by its root; -1 if there is none."""
        read = np.flatnonzero(self._was_read)
        return _last_of(self._roots[read], read, len(self._file))

    @cached_property
    def _name_rows(self) -> Rows:
        """The last row that names each content that was read, by its root; -1 for other rows."""
        naming = np.flatnonzero(self._has_status(FileStatus.READ, FileStatus.MOVED))
        return np.where(self._last_read >= 0, _last_of(self._roots[naming], naming, len(self._file)), -1)

    @cached_property
    def _last(self) -> list[int]:
        """The row where the archive ends, if any."""
        return _listed(np.flatnonzero(self._was_read)[-1:])

    @cached_property
    def _name_of_last(self) -> list[int]:
        return [int(self._name_rows[self._roots[row]]) for row in self._last]

    @cached_property
    def _left(self) -> list[int]:
        """The last row of each file that no run has read any bytes of. A refused file is still unread."""
        not_refused = np.flatnonzero(~self._has_status(FileStatus.REFUSED))
        last = _last_of(self._codes[not_refused], not_refused, len(self._paths.dictionary))
        is_left = self._is_read & (self._consumed == 0) & self._flags("unfinished")
        is_left |= self._has_status(FileStatus.UNREADABLE)
        rows = last[last >= 0]
        return _listed(np.sort(rows[is_left[rows]]))

    def _path(self, row: int) -> str:
        path: str = self._column("path")[row].as_py()
        return path

    def _parts(self, rows: Iterable[int]) -> dict[int, FilePart]:
        records = self.table.take(pa.array(sorted(rows), pa.int64())).to_pylist()
        return {record.pop("file"): FilePart(**record) for record in records}

    def _rows_of(self, numbers: Iterable[int]) -> list[int]:
        return _listed(np.searchsorted(self._file, np.array([*numbers], np.int64)))

    def _latest_of(self, paths: Iterable[str]) -> list[int]:
        codes = pc.drop_null(pc.index_in(pa.array(sorted(set(paths)), pa.string()), self._paths.dictionary))
        return _listed(self._latest[np.asarray(codes, np.int64)])

    def _bearing(self, paths: Iterable[str]) -> list[int]:
        """The last rows of contents with these names, compressed or not, and the rows refused under these names."""
        plain = pc.replace_substring_regex(self._paths.dictionary, _SUFFIX, "")
        names = pa.array(sorted({uncompressed_name(path) for path in paths}), pa.string())
        has_name = np.asarray(pc.is_in(plain, names), np.bool_)
        roots = np.flatnonzero(self._name_rows >= 0)
        roots = roots[has_name[self._codes[self._name_rows[roots]]]]
        refused = self._has_content & self._has_status(FileStatus.REFUSED) & has_name[self._codes]
        return [*self._last_read[roots].tolist(), *np.flatnonzero(refused).tolist()]

    def _by_head(self, heads: Collection[str]) -> dict[str, list[tuple[int, int]]]:
        """Numbers and sizes of the contents that have one of these heads, by head."""
        has_head = np.asarray(pc.is_in(self._column("head"), pa.array(sorted(heads), pa.string())), np.bool_)
        rows = np.flatnonzero(has_head & self._has_content)
        found = self._column("head").take(pa.array(rows)).to_pylist()
        contents: dict[str, list[tuple[int, int]]] = {}
        for head, number, size in zip(found, self._file[rows].tolist(), self._consumed[rows].tolist(), strict=True):
            contents.setdefault(head, []).append((number, size))
        return contents

    def _newest_but(self, roots: Collection[int]) -> str | None:
        """The last name, in archive order, among all other contents."""
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
    """Tasks to scan whole files, by path."""
    newest = max(files, default=None)
    return {file.path: ScanTask(number, file.size, may_grow=number == newest) for number, file in files.items()}


def _last_of(groups: Rows, rows: Rows, count: int) -> Rows:
    """The last row of each of `count` groups; -1 for an empty group. groups: the group of each row. rows: ascending."""
    last = np.full(count, -1, np.int64)
    last[groups] = rows
    return last


def _listed(rows: Rows) -> list[int]:
    numbers: list[int] = rows.tolist()
    return numbers


def _is_known_by_name(path: str, number: int | None, known: KnownFiles) -> bool:
    if number is None or number in known.extended:
        return False
    part = known.parts[number]
    name = part.path if part.status == FileStatus.REFUSED.value else known.names[known.roots[number]]
    return uncompressed_name(name) == uncompressed_name(path)
