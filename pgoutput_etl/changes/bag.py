"""The rows of a table without a key, and which of them an old tuple means.

An old tuple has all values of its row, so the newest row that equals it goes. But the server changes values without
sending them: `ADD COLUMN … DEFAULT` and `ALTER COLUMN … TYPE … USING` change all rows. A value is therefore *stale* if
its row is not newer than the last change of its column. A row that differs from an old tuple only in stale values is
meant by it, unless other rows may be meant as well. The difference is *proof* that the server has changed the column,
and that other rows with stale values of it are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pgoutput_etl.schema.table_shape import NEVER

Values = tuple[str, ...]  # one per column, equal for equal values

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Taken(Generic[T]):
    """proven: the LSN up to which rows have values that are proven wrong by this one; NEVER if it is equal."""

    row: T
    proven: int


@dataclass(slots=True)
class Bag(Generic[T]):
    """changed_at: by column, the LSN of the first commit after it was changed, or NEVER. equal: by their values, rows
    with their commits' LSNs."""

    changed_at: Sequence[int]
    equal: dict[Values, list[tuple[int, T]]] = field(default_factory=dict)

    def add(self, values: Values, lsn: int, row: T) -> None:
        self.equal.setdefault(values, []).append((lsn, row))

    def take(self, old: Values) -> Taken[T] | None:
        """Removes and returns the newest row that an old tuple means; None if there is none, or if several rows may be
        meant that differ."""
        if self.equal.get(old):
            return Taken(self._remove(old, range(len(self.equal[old]))), NEVER)
        if all(lsn == NEVER for lsn in self.changed_at):
            return None
        meant = {values: self._meant(old, values) for values in self.equal}
        found = [(values, places) for values, places in meant.items() if places]
        if len(found) != 1:
            return None
        [(values, places)] = found
        compared = zip(old, values, self.changed_at, strict=True)
        return Taken(self._remove(values, places), max(lsn for a, b, lsn in compared if a != b))

    def has_any_until(self, lsn: int) -> bool:
        """True if a row is not newer than an LSN."""
        return any(own_lsn <= lsn for rows in self.equal.values() for own_lsn, _ in rows)

    def _meant(self, old: Values, values: Values) -> list[int]:
        """The places of equal rows that differ from an old tuple only in stale values."""
        return [place for place, (lsn, _) in enumerate(self.equal[values]) if self._means(old, values, lsn)]

    def _means(self, old: Values, values: Values, lsn: int) -> bool:
        compared = zip(old, values, self.changed_at, strict=True)
        return all(a == b or lsn <= changed_at for a, b, changed_at in compared)

    def _remove(self, values: Values, places: Sequence[int]) -> T:
        """Removes the newest of some equal rows."""
        rows = self.equal[values]
        return rows.pop(max(places, key=lambda place: (rows[place][0], place)))[1]
