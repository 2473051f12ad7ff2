"""When a key belonged to which row, in commit order."""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pgoutput_etl.changes.row_search import Identity
from pgoutput_etl.schema.relation_history import CommitPosition


@dataclass(frozen=True, slots=True)
class KeyPeriod:
    """The time in which a row had a key. start: None if it had it before its first change in the archive. end: what is
    written there is no longer of this row; None if it still has the key."""

    identity: Identity
    start: CommitPosition | None
    end: CommitPosition | None

    def holds(self, at: CommitPosition) -> bool:
        return (self.start is None or self.start <= at) and (self.end is None or at < self.end)


@dataclass(frozen=True)
class KeyTimes:
    """The times of the rows that had a key one after the other, and of those between them, in which no change tells who
    had it: a snapshot may have brought a row. Their numbers are those of the limits and TRUNCATEs before them.

    limits: where a row begins; (lsn + 1, 0, 0) where the commit at this LSN left the key without one. first_uses: of
    the key, after a TRUNCATE. truncates: those of the table. All in order.
    """

    limits: Sequence[CommitPosition]
    first_uses: Sequence[CommitPosition]
    truncates: Sequence[CommitPosition]

    def row_at(self, at: CommitPosition) -> int:
        """The number of the row that has the key in what was written at a position. The file and ordinal of a stored
        row may be unknown; then they are greater than any."""
        return bisect(self._ends, at)

    def period(self, identity: Identity, row: int, start: int, end: int | None) -> KeyPeriod | None:
        """Of a row, from the LSN `start` until before `end`, while the key was the table's. None if the row never had
        it then."""
        first, last = [None, *self._ends, None][row : row + 2]
        if start:
            first = max(first or (start, 0, 0), (start, 0, 0))
        if end is not None:
            last = min(last or (end, 0, 0), (end, 0, 0))
        return None if first is not None and last is not None and first >= last else KeyPeriod(identity, first, last)

    @cached_property
    def _ends(self) -> list[CommitPosition]:
        return sorted([*self.limits, *map(self._end_before, self.truncates)])

    def _end_before(self, truncate: CommitPosition) -> CommitPosition:
        """Where the row before a TRUNCATE has lost the key: at the next use in its commit, else after it, since what
        the commit itself has stored without a new row, such as a deletion, is of the old one."""
        i = bisect_left(self.first_uses, truncate)
        is_used = i < len(self.first_uses) and self.first_uses[i][0] == truncate[0]
        return self.first_uses[i] if is_used else (truncate[0] + 1, 0, 0)
