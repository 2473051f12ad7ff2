"""Relations, types, and schema changes in the ledger, and the assembly that continues from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.store import Store
from pgoutput_etl.ledger.tables import (
    DROPPED,
    SCHEMAS,
    catalog_entry,
    catalog_row,
    dropped_in,
    relation_of,
    relation_row,
)
from pgoutput_etl.protocol.messages import Type
from pgoutput_etl.schema.definitions import Definitions
from pgoutput_etl.schema.diff import SchemaChange
from pgoutput_etl.schema.relation_history import CommitPosition, RelationEntry, RelationHistory
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.transactions.assembly import NOTHING_OPEN, Assembly, open_messages, open_scopes

_RELATION, _CATALOG = (
    tuple(name for name in SCHEMAS[table].names if name != "source") for table in ("relations", "catalog")
)


@dataclass(frozen=True, slots=True)
class LedgerHistory:
    store: Store

    def assembly(self, batch: Batch, all_scopes: bool = False) -> Assembly:
        """Transactions, relations, and types at the start of the batch.

        all_scopes: includes the relations of streamed transactions that have ended, in order to reread their rows.
        """
        scopes = None if all_scopes else open_scopes(batch.state or NOTHING_OPEN)

        stored = self.store.columns("relations", _RELATION, batch.since, batch.number)
        if scopes is not None:
            scope = stored.column("scope")
            stored = stored.filter(pc.or_(scope.is_null(), pc.is_in(scope, pa.array(sorted(scopes), pa.int64()))))
        relations = RelationHistory.of(
            RelationEntry((row["from_file"], row["from_ordinal"]), relation_of(row), row["scope"], row["root"])
            for row in stored.to_pylist()
        )
        if batch.state is not None and batch.state.get("has_catalog"):
            relations.definitions = self._catalog(batch, batch.state)
        rows = self.store.rows_before("types", ("batch", "oid", "schema", "name"), batch)
        rows.sort(key=lambda row: row["batch"])
        types = {row["oid"]: Type(None, row["oid"], row["schema"], row["name"]) for row in rows}
        return Assembly(relations, batch.state, types)

    def append_relations(self, entries: Iterable[RelationEntry], batch: Batch) -> None:
        rows = [
            relation_row(e.relation)
            | {"from_file": e.position[0], "from_ordinal": e.position[1], "scope": e.scope, "root": e.root}
            for e in entries
        ]
        self.store.append_rows("relations", rows, batch.number)

    def _catalog(self, batch: Batch, state: Mapping[str, Any]) -> Definitions:
        """The catalog's definitions. Each batch stores those of all transactions that it leaves open."""
        rows = self.store.rows_before("catalog", _CATALOG, batch)
        last = {row["xid"]: 0 for row in rows}
        for row in rows:
            last[row["xid"]] = max(last[row["xid"]], row["batch"])
        entries = [catalog_entry(row) for row in rows if row["xid"] is None or row["batch"] == last[row["xid"]]]
        return Definitions.of(entries, open_messages(state))

    def dropped(self, batch: Batch) -> set[int]:
        """OIDs of tables that catalog Messages have shown to be dropped, as of the end of a batch."""
        return dropped_in(self.store.rows("catalog", DROPPED, batch.since, batch.number + 1))

    def append_catalog(self, catalog: Definitions, batch: Batch) -> None:
        self.store.append_rows("catalog", [catalog_row(entry) for entry in catalog.to_store()], batch.number)

    def append_types(self, types: Iterable[Type], batch: Batch) -> None:
        rows = [{"oid": t.oid, "schema": t.namespace, "name": t.name} for t in types]
        self.store.append_rows("types", rows, batch.number)

    def append_schema_changes(
        self, batch: Batch, changes: Iterable[tuple[TableState, CommitPosition | None, SchemaChange]]
    ) -> None:
        rows = []
        for table, position, change in changes:
            lsn, file, ordinal = position or (None, None, None)
            name = {"oid": table.oid, "schema": table.schema, "table": table.table}
            first_row = {"commit_lsn": lsn, "file": file, "ordinal": ordinal}
            detail = {"kind": change.kind.value, "column": change.column or None, "detail": change.detail or None}
            shown_by = {"shown_by": "catalog" if change.is_fact else "messages"}
            rows.append(name | first_row | detail | shown_by)
        self.store.append_rows("schema_changes", rows, batch.number)
