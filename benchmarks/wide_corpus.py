"""Inserts into one table of 60 columns of all common types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.corpora import Corpus, corpus
from benchmarks.landing_files import Block, Landed, even_cuts, interleaved, land
from benchmarks.typed_columns import (
    BEGUN,
    TableFiles,
    decimals,
    instant,
    printed,
    random_texts,
    stamps,
    wall_clock,
)
from benchmarks.wire_arrays import Column, Ints, Table, begins, commits, inserts, relation
from pgoutput_etl.protocol.framing import Framing

# By type: its OID, its modifier, and the number of columns.
_KINDS = {
    "int4": (23, -1, 10),
    "int8": (20, -1, 6),
    "int2": (21, -1, 4),
    "float8": (701, -1, 6),
    "numeric": (1700, (12 << 16) + 2 + 4, 8),
    "bool": (16, -1, 4),
    "date": (1082, -1, 4),
    "timestamptz": (1184, -1, 5),
    "timestamp": (1114, -1, 4),
    "text": (25, -1, 6),
    "uuid": (2950, -1, 1),
    "jsonb": (3802, -1, 1),
}
_COLUMNS = [f"{kind}_{i}" for kind, (_, _, count) in _KINDS.items() for i in range(count)]
_TABLE = Table(
    16500,
    "wide",
    (
        Column("id", 20, is_key=True),
        *(Column(name, *_KINDS[name.partition("_")[0]][:2]) for name in _COLUMNS),
    ),
)
_PER_TRANSACTION, _BLOCK = 1000, 20_000  # rows
_LSN, _LSN_STEP, _XID = 0x2_0000_0000, 1 << 20, 5000
_FIRST_NIGHT = 10_000


def wide(rows: int, files: int) -> Corpus:
    """About 1,050 bytes per row. The first night inserts 10,000 rows."""

    def generate(first: Path, second: Path, expected: Path) -> tuple[Landed, list[TableFiles]]:
        expected.mkdir()
        kept, net = expected / "wide.kept.parquet", expected / "wide.net.parquet"
        land(first, _blocks(0, _FIRST_NIGHT, kept, False), Framing.COPYDATA)
        messages = rows + 2 * -(-rows // _PER_TRANSACTION) + 1
        blocks = _blocks(_FIRST_NIGHT, _FIRST_NIGHT + rows, net, True)
        landed = land(second, blocks, Framing.COPYDATA, even_cuts(messages, files))
        return landed, [TableFiles("public", "wide", ("id",), str(net), str(kept), rows, rows + _FIRST_NIGHT, True)]

    return corpus("wide", {"rows": rows, "files": files}, generate)


@dataclass(frozen=True, slots=True)
class _Pools:
    """The texts that columns draw from."""

    words: pa.Array
    uuids: pa.Array

    @classmethod
    def drawn(cls) -> _Pools:
        rng = np.random.default_rng(1)
        digits = [rng.bytes(16).hex() for _ in range(20_000)]
        uuids = [f"{d[:8]}-{d[8:12]}-{d[12:16]}-{d[16:20]}-{d[20:]}" for d in digits]
        return cls(random_texts(rng, 50_000, 4, 26), pa.array(uuids))


def _blocks(begin: int, end: int, expected: Path, is_net: bool) -> Iterator[Block]:
    """Rows [begin, end), which are also written to `expected`."""
    pools = _Pools.drawn()
    writer: pq.ParquetWriter | None = None
    for at in range(begin, end, _BLOCK):
        size = min(_BLOCK, end - at)
        rows = _rows(np.arange(at, at + size), pools)
        transaction = np.arange(at, at + size) // _PER_TRANSACTION
        lsns, times, xids = (column(transaction) for column in (_lsn, _time, _xid))
        table = pa.table({**rows, **stamps(lsns, times, xids)})
        if is_net:
            table = table.append_column("_delete", pa.repeat(pa.scalar(False), size))
        writer = writer or pq.ParquetWriter(expected, table.schema)
        writer.write_table(table)
        yield _block(rows, size, transaction, at == begin)
    if writer is not None:
        writer.close()


def _lsn(transaction: Ints) -> Ints:
    return _LSN + _LSN_STEP * (transaction + 1)


def _time(transaction: Ints) -> Ints:
    return BEGUN + 250_000 * transaction


def _xid(transaction: Ints) -> Ints:
    return _XID + transaction


def _block(rows: dict[str, pa.Array], size: int, transaction: Ints, connects: bool) -> Block:
    changes = inserts(_TABLE, [printed(column) for column in rows.values()], size)
    numbers = np.unique(transaction)
    count = len(numbers)
    lsns, times, xids = (column(numbers) for column in (_lsn, _time, _xid))
    kinds = [changes, begins(lsns, times, xids), commits(lsns, times), pa.array([relation(_TABLE)], pa.binary())]
    # By transaction: Begin, Relation, rows, Commit.
    belongs = np.r_[transaction, numbers, numbers, numbers[:1]]
    stage = np.r_[np.full(size, 2), np.zeros(count, int), np.full(count, 3), 1]
    order = np.lexsort((stage, belongs))
    order = order if connects else order[order != size + 2 * count]
    return Block(interleaved(kinds, order), _lsn(belongs[order] - 1) + 64 * (1 + stage[order]))


def _rows(ids: Ints, pools: _Pools) -> dict[str, pa.Array]:
    rng = np.random.default_rng([2, int(ids[0])])
    rows = {"id": pa.array(ids, pa.int64())}
    for name in _COLUMNS:
        rows[name] = _values(name.partition("_")[0], rng, len(ids), pools)
    return rows


def _values(kind: str, rng: np.random.Generator, size: int, pools: _Pools) -> pa.Array:
    numbers = rng.integers(-(10**9), 10**9, size)
    match kind:
        case "int4":
            return pa.array(numbers, pa.int32())
        case "int8":
            return pa.array(numbers * 1_000_003, pa.int64())
        case "int2":
            return pa.array(numbers >> 16, pa.int16())
        case "float8":
            return pa.array(np.floor(numbers / 1e4) + 0.125)
        case "numeric":
            return decimals(numbers * 7, 12, 2)
        case "bool":
            return pa.array(numbers > 0)
        case "date":
            return pa.array((10_000 + numbers // 500_000).astype(np.int32), pa.date32())
        case "timestamptz":
            return instant(BEGUN + 100_000 * numbers)
        case "timestamp":
            return wall_clock(BEGUN + 100_003 * numbers)
        case "text":
            words = pools.words.take(pa.array(numbers % len(pools.words)))
            return pc.if_else(pa.array(numbers % 10 == 0), pa.scalar(None, pa.string()), words)
        case "uuid":
            return pools.uuids.take(pa.array(numbers % len(pools.uuids)))
        case _:
            words = pools.words.take(pa.array(numbers % len(pools.words)))
            return pc.binary_join_element_wise(
                '{"n": ', pa.array(numbers).cast(pa.string()), ', "w": "', words, '"}', ""
            )
