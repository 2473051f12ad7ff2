"""Reads the files of small tables on the driver, with Arrow.

A table with a feature or type that this module doesn't know is left to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, MapType, StringType, StructType

from pgoutput_etl.changes.compaction import Integers, key_codes
from pgoutput_etl.identifiers import forms
from pgoutput_etl.load.rewrite import TRACKED
from pgoutput_etl.load.target_columns import has_two_forms
from pgoutput_etl.places import Place
from pgoutput_etl.schema.layout import COLUMN_MAPPING
from pgoutput_etl.schema.table_shape import TIMESTAMP, TableColumn, TableShape
from pgoutput_etl.spark.arrow_types import spark_type
from pgoutput_etl.spark.delta_files import DeltaFiles, open_files
from pgoutput_etl.targets.modes import METADATA_COLUMNS, UNREPRESENTABLE_COLUMN
from pgoutput_etl.types import Storage

_BATCH_ROWS, _MOST_BYTES = 512, 1 << 27  # limit on decoded rows

_FEATURES = {
    *("allowColumnDefaults", "appendOnly", "changeDataFeed", "checkConstraints", "checkpointProtection"),
    *("columnMapping", "deletionVectors", "domainMetadata", "generatedColumns", "inCommitTimestamp", "invariants"),
    *("timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck"),
}

# Properties that make Delta do more with a written row than store it; those set to "false" don't count.
_SPECIAL = ("delta.constraints.", "delta.universalFormat.", "delta.enableIcebergCompat", "delta.parquet.")
_SPECIAL_IF_TRUE = (*TRACKED, "delta.appendOnly")

_ELSEWHERE = re.compile("/|[^/]+:")  # an absolute path, such as a shallow clone's

# Keys of a column's metadata that don't affect its values.
_PLAIN_METADATA = frozenset(
    ("delta.columnMapping.id", "delta.columnMapping.physicalName", "delta.typeChanges", "comment")
)

_STAMPS = (pa.int64(), TIMESTAMP, pa.int64())

_MAP = (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string()))


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column of the target. stored: its name in Parquet. kind: its Arrow type. number: its field ID in Parquet."""

    stored: str
    kind: pa.DataType
    number: str | None

    @property
    def field(self) -> pa.Field:
        return pa.field(self.stored, self.kind, metadata=self.number and {"PARQUET:field_id": self.number})


@dataclass(frozen=True, slots=True)
class SmallTable:
    """A version of a table that has few bytes. columns: by name."""

    files: DeltaFiles
    columns: Mapping[str, StoredColumn]

    @classmethod
    def of(
        cls, spark: SparkSession, place: Place, version: int, own: Sequence[TableColumn], most: int
    ) -> SmallTable | None:
        """None if Spark must read the table: it has a later version, or more than `most` bytes."""
        files = open_files(spark, place, most)
        columns = None if files is None or files.version != version else stored_columns(files, own)
        return None if files is None or columns is None else cls(files, columns)

    def rows(self) -> pa.Table | None:
        """The rows, in columns by name; None if Spark must read them."""
        try:
            return stored_rows(self.files, self.columns)
        except (OSError, pa.ArrowException):
            return None


def stored_columns(table: DeltaFiles, own: Sequence[TableColumn]) -> dict[str, StoredColumn] | None:
    """The table's columns by name; None unless they are exactly these and METADATA_COLUMNS, without features that this
    module doesn't know."""
    properties = {name: value.lower() for name, value in table.properties.items()}
    if (
        table.partition_columns
        or not table.features <= _FEATURES
        or any(name.startswith(_SPECIAL) for name in properties)
        or any(properties.get(name) == "true" for name in _SPECIAL_IF_TRUE)
        or any("deletionVector" in file or _ELSEWHERE.match(file["path"]) for file in table.files)
    ):
        return None
    fields = table.schema["fields"]
    if sorted(field["name"] for field in fields) != sorted([*(column.name for column in own), *METADATA_COLUMNS]):
        return None
    kinds, types = kinds_of(own), {field.name: field.dataType for field in StructType.fromJson(table.schema)}
    columns: dict[str, StoredColumn] = {}
    for field in fields:
        expected, kind = kinds.get(field["name"], (None, None))
        known = field.get("metadata", {})
        if not field["nullable"] or not _PLAIN_METADATA.issuperset(known) or types[field["name"]] != expected:
            return None
        number = known.get("delta.columnMapping.id")
        name = known.get("delta.columnMapping.physicalName", field["name"])
        columns[field["name"]] = StoredColumn(name, kind, None if number is None else str(number))
    return columns


def kinds_of(own: Sequence[TableColumn]) -> dict[str, tuple[DataType, pa.DataType]]:
    """The types in Spark and in Parquet, by column; without types that Arrow doesn't write as Spark does."""
    kinds = {name: (spark_type(kind), kind) for name, kind in zip(METADATA_COLUMNS[:3], _STAMPS, strict=True)}
    kinds[UNREPRESENTABLE_COLUMN] = _MAP
    for column in own:
        if column.type.storage is Storage.MAP:
            kinds[column.name] = _MAP
        elif not has_two_forms(column.type):
            kinds[column.name] = (spark_type(column.type.arrow), column.type.arrow)
    return kinds


def stored_rows(table: DeltaFiles, columns: Mapping[str, StoredColumn]) -> pa.Table | None:
    """The table's rows, in columns by name. None if they are too large, or if a file may have a column under another
    name. Raises Arrow's error if a type differs from the table's."""
    schema = pa.schema([pa.field(name, column.kind) for name, column in columns.items()])
    stored = {column.stored for column in columns.values()}
    is_by_id = table.properties.get(COLUMN_MAPPING) == "id"
    parts = []
    for file in table.files:
        found = _decoded(table.read(file))
        if found is None or _may_have_other_names(set(found.column_names) - stored, stored, is_by_id):
            return None
        arrays = [
            found.column(column.stored).cast(column.kind)
            if column.stored in found.column_names
            else pa.nulls(found.num_rows, column.kind)  # a column that was added later
            for column in columns.values()
        ]
        parts.append(pa.table(arrays, schema=schema))
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _may_have_other_names(others: Collection[str], stored: Collection[str], is_by_id: bool) -> bool:
    """True if Spark may find the table's columns among a file's other columns, by ID or in another spelling. Otherwise,
    the other columns were dropped from the table."""
    spellings = frozenset[str]().union(*map(forms, stored))
    return bool(others) and (is_by_id or any(forms(name) & spellings for name in others))


def codes_of_keys(stored: pa.Table | None, others: Sequence[Sequence[pa.Array]], shape: TableShape) -> Integers | None:
    """A number per key, the same for equal keys: of stored rows, then of others. others: for each key column, the other
    rows' values. None if columns alone don't show which keys are equal."""
    keys = {}
    for i, values in zip(shape.key, others, strict=True):
        column, parts = shape.columns[i], [*values]
        if stored is not None:
            own, odd = stored.column(column.name), stored.column(UNREPRESENTABLE_COLUMN)
            has_odd = column.type.may_be_unrepresentable and odd.null_count < stored.num_rows
            if has_odd or own.type != values[0].type:
                return None
            parts = [*own.chunks, *values]
        keys[f"c{i}"] = pa.concat_arrays(parts)
    return key_codes(pa.RecordBatch.from_pydict(keys), shape)


def _decoded(content: bytes) -> pa.Table | None:
    """None if the rows are too large when decoded: a few bytes can encode many equal values."""
    file, batches, size = pq.ParquetFile(pa.BufferReader(content), coerce_int96_timestamp_unit="us"), [], 0
    for batch in file.iter_batches(_BATCH_ROWS):
        size += batch.nbytes
        if size > _MOST_BYTES:
            return None
        batches.append(batch)
    return pa.Table.from_batches(batches, file.schema_arrow)
