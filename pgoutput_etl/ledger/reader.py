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
        return self._reading(table, lambda: self._columns(table, names, chosen.sql))

    def last_done(self) -> int:
        """The number of the last finished batch; 0 before the first."""
        rows = self.rows("batches", ("batch", "status"))
        return max((row["batch"] for row in rows if row["status"] == "done"), default=0)

    def file_index(self, since: int) -> FileIndex:
        """The file parts that batches from `since` on have read, as in `LedgerFiles.index`."""
        return FileIndex.of_columns(self.columns("files", INDEX_SCHEMA.names, since))

    def files(self, table: str) -> list[str]:
        """The paths of the data files with all sources' rows. Raises RunError."""

        def listed() -> list[str]:
            delta = self._opened(table)
            return [] if delta is None else delta.file_uris()

        return self._reading(table, listed)

    def bytes(self, table: str) -> int:
        """The size of the data files with all sources' rows. Raises RunError."""

        def summed() -> int:
            delta = self._opened(table)
            added = None if delta is None else pa.table(delta.get_add_actions())
            return 0 if added is None else pc.sum(added.column("size_bytes")).as_py() or 0

        return self._reading(table, summed)

    def url(self, table: str) -> str:
        return f"{self.root.delta_url.rstrip('/')}/{table}"

    def _opened(self, table: str) -> DeltaTable | None:
        url, options = self.url(table), self.root.delta_options
        return DeltaTable(url, storage_options=options) if DeltaTable.is_deltatable(url, options) else None

    def _columns(self, table: str, names: Sequence[str], condition: str | None) -> pa.Table:
        delta, schema = self._opened(table), pa.schema([SCHEMAS[table].field(name) for name in names])
        if delta is None:
            return schema.empty_table()
        stored = {field.name for field in delta.schema().fields}
        wanted = {"source", *stored.intersection(names)}
        return own_rows(_scan(delta, wanted, condition), self.source, schema)

    def _reading(self, table: str, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except Exception as error:  # noqa: BLE001 # delta-rs raises many kinds, including Rust's panics
            # An error from the storage names what is missing; others may quote stored values.
            text = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else brief(error)
            reason = without_secrets(text, self.root)
            raise RunError(f"the ledger's table {table} can't be read: {reason}") from None


def _scan(delta: DeltaTable, names: Collection[str], condition: str | None) -> pa.Table:
    """Also reads tables with deletion vectors, which Arrow's datasets don't support."""
    reader = delta.scan(sorted(names), condition)
    table, stored = pa.RecordBatchReader.from_stream(reader).read_all(), pa.schema(delta.schema().to_arrow())
    return table.cast(pa.schema([stored.field(name) for name in table.column_names]))  # Arrow can't filter views
