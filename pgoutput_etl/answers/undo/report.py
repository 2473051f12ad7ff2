"""The result of the undo job."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass

from rich.console import Console

from pgoutput_etl.answers.undo.request import SCRIPT
from pgoutput_etl.answers.undo.script import UndoneTable
from pgoutput_etl.answers.undo.steps import Operation
from pgoutput_etl.console import counted, grid, print_parts, summary_json
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.lsn import format_lsn

_SHOWN_XIDS = 8


@dataclass(frozen=True, slots=True)
class TableUndo:
    """inserts, updates, deletes: changes that the script undoes. conflicts: number of rows that it leaves unchanged;
    xids: later transactions that changed these rows; lost: number of these rows with a former value that isn't in the
    archive. kept: new columns, which keep what an UPDATE set."""

    name: str
    inserts: int
    updates: int
    deletes: int
    conflicts: int = 0
    lost: int = 0
    xids: tuple[int, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A table that the script leaves unchanged."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class UndoSummary:
    """commits: number of transactions to undo. last_commit_lsn: the last commit that was searched for conflicts.
    script, page: file names in the folder. server: the source's, as libpq's URL; empty if it is not configured."""

    source: str
    folder: str
    commits: int
    last_commit_lsn: int
    tables: tuple[TableUndo, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    script: str = SCRIPT
    page: str = "undo.html"
    server: str = ""

    @property
    def title(self) -> str:
        return f"Undo of {counted(self.commits, 'transaction')} of {self.source}"

    @property
    def changes(self) -> int:
        """The number of changes that the script undoes."""
        return sum(t.inserts + t.updates + t.deletes for t in self.tables)

    @property
    def exit_code(self) -> int:
        is_whole = not self.left_out and not any(table.conflicts or table.kept for table in self.tables)
        return EXIT_DONE if is_whole else EXIT_QUARANTINE

    def to_json(self) -> str:
        return summary_json(self, last_commit_lsn=format_lsn(self.last_commit_lsn))


def counts_of(table: UndoneTable) -> TableUndo:
    counts = Counter(step.operation for step in table.steps)
    xids = tuple(sorted({xid for conflict in table.conflicts for xid in conflict.xids}))
    lost = sum(not conflict.xids for conflict in table.conflicts)
    inserts, updates, deletes = (counts[operation] for operation in Operation)
    return TableUndo(table.full_name, inserts, updates, deletes, len(table.conflicts), lost, xids, table.kept)


def print_undo(summary: UndoSummary, console: Console | None = None) -> None:
    """Prints the counts by table, and how to run the script. console: None for standard output."""
    rows = [(t.name, (t.inserts, t.updates, t.deletes, t.conflicts), (changed_again_by(t),)) for t in summary.tables]
    heads = ("inserts", "updates", "deletes", "conflicts")
    table = grid("table", heads, ("changed again by",), rows, rare=("conflicts",))
    left = [f"Left out: {t.name}: {t.reason}" for t in summary.left_out]
    left += [f"New columns keep what they hold: {t.name}: {', '.join(t.kept)}" for t in summary.tables if t.kept]
    through = f"compared with all commits up to LSN {format_lsn(summary.last_commit_lsn)}"
    print_parts([f"{summary.title}, {through}", table, *left], console)
    if summary.changes:
        run = f"Read {summary.folder}/{summary.page}, then run: {psql_line(summary)}"
        triggers = "First it names the triggers that will fire. If one changes a restored row, nothing is undone."
        print_parts([run, triggers], console, soft_wrap=True)


def psql_line(summary: UndoSummary) -> str:
    """The command that runs the script, quoted for a shell. Without a server, psql uses the one in its environment."""
    server = ("-d", summary.server) if summary.server else ()
    return shlex.join(("psql", "-X", "-q", *server, "-f", f"{summary.folder.rstrip('/')}/{summary.script}"))


def changed_again_by(table: TableUndo) -> str:
    """The first xids of a table's conflicts, in words."""
    shown = [", ".join(map(str, table.xids[:_SHOWN_XIDS]))] if table.xids else []
    more = len(table.xids) - _SHOWN_XIDS
    words = [f"{shown[0]} and {more:,} more" if more > 0 else shown[0]] if shown else []
    words += [f"{counted(table.lost, 'row')} with unknown values"] if table.lost else []
    return "; ".join(words)
