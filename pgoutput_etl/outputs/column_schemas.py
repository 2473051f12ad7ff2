"""Writes every version of each table's columns that the ledger records, as JSON Schema and Avro."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import RunError
from pgoutput_etl.file_access import PUBLIC
from pgoutput_etl.identifiers import path_segment
from pgoutput_etl.ledger.reader import LedgerReader
from pgoutput_etl.ledger.recent_batches import user_types
from pgoutput_etl.ledger.tables import table_state
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.outputs.documents import avro_schema, json_schema
from pgoutput_etl.replace_file import replace_file
from pgoutput_etl.schema.table_shape import table_columns
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.types import UserTypes


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """number: 1 for the first columns of a name. lsn: the table's LSN after the first batch with these columns."""

    state: TableState
    number: int
    lsn: int


def write_schemas(config: Config, folder: str) -> None:
    """Writes `<schema>/<table>/<version>.schema.json` and `.avsc`. Raises RunError."""
    reader = LedgerReader.of(config)
    types = user_types(reader, config.types)
    try:
        for version in schema_versions(reader.rows("batches", _BATCH)):
            _write(Path(folder), config.source.name, version, types)
    except OSError as error:
        raise RunError(f"{folder}: the schemas can't be written: {error.strerror}") from None


_BATCH = ("batch", "status", "last_commit_lsn", "tables")


def schema_versions(batches: list[dict[str, Any]]) -> Iterator[SchemaVersion]:
    """batches: rows of the ledger. A table that was dropped and created again continues the versions of its name."""
    last: dict[tuple[str, str], tuple[object, int]] = {}
    for batch in sorted((row for row in batches if row["status"] == "done"), key=lambda row: row["batch"]):
        for state in _shown(batch):
            name = (state.schema, state.table)
            columns = (state.relation.columns, state.retired, state.key, state.types)
            before, number = last.get(name, (None, 0))
            if columns != before:
                last[name] = (columns, number + 1)
                yield SchemaVersion(state, number + 1, max(state.last_commit_lsn, 0))


def _shown(batch: Mapping[str, Any]) -> Iterator[TableState]:
    states = (table_state(table) for table in batch["tables"] or ())
    return (state for state in states if state.is_readable)


def _write(folder: Path, source: str, version: SchemaVersion, types: UserTypes) -> None:
    state = version.state
    columns = table_columns(state.relation, state.retired, types)
    own, key = folder / path_segment(state.schema) / path_segment(state.table), _key(state)
    own.mkdir(parents=True, exist_ok=True)
    since = {"x-version": version.number, "x-since-lsn": format_lsn(version.lsn)}
    place = "/".join(map(path_segment, (source, state.schema, state.table, str(version.number))))
    described = json_schema(f"urn:pgoutput_etl:{place}", state.full_name, columns, key)
    replace_file(own / f"{version.number}.schema.json", json.dumps({**described, **since}, indent=2) + "\n", PUBLIC)
    avro = avro_schema(f"{source}_{state.schema}", state.table, columns, key)
    replace_file(own / f"{version.number}.avsc", json.dumps({**avro, **since}, indent=2) + "\n", PUBLIC)


def _key(state: TableState) -> tuple[str, ...]:
    """The columns that are never NULL. In mode append, a TRUNCATE's row has no key."""
    return state.key if table_mode(state.mode).has_rows else ()
