"""Relation spans of committed rows: from version spans, from all rows at once, and row by row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.schema.relation_history import (
    CommitPosition,
    Position,
    RelationHistory,
    RelationSpan,
    RelationVersions,
)
from pgoutput_etl.schema.version_spans import (
    NO_SCOPE,
    RowPositions,
    VersionSpan,
    relation_spans_of_rows,
    relation_spans_of_spans,
    spans_of,
)
from tests.support.small_archives import T, table

VERSIONS = [table(*"abc"[:n]) for n in (1, 2, 3)]
Row = tuple[int, int, int, int]  # commit LSN, file, ordinal, scope

positions = st.tuples(st.integers(0, 2), st.integers(0, 20))
declared = st.lists(st.tuples(positions, st.sampled_from(VERSIONS), st.sampled_from([None, None, 1, 2])), max_size=8)
rows = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 2), st.integers(0, 20), st.sampled_from([NO_SCOPE, NO_SCOPE, 1, 2])),
    unique_by=lambda row: row[1:3],
    max_size=30,
)


def versions_of(messages: Sequence[tuple[Position, Relation, int | None]]) -> RelationVersions:
    history = RelationHistory()
    for position, relation, scope in sorted(messages, key=lambda m: m[0]):
        history.declare(relation, position, scope)
    return history.versions(T)


def one_by_one(rows: list[Row], versions: RelationVersions) -> list[RelationSpan]:
    numbered: list[tuple[CommitPosition, int]] = []
    for lsn, file, ordinal, scope in sorted(rows):
        number = versions.at((file, ordinal), None if scope == NO_SCOPE else scope)
        if number is not None:
            numbered.append(((lsn, file, ordinal), number))
    return [
        RelationSpan(next(of)[0], versions.relations[number])
        for number, of in groupby(numbered, key=lambda row: row[1])
    ]


def places(rows: list[Row]) -> RowPositions:
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    return RowPositions(*columns)


@given(declared, rows, st.integers(1, 30))
def test_relation_spans_equal_those_of_single_rows(
    messages: list[tuple[Position, Relation, int | None]], rows: list[Row], block: int
) -> None:
    """However the rows are divided into blocks. Version spans give the same result, or None."""
    versions = versions_of(messages)
    expected = one_by_one(rows, versions)
    assert relation_spans_of_rows(places(rows), versions) == expected
    spans: dict[tuple[int, int], VersionSpan] = {}
    for begin in range(0, len(rows), block):
        for span in spans_of(places(rows[begin : begin + block]), versions.holds_from):
            key = (span.generation, span.number)
            spans[key] = spans[key].joined(span) if key in spans else span
    assert relation_spans_of_spans(spans.values(), versions) in (None, expected)
    if len({row[3] for row in rows}) < 2 and rows and rows[0][3] == NO_SCOPE and len({row[0] for row in rows}) < 2:
        assert relation_spans_of_spans(spans.values(), versions) == expected, (
            "one ordinary transaction needs no second look"
        )


def test_a_version_that_returns_has_its_own_span() -> None:
    messages = [((0, 0), VERSIONS[0], None), ((0, 5), VERSIONS[1], None), ((0, 10), VERSIONS[0], None)]
    versions = versions_of(messages)
    spans = list(
        spans_of(places([(1, 0, 1, NO_SCOPE), (2, 0, 6, NO_SCOPE), (3, 0, 11, NO_SCOPE)]), versions.holds_from)
    )
    assert relation_spans_of_spans(spans, versions) == [
        RelationSpan((1, 0, 1), VERSIONS[0]),
        RelationSpan((2, 0, 6), VERSIONS[1]),
        RelationSpan((3, 0, 11), VERSIONS[0]),
    ]
