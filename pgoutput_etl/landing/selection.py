"""Decides which landed files a run reads, their order, and what it records about the others.

All candidates are scanned first. Their content shows which of them are new, which one continues the archive's end, and
which were read before; this and their names determine the order. A content goes by the name it was last found under, so
a renamed file has the position of its new name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from pgoutput_etl.errors import ArchiveError, FramingError, RunError, without_offset
from pgoutput_etl.landing.fingerprint import (
    DISTINCTIVE_TAGS,
    FilePart,
    FileStatus,
    LandedFile,
    head_of,
    uncompressed_name,
)
from pgoutput_etl.landing.known_files import KnownFiles, natural_order, newest_of
from pgoutput_etl.landing.sequence_gaps import is_consecutive
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.message_row import ScanError


@dataclass(frozen=True, slots=True)
class FileSelection:
    """parts: by number, the parts to read, in order, and the parts that are only recorded.

    rescan: the parts to read must be scanned again, because their scans have other numbers or positions.
    """

    parts: dict[int, FilePart]
    rescan: bool
    remarks: tuple[str, ...] = ()

    def with_status(self, *status: FileStatus) -> dict[int, FilePart]:
        return {n: part for n, part in self.parts.items() if part.status in {s.value for s in status}}

    @property
    def to_read(self) -> dict[int, FilePart]:
        return self.with_status(FileStatus.READ)

    @property
    def in_order(self) -> dict[int, FilePart]:
        """The parts that have a place in the archive's order."""
        return self.with_status(FileStatus.READ, FileStatus.UNREADABLE)


def select_files(
    files: Mapping[int, LandedFile],
    scans: Mapping[int, FileScan],
    errors: Mapping[int, ScanError],
    known: KnownFiles,
    landed: Collection[str],
    salvages: bool = False,
) -> FileSelection:
    """landed: all existing paths. salvages: sets hopeless files aside. Raises ArchiveError for unreadable files, and
    RunError for files that arrive too late."""
    paths = frozenset(landed)
    if not salvages:
        errors = {n: replace(error, is_hopeless=error.is_ignored) for n, error in errors.items()}
    partial = {n for n, file in files.items() if _is_being_compressed(file.path, scans.get(n), paths)}
    selector = _Selector({n: file for n, file in files.items() if n not in partial}, scans, errors, known, paths)
    selector.remarks += [f"{files[n].path}: left for the next run; it is still being compressed" for n in partial]
    return selector.select()


def _same_name(one: str, other: str) -> bool:
    """True for the names of a file before and after its compression."""
    return uncompressed_name(one) == uncompressed_name(other)


def _is_being_compressed(path: str, scan: FileScan | None, landed: Collection[str]) -> bool:
    """While a.bin.gz is being written, a.bin still exists and has the whole content."""
    plain = uncompressed_name(path)
    return plain != path and plain in landed and (scan is None or scan.tail is not None)


class _Selector:
    def __init__(
        self,
        files: Mapping[int, LandedFile],
        scans: Mapping[int, FileScan],
        errors: Mapping[int, ScanError],
        known: KnownFiles,
        landed: frozenset[str],
    ) -> None:
        self.files, self.scans, self.errors, self.known, self.landed = files, dict(scans), errors, known, landed
        self.numbers = {file.path: number for number, file in files.items()}
        self.names = dict(known.names)
        self.newest: str | None = None
        # Files whose content was not read before
        self.fresh = {n for n in files if n in errors or scans[n].same_as is None}
        self.recorded: list[FilePart] = []
        self.same: list[FilePart] = []
        # Files without anything new except an incomplete message
        self.own_ends: set[int] = set()
        # A file has the content read last under another name
        self.has_renamed = False
        self.rescan = False
        self.remarks = [
            f"{file.path}: {scans[n].remark}" for n, file in files.items() if n in scans and scans[n].remark
        ]

    def select(self) -> FileSelection:
        for number in sorted(self.fresh - set(self.errors), key=lambda n: natural_order(self.files[n].path)):
            self._recognize_renamed(number)
        grown = self._sort_out_known()
        self.newest = newest_of([*self.names.values(), self.known.other_newest])
        new = self._in_order(self._new_files(grown))
        if any(part.was_read or part.unfinished for part in new.values()):
            self._report_missing()
        else:
            waiting = [part for part in grown.values() if not part.was_read]
            grown = {number: part for number, part in grown.items() if part.was_read}
            self.recorded += [replace(p, status=FileStatus.MOVED.value) for p in waiting if self._has_moved(p)]
            self.remarks += [tail_remark(part) for part in waiting if not self._has_moved(part)]
        numbers = [*grown, *new]
        rescan = self.rescan or numbers != sorted(numbers)
        renumbered = dict(zip(numbers, range(self.known.next_number, 2**63) if rescan else numbers, strict=False))
        ordered = {renumbered[number]: part for number, part in (grown | new).items()}
        may_have_rows = [part for part in ordered.values() if part.was_read or part.unfinished]
        rescan = rescan or any(part.unfinished for part in may_have_rows[:-1])
        next_number = max([self.known.next_number - 1, *ordered]) + 1
        if ordered or self.recorded:  # unchanged files alone don't make a batch
            self.recorded += self.same
        recorded = {
            number: part if part.same_as not in renumbered else replace(part, same_as=renumbered[part.same_as])
            for number, part in enumerate(self.recorded, next_number)
        }
        return FileSelection(ordered | recorded, rescan, tuple(self.remarks))

    def _record(self, number: int, status: FileStatus) -> None:
        self.recorded.append(self._part(number, status))

    def _recognize_renamed(self, number: int) -> None:
        """Recognizes a file that begins with the content read last, if no file has that content under its old name
        anymore, compressed or not.

        If all messages of that content are the same, a new file may also begin with it. This raises RunError, unless
        another file has taken the old name. Of several files that begin with the content, the one that sorts first has
        the bytes that were read, as if all were new.
        """
        scan, last = self.scans[number], self.known.last
        if self.has_renamed or scan.resembles is None or scan.resembles != last:
            return
        root, before = self.known.roots[last], self.known.parts[last]
        name = self.known.names[root]
        if any(path != name and _same_name(path, name) and self._holds(path, root) for path in self.numbers):
            return  # it was compressed
        if self._holds(name, root):
            if name not in self.numbers or not self._is_next_before(self.files[number].path, name):
                return
            self._treat_as_new(self.numbers[name])
        if not before.varied and name not in self.landed:
            raise RunError(
                f"{self.files[number].path} begins with the content of {name}, which no longer exists: it may be that "
                f"file under a new name. If it is, rename it to {name} for this run; if not, restore {name} first"
            )
        begins = before.ends_in_stream
        self.scans[number] = replace(scan, same_as=last, offset=before.consumed, begins_in_stream=begins)
        self.fresh.remove(number)
        self.has_renamed = True
        self.rescan = self.rescan or scan.consumed > before.consumed

    def _is_next_before(self, path: str, last: str) -> bool:
        """True if the path sorts before the last name, but after all others."""
        others = [self.known.other_newest, *(name for name in self.known.names.values() if name != last)]
        before = newest_of(others)
        return natural_order(path) < natural_order(last) and newest_of([path, before]) == path

    def _has_moved(self, part: FilePart) -> bool:
        return part.same_as is not None and part.path != self.known.names[self.known.roots[part.same_as]]

    def _report_missing(self) -> None:
        """Reports bytes that were left unread at the archive's end, if their file no longer exists."""
        known, last = self.known, self.known.last
        ends = {path: number for path, number in known.unread.items() if last is None or number > last}
        if last is not None and known.by_path[known.names[known.roots[last]]][1].unfinished:
            ends[self.names[known.roots[last]]] = last
        self.remarks += [
            f"{path}: the bytes after offset {known.parts[number].consumed} were left, and the file no longer exists"
            for path, number in ends.items()
            if path not in self.landed
        ]

    def _sort_out_known(self) -> dict[int, FilePart]:
        """Records files with nothing new. Returns the one that continues the archive's end, if any."""
        grown: dict[int, bool] = {}
        for number in sorted(set(self.files) - self.fresh):
            scan, path = self.scans[number], self.files[number].path
            assert scan.same_as is not None
            root = self.known.roots[scan.same_as]
            if self.known.parts[scan.same_as].status == FileStatus.REFUSED.value:
                if scan.consumed > scan.offset:
                    self.fresh.add(number)  # refused again, because its content has changed
                continue
            name = self.names[root]
            has_moved = path != name and not self._holds(name, root)
            if scan.consumed > scan.offset or (scan.tail is not None and (path == name or has_moved)):
                grown[number] = has_moved or path == name
            elif has_moved:
                self._record(number, FileStatus.MOVED)
                self.names[root] = path
            elif path != name and self._has_own_end(number, name):
                self._treat_as_new(number)
            elif path != name:
                self._record(number, FileStatus.DUPLICATE)
            else:
                self.same.append(self._part(number, FileStatus.SAME))
        return self._continue_end(grown)

    def _continue_end(self, grown: Mapping[int, bool]) -> dict[int, FilePart]:
        """Among the files that continue a known content, finds the one that continues the archive's end: it has the
        same name, or that name no longer exists. In any other file, the known content was sent again, by a server that
        didn't know how much had been received."""
        last = None if self.known.last is None else self.known.roots[self.known.last]
        at_end: dict[int, FilePart] = {}
        for number in sorted(grown, key=lambda n: self.scans[n].consumed == self.scans[n].offset):
            scan, path = self.scans[number], self.files[number].path
            root = self.known.roots[scan.same_as or 0]
            has_more = scan.size > scan.offset
            if root == last and not at_end and grown[number]:
                at_end[number] = self._part(number, FileStatus.READ)
                self.names[root] = path
            elif has_more and path == self.known.names[root] and root != last:
                newest = self.names[last] if last is not None else "another"
                raise RunError(
                    f"{path} has grown since it was read, but {newest} was read after it: the new bytes would come too "
                    "late. Remove the file from the landing folder, or land the new bytes in a file that sorts last. "
                    f"{_ONE_IS_WRONG}"
                )
            elif has_more:
                self._treat_as_new(number)
            elif path != self.names[root]:
                self._record(number, FileStatus.MOVED)
                self.names[root] = path
        return at_end

    def _has_own_end(self, number: int, name: str) -> bool:
        """True if the file ends with an incomplete message that differs from the one at the end of the file with this
        name."""
        scan = self.scans[number]
        holder = self.numbers.get(name)
        same = None if holder is None or holder in self.errors else self.scans[holder].tail_hash
        return scan.size > scan.consumed and scan.tail_hash != same

    def _treat_as_new(self, number: int) -> None:
        """Reads the whole file, because the known content in it was sent again."""
        scan = self.scans[number]
        if scan.consumed == scan.offset:
            self.own_ends.add(number)
        self.scans[number] = replace(scan, same_as=None, offset=0, begins_in_stream=None)
        self.fresh.add(number)
        self.rescan = True

    def _holds(self, path: str, root: int) -> bool:
        """True if the file with this path still has the content with this root."""
        if path not in self.landed:
            return False
        number = self.numbers.get(path)
        if number is None:
            return True
        same_as = None if number in self.errors else self.scans[number].same_as
        return same_as is not None and self.known.roots[same_as] == root

    def _new_files(self, grown: Mapping[int, FilePart]) -> dict[int, FilePart]:
        """The new files, one per content. Records copies, and files that reuse the name of one that was read."""
        used_names = set(self.names.values())
        new: dict[int, FilePart] = {}
        # Also by name: for a copy that has just been made, only the new part was scanned, which may not be distinctive.
        by_content = {
            (part.prefix_hash, name, self.scans[number].tail_hash): number
            for number, part in grown.items()
            for name in ("", uncompressed_name(part.path))
        }
        unreadable = dict[str, str]()
        for number in sorted(self.fresh):
            path, error = self.files[number].path, self.errors.get(number)
            if error is not None and error.is_ignored and (path in used_names or path in self.known.unread):
                self._refuse(number, IGNORED)  # the path already has a place in the order
                continue
            if path in used_names and (error is None or not error.offset):
                self._refuse(number, _OTHER_CONTENT)
                continue
            if error is not None:
                if path in self.known.unread and self._is_late(path):
                    self._refuse(number, LEFT_UNREAD)
                elif error.is_ignored:
                    new[number] = set_aside(self.files[number], IGNORED, frozenset())
                elif error.is_hopeless:
                    part = set_aside(self.files[number], "", None)
                    new[number] = replace(part, reason=f"{error.text}{HELD_FROM_HERE}")
                else:
                    unreadable[path] = error.text
                continue
            part = self._part(number, FileStatus.READ)
            name = "" if part.distinctive else uncompressed_name(path)
            content = (part.prefix_hash, name, self.scans[number].tail_hash)
            twin = by_content.setdefault(content, number) if part.was_read else number
            if twin == number:
                new[number] = part
            else:
                copy = replace(part, status=FileStatus.DUPLICATE.value, offset=part.consumed, same_as=twin)
                self.recorded.append(copy)
        self._refuse_framing(new)
        refuse(unreadable.values(), unreadable)
        return new

    def _refuse_framing(self, new: Iterable[int]) -> None:
        """Raises FramingError if the configured framing fits none of the new files, but another one does."""
        read = [number for number in new if number in self.scans]
        scans = [(self.files[number].path, self.scans[number]) for number in read if self.scans[number].size]
        if any(scan.messages for _, scan in scans):
            return
        for path, scan in scans:
            if scan.fits is not None:
                raise FramingError(
                    f"{path}: expected messages in the framing {scan.framing}, as source.framing says, found messages "
                    f"in the framing {scan.fits}; none of the new files ({len(scans):,}) has any in {scan.framing}. "
                    f"Nothing was written. Set source.framing to {scan.fits}, or to auto"
                )

    def _in_order(self, new: Mapping[int, FilePart]) -> dict[int, FilePart]:
        """Sorts new files by name, except that a file with the name of a renamed file was begun later and comes
        last."""
        used = set(self.known.names.values())
        reused = {number: part for number, part in new.items() if part.path in used}
        if len(reused) != 1:
            reused = {}
        others = sorted(new.keys() - reused.keys(), key=lambda number: natural_order(new[number].path))
        in_order: dict[int, FilePart] = {}
        for number in others:
            part = new[number]
            if not (part.was_read or part.unfinished) or not self._is_late(part.path):
                in_order[number] = part
            elif part.path in self.known.unread:
                self._refuse(number, LEFT_UNREAD)
            elif number in self.own_ends:
                self._refuse(number, _INCOMPLETE_END)
            elif part.was_read and not self.scans[number].messages:
                raise ArchiveError(
                    f"{part.path}: nothing in it can be read, and it sorts before {self.newest}, which was already "
                    f"read. Move the file out of the landing folder\n{EVERY_FILE_WAITS}",
                    without(part.path),
                )
            else:
                raise RunError(
                    f"{part.path} is new, but sorts before {self.newest}, which was already read: its transactions "
                    f"would come too late. Give new files names that sort after the older ones. {_ONE_IS_WRONG}"
                )
        in_order |= reused
        foreign = {n: set_aside(new[n], _NOT_AMONG_THE_NUMBERED, frozenset()) for n in self._foreign(in_order)}
        return in_order | foreign

    def _foreign(self, in_order: Mapping[int, FilePart]) -> list[int]:
        """The unreadable files between two files whose numbers prove that none is missing between them."""
        foreign, unreadable, before = list[int](), list[int](), self.newest
        for number, part in in_order.items():
            if part.is_needless:
                continue
            if part.status != FileStatus.UNREADABLE.value:
                if unreadable and before is not None and is_consecutive([before, part.path]):
                    foreign += unreadable
                unreadable, before = [], part.path
            elif not self._is_late(part.path):
                unreadable.append(number)
        return foreign

    def _is_late(self, path: str) -> bool:
        return self.newest is not None and natural_order(path) < natural_order(self.newest)

    def _part(self, number: int, status: FileStatus) -> FilePart:
        file, scan = self.files[number], self.scans[number]
        before = None if scan.same_as is None else self.known.parts[scan.same_as]
        part = whole_file(file, scan)
        if before is not None:
            distinctive, varied = before.distinctive or part.distinctive, before.varied or part.varied
            part = replace(part, distinctive=distinctive, varied=varied, framing=before.framing)
        offset = scan.offset if status is FileStatus.READ else scan.consumed
        return replace(part, status=status.value, offset=offset, same_as=scan.same_as)

    def _refuse(self, number: int, why: str) -> None:
        """Sets aside a file that nothing depends on. why: the rest of a sentence that begins with the path."""
        file, error = self.files[number], self.errors.get(number)
        part = self._part(number, FileStatus.READ) if error is None else FilePart(file.path, file.size, file.modified)
        part = replace(part, status=FileStatus.REFUSED.value, offset=part.consumed, same_as=None, unfinished=False)
        oids = "" if error is not None and error.is_ignored else None
        self.recorded.append(replace(part, reason=f"{file.path}{why}", oids=oids))


def set_aside(file: LandedFile | FilePart, why: str, relations: frozenset[int] | None) -> FilePart:
    """The part of a file that is not read but has a place in the order. why: the rest of a sentence that begins with
    the path. relations: OIDs of the relations that may depend on it; None: any."""
    oids = None if relations is None else " ".join(map(str, sorted(relations)))
    status, reason = FileStatus.UNREADABLE.value, f"{file.path}{why}"
    return FilePart(file.path, file.size, file.modified, status, reason=reason, oids=oids)


def without(*paths: str) -> tuple[str, ...]:
    """The job that records these files without applying them, and continues. The command line adds the configured
    source.ignore."""
    return ("apply", "--set", ignoring(paths))


def ignoring(paths: Iterable[str]) -> str:
    """An option that overrides the configuration. In its values, ${ begins the name of an environment variable, and
    YAML doesn't combine surrogates."""
    names = json.dumps(list(paths), ensure_ascii=False)
    return f"{_IGNORE}{names.replace('${', '$${')}"


def also_ignoring(option: str, names: Iterable[str]) -> str:
    """An option of a command; if it is one from `ignoring`, with these names added."""
    if not option.startswith(_IGNORE):
        return option
    own: list[str] = json.loads(option.removeprefix(_IGNORE).replace("$${", "${"))
    return ignoring(dict.fromkeys([*names, *own]))


def is_ignored(path: str, names: Iterable[str]) -> bool:
    """True if the path is among the names. names: whole paths, or their last components."""
    return any(path == name or path.endswith(f"/{name}") for name in names)


_IGNORE = "source.ignore="

EVERY_FILE_WAITS = (
    "Until this is resolved, no files are applied, because later rows may depend on any earlier file. source.ignore "
    "continues without it"
)

_ONE_IS_WRONG = (
    "If the second file does not belong to the archive, name it in source.ignore, and run jobs/backfill.py "
    "--from-quarantine, which rebuilds all tables without it. Until this is resolved, no files are applied; with the "
    "first file's name in source.ignore, the others are"
)

HELD_FROM_HERE = (
    ". The file may have rows of any table: all tables are held at the commit before it. Remove it, or land it as the "
    "receiver wrote it"
)

IGNORED = " was not applied, because source.ignore names it"

MISPLACED = (
    " has commits that do not fit between those of the other files, which follow each other without it. It was not "
    "applied, and its tables are held at the commit before it. If it is from another server, or forged, remove it or "
    "name it in source.ignore. If the files around it are wrong, name those"
)

_NOT_AMONG_THE_NUMBERED = (
    ": nothing in it can be read, and it was not applied. The files before and after it have consecutive numbers, so "
    "no table depends on it. Remove it"
)

# Reasons for a refusal, continuing the file's path
_OTHER_CONTENT = (
    " was read before and has other content now, which was not applied. If it is new, land it under a new name that "
    "sorts after the others"
)

LEFT_UNREAD = ": an earlier run left its bytes, and later files have been read since, so they were not applied"

_INCOMPLETE_END = (
    " begins with content that was read before, and ends with an incomplete message, which was not applied because "
    "later files have been read already. Remove the file from the landing folder"
)


def whole_file(file: LandedFile, scan: FileScan) -> FilePart:
    """The part for a file that is read from its beginning."""
    framing = None if scan.framing == Framing.AUTO.value else scan.framing
    part = FilePart(file.path, file.size, file.modified, framing=framing, begins_in_stream=scan.begins_in_stream)
    return with_scan(part, scan)


def tail_remark(part: FilePart) -> str:
    why = "" if part.reason is None else f": {without_offset(part.reason)}"
    return f"{part.path}: the bytes after offset {part.consumed} are left for the next run{why}"


def with_scan(part: FilePart, scan: FileScan) -> FilePart:
    """A part with the result of another scan, after its position in the archive was determined."""
    is_distinctive = scan.first_lsn != scan.last_lsn or not DISTINCTIVE_TAGS.isdisjoint(scan.messages)
    return replace(
        part,
        consumed=scan.consumed,
        prefix_hash=scan.prefix_hash,
        distinctive=part.distinctive or is_distinctive,
        varied=part.varied or scan.varied,
        ends_in_stream=scan.ends_in_stream,
        unfinished=scan.tail is not None,
        reason=scan.tail,
        decompressed_size=scan.size,
        head=head_of(scan.consumed, scan.heads),
    )


def refuse(errors: Iterable[str], waited_for: Collection[str] = (), shown: int = 5) -> None:
    """Raises ArchiveError if there are any errors. waited_for: the paths of new files that a run can do without."""
    in_order = sorted(errors)
    if in_order:
        more = f"\n… and {len(in_order) - shown} more files" if len(in_order) > shown else ""
        if len(waited_for) > shown:
            raise ArchiveError("\n".join([*in_order[:shown], more.strip(), _in_common(in_order, waited_for)]))
        if waited_for:
            raise ArchiveError("\n".join([*in_order, EVERY_FILE_WAITS]), without(*waited_for))
        raise ArchiveError("\n".join(in_order[:shown]) + more)


def _in_common(errors: Collection[str], paths: Collection[str]) -> str:
    """The end of an error about many files: so many suggest a receiver that writes something else, not a hostile file
    among good ones.

    errors: in path order.
    """
    reasons = {text.removeprefix(path) for text, path in zip(errors, sorted(paths), strict=False)}
    same = "all for the same reason" if len(reasons) == 1 else f"for {len(reasons):,} different reasons"
    return (
        f"{len(paths):,} new files can't be read, {same}. Until this is resolved, no files are applied. If these files "
        "come from your receiver, check its output plugin (pgoutput) and source.framing. If they do not belong to the "
        "archive, move them out of the landing folder"
    )
