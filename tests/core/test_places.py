"""Places of target tables: their texts, and what is in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgoutput_etl.identifiers import path_segment
from pgoutput_etl.places import NO_PLACE, Place

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=63)


@given(names, names.filter(bool))
@example("plain", "[x=1],y=2")
@example("plain", "`, '")
def test_a_tagged_place_has_its_table_and_its_tag(table: str, value: str) -> None:
    for text in (f"/lake/public/{path_segment(table)}", "`main`.`public`.`t`"):
        place, tag = Place.parse(text), {"_pg_source": value, "tenant": "x"}
        tagged = place.tagged(tag)
        assert (tagged.table, tagged.tag, tagged.identifier) == (place, tag, place.identifier)
        assert Place.parse(str(tagged)) == tagged
        assert (place.table, place.tag, place.tagged({}), str(place)) == (place, {}, place, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/lake/public/t",
        "relative/t",
        "s3a://lake/public/t%5Bx%3D1%5D",
        "`main`.`public`.`t`",
        "/lake/all/orders[source=shop,tenant=a%20b]",
        "`main`.`all`.`orders`[source=shop]",
        "/lake/[a=b",
        "/lake/t[]",
    ],
)
def test_a_place_is_printed_as_it_was_read(text: str) -> None:
    """The ledger has places as texts, and compares them."""
    assert str(Place.parse(text)) == text
    assert bool(Place.parse(text)) is (Place.parse(text) != NO_PLACE) is bool(text)


def test_a_relative_place_begins_at_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = os.getcwd()  # noqa: PTH109 # as the code has it
    assert str(Place.parse("all/t[source=a]").absolute()) == f"{here}/all/t[source=a]"
    for text in ("`main`.`public`.`t`", "/lake/t", "s3a://lake/t", ""):
        assert str(Place.parse(text).absolute()) == text


@pytest.mark.parametrize(
    ("text", "is_remote"),
    [
        ("s3a://lake/t[source=a]", True),
        ("abfss://lake@account/t", True),
        ("dbfs:/lake/t", True),
        ("/lake/t", False),
        ("file:/lake/t", False),
        ("`main`.`public`.`t`", False),
        ("relative/t", False),
        ("", False),
    ],
)
def test_a_remote_place_is_in_a_file_system_that_is_not_the_machines(text: str, is_remote: bool) -> None:
    assert Place.parse(text).is_remote is is_remote
