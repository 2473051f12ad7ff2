"""The summary of one table after a batch, and the exit code of several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console

from pgoutput_etl.console import (
    EXIT_DONE,
    EXIT_QUARANTINE,
)
from pgoutput_etl.identifiers import printable


@dataclass(frozen=True, slots=True)
class TableSummary:
    """What a batch did to one table. The counts are of rows; held: why it was left where it stands."""

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


def print_left(console: Console, tables: Iterable[TableSummary], skipped: Sequence[str]) -> None:
    """The tables that were left as they were, and why; those that the configuration skips."""
    for table in tables:
        if table.held is not None:
            name = printable(f"{table.schema}.{table.table}")
            console.print(f"Left as it was: {name}: {printable(table.held)}", markup=False)
    if skipped:
        console.print(f"Skipped, as configured: {printable(', '.join(skipped))}", markup=False)
