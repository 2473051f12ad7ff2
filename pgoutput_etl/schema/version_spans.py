"""The relation versions of many rows at once, and the spans of committed rows under each version.

A table's columns, key, name, and place follow its committed rows in commit order. Versions follow one another in that
order, because DDL waits for transactions that have changed the table. So the first and last committed row under each
version nearly always show where a table changed. The spans of two versions can overlap only if a change took no such
lock (a publication's column list). Then every row is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgoutput_etl.schema.relation_history import CommitPosition, Position, RelationSpan, RelationVersions

Numbers = npt.NDArray[np.int64]

NO_SCOPE = -1

UNDESCRIBED = -1


@dataclass(frozen=True, slots=True)
class RowPositions:
    """Positions of committed rows of one relation, as parallel arrays. scope: NO_SCOPE if the row was not streamed."""

    lsn: Numbers
    file: Numbers
    ordinal: Numbers
    scope: Numbers

    def position(self, row: int) -> CommitPosition:
        return int(self.lsn[row]), int(self.file[row]), int(self.ordinal[row])


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """The first and the last committed row, in commit order, under version `number`.

    generation: number of the Relation message that applies to all transactions. A version that returns, because a
    column was added and dropped again, has one span per generation.
    """

    generation: int
    number: int
    first: CommitPosition
    last: CommitPosition

    def joined(self, other: VersionSpan) -> VersionSpan:
        first, last = min(self.first, other.first), max(self.last, other.last)
        return VersionSpan(self.generation, self.number, first, last)


HoldsFrom = Mapping[int | None, tuple[tuple[Position, int], ...]]  # the form of RelationVersions.holds_from


def numbers_in_force(files: Numbers, ordinals: Numbers, scopes: Numbers, holds_from: HoldsFrom) -> Numbers:
    """RelationVersions.at for each row; UNDESCRIBED for None."""
    numbers = numbers_at(holds_from, files, ordinals, None)
    if len(holds_from) > 1 or (None not in holds_from and holds_from):
        for scope in np.unique(scopes).tolist():
            if scope in holds_from:
                rows = np.flatnonzero(scopes == scope)
                own = numbers_at(holds_from, files[rows], ordinals[rows], scope)
                numbers[rows] = np.where(own >= 0, own, numbers[rows])
    return numbers


def numbers_at(holds_from: HoldsFrom, files: Numbers, ordinals: Numbers, scope: int | None) -> Numbers:
    """Like `numbers_in_force`, but only for the Relation messages of one scope."""
    entries = holds_from.get(scope, ())
    numbers = np.full(len(files), UNDESCRIBED, np.int64)
    if not entries or not len(files):
        return numbers
    first_file, last_file = files.min(), files.max()
    first = (int(first_file), int(ordinals[files == first_file].min()))
    last = (int(last_file), int(ordinals[files == last_file].max()))
    for (file, ordinal), number in entries:
        if (file, ordinal) <= first:
            numbers[:] = number
        elif (file, ordinal) <= last:
            numbers[(files > file) | ((files == file) & (ordinals >= ordinal))] = number
    return numbers


def spans_of(rows: RowPositions, holds_from: HoldsFrom) -> Iterator[VersionSpan]:
    """One span per generation and version that has rows."""
    if not len(rows.lsn):
        return
    entries = holds_from.get(None, ())
    by_generation: HoldsFrom = {None: tuple((position, n) for n, (position, _) in enumerate(entries))}
    generations = numbers_at(by_generation, rows.file, rows.ordinal, None)
    numbers = numbers_in_force(rows.file, rows.ordinal, rows.scope, holds_from)
    codes = (generations << 32) + numbers
    for code in np.unique(codes).tolist():
        at = int(np.argmax(codes == code))
        first, last = _limits(rows, np.flatnonzero(codes == code))
        yield VersionSpan(int(generations[at]), int(numbers[at]), first, last)


def _limits(rows: RowPositions, chosen: Numbers) -> tuple[CommitPosition, CommitPosition]:
    limits = []
    for smallest in (True, False):
        left = chosen
        for column in (rows.lsn, rows.file, rows.ordinal):
            values = column[left]
            left = left[values == (values.min() if smallest else values.max())]
        limits.append(rows.position(int(left[0])))
    return limits[0], limits[1]


def relation_spans_of_spans(spans: Iterable[VersionSpan], versions: RelationVersions) -> list[RelationSpan] | None:
    """The spans of a relation in commit order, without undescribed rows. None if spans of different versions overlap,
    so every row must be checked."""
    in_order = sorted((s for s in spans if s.number >= 0), key=lambda span: (span.first, span.last))
    reached: VersionSpan | None = None
    relation_spans: list[RelationSpan] = []
    for span in in_order:
        if reached is None or reached.number != span.number:
            if reached is not None and reached.last >= span.first:
                return None
            relation_spans.append(RelationSpan(span.first, versions.relations[span.number]))
            reached = span
        else:
            reached = VersionSpan(span.generation, span.number, reached.first, max(reached.last, span.last))
    return relation_spans


def relation_spans_of_rows(rows: RowPositions, versions: RelationVersions) -> list[RelationSpan]:
    """Like `relation_spans_of_spans`, but from all committed rows, in any order."""
    order = np.lexsort((rows.ordinal, rows.file, rows.lsn))
    numbers = numbers_in_force(rows.file, rows.ordinal, rows.scope, versions.holds_from)[order]
    order, numbers = order[numbers >= 0], numbers[numbers >= 0]
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()] if len(numbers) else []
    return [RelationSpan(rows.position(int(order[at])), versions.relations[int(numbers[at])]) for at in starts]
