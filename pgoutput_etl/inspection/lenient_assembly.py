"""Files put together into transactions as apply does it, but without stopping where one can't follow what came before.

Where apply would stop, a *break* is noted, and assembly begins anew with the file behind it: what was open before the
break stays open, and of what the file goes on with the beginning is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from pgoutput_etl.errors import SequenceError
from pgoutput_etl.inspection.file_scan import FileInspection
from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.messages import Commit, Prepare
from pgoutput_etl.scan.file_summary import FileBeginning, FileScan
from pgoutput_etl.scan.message_row import HEAD
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.outcome import Control, ControlRow, FragmentId, Outcome, TransactionStatus, Watermark
from pgoutput_etl.transactions.status_lookup import StatusLookup


@dataclass(frozen=True, slots=True)
class SequenceBreak:
    """file: the number of the one that can't follow. is_beginning: nothing was before it, as where one looks at a file
    from the middle of an archive. is_left_out: nor could it be taken up by itself; its rows count as none."""

    file: int
    reason: str
    is_beginning: bool
    is_excluded: bool = False


@dataclass(slots=True)
class LenientAssembly:
    """All files in order, and what became of their transactions."""

    assembly: Assembly = field(default_factory=Assembly)
    breaks: list[SequenceBreak] = field(default_factory=list)
    _unknown_prepared: int = 0  # before the last break
    _ended: list[Outcome] = field(default_factory=list)
    _open: list[Outcome] = field(default_factory=list)  # before a break
    _marks: list[Watermark] = field(default_factory=list)
    _first: int = 0  # of the files since the last break
    _is_empty: bool = True

    def add(self, look: FileInspection) -> None:
        scan = look.scan
        assert scan is not None
        before = self.assembly.state()
        try:
            self.assembly.add_file(scan, look.controls)
        except SequenceError as error:
            self._break(scan, look.controls, before, str(error))
        else:
            tail = before["tail"]
            if tail is not None and (tail["kind"], tail["of"]["xid"]) == ("segment", None):
                self._lose_head(scan, tail["of"]["damage"])
        self._is_empty = False

    def _lose_head(self, scan: FileScan, reason: str) -> None:
        """It goes on with a stream segment the beginning of which is missing, and so the stream's xid."""
        if scan.begins == FileBeginning.INSIDE.value:
            self._ended.append(Outcome(TransactionStatus.QUARANTINED, None, ((scan.file, HEAD),), reason=reason))

    def _break(self, scan: FileScan, controls: Iterable[Control], before: dict[str, Any], reason: str) -> None:
        listed = list(controls)
        is_beginning = self._is_empty
        self._restart(scan.file, before, _missing_tail(scan, listed, reason))
        try:
            self.assembly.add_file(scan, listed)
        except SequenceError as error:
            self._restart(scan.file, before, None)
            self._first = scan.file + 1
            self.breaks.append(SequenceBreak(scan.file, str(error), is_beginning, is_excluded=True))
            return
        self._lose_head(scan, reason)
        self.breaks.append(SequenceBreak(scan.file, reason, is_beginning))

    def _restart(self, file: int, before: dict[str, Any], tail: dict[str, Any] | None) -> None:
        """Without what the file changed before it was refused."""
        assembly = self.assembly
        self._ended += _without(file, assembly.outcomes)
        self._open += _without(file, assembly.open_outcomes())
        self._marks += [mark for mark in assembly.watermarks if mark.file != file]
        self._unknown_prepared += len(assembly.unknown_prepared)
        self._first = file
        nothing: dict[str, Any] = {"streams": [], "prepared": [], "cut_off_lsn": None, "cut_off_gids": []}
        state = {**before, **nothing, "tail": tail, "was_damaged": True}
        self.assembly = Assembly.from_state(state, assembly.relations, assembly.types)

    def finish(self, ends: Iterable[tuple[int, FragmentId]]) -> None:
        """Once all files are in; `ends` as Assembly.replace_streams has them."""
        self.assembly.replace_streams((xid, fragment) for xid, fragment in ends if fragment[0] >= self._first)

    @property
    def ended(self) -> list[Outcome]:
        return [*self._ended, *self.assembly.outcomes]

    @property
    def open(self) -> list[Outcome]:
        return [*self._open, *self.assembly.open_outcomes()]

    @property
    def watermarks(self) -> list[Watermark]:
        return [*self._marks, *self.assembly.watermarks]

    @property
    def unknown_prepared(self) -> int:
        return self._unknown_prepared + len(self.assembly.unknown_prepared)

    @property
    def needs_history(self) -> bool:
        """Whether any transaction may be one that came before, or another server's."""
        return bool(self._marks or self.breaks) or self.assembly.needs_history

    @property
    def excluded_files(self) -> frozenset[int]:
        return frozenset(each.file for each in self.breaks if each.is_excluded)

    def statuses(self) -> StatusLookup:
        return StatusLookup.of((*self.ended, *self.open), self.watermarks, self.excluded_files)


def _without(file: int, outcomes: Iterable[Outcome]) -> list[Outcome]:
    kept = [replace(o, fragments=tuple(fragment for fragment in o.fragments if fragment[0] != file)) for o in outcomes]
    return [outcome for outcome in kept if outcome.fragments]


def _missing_tail(scan: FileScan, controls: list[Control], reason: str) -> dict[str, Any] | None:
    """What must have been open where the file begins, in the form of Assembly.state."""
    if scan.begins == FileBeginning.EITHER.value:
        return None
    of: dict[str, Any] = {"xid": None, "units": [], "damage": reason, "lost": []}
    if scan.begins == FileBeginning.INSIDE.value:
        return {"kind": "segment", "of": of}
    for row in controls:
        if not isinstance(row, ControlRow):
            continue
        message = decode(row.body, False) if row.fragment == HEAD and row.body[:1] in (b"C", b"P") else None
        match message:
            case Prepare():
                return {"kind": "prepared", "of": {**of, "xid": message.xid, "gid": message.gid}}
            case Commit():
                return {"kind": "transaction", "of": {**of, "lsn": message.commit_lsn}}
            case _:
                pass
    return {"kind": "transaction", "of": of}
