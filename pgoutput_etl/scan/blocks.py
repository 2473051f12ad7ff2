"""Packs thousands of message rows into a block: one Spark row.

The rows of a block have the same kind and, if they are changes, the same relation; they may come from several files.
`head` has their positions and transactions, and `tuples` has the bytes that are only needed when a table is written.
Both are Arrow IPC, with integers as narrow as possible, and with a value that all rows share stored only once. The
tuples of some files are not in the block: `landed` names these files, and landed_tuples reads the tuples from them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.scan.landed_tuples import LOCATED_BY, TupleFile, landed_tuples
from pgoutput_etl.scan.message_row import CHANGE_TAGS, DAMAGE_TAG, HEAD, LOGICAL_TAG, MESSAGE_SCHEMA, one_letter

BLOCK_ROWS = 1 << 16

BLOCK_BYTES = 1 << 19  # Java's collector treats values of 1 MB and more separately, in heaps of some GB

SPLIT_ROWS = 1 << 13

PENDING_BYTES = 1 << 26  # limit for all blocks that a task has not yielded yet

_ROW_BYTES = 64  # approximate size of a row without its tuples

BLOCK_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("relation", pa.int64()),  # the OID, for changes
        ("rows", pa.int64()),
        ("head", pa.binary()),
        ("tuples", pa.binary()),
        ("landed", pa.string()),  # JSON: TupleFile by file number; NULL if all tuples are in the block
        ("size", pa.int64()),  # approximate bytes of all tuples
    ]
)

UNPACKED_BY = ("rows", "head", "tuples", "landed")

_IN_TUPLES = ("old", "new", "body")

_HEAD_NAMES = tuple(name for name in MESSAGE_SCHEMA.names if name not in _IN_TUPLES)

_UNSIGNED = ((1 << 8, pa.uint8()), (1 << 16, pa.uint16()), (1 << 32, pa.uint32()))


class BlockKind(Enum):
    """How a block's rows are used."""

    CHANGE = "change"
    COMMIT = "commit"  # of fragments that begin in their files: as many rows as there are small transactions
    DAMAGE = "damage"
    CONTROL = "control"  # for the driver: the other control messages, and a file's summary or error
    LOGICAL = "logical"  # logical decoding Messages
    WAITING = "waiting"  # changes of transactions that earlier batches left open
    WAITING_LOGICAL = "waiting_logical"  # Messages of such transactions


_Key = tuple[BlockKind, int | None]  # the kind of a block, and the relation of its changes

_KINDS = tuple(BlockKind)

_COMMIT = ord("C")

# By tag. Texts of several letters count as 0, because a file's summary or error is for the driver.
_KIND_OF_TAG = np.full(256, _KINDS.index(BlockKind.CONTROL), np.uint16)
_KIND_OF_TAG[[ord(tag) for tag in CHANGE_TAGS]] = _KINDS.index(BlockKind.CHANGE)
_KIND_OF_TAG[_COMMIT] = _KINDS.index(BlockKind.COMMIT)
_KIND_OF_TAG[ord(LOGICAL_TAG)] = _KINDS.index(BlockKind.LOGICAL)


@dataclass(slots=True)
class _Pending:
    """Rows for the next block of one key."""

    parts: list[pa.Table | pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    def add(self, table: pa.Table | pa.RecordBatch) -> None:
        self.parts.append(table)
        self.rows += table.num_rows
        self.size += _size(table)


@dataclass(slots=True)
class Packer:
    """Collects message rows and yields blocks once they are large enough."""

    kind_of_changes: BlockKind = BlockKind.CHANGE
    landed: dict[int, TupleFile] = field(default_factory=dict)  # files whose rows have no tuples, by file number
    _unsplit: _Pending = field(default_factory=_Pending)
    _pending: dict[_Key, _Pending] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._unsplit.add(batch)
        if self._unsplit.rows >= SPLIT_ROWS or self._unsplit.size >= BLOCK_BYTES:
            yield from self._split()

    def rest(self) -> Iterator[pa.RecordBatch]:
        yield from self._split()
        for key in list(self._pending):
            yield self._pack(key)

    def _split(self) -> Iterator[pa.RecordBatch]:
        """Splits rows by key; many small files at once, because a few rows take as long as thousands."""
        if not self._unsplit.parts:
            return
        rows = pa.Table.from_batches(self._unsplit.parts).combine_chunks()
        self._unsplit = _Pending()
        for key, table in self._by_kind(rows):
            pending = self._pending.setdefault(key, _Pending())
            pending.add(table)
            if pending.rows >= BLOCK_ROWS or pending.size >= BLOCK_BYTES:
                yield self._pack(key)
        while sum(pending.size for pending in self._pending.values()) >= PENDING_BYTES:
            yield self._pack(max(self._pending, key=lambda key: self._pending[key].size))

    def _pack(self, key: _Key) -> pa.RecordBatch:
        return packed(pa.concat_tables(self._pending.pop(key).parts), *key, self.landed)

    def _by_kind(self, rows: pa.Table) -> Iterator[tuple[_Key, pa.Table]]:
        relation, codes = self._group_codes(rows)
        if (codes == codes[0]).all():
            yield self._key(int(codes[0]), relation), rows
            return
        order = np.argsort(codes, kind="stable")
        in_order, sorted_rows = codes[order], rows.take(pa.array(order))
        begins = np.flatnonzero(np.diff(in_order, prepend=-1)).tolist()
        for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
            yield self._key(int(in_order[begin]), relation), sorted_rows.slice(begin, end - begin)

    def _group_codes(self, rows: pa.Table) -> tuple[pa.Array, npt.NDArray[np.uint16]]:
        """The number of each row's key: the index of its kind or, for a change, of its relation, counted after all
        kinds. Also returns the relations."""
        tag, unit = one_letter(rows.column("tag").chunk(0)), rows.column("unit").to_numpy()
        codes = _KIND_OF_TAG[tag]
        codes[(tag == _COMMIT) & (unit == HEAD)] = _KINDS.index(BlockKind.CONTROL)
        if not tag.all():
            codes[pc.equal(rows.column("tag"), DAMAGE_TAG).to_numpy()] = _KINDS.index(BlockKind.DAMAGE)
        is_change = codes == _KINDS.index(BlockKind.CHANGE)
        relations = rows.column("relation").chunk(0).dictionary_encode()
        numbers = relations.indices.fill_null(0).to_numpy()
        return relations.dictionary, np.where(is_change, numbers + len(_KINDS), codes).astype(np.uint16)

    def _key(self, code: int, relations: pa.Array) -> _Key:
        if code >= len(_KINDS):
            return self.kind_of_changes, relations[code - len(_KINDS)].as_py()
        kind = _KINDS[code]
        if kind is BlockKind.LOGICAL and self.kind_of_changes is not BlockKind.CHANGE:
            return BlockKind.WAITING_LOGICAL, None
        return kind, None


def _size(rows: pa.RecordBatch | pa.Table) -> int:
    count = rows.num_rows
    columns = (rows.column(name) for name in _IN_TUPLES)
    size: int = count * _ROW_BYTES + sum(column.nbytes for column in columns if column.null_count < count)
    return size


def packed(
    rows: pa.Table, kind: BlockKind, relation: int | None = None, landed: Mapping[int, TupleFile] = MappingProxyType({})
) -> pa.RecordBatch:
    """One block of rows of MESSAGE_SCHEMA. landed: files whose rows have no tuples, by file number."""
    head = _serialized({name: rows.column(name) for name in _HEAD_NAMES})
    bodies = [name for name in _IN_TUPLES if not (kind is BlockKind.COMMIT and name == "body")]
    tuples = _serialized({name: rows.column(name) for name in bodies})
    files, size = None, len(tuples)
    if relation is not None and landed:
        own = [number for number in pc.unique(rows.column("file")).to_pylist() if number in landed]
        files = json.dumps({number: asdict(landed[number]) for number in own}) if own else None
        size += pc.sum(pc.subtract(rows.column("end"), rows.column("offset"))).as_py() if own else 0
    columns = [[kind.value], [relation], [rows.num_rows], [head], [tuples], [files], [size]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, BLOCK_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=BLOCK_SCHEMA)


def unpacked(
    block: Mapping[str, Any], names: Iterable[str] = MESSAGE_SCHEMA.names, chosen: pa.Array | None = None
) -> pa.RecordBatch:
    """The columns `names` of a block's rows. block: with UNPACKED_BY, or only `rows` and `head` if they suffice.
    chosen: the numbers of the rows; all by default. Raises RereadError."""
    schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in names])
    files = block["landed"] if "new" in schema.names else None
    wanted = {*schema.names, *(() if files is None else LOCATED_BY)}
    columns: dict[str, pa.Array] = {}
    for part, part_names in (("head", _HEAD_NAMES), ("tuples", _IN_TUPLES)):
        if not wanted.isdisjoint(part_names):
            columns |= _deserialized(block[part], block["rows"], wanted)
    count = block["rows"]
    if chosen is not None:
        columns, count = {name: array.take(chosen) for name, array in columns.items()}, len(chosen)

    def column(name: str) -> pa.Array:
        return columns[name] if name in columns else pa.nulls(count, MESSAGE_SCHEMA.field(name).type)

    if files is not None:
        located = pa.RecordBatch.from_arrays([column(name) for name in LOCATED_BY], list(LOCATED_BY))
        old, new = landed_tuples(located, {int(n): TupleFile(**file) for n, file in json.loads(files).items()})
        for name, array in (("old", old), ("new", new)):
            columns[name] = pc.coalesce(columns[name], array) if name in columns else array
    return pa.RecordBatch.from_arrays([column(name) for name in schema.names], schema=schema)


def _serialized(columns: Mapping[str, pa.ChunkedArray]) -> bytes:
    """Arrow IPC without the columns that are entirely NULL. Its metadata has the values that all rows share in `same`,
    and the numbers that were subtracted from columns in `from`."""
    stored: dict[str, pa.Array] = {}
    same: dict[str, Any] = {}
    base: dict[str, int] = {}
    for name, column in columns.items():
        if column.null_count == len(column):
            continue
        if pa.types.is_integer(column.type):
            least, most = pc.min_max(column).as_py().values()
            if least == most and not column.null_count:
                same[name] = least
                continue
            narrow = next((kind for size, kind in _UNSIGNED if most - least < size), None)
            if narrow is not None:
                stored[name], base[name] = _narrowed(column, least, narrow), least
                continue
        array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        if pa.types.is_string(array.type):
            array = pc.dictionary_encode(array)
            if len(array.dictionary) == 1 and not array.null_count:
                same[name] = array.dictionary[0].as_py()
                continue
        stored[name] = array
    batch = pa.RecordBatch.from_arrays(list(stored.values()), names=list(stored))
    sink = pa.BufferOutputStream()
    metadata = {"same": json.dumps(same), "from": json.dumps(base)}
    with pa.ipc.new_stream(sink, batch.schema.with_metadata(metadata)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _narrowed(column: pa.ChunkedArray, least: int, narrow: pa.DataType) -> pa.Array:
    """The numbers, minus the smallest one, in a narrower type."""
    if column.null_count:
        return pc.subtract(column.combine_chunks().cast(pa.int64()), least).cast(narrow)
    numbers = np.empty(len(column), narrow.to_pandas_dtype())
    at = 0
    for chunk in column.chunks:
        np.subtract(chunk.to_numpy(), least, out=numbers[at : at + len(chunk)], casting="unsafe")
        at += len(chunk)
    return pa.array(numbers)


def _deserialized(data: pa.Buffer | bytes, rows: int, names: Collection[str]) -> dict[str, pa.Array]:
    with pa.ipc.open_stream(data) as reader:
        metadata = reader.schema.metadata
        batch = reader.read_next_batch()
    same, base = json.loads(metadata[b"same"]), json.loads(metadata[b"from"])
    columns = {
        name: pa.repeat(pa.scalar(value, MESSAGE_SCHEMA.field(name).type), rows)
        for name, value in same.items()
        if name in names
    }
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name not in names:
            continue
        kind = MESSAGE_SCHEMA.field(name).type
        if name in base and not column.null_count and kind == pa.int64():
            column = pa.array(np.add(column.to_numpy(), base[name], dtype=np.int64))
        elif name in base:
            column = pc.add(column.cast(pa.int64()), base[name])
        columns[name] = column if column.type == kind else column.cast(kind)
    return columns
