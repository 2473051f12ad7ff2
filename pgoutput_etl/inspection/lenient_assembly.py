"""Assembles transactions from files as apply does, but continues after a file that can't follow the previous ones.

Where apply would stop, the assembly records a break and restarts with the next file: transactions that are open before
the break stay open, and transactions that the file continues lack their beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """file: the file that can't follow the previous ones. is_beginning: it is the first file, from the middle of an
    archive. is_excluded: it can't be assembled on its own either, so its rows don't count."""

    file: int
    reason: str
    is_beginning: bool
    is_excluded: bool = False


@dataclass(slots=True)
class LenientAssembly:
    """The files' transactions and their outcomes."""

    assembly: Assembly = field(default_factory=Assembly)
    breaks: list[SequenceBreak] = field(default_factory=list)
    _unknown_prepared: int = 0  # before the last break
    _ended: list[Outcome] = field(default_factory=list)
    _open: list[Outcome] = field(default_factory=list)  # before a break
    _watermarks: list[Watermark] = field(default_factory=list)
    _first: int = 0  # the first file since the last break
    _is_empty: bool = True

    def add(self, inspection: FileInspection) -> None:
        scan = inspection.scan
        assert scan is not None
        before = self.assembly.state()
        try:
            self.assembly.add_file(scan, inspection.controls)
        except SequenceError as error:
            self._break(scan, inspection.controls, before, str(error))
        else:
            tail = before["tail"]
            if tail is not None and (tail["kind"], tail["of"]["xid"]) == ("segment", None):
                self._lose_head(scan, tail["of"]["damage"])
        self._is_empty = False

    def _lose_head(self, scan: FileScan, reason: str) -> None:
        """Quarantines the head of a file that continues a stream segment without its beginning, and thus without an
        xid."""
        if scan.begins is FileBeginning.INSIDE:
            self._ended.append(Outcome(TransactionStatus.QUARANTINED, None, ((scan.file, HEAD),), reason=reason))

    def _break(self, scan: FileScan, controls: Sequence[Control], before: dict[str, Any], reason: str) -> None:
        is_beginning = self._is_empty
        self._restart(scan.file, before, _missing_tail(scan, controls, reason))
        try:
            self.assembly.add_file(scan, controls)
        except SequenceError as error:
            self._restart(scan.file, before, None)
            self._first = scan.file + 1
            self.breaks.append(SequenceBreak(scan.file, str(error), is_beginning, is_excluded=True))
            return
        self._lose_head(scan, reason)
        self.breaks.append(SequenceBreak(scan.file, reason, is_beginning))

    def _restart(self, file: int, before: dict[str, Any], tail: dict[str, Any] | None) -> None:
        """Restarts without the changes that the file made before it was rejected."""
        assembly = self.assembly
        self._ended += _without(file, assembly.outcomes)
        self._open += _without(file, assembly.open_outcomes())
        self._watermarks += [watermark for watermark in assembly.watermarks if watermark.file != file]
        self._unknown_prepared += len(assembly.unknown_prepared)
        self._first = file
        empty: dict[str, Any] = {"streams": [], "prepared": [], "cut_off_lsn": None, "cut_off_gids": []}
        state = {**before, **empty, "tail": tail, "was_damaged": True}
        self.assembly = Assembly(assembly.relations, state, assembly.types)

    def finish(self, ends: Iterable[tuple[int, FragmentId]]) -> None:
        """Ends the assembly after the last file. ends: see Assembly.replace_streams."""
        self.assembly.replace_streams((xid, fragment) for xid, fragment in ends if fragment[0] >= self._first)

    @property
    def ended(self) -> list[Outcome]:
        return [*self._ended, *self.assembly.outcomes]

    @property
    def open(self) -> list[Outcome]:
        return [*self._open, *self.assembly.open_outcomes()]

    @property
    def watermarks(self) -> list[Watermark]:
        return [*self._watermarks, *self.assembly.watermarks]

    @property
    def unknown_prepared(self) -> int:
        return self._unknown_prepared + len(self.assembly.unknown_prepared)

    @property
    def needs_history(self) -> bool:
        """True if a transaction may have been committed before, or may be another server's."""
        return bool(self._watermarks or self.breaks) or self.assembly.needs_history

    @property
    def excluded_files(self) -> frozenset[int]:
        return frozenset(gap.file for gap in self.breaks if gap.is_excluded)

    def statuses(self, left_out: frozenset[int] = frozenset()) -> StatusLookup:
        """Looks up the statuses of rows. left_out: further files whose rows don't count."""
        return StatusLookup.of((*self.ended, *self.open), self.watermarks, self.excluded_files | left_out)


def _without(file: int, outcomes: Iterable[Outcome]) -> list[Outcome]:
    others = [replace(o, fragments=tuple(f for f in o.fragments if f[0] != file)) for o in outcomes]
    return [outcome for outcome in others if outcome.fragments]


def _missing_tail(scan: FileScan, controls: Iterable[Control], reason: str) -> dict[str, Any] | None:
    """The transaction that must be open where the file begins, in the form of Assembly.state."""
    if scan.begins is FileBeginning.EITHER:
        return None
    transaction: dict[str, Any] = {"xid": None, "units": [], "damage": reason, "lost": []}
    if scan.begins is FileBeginning.INSIDE:
        return {"kind": "segment", "of": transaction}
    of_head = (row.body for row in controls if isinstance(row, ControlRow) and row.fragment == HEAD)
    end = next((decode(body, False) for body in of_head if body[:1] in (b"C", b"P")), None)
    match end:
        case Prepare():
            return {"kind": "prepared", "of": {**transaction, "xid": end.xid, "gid": end.gid}}
        case Commit():
            return {"kind": "transaction", "of": {**transaction, "lsn": end.commit_lsn}}
        case _:
            return {"kind": "transaction", "of": transaction}
