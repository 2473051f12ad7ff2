"""Writes small tables on the driver: the files of one are read, merged with the net changes, and written by Arrow, and
committed without a Spark job. So are the first rows of a new table.

Each table takes milliseconds of Python instead of several plans of Spark. The result is that of the MERGE: the same
rows, the same counts in the table's history. Whatever this module doesn't know about a table, a feature, a type, or a
value, leaves the table to Spark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import DataType, MapType, StringType, StructField, StructType

from pgoutput_etl.changes.compaction import Integers, key_codes
from pgoutput_etl.changes.events import MOVED_IN
from pgoutput_etl.changes.key_chains import PRESUMING
from pgoutput_etl.load.commit import TargetRows, WriteResult, written
from pgoutput_etl.load.file_statistics import INDEXED_COLUMNS, statistics_of
from pgoutput_etl.load.rewrite import TRACKED
from pgoutput_etl.load.table_writer import TableCommit, properties_of_new
from pgoutput_etl.load.target_columns import has_two_forms
from pgoutput_etl.schema.table_shape import TIMESTAMP, TableShape
from pgoutput_etl.spark.arrow_types import spark_type
from pgoutput_etl.spark.delta_write import DeltaWrite, open_new, open_write
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.targets.modes import METADATA_COLUMNS, UNREPRESENTABLE_COLUMN
from pgoutput_etl.targets.write_method import SMALL_BYTES
from pgoutput_etl.types import Storage

_BATCH_ROWS, _MOST_BYTES = 512, 1 << 27  # of decoded rows

_FEATURES = {
    *("allowColumnDefaults", "appendOnly", "changeDataFeed", "checkConstraints", "checkpointProtection"),
    *("columnMapping", "deletionVectors", "domainMetadata", "generatedColumns", "inCommitTimestamp", "invariants"),
    *("timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck"),
}

# Properties by which Delta does more with a written row than storing it; those that are "false" do not.
_SPECIAL = ("delta.constraints.", "delta.universalFormat.", "delta.enableIcebergCompat", "delta.parquet.")
_SPECIAL_IF_TRUE = (*TRACKED, "delta.appendOnly")

# Properties that say which columns have statistics: then none has any.
_STATISTICS = ("delta.dataSkippingNumIndexedCols", "delta.dataSkippingStatsColumns")

_ELSEWHERE = re.compile("/|[^/]+:")  # a path that is not relative, such as a shallow clone's

# A column's metadata that means nothing for its values.
_PLAIN_METADATA = frozenset(
    ("delta.columnMapping.id", "delta.columnMapping.physicalName", "delta.typeChanges", "comment")
)

_STAMPS = (pa.int64(), TIMESTAMP, pa.int64())

_MAP = (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string()))

# Spark takes dates before 1582 in other programs' files for those of another calendar, if a setting says so.
_WRITER = "org.apache.spark.version"

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the target. stored: its name in Parquet. kind: its type. number: its field ID in Parquet."""

    stored: str
    kind: pa.DataType
    number: str | None

    @property
    def field(self) -> pa.Field:
        return pa.field(self.stored, self.kind, metadata=self.number and {"PARQUET:field_id": self.number})


def write_on_driver(
    table: TableCommit, shape: TableShape, net: pa.RecordBatch, before: TargetRows, is_few: bool
) -> WriteResult | None:
    """Writes a table's net changes (shape.net_schema(), one per key; of a bag, INSERTs) as one Delta commit. Creates
    the table if it is missing. None, before anything is written, if the table is one for Spark. is_few: the table is
    known to have few rows."""
    if table.is_tagged or not table.options or net.nbytes > SMALL_BYTES:
        return None
    try:
        if before is TargetRows.NOTHING:
            return _create(table, shape, net)
        return _merge(table, shape, net) if is_few else None
    except (OSError, pa.ArrowException):
        return None  # a file is gone, is damaged, or can't be written: Spark says so


def _create(table: TableCommit, shape: TableShape, net: pa.RecordBatch) -> WriteResult | None:
    layout, kinds = shape.layout, _kinds(shape)
    names = [*(column.name for column in shape.columns), *METADATA_COLUMNS]
    if layout.partition_by or layout.cluster_by or layout.properties or not kinds.keys() >= set(names):
        return None
    comments = layout.column_comments
    fields = [
        StructField(name, kinds[name][0], metadata={"comment": comments[name]} if name in comments else None)
        for name in names
    ]
    properties = properties_of_new(layout, names)
    transaction = open_new(table.spark, table.place, StructType(fields), properties, layout.comment)
    columns = None if transaction is None else _columns(transaction, shape)
    if transaction is None or columns is None:
        return None
    return _Merged.added(net, columns).commit(transaction, table, columns, _news(net, shape, columns))


def _merge(table: TableCommit, shape: TableShape, net: pa.RecordBatch) -> WriteResult | None:
    if any(_is_odd(shape, i, net) for i in shape.key):
        return None
    transaction = open_write(table.spark, table.place, SMALL_BYTES)
    columns = None if transaction is None else _columns(transaction, shape)
    if transaction is None or columns is None:
        return None
    if transaction.applications.get(table.application, -1) >= table.transaction.batch:
        return written(table)  # a run that died has written it
    news = _news(net, shape, columns)
    if shape.is_bag:
        added = _Merged.added(net, columns).commit(transaction, table, columns, news)
        return replace(added, rows=None)
    stored = _stored(transaction, columns)
    merged = None if stored is None else _Merged.of(stored, net, shape)
    return None if merged is None else merged.commit(transaction, table, columns, news)


def _columns(transaction: DeltaWrite, shape: TableShape) -> dict[str, _Column] | None:
    """The table's columns by name. None if it is more than its columns and their values."""
    properties = {name: value.lower() for name, value in transaction.properties.items()}
    if (
        transaction.partition_columns
        or not transaction.features <= _FEATURES
        or any(name.startswith(_SPECIAL) for name in properties)
        or any(properties.get(name) == "true" for name in _SPECIAL_IF_TRUE)
        or any("deletionVector" in file or _ELSEWHERE.match(file["path"]) for file in transaction.files)
    ):
        return None
    fields = transaction.schema["fields"]
    if sorted(field["name"] for field in fields) != sorted([*(c.name for c in shape.columns), *METADATA_COLUMNS]):
        return None
    kinds, types = _kinds(shape), {field.name: field.dataType for field in StructType.fromJson(transaction.schema)}
    columns: dict[str, _Column] = {}
    for field in fields:
        expected, kind = kinds.get(field["name"], (None, None))
        known = field.get("metadata", {})
        if not field["nullable"] or not _PLAIN_METADATA.issuperset(known) or types[field["name"]] != expected:
            return None
        number = known.get("delta.columnMapping.id")
        name = known.get("delta.columnMapping.physicalName", field["name"])
        columns[field["name"]] = _Column(name, kind, None if number is None else str(number))
    return columns


def _kinds(shape: TableShape) -> dict[str, tuple[DataType, pa.DataType]]:
    """By column, its types in Spark and in Parquet; without those that Arrow doesn't write as Spark does."""
    kinds = {name: (spark_type(kind), kind) for name, kind in zip(METADATA_COLUMNS[:3], _STAMPS, strict=True)}
    kinds[UNREPRESENTABLE_COLUMN] = _MAP
    for column in shape.columns:
        if column.type.storage is Storage.MAP:
            kinds[column.name] = _MAP
        elif not has_two_forms(column.type):
            kinds[column.name] = (spark_type(column.type.arrow), column.type.arrow)
    return kinds


def _is_odd(shape: TableShape, i: int, net: pa.RecordBatch) -> bool:
    """True if the key column can have values that its own values don't show."""
    column_type = shape.columns[i].type
    return column_type.storage is not Storage.PLAIN or (
        column_type.may_be_unrepresentable and net.column("_unrep").null_count < net.num_rows
    )


def _stored(transaction: DeltaWrite, columns: Mapping[str, _Column]) -> pa.Table | None:
    """The table's rows, by name. None if they are many bytes, or if a file has other columns. Raises Arrow's error for
    other types than the table's."""
    schema = pa.schema([pa.field(name, column.kind) for name, column in columns.items()])
    parts = []
    for file in transaction.files:
        found = _decoded(transaction.read(file))
        if found is None or not {column.stored for column in columns.values()}.issuperset(found.column_names):
            return None
        arrays = [
            found.column(column.stored).cast(column.kind)
            if column.stored in found.column_names
            else pa.nulls(found.num_rows, column.kind)  # a column that was added later
            for column in columns.values()
        ]
        parts.append(pa.table(arrays, schema=schema))
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _decoded(content: bytes) -> pa.Table | None:
    """None for rows of many bytes: few bytes may stand for many equal values."""
    file, batches, size = pq.ParquetFile(pa.BufferReader(content), coerce_int96_timestamp_unit="us"), [], 0
    for batch in file.iter_batches(_BATCH_ROWS):
        size += batch.nbytes
        if size > _MOST_BYTES:
            return None
        batches.append(batch)
    return pa.Table.from_batches(batches, file.schema_arrow)


def _news(net: pa.RecordBatch, shape: TableShape, columns: Mapping[str, _Column]) -> pa.Table:
    """The net rows as rows of the table, also those of deleted rows."""
    values = {column.name: net.column(f"c{i}") for i, column in enumerate(shape.columns)}
    metadata = ("_lsn", "_ts", "_xid", "_unrep")
    values |= {name: net.column(column) for name, column in zip(METADATA_COLUMNS, metadata, strict=True)}
    values[UNREPRESENTABLE_COLUMN] = _without_empty(values[UNREPRESENTABLE_COLUMN])
    arrays = [
        _as_map(values[name], column.kind) if pa.types.is_map(column.kind) else values[name].cast(column.kind)
        for name, column in columns.items()
    ]
    return pa.table(arrays, names=list(columns))


def _without_empty(entries: pa.Array) -> pa.Array:
    return pc.if_else(pc.greater(pc.list_value_length(entries), 0), entries, pa.scalar(None, entries.type))


def _as_map(entries: pa.Array, kind: pa.DataType) -> pa.Array:
    """entries: lists of key and value."""
    if entries.null_count == len(entries):
        return pa.nulls(len(entries), kind)
    pairs = [None if row is None else [(entry["key"], entry["value"]) for entry in row] for row in entries.to_pylist()]
    return pa.array(pairs, kind)


@dataclass(frozen=True, slots=True)
class _Merged:
    """A merge of stored rows with net rows. gone: stored rows whose key a net row has. is_stored: net rows whose key a
    stored row has."""

    stored: pa.Table
    net: pa.RecordBatch
    gone: Flags
    is_stored: Flags
    deletes: Flags

    @classmethod
    def added(cls, net: pa.RecordBatch, columns: Mapping[str, _Column]) -> _Merged:
        """Of rows that are added, whatever is stored."""
        nothing = pa.schema([pa.field(name, column.kind) for name, column in columns.items()]).empty_table()
        return cls(nothing, net, np.zeros(0, bool), np.zeros(net.num_rows, bool), _flags(net.column("_delete")))

    @classmethod
    def of(cls, stored: pa.Table, net: pa.RecordBatch, shape: TableShape) -> _Merged | None:
        codes = _codes(stored, net, shape)
        if codes is None or len(np.unique(codes[: stored.num_rows])) < stored.num_rows:
            return None  # not by this package: a MERGE fails, or changes all of them
        of_stored, of_net = codes[: stored.num_rows], codes[stored.num_rows :]
        deletes = _flags(net.column("_delete"))
        return cls(stored, net, np.isin(of_stored, of_net), np.isin(of_net, of_stored), deletes)

    def commit(
        self, transaction: DeltaWrite, table: TableCommit, columns: Mapping[str, _Column], news: pa.Table
    ) -> WriteResult:
        written_rows = news.filter(pa.array(~self.deletes))
        kept = self.stored.filter(pa.array(~self.gone)) if self.gone.any() else None
        inserted, updated, deleted = (int(flags.sum()) for flags in self._effects())
        rows = self.stored.num_rows + inserted - deleted
        # Without a change of a stored row, the new ones get a file of their own.
        content = written_rows if kept is None else pa.concat_tables([kept, written_rows])
        content = content.rename_columns([columns[name].stored for name in content.column_names])
        removed = () if kept is None else transaction.files
        file = None if not content.num_rows else _file(content, columns, transaction.spark.version)
        metrics = {
            "numTargetRowsInserted": inserted,
            "numTargetRowsUpdated": updated,
            "numTargetRowsDeleted": deleted,
            "numTargetRowsCopied": 0 if kept is None else kept.num_rows,
            "numOutputRows": content.num_rows,
            "numTargetFilesAdded": int(file is not None),
            "numTargetFilesRemoved": len(removed),
        }
        is_as_set = any(name in transaction.properties for name in _STATISTICS)
        statistics = statistics_of(content, 0 if is_as_set else INDEXED_COLUMNS)
        application = (table.application, table.transaction.batch)
        version = transaction.commit(application, file, statistics, removed, metrics)
        return WriteResult(version, inserted, updated, deleted, rows=rows, mismatches=self._mismatches())

    def _effects(self) -> tuple[Flags, Flags, Flags]:
        """Net rows that are inserted, that update a row, and that delete one."""
        return ~self.deletes & ~self.is_stored, ~self.deletes & self.is_stored, self.deletes & self.is_stored

    def _mismatches(self) -> Mismatches | None:
        """As load.mismatches.counted."""
        chain = self.net.column("_chain")
        op = pc.struct_field(chain, "op")
        numbers = {name: _numbers(pc.struct_field(chain, name)) for name in ("lsn", "xid", "missing", "doubled")}
        is_missing = _flags(pc.is_in(op, pa.array(PRESUMING))) & ~self.is_stored
        is_doubled = _flags(pc.equal(op, MOVED_IN)) & self.is_stored
        missing = int(numbers["missing"].sum() + is_missing.sum())
        doubled = int(numbers["doubled"].sum() + is_doubled.sum())
        if not missing + doubled:
            return None
        is_first = is_missing | is_doubled
        own = {name: pc.struct_field(chain, f"bad_{name}").to_pylist() for name in ("lsn", "xid")}
        found = [
            (int(numbers["lsn"][n]), int(numbers["xid"][n])) if is_first[n] else (own["lsn"][n], own["xid"][n])
            for n in range(len(is_first))
        ]
        lsn, xid = min(pair for pair in found if pair[0] is not None)
        return Mismatches(missing, doubled, lsn, xid)


def _numbers(values: pa.Array) -> Integers:
    numbers: Integers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    return numbers


def _flags(values: pa.Array) -> Flags:
    flags: Flags = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return flags


def _codes(stored: pa.Table, net: pa.RecordBatch, shape: TableShape) -> Integers | None:
    """A number per key, the same for equal keys, of stored rows and then of net rows. None if columns alone don't show
    which keys are equal."""
    if any(shape.columns[i].type.may_be_unrepresentable for i in shape.key):
        unrepresentable = stored.column(UNREPRESENTABLE_COLUMN)
        if unrepresentable.null_count < stored.num_rows:
            return None
    keys = {}
    for i in shape.key:
        own, new = stored.column(shape.columns[i].name), net.column(f"c{i}")
        if own.type != new.type:
            return None
        keys[f"c{i}"] = pa.concat_arrays([*own.chunks, new])
    return key_codes(pa.RecordBatch.from_pydict(keys), shape)


def _file(rows: pa.Table, columns: Mapping[str, _Column], spark_version: str) -> bytes:
    """rows: by the columns' names in Parquet."""
    schema = pa.schema([column.field for column in columns.values()], {_WRITER: spark_version})
    sink = io.BytesIO()
    pq.write_table(rows.cast(schema), sink, compression="snappy", store_schema=False)
    return sink.getvalue()
