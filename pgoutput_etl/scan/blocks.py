"""Message rows in few values: what Spark carries is a block of thousands of rows, not each of them.

A block holds rows of one kind, and of one relation if they are changes, of as many files as it takes. `head` says where
each row stands and what it belongs to, `tuples` has the bytes that are only looked at when a table is written; both are
Arrow IPC. Whole numbers are as narrow as they can be, and what is the same in all rows is there once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.scan.message_row import CHANGE_TAGS, DAMAGE_TAG, HEAD, LOGICAL_TAG, MESSAGE_SCHEMA

BLOCK_ROWS = 1 << 16

BLOCK_BYTES = 1 << 19  # Java's collector sets values of 1 MB and more apart, in heaps of some GB

SPLIT_ROWS = 1 << 13

PENDING_BYTES = 1 << 26  # of all blocks that one task has not handed over yet

_ROW_BYTES = 64  # what a row takes beside its tuples, about


BLOCK_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("relation", pa.int64()),  # OID, of changes
        ("rows", pa.int64()),
        ("head", pa.binary()),
        ("tuples", pa.binary()),
    ]
)

_IN_TUPLES = ("old", "new", "body")

_HEAD_NAMES = tuple(name for name in MESSAGE_SCHEMA.names if name not in _IN_TUPLES)

_UNSIGNED = ((1 << 8, pa.uint8()), (1 << 16, pa.uint16()), (1 << 32, pa.uint32()))


class BlockKind(Enum):
    """What rows are for."""

    CHANGE = "change"
    COMMIT = "commit"  # of a unit that begins in its file: as many as there are small transactions
    DAMAGE = "damage"
    CONTROL = "control"  # the driver's: the other control messages, and a file's summary or error
    LOGICAL = "logical"  # logical decoding Messages
    WAITING = "waiting"  # changes of transactions that earlier batches left open
    WAITING_LOGICAL = "waiting_logical"  # Messages of such


@dataclass(slots=True)
class Packer:
    """Collects message rows, and gives blocks as they become large enough."""

    kind_of_changes: BlockKind = BlockKind.CHANGE
    _unsplit: list[pa.RecordBatch] = field(default_factory=list)
    _unsplit_rows: int = 0
    _unsplit_size: int = 0
    _pending: dict[tuple[BlockKind, int | None], list[pa.Table]] = field(default_factory=dict)
    _sizes: dict[tuple[BlockKind, int | None], int] = field(default_factory=dict)
    _rows: dict[tuple[BlockKind, int | None], int] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._unsplit.append(batch)
        self._unsplit_rows += batch.num_rows
        self._unsplit_size += _size(batch)
        if self._unsplit_rows >= SPLIT_ROWS or self._unsplit_size >= BLOCK_BYTES:
            yield from self._split()

    def rest(self) -> Iterator[pa.RecordBatch]:
        yield from self._split()
        for key in list(self._pending):
            yield self._take(key)

    def _split(self) -> Iterator[pa.RecordBatch]:
        """Many small files are split together: it takes as long for a few rows as for thousands."""
        if not self._unsplit:
            return
        together = pa.Table.from_batches(self._unsplit).combine_chunks()
        self._unsplit, self._unsplit_rows, self._unsplit_size = [], 0, 0
        for key, rows in self._by_kind(together):
            self._pending.setdefault(key, []).append(rows)
            self._rows[key] = self._rows.get(key, 0) + rows.num_rows
            self._sizes[key] = self._sizes.get(key, 0) + _size(rows)
            if self._rows[key] >= BLOCK_ROWS or self._sizes[key] >= BLOCK_BYTES:
                yield self._take(key)
        while sum(self._sizes.values()) >= PENDING_BYTES:
            yield self._take(max(self._sizes, key=lambda key: self._sizes[key]))

    def _take(self, key: tuple[BlockKind, int | None]) -> pa.RecordBatch:
        rows = pa.concat_tables(self._pending.pop(key)).combine_chunks()
        del self._rows[key], self._sizes[key]
        return packed(rows, *key)

    def _by_kind(self, batch: pa.Table) -> Iterator[tuple[tuple[BlockKind, int | None], pa.Table]]:
        tag = batch.column("tag")
        is_change = pc.is_in(tag, pa.array(CHANGE_TAGS))
        if pc.all(is_change).as_py():
            yield from self._by_relation(batch)
            return
        is_commit = pc.and_(pc.equal(tag, "C"), pc.not_equal(batch.column("unit"), HEAD))
        is_damage = pc.equal(tag, DAMAGE_TAG)
        is_logical = pc.equal(tag, LOGICAL_TAG)
        is_other = pc.invert(pc.or_(pc.or_(is_change, is_commit), pc.or_(is_damage, is_logical)))
        logical = BlockKind.LOGICAL if self.kind_of_changes is BlockKind.CHANGE else BlockKind.WAITING_LOGICAL
        of_kinds = (
            (BlockKind.COMMIT, is_commit),
            (BlockKind.DAMAGE, is_damage),
            (logical, is_logical),
            (BlockKind.CONTROL, is_other),
        )
        for kind, chosen in of_kinds:
            rows = batch.filter(chosen)
            if rows.num_rows:
                yield (kind, None), rows
        changes = batch.filter(is_change)
        if changes.num_rows:
            yield from self._by_relation(changes)

    def _by_relation(self, changes: pa.Table) -> Iterator[tuple[tuple[BlockKind, int | None], pa.Table]]:
        relation = changes.column("relation").to_numpy()
        if relation[0] == relation[-1] and (relation == relation[0]).all():
            yield (self.kind_of_changes, int(relation[0])), changes
            return
        order = np.argsort(relation, kind="stable")
        in_order = relation[order]
        begins = np.flatnonzero(np.diff(in_order, prepend=in_order[0] - 1))
        ends = [*begins[1:].tolist(), len(in_order)]
        for begin, end in zip(begins.tolist(), ends, strict=True):
            rows = changes.take(pa.array(order[begin:end]))
            yield (self.kind_of_changes, int(in_order[begin])), rows


def _size(rows: pa.RecordBatch | pa.Table) -> int:
    size: int = rows.num_rows * _ROW_BYTES + sum(rows.column(name).nbytes for name in _IN_TUPLES)
    return size


def packed(rows: pa.Table, kind: BlockKind, relation: int | None = None) -> pa.RecordBatch:
    """One block, of rows of MESSAGE_SCHEMA."""
    head = _serialized({name: rows.column(name) for name in _HEAD_NAMES})
    bodies = [name for name in _IN_TUPLES if not (kind is BlockKind.COMMIT and name == "body")]
    tuples = _serialized({name: rows.column(name) for name in bodies})
    columns = [[kind.value], [relation], [rows.num_rows], [head], [tuples]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, BLOCK_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=BLOCK_SCHEMA)


def unpacked(block: Mapping[str, Any], names: Iterable[str] = MESSAGE_SCHEMA.names) -> pa.RecordBatch:
    """A block's rows, or some columns of them. `block`: `rows`, and `head` or `tuples` as far as they are asked for."""
    wanted = list(names)
    found: dict[str, pa.Array] = {}
    if any(name in _HEAD_NAMES for name in wanted):
        found |= _deserialized(block["head"], block["rows"], wanted)
    if any(name in _IN_TUPLES for name in wanted):
        found |= _deserialized(block["tuples"], block["rows"], wanted)
    schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in wanted])
    arrays = [found[name] if name in found else pa.nulls(block["rows"], schema.field(name).type) for name in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _serialized(columns: Mapping[str, pa.ChunkedArray]) -> bytes:
    """`same` has what all rows share, `from` what was subtracted from a column's numbers; what is not there is NULL."""
    kept: dict[str, pa.Array] = {}
    same: dict[str, Any] = {}
    base: dict[str, int] = {}
    for name, column in columns.items():
        array = pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0)
        if array.null_count == len(array):
            continue
        if pa.types.is_integer(array.type):
            narrowed = _narrowed(array)
            if isinstance(narrowed, int):
                same[name] = narrowed
            elif narrowed is not None:
                kept[name], base[name] = narrowed
            else:
                kept[name] = array
        elif pa.types.is_string(array.type):
            words = pc.dictionary_encode(array)
            if len(words.dictionary) == 1 and not array.null_count:
                same[name] = words.dictionary[0].as_py()
            else:
                kept[name] = words
        else:
            kept[name] = array
    told = {"same": json.dumps(same), "from": json.dumps(base)}
    batch = pa.RecordBatch.from_arrays(list(kept.values()), names=list(kept))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema.with_metadata(told)) as writer:
        writer.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _narrowed(array: pa.Array) -> tuple[pa.Array, int] | int | None:
    """The numbers from the least on; the number itself if all are the same; None if they are too far apart."""
    limits = pc.min_max(array).as_py()
    least, most = limits["min"], limits["max"]
    if least == most and not array.null_count:
        found: int = least
        return found
    for size, kind in _UNSIGNED:
        if most - least < size:
            return pc.subtract(array.cast(pa.int64()), least).cast(kind), least
    return None


def _deserialized(data: pa.Buffer | bytes, rows: int, wanted: list[str]) -> dict[str, pa.Array]:
    with pa.ipc.open_stream(data) as reader:
        metadata = reader.schema.metadata
        batch = reader.read_next_batch()
    same, base = json.loads(metadata[b"same"]), json.loads(metadata[b"from"])
    found: dict[str, pa.Array] = {}
    for name in wanted:
        if name in same:
            found[name] = pa.repeat(pa.scalar(same[name], MESSAGE_SCHEMA.field(name).type), rows)
        elif name in batch.schema.names:
            column = batch.column(name)
            if name in base:
                column = pc.add(column.cast(pa.int64()), base[name])
            found[name] = (
                column
                if column.type == MESSAGE_SCHEMA.field(name).type
                else column.cast(MESSAGE_SCHEMA.field(name).type)
            )
    return found
