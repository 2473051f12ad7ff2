"""LSNs as PostgreSQL prints them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.lsn import MAX_LSN, format_lsn, parse_lsn

PRINTED = [("0/0", 0), ("0/1786300", 0x1786300), ("16/B374D848", 0x16B374D848), ("FFFFFFFF/FFFFFFFF", MAX_LSN)]


@pytest.mark.parametrize(("text", "lsn"), PRINTED)
def test_as_postgresql_prints_it(text: str, lsn: int) -> None:
    assert parse_lsn(text) == lsn
    assert format_lsn(lsn) == text


@given(st.integers(0, MAX_LSN))
def test_parse_undoes_format(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn


def test_typed_by_hand() -> None:
    assert parse_lsn("16/b374d848") == parse_lsn("00000016/B374D848") == 0x16B374D848
    assert parse_lsn("1/0") == parse_lsn("1/00000000") == 2**32


@pytest.mark.parametrize(
    "text",
    ["", "/", "0", "0/", "/0", "1/2/3", "0x1/2", "1/123456789", "G/0", "-1/0", " 1/2", "1/2\n", "1 /2", "\uff11/2"],
)
def test_anything_else_is_refused_and_shown(text: str) -> None:
    with pytest.raises(ValueError, match="not an LSN") as raised:
        parse_lsn(text)
    assert repr(text) in str(raised.value)


@pytest.mark.parametrize("lsn", [-1, MAX_LSN + 1])
def test_a_number_that_is_no_lsn_is_refused(lsn: int) -> None:
    with pytest.raises(ValueError, match="not an LSN"):
        format_lsn(lsn)
