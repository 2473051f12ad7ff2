"""Writes small tables on the driver, without a Spark job: reads a table's files, merges the net changes, and writes and
commits new files with Arrow. Also writes the first rows of a new table, and rows that replace all others.

This takes milliseconds of Python per table instead of several Spark plans. The result equals that of a MERGE: the same
rows, and the same counts in the table's history. A table with a feature, type, or value that this module doesn't know
is left to Spark.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructField, StructType

from pgoutput_etl.changes.compaction import Integers
from pgoutput_etl.changes.events import MOVED_IN
from pgoutput_etl.changes.key_chains import PRESUMING
from pgoutput_etl.load.commit import TargetRows, WriteResult, written
from pgoutput_etl.load.net_effect import TableEvents
from pgoutput_etl.load.small_rows import StoredColumn, codes_of_keys, kinds_of, stored_columns, stored_rows
from pgoutput_etl.load.table_writer import TableCommit, properties_of_new
from pgoutput_etl.load.unsent import complete_net
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.delta_log import Action
from pgoutput_etl.spark.delta_write import DeltaWrite, WriteKind, open_new, open_write
from pgoutput_etl.spark.file_statistics import INDEXED_COLUMNS, statistics_of
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.targets.modes import METADATA_COLUMNS, UNREPRESENTABLE_COLUMN
from pgoutput_etl.targets.write_method import SMALL_BYTES
from pgoutput_etl.types import Storage

# Properties that choose the columns with statistics. If one is set, the files get no statistics.
_STATISTICS = ("delta.dataSkippingNumIndexedCols", "delta.dataSkippingStatsColumns")

# If a setting says so, Spark reads dates before 1582 in other programs' files in the old calendar.
_WRITER = "org.apache.spark.version"

Flags = npt.NDArray[np.bool_]


def write_on_driver(
    table: TableCommit,
    shape: TableShape,
    events: TableEvents,
    before: TargetRows,
    is_few: bool,
    replaces_copies: bool = False,
) -> WriteResult | None:
    """Writes a table's net changes as one Delta commit. Creates the table if it is missing. Returns None, with nothing
    written, if Spark must write the table. is_few: the table is known to have few rows. replaces_copies: if several
    rows have the same key, which only other writers can cause, a change of this key replaces all of them; otherwise,
    Spark must write such a table."""
    changes = events.unreduced if events.net is None else events.net
    if changes is None or table.place.tag or not table.options or changes.nbytes > SMALL_BYTES:
        return None
    try:
        if before is TargetRows.ROWS:
            return _merge(table, shape, events, changes, replaces_copies) if is_few else None
        net = _net(events, shape, None)
        return None if net is None else _create(table, shape, net) or _replace(table, shape, net)
    except (OSError, pa.ArrowException):
        return None  # a file is missing, damaged, or can't be written: Spark will report it


def _net(events: TableEvents, shape: TableShape, stored: pa.Table | None) -> pa.RecordBatch | None:
    """In shape.net_schema(): one row per key, or INSERTs of a bag."""
    if events.net is not None or events.unreduced is None:
        return events.net
    return complete_net(events.unreduced, shape, stored)


def _create(table: TableCommit, shape: TableShape, net: pa.RecordBatch) -> WriteResult | None:
    layout, kinds = shape.layout, kinds_of(shape.columns)
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
    columns = None if transaction is None else stored_columns(transaction.table, shape.columns)
    if transaction is None or columns is None:
        return None
    return _Merged.added(net, columns).commit(transaction, table, shape, columns)


def _replace(table: TableCommit, shape: TableShape, net: pa.RecordBatch) -> WriteResult | None:
    """Replaces all rows of a table that keeps its columns and layout."""
    transaction = None if shape.layout else open_write(table.spark, table.place, SMALL_BYTES, WriteKind.OVERWRITE)
    columns = None if transaction is None else stored_columns(transaction.table, shape.columns)
    if transaction is None or columns is None:
        return None
    if [*columns] != [*(column.name for column in shape.columns), *METADATA_COLUMNS]:
        return None  # in another order
    if transaction.applications.get(table.application, -1) >= table.transaction.batch:
        return written(table)
    return _Merged.added(net, columns, transaction.table.files).commit(transaction, table, shape, columns)


def _merge(
    table: TableCommit, shape: TableShape, events: TableEvents, changes: pa.RecordBatch, replaces_copies: bool
) -> WriteResult | None:
    if any(_is_odd(shape, i, changes) for i in shape.key):
        return None
    transaction = open_write(table.spark, table.place, SMALL_BYTES, WriteKind.MERGE)
    columns = None if transaction is None else stored_columns(transaction.table, shape.columns)
    if transaction is None or columns is None:
        return None
    if transaction.applications.get(table.application, -1) >= table.transaction.batch:
        return written(table)  # by a run that died
    if shape.is_bag:
        return replace(_Merged.added(changes, columns).commit(transaction, table, shape, columns), rows=None)
    stored = stored_rows(transaction.table, columns)
    net = None if stored is None else _net(events, shape, stored)
    merged = None if net is None else _Merged.of(stored, net, shape, replaces_copies)
    return None if merged is None else merged.commit(transaction, table, shape, columns)


def _is_odd(shape: TableShape, i: int, changes: pa.RecordBatch) -> bool:
    """True if equal values of the key column may belong to different keys."""
    column_type = shape.columns[i].type
    return column_type.storage is not Storage.PLAIN or (
        column_type.may_be_unrepresentable and changes.column("_unrep").null_count < changes.num_rows
    )


def _news(net: pa.RecordBatch, shape: TableShape, columns: Mapping[str, StoredColumn]) -> pa.Table:
    """The net rows in the table's columns, including those that delete a row."""
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
    """Converts lists of (key, value) to maps. kind: the map's type."""
    if entries.null_count == len(entries):
        return pa.nulls(len(entries), kind)
    pairs = [None if row is None else [(entry["key"], entry["value"]) for entry in row] for row in entries.to_pylist()]
    return pa.array(pairs, kind)


@dataclass(frozen=True, slots=True)
class _Merged:
    """Stored rows merged with net rows. gone: flags of the stored rows whose key a net row has. is_stored: flags of the
    net rows whose key a stored row has. replaced: files to remove, although `stored` has none of their rows."""

    stored: pa.Table
    net: pa.RecordBatch
    gone: Flags
    is_stored: Flags
    deletes: Flags
    replaced: Sequence[Action] = ()

    @classmethod
    def added(
        cls, net: pa.RecordBatch, columns: Mapping[str, StoredColumn], replaced: Sequence[Action] = ()
    ) -> _Merged:
        """Net rows to append, regardless of the stored rows."""
        nothing = pa.schema([pa.field(name, column.kind) for name, column in columns.items()]).empty_table()
        flags = np.zeros(0, bool), np.zeros(net.num_rows, bool), _flags(net.column("_delete"))
        return cls(nothing, net, *flags, replaced)

    @classmethod
    def of(cls, stored: pa.Table, net: pa.RecordBatch, shape: TableShape, replaces_copies: bool) -> _Merged | None:
        codes = codes_of_keys(stored, [[net.column(f"c{i}")] for i in shape.key], shape)
        if codes is None:
            return None
        of_stored, of_net = codes[: stored.num_rows], codes[stored.num_rows :]
        if not replaces_copies and len(np.unique(of_stored)) < stored.num_rows:
            return None  # from another writer: a MERGE fails, or changes all of them
        deletes = _flags(net.column("_delete"))
        return cls(stored, net, np.isin(of_stored, of_net), np.isin(of_net, of_stored), deletes)

    def commit(
        self, transaction: DeltaWrite, table: TableCommit, shape: TableShape, columns: Mapping[str, StoredColumn]
    ) -> WriteResult:
        written_rows = _news(self.net, shape, columns).filter(pa.array(~self.deletes))
        kept = self.stored.filter(pa.array(~self.gone)) if self.gone.any() else None
        inserted, updated = (int((~self.deletes & flags).sum()) for flags in (~self.is_stored, self.is_stored))
        deleted = int(self.gone.sum()) - updated  # includes copies of updated rows
        rows = self.stored.num_rows + inserted - deleted
        # If no stored row changes, the new rows get their own file.
        content = written_rows if kept is None else pa.concat_tables([kept, written_rows])
        content = content.rename_columns([columns[name].stored for name in content.column_names])
        removed = self.replaced if kept is None else transaction.table.files
        file = None if not content.num_rows else _file(content, columns, transaction.table.spark.version)
        metrics = {
            "numTargetRowsInserted": inserted,
            "numTargetRowsUpdated": updated,
            "numTargetRowsDeleted": deleted,
            "numTargetRowsCopied": 0 if kept is None else kept.num_rows,
            "numOutputRows": content.num_rows,
            "numTargetFilesAdded": int(file is not None),
            "numTargetFilesRemoved": len(removed),
            "numRemovedFiles": len(removed),
            "numRemovedBytes": sum(file["size"] for file in removed),
        }
        is_as_set = any(name in transaction.table.properties for name in _STATISTICS)
        statistics = statistics_of(content, 0 if is_as_set else INDEXED_COLUMNS)
        application = (table.application, table.transaction.batch)
        version = transaction.commit(application, file, statistics, metrics, removed)
        return WriteResult(version, inserted, updated, deleted, rows=rows, mismatches=self._mismatches())

    def _mismatches(self) -> Mismatches | None:
        """Contradictions between the changes and the table's rows, counted as in load.mismatches.counted."""
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


def _file(rows: pa.Table, columns: Mapping[str, StoredColumn], spark_version: str) -> bytes:
    """The bytes of a Parquet file with these rows. rows: with Parquet's column names."""
    schema = pa.schema([column.field for column in columns.values()], {_WRITER: spark_version})
    sink = io.BytesIO()
    pq.write_table(rows.cast(schema), sink, compression="snappy", store_schema=False)
    return sink.getvalue()
