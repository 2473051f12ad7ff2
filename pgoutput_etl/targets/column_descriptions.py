"""The columns of a target with their types and origins, for catalogs and tools that don't read the Delta log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.schema.column_matching import Declared, facts_of
from pgoutput_etl.schema.table_shape import TableColumn
from pgoutput_etl.targets.modes import UNREPRESENTABLE_COLUMN, table_mode
from pgoutput_etl.types.sql_type import sql_type

_METADATA: Mapping[str, tuple[str, str]] = {
    "_pg_commit_lsn": ("bigint", "Commit LSN of the transaction that wrote this row"),
    "_pg_commit_ts": ("timestamp", "Commit time of the transaction that wrote this row"),
    "_pg_xid": ("bigint", "Transaction ID of the transaction that wrote this row"),
    UNREPRESENTABLE_COLUMN: (
        "map<string,string>",
        "PostgreSQL's text of values that their columns cannot hold, by column",
    ),
}


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of a Delta table.

    type: in Spark's SQL. sources: the column's current and former names in PostgreSQL, as far as known; empty for a
    column that the mode adds. mask: hash or redact, or None. description: "" if unknown.
    """

    name: str
    type: str
    sources: tuple[str, ...] = ()
    mask: str | None = None
    description: str = ""


def target_columns(
    columns: Iterable[TableColumn],
    mode: Mode,
    masks: Mapping[str, str],
    former_names: Declared,
    tag: Iterable[str] = (),
) -> tuple[TargetColumn, ...]:
    """All columns of a target, in order. masks: as in TableState. former_names: as in TableRule.lineage. tag: columns
    that mark each source's rows in a shared table."""
    marks = (TargetColumn(name, "string", description="Marks the rows of one source") for name in tag)
    own = (_own_column(column, masks.get(column.name), facts_of(former_names.get(column.name))) for column in columns)
    return (*marks, *own, *columns_of_mode(mode))


def columns_of_mode(mode: Mode) -> tuple[TargetColumn, ...]:
    """The columns that don't come from PostgreSQL."""
    columns = {**_METADATA, **table_mode(mode).columns}
    return tuple(TargetColumn(name, own_type, description=text) for name, (own_type, text) in columns.items())


def _own_column(column: TableColumn, mask: str | None, former_names: Iterable[str | None]) -> TargetColumn:
    action = None if mask is None else mask.partition(":")[0]  # the rest is the replacement or the salt's fingerprint
    origin = f"PostgreSQL {column.type.name}" if action is None else {"hash": "Hashed", "redact": "Redacted"}[action]
    description = f"{origin}; no longer sent under this name" if column.retired else origin
    sources = tuple(dict.fromkeys((column.name, *(name for name in former_names if name is not None))))
    return TargetColumn(column.name, sql_type(column.type), sources, action, description)
