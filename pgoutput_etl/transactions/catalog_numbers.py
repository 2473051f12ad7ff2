"""The numbers of catalog Messages, which reveal duplicates and missing Messages.

Each Message carries a number from a sequence on the server and, in `after`, the numbers of committed Messages that no
committed Message had in `after` so far. Rolled-back transactions leave gaps in the numbers, so only `after` shows what
is missing: a number that was committed but is not in the archive.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class CatalogNumber(NamedTuple):
    """A Message at `position` (file, ordinal). subxid: its subtransaction."""

    number: int
    subxid: int
    after: tuple[int, ...]
    position: tuple[int, int]

    @classmethod
    def of(cls, stored: list[Any]) -> CatalogNumber:
        number, subxid, after, (file, ordinal) = stored
        return cls(number, subxid, tuple(after), (file, ordinal))


@dataclass(slots=True)
class CatalogNumbers:
    """last: commit LSN and number of the last Message of a committed transaction. first: number of the first such
    Message; lower numbers are from before the archive. expected: numbers that have not been in `after` yet. newest: as
    in MessagePlace."""

    last: tuple[int, int] = (0, 0)
    first: int = 0
    expected: set[int] = field(default_factory=set)
    newest: int = 0

    @classmethod
    def from_state(cls, state: dict[str, Any] | None) -> CatalogNumbers:
        if state is None:
            return cls()
        lsn, number = state["last"]
        return cls((lsn, number), state["first"], set(state["expected"]), state["newest"])

    def to_state(self) -> dict[str, Any]:
        return {**asdict(self), "last": list(self.last), "expected": sorted(self.expected)}

    def follows(self, sent: CatalogNumber, commit_lsn: int) -> bool:
        """Adds a Message of a committed transaction, in order. Returns False if an earlier one is missing."""
        if (commit_lsn, sent.number) <= self.last:
            return True  # sent again
        self.last, self.first = (commit_lsn, sent.number), self.first or sent.number
        missing = {number for number in sent.after if number > self.first} - self.expected
        self.expected = (self.expected | {sent.number}) - {*sent.after}
        return not missing
