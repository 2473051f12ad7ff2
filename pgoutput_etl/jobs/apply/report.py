"""A run's summary: exit code, JSON and tables for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgoutput_etl.console import (
    EXIT_DONE,
    EXIT_QUARANTINE,
    grid,
    own_console,
)
from pgoutput_etl.identifiers import is_catalog_place, printable
from pgoutput_etl.load.summary import TableSummary
from pgoutput_etl.lsn import format_lsn

_SHOWN_FILES = 10


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a batch did. `last_commit_lsn` is the commit through which all tables are consistent.

    bytes: as landed; content_bytes: decompressed, and what became of them is in `accounts`. damages: what can't be
    read. logical_messages: of committed transactions ("transactional"), and of none ("others", as often as they came).
    last_commit_time: of the last commit in the archive, in microseconds since 2000-01-01 UTC.
    """

    source: str
    batch: int
    files: int
    bytes: int
    last_commit_lsn: int
    messages: dict[str, int] = field(default_factory=dict)
    tables: tuple[TableSummary, ...] = ()
    committed_transactions: int = 0
    open_transactions: int = 0
    resent_transactions: int = 0
    aborted_transactions: int = 0
    unknown_prepared: int = 0
    commits_without_prepare: tuple[str, ...] = ()  # of those, why their Prepare may be in a missing file
    quarantined_transactions: int = 0
    skipped: tuple[str, ...] = ()
    content_bytes: int = 0
    accounts: dict[str, int] = field(default_factory=dict)
    damages: tuple[str, ...] = ()
    files_not_read: tuple[str, ...] = ()  # what is said of files that were read before, or are still being written
    refused_files: tuple[str, ...] = ()  # why they were
    refused_transactions: int = 0  # of origins that the configuration refuses
    logical_messages: dict[str, int] = field(default_factory=dict)
    last_commit_time: int | None = None
    ahead: dict[str, int] = field(default_factory=dict)  # the LSN of a snapshot that the archive hasn't come to yet

    @property
    def exit_code(self) -> int:
        set_aside = (self.damages, self.refused_files, self.commits_without_prepare)
        is_whole = not any(set_aside) and not any(table.held for table in self.tables)
        return EXIT_DONE if is_whole else EXIT_QUARANTINE

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "lsn": format_lsn(self.last_commit_lsn), "exit_code": self.exit_code}


def exit_code_of_run(summaries: Iterable[RunSummary]) -> int:
    """What any of the batches set aside, the run did."""
    return max(summary.exit_code for summary in summaries)


def to_json(summaries: Sequence[RunSummary]) -> str:
    """One object: the batches, and what the last one leaves behind."""
    of_run = {**summaries[-1].to_dict(), "exit_code": exit_code_of_run(summaries)}
    return json.dumps({"batches": [s.to_dict() for s in summaries], **of_run}, indent=2)


def print_summary(summary: RunSummary, console: Console | None = None) -> None:
    """Prints the summary of one batch as text and a table."""
    console = console or own_console()
    if not summary.files:
        console.print(f"Nothing new in the landing folder of {summary.source}.", markup=False)
    else:
        console.print(
            f"Batch {summary.batch} of {summary.source}: {summary.files:,} files, {summary.bytes:,} bytes, "
            f"{sum(summary.messages.values()):,} messages, {summary.committed_transactions:,} committed transactions.",
            markup=False,
        )
    applied = [table for table in summary.tables if table.held is None]
    if applied:
        console.print(_table(applied))
    for line in _remarks(summary):
        console.print(line, markup=False)
    if summary.last_commit_lsn:
        is_whole = len(applied) == len(summary.tables) and not summary.ahead
        which = "All tables" if is_whole else "All other tables"
        lsn = format_lsn(summary.last_commit_lsn)
        console.print(f"{which} are consistent through LSN {lsn}.", markup=False)
    if applied:
        shown = max(applied, key=lambda t: t.rows)
        look = f"./spark-submit.sh jobs/show.py '{shown.path}'"
        if is_catalog_place(shown.path):
            look = f"SELECT * FROM {shown.path}"
        console.print(f"To look at one of them:\n  {look}", markup=False, soft_wrap=True)


def _table(tables: list[TableSummary]) -> Table:
    rows = grid("table", ("rows", "inserted", "updated", "deleted", "version"), ["notes"])
    for t in tables:
        counts = (f"{n:,}" for n in (t.rows, t.inserted, t.updated, t.deleted, t.version))
        rows.add_row(Text(printable(f"{t.schema}.{t.table}")), *counts, Text(printable("; ".join(t.notes))))
    return rows


def _remarks(summary: RunSummary) -> list[str]:
    lines = [
        f"Left where it stands: {printable(t.schema)}.{printable(t.table)}: {printable(t.held)}"
        for t in summary.tables
        if t.held is not None
    ]
    lines += [f"Ahead, by a snapshot as of LSN {format_lsn(at)}: {printable(t)}" for t, at in summary.ahead.items()]
    lines += [f"In quarantine: {printable(damage)}" for damage in summary.damages]
    if summary.quarantined_transactions:
        lines.append(
            f"In quarantine, as a part of each can't be read: {summary.quarantined_transactions:,} transactions."
        )
    lines += [f"Not applied: {printable(line)}" for line in summary.refused_files]
    lines += [f"Maybe missing: {printable(line)}" for line in summary.commits_without_prepare]
    lines += _shortened([printable(line) for line in summary.files_not_read])
    if summary.skipped:
        lines.append(f"Skipped, as configured: {printable(', '.join(summary.skipped))}")
    if summary.open_transactions:
        lines.append(f"Waiting for their end, in the ledger: {summary.open_transactions:,} transactions.")
    if summary.aborted_transactions:
        lines.append(f"Aborted after they were sent: {summary.aborted_transactions:,} transactions.")
    if summary.refused_transactions:
        lines.append(f"Not applied, as their origin is refused: {summary.refused_transactions:,} transactions.")
    if any(summary.logical_messages.values()):
        of_transactions, others = (summary.logical_messages.get(name, 0) for name in ("transactional", "others"))
        lines.append(f"Logical decoding Messages: {of_transactions:,} of transactions, {others:,} of none.")
    if summary.resent_transactions:
        lines.append(f"Sent more than once, applied once: {summary.resent_transactions:,} transactions.")
    if summary.accounts:
        parts = ", ".join(f"{size:,} {name}" for name, size in summary.accounts.items() if size or name == "applied")
        lines.append(f"Of {summary.content_bytes:,} bytes of content: {parts}.")
    if summary.unknown_prepared:
        lines.append(f"Ends of prepared transactions that were never sent: {summary.unknown_prepared:,}.")
    return lines


def _shortened(lines: list[str]) -> list[str]:
    more = len(lines) - _SHOWN_FILES
    return lines if more <= 0 else [*lines[:_SHOWN_FILES], f"… and {more:,} more files"]
