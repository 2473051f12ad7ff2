"""Types and text values: literals, round trips through independent formatters, refusals. Needs no server.

tests/servers/test_types_against_postgres.py compares thousands of values per type with a server.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import math
import pickle
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgoutput_etl.types import ColumnType, ValueTextError, column_type, datetimes, load_text, numbers, numeric
from pgoutput_etl.types.column import Careful, Fast, RefusedError

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID, XID = 16, 17, 20, 21, 23, 25, 26, 28
FLOAT4, FLOAT8, BPCHAR, VARCHAR, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC = (
    700, 701, 1042, 1043, 1082, 1114, 1184, 1700,
)  # fmt: skip
EPOCH = datetime.datetime.combine(datetime.date(1970, 1, 1), datetime.time.min)
EARLIEST = datetime.datetime.combine(datetime.date.min, datetime.time.min)
LATEST = datetime.datetime.combine(datetime.date.max, datetime.time.max)


def numeric_typmod(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def load(oid: int, *values: bytes | None, typmod: int = -1) -> list[Any]:
    """The values as Python objects; dates and timestamps as days and microseconds since 1970."""
    loaded = load_text(column_type(oid, typmod), values)
    assert len(loaded.array) == len(values)
    assert loaded.array.type == column_type(oid, typmod).arrow
    assert not loaded.unrepresentable
    if pa.types.is_date(loaded.array.type):
        return loaded.array.cast(pa.int32()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_timestamp(loaded.array.type):
        return loaded.array.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    return loaded.array.to_pylist()  # type: ignore[no-any-return]


def refusal(oid: int, *values: bytes | None, typmod: int = -1) -> ValueTextError:
    with pytest.raises(ValueTextError) as raised:
        load_text(column_type(oid, typmod), values)
    return raised.value


@pytest.mark.parametrize(
    ("oid", "typmod", "name", "arrow"),
    [
        (BOOL, -1, "bool", pa.bool_()),
        (INT2, -1, "int2", pa.int16()),
        (INT4, -1, "int4", pa.int32()),
        (INT8, -1, "int8", pa.int64()),
        (OID, -1, "oid", pa.int64()),
        (XID, -1, "xid", pa.int64()),
        (FLOAT4, -1, "float4", pa.float32()),
        (FLOAT8, -1, "float8", pa.float64()),
        (NUMERIC, -1, "numeric", pa.string()),
        (NUMERIC, (10 << 16) + 2 + 4, "numeric(10,2)", pa.decimal128(10, 2)),
        (NUMERIC, numeric_typmod(38, 38), "numeric(38,38)", pa.decimal128(38, 38)),
        (NUMERIC, numeric_typmod(1, 0), "numeric(1,0)", pa.decimal128(1, 0)),
        (NUMERIC, numeric_typmod(39, 0), "numeric(39,0)", pa.string()),
        (NUMERIC, numeric_typmod(1000, 1000), "numeric(1000,1000)", pa.string()),
        (NUMERIC, numeric_typmod(3, 5), "numeric(3,5)", pa.string()),
        (NUMERIC, numeric_typmod(3, -2), "numeric(3,-2)", pa.string()),
        (NUMERIC, numeric_typmod(1000, -1000), "numeric(1000,-1000)", pa.string()),
        (DATE, -1, "date", pa.date32()),
        (TIMESTAMP, -1, "timestamp", pa.timestamp("us")),
        (TIMESTAMP, 0, "timestamp(0)", pa.timestamp("us")),
        (TIMESTAMPTZ, 3, "timestamptz(3)", pa.timestamp("us", "UTC")),
        (BYTEA, -1, "bytea", pa.binary()),
        (TEXT, -1, "text", pa.string()),
        (VARCHAR, -1, "varchar", pa.string()),
        (VARCHAR, 24, "varchar(20)", pa.string()),
        (BPCHAR, 14, "char(10)", pa.string()),
        (BPCHAR, -1, "bpchar", pa.string()),
        (18, -1, '"char"', pa.string()),
        (1083, 0, "time(0)", pa.string()),
        (1266, 6, "timetz(6)", pa.string()),
        (1186, -1, "interval", pa.string()),
        (1560, 3, "bit(3)", pa.string()),
        (1562, -1, "varbit", pa.string()),
        (2950, -1, "uuid", pa.string()),
        (3802, -1, "jsonb", pa.string()),
        (790, -1, "money", pa.string()),
        (16999, -1, "oid 16999", pa.string()),
        (2**32 - 1, 7, "oid 4294967295", pa.string()),
    ],
)
def test_the_arrow_type_of_a_column(oid: int, typmod: int, name: str, arrow: pa.DataType) -> None:
    column = column_type(oid, typmod)
    assert (column.name, column.arrow) == (name, arrow)
    holds_all_values = not (pa.types.is_temporal(arrow) or pa.types.is_decimal(arrow) or pa.types.is_floating(arrow))
    assert column.may_be_unrepresentable != holds_all_values


def test_every_numeric_type_that_fits_is_a_decimal() -> None:
    for precision in range(1, 39):
        for scale in range(precision + 1):
            column = column_type(NUMERIC, numeric_typmod(precision, scale))
            assert column.arrow == pa.decimal128(precision, scale)


@pytest.mark.parametrize("oid", [BOOL, INT4, OID, FLOAT8, NUMERIC, DATE, TIMESTAMP, TIMESTAMPTZ, BYTEA, TEXT])
def test_column_types_and_errors_travel_to_executors(oid: int) -> None:
    column = column_type(oid, numeric_typmod(10, 2) if oid == NUMERIC else -1)
    assert pickle.loads(pickle.dumps(column)) == column
    error = ValueTextError(3, "int4", "an integer")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.index, copy.type_name, copy.expected) == (3, "int4", "an integer")
    assert str(copy) == str(error)


@pytest.mark.parametrize("oid", [BOOL, INT4, XID, FLOAT4, NUMERIC, DATE, TIMESTAMP, TIMESTAMPTZ, BYTEA, TEXT])
def test_nulls_and_empty_columns(oid: int) -> None:
    typmod = numeric_typmod(5, 1) if oid == NUMERIC else -1
    assert load(oid, typmod=typmod) == []
    assert load(oid, None, None, typmod=typmod) == [None, None]


@pytest.mark.parametrize(
    ("oid", "text", "value"),
    [
        (BOOL, b"t", True),
        (INT4, b"-2147483648", -(2**31)),
        (OID, b"4294967295", 2**32 - 1),
        (DATE, b"0001-01-01", -719162),
        (DATE, b"9999-12-31", 2932896),
        (TIMESTAMP, b"1969-12-31 23:59:59.5", -500_000),
        (TIMESTAMP, b"0001-01-01 00:00:00", -62_135_596_800_000_000),
        (TIMESTAMP, b"9999-12-31 23:59:59.999999", 253_402_300_799_999_999),
        (TIMESTAMPTZ, b"1970-01-01 05:30:00+05:30", 0),
        (TIMESTAMPTZ, b"1883-11-18 12:03:57-04:56:02", -2_717_650_801_000_000),
        (TIMESTAMPTZ, b"2020-01-05 04:00:00+100", 1_577_836_800_000_000),
        (TIMESTAMPTZ, b"0001-01-01 00:59:59-01", -62_135_589_601_000_000),
        (TIMESTAMPTZ, b"0001-12-31 23:00:00-01 BC", -62_135_596_800_000_000),
        (TIMESTAMPTZ, b"10000-01-01 00:59:59.999999+01", 253_402_300_799_999_999),
        (BYTEA, rb"\x00ff5c78", b"\x00\xff\\x"),
        (BPCHAR, b"ab   ", "ab   "),
        (NUMERIC, b"1.500000000000000000000000000000000000000000", f"1.5{'0' * 41}"),
    ],
)
def test_a_value_arrives(oid: int, text: bytes, value: object) -> None:
    assert load(oid, text) == [value]


def test_a_decimal_arrives_with_all_its_digits() -> None:
    text = "-0.12345678901234567890123456789012345678"
    assert load(NUMERIC, text.encode(), typmod=numeric_typmod(38, 38)) == [decimal.Decimal(text)]
    widest = "9" * 38
    assert load(NUMERIC, widest.encode(), typmod=numeric_typmod(38, 0)) == [decimal.Decimal(widest)]
    few_decimals = [decimal.Decimal("1.20"), decimal.Decimal("-7.00")]
    assert load(NUMERIC, b"1.2", b"-7", typmod=numeric_typmod(5, 2)) == few_decimals


@pytest.mark.parametrize(
    ("oid", "typmod", "text", "plain"),
    [
        (FLOAT4, -1, b"1e+39", b"1"),
        (FLOAT4, -1, b"-3.40282e+39", b"1"),
        (FLOAT4, -1, b"1e-60", b"1"),
        (FLOAT8, -1, b"1.79769313486232e+308", b"1"),  # the largest float8, as PostgreSQL 11 and older print it
        (FLOAT8, -1, b"-1.79769313486232e+308", b"1"),
        (FLOAT8, -1, b"1e-400", b"1"),
        (NUMERIC, numeric_typmod(5, 2), b"NaN", b"1.00"),
        (NUMERIC, numeric_typmod(5, 2), b"Infinity", b"1.00"),
        (NUMERIC, numeric_typmod(5, 2), b"-Infinity", b"1.00"),
        (NUMERIC, numeric_typmod(5, 2), b"1000.00", b"1.00"),
        (NUMERIC, numeric_typmod(5, 2), b"1.005", b"1.00"),
        (NUMERIC, numeric_typmod(38, 0), b"1" + b"0" * 38, b"1"),
        (DATE, -1, b"infinity", b"2026-11-21"),
        (DATE, -1, b"-infinity", b"2026-11-21"),
        (DATE, -1, b"0001-12-31 BC", b"2026-11-21"),
        (DATE, -1, b"4714-11-24 BC", b"2026-11-21"),
        (DATE, -1, b"0001-02-29 BC", b"2026-11-21"),  # 1 BC is a leap year
        (DATE, -1, b"10000-01-01", b"2026-11-21"),
        (DATE, -1, b"5874897-12-31", b"2026-11-21"),
        (TIMESTAMP, -1, b"infinity", b"2026-11-21 03:04:05"),
        (TIMESTAMP, -1, b"-infinity", b"2026-11-21 03:04:05"),
        (TIMESTAMP, -1, b"0044-03-15 12:00:00 BC", b"2026-11-21 03:04:05"),
        (TIMESTAMP, -1, b"294276-12-31 23:59:59.999999", b"2026-11-21 03:04:05"),
        (TIMESTAMPTZ, -1, b"infinity", b"2026-11-21 03:04:05+00"),
        (TIMESTAMPTZ, -1, b"-infinity", b"2026-11-21 03:04:05+00"),
        (TIMESTAMPTZ, -1, b"0044-03-15 12:00:00+00 BC", b"2026-11-21 03:04:05+00"),
        (TIMESTAMPTZ, -1, b"294276-12-31 23:59:59.999999+00", b"2026-11-21 03:04:05+00"),
    ],
)
def test_an_unrepresentable_value_is_null_and_kept_as_text(oid: int, typmod: int, text: bytes, plain: bytes) -> None:
    loaded = load_text(column_type(oid, typmod), [plain, text, None, plain, text])
    assert loaded.unrepresentable == {1: text.decode(), 4: text.decode()}
    assert loaded.array.is_null().to_pylist() == [False, True, True, False, True]
    assert load(oid, plain, typmod=typmod) == load(oid, plain, plain, typmod=typmod)[:1]


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        (b"0001-01-01 00:59:59.999999+01", "0001-12-31 23:59:59.999999+00 BC"),
        (b"9999-12-31 23:00:00-01", "10000-01-01 00:00:00+00"),
        (b"0044-03-15 12:53:28+00:53:28 BC", "0044-03-15 12:00:00+00 BC"),
        (b"infinity", "infinity"),
    ],
)
def test_an_unrepresentable_instant_is_kept_as_text_in_utc(text: bytes, utc: str) -> None:
    loaded = load_text(column_type(TIMESTAMPTZ, -1), [b"2026-11-21 03:04:05+01", text])
    assert loaded.unrepresentable == {1: utc}


REFUSED: list[tuple[int, int, Sequence[bytes]]] = [
    (BOOL, -1, [b"", b"true", b"T", b"1", b"0", b" t", b"t\n", b"tf"]),
    (INT2, -1, [b"32768", b"-32769", b"0x1F", b""]),
    (INT4, -1, [
        b"", b"-", b" 1", b"1 ", b"+1", b"1\n", b"1\0", b"0x1F", b"-0x1", b"0XFFFFFFFF", b"1.0", b"1e3",
        b"1_0", b"--1", b"\xd9\xa1", b"\xff", b"2147483648", b"-2147483649", b"NaN", b"9" * 5000,
    ]),
    (INT8, -1, [b"9223372036854775808", b"-9223372036854775809", b"18446744073709551617"]),
    (OID, -1, [b"-1", b"-0", b"+1", b"4294967296", b"0x10", b""]),
    (XID, -1, [b"-1", b"4294967296", b"18446744073709551616"]),
    (FLOAT4, -1, [b"1e39", b"nan", b"inf", b""]),
    (FLOAT8, -1, [
        b"", b" 1", b"+1", b"1.", b".5", b"1e5", b"1E+05", b"1e+", b"1,5", b"0x1p3", b"inf", b"-inf",
        b"infinity", b"INFINITY", b"+Infinity", b"nan", b"-NaN", b"NAN", b"1e400",
        b"1\n", b"1d",
    ]),
    (NUMERIC, numeric_typmod(10, 2), [
        b"", b" 1.00", b"+1.00", b"1e2", b"1E+2", b".50", b"1.", b"-", b"nan", b"inf", b"sNaN", b"-NaN",
        b"infinity", b"1,00", b"1_000.00", b"\xd9\xa3.00", b"1.00\n",
    ]),
    (DATE, -1, [
        b"", b"21/11/2026", b"11-21-2026", b"21.11.2026", b"2026-11-21 ", b" 2026-11-21", b"2026-1-1",
        b"20261121", b"2026-11-21\n", b"2026-11-21 AD", b"02026-11-21", b"026-11-21", b"Infinity",
        b"+infinity", b"today", b"2026-11-21 00:00:00", b"-2026-11-21", b"99999999-01-01",
        b"\xef\xbc\x912026-11-21",
    ]),
    (TIMESTAMP, -1, [
        b"", b"Sat Nov 21 03:04:05 2026", b"21/11/2026 03:04:05", b"11-21-2026 03:04:05", b"2026-11-21",
        b"2026-11-21 03", b"2026-11-21 03:04", b"2026-11-21T03:04:05", b"2026-11-21 03:04:05Z",
        b"2026-11-21 03:04:05+00", b"2026-11-21 03:04:05.", b"2026-11-21 03:04:05.1234567",
        b"2026-11-21  03:04:05", b"infinity BC",
    ]),
    (TIMESTAMPTZ, -1, [
        b"", b"Sat Nov 21 03:04:05 2026 UTC", b"21/11/2026 03:04:05 CET", b"2026-11-21 03:04:05",
        b"2026-11-21 03:04:05 UTC", b"2026-11-21 03:04:05Z", b"2026-11-21 03:04:05+0530",
        b"2026-11-21 03:04+00", b"2026-11-21 03:04:05+5", b"2026-11-21T03:04:05+00",
        b"2026-11-21 03:04:05 +00", b"2026-11-21 03:04:05+00:00:0", b"2026-11-21 03:04:05+00BC",
    ]),
    (BYTEA, -1, [
        b"", rb"\\x41", rb"abc\000", b"x41", rb"\x4", rb"\xzz", rb"\x41 42", rb"\X41", b"\\x\xff\xff",
    ]),
    (TEXT, -1, [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"caf\xe9", b"\xe2\x82"]),
    (16999, -1, [b"\x80"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("oid", "typmod", "text"),
    [(oid, typmod, text) for oid, typmod, texts in REFUSED for text in texts],
)
def test_a_text_that_postgresql_does_not_print_is_refused(oid: int, typmod: int, text: bytes) -> None:
    error = refusal(oid, None, text, text, typmod=typmod)
    assert error.index == 1
    assert error.type_name == column_type(oid, typmod).name
    assert error.expected in str(error)
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (DATE, b"2023-02-29"),
        (DATE, b"2023-13-01"),
        (DATE, b"2023-00-10"),
        (DATE, b"0000-01-01"),
        (DATE, b"10001-02-29"),
        (DATE, b"0002-02-29 BC"),
        (DATE, b"0000-01-01 BC"),
        (TIMESTAMP, b"2023-02-30 00:00:00"),
        (TIMESTAMP, b"2023-02-28 24:00:00"),
        (TIMESTAMP, b"2023-02-28 23:60:00"),
        (TIMESTAMP, b"2023-02-28 23:59:60"),
        (TIMESTAMP, b"12023-02-28 24:00:00"),
        (TIMESTAMPTZ, b"2023-02-30 00:00:00+00"),
        (TIMESTAMPTZ, b"2023-02-28 00:00:00+00:60"),
        (TIMESTAMPTZ, b"2023-02-28 00:00:00+00:00:60"),
    ],
)
def test_an_invalid_date_or_time_is_refused(oid: int, text: bytes) -> None:
    valid = {DATE: b"2023-02-28", TIMESTAMP: b"2023-02-28 00:00:00", TIMESTAMPTZ: b"2023-02-28 00:00:00+00"}[oid]
    assert refusal(oid, valid, None, valid, text).index == 3


def test_refusals_name_the_setting_of_the_sender() -> None:
    for oid in (DATE, TIMESTAMP, TIMESTAMPTZ):
        assert "DateStyle must be ISO" in str(refusal(oid, b"21/11/2026"))
    assert "bytea_output must be hex" in str(refusal(BYTEA, rb"a\000b"))


SECRETS = [
    b"4111-1111-1111-1111",
    b"\xe9cret",
    b"4111111111111111111111",
    b"1 4111",
    b"2023-02-30 41:11:11",
    b"\\x411",
]


@pytest.mark.parametrize(
    "oid", [BOOL, INT2, INT4, INT8, OID, XID, FLOAT4, FLOAT8, NUMERIC, DATE, TIMESTAMP, TIMESTAMPTZ]
)
@pytest.mark.parametrize("secret", SECRETS)
def test_an_error_never_contains_the_value(oid: int, secret: bytes) -> None:
    typmod = numeric_typmod(38, 2) if oid == NUMERIC else -1
    if (oid, secret) in [(FLOAT4, SECRETS[2]), (FLOAT8, SECRETS[2]), (NUMERIC, SECRETS[2])]:
        return
    assert_value_not_shown(refusal(oid, secret, typmod=typmod), secret)


@pytest.mark.parametrize(("oid", "secret"), [(TEXT, SECRETS[1]), (BYTEA, SECRETS[5]), (BYTEA, SECRETS[0])])
def test_an_error_about_text_or_bytea_never_contains_the_value(oid: int, secret: bytes) -> None:
    assert_value_not_shown(refusal(oid, secret), secret)


def assert_value_not_shown(error: ValueTextError, secret: bytes) -> None:
    for shown in (str(error), repr(error), repr(error.args), repr(error.__cause__)):
        assert secret.decode("latin-1") not in shown
        assert "411" not in shown
    assert error.__suppress_context__


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_int8_round_trip(values: list[int | None]) -> None:
    assert load(INT8, *[None if v is None else b"%d" % v for v in values]) == values


@given(st.sampled_from([(INT2, 15), (INT4, 31), (INT8, 63)]), st.integers(-(2**70), 2**70))
@example((INT2, 15), 2**15)
@example((INT4, 31), -(2**31) - 1)
@example((INT8, 63), 2**64 + 1)
def test_an_integer_out_of_range_is_refused(width: tuple[int, int], value: int) -> None:
    oid, bits = width
    if -(2**bits) <= value < 2**bits:
        assert load(oid, b"%d" % value) == [value]
    else:
        refusal(oid, b"%d" % value)


@given(st.lists(st.binary(min_size=8, max_size=8)))
def test_float8_round_trip_to_the_bit(patterns: list[bytes]) -> None:
    values = [struct.unpack(">d", pattern)[0] for pattern in patterns]
    loaded = load(FLOAT8, *[postgres_float(repr(value)) for value in values])
    assert [struct.pack(">d", v) for v in loaded if v == v] == [struct.pack(">d", v) for v in values if v == v]
    assert [v == v for v in loaded] == [v == v for v in values]


def postgres_float(python_repr: str) -> bytes:
    """Python prints the same shortest digits as PostgreSQL, but other names for infinity and NaN."""
    return python_repr.replace("inf", "Infinity").replace("nan", "NaN").encode()


@pytest.mark.parametrize("oid", [FLOAT4, FLOAT8])
def test_special_floats_to_the_bit(oid: int) -> None:
    loaded = load(oid, b"0", b"-0", b"Infinity", b"-Infinity", b"NaN")
    assert [struct.pack(">d", value)[:2].hex() for value in loaded] == [
        "0000",
        "8000",
        "7ff0",
        "fff0",
        "7ff8",
    ]
    assert load(oid, b"0.00", b"0e+00", b"-0.0") == [0, 0, 0]
    loaded = load(FLOAT8, b"5e-324", b"2.2250738585072011e-308", b"1.7976931348623157e+308")
    assert loaded == [math.ulp(0.0), 2.2250738585072011e-308, math.nextafter(math.inf, 0)]
    assert load(FLOAT4, b"1e-45", b"3.4028235e+38") == [2.0**-149, (2 - 2**-23) * 2.0**127]


@given(st.integers(0, 2**31 - 1 - 2**24), st.sampled_from(["", "0" * 40 + "1", "-"]), st.booleans())
def test_float4_is_rounded_once(pattern: int, nudge: str, negative: bool) -> None:
    """Exactly or almost halfway between two neighbors, where rounding through a double gives another result."""
    low, high = (float4_of_bits(bits) for bits in (pattern, pattern + 1))
    halfway = (fractions.Fraction(low) + fractions.Fraction(high)) / 2
    even = low if pattern % 2 == 0 else high
    with decimal.localcontext(decimal.Context(prec=2000)):
        exact = decimal.Decimal(halfway.numerator) / decimal.Decimal(halfway.denominator)
        if nudge == "-":
            text, nearest = f"{exact - exact.scaleb(-60):f}", low
        else:
            text = f"{exact:f}"
            text += ("" if "." in text else ".") + nudge if nudge else ""
            nearest = high if nudge else even
    if nearest == 0:
        return
    sign = b"-" if negative else b""
    assert load(FLOAT4, sign + text.encode()) == [-nearest if negative else nearest]


def float4_of_bits(bits: int) -> float:
    return struct.unpack(">f", struct.pack(">I", bits))[0]  # type: ignore[no-any-return]


@st.composite
def decimals_that_fit(draw: st.DrawFn) -> tuple[int, int, list[decimal.Decimal]]:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    unscaled = st.integers(-(10**precision) + 1, 10**precision - 1)
    with decimal.localcontext(decimal.Context(prec=80)):
        return precision, scale, [decimal.Decimal(n).scaleb(-scale) for n in draw(st.lists(unscaled))]


@given(decimals_that_fit())
def test_decimal_round_trip(fitting: tuple[int, int, list[decimal.Decimal]]) -> None:
    precision, scale, values = fitting
    texts = [f"{value:f}".encode() for value in values]
    assert load(NUMERIC, *texts, typmod=numeric_typmod(precision, scale)) == values


@given(decimals_that_fit(), st.integers(1, 45), st.integers(0, 45))
def test_a_decimal_arrives_whole_or_is_unrepresentable(
    fitting: tuple[int, int, list[decimal.Decimal]], precision: int, scale: int
) -> None:
    _, _, values = fitting
    texts = [f"{value:f}".encode() for value in values]
    loaded = load_text(column_type(NUMERIC, numeric_typmod(precision, scale)), texts)
    for index, value in enumerate(loaded.array.to_pylist()):
        if index in loaded.unrepresentable:
            assert value is None
            assert loaded.unrepresentable[index].encode() == texts[index]
        else:
            assert decimal.Decimal(value) == values[index]


@given(st.lists(st.none() | st.dates()))
def test_date_round_trip(values: list[datetime.date | None]) -> None:
    expected = [None if v is None else v.toordinal() - EPOCH.toordinal() for v in values]
    assert load(DATE, *[None if v is None else v.isoformat().encode() for v in values]) == expected


def iso(moment: datetime.datetime) -> str:
    """The timestamp as PostgreSQL prints it: no trailing zeros in the fraction."""
    text = moment.replace(tzinfo=None).isoformat(" ")
    return text.rstrip("0") if moment.microsecond else text


def microseconds(moment: datetime.datetime) -> int:
    return (moment - EPOCH) // datetime.timedelta(microseconds=1)


@given(st.lists(st.none() | st.datetimes()))
def test_timestamp_round_trip(values: list[datetime.datetime | None]) -> None:
    expected = [None if v is None else microseconds(v) for v in values]
    assert load(TIMESTAMP, *[None if v is None else iso(v).encode() for v in values]) == expected


@given(st.lists(st.tuples(st.datetimes(), st.integers(-57599, 57599))))
@example([(EARLIEST, 1), (LATEST, -1)])
def test_timestamptz_round_trip(values: list[tuple[datetime.datetime, int]]) -> None:
    """Local times span Python's whole range; instants may lie just outside of it and are then unrepresentable."""
    texts, instants = [], []
    for local, offset in values:
        minutes, seconds = divmod(abs(offset), 60)
        text = f"{iso(local)}{'-' if offset < 0 else '+'}{minutes // 60:02d}"
        text += f":{minutes % 60:02d}" if minutes % 60 or seconds else ""
        text += f":{seconds:02d}" if seconds else ""
        texts.append(text.encode())
        instants.append(microseconds(local) - offset * 1_000_000)
    loaded = load_text(column_type(TIMESTAMPTZ, -1), texts)
    inside = range(microseconds(EARLIEST), microseconds(LATEST) + 1)
    assert loaded.array.cast(pa.int64()).to_pylist() == [i if i in inside else None for i in instants]
    assert loaded.unrepresentable == {i: utc_text(n) for i, n in enumerate(instants) if n not in inside}


def utc_text(instant: int) -> str:
    """Print an instant on the last day of 1 BC or the first day of 10000, from a day 400 years later or earlier."""
    direction = 1 if instant < microseconds(EARLIEST) else -1
    same_time = EPOCH + datetime.timedelta(days=direction * 146_097, microseconds=instant)
    text = f"{iso(same_time)}+00"
    return f"0001{text[4:]} BC" if direction == 1 else f"10000{text[4:]}"


@given(st.lists(st.none() | st.binary()))
def test_bytea_round_trip(values: list[bytes | None]) -> None:
    assert load(BYTEA, *[None if v is None else b"\\x" + v.hex().encode() for v in values]) == values


@given(st.lists(st.none() | st.binary(max_size=6)))
def test_text_is_refused_exactly_where_python_finds_no_utf8(values: list[bytes | None]) -> None:
    lenient = [None if value is None else value.decode(errors="replace") for value in values]
    invalid = [i for i, text in enumerate(lenient) if text is not None and text.encode() != values[i]]
    if invalid:
        assert refusal(TEXT, *values).index == invalid[0]
    else:
        assert load(TEXT, *values) == lenient


NEAR_MISSES = st.text("0123456789-+.: eBCNaIinfty", max_size=32).map(str.encode) | st.from_regex(
    rb"\A-?[0-9]{1,20}(\.[0-9]{1,4})?(e[+-][0-9]{1,3})?\Z"
    rb"|\A[0-9]{4}-[01][0-9]-[0-3][0-9]( [0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]{1,7})?"
    rb"([+-][01][0-9](:[0-6][0-9])?)?)?\Z"
)


@pytest.mark.parametrize(
    ("column", "fast", "careful"),
    [
        (column_type(INT2, -1), numbers.fast_signed, numbers.careful_signed),
        (column_type(INT8, -1), numbers.fast_signed, numbers.careful_signed),
        (column_type(OID, -1), numbers.fast_unsigned, numbers.careful_unsigned),
        (column_type(NUMERIC, numeric_typmod(9, 2)), numeric.fast_decimal, numeric.careful_decimal),
        (column_type(NUMERIC, numeric_typmod(4, 0)), numeric.fast_decimal, numeric.careful_decimal),
        (column_type(DATE, -1), datetimes.fast_date, datetimes.careful_date),
        (column_type(TIMESTAMP, -1), datetimes.fast_timestamp, datetimes.careful_timestamp),
        (column_type(TIMESTAMPTZ, -1), datetimes.fast_timestamptz, datetimes.careful_timestamptz),
    ],
    ids=lambda value: value.name if isinstance(value, ColumnType) else "",
)
@given(text=NEAR_MISSES)
@example(text=b"-" + b"0" * 5000)
def test_fast_and_careful_path_read_the_same_value(
    column: ColumnType, fast: Fast, careful: Careful, text: bytes
) -> None:
    array = fast(pa.array([text], pa.binary()), column.arrow)
    if array[0].is_valid:
        assert pa.array([careful(text, column.arrow)], column.arrow) == array


@given(text=NEAR_MISSES)
@example(text=b"-1e+400")
@example(text=b"0.0e-400")
def test_float8_arrives_as_python_reads_it_or_is_refused(text: bytes) -> None:
    try:
        loaded = load_text(column_type(FLOAT8, -1), [text])
    except ValueTextError:
        with pytest.raises(RefusedError):
            numbers.careful_float(text, pa.float64())
        return
    value = loaded.array[0].as_py()
    if value is None:
        assert loaded.unrepresentable == {0: text.decode()}
        assert math.isinf(float(text)) or (float(text) == 0 and decimal.Decimal(text.decode()) != 0)
    else:
        assert value == float(text) or text == b"NaN"
        assert math.isfinite(value) or b"Infinity" in text or text == b"NaN"


def test_a_large_column_with_a_few_odd_values_keeps_its_order() -> None:
    values: list[bytes | None] = [b"2026-11-%02d" % (1 + i % 30) for i in range(10_000)]
    values[17], values[4711], values[9999] = b"infinity", None, b"0044-03-15 BC"
    loaded = load_text(column_type(DATE, -1), values)
    assert loaded.unrepresentable == {17: "infinity", 9999: "0044-03-15 BC"}
    texts = ["" if day is None else day.isoformat() for day in loaded.array.to_pylist()]
    assert texts == [v.decode() if v and i not in (17, 9999) else "" for i, v in enumerate(values)]
