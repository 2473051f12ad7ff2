"""Names that a user may have given to a table, on their way into expressions and paths."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgoutput_etl.naming import path_segment, quoted

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=63)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a", "`a`"), ("a.b", "`a.b`"), ("sp ace", "`sp ace`"), ("`", "````"), ("a`) or 1", "`a``) or 1`")],
)
def test_a_quoted_name_is_one_name(name: str, expected: str) -> None:
    assert quoted(name) == expected


@given(names)
def test_nothing_in_a_name_ends_the_quotes(name: str) -> None:
    inside = quoted(name)[1:-1]
    assert "`" not in inside.replace("``", "")
    assert inside.replace("``", "`") == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders", "orders"),
        ("Weird Name", "Weird Name"),
        ("v1.2-b_$", "v1.2-b_$"),
        ("_delta_log", "%5Fdelta_log"),
        ("_pgoutput_etl", "%5Fpgoutput_etl"),
        (".hidden", "%2Ehidden"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("../../etc", "%2E.%2F..%2Fetc"),
        ("/root", "%2Froot"),
        ("a/b", "a%2Fb"),
        ("a\\b", "a%5Cb"),
        ("100%", "100%25"),
        ("%2F", "%252F"),
        ("id=1", "id%3D1"),
        ("ends.", "ends%2E"),
        ("ends ", "ends%20"),
        ("{a,b}*?[c]", "%7Ba%2Cb%7D%2A%3F%5Bc%5D"),
        ("žluť", "%C5%BElu%C5%A5"),
        ("\U0001f418", "%F0%9F%90%98"),
        ("line\nbreak", "line%0Abreak"),
    ],
)
def test_a_name_as_a_folder(name: str, expected: str) -> None:
    assert path_segment(name) == expected


@given(names)
@example("..")
@example("_x")
@example("%41")
def test_every_name_has_a_folder_of_its_own_and_is_told_by_it(name: str) -> None:
    segment = path_segment(name)
    assert unquote(segment, errors="strict") == name
    assert segment.isascii()
    assert segment.isprintable()
    assert segment[0] not in "_."
    assert not set(segment) & set('/\\:*?"<>|{}[]#')
    assert PurePosixPath("root", segment).parts == ("root", segment)
