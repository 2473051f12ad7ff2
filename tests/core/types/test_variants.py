"""JSON documents: a VARIANT holds some exactly, and all others remain text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.types import Storage, UserTypes, ValueTextError, column_type, load_binary, load_text

VARIANT = column_type(3802, -1, UserTypes(configured={"jsonb": "variant"}))


@pytest.mark.parametrize(
    "text",
    [
        "null", "true", '"x"', "[]", "{}", '{"a": 1.10, "b": [null, {}]}', "9" * 38, "-" + "9" * 38, "0." + "1" * 38,
        "1e5", "-1.5E+3", "0e999999", "-0.0", str(2**200), '"\\u017e \\ud83d\\udc18"', '"\\u0000"', " [ 1 ]\n",
        "[" * 500 + "]" * 500, '"' + "[" * 600 + '"', '{"' + "k" * 50_000 + '": 1}',
    ],
)  # fmt: skip
def test_a_variant_holds_the_document(text: str) -> None:
    loaded = load_text(VARIANT, [text.encode(), None])
    assert loaded.array.to_pylist() == [text, None]
    assert VARIANT.storage is Storage.VARIANT


@pytest.mark.parametrize(
    "text",
    [
        "1" * 39, "[0." + "1" * 39 + "]", "1e400", "-1e400", "1e-400", "0.1e0", "1e23", '{"a": 1, "a": 2}',
        '{"a": 1, "\\u0061": 2}', '"\\ud800"', '{"\\udc18": 1}', "[" * 501 + "]" * 501, "1e99999999999999999999",
        '{"' + "k" * 50_001 + '": 1}', "0." + "0" * 39 + "1",
    ],
)  # fmt: skip
def test_an_inexact_document_is_kept_as_text(text: str) -> None:
    loaded = load_text(VARIANT, [b"1", text.encode(), None])
    assert loaded.array.to_pylist() == ["1", None, None]
    assert loaded.unrepresentable == {1: text}


def test_a_document_that_may_be_too_large_is_kept_as_text() -> None:
    fitting = "[" + "1," * 1_000_000 + "1]"
    too_large = "[" + "1," * 1_300_000 + "1]"
    string = json.dumps("x" * 16_000_000)
    loaded = load_text(VARIANT, [fitting.encode(), too_large.encode(), string.encode()])
    assert loaded.unrepresentable.keys() == {1}


@pytest.mark.parametrize("text", [b"", b"{", b"NaN", b"-Infinity", b"[1,]", b"01", b"'a'", b"\xff", b'"\n"', b"1 2"])
def test_invalid_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueTextError) as raised:
        load_text(VARIANT, [b"1", text])
    assert raised.value.index == 1


def test_both_binary_forms() -> None:
    assert load_binary(VARIANT, [b'\1{"a": 1}', b'{"a": 1}', None]).array.to_pylist() == ['{"a": 1}', '{"a": 1}', None]


FINITE = st.floats(allow_nan=False, allow_infinity=False)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | FINITE | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(DOCUMENTS)
def test_every_document_arrives_or_is_kept_as_text(document: object) -> None:
    text = json.dumps(document)
    loaded = load_text(VARIANT, [text.encode()])
    assert loaded.array[0].as_py() == text or loaded.unrepresentable == {0: text}
