"""Which landed files a run reads, in which order, and what it says of the others.

What is in a file is known once it has been scanned, all files at once. Only then can be told which of them are new,
which go on where the archive ended, and which were read before; their order follows from that and from their names.
A content bears the name under which it was found last: a file that was renamed is where its new name puts it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from pgoutput_etl.errors import ArchiveError, FramingError, RunError
from pgoutput_etl.landing.fingerprint import (
    DISTINCTIVE_TAGS,
    FilePart,
    FileStatus,
    LandedFile,
    head_of,
    uncompressed_name,
)
from pgoutput_etl.landing.known_files import KnownFiles, is_unfinished, natural_order, newest_of
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.message_row import ScanError


@dataclass(frozen=True, slots=True)
class FileSelection:
    """parts: what is to be read, in order of their numbers, and what is only noted; by number.

    scan_again: the files with those numbers were not scanned as they are to be read.
    """

    parts: dict[int, FilePart]
    rescan: bool
    remarks: tuple[str, ...] = ()

    def with_status(self, *status: FileStatus) -> dict[int, FilePart]:
        return {n: part for n, part in self.parts.items() if part.status in {s.value for s in status}}

    @property
    def to_read(self) -> dict[int, FilePart]:
        return self.with_status(FileStatus.READ)


def select_files(
    files: Mapping[int, LandedFile],
    scans: Mapping[int, FileScan],
    errors: Mapping[int, ScanError],
    known: KnownFiles,
    landed: Collection[str],
) -> FileSelection:
    """`landed`: all paths that there are. Raises ArchiveError for files that can't be read, and RunError for those
    that come too late."""
    paths = frozenset(landed)
    partial = {n for n, file in files.items() if _is_being_compressed(file.path, scans.get(n), paths)}
    arranging = _Selector({n: file for n, file in files.items() if n not in partial}, scans, errors, known, paths)
    arranging.remarks += [f"{files[n].path}: left for the next run, as it is still being compressed" for n in partial]
    return arranging.select()


def _is_being_compressed(path: str, scan: FileScan | None, landed: Collection[str]) -> bool:
    """a.bin.gz is written while a.bin is there, which has all of it."""
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
        # Those whose bytes are not, or not only, what was read from a file of this name.
        self.fresh = {n for n in files if n in errors or scans[n].same_as is None}
        self.noted: list[tuple[int, FilePart]] = []
        self.same: list[tuple[int, FilePart]] = []
        # Those that have nothing new but the first part of a message.
        self.own_ends: set[int] = set()
        self.scan_again = False
        self.remarks = [
            f"{file.path}: {scans[n].remark}" for n, file in files.items() if n in scans and scans[n].remark
        ]

    def select(self) -> FileSelection:
        for number in sorted(self.fresh - set(self.errors)):
            self._renamed(number)
        grown = self._extend_by_name()
        self.newest = newest_of([*self.names.values(), self.known.other_newest])
        new = self._new_files(grown)
        ordered = [*grown, *self._in_order(new)]
        if any(part.was_read or part.unfinished for _, part in ordered[len(grown) :]):
            self._report_missing()
        else:
            waiting = [(number, part) for number, part in grown if not part.was_read]
            ordered = [each for each in ordered if each not in waiting]
            self.noted += [(n, replace(p, status=FileStatus.MOVED.value)) for n, p in waiting if self._has_moved(p)]
            self.remarks += [tail_remark(part) for _, part in waiting if not self._has_moved(part)]
        numbers = [number for number, _ in ordered]
        again = self.scan_again or numbers != sorted(numbers)
        renumbered = dict(zip(numbers, range(self.known.next_number, 2**63) if again else numbers, strict=False))
        ordered = [(renumbered[number], part) for number, part in ordered]
        last = max((i for i, (_, part) in enumerate(ordered) if part.was_read or part.unfinished), default=-1)
        again = again or any(part.unfinished for _, part in ordered[:last])
        behind = max([self.known.next_number - 1, *(number for number, _ in ordered)]) + 1
        if ordered or self.noted:  # no batch for these alone
            self.noted += self.same
        noted = {
            behind + i: part if part.same_as not in renumbered else replace(part, same_as=renumbered[part.same_as])
            for i, (_, part) in enumerate(self.noted)
        }
        return FileSelection(dict(ordered) | noted, again, tuple(self.remarks))

    def _renamed(self, number: int) -> None:
        """A file that begins with what was read last, from a file that isn't there any more, is that file: unless all
        its messages are the same, so that the next one may begin like that, and nothing has taken its name."""
        scan, last = self.scans[number], self.known.last
        if scan.resembles is None or scan.resembles != last:
            return
        root, before = self.known.roots[last], self.known.parts[last]
        name = self.known.names[root]
        if self._holds(name, root):
            return
        if not before.varied and name not in self.landed:
            raise RunError(
                f"{self.files[number].path} begins with what was read from {name}, which is not there any more: "
                f"nothing tells whether it is that file under a new name. If it is, call it {name} for this run; if "
                "not, put the old one back for this run"
            )
        begins = before.ends_in_stream
        self.scans[number] = replace(scan, same_as=last, offset=before.consumed, begins_in_stream=begins)
        self.fresh.remove(number)
        self.scan_again = self.scan_again or scan.consumed > before.consumed

    def _has_moved(self, part: FilePart) -> bool:
        return part.same_as is not None and part.path != self.known.names[self.known.roots[part.same_as]]

    def _report_missing(self) -> None:
        """Bytes that were left where the archive ended, and that no file has any more."""
        known, last = self.known, self.known.last
        ends = {path: number for path, number in known.unread.items() if last is None or number > last}
        if last is not None and is_unfinished(known.names[known.roots[last]], known):
            ends[self.names[known.roots[last]]] = last
        self.remarks += [
            f"{path}: what followed offset {known.parts[number].consumed} was left, and the file is not there any more"
            for path, number in ends.items()
            if path not in self.landed
        ]

    def _extend_by_name(self) -> list[tuple[int, FilePart]]:
        """Notes the files that hold nothing new; gives the one that goes on where the archive ended."""
        grown: dict[int, bool] = {}
        for number in sorted(set(self.files) - self.fresh):
            scan, path = self.scans[number], self.files[number].path
            assert scan.same_as is not None
            root = self.known.roots[scan.same_as]
            if self.known.parts[scan.same_as].status == FileStatus.REFUSED.value:
                if scan.consumed > scan.offset:
                    self.fresh.add(number)  # refused again, as it says something else
                continue
            name = self.names[root]
            has_moved = path != name and not self._holds(name, root)
            if scan.consumed > scan.offset or (scan.tail is not None and (path == name or has_moved)):
                grown[number] = has_moved or path == name
            elif has_moved:
                self.noted.append((number, self._part(number, FileStatus.MOVED)))
                self.names[root] = path
            elif path != name and self._has_own_end(number, name):
                self._is_resent(number)
            elif path != name:
                self.noted.append((number, self._part(number, FileStatus.DUPLICATE)))
            else:
                self.same.append((number, self._part(number, FileStatus.SAME)))
        return self._at_the_end(grown)

    def _at_the_end(self, grown: Mapping[int, bool]) -> list[tuple[int, FilePart]]:
        """Of the files that go on from a known content the one that does so from where the archive ends: it still has
        its name, or its name is no more. What another one begins with was sent again, by a server that didn't know how
        far it had come."""
        last = None if self.known.last is None else self.known.roots[self.known.last]
        found: list[tuple[int, FilePart]] = []
        for number in sorted(grown, key=lambda n: self.scans[n].consumed == self.scans[n].offset):
            scan, path = self.scans[number], self.files[number].path
            root = self.known.roots[scan.same_as or 0]
            has_more = scan.size > scan.offset
            if root == last and not found and grown[number]:
                found.append((number, self._part(number, FileStatus.READ)))
                self.names[root] = path
            elif has_more and path == self.known.names[root] and root != last:
                newest = self.names[last] if last is not None else "another"
                raise RunError(
                    f"{path} has grown since it was read, but {newest} was read after it: what was added would come "
                    "too late. Take it out of the landing folder, or land what was added in a file that sorts behind "
                    "the others"
                )
            elif has_more:
                self._is_resent(number)
            elif path != self.names[root]:
                self.noted.append((number, self._part(number, FileStatus.MOVED)))
                self.names[root] = path
        return found

    def _has_own_end(self, number: int, name: str) -> bool:
        """Whether bytes that are no whole message stand behind a known content, other than in the file of its name."""
        scan = self.scans[number]
        holder = self.numbers.get(name)
        same = None if holder is None or holder in self.errors else self.scans[holder].tail_hash
        return scan.size > scan.consumed and scan.tail_hash != same

    def _is_resent(self, number: int) -> None:
        scan = self.scans[number]
        if scan.consumed == scan.offset:
            self.own_ends.add(number)
        self.scans[number] = replace(scan, same_as=None, offset=0, begins_in_stream=None)
        self.fresh.add(number)
        self.scan_again = True

    def _holds(self, path: str, root: int) -> bool:
        """Whether the file of this name still is what it was."""
        if path not in self.landed:
            return False
        number = self.numbers.get(path)
        if number is None:
            return True
        same_as = None if number in self.errors else self.scans[number].same_as
        return same_as is not None and self.known.roots[same_as] == root

    def _new_files(self, grown: list[tuple[int, FilePart]]) -> list[tuple[int, FilePart]]:
        """Those that are new, each content once. Notes the others, and the ones that took the name of one read."""
        occupied = set(self.names.values())
        found: list[tuple[int, FilePart]] = []
        by_content = {(part.prefix_hash, "", self.scans[number].tail_hash): number for number, part in grown}
        unreadable = []
        for number in sorted(self.fresh):
            path, error = self.files[number].path, self.errors.get(number)
            if path in occupied and (error is None or not error.offset):
                self.noted.append((number, self._refused(number, _has_other_bytes(path))))
                continue
            if error is not None:
                if path in self.known.unread and self._is_late(path):
                    self.noted.append((number, self._refused(number, _left_behind(path))))
                else:
                    unreadable.append(error.text)
                continue
            part = self._part(number, FileStatus.READ)
            under = "" if part.distinctive else uncompressed_name(path)
            content = (part.prefix_hash, under, self.scans[number].tail_hash)
            twin = by_content.setdefault(content, number) if part.was_read else number
            if twin == number:
                found.append((number, part))
            else:
                copied = replace(part, status=FileStatus.DUPLICATE.value, offset=part.consumed, same_as=twin)
                self.noted.append((number, copied))
        self._refuse_framing([number for number, _ in found])
        refuse(unreadable)
        return found

    def _refuse_framing(self, new: Iterable[int]) -> None:
        """Raises FramingError if the configured framing fits none of the new files, and another one does."""
        scans = [(self.files[number].path, self.scans[number]) for number in new if self.scans[number].size]
        if any(scan.messages for _, scan in scans):
            return
        for path, scan in scans:
            if scan.fits is not None:
                raise FramingError(
                    f"{path}: expected messages in the framing {scan.framing}, as source.framing says, found messages "
                    f"in the framing {scan.fits}; none of the new files ({len(scans):,}) has any in {scan.framing}. "
                    f"Nothing was written. Set source.framing to {scan.fits}, or to auto"
                )

    def _in_order(self, new: list[tuple[int, FilePart]]) -> list[tuple[int, FilePart]]:
        """By name; but the one that took the name of a file which was renamed was begun after that."""
        used = set(self.known.names.values())
        reused = [(number, part) for number, part in new if part.path in used]
        if len(reused) != 1:
            reused = []
        others = sorted((each for each in new if each not in reused), key=lambda each: natural_order(each[1].path))
        in_place = []
        for number, part in others:
            if not (part.was_read or part.unfinished) or not self._is_late(part.path):
                in_place.append((number, part))
            elif part.path in self.known.unread:
                self.noted.append((number, self._refused(number, _left_behind(part.path))))
            elif number in self.own_ends:
                self.noted.append((number, self._refused(number, _ends_on_its_own(part.path))))
            else:
                raise RunError(
                    f"{part.path} is new, but belongs before {self.newest}, which was read already: its transactions "
                    "would come too late. Give new files names that sort behind the older ones"
                )
        return [*in_place, *reused]

    def _is_late(self, path: str) -> bool:
        return self.newest is not None and natural_order(path) < natural_order(self.newest)

    def _part(self, number: int, status: FileStatus) -> FilePart:
        file, scan = self.files[number], self.scans[number]
        before = None if scan.same_as is None else self.known.parts[scan.same_as]
        found = whole_file(file, scan)
        if before is not None:
            distinctive, varied = before.distinctive or found.distinctive, before.varied or found.varied
            found = replace(found, distinctive=distinctive, varied=varied, framing=before.framing)
        offset = scan.offset if status is FileStatus.READ else scan.consumed
        return replace(found, status=status.value, offset=offset, same_as=scan.same_as)

    def _refused(self, number: int, why: str) -> FilePart:
        file = self.files[number]
        if number in self.errors:
            refused = FilePart(file.path, file.size, file.modified)
        else:
            refused = self._part(number, FileStatus.REFUSED)
        refused = replace(refused, status=FileStatus.REFUSED.value, same_as=None, offset=refused.consumed)
        return replace(refused, unfinished=False, reason=why)


def _has_other_bytes(path: str) -> str:
    return (
        f"{path} was read before, and has other bytes now; they were not applied. If they are new, land them under a "
        "name of their own, which sorts behind the others"
    )


def _left_behind(path: str) -> str:
    return (
        f"{path}: an earlier run left its bytes, and files behind it were read since; they were not applied. "
        "jobs/backfill.py --from-quarantine reads the archive anew, with this file in its place"
    )


def _ends_on_its_own(path: str) -> str:
    return (
        f"{path} begins with what was read before, and goes on with bytes that are no whole message; they were not "
        "applied, as files that sort behind it were read already. Take it out of the landing folder"
    )


def whole_file(file: LandedFile, scan: FileScan) -> FilePart:
    """A file that was read from its beginning, whatever was known of it."""
    framing = None if scan.framing == Framing.AUTO.value else scan.framing
    part = FilePart(file.path, file.size, file.modified, framing=framing, begins_in_stream=scan.begins_in_stream)
    return with_scan(part, scan)


def tail_remark(part: FilePart) -> str:
    why = "" if part.reason is None else f": {part.reason}"
    return f"{part.path}: what follows offset {part.consumed} is left for the next run{why}"


def with_scan(part: FilePart, scan: FileScan) -> FilePart:
    """A part that was scanned again, now that it is known where it stands in the archive."""
    return replace(
        part,
        consumed=scan.consumed,
        prefix_hash=scan.prefix_hash,
        distinctive=part.distinctive or is_distinctive(scan),
        varied=part.varied or scan.varied,
        ends_in_stream=scan.ends_in_stream,
        unfinished=scan.tail is not None,
        reason=scan.tail,
        decompressed_size=scan.size,
        head=head_of(scan.consumed, scan.heads),
    )


def is_distinctive(scan: FileScan) -> bool:
    return scan.first_lsn != scan.last_lsn or not DISTINCTIVE_TAGS.isdisjoint(scan.messages)


def refuse(errors: Iterable[str], shown: int = 5) -> None:
    """Raises ArchiveError if there are any."""
    in_order = sorted(errors)
    if in_order:
        more = f"\n… and {len(in_order) - shown} more files" if len(in_order) > shown else ""
        raise ArchiveError("\n".join(in_order[:shown]) + more)
