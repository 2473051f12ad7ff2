"""Arrays in text and binary form, by literals and by an independent printer. Needs no server."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.types import ColumnType, LoadedColumn, ValueTextError, column_type, load_binary, load_text
from pgoutput_etl.types.arrays import ELEMENTS, array_type

BOOLS, INTS, TEXTS, FLOATS, NUMERICS, DATES, BOXES, BYTEAS = 1000, 1007, 1009, 1022, 1231, 1182, 1020, 1001
INT4, TEXT, BOX = 23, 25, 603
TEN_TWO = (10 << 16 | 2) + 4


def same(value: bytes) -> bytes:
    return value


def int4_text(value: bytes) -> bytes:
    number: int = struct.unpack(">i", value)[0]
    return b"%d" % number


TEXT_ARRAY = array_type(replace(column_type(TEXT, -1), binary_text=same), TEXT)
INT_ARRAY = array_type(replace(column_type(INT4, -1), binary_text=int4_text, fast_binary=None), INT4)


def load(oid: int, text: bytes, typmod: int = -1) -> Any:
    loaded = load_text(column_type(oid, typmod), [None, text, None])
    assert not loaded.unrepresentable
    assert loaded.array.is_null().to_pylist() == [True, False, True]
    return loaded.array[1].as_py()


@pytest.mark.parametrize(
    ("oid", "typmod", "name", "arrow"),
    [
        (INTS, -1, "int4[]", pa.list_(pa.int32())),
        (NUMERICS, TEN_TWO, "numeric(10,2)[]", pa.list_(pa.decimal128(10, 2))),
        (NUMERICS, -1, "numeric[]", pa.list_(pa.string())),
        (1015, 24, "varchar(20)[]", pa.list_(pa.string())),
        (1185, -1, "timestamptz[]", pa.list_(pa.timestamp("us", "UTC"))),
        (3911, -1, "tstzrange[]", pa.list_(pa.string())),
    ],
)
def test_an_array_is_a_list_of_its_elements_type(oid: int, typmod: int, name: str, arrow: pa.DataType) -> None:
    column = column_type(oid, typmod)
    assert (column.name, column.arrow) == (name, arrow)
    assert column.may_be_unrepresentable
    assert pickle.loads(pickle.dumps(column)) == column


def test_every_array_type_has_a_known_element_type() -> None:
    for oid, element in ELEMENTS.items():
        assert column_type(oid, -1).element == column_type(element, -1)


@pytest.mark.parametrize(
    ("oid", "text", "value"),
    [
        (INTS, b"{}", []),
        (INTS, b"{1,NULL,-3}", [1, None, -3]),
        (BOOLS, b"{t,f,NULL}", [True, False, None]),
        (FLOATS, b"{1.5,Infinity,NULL}", [1.5, float("inf"), None]),
        (BYTEAS, rb'{"\\x00ff","\\x"}', [b"\x00\xff", b""]),
        (TEXTS, b'{"",NULL,"NULL","null",x}', ["", None, "NULL", "null", "x"]),
        (TEXTS, rb'{"a\"b","c\\d","{e}","f,g"," h","i' + b'\n"}', ['a"b', r"c\d", "{e}", "f,g", " h", "i\n"]),
        (TEXTS, rb'{"\\\\\"",plain}', ['\\\\"', "plain"]),
        (TEXTS, "{žluť,\U0001f418}".encode(), ["žluť", "\U0001f418"]),
        (TEXTS, b'{"{\\"nested\\"}"}', ['{"nested"}']),
        (BOXES, b"{(1,1),(0,0);(3,3),(2,2)}", ["(1,1),(0,0)", "(3,3),(2,2)"]),
    ],
)
def test_an_array_arrives(oid: int, text: bytes, value: object) -> None:
    assert load(oid, text) == value


def test_the_modifier_applies_to_the_elements() -> None:
    assert load(NUMERICS, b"{1.20,NULL,-7.00}", TEN_TWO) == [Decimal("1.20"), None, Decimal("-7.00")]


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (INTS, b"{{1,2},{3,4}}"),
        (INTS, b"{{{1},{2}},{{3},{NULL}}}"),
        (INTS, b"[0:2]={7,8,9}"),
        (INTS, b"[-1:0][2:3]={{1,2},{3,4}}"),
        (TEXTS, rb'{{"a}","{"},{"\"",NULL}}'),
        (DATES, b"{2026-11-21,infinity}"),
        (DATES, b'{"0044-03-15 BC"}'),
        (BOXES, b"{{(1,1),(0,0)};{(3,3),(2,2)}}"),
    ],
)
def test_an_array_that_is_no_list_is_kept_as_text(oid: int, text: bytes) -> None:
    plain = b"{}"
    loaded = load_text(column_type(oid, -1), [plain, text, None, text, plain])
    assert loaded.unrepresentable == {1: text.decode(), 3: text.decode()}
    assert loaded.array.to_pylist() == [[], None, None, None, []]


@pytest.mark.parametrize(
    ("oid", "text", "in_utc"),
    [
        (1185, '{infinity,NULL,"2026-11-21 03:04:05+05:45"}', '{infinity,NULL,"2026-11-20 21:19:05+00"}'),
        (1185, '[0:0]={"10000-01-01 00:00:00-10"}', '[0:0]={"10000-01-01 10:00:00+00"}'),
        (
            3911,
            '{{"[\\"2026-11-21 03:04:05+05:45\\",)",empty}}',
            '{{"[\\"2026-11-20 21:19:05+00\\",)",empty}}',
        ),
    ],
)
def test_an_array_of_instants_is_kept_as_text_in_utc(oid: int, text: str, in_utc: str) -> None:
    assert load_text(column_type(oid, -1), [text.encode()]).unrepresentable == {0: in_utc}


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (1185, b'{{"21.11.2026 03:04:05 CET"}}', "DateStyle"),
        (DATES, b"[0:1]={NULL,03/04/2026}", "DateStyle"),
        (1187, b"{{P1Y},{NULL}}", "IntervalStyle"),
        (1001, b'{{"\\\\000"}}', "bytea_output"),
        (TEXTS, b"{{\xff}}", "UTF-8"),
        (INTS, b"{{1},{0x1F}}", "decimal digits"),
    ],
)
def test_an_invalid_element_of_an_array_kept_as_text_is_refused(oid: int, text: bytes, expected: str) -> None:
    with pytest.raises(ValueTextError, match=expected) as raised:
        load_text(column_type(oid, -1), [b"{}", None, b"{{NULL}}", text])
    assert raised.value.index == 3


MALFORMED = [
    b"", b"{", b"}", b"{}}", b"{{}", b"{1,2", b"1,2}", b"1", b"{,}", b"{1,}", b"{,1}", b"{1,,2}", b"{ 1}", b"{1 }",
    b"{1\n}",
    b"{{}}", b"{{},{}}", b"{{1},{}}", b"{{1},2}", b"{1,{2}}", b"{{1,2},{3}}", b"{{1},{2}}}", b"{{1}{2}}", b'{"1""2"}',
    b"[0:2]={7,8}", b"[0:2]=", b"[0:2]", b"[0:0][0:1]={1,2}", b"[2:1]={}", b"{{{{{{{1}}}}}}}", b"{1}{2}",
    b'{"1}', b'{"1\\"}',
    b"{1};", b"{}{}", b"\xff", b"[1:2]=x", b"{{1},{2},}", b"{\\1}",
]  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED)
@pytest.mark.parametrize("oid", [INTS, TEXTS])
def test_malformed_text_is_refused(oid: int, text: bytes) -> None:
    with pytest.raises(ValueTextError) as raised:
        load_text(column_type(oid, -1), [b"{}", b"{1,2}", text])
    assert raised.value.index == 2
    assert raised.value.type_name == column_type(oid, -1).name


def test_an_invalid_element_is_refused_with_its_arrays_index() -> None:
    with pytest.raises(ValueTextError) as raised:
        load_text(column_type(INTS, -1), [b"{1}", None, b"{}", b"{4,4111,0x1F}", b"{5}"])
    assert raised.value.index == 3
    assert "int4[]" in str(raised.value)
    assert "4111" not in str(raised.value)


def array_out(elements: Sequence[str | None], delimiter: str = ",") -> str:
    """An independent implementation of array_out."""
    items = []
    for element in elements:
        if element is None:
            items.append("NULL")
        elif element == "" or element.upper() == "NULL" or any(c in ' \t\n\r\v\f"\\{}' + delimiter for c in element):
            items.append('"' + "".join("\\" + c if c in '"\\' else c for c in element) + '"')
        else:
            items.append(element)
    return "{" + delimiter.join(items) + "}"


ELEMENT_TEXTS = (
    st.none() | st.text(st.sampled_from('aN{}",\\ \n\u00a0UL') | st.characters(codec="utf-8")) | st.just("null")
)
LISTS = st.lists(st.none() | st.lists(ELEMENT_TEXTS, max_size=5), max_size=5)


@given(LISTS)
def test_every_list_of_texts_round_trips(lists: list[list[str | None] | None]) -> None:
    texts = [None if elements is None else array_out(elements).encode() for elements in lists]
    assert load_text(column_type(TEXTS, -1), texts).array.to_pylist() == lists


@given(st.lists(st.binary(max_size=12) | st.text('{}",\\N[]:=01 ', max_size=14).map(str.encode), max_size=4))
def test_other_bytes_arrive_or_are_refused(values: list[bytes]) -> None:
    for oid in (TEXTS, INTS):
        for read in (load_text, load_binary):
            try:
                loaded = read(column_type(oid, -1), values)
            except ValueTextError:
                pass
            else:
                assert all(loaded.array[i].is_valid != (i in loaded.unrepresentable) for i in range(len(values)))


def array_send(
    elements: Sequence[bytes | None], oid: int, dimensions: Sequence[tuple[int, int]] | None = None, flags: int = 0
) -> bytes:
    dimensions = [(len(elements), 1)] if dimensions is None else dimensions
    sent = struct.pack(">iiI", len(dimensions), flags, oid) + b"".join(struct.pack(">ii", *d) for d in dimensions)
    return sent + b"".join(struct.pack(">i", -1 if e is None else len(e)) + (e or b"") for e in elements)


def ints(*values: int) -> list[bytes]:
    return [struct.pack(">i", value) for value in values]


AWKWARD = [b"", b"nULL", b'a"', b"\\", b"{", b",", b" ", b";x"]
EIGHT = b"[-1:0][1:1][5:8]={{{0,1,2,3}},{{4,5,6,7}}}"


@pytest.mark.parametrize(
    ("column", "sent", "text"),
    [
        (INT_ARRAY, array_send([], INT4, []), b"{}"),
        (INT_ARRAY, array_send([*ints(1), None, *ints(-3)], INT4, flags=1), b"{1,NULL,-3}"),
        (INT_ARRAY, array_send(ints(1, 2, 3, 4), INT4, [(2, 1), (2, 1)]), b"{{1,2},{3,4}}"),
        (INT_ARRAY, array_send(ints(7, 8, 9), INT4, [(3, 0)]), b"[0:2]={7,8,9}"),
        (INT_ARRAY, array_send(ints(*range(8)), INT4, [(2, -1), (1, 1), (4, 5)]), EIGHT),
        (TEXT_ARRAY, array_send(AWKWARD, TEXT), rb'{"","nULL","a\"","\\","{",","," ",;x}'),
    ],
)
def test_the_binary_form_gives_the_same_value_as_the_text(column: ColumnType, sent: bytes, text: bytes) -> None:
    assert column.binary_text(sent) == text
    assert_same(load_binary(column, [sent, None, sent]), load_text(column, [text, None, text]))


def assert_same(one: LoadedColumn, other: LoadedColumn) -> None:
    assert one.array.equals(other.array)
    assert one.unrepresentable == other.unrepresentable


@given(LISTS)
def test_both_forms_of_every_list_give_the_same_value(lists: list[list[str | None] | None]) -> None:
    sent = [
        None if elements is None else array_send([None if e is None else e.encode() for e in elements], TEXT)
        if elements else array_send([], TEXT, [])
        for elements in lists
    ]  # fmt: skip
    texts = [None if elements is None else array_out(elements).encode() for elements in lists]
    assert [None if value is None else TEXT_ARRAY.binary_text(value) for value in sent] == texts
    assert_same(load_binary(TEXT_ARRAY, sent), load_text(TEXT_ARRAY, texts))


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        array_send(ints(1), INT4)[:-1],
        array_send(ints(1), INT4) + b"\0",
        array_send(ints(1), 20),  # of another element type
        array_send(ints(1), INT4, [(2, 1)]),
        array_send(ints(1), INT4, [(0, 1)]),
        array_send([], INT4, [(-1, 1)]),
        array_send([], INT4, [(2**31 - 1, 1)] * 6),
        array_send([], INT4, [(1, 1)] * 7),
        array_send(ints(1), INT4, flags=2),
        array_send([b"123"], INT4)[:-3] + b"\0\0",
    ],
)
def test_a_malformed_binary_form_is_refused(sent: bytes) -> None:
    with pytest.raises(ValueTextError) as raised:
        load_binary(INT_ARRAY, [array_send(ints(1), INT4), None, sent])
    assert raised.value.index == 2


def test_a_type_that_is_an_array_by_name_is_refused_with_other_values() -> None:
    column = array_type(replace(column_type(TEXT, -1), binary_text=same), None)
    assert load_text(column, [b"{a,NULL}"]).array.to_pylist() == [["a", None]]
    for text in (b"no array", b"(1,2)"):
        with pytest.raises(ValueTextError, match="not a type that is declared in the configuration") as raised:
            load_text(column, [b"{a,NULL}", text])
        assert raised.value.index == 1
    assert load_binary(column, [array_send([b"a"], 16400)]).array.to_pylist() == [["a"]]
    with pytest.raises(ValueTextError):
        load_binary(column, [array_send([b"a"], TEXT)])
