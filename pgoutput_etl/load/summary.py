"""Summarizes what a batch did to its tables, and derives the exit code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console

from pgoutput_etl.console import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.identifiers import printable


@dataclass(frozen=True, slots=True)
class TableSummary:
    """What a batch did to one table. rows, inserted, updated, deleted: row counts. held: why it was not updated."""

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


def exit_code_of_tables(tables: Iterable[TableSummary]) -> int:
    return EXIT_QUARANTINE if any(table.held for table in tables) else EXIT_DONE


def print_unchanged(console: Console, tables: Iterable[TableSummary], skipped: Sequence[str]) -> None:
    """Prints the tables that were not changed and why, then the tables that the configuration skips."""
    for table in tables:
        if table.held is not None:
            name = printable(f"{table.schema}.{table.table}")
            console.print(f"Not changed: {name}: {printable(table.held)}", markup=False)
    if skipped:
        console.print(f"Skipped, as configured: {printable(', '.join(skipped))}", markup=False)
