"""Range digests, canonical texts, and the assignment of rows to ranges."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.answers.verify.key_ranges import (
    GREATEST,
    LEAST,
    MAX_RANGES,
    ROWS_IN_RANGE,
    Digest,
    Ranges,
    differing_ranges,
    encode_row,
    merge_digests,
    plan_ranges,
)
from pgoutput_etl.types import NO_USER_TYPES, ColumnType, UserTypes, column_type, load_text
from pgoutput_etl.types.canonical_text import ComparedColumn, canonical_texts, compares_by_value, texts_of

INT4, INT8, TEXT, FLOAT8, TIMESTAMPTZ, JSONB = 23, 20, 25, 701, 1184, 3802
ROW = st.lists(st.none() | st.text(max_size=5), min_size=1, max_size=4)


def type_of(oid: int) -> ColumnType:
    return column_type(oid, -1)


def columns(*oids: int) -> list[ComparedColumn]:
    return [ComparedColumn(f"c{i}", type_of(oid)) for i, oid in enumerate(oids)]


def digest(*rows: list[str | None]) -> Digest:
    total = Digest()
    for row in rows:
        total.add(row)
    return total


@given(ROW, ROW)
def test_encodings_are_equal_only_for_equal_rows(a: list[str | None], b: list[str | None]) -> None:
    assert (encode_row(a) == encode_row(b)) == (a == b)


@given(st.lists(ROW, max_size=6), st.randoms(use_true_random=False))
def test_a_digest_ignores_order_and_counts_every_row(rows: list[list[str | None]], shuffle: random.Random) -> None:
    shuffled = [*rows]
    shuffle.shuffle(shuffled)
    assert digest(*rows) == digest(*shuffled)
    assert digest(*rows) != digest(*rows, ["one more"])
    if rows:
        assert digest(*rows) != digest(*rows[:-1], [*rows[-1], None])
    half = len(rows) // 2
    assert digest(*rows[:half]).plus(digest(*rows[half:])) == digest(*rows)


def test_differing_ranges_may_exist_on_one_side_only() -> None:
    a, b = digest(["a"]), digest(["b"])
    assert differing_ranges({0: a, 1: a, 2: a}, {0: a, 1: b, 3: a}) == [1, 2, 3]
    parts = [{"range": 4, "rows": 1, "first": a.first, "second": a.second}] * 2
    assert merge_digests([*parts, {"range": 5, "rows": 0, "first": "0", "second": "0"}]) == {4: a.plus(a)}


@given(st.integers(0, 20 * ROWS_IN_RANGE), st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_every_integer_is_within_the_bounds_of_its_range(rows: int, one: int, other: int) -> None:
    least, greatest = sorted((one, other))
    ranges = plan_ranges(columns(INT8, TEXT), (0,), rows, (least, greatest))
    assert 1 <= ranges.count == len(ranges.bounds) <= MAX_RANGES
    flat = [bound for pair in ranges.bounds for bound in pair]
    assert (flat[0], flat[-1]) == (LEAST, GREATEST)
    assert all(b == a + 1 for a, b in zip(flat[1:-1:2], flat[2::2], strict=True)), "no gap between two ranges"
    for number in (least, greatest, (least + greatest) // 2, LEAST, GREATEST):
        low, high = ranges.bounds[ranges.range_of([str(number), None])]
        assert low <= number <= high


@given(st.integers(-100, 100), st.integers(1, 400), st.sets(st.integers(-150, 500), max_size=6), st.data())
def test_divided_ranges_keep_all_others(least: int, size: int, starts: set[int], data: st.DataObject) -> None:
    ranges, greatest = Ranges((0,), tuple(sorted(starts))), least + size
    only = data.draw(st.none() | st.sets(st.integers(0, ranges.count - 1)).map(sorted).map(tuple))
    ranges = replace(ranges, only=only)
    parts = (
        data.draw(st.dictionaries(st.sampled_from([*ranges.numbers]), st.integers(2, 9), max_size=3))
        if ranges.numbers
        else {}
    )
    divided, kept = ranges.divided(parts, least, greatest)
    assert set(kept) == set(range(ranges.count)) - parts.keys()
    assert all(divided.bounds[kept[number]] == ranges.bounds[number] for number in kept)
    for place in (least, greatest, *starts, LEAST, GREATEST, None):
        row = [None if place is None else str(place)]
        before, after = ranges.range_of(row), divided.range_of(row)
        assert (before in ranges.numbers) == (after in divided.numbers)
        if place is not None:
            assert (after in divided.numbers) == any(low <= place <= high for low, high in divided.spans())
        assert kept[before] == after if before in kept else after not in kept.values()


def test_keys_of_other_types_are_in_ranges_of_their_hash() -> None:
    by_text = plan_ranges(columns(TEXT, INT4), (0,), 10**6, (None, None))
    assert (by_text.is_hashed, by_text.count) == (True, MAX_RANGES)
    assert {by_text.range_of([f"key {i}", "1"]) for i in range(4000)} == set(range(MAX_RANGES))
    assert by_text.range_of(["a", "1"]) == by_text.range_of(["a", "2"]), "only the key decides"
    bag = plan_ranges(columns(TEXT, INT4), (), 10**6, (None, None))
    assert len({bag.range_of(["a", str(i)]) for i in range(50)}) > 1, "all columns of a bag decide"


def test_a_key_with_several_spellings_is_in_one_range() -> None:
    assert plan_ranges(columns(FLOAT8), (0,), 10**6, (None, None)).count == 1
    assert plan_ranges(columns(TEXT, TIMESTAMPTZ), (), 10**6, (None, None)).count == 1


def test_malformed_integer_keys_are_in_the_first_range() -> None:
    ranges = Ranges((0,), (10, 20))
    assert [ranges.range_of([text]) for text in ("9", "10", "19", "20", None, "", "x")] == [0, 1, 1, 2, 0, 0, 0]


PRINTED = {
    16: ["t", "f"],
    21: ["-32768", "0"],
    20: ["9223372036854775807"],
    28: ["4294967295"],
    700: ["0.1", "-0", "NaN", "1e+22", "-Infinity"],
    701: ["0.1", "-0", "1.7976931348623157e+308"],
    1700: ["0.10", "NaN", "-1000000000000000000000000000000000000000000.5"],
    1082: ["2026-03-01", "0001-01-01"],
    1114: ["2026-03-01 01:02:03", "2026-03-01 01:02:03.5", "0044-03-15 00:00:00"],
    1184: ["2026-03-01 01:02:03.000001+00"],
    17: ["\\x", "\\x00ff"],
    25: ["", 'ž, "x"'],
    1042: ["ab   "],
    1015: ['{a,"b c",NULL,"NULL",""}'],
    1231: ["{1.10,NaN}"],
    2950: ["00000000-0000-0000-0000-00000000000a"],
    1186: ["1 year 2 mons -3 days +04:05:06"],
}


@pytest.mark.parametrize("oid", PRINTED)
def test_stored_values_are_printed_as_postgresql_prints_them(oid: int) -> None:
    column, texts = type_of(oid), PRINTED[oid]
    loaded = load_text(column, [*(text.encode() for text in texts), None])
    assert texts_of(column, loaded.array) == [
        *(None if i in loaded.unrepresentable else text for i, text in enumerate(texts)),
        None,
    ]
    assert canonical_texts(column, [*texts, None]) == [*texts, None], "already canonical"


@pytest.mark.parametrize(
    ("oid", "one", "other"),
    [
        (FLOAT8, "0.1", "0.10000000000000001"),
        (FLOAT8, "1e+300", "1.0000000000000001e+300"),
        (TIMESTAMPTZ, "2026-03-01 12:00:00+00", "2026-03-01 14:00:00+02"),
        (1022, "{0.1,NULL}", "{0.10000000000000001,NULL}"),
    ],
)
def test_two_spellings_of_a_value_have_one_canonical_text(oid: int, one: str, other: str) -> None:
    assert compares_by_value(type_of(oid))
    assert canonical_texts(type_of(oid), [one]) == canonical_texts(type_of(oid), [other])


def test_values_that_differ_stay_different() -> None:
    assert canonical_texts(type_of(FLOAT8), ["0", "-0", "NaN", None]) == ["0", "-0", "NaN", None]
    assert canonical_texts(type_of(FLOAT8), ["0.1", "nonsense"]) == ["0.1", "nonsense"], (
        "malformed texts stay unchanged"
    )
    assert canonical_texts(type_of(TEXT), ["0.10"]) == ["0.10"]
    assert not compares_by_value(type_of(1700)), "0.10 and 0.1 are two numerics"


def test_documents_are_compared_by_their_values() -> None:
    variant = column_type(JSONB, -1, UserTypes({}, {"jsonb": "variant"}))
    assert compares_by_value(variant)
    one = '{"b": [1.10, 45e4, "x"], "a": null}'
    assert canonical_texts(variant, [one]) == canonical_texts(variant, ['{"a":null,"b":[1.1,450000.0,"x"]}'])
    for text in ('{"a":null,"b":[1.2,450000,"x"]}', '{"a":null,"b":["1.1",450000,"x"]}', '{"b":[1.1,450000,"x"]}'):
        assert canonical_texts(variant, [one]) != canonical_texts(variant, [text])
    assert len(set(canonical_texts(variant, ["1", '"1"', '"1e0"', "[1]", "null", "true", "10"]))) == 7
    assert len(set(canonical_texts(variant, ["0", "0.00", "-0", "0e5"]))) == 1
    assert canonical_texts(variant, ["{", f"1e{9**30}"]) == ["{", f"1e{9**30}"]
    assert column_type(JSONB, -1, NO_USER_TYPES).storage.value == "plain"


def test_arrays_are_printed_with_their_braces() -> None:
    assert texts_of(type_of(1007), pa.array([[1, None], None], pa.list_(pa.int32()))) == ["{1,NULL}", None]
