"""The archive that decoders are compared on: one table of eight columns, length-prefixed, in one file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.corpora import Corpus, corpus
from benchmarks.landing_files import Block, Landed, interleaved, land
from benchmarks.typed_columns import BEGUN, TableFiles, decimals, instant, printed, random_texts
from benchmarks.wire_arrays import Column, Ints, Table, begins, commits, deletes, inserts, relation, updates
from pgoutput_etl.protocol.framing import Framing

TABLE = Table(
    16700,
    "orders",
    (
        Column("id", 23, is_key=True),
        Column("customer", 20),
        Column("name", 25),
        Column("address", 25),
        Column("amount", 1700, (12 << 16) + 2 + 4),
        Column("at", 1184),
        Column("paid", 16),
        Column("detail", 3802),
    ),
)
_INSERTS, _UPDATES, _DELETES = 100, 30, 5  # per transaction
_BLOCK = 500  # transactions
_LSN, _LSN_STEP, _XID = 0x6_0000_0000, 1 << 16, 700


def decoder_corpus(transactions: int) -> Corpus:
    """Transactions of 100 inserts, 30 updates (new tuple) and 5 deletes (key): 14,600 of them are 353 MB."""

    def generate(first: Path, second: Path, expected: Path) -> tuple[Landed, list[TableFiles]]:
        first.mkdir()
        expected.mkdir()
        return land(second, _blocks(transactions), Framing.LENGTH_PREFIXED), []

    return corpus("decoder", {"transactions": transactions}, generate)


def _blocks(transactions: int) -> Iterator[Block]:
    rng = np.random.default_rng(5)
    words = random_texts(rng, 20_000, 8, 19), random_texts(rng, 20_000, 13, 28), random_texts(rng, 1_000, 3, 5)
    for begin in range(0, transactions, _BLOCK):
        yield _block(rng, words, np.arange(begin, min(begin + _BLOCK, transactions)))


def _rows(rng: np.random.Generator, words: tuple[pa.Array, ...], ids: Ints) -> list[pa.Array]:
    size = len(ids)
    number = pa.array(rng.integers(0, 1000, size)).cast(pa.string())
    tags = [words[2].take(pa.array(rng.integers(0, len(words[2]), size))) for _ in range(2)]
    columns = [
        pa.array(ids, pa.int32()),
        pa.array(rng.integers(0, 10**15, size)),
        words[0].take(pa.array(rng.integers(0, len(words[0]), size))),
        words[1].take(pa.array(rng.integers(0, len(words[1]), size))),
        decimals(rng.integers(-(10**8), 10**9, size), 12, 2),
        instant(BEGUN + rng.integers(0, 10**14, size)),
        pa.array(rng.integers(0, 2, size).astype(bool)),
        pc.binary_join_element_wise('{"qty": ', number, ', "tags": ["', *tags[:1], '", "', *tags[1:], '"]}', ""),
    ]
    return [printed(column) for column in columns]


def _block(rng: np.random.Generator, words: tuple[pa.Array, ...], transactions: Ints) -> Block:
    """Builds the messages kind by kind, and then puts them into transaction order."""
    count = len(transactions)
    lsns, times = _LSN + _LSN_STEP * (transactions + 1), BEGUN + 1_000_000 * transactions
    first_id = 1 + transactions[0] * _INSERTS
    ids = first_id + np.arange(count * _INSERTS)
    updated = rng.choice(ids, count * _UPDATES)
    keys = [pa.array(rng.choice(ids, count * _DELETES)).cast(pa.string()), *[None] * (len(TABLE.columns) - 1)]
    kinds = [
        begins(lsns, times, _XID + transactions),
        inserts(TABLE, _rows(rng, words, ids), len(ids)),
        updates(TABLE, _rows(rng, words, updated), len(updated)),
        deletes(TABLE, keys, count * _DELETES),
        commits(lsns, times),
    ]
    parts, start = [], 0
    for per_transaction in (1, _INSERTS, _UPDATES, _DELETES, 1):
        parts.append(start + np.arange(count * per_transaction).reshape(count, per_transaction))
        start += count * per_transaction
    order = np.concatenate(parts, axis=1).ravel()
    if transactions[0] == 0:
        kinds.append(pa.array([relation(TABLE)], pa.binary()))
        order = np.r_[order[:1], start, order[1:]]
    return Block(interleaved(kinds, order), np.zeros(len(order), np.int64))
