"""Every loader loads or refuses values that no server prints or sends, in linear time."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from struct import pack

import pyarrow as pa
import pytest

from pgoutput_etl.changes.events import ROW_SCHEMA
from pgoutput_etl.changes.fast_events import event_batches
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.protocol.messages import Insert, TupleData
from pgoutput_etl.types import ColumnType, UserTypes, ValueTextError, arrays, column_type, load_binary, load_text
from pgoutput_etl.types import column as column_module
from pgoutput_etl.types.registry import BUILT_IN_OIDS, MAX_ROWS_IN_ROWS
from tests.support.mutations import Tell, mutated, no_hang, real_changes, row_of, shape_of
from tests.support.scalar_values import SCALARS
from tests.support.small_archives import table

INT4, NUMERIC, TEXT, JSONB, INT4_ARRAY, TEXT_ARRAY, NUMERIC_ARRAY = 23, 1700, 25, 3802, 1007, 1009, 1231
TSVECTOR, TSQUERY, PATH, POLYGON, INT2VECTOR, SNAPSHOT, BIT, INT4MULTIRANGE = 3614, 3615, 602, 604, 22, 5038, 1560, 4451
HSTORE, VECTOR, MOOD, MOODS = 20000, 20001, 20002, 20003
NAMES = {
    HSTORE: ("public", "hstore"),
    VECTOR: ("public", "vector"),
    MOOD: ("public", "mood"),
    MOODS: ("public", "_mood"),
    20004: ("public", "floatrange"),
    20005: ("public", "timemultirange"),
    20006: ("public", "geometry"),
    20007: ("public", "_hstore"),
    20008: ("public", "span"),
}
PLAIN = UserTypes(NAMES)
CONFIGURED = UserTypes(NAMES, {"json": "variant", "jsonb": "variant", "numeric": "numeric(38,10)",
                               "public.span": "range(timestamptz)"})  # fmt: skip
MODIFIERS = (-1, 0, 4, 655366, 2**31 - 1, -(2**31))
FRAGMENTS = (
    b'"', b"\\", b"{", b"}", b"(", b")", b"[", b"]", b",", b";", b"NULL", b"infinity", b"NaN", b"1e400", b"9" * 50,
    b"9" * 5000, b"-", b".", b":", b"\xff", b"\0", b"=>", b"[0:1]=", b" BC", b"+00", b"2024-01-01", b"empty", b"\\x",
)  # fmt: skip


def types() -> Iterator[ColumnType]:
    for oid in sorted({*BUILT_IN_OIDS.values(), *arrays.ELEMENTS, *NAMES}):
        for modifier in MODIFIERS if oid in (NUMERIC, NUMERIC_ARRAY, 1043, 1186, 1560) else (-1,):
            for user_types in (PLAIN, CONFIGURED):
                yield column_type(oid, modifier, user_types)


def seeds() -> dict[bytes, list[bytes]]:
    """Values that servers sent, as text and in binary form; for types that no archive has, only texts."""
    found: dict[bytes, list[bytes]] = {b"t": [], b"b": []}
    for _relation, message in real_changes():
        for data in (getattr(message, "old", None), getattr(message, "new", None)):
            if data is not None:
                for i, value in enumerate(data.values):
                    if value is not None and len(value) < 3000:
                        found[data.kinds[i : i + 1]].append(value)
    for _name, (_oid, generate) in sorted(SCALARS.items()):
        texts = (text for text in generate(random.Random(1), 20) if len(text) < 3000)
        found[b"t"] += [text.encode() for text in islice(texts, 20)]
    return {kind: list(dict.fromkeys(values)) for kind, values in found.items()}


def load_hostile(seed: int, count: int) -> Counter[str]:
    dice = random.Random(seed)
    values = seeds()
    of_types = list(types())
    found: Counter[str] = Counter()
    for i in range(count):
        column = of_types[i % len(of_types)]
        kind = dice.choice((b"t", b"b"))
        base, other = dice.choice(values[kind]), dice.choice(values[kind])
        value = mutated(dice, base, dice.choice((other, dice.choice(FRAGMENTS))))
        try:
            loaded = (load_text if kind == b"t" else load_binary)(column, [None, value, base])
        except ValueTextError:
            found["refused"] += 1
            continue
        assert len(loaded.array) == 3
        loaded.array.validate(full=True)
        found["unrepresentable" if loaded.unrepresentable else "loaded"] += 1
    return found


def test_a_mutated_value_is_loaded_or_refused() -> None:
    with no_hang(60):
        found = load_hostile(1, 20_000)
    assert found["refused"] > 5000
    assert found["loaded"] > 1000


@pytest.mark.soak
def test_half_a_million_mutated_values(tell: Tell) -> None:
    with no_hang(1200):
        found = load_hostile(2, 500_000)
    tell("values", dict(found))


def rows_in_rows(depth: int) -> bytes:
    value = b"x"
    for _ in range(depth):
        value = pack(">iIi", 1, MOOD, len(value)) + value
    return value


def array(oid: int, *elements: bytes) -> bytes:
    sized = b"".join(pack(">i", len(element)) + element for element in elements)
    return pack(">iiIii", 1, 0, oid, len(elements), 1) + sized


LONGEST_NUMERIC = pack(">HhHH", 1, 32767, 0, 16383) + b"\0\1"
LIES = {
    "array, length": (INT4_ARRAY, pack(">iiIii", 1, 0, INT4, 2**31 - 1, 1)),
    "array, dimensions": (INT4_ARRAY, pack(">iiI", 6, 0, INT4) + pack(">ii", 2**31 - 1, 1) * 6),
    "array in a row": (MOOD, pack(">iIi", 1, INT4_ARRAY, 20) + pack(">iiIii", 1, 0, INT4, 2**31 - 1, 1)),
    "row": (MOOD, pack(">iI", 2**31 - 1, TEXT)),
    "hstore": (HSTORE, pack(">i", 2**31 - 1)),
    "vector": (VECTOR, pack(">HH", 65535, 0)),
    "tsvector": (TSVECTOR, pack(">i", 2**31 - 1)),
    "tsquery": (TSQUERY, pack(">i", 2**31 - 1)),
    "path": (PATH, b"\1" + pack(">i", 2**31 - 1)),
    "polygon": (POLYGON, pack(">i", 2**31 - 1)),
    "int2vector": (INT2VECTOR, pack(">iiIii", 1, 0, 21, 2**31 - 1, 0)),
    "snapshot": (SNAPSHOT, pack(">i", 2**31 - 1)),
    "bit": (BIT, pack(">i", 2**31 - 1)),
    "multirange": (INT4MULTIRANGE, pack(">i", 2**31 - 1)),
    "numeric": (NUMERIC, pack(">HhHH", 65535, 32767, 0, 16383)),
    "rows in rows": (MOOD, rows_in_rows(2000)),
}


@pytest.mark.parametrize(("oid", "value"), LIES.values(), ids=LIES.keys())
def test_a_count_that_lies_is_refused_and_takes_no_memory(oid: int, value: bytes) -> None:
    column = column_type(oid, -1, PLAIN)
    tracemalloc.start()
    try:
        with pytest.raises(ValueTextError):
            load_binary(column, [value])
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_rows_in_rows_are_read_up_to_a_depth() -> None:
    column = column_type(MOOD, -1, PLAIN)
    deepest = load_binary(column, [rows_in_rows(MAX_ROWS_IN_ROWS)])
    assert deepest.array[0].as_py().startswith("(")
    with pytest.raises(ValueTextError, match="nested at most 16 levels"):
        load_binary(column, [rows_in_rows(MAX_ROWS_IN_ROWS + 2)])


@pytest.mark.parametrize("name", ["", "_", "__", "_" * 5000, "_" * 5000 + "x"])
def test_the_name_of_a_type_may_be_anything(name: str) -> None:
    column = column_type(30000, -1, UserTypes({30000: ("public", name)}))
    assert load_text(column, [b"{a}"]).array.null_count == 0


def test_an_array_of_a_type_whose_name_begins_with_an_underscore() -> None:
    """create type _mood as enum …: its array type is named __mood, and PostgreSQL has no arrays of arrays."""
    column = column_type(30000, -1, UserTypes({30000: ("public", "__mood")}))
    assert load_text(column, [b"{sad,NULL}"]).array.to_pylist() == [["sad", None]]


def test_text_that_grows_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A numeric of 10 bytes may have 147,456 digits, so the text is limited, per value and per column."""
    monkeypatch.setattr(column_module, "MAX_TEXT", 1_000_000)
    row, field = column_type(MOOD, -1, PLAIN), pack(">Ii", NUMERIC, 10) + LONGEST_NUMERIC
    assert load_binary(row, [pack(">i", 6) + field * 6]).array.null_count == 0
    with pytest.raises(ValueTextError, match="at most 1,000,000 bytes of text"):
        load_binary(row, [pack(">i", 7) + field * 7])
    for oid, values in ((NUMERIC, [LONGEST_NUMERIC] * 7), (NUMERIC_ARRAY, [array(NUMERIC, *[LONGEST_NUMERIC] * 7)])):
        with pytest.raises(OverflowError, match="make the batch smaller"):
            load_binary(column_type(oid, -1, PLAIN), values)


def test_a_batch_that_grows_too_large_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = shape_of(table(("id", INT4), ("n", NUMERIC)))
    rows = [
        row_of(Insert(None, 16384, TupleData(b"bb", (pack(">i", i), LONGEST_NUMERIC)))) | {"ordinal": i}
        for i in range(1, 12)
    ]
    batch = pa.RecordBatch.from_pylist(rows, ROW_SCHEMA)
    monkeypatch.setattr(column_module, "MAX_TEXT", 500_000)
    made = list(event_batches(batch, shape))
    assert len(made) == 4
    assert [i for part in made for i in part.column("c0").to_pylist()] == list(range(1, 12))
    monkeypatch.setattr(column_module, "MAX_TEXT", 100_000)
    with pytest.raises(ArchiveError, match=r"file 0, offset 7: public\.t: expected values that take less than"):
        list(event_batches(batch, shape))


# Texts that grow with n and are hard to parse: quotes that don't end, brackets that don't close, digits.
GROWING: dict[str, tuple[int, Callable[[int], bytes]]] = {
    "json, quotes behind brackets": (JSONB, lambda n: b"[" * 501 + b'"' + b'\\"' * n),
    "json, brackets": (JSONB, lambda n: b"[" * n),
    "json, digits": (JSONB, lambda n: b"9" * n),
    "json, exponent": (JSONB, lambda n: b"1e" + b"9" * n),
    "json, small number": (JSONB, lambda n: b"0." + b"0" * n + b"1e%d" % n),
    "json, halves of characters": (JSONB, lambda n: b'["' + b"\\ud800" * n + b'"]'),
    "array, quotes": (TEXT_ARRAY, lambda n: b'{"' + b'\\"' * n),
    "array, elements": (TEXT_ARRAY, lambda n: b'{"' + b'a",' * n),
    "array, braces": (INT4_ARRAY, lambda n: b"{" * n),
    "array, bounds": (INT4_ARRAY, lambda n: b"[1:2]" * n + b"={}"),
    "hstore, quotes": (HSTORE, lambda n: b'"' + b'\\"' * n),
    "hstore, pairs": (HSTORE, lambda n: b'"a"=>NULL, ' * n),
    "multirange": (4535, lambda n: b"{" + b"[2024-01-01,2024-01-02)," * n),
    "integer": (INT4, lambda n: b"9" * n),
    "float, digits": (701, lambda n: b"0." + b"0" * n + b"1"),
    "float, exponent": (701, lambda n: b"1e+" + b"9" * n),
    "numeric": (NUMERIC, lambda n: b"0" * n + b".1"),
    "interval": (1186, lambda n: b"1" * n + b" years"),
}


@pytest.mark.parametrize(("oid", "make"), GROWING.values(), ids=GROWING.keys())
def test_long_values_take_no_hang(oid: int, make: Callable[[int], bytes]) -> None:
    with no_hang(30):
        load_one(column_type(oid, -1, CONFIGURED), make(100_000))


@pytest.mark.soak
@pytest.mark.parametrize(("oid", "make"), GROWING.values(), ids=GROWING.keys())
def test_time_grows_with_length_and_not_with_its_square(oid: int, make: Callable[[int], bytes]) -> None:
    column = column_type(oid, -1, CONFIGURED)
    short, long = (min(seconds(column, make(n)) for _ in range(3)) for n in (100_000, 800_000))
    assert long < 40 * short + 0.5, "8 times as long: 64 times were the square"


def seconds(column: ColumnType, value: bytes) -> float:
    begin = time.perf_counter()
    load_one(column, value)
    return time.perf_counter() - begin


def load_one(column: ColumnType, value: bytes) -> None:
    with suppress(ValueTextError):
        load_text(column, [value])
