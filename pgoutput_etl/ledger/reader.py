"""Reads the ledger with delta-rs, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from pgoutput_etl.config.object_storage import Place, without_secrets
from pgoutput_etl.errors import RunError
from pgoutput_etl.landing.file_index import INDEX_SCHEMA, FileIndex

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LedgerReader:
    """One source's rows of the ledger's tables. A missing table is empty; a column that an older ledger lacks is
    NULL."""

    root: Place
    source: str

    def columns(self, table: str, names: Sequence[str], first_batch: int = 0) -> pa.Table:
        """Some columns, of batches from a number on. Raises RunError if the table can't be read."""
        return self._reading(table, lambda: self._columns(table, names, first_batch))

    def rows(self, table: str, names: Sequence[str], first_batch: int = 0) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.columns(table, names, first_batch).to_pylist()
        return rows

    def file_index(self, since: int) -> FileIndex:
        """The parts of files that batches from `since` on have read, as `LedgerFiles.index`."""
        names = [name for name in INDEX_SCHEMA.names if name != "modified"]
        table = self.columns("files", [*names, "modified"], since)
        modified = table.column("modified").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        at = table.column_names.index("modified")
        return FileIndex(table.set_column(at, "modified", modified).select(INDEX_SCHEMA.names).cast(INDEX_SCHEMA))

    def _columns(self, table: str, names: Sequence[str], first_batch: int) -> pa.Table:
        url, options = f"{self.root.delta_url.rstrip('/')}/{table}", self.root.delta_options
        if not DeltaTable.is_deltatable(url, options):
            return pa.table({name: pa.nulls(0) for name in names})
        delta = DeltaTable(url, storage_options=options)
        stored = {field.name for field in delta.schema().fields}
        wanted = {"source", *stored.intersection(names)}
        return _complete(_scan(delta, wanted, first_batch), self.source, names)

    def _reading(self, table: str, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except Exception as error:  # noqa: BLE001 # delta-rs has many, and Rust's panics
            reason = without_secrets(f"{type(error).__name__}: {error}", self.root)
            raise RunError(f"the ledger's table {table} can't be read: {reason}") from None


def _scan(delta: DeltaTable, names: Collection[str], first_batch: int) -> pa.Table:
    """Reads also tables with deletion vectors, which Arrow's datasets refuse."""
    reader = delta.scan(sorted(names), f"batch >= {first_batch:d}" if first_batch > 0 else None)
    table, stored = pa.RecordBatchReader.from_stream(reader).read_all(), pa.schema(delta.schema().to_arrow())
    return table.cast(pa.schema([stored.field(name) for name in table.column_names]))  # Arrow can't filter views


def _complete(table: pa.Table, source: str, names: Sequence[str]) -> pa.Table:
    own = table.filter(pc.equal(table.column("source"), source))
    columns = {name: own.column(name) if name in own.column_names else pa.nulls(own.num_rows) for name in names}
    return pa.table(columns)
