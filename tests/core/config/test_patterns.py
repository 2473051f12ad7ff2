"""Shell patterns: the order from general to specific, and the pairs that some name matches."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.config.patterns import is_name, matches, overlap, specificity

NAMES = ["".join(letters) for size in range(5) for letters in product("ab.", repeat=size)]

PATTERNS = st.lists(st.sampled_from(["a", "b", ".", "*", "?", "[a]", "[!a]", "[ab]"]), max_size=5).map("".join)


@pytest.mark.parametrize(
    "ordered",
    [
        ["*", "*.*", "public.*", "public.a*", "public.a*s", "public.a?ts", "public.acts"],
        ["*_old", "public.*", "public.acts"],
        ["public.*_old", "public.tmp_*"],  # equally many literal characters: more of them come first
        ["public.[ab]", "public.[a]"],
        ["public.acts*", "public.acts"],
    ],
)
def test_more_literal_characters_are_more_specific_and_a_name_most(ordered: list[str]) -> None:
    for general, specific in pairwise(ordered):
        assert specificity(general) < specificity(specific), (general, specific)


@pytest.mark.parametrize(("pattern", "expected"), [("a.b", True), ("a[*]b", True), ("a[", True), ("a?", False)])
def test_a_pattern_may_match_a_single_name(pattern: str, expected: bool) -> None:
    assert is_name(pattern) is expected


@given(PATTERNS, PATTERNS)
def test_patterns_overlap_if_a_name_matches_both(one: str, other: str) -> None:
    has_common = any(matches(one, name) and matches(other, name) for name in NAMES)
    assert overlap(one, other) >= has_common
    assert overlap(one, other) == overlap(other, one)


@given(PATTERNS, PATTERNS)
def test_patterns_without_a_common_name_do_not_overlap(one: str, other: str) -> None:
    """With few pieces that take a character, a common name is short."""
    if len(one) + len(other) <= 4 and "[" not in one + other:
        assert overlap(one, other) == any(matches(one, name) and matches(other, name) for name in NAMES)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("*.tenant_1_*", "*.tenant_2_*", True),
        ("*.tenant_1", "*.tenant_2", False),
        ("*_1.*s", "*_2.orders", True),
        ("a*_old", "b*_old", False),
        ("ab*ba", "ab*a", True),
        ("ab*ba", "aba", False),
    ],
)
def test_patterns_with_asterisks_overlap_if_their_beginnings_and_their_ends_do(
    one: str, other: str, expected: bool
) -> None:
    assert overlap(one, other) == overlap(other, one) == expected
