"""The columns of the ledger's tables, and the conversion of values to rows and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from pyspark.sql.types import StructType

from pgoutput_etl.config.settings import Mode
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.timestamps import time_of
from pgoutput_etl.transactions.outcome import Outcome

_COLUMNS = "array<struct<name: string, type_oid: long, type_modifier: int, is_key: boolean>>"

SCHEMAS = {
    "batches": (
        "source string, ledger_id string, batch long, status string, at timestamp, files array<struct<file: long, "
        "path: string, size: long, modified: long, status: string, offset: long, consumed: long, prefix_hash: string, "
        "distinctive: boolean, varied: boolean, framing: string, begins_in_stream: boolean, ends_in_stream: boolean, "
        "same_as: long, unfinished: boolean, reason: string, decompressed_size: long, head: string>>, "
        "last_commit_lsn long, state string, tables array<struct<oid: long, schema: string, table: string, "
        "path: string, version: long, last_commit_lsn: long, status: string, reason: string, relation: string, "
        "key: array<string>, retired: string, types: array<string>, rows: long, mode: string, uses: string, "
        "snapshot: long, last_row: array<long>>>, backfill string, since long, settings string, metrics string"
    ),
    "files": (
        "source string, batch long, file long, path string, size long, modified timestamp, framing string, "
        "decompressed_size long, messages map<string, long>, first_lsn long, last_lsn long, first_commit_lsn long, "
        "last_commit_lsn long, changes map<long, long>, watermarks array<struct<stretch: int, lsn: long>>, "
        "applied long, waiting long, aborted long, quarantined long, resent long, refused long, "
        "status string, offset long, consumed long, prefix_hash string, distinctive boolean, varied boolean, "
        "begins_in_stream boolean, ends_in_stream boolean, same_as long, unfinished boolean, reason string, head string"
    ),
    "relations": (
        "source string, batch long, oid long, schema string, table string, replica_identity string, "
        f"columns {_COLUMNS}, from_file long, from_ordinal long, scope long"
    ),
    "types": "source string, batch long, oid long, schema string, name string",
    "transactions": (
        "source string, batch long, xid long, gid string, fate string, commit_lsn long, commit_ts timestamp, "
        "file long, unit int, changes long, units array<struct<file: long, unit: int>>, scope long, "
        "aborted array<long>, origin string, origin_lsn long"
    ),
    "messages": (
        "source string, batch long, prefix string, content binary, lsn long, transactional boolean, xid long, "
        "commit_lsn long, commit_ts timestamp, file long, ordinal long"
    ),
    "quarantine": (
        "source string, batch long, schema string, table string, relation long, file long, path string, offset long, "
        "length long, lsn long, xid long, bytes binary, reason string, redriven long"
    ),
    "claims": (
        "source string, batch long, attempt long, run string, machine string, pid long, started long, status string, "
        "at timestamp"
    ),
    "schema_changes": (
        "source string, batch long, oid long, schema string, table string, commit_lsn long, file long, ordinal long, "
        "kind string, column string, detail string"
    ),
}


def schema_of(table: str) -> StructType:
    if table == "open_transactions":
        own = spark_schema(MESSAGE_SCHEMA)
        return StructType([*_struct("source string, batch long"), *own, *_struct("uses string")])
    return _struct(SCHEMAS[table])


def _struct(ddl: str) -> StructType:
    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    return parsed


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
    """The beginning and the end of a transaction. `changes` is NULL for a transaction of several fragments."""
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
        "columns": [asdict(column) for column in relation.columns],
    }


def relation_of(row: Mapping[str, Any]) -> Relation:
    identity = ReplicaIdentity(row["replica_identity"])
    return Relation(None, row["oid"], row["schema"], row["table"], identity, _columns(row["columns"]))


def _columns(rows: Iterable[Mapping[str, Any]]) -> tuple[RelationColumn, ...]:
    return tuple(RelationColumn(c["is_key"], c["name"], c["type_oid"], c["type_modifier"]) for c in rows)


def table_row(state: TableState) -> dict[str, Any]:
    as_json = {
        "relation": json.dumps(relation_row(state.relation)),
        "retired": json.dumps([asdict(column) for column in state.retired]),
    }
    lists = {"key": list(state.key), "types": list(state.types), "last_row": state.last_row and list(state.last_row)}
    fields = {name: value for name, value in asdict(state).items() if name != "masks"}
    return {**fields, **as_json, **lists, "mode": state.mode.value, "uses": json.dumps(dict(state.masks))}


def table_state(row: Mapping[str, Any]) -> TableState:
    fields = {name: value for name, value in row.items() if name != "uses"}
    parsed = {"relation": relation_of(json.loads(row["relation"])), "retired": _columns(json.loads(row["retired"]))}
    tuples = {"key": tuple(row["key"]), "types": tuple(row["types"])}
    # Older ledgers have no mode, masks or last row.
    mode, masks = Mode(row.get("mode") or Mode.MIRROR.value), json.loads(row.get("uses") or "{}")
    last_row = row.get("last_row") and tuple(row["last_row"])
    return TableState(**{**fields, **parsed, **tuples, "mode": mode, "masks": masks, "last_row": last_row})
