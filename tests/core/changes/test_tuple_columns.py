"""Typed columns from raw tuples by kernels: the same values and the same refusals as the readable code."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgoutput_etl import jit
from pgoutput_etl.changes.tuple_columns import RawTuples
from pgoutput_etl.errors import WireError
from pgoutput_etl.protocol.decoder import read_tuple
from pgoutput_etl.types import ColumnType, LoadedColumn, ValueTextError, load_binary, load_text
from pgoutput_etl.types.kernels.dispatch import Cells, UnsureError, load_cells
from tests.support.cells import EDGES, KERNEL_TYPES, TYPES, Cell, binary_array, cells, tuple_of
from tests.support.typed_tuples import typed_columns

pytestmark = pytest.mark.skipif(not jit.AVAILABLE, reason="kernels need numba")
Loaded = tuple[list[object], dict[int, str]]


def bits(array: pa.Array) -> list[object]:
    """The array's values in a form in which 0 and -0 differ, and NaN equals itself."""
    if pa.types.is_floating(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return list(array.to_pylist())


def plainly(of: ColumnType, column: Sequence[Cell]) -> Loaded | None:
    """The column as the types' loaders read it, one form at a time; None if a value is refused."""
    found: list[object] = [None] * len(column)
    texts: dict[int, str] = {}
    for form, load in ((b"t", load_text), (b"b", load_binary)):
        try:
            loaded: LoadedColumn = load(of, [value if kind == form else None for kind, value in column])
        except ValueTextError:
            return None
        for i, typed in enumerate(bits(loaded.array)):
            if column[i][0] == form:
                found[i] = typed
        texts |= loaded.unrepresentable
    return found, texts


def by_kernels(of: ColumnType, column: Sequence[Cell], offset: int = 0) -> Loaded | None:
    raw = RawTuples.of(binary_array([tuple_of(cell).to_bytes() for cell in column], offset))
    try:
        (loaded,) = typed_columns(raw, [of])
    except (ValueTextError, UnsureError):
        return None
    loaded.array.validate(full=True)
    assert loaded.array.type == of.arrow
    return bits(loaded.array), dict(loaded.unrepresentable)


@pytest.mark.parametrize("name", EDGES)
def test_single_values_at_the_limits(name: str) -> None:
    for text in EDGES[name]:
        for value in (text.encode(), text.encode("latin-1", "replace")):
            column: list[Cell] = [(b"t", value)]
            assert by_kernels(TYPES[name], column) == plainly(TYPES[name], column), value


@pytest.mark.parametrize(
    "sent",
    [
        pack(">HhHH", 0, 0, 0, 2),
        pack(">HhHH", 0, 0, 0x4000, 2),
        pack(">HhHHH", 1, 0, 0, 2, 10_000),
        pack(">HhHHH", 1, 0, 0, 2, 0),
        pack(">HhHHH", 1, 0, 1, 2, 7),
        pack(">HhHHH", 2, 0, 0, 2, 7),
        pack(">HhHHH", 1, 2, 0, 2, 7),
        pack(">HhHHH", 1, 1, 0, 2, 9999),
        pack(">HhHHH", 1, -1, 0, 2, 9900),
        pack(">HhHHH", 1, -1, 0, 2, 9910),
        pack(">HhHHH", 1, 0, 0, 1, 7),
        pack(">HhHHH", 1, 32767, 0, 2, 7),
        pack(">HhHHH", 1, -32768, 0, 2, 7),
        pack(">HhHHH", 1, 0, 0xC000, 2, 7),
        pack(">HhHHHB", 1, 0, 0, 2, 7, 7),
        pack(">HhHH5H", 5, 4, 0, 2, 1, 2, 3, 4, 5),
    ],
    ids=bytes.hex,
)
def test_numerics_in_binary_form(sent: bytes) -> None:
    column: list[Cell] = [(b"b", sent)]
    assert by_kernels(TYPES["numeric(10,2)"], column) == plainly(TYPES["numeric(10,2)"], column)


@pytest.mark.parametrize("name", KERNEL_TYPES)
@settings(max_examples=40)
@given(data=st.data())
def test_a_value_equals_its_loader_s(name: str, data: st.DataObject) -> None:
    column = [data.draw(cells(name, wrong=True))]
    assert by_kernels(TYPES[name], column) == plainly(TYPES[name], column)


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=15)
@given(data=st.data())
def test_columns_of_both_forms_with_nulls(name: str, data: st.DataObject) -> None:
    good = st.lists(cells(name, wrong=False), max_size=12)
    column = data.draw(good | st.lists(cells(name, wrong=True), max_size=3))
    assert by_kernels(TYPES[name], column, data.draw(st.integers(0, 2))) == plainly(TYPES[name], column)


@pytest.mark.parametrize("name", KERNEL_TYPES)
def test_kernels_handle_what_servers_write(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that leaves every value to the loader would be correct, but useless."""
    usual = {
        "bool": "t", "int2": "-7", "int4": "2147483647", "int8": "-9223372036854775808", "oid": "4294967295",
        "xid": "751", "float4": "0.1", "float8": "-1234.5678", "numeric": "0.00001", "numeric(10,2)": "-99999999.99",
        "numeric(1,0)": "9", "numeric(15,9)": "3.141592654", "numeric(16,0)": "9999999999999999",
        "numeric(19,3)": "9999999999999999.999", "numeric(38,5)": "9" * 33 + ".99999",
        "numeric(38,38)": "-0." + "9" * 38, "date": "2024-02-29", "timestamp": "2026-11-21 01:02:03.5",
        "timestamptz": "2026-11-21 01:02:03.123456-03:30", "text": "žluť", "jsonb": "{}", "bytea": "\\x00fF",
        "uuid": "00000000-0000-0000-0000-000000000000",
    }  # fmt: skip
    sent = {
        "bool": b"\1", "int2": pack(">h", -7), "int4": pack(">i", 7), "int8": pack(">q", -7), "oid": b"\xff" * 4,
        "xid": pack(">I", 751), "float4": pack(">f", 0.1), "float8": pack(">d", -0.0), "text": b"a", "bytea": b"\xff",
        "numeric(10,2)": pack(">HhHH3H", 3, 1, 0x4000, 2, 1, 2345, 6700), "date": pack(">i", 9_000),
        "timestamp": pack(">q", -1), "timestamptz": pack(">q", 1), "jsonb": b"\1{}", "uuid": bytes(range(16)),
    }  # fmt: skip
    monkeypatch.setattr(
        "pgoutput_etl.types.kernels.dispatch._load_carefully", lambda *_: pytest.fail("left to the careful way")
    )
    column: list[Cell] = [(b"t", usual[name].encode())]
    column += [(b"b", sent[name])] if name in sent else []
    assert by_kernels(KERNEL_TYPES[name], column) == plainly(KERNEL_TYPES[name], column)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50), st.sampled_from(["float4", "float8"]))
def test_decimals_of_few_digits_are_rounded_to_the_nearest_float(numbers: list[int], name: str) -> None:
    texts = [
        f"{'-' * (n & 1)}{n >> (n & 15)}.{n % 1000:03d}{['', f'e+{n % 30}', f'e-{n % 40}'][n % 3]}" for n in numbers
    ]
    column: list[Cell] = [(b"t", text.encode()) for text in texts]
    assert by_kernels(TYPES[name], column) == plainly(TYPES[name], column)


@pytest.mark.parametrize("behind", [0, 1, 31, 32, 70])
def test_texts_are_complete_wherever_a_block_ends(behind: int) -> None:
    """Bytes are copied 32 at a time, and at the end of the memory one by one."""
    for size in (0, 1, 2, 15, 31, 32, 33, 34, 63, 64, 65, 97):
        for at in {*range(min(size, 3)), *range(max(size - 3, 0), size), *range(30, min(size, 34))}:
            for wrong in (b"\x80", b"\xc3", b"\xff"):
                value = b"a" * at + wrong + b"b" * (size - at - 1)
                column: list[Cell] = [(b"t", value), (b"t", b"e" * behind)]
                assert by_kernels(TYPES["text"], column) is None, (size, at)
            value = b"a" * at + "é".encode() + b"b" * (size - at - 1)
            column = [(b"t", b"first"), (b"n", None), (b"t", value), (b"t", b""), (b"t", b"e" * behind)]
            assert by_kernels(TYPES["text"], column) == plainly(TYPES["text"], column), (size, at)
        column = [(b"t", b"z" * size), (b"u", None), (b"b", b"y" * size), (b"t", "é".encode() * behind)]
        assert by_kernels(TYPES["text"], column) == plainly(TYPES["text"], column), size


@pytest.mark.parametrize("name", ["bytea", "inet", "jsonb", "text"])
def test_binary_values_are_complete_whatever_their_size(name: str) -> None:
    for size in (0, 1, 7, 8, 31, 32, 33, 64, 65):
        sent = {"bytea": b"\xff" * size, "jsonb": b"\1" + b"1" * size}.get(name, b"a" * size)
        for column in ([(b"b", sent)], [(b"b", b"\1"), (b"b", sent), (b"t", b"\\x00")], [(b"b", sent), (b"u", None)]):
            assert by_kernels(TYPES[name], column) == plainly(TYPES[name], column), size


def test_text_is_read_to_its_end_and_no_further() -> None:
    for size in range(1, 40):
        data = np.frombuffer(b"\xff" * 7 + b"a" * size + b"\xff", np.uint8).copy()
        chosen = np.zeros(1, np.int32)
        value = Cells(data, np.array([7], np.uint32), np.array([size], np.int32), chosen)
        assert load_cells(TYPES["text"], value).array.to_pylist() == ["a" * size]
        for at in range(7, 7 + size):
            data[at] = 0x80
            with pytest.raises(UnsureError):
                load_cells(TYPES["text"], value)
            data[at] = 0x61


in_text = st.lists(st.none() | st.text(max_size=9).map(str.encode), max_size=4).map(
    lambda row: tuple_of(*((b"n", None) if value is None else (b"t", value) for value in row)).to_bytes()
)
LIES = [b"t\xff\xff\xff\xff", b"t\x7f\xff\xff\xff", b"b\0\0\0\1", b"t\0\0\0\1\xff", b"n", b"u"]


@st.composite
def torn(draw: st.DrawFn) -> bytes:
    """A tuple that is cut, is followed by bytes, or has other bytes somewhere."""
    data = draw(in_text)
    at = draw(st.integers(0, len(data)))
    return data[:at] + draw(st.binary(max_size=5) | st.sampled_from(LIES)) + data[at + draw(st.integers(0, 9)) :]


def texts_of(data: bytes, width: int) -> tuple[bytes | None, ...] | None:
    """None if it isn't a tuple of that many columns of text."""
    try:
        read = read_tuple(data)
        _ = [value.decode() for value in read.values if value is not None]
    except (WireError, UnicodeDecodeError):
        return None
    return read.values if len(read.kinds) == width else None


@given(st.lists(in_text | torn(), max_size=4), st.integers(0, 4))
@example([b""], 0)
@example([b"\0"], 0)
@example([b"\0\0"], 0)
@example([b"\0\1t\0\0\0"], 1)
@example([b"\0\1"], 1)
@example([b"\0\1t\0\0\0\0", b"\0\1u\0"], 1)
def test_a_tuple_is_read_as_by_read_tuple_or_refused(several: list[bytes], width: int) -> None:
    expected = [texts_of(data, width) for data in several]
    try:
        columns = typed_columns(RawTuples.of(binary_array(list(several))), [TYPES["text"]] * width)
    except (UnsureError, ValueTextError):
        assert None in expected
    else:
        found = [column.array.cast(pa.binary()).to_pylist() for column in columns]
        assert [tuple(column[i] for column in found) for i in range(len(several))] == expected


def test_tuples_may_be_anywhere_in_a_file() -> None:
    first, second = (tuple_of((b"t", value)).to_bytes() for value in (b"12345678", b"-7"))
    content = b"some header" + first + b"between" + second + b"!"
    starts = np.array([content.index(first), content.index(second)], np.int64)
    ends = starts + np.array([len(first), len(second)])
    raw = RawTuples(np.frombuffer(content, np.uint8), starts, ends)
    (loaded,) = typed_columns(raw, [TYPES["int4"]])
    assert loaded.array.to_pylist() == [12345678, -7]


def test_an_array_without_tuples() -> None:
    for array in (pa.array([], pa.binary()), pa.array([None], pa.binary()), pa.nulls(2, pa.large_binary())):
        (loaded,) = typed_columns(RawTuples.of(array), [TYPES["int4"]])
        assert loaded.array.to_pylist() == [None] * len(array)


@pytest.mark.soak
@pytest.mark.parametrize("name", KERNEL_TYPES)
@settings(max_examples=5000)
@given(data=st.data())
def test_many_values_equal_their_loaders(name: str, data: st.DataObject) -> None:
    column = data.draw(st.lists(cells(name, wrong=True), min_size=1, max_size=2))
    assert by_kernels(TYPES[name], column) == plainly(TYPES[name], column)
