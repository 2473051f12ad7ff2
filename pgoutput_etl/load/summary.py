"""Summaries of the tables of a batch, and of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pgoutput_etl.errors import coded_reason
from pgoutput_etl.targets.column_descriptions import TargetColumn
from pgoutput_etl.targets.condition import TableCondition

ROW_OPERATIONS = ("inserted", "updated", "deleted")


@dataclass(frozen=True, slots=True)
class TableSummary:
    """A batch's effect on one table. rows, inserted, updated, deleted: row counts. held: why it was not updated."""

    schema: str
    table: str
    path: str
    version: int
    rows: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    notes: tuple[str, ...] = ()
    held: str | None = None

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def changed_rows(self) -> int:
        return self.inserted + self.updated + self.deleted


@dataclass(frozen=True, slots=True)
class ChangedTables:
    """The tables that a job changed, and their conditions. A table of several batches has several summaries. columns:
    by table, of those that apply wrote."""

    tables: tuple[TableSummary, ...] = ()
    conditions: tuple[TableCondition, ...] = ()
    columns: Mapping[str, tuple[TargetColumn, ...]] = field(default_factory=dict)


NO_CHANGES = ChangedTables()


def unchanged_lines(tables: Iterable[TableSummary], skipped: Sequence[str]) -> list[str]:
    """The tables that were not changed, with the reasons, then the tables that the configuration skips."""
    lines = [f"Not changed: {table.name}: {coded_reason(table.held)}" for table in tables if table.held is not None]
    return [*lines, f"Skipped, as configured: {', '.join(skipped)}"] if skipped else lines
