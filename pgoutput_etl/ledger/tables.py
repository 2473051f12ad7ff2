"""The columns of the ledger's tables, and conversions between values and rows."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from pgoutput_etl.config.rules import DEFAULT_MODE, Mode
from pgoutput_etl.errors import RunError
from pgoutput_etl.landing.file_index import INDEX_SCHEMA
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import (
    CatalogMark,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    TypeDefinition,
    TypeForm,
)
from pgoutput_etl.protocol.partition_bound import PartitionBound
from pgoutput_etl.reasons import columns_of, with_reason
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.schema.column_matching import Doubt
from pgoutput_etl.schema.definitions import Definition, DefinitionEntry, RemovedPartition
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.targets.plan import CompleteSince, Since, TableState
from pgoutput_etl.timestamps import time_of
from pgoutput_etl.transactions.outcome import Outcome

# The format of ledgers that this version writes. An older version rejects a higher number, so it increases with every
# change that an older version can't read or would misread. 1, not recorded: version 0.1.0. 2: without `doubts`,
# `declared`, `changed_at`, and `memory`. 3: with them and Since.ATTACHMENT. 4: with kinds of reasons. 5: with the
# server's catalog and Since.REWRITE, UNLOGGED, and GAP.
FORMAT = 5

_KINDS = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "longs": pa.list_(pa.int64()),
    "strings": pa.list_(pa.string()),
}


def _fields(text: str) -> list[pa.Field]:
    """Arrow fields. text: names, each followed by its kind, separated by commas."""
    return [pa.field(name, _KINDS[kind]) for name, kind in (column.split() for column in text.split(","))]


def _list_of(text: str) -> pa.DataType:
    return pa.list_(pa.struct(_fields(text)))


_KINDS |= {
    "counts": pa.map_(pa.string(), pa.int64()),
    "counts_by_oid": pa.map_(pa.int64(), pa.int64()),
    "fragments": _list_of("file long, unit int"),
    "watermarks": _list_of("stretch int, lsn long"),
    "relation_columns": _list_of(
        "name string, type_oid long, type_modifier int, is_key boolean, number int, form string, initial binary"
    ),
    "file_parts": pa.list_(pa.struct(list(INDEX_SCHEMA))),
    "table_states": _list_of(
        "oid long, schema string, table string, path string, version long, last_commit_lsn long, status string, "
        "reason string, reason_kind string, relation string, key strings, retired string, types strings, rows long, "
        "mode string, uses string, snapshot long, last_row longs, complete_by string, complete_lsn long, "
        "mismatches longs, doubts string, declared string, changed_at string, memory long"
    ),
}

_SCHEMAS = {
    "batches": (
        "ledger_id string, batch long, status string, at timestamp, files file_parts, last_commit_lsn long, "
        "state string, tables table_states, backfill string, since long, settings string, metrics string, "
        "format long"
    ),
    "files": (
        "batch long, file long, path string, size long, modified timestamp, framing string, decompressed_size long, "
        "messages counts, first_lsn long, last_lsn long, first_commit_lsn long, last_commit_lsn long, "
        "changes counts_by_oid, watermarks watermarks, applied long, waiting long, aborted long, quarantined long, "
        "resent long, refused long, status string, offset long, consumed long, prefix_hash string, "
        "distinctive boolean, varied boolean, begins_in_stream boolean, ends_in_stream boolean, same_as long, "
        "unfinished boolean, reason string, head string, oids string"
    ),
    "relations": (
        "batch long, oid long, schema string, table string, replica_identity string, columns relation_columns, "
        "from_file long, from_ordinal long, scope long, root long, rewrites long, last_number int, "
        "casts long, is_created boolean, is_whole boolean, unlogged long, gaps long, keys string, computed string"
    ),
    "catalog": (
        "batch long, oid long, schema string, table string, columns relation_columns, rewrites long, last_number int, "
        "casts long, is_created boolean, is_whole boolean, partitions longs, omitted string, dropped boolean, "
        "from_file long, from_ordinal long, xid long, subxid long, commit_lsn long, commit_ts long, top_xid long, "
        "command string, parent long, bound binary, removed binary, unlogged long, gaps long, verified boolean, "
        "comments string, keys string, computed string"
    ),
    "types": "batch long, oid long, schema string, name string",
    "transactions": (
        "batch long, xid long, gid string, fate string, commit_lsn long, commit_ts timestamp, file long, unit int, "
        "changes long, units fragments, scope long, aborted longs, origin string, origin_lsn long"
    ),
    "messages": (
        "batch long, prefix string, content binary, lsn long, transactional boolean, xid long, commit_lsn long, "
        "commit_ts timestamp, file long, ordinal long"
    ),
    "quarantine": (
        "batch long, schema string, table string, relation long, file long, path string, offset long, length long, "
        "lsn long, xid long, bytes binary, reason string, redriven long, reason_kind string"
    ),
    "claims": (
        "batch long, attempt long, run string, machine string, pid long, started long, status string, at timestamp"
    ),
    "schema_changes": (
        "batch long, oid long, schema string, table string, commit_lsn long, file long, ordinal long, kind string, "
        "column string, detail string, shown_by string"
    ),
    "verifications": "batch long, oid long, lsn long",
}

SCHEMAS: Mapping[str, pa.Schema] = {
    **{table: pa.schema(_fields(f"source string, {columns}")) for table, columns in _SCHEMAS.items()},
    "open_transactions": pa.schema([*_fields("source string, batch long"), *MESSAGE_SCHEMA, *_fields("uses string")]),
}


def verified_through(rows: Iterable[Mapping[str, Any]], of: str = "lsn") -> dict[int, int]:
    """By OID, the last LSN (or batch) at which a table was found equal to the server's. rows: from `verifications`."""
    through: dict[int, int] = {}
    for row in rows:
        through[row["oid"]] = max(row[of], through.get(row["oid"], 0))
    return through


def check_format(batch: Mapping[str, Any]) -> None:
    """batch: a row of `batches`. Raises RunError if a newer version began this batch."""
    number = batch.get("format") or 1
    if number > FORMAT:
        raise RunError(
            f"the ledger has format {number}, and this version of pgoutput_etl knows formats up to {FORMAT}: run the "
            "newer version that wrote it"
        )


@dataclass(frozen=True, slots=True)
class RowRange:
    """The rows of batches from number `first` on and below `before`, with xids from the lowest to the highest."""

    first: int = 0
    before: int | None = None
    xids: tuple[int, int] | None = None

    @property
    def sql(self) -> str | None:
        """A condition for delta-rs and Spark. It only contains numbers, so no text gets into the query."""
        limits = [f"batch >= {self.first:d}"] if self.first > 0 else []
        limits += [] if self.before is None else [f"batch < {self.before:d}"]
        limits += [] if self.xids is None else [f"xid >= {self.xids[0]:d}", f"xid <= {self.xids[1]:d}"]
        return " and ".join(limits) or None

    def of_rows(self, rows: pa.Table) -> pa.Table:
        """The rows in the range."""
        limits = [pc.field("batch") >= self.first]
        limits += [] if self.before is None else [pc.field("batch") < self.before]
        limits += [] if self.xids is None else [pc.field("xid") >= self.xids[0], pc.field("xid") <= self.xids[1]]
        return rows.filter(reduce(and_, limits))


class LedgerRows(ABC):
    """One source's rows in the ledger's tables. A missing table reads as empty; a column that an older ledger lacks is
    NULL."""

    @abstractmethod
    def columns_where(self, table: str, names: Sequence[str], chosen: RowRange) -> pa.Table:
        """Some columns of the rows in a range. Raises RunError if the table can't be read."""

    def columns(self, table: str, names: Sequence[str], first: int = 0, before: int | None = None) -> pa.Table:
        """Some columns of the rows of batches from number `first` on and, if given, below number `before`. Raises
        RunError if the table can't be read."""
        return self.columns_where(table, names, RowRange(first, before))

    def rows(self, table: str, names: Sequence[str], first: int = 0, before: int | None = None) -> list[dict[str, Any]]:
        """Like `columns`, but as dictionaries."""
        rows: list[dict[str, Any]] = self.columns(table, names, first, before).to_pylist()
        return rows


def own_rows(rows: pa.Table, source: str, schema: pa.Schema) -> pa.Table:
    """A source's rows, in the columns of the schema; a column that an older ledger lacks is NULL."""
    own = rows.filter(pc.equal(rows.column("source"), source))
    known = set(own.column_names)
    columns = (own.column(f.name) if f.name in known else pa.nulls(own.num_rows, f.type) for f in schema)
    return pa.table(dict(zip(schema.names, columns, strict=True)))


def file_statistics(scan: FileScan) -> dict[str, Any]:
    first_commit, last_commit = scan.commits
    return {
        "framing": scan.framing,
        "decompressed_size": scan.size,
        "messages": scan.messages,
        "changes": scan.changes,
        "first_lsn": scan.first_lsn,
        "last_lsn": scan.last_lsn,
        "first_commit_lsn": first_commit,
        "last_commit_lsn": last_commit,
    }


def transaction_row(outcome: Outcome) -> dict[str, Any]:
    """A transaction's beginning and end. `changes` is NULL for a transaction with several fragments."""
    file, fragment = outcome.fragments[0] if outcome.fragments else (None, None)
    time = None if outcome.commit_ts is None else time_of(outcome.commit_ts)
    return {
        "xid": outcome.xid,
        "gid": outcome.gid,
        "fate": outcome.status.value,
        "commit_lsn": outcome.commit_lsn,
        "commit_ts": time,
        "file": file,
        "unit": fragment,
        "units": [{"file": file, "unit": fragment} for file, fragment in outcome.fragments],
        "scope": outcome.scope,
        "aborted": list(outcome.aborted_subxids),
        "origin": outcome.origin,
        "origin_lsn": outcome.origin_lsn,
    }


def relation_row(relation: Relation) -> dict[str, Any]:
    return {
        "oid": relation.oid,
        "schema": relation.namespace,
        "table": relation.name,
        "replica_identity": relation.replica_identity.value,
        "columns": column_rows(relation.columns),
        **_mark_row(relation.catalog),
    }


def relation_of(row: Mapping[str, Any]) -> Relation:
    identity = ReplicaIdentity(row["replica_identity"])
    columns = columns_of_rows(row["columns"])
    return Relation(None, row["oid"], row["schema"], row["table"], identity, columns, _mark(row))


def column_rows(columns: Iterable[RelationColumn]) -> list[dict[str, Any]]:
    rows = []
    for column in columns:
        row = asdict(column)
        described = (row["form"] or {}) | ({"types": types} if (types := row.pop("types")) else {})
        rows.append({**row, "form": json.dumps(described) if described else None})
    return rows


def columns_of_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[RelationColumn, ...]:
    """Early ledgers have no column numbers."""
    return tuple(map(_column_of, rows))


def _column_of(row: Mapping[str, Any]) -> RelationColumn:
    described = json.loads(row.get("form") or "{}")
    sent = (row["is_key"], row["name"], row["type_oid"], row["type_modifier"])
    types = tuple(TypeDefinition(**found) for found in described.get("types", ()))
    return RelationColumn(*sent, row.get("number"), _form(described), row.get("initial"), types)


def _form(form: Mapping[str, Any]) -> TypeForm | None:
    """The form that is stored with a column's types."""
    if not form.keys() - {"types"}:
        return None
    labels = tuple((oid, label) for oid, label in form["labels"])
    return TypeForm(labels, tuple(form["attributes"]), form["nested"], form["modifier"])


def catalog_row(entry: DefinitionEntry) -> dict[str, Any]:
    definition = entry.definition
    position = {"from_file": entry.position[0], "from_ordinal": entry.position[1]}
    named = {"oid": definition.oid, "schema": definition.namespace, "table": definition.name}
    columns = {"columns": column_rows(definition.columns), "partitions": list(definition.partitions)}
    columns |= {"omitted": json.dumps(definition.omitted), "dropped": definition.is_dropped}
    sent_by = {"xid": entry.xid, "subxid": entry.subxid, "commit_lsn": entry.commit_lsn, "command": entry.command}
    sent_by |= {"commit_ts": entry.commit_ts, "top_xid": entry.top_xid, "parent": definition.parent}
    columns |= {"verified": definition.is_verified, "comments": json.dumps(definition.comments)}
    columns["bound"] = None if definition.bound is None else _binary(asdict(definition.bound))
    columns["removed"] = (
        _binary([asdict(partition) for partition in definition.removed]) if definition.removed else None
    )
    return {**named, **columns, **_mark_row(definition.mark), **position, **sent_by}


def catalog_entry(row: Mapping[str, Any]) -> DefinitionEntry:
    named, columns = (row["oid"], row["schema"], row["table"]), columns_of_rows(row["columns"])
    mark, partitions = _mark(row) or CatalogMark(0, 0), tuple(row["partitions"])
    bound = _BOUND.validate_json(row["bound"]) if row.get("bound") else None
    removed = _REMOVED.validate_json(row.get("removed") or b"[]")
    flags = (tuple(json.loads(row.get("omitted") or "[]")), row["dropped"])
    definition = Definition(*named, columns, mark, partitions, *flags, row.get("parent"), bound, removed)
    comments = tuple((number, text) for number, text in json.loads(row.get("comments") or "[]"))
    definition = replace(definition, is_verified=bool(row.get("verified")), comments=comments)
    sent_by = (row["xid"], row["subxid"], row["commit_lsn"], row.get("commit_ts"), row.get("top_xid"))
    return DefinitionEntry((row["from_file"], row["from_ordinal"]), definition, *sent_by, row.get("command") or "")


_BOUND = TypeAdapter(PartitionBound)

_REMOVED = TypeAdapter(tuple[RemovedPartition, ...])

_DOUBTS = TypeAdapter(tuple[Doubt, ...])

DROPPED = ("oid", "dropped", "xid")


def dropped_in(rows: Iterable[Mapping[str, Any]]) -> set[int]:
    """OIDs of tables that catalog Messages have shown to be dropped. rows: of the ledger's `catalog`, with the columns
    DROPPED."""
    return {row["oid"] for row in rows if row["dropped"] and row["xid"] is None}


def _binary(value: Any) -> bytes:
    """Encodes a bound, which is a value of rows and therefore not in a text column."""
    return json.dumps(value).encode()


def _mark_row(mark: CatalogMark | None) -> dict[str, Any]:
    if mark is None:
        return {}
    return asdict(mark) | {"keys": json.dumps(mark.keys), "computed": json.dumps(mark.computed)}


def _mark(row: Mapping[str, Any]) -> CatalogMark | None:
    if row.get("rewrites") is None:
        return None
    counted = (row.get("unlogged") or 0, row.get("gaps") or 0)
    keys = tuple(map(tuple, json.loads(row.get("keys") or "[]")))
    flags, computed = (row["is_created"], row["is_whole"]), tuple(json.loads(row.get("computed") or "[]"))
    return CatalogMark(row["rewrites"], row["last_number"], row["casts"], *flags, *counted, keys, computed)


def erasure_of(backfill: str | None) -> Mapping[str, Any] | None:
    """The record of a batch that erases rows (work/erasure/order.py); None for other batches. backfill: its column."""
    order: Mapping[str, Any] | None = json.loads(backfill or "{}").get("erasure")
    return order


def _without_values(columns: Iterable[RelationColumn]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "initial"} for row in column_rows(columns)]


def table_row(state: TableState) -> dict[str, Any]:
    since, renamed = state.complete_since, ("masks", "complete_since", "used")
    return {
        **{name: value for name, value in asdict(state).items() if name not in renamed},
        "path": str(state.path),
        "relation": json.dumps({**relation_row(state.relation), "columns": _without_values(state.relation.columns)}),
        "retired": json.dumps(_without_values(state.retired)),
        "mode": state.mode.value,
        "uses": json.dumps(dict(state.masks)),
        "complete_by": None if since is None else since.kind.value,
        "complete_lsn": None if since is None else since.lsn,
        "mismatches": state.mismatches and astuple(state.mismatches),
        "doubts": json.dumps([asdict(doubt) for doubt in state.doubts]),
        "declared": json.dumps(dict(state.used)),
        "changed_at": json.dumps(dict(state.changed_at)),
        **columns_of(state.reason),
    }


def table_state(row: Mapping[str, Any]) -> TableState:
    """Older ledgers have no mode, masks, last row, completeness, mismatches, doubts, or changes of columns."""
    renamed = ("uses", "declared", "complete_by", "complete_lsn")
    kind, declared = row.get("complete_by"), json.loads(row.get("declared") or "{}")
    parsed = {
        "path": Place.parse(row["path"]),
        "relation": relation_of(json.loads(row["relation"])),
        "key": tuple(row["key"]),
        "retired": columns_of_rows(json.loads(row["retired"])),
        "types": tuple(row["types"]),
        "mode": Mode(row.get("mode") or DEFAULT_MODE.value),
        "masks": json.loads(row.get("uses") or "{}"),
        "last_row": row.get("last_row") and tuple(row["last_row"]),
        "complete_since": None if kind is None else CompleteSince(Since(kind), row["complete_lsn"]),
        "mismatches": row.get("mismatches") and Mismatches(*row["mismatches"]),
        "doubts": _DOUBTS.validate_json(row.get("doubts") or "[]"),
        # A build between 0.1.0 and format 3 had one declaration per column.
        "used": {name: tuple(facts) if isinstance(facts, list) else (facts,) for name, facts in declared.items()},
        "changed_at": json.loads(row.get("changed_at") or "{}"),
    }
    return TableState(**{name: value for name, value in with_reason(row).items() if name not in renamed} | parsed)
