"""Reads the ledger with delta-rs, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from pgoutput_etl.config.object_storage import StorageFolder, place_of, without_secrets
from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import RunError, brief
from pgoutput_etl.landing.file_index import INDEX_SCHEMA, FileIndex
from pgoutput_etl.ledger.tables import SCHEMAS, LedgerRows, RowRange, own_rows

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LedgerReader(LedgerRows):
    """Rows that delta-rs reads."""

    root: StorageFolder
    source: str

    @classmethod
    def of(cls, config: Config) -> LedgerReader:
        """Raises ConfigError for storage that can't be read without Spark."""
        return cls(place_of(config.state.root, config.spark, "state.root"), config.source.name)

    def columns_where(self, table: str, names: Sequence[str], chosen: RowRange) -> pa.Table:
        schema = pa.schema([SCHEMAS[table].field(name) for name in names])

        def columns(delta: DeltaTable) -> pa.Table:
            stored = {field.name for field in delta.schema().fields}
            return own_rows(_scan(delta, {"source", *stored.intersection(names)}, chosen.sql), self.source, schema)

        return self._read(table, columns, schema.empty_table())

    def last_done(self) -> int:
        """The number of the last finished batch; 0 before the first."""
        rows = self.rows("batches", ("batch", "status"))
        return max((row["batch"] for row in rows if row["status"] == "done"), default=0)

    def file_index(self, since: int) -> FileIndex:
        """The file parts that batches from `since` on have read, as in `LedgerFiles.index`."""
        return FileIndex.of_columns(self.columns("files", INDEX_SCHEMA.names, since))

    def files(self, table: str) -> list[str]:
        """The paths of the data files with all sources' rows. Raises RunError."""
        return self._read(table, lambda delta: delta.file_uris(), [])

    def bytes(self, table: str) -> int:
        """The size of the data files with all sources' rows. Raises RunError."""
        return self._read(table, _stored_bytes, 0)

    def url(self, table: str) -> str:
        return f"{self.root.delta_url.rstrip('/')}/{table}"

    def _read(self, table: str, read: Callable[[DeltaTable], _T], missing: _T) -> _T:
        """What `read` finds in the table, or `missing` if it doesn't exist."""
        url, options = self.url(table), self.root.delta_options
        try:
            if not DeltaTable.is_deltatable(url, options):
                return missing
            return read(DeltaTable(url, storage_options=options))
        except Exception as error:  # noqa: BLE001 # delta-rs raises many kinds, including Rust's panics
            # An error from the storage names what is missing; others may quote stored values.
            text = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else brief(error)
            reason = without_secrets(text, self.root)
            raise RunError(f"the ledger's table {table} can't be read: {reason}") from None


def _stored_bytes(delta: DeltaTable) -> int:
    return pc.sum(pa.table(delta.get_add_actions()).column("size_bytes")).as_py() or 0


def _scan(delta: DeltaTable, names: Collection[str], condition: str | None) -> pa.Table:
    """Also reads tables with deletion vectors, which Arrow's datasets don't support."""
    reader = delta.scan(sorted(names), condition)
    table, stored = pa.RecordBatchReader.from_stream(reader).read_all(), pa.schema(delta.schema().to_arrow())
    return table.cast(pa.schema([stored.field(name) for name in table.column_names]))  # Arrow can't filter views
