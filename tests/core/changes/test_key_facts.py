"""Facts about inserted keys, computed from the key columns, compared with the keys themselves."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl import jit
from pgoutput_etl.changes.key_facts import (
    KeyFacts,
    facts_of,
    facts_of_buckets,
    facts_of_rows,
    hashed_keys_of,
    hashes_of,
    have_any,
    ranged,
)
from pgoutput_etl.changes.window import Window
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.scan.blocks import Packer
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.table_shape import TableShape, table_shape
from pgoutput_etl.transactions.status_lookup import StatusLookup
from pgoutput_etl.types import NO_USER_TYPES, UserTypes
from tests.support.scan_parts import scan_file
from tests.support.small_archives import (
    Messages,
    T,
    Value,
    copydata,
    in_subtransaction,
    insert,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
)

BOOL, BYTEA, INT8, INT4, TEXT, FLOAT8, DATE, TIMESTAMP, TIMESTAMPTZ = 16, 17, 20, 23, 25, 701, 1082, 1114, 1184
NUMERIC, UUID, INT4_ARRAY, JSONB = 1700, 2950, 1007, 3802


def shape_of(*types: int, user_types: UserTypes = NO_USER_TYPES) -> TableShape:
    """A shape with a key of these types, and another column."""
    names = [f"k{n}" for n in range(len(types))]
    plain = list(zip(names, types, strict=True))
    relation = table(*plain, "v", key=names)
    versions = RelationVersions(T, (relation,), {None: (((0, 0), 0),)})
    return table_shape(relation, versions, None, user_types=user_types)


def inserted(shape: TableShape, keys: Iterable[tuple[Any, ...]]) -> pa.RecordBatch:
    rows = [{"_op": "I", **{f"c{i}": part for i, part in enumerate(key)}} for key in keys]
    return pa.RecordBatch.from_pylist(rows, shape.event_schema())


UTC = timezone.utc
TEXTS = st.text(st.sampled_from("ab\x00\x7fé\U0010ffff"), max_size=3)
KINDS: dict[str, tuple[int, st.SearchStrategy[Any]]] = {
    "int8": (INT8, st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)),
    "int4": (INT4, st.integers(-2, 2)),
    "bool": (BOOL, st.booleans()),
    "text": (TEXT, TEXTS),
    "uuid": (UUID, st.uuids().map(str) | st.just("00000000-0000-0000-0000-000000000000")),
    "bytea": (BYTEA, st.binary(max_size=2)),
    "date": (DATE, st.dates()),
    "timestamp": (TIMESTAMP, st.datetimes()),
    "timestamptz": (TIMESTAMPTZ, st.datetimes(timezones=st.just(UTC))),
}


@pytest.mark.parametrize("kinds", [*((kind,) for kind in KINDS), ("int8", "text"), ("text", "text"), ("date", "uuid")])
@given(data=st.data())
def test_keys_are_unique_if_no_two_are_equal_and_are_in_their_ranges(
    kinds: tuple[str, ...], data: st.DataObject
) -> None:
    shape = shape_of(*(KINDS[kind][0] for kind in kinds))
    keys = data.draw(st.lists(st.tuples(*(KINDS[kind][1] for kind in kinds)), max_size=12))
    facts, hashes = facts_of(inserted(shape, keys), shape)
    assert hashes is not None
    assert facts == KeyFacts(len(keys), True, len(set(keys)) == len(keys), facts.ranges)
    numbers = hashes.tolist()
    assert len(set(zip(keys, numbers, strict=True))) == len(set(keys)), "equal keys have one number"
    assert len(set(numbers)) == len(set(keys)), "and others have others"
    columns = [[key[i] for key in keys] for i in range(len(kinds))]
    assert set(facts.ranges) == (set(ranged(shape)) if keys else set())
    for i, intervals in facts.ranges.items():
        assert_intervals(intervals, columns[i])


def assert_intervals(intervals: tuple[tuple[Any, Any], ...], values: Iterable[Any]) -> None:
    """In order, apart from each other, with limits among the values, and together with all values."""
    limits = [limit for interval in intervals for limit in interval]
    assert limits == sorted(limits)
    assert set(limits) <= set(values)
    assert all(earlier < least for (_, earlier), (least, _) in pairwise(intervals))
    assert all(any(least <= value <= greatest for least, greatest in intervals) for value in values)
    assert len(intervals) <= 8


@pytest.mark.parametrize(
    ("values", "intervals"),
    [
        ([5], [(5, 5)]),
        ([3, 1, 2, 2], [(1, 3)]),
        ([1, 2, 90, 91, 93], [(1, 2), (90, 91), (93, 93)]),
        ([-(2**63), 2**63 - 1], [(-(2**63),) * 2, (2**63 - 1,) * 2]),
        ([*range(0, 200, 2), 500, 1000, *range(2000, 2010)], None),
        ([*range(200), 250, 300], [(0, 300)]),
        ([(n * n * 7919) % 100_003 for n in range(300)], [(0, 99_958)]),
    ],
)
def test_ranges_are_split_at_the_largest_gaps(values: list[int], intervals: list[tuple[int, int]] | None) -> None:
    shape = shape_of(INT8)
    found = facts_of(inserted(shape, [(value,) for value in values]), shape)[0].ranges[0]
    assert_intervals(found, values)
    if intervals is None:
        assert found[-3:] == ((500, 500), (1000, 1000), (2000, 2009))
    else:
        assert list(found) == intervals


def test_uuids_of_version_7_are_split_at_the_largest_gaps_in_time() -> None:
    shape = shape_of(UUID)
    times = [*range(1000, 1100), *range(50_000, 50_100), 90_000]
    digits = [f"{0x0190A6B27C3D + n:012x}" for n in times]
    uuids = [f"{text[:8]}-{text[8:]}-7000-8000-000000000000" for text in digits]
    found = facts_of(inserted(shape, [(value,) for value in uuids]), shape)[0].ranges[0]
    assert list(found) == [(uuids[0], uuids[99]), (uuids[100], uuids[199]), (uuids[200], uuids[200])]


def test_a_text_that_is_no_uuid_has_one_range_with_the_others() -> None:
    shape = shape_of(UUID)
    keys = ["0190a6b2-7c3d-7000-8000-000000000000", "0190g6b2-7c3d-7000-8000-000000000000", "x"]
    assert facts_of(inserted(shape, [(key,) for key in keys]), shape)[0].ranges == {0: ((keys[0], keys[2]),)}


def test_all_38_digits_of_decimals_count() -> None:
    relation = table("v", key=())
    column = type(relation.columns[0])(True, "k", NUMERIC, (38 << 16) + 4 + 2)
    relation = type(relation)(None, T, "public", "t", ReplicaIdentity.DEFAULT, (column, *relation.columns))
    shape = table_shape(relation, RelationVersions(T, (relation,), {None: (((0, 0), 0),)}), None)
    keys = [(Decimal(f"{n}{'9' * 35}.99"),) for n in (-1, 0, 1)] + [(Decimal("0.01"),), (Decimal("0.00"),)]
    facts, _ = facts_of(inserted(shape, keys), shape)
    assert (facts.are_unique, facts.ranges) == (True, {0: ((keys[0][0], keys[2][0]),)})
    assert not facts_of(inserted(shape, [*keys, keys[0]]), shape)[0].are_unique


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (TEXT, ["a", None]),
        (DATE, [date(2024, 1, 31), None]),  # None: infinity, whose text is in _unrep
        (FLOAT8, [1.0]),
        (INT4_ARRAY, [[1]]),
    ],
)
def test_keys_that_their_columns_do_not_distinguish_are_unknown(kind: int, keys: list[Any]) -> None:
    shape = shape_of(kind)
    facts, hashes = facts_of(inserted(shape, [(key,) for key in keys]), shape)
    assert (hashes, facts) == (None, KeyFacts(len(keys), False, False))


def test_a_variant_has_many_spellings() -> None:
    shape = shape_of(JSONB, user_types=UserTypes.of((), {"jsonb": "variant"}))
    assert shape.columns[0].type.holds_variant
    assert facts_of(inserted(shape, [("1",)]), shape)[1] is None


def test_only_numbers_times_and_uuids_have_ranges() -> None:
    kinds = (BOOL, INT8, TEXT, FLOAT8, DATE, TIMESTAMP, TIMESTAMPTZ, UUID, BYTEA, NUMERIC)
    assert ranged(shape_of(*kinds)) == (1, 4, 5, 6, 7)


def blocks_of(content: bytes) -> tuple[list[dict[str, Any]], Replay]:
    packer, replay = Packer(), Replay()
    scanned = scan_file("0", 0, content)
    replay.add_scanned("0", scanned)
    packed = [block for batch in scanned.batches for block in packer.add(batch)]
    blocks = [block for batch in (*packed, *packer.rest()) for block in batch.to_pylist()]
    return [block for block in blocks if block["kind"] == "change"], replay


def rows_in_tasks(
    tasks: list[list[dict[str, Any]]], fates: StatusLookup, window: Window, shape: TableShape, buckets: int
) -> list[pa.RecordBatch]:
    return [batch for task in tasks for batch in hashed_keys_of(task, fates, window, shape, buckets)]


def facts_in_tasks(hashed: list[pa.RecordBatch], shape: TableShape) -> KeyFacts:
    of_buckets = {bucket for batch in hashed for bucket in batch.column("bucket").to_pylist()}
    rows = [
        row
        for bucket in of_buckets
        for facts in facts_of_buckets((b for b in hashed if b.column("bucket")[0].as_py() == bucket), shape)
        for row in facts.to_pylist()
    ]
    return facts_of_rows(rows, shape)


RELATION = table(("id", INT8), "v")


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("buckets", [1, 3])
@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=5), min_size=1, max_size=6),
    st.integers(0, 7),
)
def test_facts_combined_from_several_tasks(
    buckets: int, is_compiled: bool, transactions: list[list[int]], cut: int
) -> None:
    """Independent tasks read the blocks. Rows that were rolled back or are outside of the window do not count."""
    files: list[Messages] = []
    for number, ids in enumerate(transactions):
        relation = [RELATION] if not number else []
        files.append(transaction(number + 1, 100 * (number + 1), *relation, *(insert(str(n), "x") for n in ids)))
    streamed: Messages = segment(90, *(insert(str(n), "x") for n in transactions[0]), first=True)
    streamed += segment(90, in_subtransaction(91, insert("99", "x")), in_subtransaction(92, insert("98", "x")))
    streamed += [*stream_abort(90, 91), *stream_commit(90, 10_000)]
    blocks, replay = blocks_of(copydata([*(message for file in files for message in file), *streamed]))
    assembly = replay.assembly
    fates = StatusLookup.of((*assembly.outcomes, *assembly.open_outcomes()), assembly.watermarks)
    [stretch] = replay.spans(T, replay.rows_by_relation()[T], {}, {}, {})
    window = Window(end=(100 * cut, 0, 0) if cut else None)
    lsns = [100 * (n + 1) for n, ids in enumerate(transactions) for _ in ids] + [10_000] * (len(transactions[0]) + 1)
    ids = [n for inserted in transactions for n in inserted] + [*transactions[0], 98]
    kept = [n for n, lsn in zip(ids, lsns, strict=True) if not cut or lsn < 100 * cut]
    with pytest.MonkeyPatch.context() as patched:
        if not is_compiled:
            patched.setattr(jit, "AVAILABLE", False, raising=False)
        hashed = rows_in_tasks([[block] for block in blocks], fates, window, stretch.shape, buckets)
    facts = facts_in_tasks(hashed, stretch.shape)
    ranges = {0: ((min(kept), max(kept)),)} if kept else {}
    assert facts == KeyFacts(len(kept), True, len(set(kept)) == len(kept), ranges)
    for n in (*kept[:3], 1000):
        others = hashes_of([pa.array([n, 2000])], stretch.shape)
        assert others is not None
        assert any(have_any(batch.column("hashes"), others) for batch in hashed) == (n in kept)


def test_one_unknown_key_makes_all_unknown() -> None:
    keys: list[Value] = ["2024-01-31", "infinity"]
    blocks, replay = blocks_of(copydata(transaction(1, 100, table(("id", DATE)), *(insert(key) for key in keys))))
    [stretch] = replay.spans(T, replay.rows_by_relation()[T], {}, {}, {})
    fates = StatusLookup.of(replay.assembly.outcomes, replay.assembly.watermarks)
    hashed = rows_in_tasks([blocks], fates, Window(), stretch.shape, 2)
    assert facts_in_tasks(hashed, stretch.shape) == KeyFacts(2, False, False)


def test_times_at_the_ends_of_the_calendar_have_ranges() -> None:
    shape = shape_of(TIMESTAMPTZ)
    ends = [(datetime(1, 1, 1, tzinfo=UTC),), (datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),)]
    assert facts_of(inserted(shape, ends), shape)[0].ranges == {0: tuple((end[0], end[0]) for end in ends)}


def test_the_error_for_an_invalid_key_does_not_contain_its_value() -> None:
    blocks, replay = blocks_of(copydata(transaction(1, 100, RELATION, insert("1", "x"), insert("secret", "x"))))
    versions = replay.assembly.relations.versions(T)
    shape = table_shape(RELATION, versions, None)
    fates = StatusLookup.of(replay.assembly.outcomes, replay.assembly.watermarks)
    with pytest.raises(ArchiveError, match=r"file 0, offset \d+: public\.t, column 'id': expected") as raised:
        rows_in_tasks([blocks], fates, Window(), shape, 1)
    assert "secret" not in str(raised.value)
