"""Bounds as pg_get_expr prints them."""

from __future__ import annotations

import pytest

from pgoutput_etl.protocol.partition_bound import Edge, PartitionBound, read_bound


def test_a_list_has_the_texts_of_its_values() -> None:
    text = r"FOR VALUES IN ('it''s', E'a\\b', 'x, ''y'')', NULL, 7, true, 'MINVALUE')"
    listed = ("it's", r"a\b", "x, 'y')", None, "7", "t", "MINVALUE")
    assert read_bound(text, ["p"]) == PartitionBound(("p",), listed)


def test_a_range_has_its_lower_edge_within() -> None:
    bound = read_bound("FOR VALUES FROM ('2024-01-01', 1.5) TO ('2024-02-01', '-2')", ["at", "n"])
    assert bound is not None
    assert (bound.lower, bound.upper) == (Edge(("2024-01-01", "1.5"), True), Edge(("2024-02-01", "-2"), False))


@pytest.mark.parametrize(
    ("lower", "upper", "edges"),
    [
        ("(MINVALUE, MINVALUE)", "(MAXVALUE, MAXVALUE)", (Edge((), True), Edge((), True))),
        ("(1, MINVALUE)", "(2, MINVALUE)", (Edge(("1",), True), Edge(("2",), False))),
        ("(1, MAXVALUE)", "(2, MAXVALUE)", (Edge(("1",), False), Edge(("2",), True))),
    ],
)
def test_an_outermost_value_ends_an_edge(lower: str, upper: str, edges: tuple[Edge, Edge]) -> None:
    bound = read_bound(f"FOR VALUES FROM {lower} TO {upper}", ["a", "b"])
    assert bound is not None
    assert (bound.lower, bound.upper) == edges


@pytest.mark.parametrize(
    "text",
    [
        *("DEFAULT", "FOR VALUES WITH (modulus 2, remainder 0)", "", "FOR VALUES IN ()", "FOR VALUES IN (MINVALUE)"),
        *("FOR VALUES IN (1, now())", "FOR VALUES IN ('a'b')", "FOR VALUES IN (1)) OR (true", "FOR VALUES IN (1,2)"),
        *("FOR VALUES FROM (NULL) TO (1)", "FOR VALUES FROM (1, 2) TO (3, 4)", "FOR VALUES FROM (1) TO (2, 3)"),
    ],
)
def test_another_form_says_nothing(text: str) -> None:
    assert read_bound(text, ["p"]) is None


def test_a_list_has_one_column() -> None:
    assert read_bound("FOR VALUES IN (1)", ["a", "b"]) is None


def test_values_are_never_shown() -> None:
    bounds = (read_bound("FOR VALUES IN ('secret')", ["p"]), read_bound("FOR VALUES FROM ('secret') TO ('z')", ["p"]))
    assert "secret" not in repr(bounds)
