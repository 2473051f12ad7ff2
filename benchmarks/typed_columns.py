"""Columns as Delta stores them and as PostgreSQL prints them, and the tables expected after a batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.wire_arrays import Ints

_EPOCH = 946_684_800_000_000  # PostgreSQL's, 2000-01-01, in microseconds since 1970
BEGUN = 820_000_000_000_000  # when the archives begin, in PostgreSQL's microseconds
_ROW_GROUP = 100_000
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_STAMPS = ("_pg_commit_lsn", "_pg_commit_ts", "_pg_xid", "_pg_unrepresentable")


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The expected contents of one table, as Parquet files.

    net: the batch's net changes, one row per key, with `_delete`. kept: the rows that the batch leaves unchanged, or
    None. inserts_only: `net` has only new rows.
    """

    schema: str
    name: str
    key: tuple[str, ...]
    net: str
    kept: str | None
    net_rows: int
    final_rows: int
    inserts_only: bool


def wall_clock(micros: Ints) -> pa.Array:
    """PostgreSQL's microseconds as TIMESTAMP_NTZ."""
    return pa.array(micros + _EPOCH, pa.timestamp("us"))


def instant(micros: Ints) -> pa.Array:
    """PostgreSQL's microseconds as TIMESTAMP."""
    return pa.array(micros + _EPOCH, _TIMESTAMP)


def decimals(unscaled: Ints, precision: int, scale: int) -> pa.Array:
    halves = np.empty((len(unscaled), 2), np.int64)
    halves[:, 0], halves[:, 1] = unscaled, unscaled >> 63
    return pa.Array.from_buffers(pa.decimal128(precision, scale), len(unscaled), [None, pa.py_buffer(halves)])


def printed(column: pa.Array) -> pa.Array:
    """As a walsender prints it, with DateStyle ISO, in UTC. Floats must have few digits after the point."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        naive = column.cast(pa.timestamp("us")).cast(pa.string())
        short = pc.utf8_rtrim(pc.utf8_rtrim(naive, "0"), ".")
        return short if kind.tz is None else pc.binary_join_element_wise(short, "+00", "")
    if pa.types.is_boolean(kind):
        return pc.if_else(column, "t", "f")
    return column.cast(pa.string())


def stamps(lsns: Ints, times: Ints, xids: Ints) -> dict[str, pa.Array]:
    """The columns that a target has after the table's own."""
    columns = [pa.array(lsns, pa.int64()), instant(times), pa.array(xids, pa.int64())]
    columns.append(pa.nulls(len(lsns), pa.map_(pa.string(), pa.string())))
    return dict(zip(_STAMPS, columns, strict=True))


def write_expected(
    folder: Path,
    schema: str,
    name: str,
    key: tuple[str, ...],
    final: pa.Table,
    in_net: npt.NDArray[np.bool_],
    deleted: pa.Table | None = None,
    inserts_only: bool = False,
) -> TableFiles:
    """final: the whole table after the batch, with metadata columns. in_net: marks its rows that the batch wrote.
    deleted: the keys of deleted rows, with NULL in the other columns."""
    folder.mkdir(parents=True, exist_ok=True)
    net = final.filter(pa.array(in_net))
    net = net.append_column("_delete", pa.repeat(pa.scalar(False), net.num_rows))
    if deleted is not None:
        rows = deleted.append_column("_delete", pa.repeat(pa.scalar(True), deleted.num_rows))
        net = pa.concat_tables([net, rows.select(net.column_names).cast(net.schema)])
    pq.write_table(net, folder / f"{name}.net.parquet", row_group_size=_ROW_GROUP)
    kept = None
    if not in_net.all():
        kept = str(folder / f"{name}.kept.parquet")
        pq.write_table(final.filter(pa.array(~in_net)), kept, row_group_size=_ROW_GROUP)
    net_path = str(folder / f"{name}.net.parquet")
    return TableFiles(schema, name, key, net_path, kept, net.num_rows, final.num_rows, inserts_only)


def random_texts(rng: np.random.Generator, count: int, shortest: int, longest: int) -> pa.Array:
    """Random words of lowercase letters, with lengths from `shortest` to `longest`."""
    lengths = rng.integers(shortest, longest + 1, count)
    offsets = np.r_[0, np.cumsum(lengths)].astype(np.int32)
    letters = rng.integers(ord("a"), ord("z") + 1, int(offsets[-1]), dtype=np.uint8)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))
