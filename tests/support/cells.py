"""Cells of any type, valid or almost valid, on which tests compare kernels with the readable code."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from struct import pack

import pyarrow as pa
from hypothesis import strategies as st

from pgoutput_etl.protocol.messages import TupleData
from pgoutput_etl.types import ColumnType, column_type
from tests.support.scalar_values import SCALARS

Cell = tuple[bytes, bytes | None]  # kind and value
NUMERIC = 1700


def numeric(precision: int, scale: int) -> ColumnType:
    return column_type(NUMERIC, ((precision << 16) | scale) + 4)


# Every type that a kernel reads, by the name that scalar_values.py has for its values.
KERNEL_TYPES: dict[str, ColumnType] = {
    "bool": column_type(16, -1),
    "int2": column_type(21, -1),
    "int4": column_type(23, -1),
    "int8": column_type(20, -1),
    "oid": column_type(26, -1),
    "xid": column_type(28, -1),
    "float4": column_type(700, -1),
    "float8": column_type(701, -1),
    "numeric": column_type(NUMERIC, -1),
    "numeric(10,2)": numeric(10, 2),
    "numeric(1,0)": numeric(1, 0),
    "numeric(15,9)": numeric(15, 9),
    "numeric(16,0)": numeric(16, 0),
    "numeric(19,3)": numeric(19, 3),
    "numeric(38,5)": numeric(38, 5),
    "numeric(38,38)": numeric(38, 38),
    "date": column_type(1082, -1),
    "timestamp": column_type(1114, -1),
    "timestamptz": column_type(1184, -1),
    "text": column_type(25, -1),
    "jsonb": column_type(3802, -1),
    "uuid": column_type(2950, -1),
    "bytea": column_type(17, -1),
}
OTHER_TYPES = {
    "interval": column_type(1186, -1),
    "inet": column_type(869, -1),
    "int4[]": column_type(1007, -1),
    "text[]": column_type(1009, -1),
    "oid 999": column_type(999, -1),
}
TYPES = KERNEL_TYPES | OTHER_TYPES

# Each at a limit of the kernel's input, or just past it.
EDGES: dict[str, tuple[str, ...]] = {
    "bool": ("t", "f", "true", "T", "", "1"),
    "int2": ("32767", "32768", "-32768", "-32769", "-0", "007", "+1", "-", "", "1 ", "0x1F", "1e2"),
    "int4": ("2147483647", "2147483648", "-2147483648", "-2147483649", "12345678", "123456789", "00000000001"),
    "int8": (
        *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
        *("9999999999999999999", "12345678", "1234567890123456", "12345678901234567", "0000000000000000001"),
        *("00000000000000000001", "18446744073709551616", "1234567:", "/1234567", "12345678 12345678"),
    ),
    "oid": ("4294967295", "4294967296", "-0", "-1", "0000000001"),
    "float4": (
        *("3.4028235e+38", "3.4028236e+38", "1e-45", "1e-46", "0.1", "16777217", "-0", "1.17549435e-38"),
        # just below and above the midpoint of two float4 values, to which it rounds as a float8
        *("1.000000178813934326", "1.000000059604644776", "-1.000000059604644776"),
        *("8388609.5", "0.50000002980232238769531", "1.00000005960464477539", "NaN", "Infinity", "1e+22", "1e-22"),
    ),
    "float8": (
        *("9007199254740992", "9007199254740993", "1e+22", "1e+23", "1e-22", "1e-23", "1.7976931348623157e+308"),
        *("1e+400", "1e-400", "5e-324", "-0", "-0.0", "0.1", "1.", ".5", "1e5", "1e+", "1e+0022", "1E+2", "--1", "-"),
        *(
            "18446744073709551616",
            "36893488147419103232e-5",
            "9999999999999999999",
            "9007199254740993.0",
            "4503599627370497.5",
        ),
        *("1e+308", "2e+308", "1e-308", "2.2250738585072014e-308", "4503599627370497.5", "0e+999", "0.0e-9"),
        *("0.000000000000000000001", "123456789012345678", "NaN", "-NaN", "Infinity", "-Infinity", "inf", "1_0", ""),
    ),
    "numeric(10,2)": (
        *("99999999.99", "-99999999.99", "100000000.00", "0.00", "-0.00", "000000000.00", "1.5", "1", "1.555", ".50"),
        *("1.", "-.50", "NaN", "Infinity", "1e2", "1,00", "12345678:00", "--1.00", "-", "", "0000000000000012.34"),
    ),
    "numeric(1,0)": ("9", "-9", "10", "-0", "", "-", "01"),
    "numeric(15,9)": ("999999.999999999", "1000000.000000000", "-999999.999999999", "0.00000000/"),
    "numeric(16,0)": ("9999999999999999", "10000000000000000", "-9999999999999999"),
    "numeric(19,3)": ("9999999999999999.999", "10000000000000000.000", "-0.001"),
    "numeric(38,5)": ("9" * 33 + ".99999", "-" + "9" * 33 + ".99999", "1" + "0" * 33 + ".00000", "0" * 34 + ".00000"),
    "numeric(38,38)": ("0." + "9" * 38, "-0." + "9" * 38, "1." + "0" * 38, "00." + "1" * 38, "-0." + "0" * 37 + "1"),
    "date": (
        *("0001-01-01", "9999-12-31", "0000-01-01", "10000-01-01", "0001-12-31 BC", "2024-02-29", "2023-02-29"),
        *("1900-02-29", "2000-02-29", "2026-13-01", "2026-00-10", "2026-11-31", "2026-11-00", "2026/11/21", "infinity"),
        *("-infinity", "2026-11-2", "202a-11-21", "2026-11-21 "),
    ),
    "timestamp": (
        *("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "2026-11-21 24:00:00", "2026-11-21 23:60:00"),
        *("2026-11-21 23:59:60", "2026-11-21 01:02:03.1", "2026-11-21 01:02:03.1234567", "2026-11-21 01:02:03."),
        *("2026-11-21T01:02:03", "2026-11-21 01:02:03+00", "infinity", "0044-03-15 01:02:03 BC", "2026-11-21 01:02"),
    ),
    "timestamptz": (
        *(
            "0001-01-01 00:00:00+00",
            "0001-01-01 00:00:00+01",
            "0001-01-01 00:00:00-01",
            "9999-12-31 23:59:59.999999+00",
        ),
        *("9999-12-31 23:59:59.999999-00:30", "2026-11-21 01:02:03.5+05:30", "2026-11-21 01:02:03-03:45"),
        *("2026-11-21 01:02:03+00:19:32", "2026-11-21 01:02:03+99", "2026-11-21 01:02:03+05:60"),
        *("2026-11-21 01:02:03.123456+0530", "2026-11-21 01:02:03.1234567+00", "2026-11-21 01:02:03.+00", "-infinity"),
        *("2026-11-21 01:02:03+0", "2026-11-21 01:02:03 BC+00", "2026-11-21 01:02:03+00 BC", "2026-11-21 01:02:03*00"),
        *("2026-11-21 01:02:03.1+150", "2026-02-30 01:02:03+00", "+00", ":00"),
    ),
    "text": ("", "a", "ž", "\U0001f418" * 5, "x" * 15, "x" * 16, "x" * 17, "x" * 31 + "ž", "\x00", "\x7f\x80"),
    "jsonb": ("{}", '{"a": [1, 2]}', ""),
    "uuid": ("00000000-0000-0000-0000-000000000000", "nothing of the kind"),
    "bytea": (
        "\\x",
        "\\x00ff",
        "\\xAb",
        "\\x0",
        "\\x0g",
        "\\xg0",
        "x00",
        "\\\\x00",
        "",
        "\\",
        "\\x:0",
        "\\x`0",
        "\\x@0",
    ),
}
_BYTES = b"0123456789-+.: eExtfNaI\\\x00\x7f\x80\xc3\xed\xff"
_SOURCES = {"numeric(1,0)": "int2", "numeric(15,9)": "numeric", "numeric(16,0)": "int8", "numeric(19,3)": "numeric"}
_SOURCES |= {"int4[]": "int4", "text[]": "text", "oid 999": "text"}


def _sampled(name: str) -> list[bytes]:
    values = SCALARS[_SOURCES.get(name, name)][1](random.Random(name), 60)
    short_values = [value for value in islice(values, 3000) if len(value) < 200]
    return [value.encode() for value in random.Random(1).sample(short_values, min(len(short_values), 200))]


def _texts(name: str) -> st.SearchStrategy[bytes]:
    known = [*(text.encode() for text in EDGES.get(name, ())), *_sampled(name)]
    if name == "timestamptz":
        known += [text + zone for text in known[:40] for zone in (b"+00", b"-11", b"+05:45")]
    if name.endswith("[]"):
        known = [b"{" + b",".join(known[:n]) + b"}" for n in range(5)]
    return st.sampled_from(known)


@st.composite
def _nearly(draw: st.DrawFn, values: st.SearchStrategy[bytes]) -> bytes:
    """A value with one byte changed, added, or removed."""
    value = draw(values)
    at = draw(st.integers(0, len(value)))
    byte = draw(st.sampled_from([b"", *(bytes([byte]) for byte in _BYTES)]))
    return value[:at] + byte + value[at + draw(st.integers(0, 1)) :]


_NUMBERS_SENT: dict[str, tuple[str, int]] = {  # type -> format of the number, bits
    "int2": (">h", 16), "int4": (">i", 32), "int8": (">q", 64), "date": (">i", 32), "timestamp": (">q", 64),
    "timestamptz": (">q", 64),
}  # fmt: skip
_SENT_ENDS = (
    *(0, 1, -1, 2**15 - 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), -730_119, -730_120, 2_921_939, 2_921_940),
    *(-63_082_281_600_000_000, -63_082_281_600_000_001, 252_455_615_999_999_999, 252_455_616_000_000_000),
)


def _groups(name: str) -> st.SearchStrategy[bytes]:
    """As numeric_send writes it, or almost."""
    scale = int(name.rstrip(")").partition(",")[2] or 2)
    groups = st.lists(st.sampled_from([0, 1, 99, 100, 1200, 5000, 9999, 10_000]), max_size=6)
    decimals = st.just(scale) | st.sampled_from([0, 1, scale + 1, 0x3FFF, 0x4000])
    return st.builds(
        lambda digits, weight, sign, shown, more: pack(
            f">HhHH{len(digits)}H", len(digits) + more, weight, sign, shown, *digits
        ),
        groups,
        st.integers(-4, 4) | st.sampled_from([-32768, 32767, 9]),
        st.sampled_from([0, 0, 0, 0x4000, 0x4000, 0xC000, 1]),
        decimals,
        st.sampled_from([0] * 9 + [1]),
    )


def _sent(name: str) -> st.SearchStrategy[bytes]:
    if name in _NUMBERS_SENT:
        form, bits = _NUMBERS_SENT[name]
        ends = [end for end in _SENT_ENDS if -(2 ** (bits - 1)) <= end < 2 ** (bits - 1)]
        numbers = st.sampled_from(ends) | st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return numbers.map(lambda number: pack(form, number))
    if name.startswith("numeric"):
        return _groups(name)
    if name in ("float4", "float8"):
        size = int(name[-1])
        specials = [pack(f">{'f' if size == 4 else 'd'}", x) for x in (0.0, -0.0, float("nan"), float("-inf"), 1.5)]
        return st.sampled_from(specials) | st.binary(min_size=size, max_size=size)
    sizes = {"bool": 1, "oid": 4, "xid": 4, "uuid": 16}
    if name in sizes:
        return st.binary(min_size=sizes[name], max_size=sizes[name]) | st.sampled_from([b"\0", b"\1"])
    head = st.sampled_from([b"", b"\1", b"\2"]) if name == "jsonb" else st.just(b"")
    return st.builds(bytes.__add__, head, st.text(max_size=20).map(str.encode) | st.binary(max_size=4))


def cells(name: str, wrong: bool) -> st.SearchStrategy[Cell]:
    """wrong: includes values that PostgreSQL doesn't write."""
    texts, sent = _texts(name), _sent(name)
    if wrong:
        texts, sent = texts | _nearly(texts), sent | _nearly(sent) | st.binary(max_size=20)
    in_text, in_binary = (st.tuples(st.just(kind), values) for kind, values in ((b"t", texts), (b"b", sent)))
    nothing: st.SearchStrategy[Cell] = st.sampled_from([(b"n", None), (b"u", None)])
    return st.one_of(in_text, in_text, in_binary, nothing)


def tuple_of(*row: Cell) -> TupleData:
    return TupleData(b"".join(kind for kind, _ in row), tuple(value for _, value in row))


def binary_array(values: Iterator[bytes | None] | list[bytes | None], offset: int = 0) -> pa.Array:
    """offset: the array's offset in its buffers."""
    return pa.array([*[b"before"] * offset, *values], pa.binary())[offset:]
