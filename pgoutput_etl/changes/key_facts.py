"""Facts about the keys of a batch's inserted rows: their uniqueness and the ranges of their values.

Only the key columns are read. A key is hashed to 64 bits, and keys are unique if their hashes are. A collision of two
keys only costs time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl import jit
from pgoutput_etl.changes.fast_events import check_versions, event_batches
from pgoutput_etl.changes.tuple_columns import RawTuples, split_tuples
from pgoutput_etl.changes.window import Window, rows_in
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.transactions.status_lookup import StatusLookup
from pgoutput_etl.types import ColumnType, Storage, ValueTextError
from pgoutput_etl.types.kernels.dispatch import UnsureError, load_cells

KeyHashes = npt.NDArray[np.uint64]

Interval = tuple[Any, Any]  # the least and the greatest value

Ranges = Mapping[int, tuple[Interval, ...]]  # by position of a key column; together they contain all of its values

# The most intervals per column. Each one is a further condition to evaluate for every file and row, so the gaps between
# them must be worth it: the minimum share of the whole range in each gap, and in all gaps together.
_INTERVALS, _LEAST_GAP, _LEAST_GAPS = 8, 0.01, 0.5

_FACTORS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)

_SHIFTS = np.array([30, 27, 31], np.uint64)


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """rows: row count. are_known: keys can be compared. are_unique: no two keys are equal. ranges: for each `ranged`
    key column, by position; empty unless keys are known."""

    rows: int
    are_known: bool
    are_unique: bool
    ranges: Ranges = field(default_factory=dict)


def ranged(shape: TableShape) -> tuple[int, ...]:
    """Key columns whose minimum and maximum let a MERGE skip files of a Delta table.

    Delta has statistics for their types, in the usual order; floats have NaN and -0. Text would also work, but the
    values in a MERGE condition appear in Spark's logs and in the table's history.
    """
    return tuple(i for i in shape.key if _has_range(shape.columns[i].type))


def _has_range(column_type: ColumnType) -> bool:
    arrow = column_type.arrow
    is_number = pa.types.is_integer(arrow) or pa.types.is_decimal(arrow)
    is_time = pa.types.is_date(arrow) or pa.types.is_timestamp(arrow)
    return column_type.storage is Storage.PLAIN and (is_number or is_time or column_type.name == "uuid")


def facts_of(events: pa.RecordBatch, shape: TableShape) -> tuple[KeyFacts, KeyHashes | None]:
    """Facts about INSERTs and the hashes of their keys; None instead of hashes if the key columns alone can't be
    compared."""
    hashes = hashes_of([events.column(f"c{i}") for i in shape.key], shape)
    if hashes is None or not len(hashes):
        return KeyFacts(events.num_rows, hashes is not None, hashes is not None), hashes
    return KeyFacts(events.num_rows, True, _are_distinct(hashes), ranges_of(events, shape)), hashes


def ranges_of(events: pa.RecordBatch, shape: TableShape) -> Ranges:
    """The key ranges of events of any kind."""
    if not events.num_rows:
        return {}
    return {i: intervals(events.column(f"c{i}")) for i in ranged(shape)}


def intervals(values: pa.Array | pa.ChunkedArray) -> tuple[Interval, ...]:
    """Splits integers, dates, times, and uuids at the largest gaps between adjacent values; other types get one
    interval."""
    in_order = pc.unique(values.drop_null()).sort()
    if not len(in_order):
        return ()
    numbers = _uuid_numbers(in_order) if pa.types.is_string(in_order.type) else _whole_numbers(in_order)
    if numbers is None:
        return interval(in_order[0].as_py(), in_order[-1].as_py())
    spots = (numbers - numbers[0]).astype(np.float64)  # modulo 2^64, so the difference is right
    bounds = joined_at_small_gaps(spots, spots)
    return tuple((in_order[first].as_py(), in_order[last].as_py()) for first, last in bounds)


def joined_at_small_gaps(starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> Sequence[tuple[int, int]]:
    """Joins ascending stretches of numbers, so that only the largest gaps remain. starts, ends: bounds of each stretch.
    Returns the indices of the first and last stretch in each joined part."""
    gaps, whole = starts[1:] - ends[:-1], ends[-1] - starts[0]
    largest = np.argsort(gaps, kind="stable")[-(_INTERVALS - 1) :]
    largest = np.sort(largest[gaps[largest] > max(1, _LEAST_GAP * whole)])
    if gaps[largest].sum() < _LEAST_GAPS * whole:
        largest = largest[:0]
    after: list[int] = largest.tolist()
    return list(zip([0, *(i + 1 for i in after)], [*after, len(ends) - 1], strict=True))


def interval(least: Any, greatest: Any) -> tuple[Interval, ...]:
    return () if least is None else ((least, greatest),)


UUID_PATTERN = "^[0-9a-f]{8}-[0-9a-f]{4}-"


def _uuid_numbers(uuids: pa.StringArray) -> KeyHashes | None:
    """The first 48 bits, in version 7 the creation time (RFC 9562); None if a text is not a uuid."""
    if not pc.all(pc.match_substring_regex(uuids, UUID_PATTERN)).as_py():
        return None
    digits = pc.replace_substring(pc.utf8_slice_codeunits(uuids, 0, 13), "-", "")
    return np.fromiter((int(text, 16) for text in digits.to_pylist()), np.uint64, len(digits))


def _are_distinct(hashes: KeyHashes) -> bool:
    in_order = np.sort(hashes)
    return not bool((in_order[1:] == in_order[:-1]).any())


def hash_schema(shape: TableShape) -> pa.Schema:
    """One row per bucket of keys. hashes: KeyHashes; NULL if keys can't be compared. l3, g3: lower and upper bound of
    c3 for these keys, and possibly for others."""
    return pa.schema([("bucket", pa.int64()), ("rows", pa.int64()), ("hashes", pa.binary()), *_limit_fields(shape)])


def fact_schema(shape: TableShape) -> pa.Schema:
    """KeyFacts of several buckets, and their hashes."""
    flags = [("are_known", pa.bool_()), ("are_unique", pa.bool_())]
    return pa.schema([("rows", pa.int64()), *flags, ("hashes", pa.binary()), *_limit_fields(shape)])


def _limit_fields(shape: TableShape) -> list[pa.Field]:
    return [pa.field(f"{side}{i}", shape.columns[i].type.arrow) for i in ranged(shape) for side in "lg"]


def hashed_keys_of(
    blocks: Iterable[Mapping[str, Any]], statuses: StatusLookup, window: Window, shape: TableShape, buckets: int
) -> Iterator[pa.RecordBatch]:
    """Rows of hash_schema from a table's blocks, which must contain only INSERTs. Equal keys are in the same bucket."""
    parts: list[KeyHashes] = []
    limits: dict[str, list[Any]] = {field.name: [] for field in _limit_fields(shape)}
    rows, are_known = 0, True
    for block in blocks:
        inserts = rows_in(block, statuses, window)
        rows += inserts.num_rows
        columns = _inserted_keys(inserts, shape) if are_known and inserts.num_rows else None
        hashes = None if columns is None else hashes_of(columns, shape)
        are_known &= hashes is not None or not inserts.num_rows
        if columns is not None and hashes is not None:
            parts.append(hashes)
            for i in ranged(shape):
                limit = pc.min_max(columns[shape.key.index(i)])
                limits[f"l{i}"].append(limit["min"])
                limits[f"g{i}"].append(limit["max"])
    if rows:
        yield from _by_bucket(parts if are_known else None, rows, limits, shape, buckets)


def _inserted_keys(rows: pa.RecordBatch, shape: TableShape) -> list[pa.Array] | None:
    """The key columns of INSERTs. None if a row has unchanged TOAST, which no server sends in an INSERT."""
    if jit.AVAILABLE:
        try:
            return _fast_keys(rows, shape)
        except (UnsureError, ValueTextError, OverflowError):
            pass
    events = pa.Table.from_batches(event_batches(rows, shape), shape.event_schema()).combine_chunks()
    if any(pc.any(events.column(f"u{i}")).as_py() for i in shape.toast):
        return None
    return [events.column(f"c{i}").combine_chunks() for i in shape.key]


def _fast_keys(rows: pa.RecordBatch, shape: TableShape) -> list[pa.Array]:
    check_versions(rows, shape)
    new = RawTuples.of(rows.column("new"))
    if bool((new.starts < 0).any()):
        raise UnsureError
    tuples = split_tuples(new, len(shape.relation.columns))
    if tuples.has_unchanged.any():
        raise UnsureError
    indices = np.arange(len(new), dtype=np.int32)
    return [load_cells(shape.columns[i].type, tuples.cells(i, indices)).array for i in shape.key]


def _by_bucket(
    parts: list[KeyHashes] | None, rows: int, limits: Mapping[str, list[Any]], shape: TableShape, buckets: int
) -> Iterator[pa.RecordBatch]:
    schema = hash_schema(shape)
    if parts is None:
        yield pa.RecordBatch.from_pylist([{"bucket": 0, "rows": rows}], schema)
        return
    hashes = np.concatenate(parts)
    bucket_of_hash = (hashes % np.uint64(buckets)).astype(np.int64)
    common = {name: _bound(name)(value.as_py() for value in values) for name, values in limits.items()}
    for bucket in np.unique(bucket_of_hash).tolist():
        own = hashes[bucket_of_hash == bucket]
        row = {"bucket": bucket, "rows": len(own), "hashes": own.tobytes(), **common}
        yield pa.RecordBatch.from_pylist([row], schema)


def facts_of_buckets(batches: Iterable[pa.RecordBatch], shape: TableShape) -> Iterator[pa.RecordBatch]:
    """One row of fact_schema from the hash_schema rows of complete buckets."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    if not rows:
        return
    parts = [row["hashes"] for row in rows]
    hashes = None if None in parts else b"".join(parts)
    are_unique = hashes is not None and _are_distinct(np.frombuffer(hashes, np.uint64))
    facts = {"rows": sum(row["rows"] for row in rows), "are_known": hashes is not None, "are_unique": are_unique}
    yield pa.RecordBatch.from_pylist([{**facts, "hashes": hashes, **_limits(rows, shape)}], fact_schema(shape))


def facts_of_rows(rows: Sequence[Mapping[str, Any]], shape: TableShape) -> KeyFacts:
    """The facts of a whole batch. rows: of fact_schema, without hashes."""
    limits = _limits(rows, shape)
    ranges = {i: interval(limits[f"l{i}"], limits[f"g{i}"]) for i in ranged(shape) if limits}
    are_known, are_unique = (all(row[flag] for row in rows) for flag in ("are_known", "are_unique"))
    return KeyFacts(sum(row["rows"] for row in rows), are_known, are_unique, ranges)


def have_any(hashes: pa.Array, others: KeyHashes) -> bool:
    """True if one of `others` is among the hashes in rows of fact_schema."""
    return any(bool(np.isin(others, np.frombuffer(part, np.uint64)).any()) for part in hashes.to_pylist())


def _limits(rows: Sequence[Mapping[str, Any]], shape: TableShape) -> dict[str, Any]:
    """The bounds of all rows; empty if those of any row are unknown."""
    names = [field.name for field in _limit_fields(shape)]
    if not rows or any(row[name] is None for row in rows for name in names):
        return {}
    return {name: _bound(name)(row[name] for row in rows) for name in names}


def _bound(name: str) -> Callable[[Iterable[Any]], Any]:
    return min if name[0] == "l" else max


def hashes_of(columns: Iterable[pa.Array], shape: TableShape) -> KeyHashes | None:
    """One hash per key. None if the key columns alone don't determine which keys are equal: a NULL may be an
    unrepresentable value, a float may be NaN or -0, and a VARIANT has several spellings."""
    if any(shape.columns[i].type.storage is not Storage.PLAIN for i in shape.key):
        return None
    hashes: KeyHashes | None = None
    for column in columns:
        part = None if column.null_count else _column_numbers(column)
        if part is None:
            return None
        hashes = _mixed(part) if hashes is None else _mixed(hashes * _FACTORS[0] + part)
    return hashes


def _column_numbers(column: pa.Array) -> KeyHashes | None:
    kind = column.type
    if pa.types.is_decimal128(kind):
        halves = np.frombuffer(column.buffers()[1], np.uint64)[2 * column.offset :][: 2 * len(column)]
        return _mixed(halves[::2]) + halves[1::2]
    if kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        return _byte_numbers(column.cast(pa.large_binary()))
    return _whole_numbers(column)


def _whole_numbers(column: pa.Array) -> KeyHashes | None:
    """The values' bits as int64, for integer-like types."""
    kind = column.type
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    if pa.types.is_boolean(kind) or pa.types.is_integer(column.type) or pa.types.is_timestamp(kind):
        numbers: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return numbers.view(np.uint64)
    return None


def _byte_numbers(column: pa.Array) -> KeyHashes:
    """A polynomial over the bytes, modulo 2^64."""
    _validity, offsets, content = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset :][: len(column) + 1]
    first, last = int(ends[0]), int(ends[-1])
    data = np.frombuffer(content, np.uint8)[first:last] if last > first else np.empty(0, np.uint8)
    ends = ends - first
    lengths = np.diff(ends)
    positions = np.arange(len(data)) - np.repeat(ends[:-1], lengths)
    powers = np.multiply.accumulate(np.repeat(_FACTORS[:1], int(lengths.max(initial=0)) + 1))
    sums = np.zeros(len(data) + 1, np.uint64)
    np.cumsum((data.astype(np.uint64) + np.uint64(1)) * powers[positions], out=sums[1:])
    return sums[ends[1:]] - sums[ends[:-1]] + lengths.astype(np.uint64)


def _mixed(numbers: KeyHashes) -> KeyHashes:
    """A bijection: the finalizer of the SplitMix64 generator."""
    mixed: KeyHashes = (numbers ^ (numbers >> _SHIFTS[0])) * _FACTORS[1]
    mixed = (mixed ^ (mixed >> _SHIFTS[1])) * _FACTORS[2]
    mixed ^= mixed >> _SHIFTS[2]
    return mixed
