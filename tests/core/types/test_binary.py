"""Values in binary form: literals as send functions write them, and refusals. Needs no server.

tests/servers/test_binary_against_postgres.py compares thousands of values per type with a server's texts.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgoutput_etl.types import ValueTextError, column_type, load_binary, load_text, times
from pgoutput_etl.types.datetime_format import date_text, timestamp_text, timestamptz_text
from pgoutput_etl.types.shortest_float import shortest_float4, shortest_float8
from tests.core.types.test_types import assert_value_not_shown, numeric_typmod

TYPMODS = {1700: numeric_typmod(10, 2)}
FLOAT4, FLOAT8 = 700, 701

SENT: list[tuple[str, int, str, bytes]] = [  # type, OID, binary form in hex, text
    ("bool", 16, "01", b"t"),
    ("bytea", 17, "00ff5c", rb"\x00ff5c"),
    ("bytea", 17, "", rb"\x"),
    ("char", 18, "61", b"a"),
    ("char", 18, "80", rb"\200"),
    ("name", 19, "70675f6361", b"pg_ca"),
    ("int8", 20, "8000000000000000", b"-9223372036854775808"),
    ("int2", 21, "ffff", b"-1"),
    ("int2vector", 22, "00000001 00000000 00000015 00000002 00000000 00000002 0001 00000002 ffff", b"1 -1"),
    ("int2vector", 22, "00000001 00000000 00000015 00000000 00000000", b""),
    ("int4", 23, "7fffffff", b"2147483647"),
    ("regproc", 24, "00000507", b"1287"),
    ("text", 25, "c5be", "ž".encode()),
    ("oid", 26, "ffffffff", b"4294967295"),
    ("tid", 27, "00000001 0002", b"(1,2)"),
    ("xid", 28, "80000000", b"2147483648"),
    ("cid", 29, "00000007", b"7"),
    ("oidvector", 30, "00000001 00000000 0000001a 00000001 00000000 00000004 ffffffff", b"4294967295"),
    ("json", 114, "7b20227d", b'{ "}'),
    ("xml", 142, "3c612f3e", b"<a/>"),
    ("point", 600, "3ff8000000000000 8000000000000000", b"(1.5,-0)"),
    ("lseg", 601, "3ff0000000000000 4000000000000000 4008000000000000 4010000000000000", b"[(1,2),(3,4)]"),
    ("path", 602, "00 00000001 3ff0000000000000 4000000000000000", b"[(1,2)]"),
    ("path", 602, "01 00000001 3ff0000000000000 4000000000000000", b"((1,2))"),
    ("box", 603, "4008000000000000 4010000000000000 3ff0000000000000 4000000000000000", b"(3,4),(1,2)"),
    ("polygon", 604, "00000001 3ff0000000000000 7ff0000000000000", b"((1,Infinity))"),
    ("line", 628, "3ff0000000000000 bff0000000000000 7ff8000000000000", b"{1,-1,NaN}"),
    ("circle", 718, "3ff0000000000000 4000000000000000 4008000000000000", b"<(1,2),3>"),
    ("cidr", 650, "02 08 01 04 0a000000", b"10.0.0.0/8"),
    ("cidr", 650, "02 20 01 04 0a000001", b"10.0.0.1/32"),
    ("inet", 869, "02 20 00 04 0a000001", b"10.0.0.1"),
    ("inet", 869, "02 08 00 04 0a010203", b"10.1.2.3/8"),
    ("inet", 869, "03 80 00 10 00000000000000000000000000000000", b"::"),
    ("inet", 869, "03 80 00 10 00000000000000000000000000000001", b"::1"),
    ("inet", 869, "03 40 00 10 00000000000000000000ffff01020304", b"::ffff:1.2.3.4/64"),
    ("inet", 869, "03 80 00 10 00000000000000000000000000010203", b"::0.1.2.3"),
    ("inet", 869, "03 80 00 10 20010db8000000000001000000000001", b"2001:db8::1:0:0:1"),
    ("inet", 869, "03 80 00 10 20010db8000000010001000100010001", b"2001:db8:0:1:1:1:1:1"),
    ("inet", 869, "03 80 00 10 20010db8000000000000000000000000", b"2001:db8::"),
    ("macaddr8", 774, "08002b0102030405", b"08:00:2b:01:02:03:04:05"),
    ("macaddr", 829, "08002b010203", b"08:00:2b:01:02:03"),
    ("money", 790, "000000000001e240", b"$1,234.56"),
    ("money", 790, "ffffffffffffff9c", b"-$1.00"),
    ("bpchar", 1042, "612020", b"a  "),
    ("varchar", 1043, "", b""),
    ("date", 1082, "7fffffff", b"infinity"),
    ("time", 1083, "000000141dd76000", b"24:00:00"),
    ("timestamp", 1114, "00000000000f4240", b"2000-01-01 00:00:01"),
    ("timestamp", 1114, "7fffff5bb3b2a000", b"294277-01-01 00:00:00"),  # a timestamp(0) rounded up at the end
    ("timestamptz", 1184, "00000000000f4240", b"2000-01-01 00:00:01+00"),
    ("interval", 1186, "000000036c97ca88 00000003 0000000a", b"10 mons 3 days 04:05:06.789"),
    ("timetz", 1266, "00000000dde878c0 ffffb2a8", b"01:02:03+05:30"),
    ("timetz", 1266, "0000000000000000 0000e0ff", b"00:00:00-15:59:59"),
    ("bit", 1560, "00000003 a0", b"101"),
    ("varbit", 1562, "00000000", b""),
    ("varbit", 1562, "00000009 0180", b"000000011"),
    ("numeric", 1700, "0002 0000 4000 0002 04d2 1388", b"-1234.50"),
    ("numeric", 1700, "0000 0000 0000 0002", b"0.00"),
    ("numeric", 1700, "0001 ffff 0000 0004 0001", b"0.0001"),
    ("numeric", 1700, "0001 fffe 0000 0008 0001", b"0.00000001"),
    ("numeric", 1700, "0001 0001 0000 0000 0001", b"10000"),
    ("numeric", 1700, "0000 0000 c000 0000", b"NaN"),
    ("numeric", 1700, "0000 0000 d000 0020", b"Infinity"),
    ("numeric", 1700, "0000 0000 f000 0020", b"-Infinity"),
    ("refcursor", 1790, "6378", b"cx"),
    ("regoper", 2203, "00000000", b"0"),
    ("regclass", 2205, "000004eb", b"1259"),
    ("uuid", 2950, "a0eebc999c0b4ef8bb6d6bb9bd380a11", b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("txid_snapshot", 2970, "00000000 000000000000000a 0000000000000014", b"10:20:"),
    ("pg_lsn", 3220, "00000016b374d848", b"16/B374D848"),
    ("tsvector", 3614, "00000002 6100 0002 c001 0002 63617400 0000", b"'a':1A,2 'cat'"),
    ("tsvector", 3614, "00000001 275c00 0000", rb"'''\\'"),
    ("tsvector", 3614, "00000000", b""),
    ("tsquery", 3615, "00000006 02020204000201000063000201010801620001000061 00", b"'a' & !'b':*A <2> 'c'"),
    ("tsquery", 3615, "00000005 0202 01000063 00 0203 01000062 00 01000061 00", b"( 'a' | 'b' ) & 'c'"),
    ("tsquery", 3615, "00000005 02040001 02040001 01000063 00 01000062 00 01000061 00", b"'a' <-> ( 'b' <-> 'c' )"),
    ("tsquery", 3615, "00000000", b""),
    ("jsonb", 3802, "01 7b7d", b"{}"),
    ("jsonpath", 4072, "01 2422", b'$"'),
    ("pg_snapshot", 5038, "00000001 000000000000000a 0000000000000014 000000000000000e", b"10:20:14"),
    ("xid8", 5069, "ffffffffffffffff", b"18446744073709551615"),
]  # fmt: skip


@pytest.mark.parametrize(("oid", "sent", "text"), [case[1:] for case in SENT], ids=[case[0] for case in SENT])
def test_the_binary_form_gives_the_same_value_as_the_text(oid: int, sent: str, text: bytes) -> None:
    column = column_type(oid, TYPMODS.get(oid, -1))
    value = bytes.fromhex(sent)
    assert column.binary_text(value) == text
    loaded, expected = load_binary(column, [None, value, value]), load_text(column, [None, text, text])
    assert loaded.array.equals(expected.array)
    assert loaded.unrepresentable == expected.unrepresentable


REFUSED: list[tuple[str, int, str]] = [
    ("bool", 16, "02"),
    ("bool", 16, "0001"),
    ("char", 18, ""),
    ("char", 18, "6161"),
    ("int2vector", 22, "00000001 00000000 00000017 00000000 00000000"),  # elements of another type
    ("int2vector", 22, "00000001 00000000 00000015 00000000 00000001"),  # counts from 1
    ("int2vector", 22, "00000001 00000001 00000015 00000001 00000000 ffffffff"),  # with a NULL
    ("int2vector", 22, "00000001 00000000 00000015 00000001 00000000 00000003 0001"),
    ("int2vector", 22, "00000001 00000000 00000015 ffffffff 00000000"),
    ("oidvector", 30, "00000001 00000000 0000001a 00000002 00000000 00000004 ffffffff"),
    ("text", 25, "ff"),
    ("xml", 142, b'<?xml version="1.0" encoding="LATIN1"?><a/>'.hex()),
    ("path", 602, "02 00000001 3ff0000000000000 4000000000000000"),
    ("path", 602, "00 00000000"),
    ("path", 602, "00 7fffffff 3ff0000000000000 4000000000000000"),
    ("polygon", 604, "ffffffff"),
    ("cidr", 650, "02 08 01 04 0a000001"),  # bits to the right of the netmask
    ("cidr", 650, "02 08 00 04 0a000000"),  # flagged as an inet
    ("inet", 869, "02 08 01 04 0a000000"),  # flagged as a cidr
    ("inet", 869, "02 21 00 04 0a000000"),
    ("inet", 869, "03 20 00 04 0a000000"),
    ("inet", 869, "04 20 00 04 0a000000"),
    ("inet", 869, "02 20 00 10 0a000000"),
    ("date", 1082, "7ffffffe"),
    ("date", 1082, "ffda97a6"),
    ("time", 1083, "000000141dd76001"),
    ("time", 1083, "ffffffffffffffff"),
    ("timestamp", 1114, "7fffff5bb3b2a001"),
    ("timestamp", 1114, "7ffffffffffffffe"),
    ("timestamptz", 1184, "8000000000000001"),
    ("timetz", 1266, "0000000000000000 0000e100"),
    ("bit", 1560, "00000003 b0"),  # a bit set after the last one
    ("bit", 1560, "00000003 a000"),
    ("bit", 1560, "ffffffff"),
    ("numeric", 1700, "0001 0000 0000 0000 2710"),  # a digit of 10000
    ("numeric", 1700, "0001 ffff 0000 0003 0001"),  # more digits than decimals to print
    ("numeric", 1700, "0000 0000 4000 0000"),  # -0
    ("numeric", 1700, "0001 0000 8000 0000 0001"),
    ("numeric", 1700, "0001 0000 c000 0000 0001"),
    ("numeric", 1700, "0001 0000 0000 4000 0001"),
    ("numeric", 1700, "0002 0000 0000 0000 0001"),
    ("snapshot", 2970, "00000000 0000000000000014 000000000000000a"),
    ("snapshot", 2970, "00000001 000000000000000a 0000000000000014 0000000000000014"),
    ("snapshot", 2970, "00000001 000000000000000a 0000000000000014 0000000000000009"),
    ("snapshot", 2970, "ffffffff 000000000000000a"),
    ("tsvector", 3614, "00000001 6100"),
    ("tsvector", 3614, "00000001 61"),
    ("tsvector", 3614, "00000000 00"),
    ("tsvector", 3614, "00000001 ff00 0000"),  # not UTF-8
    ("tsquery", 3615, "00000001 0201"),  # an operator without operands
    ("tsquery", 3615, "00000002 0202 01000061 00"),
    ("tsquery", 3615, "00000002 01000061 00 01000061 00"),  # two queries
    ("tsquery", 3615, "00000001 0205"),
    ("tsquery", 3615, "00000001 03"),
    ("tsquery", 3615, "00000001 01100061 00"),
    ("tsquery", 3615, "00000001 01000261 00"),
    ("tsquery", 3615, "ffffffff"),
    ("jsonb", 3802, "02 7b7d"),
    ("jsonb", 3802, ""),
    ("jsonpath", 4072, "24"),
]

FIXED = {
    16: 1, 18: 1, 20: 8, 21: 2, 23: 4, 24: 4, 26: 4, 27: 6, 28: 4, 29: 4, 600: 16, 601: 32, 603: 32, 628: 24,
    700: 4, 701: 8, 718: 24, 774: 8, 790: 8, 829: 6, 1082: 4, 1083: 8, 1114: 8, 1184: 8, 1186: 16, 1266: 12,
    2202: 4, 2203: 4, 2204: 4, 2205: 4, 2206: 4, 2950: 16, 3220: 8, 3734: 4, 3769: 4, 4089: 4, 4096: 4, 4191: 4,
    5069: 8,
}  # fmt: skip


def refusal(oid: int, values: Sequence[bytes | None]) -> ValueTextError:
    with pytest.raises(ValueTextError) as raised:
        load_binary(column_type(oid, TYPMODS.get(oid, -1)), values)
    return raised.value


@pytest.mark.parametrize(("oid", "sent"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_malformed_value_is_refused(oid: int, sent: str) -> None:
    valid = bytes.fromhex(next(text for _, other, text, _ in SENT if oid == other))
    error = refusal(oid, [None, valid, bytes.fromhex(sent)])
    assert (error.index, error.type_name) == (2, column_type(oid, TYPMODS.get(oid, -1)).name)


@pytest.mark.parametrize("oid", FIXED)
def test_a_value_of_the_wrong_length_is_refused(oid: int) -> None:
    for size in {*range(40)} - {FIXED[oid]}:
        assert refusal(oid, [None, bytes(FIXED[oid]), None, bytes(size)]).index == 3


@pytest.mark.parametrize(
    "oid", sorted({oid for _, oid, _, _ in SENT} - FIXED.keys() - {17, 19, 25, 114, 142, 1042, 1043, 1790})
)
def test_a_value_that_ends_too_early_or_too_late_is_refused(oid: int) -> None:
    for _, other, text, _ in SENT:
        value = bytes.fromhex(text)
        if oid == other:
            assert refusal(oid, [value + b"\xff"]).index == 0
            for end in range(4 if oid not in (3802, 4072) else 1):
                assert refusal(oid, [value[:end]]).index == 0


ALL = sorted({oid for _, oid, _, _ in SENT} | FIXED.keys())


@pytest.mark.parametrize("oid", ALL)
@settings(max_examples=60)
@given(
    st.lists(st.none() | st.binary(max_size=40) | st.binary(min_size=8, max_size=8) | st.binary(min_size=4, max_size=4))
)
def test_random_bytes_are_read_or_refused(oid: int, values: list[bytes | None]) -> None:
    column = column_type(oid, TYPMODS.get(oid, -1))
    try:
        loaded = load_binary(column, values)
    except ValueTextError as error:
        with pytest.raises(ValueTextError):
            load_binary(column, [values[error.index]])
    else:
        assert len(loaded.array) == len(values)
        assert loaded.array.type == column.arrow
        assert loaded.array.null_count == values.count(None) + len(loaded.unrepresentable)


@pytest.mark.parametrize("oid", ALL)
def test_column_types_with_binary_forms_travel_to_executors(oid: int) -> None:
    column = column_type(oid, -1)
    assert pickle.loads(pickle.dumps(column)) == column
    assert load_binary(column, []).array.equals(pa.array([], column.arrow))
    assert load_binary(column, [None, None]).array.equals(pa.nulls(2, column.arrow))


@pytest.mark.parametrize("oid", [16, 18, 23, 701, 1082, 1114, 1186, 1700, 2950, 3802, 869, 3615])
def test_an_error_about_a_binary_value_does_not_contain_it(oid: int) -> None:
    secret = b"4111-1111-1111-1111-1111"
    assert_value_not_shown(refusal(oid, [secret]), secret)


@pytest.mark.parametrize("oid", [FLOAT4, FLOAT8])
def test_every_nan_becomes_the_nan_of_its_text(oid: int) -> None:
    sent = [
        bytes.fromhex(text)
        for text in {FLOAT4: ["ffc00000", "7f800001"], FLOAT8: ["fff8000000000000", "7ff0000000000001"]}[oid]
    ]
    column = column_type(oid, -1)
    text, binary = load_text(column, [b"NaN", b"NaN"]).array, load_binary(column, sent).array
    assert binary.buffers()[1].to_pybytes()[: 2 * FIXED[oid]] == text.buffers()[1].to_pybytes()[: 2 * FIXED[oid]]
    assert [column.binary_text(value) for value in sent] == [b"NaN", b"NaN"]


def test_floats_are_printed_as_by_their_output_functions() -> None:
    doubles = {1e14: "100000000000000", 1e15: "1e+15", 123456789012345.6: "123456789012345.6", 0.0001: "0.0001",
               0.00001: "1e-05", 1e100: "1e+100", -2.5e-9: "-2.5e-09", 1234567890123456.0: "1.234567890123456e+15",
               -0.0: "-0", 5e-324: "5e-324", 1e23: "9.999999999999999e+22", 9e15: "9e+15"}  # fmt: skip
    for value, text in doubles.items():
        assert shortest_float8(value) == text
    singles = {100000.0: "100000", 1e6: "1e+06", 999999.0: "999999", 123456.7890625: "123456.79", 2.0**-149: "1e-45",
               0.0001: "0.0001", 0.10000000149011612: "0.1", -16777216.0: "-1.6777216e+07"}  # fmt: skip
    for value, text in singles.items():
        assert shortest_float4(struct.unpack("f", struct.pack("f", value))[0]) == text


@given(st.floats(allow_nan=False))
@example(2.0**60)
@example(math.nextafter(math.inf, 0))
def test_float8_text_is_read_as_the_same_number(number: float) -> None:
    assert struct.pack(">d", float(shortest_float8(number))) == struct.pack(">d", number)


@given(st.floats(width=32, allow_nan=False))
def test_float4_text_is_read_as_the_same_number(number: float) -> None:
    column = column_type(FLOAT4, -1)
    array = load_text(column, [shortest_float4(number).encode()]).array
    assert array.equals(load_binary(column, [struct.pack(">f", number)]).array)


@given(st.integers(-2_451_545, 2_145_031_948))
def test_a_date_of_any_year_is_printed_as_readable_text(days: int) -> None:
    column = column_type(1082, -1)
    sent, text = struct.pack(">i", days), date_text(days)
    assert load_binary(column, [sent]).array.equals(load_text(column, [text]).array)


@given(st.integers(-211_813_488_000_000_000, 9_223_371_331_199_999_999))
def test_a_timestamp_of_any_year_is_printed_as_readable_text(microseconds: int) -> None:
    sent = struct.pack(">q", microseconds)
    for oid, text in ((1114, timestamp_text(microseconds)), (1184, timestamptz_text(microseconds))):
        loaded, expected = load_binary(column_type(oid, -1), [sent]), load_text(column_type(oid, -1), [text])
        assert loaded.array.equals(expected.array)
        assert loaded.unrepresentable == expected.unrepresentable


def test_a_column_may_be_a_slice() -> None:
    """Like the elements of an array."""
    sent = pa.array([b"\0\0\0\1", b"\0\0\0\2", None, b"\0\0\0\4"], pa.binary())
    column = column_type(23, -1)
    assert column.fast_binary is not None
    for start in range(4):
        assert column.fast_binary(sent[start:], column.arrow).to_pylist() == [1, 2, None, 4][start:]


INTERVALS = [
    b"00:00:00", b"1 year", b"2 years", b"1 mon", b"11 mons 1 day", b"-1 years", b"1 year -1 days +00:00:01",
    b"-3 days", b"-00:00:00.000001", b"100:00:00", b"1 year 2 mons -3 days +04:05:06.789", b"infinity", b"-infinity",
    b"1 day 24:00:00", b"-1 mons +2 days 00:00:01", b"2562047788:00:54.775807",
]  # fmt: skip
NOT_INTERVALS = [
    b"", b"0", b"1-2", b"3 4:05:06", b"+1-2 -3 +4:05:06", b"P1Y2M", b"PT0S", b"@ 1 year ago", b"@ 0", b"1 years",
    b"0 days", b"12 mons", b"1 year 00:00:00", b"-00:00:00", b"00:00:00.0", b"00:00:00.10", b"0:00:01", b"00:60:00",
    b"00:00:60", b"1 day 1 year", b"+1 day", b"1 day +00:00:01", b"-1 days 00:00:01", b" 1 day", b"1 day ", b"01 day",
    b"1  day", b"1 year 2 days 1 mon", b"2147483648 days", b"178956970 years 8 mons", b"2562047788:00:54.775808",
    b"00:00:01\n", b"1 year1 mon", b"001:00:00", b"999999999 years", b"\xd9\xa1 day", b"Infinity",
]  # fmt: skip


def test_intervals_of_style_postgres_arrive() -> None:
    loaded = load_text(column_type(1186, -1), [None, *INTERVALS])
    assert loaded.array.to_pylist() == [None, *(text.decode() for text in INTERVALS)]
    assert not loaded.unrepresentable


NEAR_MISSES = st.from_regex(
    rb"\A([0-9]{1,3} years? )?([0-9]{1,2} mons? )?([0-9]{1,2} days? )?[0-9]{2,3}:[0-6][0-9]:[0-6][0-9](\.[0-9]{1,2})?\Z"
)


@given(NEAR_MISSES)
@example(b"1 year 00:00:00")
@example(b"99999999 years 11 mons 999999999 days 999999999:59:59.999999")
def test_fast_and_careful_path_read_the_same_interval(text: bytes) -> None:
    array = times.fast_interval(pa.array([text], pa.binary()), pa.string())
    if array[0].is_valid:
        assert times.careful_interval(text, pa.string()) == array[0].as_py() == text.decode()


@pytest.mark.parametrize("text", NOT_INTERVALS)
def test_an_interval_of_another_style_is_refused(text: bytes) -> None:
    with pytest.raises(ValueTextError, match="IntervalStyle must be postgres") as raised:
        load_text(column_type(1186, -1), [b"1 day", text])
    assert raised.value.index == 1


@pytest.mark.parametrize(
    ("typmod", "name"),
    [
        (-1, "interval"),
        (0x7FFF_FFFF, "interval"),
        (0x7FFF_0003, "interval(3)"),
        (0x0004_FFFF, "interval year"),
        (0x0006_FFFF, "interval year to month"),
        (0x1C08_0000, "interval day to second(0)"),
    ],
)
def test_names_of_intervals_with_modifiers(typmod: int, name: str) -> None:
    assert column_type(1186, typmod).name == name
