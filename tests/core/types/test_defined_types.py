"""Types that catalog Messages define: what a column becomes, and settings that contradict them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from pgoutput_etl.protocol.messages import RelationColumn, TypeDefinition
from pgoutput_etl.types import ColumnType, UserTypes, contradiction, load_binary, load_text, type_of
from pgoutput_etl.types.registry import MAX_TYPES_IN_TYPES

_PRICE_MODIFIER = (10 << 16 | 2) + 4

PRICE = TypeDefinition(16401, "d", "public", "price", 1700, _PRICE_MODIFIER)
PRICES = TypeDefinition(16402, "a", "public", "_price", 16401)
MOOD = TypeDefinition(16403, "e", "public", "_mood")
VECTOR = TypeDefinition(16404, "e", "app", "vector")
HEIGHTS = TypeDefinition(16405, "r", "public", "heights", 701)
DOCUMENT = TypeDefinition(16406, "d", "public", "document", 3802)
LISTS = TypeDefinition(16407, "d", "public", "lists", 1007)
LISTS_ARRAY = TypeDefinition(16408, "a", "public", "_lists", 16407)
HSTORE = TypeDefinition(16409, "b", "public", "hstore")
NUMBER = TypeDefinition(16410, "d", "public", "number", 1700)
POINTS = TypeDefinition(16411, "m", "public", "points", 16412)
POINT = TypeDefinition(16412, "d", "public", "point", 23)


def column(*types: TypeDefinition) -> RelationColumn:
    return RelationColumn(False, "c", types[0].oid, -1, types=types)


def declared(**types: str) -> UserTypes:
    return UserTypes(configured={name.replace("__", "."): text for name, text in types.items()})


@pytest.mark.parametrize(
    ("types", "name", "arrow"),
    [
        ((PRICE,), "numeric(10,2)", pa.decimal128(10, 2)),
        ((PRICES, PRICE), "numeric(10,2)[]", pa.list_(pa.decimal128(10, 2))),
        ((MOOD,), "public._mood", pa.string()),
        ((VECTOR,), "app.vector", pa.string()),
        ((HEIGHTS,), "public.heights", pa.string()),
        ((LISTS,), "int4[]", pa.list_(pa.int32())),
        ((LISTS_ARRAY, LISTS), "int4[][]", pa.list_(pa.string())),
        ((POINTS, POINT), "public.points", pa.string()),
        ((replace(POINT, of=13000),), "oid 13000", pa.string()),
    ],
)
def test_a_column_gets_the_type_that_the_catalog_defines(
    types: tuple[TypeDefinition, ...], name: str, arrow: pa.DataType
) -> None:
    found = type_of(column(*types))
    assert (found.name, found.arrow) == (name, arrow)


def test_an_extensions_type_is_still_known_by_its_name() -> None:
    assert type_of(column(HSTORE)).stored_as == type_of(column(HSTORE), declared(public__hstore="hstore")).stored_as
    assert type_of(column(HSTORE), declared(public__hstore="text")).arrow == pa.string()


def test_a_definition_that_contains_itself_ends() -> None:
    """Anybody can write one without a key."""
    for kind in "darm":
        assert isinstance(type_of(column(TypeDefinition(16401, kind, "public", "x", 16401))), ColumnType)
    chain = [TypeDefinition(16400 + i, "d", "public", f"d{i}", 16401 + i) for i in range(2 * MAX_TYPES_IN_TYPES)]
    assert type_of(column(*chain)).arrow == pa.string()


def test_text_keeps_what_postgres_prints_also_of_binary_values() -> None:
    found = type_of(column(PRICE), declared(public__price="text"))
    assert load_text(found, [b"1.50", None]).array.to_pylist() == ["1.50", None]
    binary = b"\0\2\0\0\0\0\0\2\0\1\x13\x88"  # 1.50: two digits of base 10,000, weight 0, two decimals
    assert load_binary(found, [binary]).array.to_pylist() == ["1.50"]


@pytest.mark.parametrize(
    ("found", "name", "right", "wrong"),
    [
        (PRICE, "public.price", ("numeric(10,2)", "decimal(10, 2)", "text", "TEXT"), ("numeric(20,4)", "int4")),
        (POINT, "public.point", ("int4", "integer"), ("int8", "int4[]", "range(int4)")),
        (POINT, "oid 16412", ("int4",), ("int8",)),
        (HEIGHTS, "public.heights", ("range(float8)",), ("range(int8)", "multirange(float8)", "float8")),
        (DOCUMENT, "public.document", ("jsonb", "variant"), ("json", "varchar")),
        (MOOD, "public._mood", ("text",), ("int4", "variant", "hstore")),
        (NUMBER, "public.number", ("numeric", "numeric(38,10)"), ("int8", "float8")),
        (LISTS, "public.lists", ("int4[]",), ("int8[]", "int4")),
        (HSTORE, "public.hstore", ("hstore", "text"), ()),
    ],
)
def test_a_declaration_is_right_or_refused(
    found: TypeDefinition, name: str, right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    for text in right:
        assert contradiction(column(found), UserTypes(configured={name: text})) is None, text
        type_of(column(found), UserTypes(configured={name: text}))
    for text in wrong:
        why = contradiction(column(found), UserTypes(configured={name: text}))
        assert why == f"{found.namespace}.{found.name}: {text}"


def test_the_parts_of_a_type_are_checked_too() -> None:
    assert contradiction(column(PRICES, PRICE), declared(public__price="numeric(20,4)")) is not None
    assert contradiction(column(PRICES, PRICE), declared(public__other="int4")) is None
