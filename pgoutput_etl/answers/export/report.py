"""The result of the export job."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from pgoutput_etl.answers.export.request import SCRIPT
from pgoutput_etl.console import grid, print_parts, summary_json
from pgoutput_etl.exit_codes import quarantine_code
from pgoutput_etl.lsn import format_lsn


@dataclass(frozen=True, slots=True)
class ExportedTable:
    """folder: relative to the export's. rows: row count. never_sent: number of rows with a value that the archive
    doesn't have, which is NULL in the file. notes: about columns. why_not: why the table was not exported."""

    name: str
    folder: str = ""
    rows: int = 0
    never_sent: int = 0
    notes: tuple[str, ...] = ()
    why_not: str | None = None


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """lsn: the last commit that the tables include. folder: contains a folder per table, and the script that loads
    them."""

    source: str
    lsn: int
    folder: str
    tables: tuple[ExportedTable, ...] = ()

    @property
    def exit_code(self) -> int:
        return quarantine_code(*(table.why_not for table in self.tables))

    def to_json(self) -> str:
        return summary_json(self, lsn=format_lsn(self.lsn))


def print_export(summary: ExportSummary, console: Console | None = None) -> None:
    """Prints the exported tables and the command that loads them."""
    written = [table for table in summary.tables if table.why_not is None]
    rows = [(t.name, (t.rows, t.never_sent), ("; ".join(t.notes), t.folder)) for t in written]
    table = grid("table", ("rows", "never sent"), ("notes", "folder"), rows, rare=("never sent",))
    left = [f"Not exported: {t.name}: {t.why_not}" for t in summary.tables if t.why_not is not None]
    print_parts([f"{summary.source} as of LSN {format_lsn(summary.lsn)}", table, *left], console)
    if written:
        load = f"cd {summary.folder} && psql -f {SCRIPT}"
        print_parts([f"Load them into empty tables with these columns: {load}"], console, soft_wrap=True)
