"""Ranges, rows, extension types, and types from Type messages and the configuration."""

from __future__ import annotations

import pickle
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.types import (
    NO_USER_TYPES,
    ColumnType,
    Storage,
    UserTypes,
    ValueTextError,
    check_configured,
    column_type,
    load_binary,
    load_text,
)
from pgoutput_etl.types.composites import record_text
from pgoutput_etl.types.extensions import MAP_ENTRIES
from pgoutput_etl.types.ranges import MultirangeText, RangeText

INT4RANGE, DATERANGE, TSRANGE, TSTZRANGE, DATEMULTIRANGE, TSTZMULTIRANGE = 3904, 3912, 3908, 3910, 4535, 4534


def user_type(namespace: str, name: str, typmod: int = -1, **configured: str) -> ColumnType:
    named = {key.replace("__", "."): value for key, value in configured.items()}
    return column_type(16400, typmod, UserTypes({16400: (namespace, name)}, named))


def load(column: ColumnType, *values: bytes | None) -> list[Any]:
    loaded = load_text(column, values)
    assert not loaded.unrepresentable
    assert loaded.array.type == column.arrow
    return loaded.array.to_pylist()  # type: ignore[no-any-return]


def same(value: bytes) -> bytes:
    return value


def sized(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


@pytest.mark.parametrize(
    ("namespace", "name", "typmod", "full_name", "arrow"),
    [
        ("pg_catalog", "int4", -1, "int4", pa.int32()),  # a domain over int4
        ("", "int4", -1, "int4", pa.int32()),
        ("pg_catalog", "text", -1, "text", pa.string()),
        ("pg_catalog", "numeric", (10 << 16 | 2) + 4, "numeric(10,2)", pa.decimal128(10, 2)),
        ("pg_catalog", "_int4", -1, "int4[]", pa.list_(pa.int32())),
        ("pg_catalog", "bpchar", -1, "bpchar", pa.string()),
        ("pg_catalog", "char", -1, '"char"', pa.string()),
        ("pg_catalog", "_char", -1, '"char"[]', pa.list_(pa.string())),
        ("pg_catalog", "newtype", -1, "pg_catalog.newtype", pa.string()),
        ("public", "mood", -1, "public.mood", pa.string()),
        ("public", "_mood", -1, "public.mood[]", pa.list_(pa.string())),
        ("public", "int4", -1, "public.int4", pa.string()),
        ("ext", "hstore", -1, "ext.hstore", MAP_ENTRIES),
        ("ext", "_hstore", -1, "ext.hstore[]", pa.list_(MAP_ENTRIES)),
        ("ext", "vector", 3, "ext.vector", pa.list_(pa.float32())),
        ("ext", "citext", -1, "ext.citext", pa.string()),
        ("gis", "geometry", 4, "gis.geometry", pa.binary()),
        ("gis", "geography", -1, "gis.geography", pa.binary()),
        ("public", "_", -1, "public._", pa.string()),
    ],
)
def test_a_type_is_known_by_its_name(
    namespace: str, name: str, typmod: int, full_name: str, arrow: pa.DataType
) -> None:
    column = user_type(namespace, name, typmod)
    assert (column.name, column.arrow) == (full_name, arrow)
    assert pickle.loads(pickle.dumps(column)) == column


def test_a_type_without_a_name_is_text() -> None:
    assert column_type(16999, -1).arrow == pa.string()
    assert load_binary(column_type(16999, -1), [b"sad", None]).array.to_pylist() == ["sad", None]
    with pytest.raises(ValueTextError):  # a built-in type of a later PostgreSQL version can't be an enum
        load_binary(column_type(9999, -1), [b"sad"])


def test_hstore_becomes_a_map() -> None:
    text = rb'"a"=>"1", "b"=>NULL, ""=>"", "q\"\\"=>"=>, ", "NULL"=>"NULL"'
    pairs = [("", ""), ("a", "1"), ("b", None), ('q"\\', "=>, "), ("NULL", "NULL")]
    in_order = sorted(pairs, key=lambda pair: (len(pair[0]), pair[0]))
    maps = load(user_type("public", "hstore"), text, None, b"")
    assert [None if m is None else [(e["key"], e["value"]) for e in m] for m in maps] == [in_order, None, []]
    assert user_type("public", "hstore").storage is Storage.MAP


@pytest.mark.parametrize(
    "text", [b"a=>1", b'"a"=>null', b'"a"=>"1","b"=>"2"', b'"a"=>"1", ', b'"a"=>"1", "a"=>"2"', b'"a"', b'"\xff"=>NULL']
)
def test_malformed_hstore_text_is_refused(text: bytes) -> None:
    with pytest.raises(ValueTextError, match=r"value 1 of a column of type public\.hstore"):
        load_text(user_type("public", "hstore"), [b"", text])


@given(st.dictionaries(st.text(max_size=4), st.none() | st.text(max_size=4), max_size=5))
def test_both_forms_of_an_hstore_give_the_same_value(pairs: dict[str, str | None]) -> None:
    column = user_type("public", "hstore")
    encoded = [(key.encode(), None if value is None else value.encode()) for key, value in pairs.items()]
    sent = struct.pack(">i", len(pairs)) + b"".join(
        sized(key) + (struct.pack(">i", -1) if value is None else sized(value)) for key, value in encoded
    )
    binary = load_binary(column, [sent])
    assert {entry["key"]: entry["value"] for entry in binary.array[0].as_py()} == pairs
    assert load_text(column, [column.binary_text(sent)]) == binary


def test_vectors() -> None:
    column = user_type("public", "vector", 3)
    assert load(column, b"[1,-2.5,3e-05]", None) == [[1.0, -2.5, struct.unpack("f", struct.pack("f", 3e-05))[0]], None]
    sent = struct.pack(">HHfff", 3, 0, 1.0, -2.5, 3e-05)
    assert load_binary(column, [sent, None]).array.equals(load_text(column, [b"[1,-2.5,3e-05]", None]).array)
    for text in (b"", b"[]", b"{1}", b"[1,]", b"[NULL]", b"1"):
        with pytest.raises(ValueTextError):
            load_text(column, [text])
    for value in (sent[:-1], sent + b"\0\0\0\0", b"", struct.pack(">HH", 0, 0), struct.pack(">HHf", 1, 1, 1.0)):
        with pytest.raises(ValueTextError):
            load_binary(column, [value])


def test_a_geometry_is_stored_as_ewkb() -> None:
    point = bytes.fromhex("0101000020E6100000000000000000F03F0000000000000040")
    column = user_type("gis", "geometry")
    assert load(column, point.hex().upper().encode(), None) == [point, None]
    assert load_binary(column, [point, None]).array.to_pylist() == [point, None]
    array = user_type("gis", "_geometry")
    assert load(array, b"{" + b":".join([point.hex().encode(), b"NULL"]) + b"}") == [[point, None]]
    with pytest.raises(ValueTextError):
        load_text(column, [b"POINT(1 2)"])


@pytest.mark.parametrize(("name", "text"), [("vector", b"(1,2)"), ("hstore", b"ok"), ("geometry", b"ab")])
@pytest.mark.parametrize("is_array", [False, True])
def test_a_row_or_enum_named_like_an_extensions_type_is_refused_with_a_remedy(
    name: str, text: bytes, is_array: bool
) -> None:
    row = record((25, b"1"), (25, b"2"))
    column = user_type("app", f"_{name}" if is_array else name)
    sent = struct.pack(">iiIii", 1, 0, 16399, 1, 1) + sized(row) if is_array else row
    for load_values, value in ((load_text, b'{"%b"}' % text if is_array else text), (load_binary, sent)):
        with pytest.raises(ValueTextError) as raised:
            load_values(column, [value])
        assert f'types: {{"app.{name}": text}}' in str(raised.value)
    declared = column_type(
        16400, -1, UserTypes({16400: ("app", f"_{name}" if is_array else name)}, {f"app.{name}": "text"})
    )
    found = load(declared, b'{"%b"}' % text if is_array else text)
    assert found == [[text.decode()] if is_array else text.decode()]
    assert load_binary(declared, [sent]).array.to_pylist() == [["(1,2)"] if is_array else "(1,2)"]


@pytest.mark.parametrize("column", [user_type("app", "citext"), user_type("app", "own", app__own="text")])
def test_binary_text_may_be_a_row(column: ColumnType) -> None:
    values = [record((25, b"a b"), (23, b"\0\0\0\2")), b"label", b"\x01 \n", None]
    assert load_binary(column, values).array.to_pylist() == ['("a b",2)', "label", "\x01 \n", None]


def test_the_beginning_of_a_geometry() -> None:
    column = user_type("gis", "geometry")
    heads = {"0101000000": True, "0000000011": True, "01020000E0": True, "0112000000": False, "0201000000": False}
    for head, is_one in {**heads, "0100000000": False, "01010000": False}.items():
        value = bytes.fromhex(head)
        for load_values, sent in ((load_text, head.encode()), (load_binary, value)):
            if is_one:
                assert load_values(column, [sent, None]).array.to_pylist() == [value, None]
                continue
            with pytest.raises(ValueTextError, match="EWKB"):
                load_values(column, [sent])


def record(*fields: tuple[int, bytes | None]) -> bytes:
    return struct.pack(">i", len(fields)) + b"".join(
        struct.pack(">I", oid) + (struct.pack(">i", -1) if value is None else sized(value)) for oid, value in fields
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([], b"()"),
        ([b"1", None, b""], b'(1,,"")'),
        ([b'a"b', b"c\\d", b"e,f"], b'("a""b","c\\\\d","e,f")'),
        ([b"(g)", b" h", b"{i}", b"\xc2\xa0"], b'("(g)"," h",{i},\xc2\xa0)'),
        ([None], b"()"),
    ],
)  # fmt: skip
def test_the_text_of_a_row(fields: list[bytes | None], text: bytes) -> None:
    assert record_text(record(*((25, field) for field in fields)), lambda _oid, field: field) == text


def test_a_binary_row_is_read_by_the_types_of_its_fields() -> None:
    user_types = UserTypes({16400: ("public", "pair"), 16401: ("public", "mood")})
    inner = record((16401, b"very sad"), (16999, None))
    loaded = load_binary(column_type(16400, -1, user_types), [record((16401, b"ok"), (16400, inner)), None])
    assert loaded.array.to_pylist() == ['(ok,"(""very sad"",)")', None]
    assert load(column_type(16400, -1, user_types), b'(ok,"(x,)")') == ['(ok,"(x,)")']


@pytest.mark.parametrize("value", [b"\0\0\0\1", b"\1ltree", b"\0", b"\xff", record((25, b"x"))[:-1], record((0, b"x"))])
def test_an_unrecognizable_binary_form_is_refused_with_a_remedy(value: bytes) -> None:
    column = user_type("public", "ltree")
    with pytest.raises(ValueTextError) as raised:
        load_binary(column, [b"a label", value])
    assert raised.value.index == 1
    assert 'types: {"public.ltree": …}' in str(raised.value)
    assert "without binary" in str(raised.value)


@given(st.binary(max_size=40))
def test_all_bytes_arrive_or_are_refused(value: bytes) -> None:
    for name in ("mood", "_mood", "hstore", "_hstore", "vector", "geometry"):
        column = user_type("public", name)
        for read in (load_text, load_binary):
            try:
                assert len(read(column, [value]).array) == 1
            except ValueTextError as error:
                assert error.index == 0  # noqa: PT017


@pytest.mark.parametrize(
    ("declared", "arrow", "storage"),
    [
        ("int4", pa.int32(), Storage.PLAIN),
        ("Integer", pa.int32(), Storage.PLAIN),
        ("numeric( 20 , 4 )", pa.decimal128(20, 4), Storage.PLAIN),
        ("decimal(5)", pa.decimal128(5, 0), Storage.PLAIN),
        ("timestamp with time zone", pa.timestamp("us", "UTC"), Storage.PLAIN),
        ("timestamp(3) without time zone", pa.timestamp("us"), Storage.PLAIN),
        ("double precision", pa.float64(), Storage.PLAIN),
        ("character varying(20)", pa.string(), Storage.PLAIN),
        ("int4[]", pa.list_(pa.int32()), Storage.PLAIN),
        ("variant", pa.string(), Storage.VARIANT),
        ("hstore", MAP_ENTRIES, Storage.MAP),
        ("vector", pa.list_(pa.float32()), Storage.PLAIN),
        ("range(float8)", pa.string(), Storage.PLAIN),
        ("multirange (timestamp with time zone)", pa.string(), Storage.PLAIN),
    ],
)
def test_types_that_the_configuration_may_declare(declared: str, arrow: pa.DataType, storage: Storage) -> None:
    check_configured("public.own", declared)
    own, array = (user_type("public", name, public__own=declared) for name in ("own", "_own"))
    assert (own.name, own.arrow, own.storage) == ("public.own", arrow, storage)
    assert (array.name, array.arrow, array.element) == ("public.own[]", pa.list_(arrow), own)


def test_a_configured_type_is_read_as_declared() -> None:
    assert load(user_type("public", "_posint", public__posint="int4"), b"{1,NULL}") == [[1, None]]
    assert load(user_type("public", "_ints", public__ints="int4[]"), b'{"{1,2}",NULL,"{}"}') == [[[1, 2], None, []]]
    assert load(user_type("public", "vector", public__vector="text"), b"north") == ["north"]


def test_built_in_types_that_can_be_configured() -> None:
    user_types = UserTypes(configured={"json": "variant", "jsonb": "variant", "numeric": "numeric(38,10)"})
    assert column_type(3802, -1, user_types).storage is Storage.VARIANT
    assert column_type(114, -1, user_types).storage is Storage.VARIANT
    assert column_type(3807, -1, user_types).element == column_type(3802, -1, user_types)
    assert column_type(1700, -1, user_types).arrow == pa.decimal128(38, 10)
    assert column_type(1231, -1, user_types).arrow == pa.list_(pa.decimal128(38, 10))
    assert column_type(1700, (5 << 16 | 1) + 4, user_types).arrow == pa.decimal128(5, 1)
    loaded = load_text(column_type(1700, -1, user_types), [b"1.5", b"1e5"[:1], b"0.00000000001", b"NaN", b"1" * 40])
    assert loaded.array.to_pylist() == [Decimal("1.5"), Decimal(1), None, None, None]
    assert set(loaded.unrepresentable) == {2, 3, 4}
    assert column_type(3802, -1, NO_USER_TYPES).storage is Storage.PLAIN


@pytest.mark.parametrize(
    ("name", "declared", "message"),
    [
        ("public.own", "in4", "did you mean int4?"),
        ("public.own", "boolan", "did you mean boolean?"),
        ("public.own", "int4(3)", "without that modifier"),
        ("public.own", "numeric(0,1)", "precision from 1 to 1000"),
        ("public.own", "int4[][]", "expected a SQL type"),
        ("public.own", "drop table x; --", "expected a SQL type"),
        ("public.own", "range(int4[])", "range of a built-in type"),
        ("public.own", "range(range(int4))", "range of a built-in type"),
        ("public.own", "range(variant)", "range of a built-in type"),
        ("public.own", "range(int)[]", "expected a SQL type"),
        ("own", "int4", "schema.name"),
        ("jsn", "variant", "did you mean json"),
        ("json", "text", "expected variant"),
        ("jsonb", "variant[]", "expected variant"),
        ("numeric", "float8", "expected numeric(p,s)"),
        ("numeric", "numeric", "expected numeric(p,s)"),
        ("numeric", "numeric(39,0)", "expected numeric(p,s)"),
        ("numeric", "numeric(3,5)", "expected numeric(p,s)"),
        ("numeric", "range(numeric(3,1))", "expected numeric(p,s)"),
    ],
)
def test_an_invalid_declaration_is_refused(name: str, declared: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^expected") as raised:
        check_configured(name, declared)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (INT4RANGE, b"[1,5)"),
        (3906, b"(,1.50]"),
        (DATERANGE, b"empty"),
        (DATERANGE, b"[2026-01-01,2026-02-01)"),
        (DATERANGE, b"(,infinity)"),
        (DATERANGE, b'["0044-03-15 BC",2026-02-01)'),
        (TSRANGE, b'["2026-01-01 00:00:00",)'),
        (TSRANGE, b"[-infinity,infinity]"),
        (TSTZRANGE, b'["2026-01-01 00:00:00.5+00","2026-01-02 00:00:00+00")'),
        (DATEMULTIRANGE, b"{}"),
        (DATEMULTIRANGE, b"{[2026-01-01,2026-02-01),[2026-03-01,)}"),
        (TSTZMULTIRANGE, b'{(,"0044-03-15 12:00:00+00 BC"),[infinity,)}'),
    ],
)
def test_a_range_is_kept_as_text(oid: int, text: bytes) -> None:
    assert load(column_type(oid, -1), text, None, text) == [text.decode(), None, text.decode()]


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (DATERANGE, b"[01.02.2026,)"),
        (DATERANGE, b"[2026-02-30 BC,)"),
        (DATERANGE, b"{[2026-01-01,)}"),
        (TSRANGE, b'["Sat Nov 21 03:04:05 2026",)'),
        (TSRANGE, b'["2026-01-01 00:00:00+00",)'),
        (TSTZRANGE, b'["2026-01-01 00:00:00",)'),
        (TSTZRANGE, b"[2026"),
        (DATEMULTIRANGE, b"[2026-01-01,)"),
        (DATEMULTIRANGE, b"{[2026-01-01,),}"),
        (DATEMULTIRANGE, b"{empty}"),
    ],
)
def test_a_range_of_dates_in_another_style_is_refused(oid: int, text: bytes) -> None:
    with pytest.raises(ValueTextError) as raised:
        load_text(column_type(oid, -1), [b"empty" if oid != DATEMULTIRANGE else b"{}", text])
    assert raised.value.index == 1


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"\1", b"empty"),
        (b"\x02" + sized(b"a") + sized(b"b"), b"[a,b)"),
        (b"\x04" + sized(b"a") + sized(b"b"), b"(a,b]"),
        (b"\x18", b"(,)"),
        (b"\x0c" + sized(b"b"), b"(,b]"),
        (b"\x12" + sized(b"a"), b"[a,)"),
        (b"\x02" + sized(b"") + sized(b'(\\"'), b'["","(\\\\"""'[:-1] + b'")'),
        (b"\x02" + sized(b"a b") + sized(b"{c}"), b'["a b",{c})'),
    ],
)
def test_the_text_of_a_range(sent: bytes, text: bytes) -> None:
    assert RangeText(same)(sent) == text
    assert MultirangeText(RangeText(same))(struct.pack(">i", 2) + sized(sent) * 2) == b"{" + text + b"," + text + b"}"


@pytest.mark.parametrize(
    "sent", [b"", b"\3", b"\x20", b"\x02" + sized(b"a"), b"\1x", b"\x18x", b"\x02\xff\xff\xff\xff"]
)
def test_a_malformed_binary_range_is_refused(sent: bytes) -> None:
    with pytest.raises(ValueTextError):
        load_binary(column_type(INT4RANGE, -1), [sent])
    with pytest.raises(ValueTextError):
        load_binary(column_type(4451, -1), [struct.pack(">i", 1) + sized(sent)])


ENUM = 16400


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        (b"sad", b"sad"),
        (b"(1,sad)", struct.pack(">i", 2) + struct.pack(">Iii", 23, 4, 1) + struct.pack(">Ii", 25, 3) + b"sad"),
    ],
)
def test_a_type_whose_own_name_begins_with_an_underscore_is_no_array(text: bytes, sent: bytes) -> None:
    """In either form, such a value is refused with an entry for the configuration, which reads it."""
    names = {ENUM: ("public", "_mood")}
    array = column_type(ENUM, -1, UserTypes(names))
    for read, value in ((load_text, text), (load_binary, sent)):
        with pytest.raises(ValueTextError) as refused:
            read(array, [value])
        assert refused.value.expected == 'a type that is declared in the configuration (types: {"public._mood": text})'
    check_configured("public._mood", "text")
    declared = column_type(ENUM, -1, UserTypes(names, {"public._mood": "text"}))
    assert declared.arrow == pa.string()
    for read, value in ((load_text, text), (load_binary, sent)):
        assert read(declared, [value, None]).array.to_pylist() == [text.decode(), None]


def test_a_type_whose_array_was_sent_is_no_array() -> None:
    """PostgreSQL calls the array of `_mood` `__mood`, and there are no arrays of arrays."""
    user_types = UserTypes({ENUM: ("public", "_mood"), ENUM + 1: ("public", "__mood"), ENUM + 2: ("app", "__mood")})
    own, array = (column_type(ENUM + n, -1, user_types) for n in range(2))
    assert (own.arrow, array.arrow) == (pa.string(), pa.list_(pa.string()))
    for read, value in ((load_text, b"sad"), (load_binary, b"sad")):
        assert read(own, [value, None]).array.to_pylist() == ["sad", None]
    assert load_text(array, [b"{sad}"]).array.to_pylist() == [["sad"]]
    elsewhere = UserTypes({ENUM: ("public", "_mood"), ENUM + 2: ("app", "__mood")})
    assert column_type(ENUM, -1, elsewhere).arrow == pa.list_(pa.string())


def test_a_domain_within_a_row_is_declared_by_its_oid() -> None:
    """No Type message names it. The refusal's entry is accepted, for an element of an array as well."""
    row = struct.pack(">i", 1) + struct.pack(">Iii", 16397, 4, 5)
    array = struct.pack(">iiIii", 1, 0, 16398, 1, 1) + struct.pack(">i", len(row)) + row
    names = {16398: ("public", "pair"), 16399: ("public", "_pair")}
    for oid, sent, text in ((16398, row, "(5)"), (16399, array, "{(5)}")):
        with pytest.raises(ValueTextError) as refused:
            load_binary(column_type(oid, -1, UserTypes(names)), [sent])
        assert '(types: {"oid 16397": …})' in refused.value.expected
        check_configured("oid 16397", "int4")
        declared = column_type(oid, -1, UserTypes(names, {"oid 16397": "int4"}))
        assert str(load_binary(declared, [sent]).array[0]) in (text, "['(5)']")
    with pytest.raises(ValueError, match="or 'oid N' of a user type"):
        check_configured("oid x", "int4")
