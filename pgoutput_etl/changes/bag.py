"""The rows of a table without a key, and which of them an old tuple refers to.

An old tuple has all values of its row, so it removes the newest row that equals it. But the server changes values
without sending them: `ADD COLUMN … DEFAULT` and `ALTER COLUMN … TYPE … USING` change all rows. A value is therefore
*stale* if its row is not newer than the last change of its column, or if it is a composite and the old tuple has it
with attributes that were added or dropped since. An old tuple also refers to a row that differs from it only in stale
values, unless it may refer to other rows as well. The difference is *proof* that the server has changed the column, and
that other rows with stale values of that column are wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

from pgoutput_etl.schema.table_shape import NEVER, TableColumn
from pgoutput_etl.types import ColumnType, Storage, is_user_type
from pgoutput_etl.types.composites import may_become

# One item per column, equal for equal values: a text, or for other values their representation and text.
Values = tuple[str | tuple[str, str], ...]

T = TypeVar("T")

_NO_TEXT = ()  # for representable values; the text of a value that was never sent is None


def value_of(value: object, texts: Mapping[str, str | None], name: str) -> str | tuple[str, str]:
    """The column's item in `Values`. texts: those in `_pg_unrepresentable`, by column."""
    return value if isinstance(value, str) else (repr(value), repr(texts.get(name, _NO_TEXT)))


def may_be_rows(columns: Iterable[TableColumn]) -> frozenset[int]:
    """The positions of columns that may be composites, which are stored as text."""
    return frozenset(n for n, column in enumerate(columns) if is_user_type(column.type) and _is_text(column.type))


def _is_text(column_type: ColumnType) -> bool:
    return bool(pa.types.is_string(column_type.arrow)) and column_type.storage is Storage.PLAIN


@dataclass(frozen=True, slots=True)
class Taken(Generic[T]):
    """proven: the LSN up to which this row proves other rows' values wrong; NEVER if the row equals the old tuple."""

    row: T
    proven: int


@dataclass(slots=True)
class Bag(Generic[T]):
    """changed_at: by column, the LSN of the first commit after its last change, or NEVER. may_be_rows: the columns that
    may be composites. equal: rows with the LSNs of their commits, by values."""

    changed_at: Sequence[int]
    may_be_rows: Collection[int] = ()
    equal: dict[Values, list[tuple[int, T]]] = field(default_factory=dict)

    def add(self, values: Values, lsn: int, row: T) -> None:
        self.equal.setdefault(values, []).append((lsn, row))

    def take(self, old: Values, lsn: int) -> Taken[T] | None:
        """Removes and returns the newest row that matches a commit's old tuple; None if there is none, or if the tuple
        may match several different rows."""
        if self.equal.get(old):
            return Taken(self._remove(old, range(len(self.equal[old]))), NEVER)
        if not self.may_be_rows and all(lsn == NEVER for lsn in self.changed_at):
            return None
        meant = {values: self._meant(old, values) for values in self.equal}
        found = [(values, places) for values, places in meant.items() if places]
        if len(found) != 1:
            return None
        [(values, places)] = found
        differing = [n for n, (a, b) in enumerate(zip(old, values, strict=True)) if a != b]
        # The commit that changed a type is unknown, but rows of the commit that reveals the change have the new form.
        proven = max(lsn - 1 if self._has_become(old, values, n) else self.changed_at[n] for n in differing)
        return Taken(self._remove(values, places), proven)

    def has_any_until(self, lsn: int) -> bool:
        """True if a row is not newer than `lsn`."""
        return any(own_lsn <= lsn for rows in self.equal.values() for own_lsn, _ in rows)

    def _meant(self, old: Values, values: Values) -> list[int]:
        """The places of equal rows that differ from an old tuple only in stale values."""
        return [place for place, (lsn, _) in enumerate(self.equal[values]) if self._means(old, values, lsn)]

    def _means(self, old: Values, values: Values, lsn: int) -> bool:
        compared = enumerate(zip(old, values, self.changed_at, strict=True))
        return all(a == b or lsn <= at or self._has_become(old, values, n) for n, (a, b, at) in compared)

    def _has_become(self, old: Values, values: Values, column: int) -> bool:
        before, after = values[column], old[column]
        if column not in self.may_be_rows or not isinstance(before, str) or not isinstance(after, str):
            return False
        return may_become(before, after)

    def _remove(self, values: Values, places: Sequence[int]) -> T:
        """Removes the newest of some equal rows."""
        rows = self.equal[values]
        return rows.pop(max(places, key=lambda place: (rows[place][0], place)))[1]
