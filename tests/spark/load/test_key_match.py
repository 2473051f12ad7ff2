"""Checks whether a target has keys of a batch, by Delta's statistics, for every type that has ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.changes.key_facts import ranged, ranges_of
from pgoutput_etl.load import key_match
from pgoutput_etl.load.batch_keys import BatchKeys, keys_of_events
from pgoutput_etl.load.key_match import _within, keys_are_absent, net_facts
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.table_shape import TableShape, table_shape
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.delta import files_left, read_table
from tests.support.small_archives import T

pytestmark = pytest.mark.spark

UTC = timezone.utc
INT8, TEXT, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID = 20, 25, 1082, 1114, 1184, 1700, 2950
NUMERIC_38_10 = (38 << 16) + 10 + 4
DATES = [date(1, 1, 1), date(1582, 10, 4), date(1582, 10, 10), date(1582, 10, 15), date(1970, 1, 1), date(9999, 12, 31)]
CLOCKS = [datetime.combine(day, time(23, 59, 59, 999_999)) for day in DATES]
# By type: ascending values, each of which gets its own file; the smallest step; a typmod.
KINDS: dict[str, tuple[int, list[Any], Any, int]] = {
    "int8": (INT8, [-(2**63), -(2**53) - 1, -9, 0, 2**53 + 1, 2**63 - 1], 1, -1),
    "numeric": (
        NUMERIC,
        [Decimal(n) / 10**10 for n in (-(10**27), -1, 0, 9, 10**20 + 1, 10**27)],
        Decimal(1) / 10**10,
        NUMERIC_38_10,
    ),
    "date": (DATE, DATES, timedelta(days=1), -1),
    "timestamp": (TIMESTAMP, CLOCKS, timedelta(microseconds=1), -1),
    "timestamptz": (TIMESTAMPTZ, [c.replace(tzinfo=UTC) for c in CLOCKS], timedelta(microseconds=1), -1),
    "uuid": (UUID, [f"0190a6b2-7c3d-7000-8000-{n:012x}" for n in (0, 1, 9, 10, 2**47, 2**48 - 1)], None, -1),
}


def shape_of(key: tuple[str, ...], columns: dict[str, tuple[int, int]]) -> TableShape:
    described = tuple(RelationColumn(name in key, name, oid, modifier) for name, (oid, modifier) in columns.items())
    relation = Relation(None, T, "public", "t", ReplicaIdentity.DEFAULT, described)
    return table_shape(relation, RelationVersions(T, (relation,), {None: (((0, 0), 0),)}), None)


def inserted(shape: TableShape, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    names = [column.name for column in shape.columns]
    events = [{"_op": "I", **{f"c{names.index(name)}": value for name, value in row.items()}} for row in rows]
    return pa.RecordBatch.from_pylist(events, shape.event_schema())


def keys(shape: TableShape, *values: Any) -> BatchKeys:
    """Keys of a shape whose key is its first column."""
    return keys_of_events(inserted(shape, [{shape.columns[0].name: value} for value in values]), shape)


def write_files(spark: SparkSession, path: str, shape: TableShape, rows: list[dict[str, Any]], **options: str) -> None:
    """Writes each row to a file of its own."""
    types = pa.schema([(column.name, column.type.arrow) for column in shape.columns])
    table = frame(spark, pa.Table.from_pylist(rows, types)).coalesce(1)
    writer = table.write.format("delta").option("maxRecordsPerFile", "1")
    for name, value in {"enableDeletionVectors": "true", "columnMapping.mode": "name", **options}.items():
        writer = writer.option(f"delta.{name}", value)
    writer.save(path)


@pytest.mark.soak
def test_statistics_skip_no_file_that_has_a_key(spark: SparkSession, tmp_path: Path) -> None:
    """Covers each type's limits, dates before the Gregorian calendar, and integers beyond 53 bits."""
    path, names = str(tmp_path / "t"), list(KINDS)
    columns = {name: (oid, modifier) for name, (oid, _, _, modifier) in KINDS.items()}
    table_shape = shape_of(("int8",), columns)
    write_files(spark, path, table_shape, [{name: KINDS[name][1][n] for name in names} for n in range(6)])
    target = read_table(spark, Place(path))
    placed = target.select("int8", "_metadata.file_name").collect()
    file_of = {row["int8"]: row["file_name"] for row in placed}
    assert len(set(file_of.values())) == 6
    for name, (_, values, step, _) in KINDS.items():
        shape = shape_of((name,), {name: columns[name]})
        assert ranged(shape) == (0,)
        for n, value in enumerate(values):
            ranges = keys(shape, value).facts.ranges
            [(_, is_within)] = _within(shape, ranges)
            remaining = [file.rpartition("/")[2] for file in target.where(is_within).inputFiles()]
            assert file_of[KINDS["int8"][1][n]] in remaining, (name, value)
            assert len(remaining) < 6, (name, value, "the statistics skip files")
            if step is not None and n % 2:
                assert keys_are_absent(spark, Place(path), shape, keys(shape, value - step))
                assert not keys_are_absent(spark, Place(path), shape, keys(shape, value - step, value))


def test_distant_keys_skip_the_files_between_them(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    columns = {"a": (INT8, -1), "b": (DATE, -1)}
    shape = shape_of(("a", "b"), columns)
    days = [date(2026, 1, 1) + timedelta(days=10 * n) for n in range(10)]
    write_files(spark, path, shape, [{"a": 10 * n, "b": day} for n, day in enumerate(days)])
    changed = inserted(shape, [{"a": 10 * n, "b": days[n]} for n in (0, 1, 9)])
    target = read_table(spark, Place(path))
    for i, intervals in ranges_of(changed, shape).items():
        [(_, is_within)] = _within(shape, {i: intervals})
        left = target.where(is_within)
        assert len(left.inputFiles()) == 3, intervals
        assert sorted(row["a"] for row in left.collect()) == [0, 10, 90]


def test_the_ranges_of_many_keys_are_split_at_the_largest_gaps(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As computed by Spark: three clusters of each type, and keys that are spread evenly."""
    kinds: dict[str, tuple[int, int, Callable[[int], Any]]] = {
        "a": (INT8, -1, lambda n: n - 2**62),
        "b": (NUMERIC, (30 << 16) + 2 + 4, Decimal),
        "c": (DATE, -1, lambda n: date(1500, 1, 1) + timedelta(days=n // 1000)),
        "d": (TIMESTAMP, -1, lambda n: CLOCKS[1] + timedelta(seconds=n)),
        "e": (TIMESTAMPTZ, -1, lambda n: datetime(1500, 1, 1, tzinfo=UTC) + timedelta(seconds=n)),
        "f": (UUID, -1, lambda n: f"{n:012x}"[:8] + f"-{n & 0xFFFF:04x}-7000-8000-000000000000"),
    }
    shape = shape_of(tuple(kinds), {name: (oid, modifier) for name, (oid, modifier, _) in kinds.items()})
    clusters = [range(3_000), range(1_000_000, 1_004_000), range(90_000_000, 90_005_000)]
    spread = range(0, 90_000_000, 9_000)

    def net(numbers: Iterable[int]) -> pa.Table:
        columns = {f"c{i}": [value(n) for n in numbers] for i, (_, _, value) in enumerate(kinds.values())}
        types = {f"c{i}": shape.columns[i].type.arrow for i in range(len(kinds))}
        return pa.table({**columns, "_delete": [False] * len(columns["c0"])}).cast(
            pa.schema([*types.items(), ("_delete", pa.bool_())])
        )

    target = Place(str(tmp_path / "t"))
    frame(spark, net(spread)).write.format("delta").save(target.name)
    few = net_facts(frame(spark, net([n for cluster in clusters for n in cluster])), shape, target)
    assert few.ranges[0] == ((kinds["a"][2](0), kinds["a"][2](90_004_999)),), "a small table"
    monkeypatch.setattr(key_match, "_NOT_WORTH_SPLITTING", 0)
    facts = net_facts(frame(spark, net([n for cluster in clusters for n in cluster])), shape, target)
    assert facts.rows == 12_000
    for i, (_, _, value) in enumerate(kinds.values()):
        assert facts.ranges[i] == tuple((value(cluster[0]), value(cluster[-1])) for cluster in clusters), i
    broken = net([n for cluster in clusters for n in cluster])
    odd = pa.array(["zz", *broken["c5"].to_pylist()[1:]])
    facts = net_facts(frame(spark, broken.set_column(5, "c5", odd)), shape, target)
    assert facts.ranges[5] == ((kinds["f"][2](1), "zz"),), "a text that is no uuid"
    facts = net_facts(frame(spark, net(spread)), shape, target)
    for i, (_, _, value) in enumerate(kinds.values()):
        assert facts.ranges[i] == ((value(spread[0]), value(spread[-1])),), i


@pytest.fixture(scope="module")
def numbers(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, TableShape]:
    """Keys 10 to 19 in ten files. The table has 32 further columns, so the last one has no statistics."""
    path = str(tmp_path_factory.mktemp("numbers") / "t")
    columns = {"a.b `c": (INT8, -1), **{f"v{n}": (INT8, -1) for n in range(32)}}
    shape = shape_of(("a.b `c",), columns)
    write_files(spark, path, shape, [{"a.b `c": 10 + n, "v31": 10 + n} for n in range(10)])
    return path, shape


def test_keys_after_between_and_within_files(spark: SparkSession, numbers: tuple[str, TableShape]) -> None:
    path, shape = numbers
    assert keys_are_absent(spark, Place(path), shape, keys(shape, 20, 30))
    assert keys_are_absent(spark, Place(path), shape, keys(shape, 19, 30)) is False
    assert keys_are_absent(spark, Place(path), shape, keys(shape, 9, 18, 30)) is False, "too many files lie between"
    assert keys_are_absent(spark, Place(path), shape, keys(shape))
    assert not keys_are_absent(spark, Place(path), shape, keys(shape, 20, None))


def test_few_files_are_read(spark: SparkSession, tmp_path: Path) -> None:
    path, shape = str(tmp_path / "t"), shape_of(("id",), {"id": (INT8, -1)})
    write_files(spark, path, shape, [{"id": 1}, {"id": 98}, {"id": 100}])
    assert keys_are_absent(spark, Place(path), shape, keys(shape, 97, 99, 101, 102))
    assert not keys_are_absent(spark, Place(path), shape, keys(shape, 97, 98, 101))
    texts, shape = str(tmp_path / "texts"), shape_of(("id",), {"id": (TEXT, -1)})
    write_files(spark, texts, shape, [{"id": "a"}, {"id": "c"}])
    assert keys_are_absent(spark, Place(texts), shape, keys(shape, "b"), rows=2)
    assert not keys_are_absent(spark, Place(texts), shape, keys(shape, "b", "c"), rows=2)
    assert not keys_are_absent(spark, Place(texts), shape, keys(shape, "b")), "its number of rows is unknown"


def test_one_column_of_a_composite_key_is_enough(spark: SparkSession, tmp_path: Path) -> None:
    path, shape = str(tmp_path / "t"), shape_of(("day", "n"), {"day": (DATE, -1), "n": (INT8, -1)})
    write_files(spark, path, shape, [{"day": date(2024, 1, n), "n": 7} for n in range(1, 9)])

    def batch(*rows: tuple[date, int]) -> BatchKeys:
        return keys_of_events(inserted(shape, [{"day": day, "n": n} for day, n in rows]), shape)

    assert keys_are_absent(spark, Place(path), shape, batch((date(2024, 1, 9), 7)))
    assert keys_are_absent(spark, Place(path), shape, batch((date(2024, 1, 1), 8), (date(2024, 1, 8), 9)))
    assert keys_are_absent(spark, Place(path), shape, batch((date(2024, 1, 8), 6), (date(2024, 1, 8), 8)))
    assert not keys_are_absent(spark, Place(path), shape, batch((date(2024, 1, 8), 7)))


def test_deletion_vectors_and_optimize(spark: SparkSession, tmp_path: Path) -> None:
    """A deletion vector removes a row, but the statistics of its file still cover its key."""
    path, shape = str(tmp_path / "t"), shape_of(("id",), {"id": (INT8, -1)})
    write_files(spark, path, shape, [{"id": n} for n in range(6)])
    table = DeltaTable.forPath(spark, path)
    table.optimize().executeCompaction()
    table.delete("id IN (2, 5)")
    assert table.detail().collect()[0]["numFiles"] == 1
    assert keys_are_absent(spark, Place(path), shape, keys(shape, 6, 7))
    assert keys_are_absent(spark, Place(path), shape, keys(shape, 5, 7)), "looked into"
    assert not keys_are_absent(spark, Place(path), shape, keys(shape, 4, 5))
    table.optimize().executeCompaction()
    assert keys_are_absent(spark, Place(path), shape, keys(shape, 5))


def test_files_without_statistics_may_have_any_key(spark: SparkSession, numbers: tuple[str, TableShape]) -> None:
    """Delta collects statistics for the first 32 columns only."""
    path, shape = numbers
    last = shape_of(("v31",), {"v31": (INT8, -1)})
    assert not keys_are_absent(spark, Place(path), last, keys(last, 100))
    assert keys_are_absent(spark, Place(path), shape, keys(shape, 100))


@contextmanager
def cached(spark: SparkSession, path: str) -> Iterator[None]:
    rows = read_table(spark, Place(path)).cache()
    rows.count()
    try:
        yield
    finally:
        rows.unpersist()


def test_nothing_is_proven_if_spark_reports_no_files(
    spark: SparkSession, numbers: tuple[str, TableShape], monkeypatch: pytest.MonkeyPatch
) -> None:
    """inputFiles is empty then, even for the whole table."""
    path, shape = numbers
    with cached(spark, path):
        assert read_table(spark, Place(path)).inputFiles() == []
        assert not keys_are_absent(spark, Place(path), shape, keys(shape, 100))
        monkeypatch.setattr(
            "pgoutput_etl.spark.delta.is_connect", lambda _: True
        )  # a Connect session has no plan to read
        target = read_table(spark, Place(path))
        assert files_left(target, target.where(F.lit(True))) is None
        monkeypatch.undo()
    assert keys_are_absent(spark, Place(path), shape, keys(shape, 100))


def test_a_table_in_a_catalog(spark: SparkSession) -> None:
    shape = shape_of(("id",), {"id": (INT8, -1)})
    place = "`spark_catalog`.`default`.`numbers`"
    spark.range(0, 100, 1, 2).write.format("delta").mode("overwrite").saveAsTable(place)
    try:
        assert keys_are_absent(spark, Place(place), shape, keys(shape, 100, 200))
        assert not keys_are_absent(spark, Place(place), shape, keys(shape, 99, 200))
        spark.conf.set("spark.databricks.delta.v2.enableMode", "STRICT")  # another reader, which reports no files
        assert not keys_are_absent(spark, Place(place), shape, keys(shape, 100, 200))
    finally:
        spark.conf.unset("spark.databricks.delta.v2.enableMode")
        spark.sql(f"DROP TABLE {place}")
