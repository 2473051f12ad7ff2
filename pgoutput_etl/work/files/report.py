"""A run's summary: exit code, JSON, and text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from rich.console import Console

from pgoutput_etl.answers.command_line import show_line
from pgoutput_etl.answers.next_commands import NextCommand, next_lines
from pgoutput_etl.console import content_line, counted, grid, print_parts, shortened
from pgoutput_etl.exit_codes import quarantine_code
from pgoutput_etl.inspection.float_digits import rounding_remark
from pgoutput_etl.load.summary import TableSummary, unchanged_lines
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.places import Place
from pgoutput_etl.targets.column_descriptions import TargetColumn
from pgoutput_etl.targets.condition import (
    TableCondition,
    condition_lines,
    consistency_line,
    excepted_tables,
    named,
)
from pgoutput_etl.targets.drops import dropped_line
from pgoutput_etl.timestamps import time_of

_SHOWN_FILES = 10


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The result of one batch. last_commit_lsn: all tables are consistent through this commit, except tables with a
    condition and tables that are ahead.

    bytes: size as landed. content_bytes: decompressed size, which `accounts` breaks down. damages: unreadable ranges of
    bytes. commits_without_prepare: commits of prepared transactions whose Prepare may be in a missing file.
    files_not_read: remarks about files that were read before or are still being written. refused_files: files with the
    reasons. refused_transactions: number of transactions from origins that the configuration refuses. logical_messages:
    number of Messages in committed transactions ("transactional"), and outside transactions, counted each time they
    arrived ("others"). ignored_catalog_messages: their numbers, by reason. dropped: tables that were dropped on the
    server and that no rule accepts as dropped. unknown_definitions: tables whose definitions in the catalog are
    unknown, because catalog Messages are missing. last_commit_time: time of the archive's last commit, in microseconds
    since 2000-01-01 UTC. ahead: by table, the LSN of a snapshot that the archive has not reached yet. first_seen: by
    new table, the LSN of its first change; the table lacks earlier rows, if there are any. conditions: after the batch,
    of all tables of the source, including unchanged ones. verified_through: by table, the last LSN at which `verify`
    found it equal to the server's. added_columns: new columns of existing tables; older rows lack the column's DEFAULT,
    if it has one. rounded_floats: files whose floats seem to be rounded by the sender. swaps: by table, why other
    tables seem to have been renamed to it. next: commands that resolve conditions, quarantined or refused data, swaps,
    and tables that are ahead. unpublished: why views and manifest show an earlier batch. columns: those of each written
    table, by table name; for lineage, not for JSON.
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
    commits_without_prepare: tuple[str, ...] = ()
    quarantined_transactions: int = 0
    skipped: tuple[str, ...] = ()
    content_bytes: int = 0
    accounts: dict[str, int] = field(default_factory=dict)
    damages: tuple[str, ...] = ()
    files_not_read: tuple[str, ...] = ()
    refused_files: tuple[str, ...] = ()
    refused_transactions: int = 0
    logical_messages: dict[str, int] = field(default_factory=dict)
    ignored_catalog_messages: dict[str, int] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    unknown_definitions: tuple[str, ...] = ()
    last_commit_time: int | None = None
    ahead: dict[str, int] = field(default_factory=dict)
    first_seen: dict[str, int] = field(default_factory=dict)
    conditions: tuple[TableCondition, ...] = ()
    verified_through: dict[str, int] = field(default_factory=dict)
    added_columns: tuple[str, ...] = ()
    rounded_floats: tuple[str, ...] = ()
    swaps: dict[str, str] = field(default_factory=dict)
    next: tuple[NextCommand, ...] = ()
    unpublished: str | None = None
    columns: Mapping[str, tuple[TargetColumn, ...]] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        set_aside = (self.damages, self.refused_files, self.commits_without_prepare, self.unpublished)
        return quarantine_code(*set_aside, self.conditions, self.swaps)

    @property
    def excepted(self) -> dict[str, str]:
        """The tables that are not known to be consistent with the others, by name, each with a one-word reason."""
        return excepted_tables(self.conditions, self.ahead, self.swaps)

    def lag(self, now: datetime) -> float | None:
        """Seconds since the archive's last commit; None if no commit is known."""
        return None if self.last_commit_time is None else (now - time_of(self.last_commit_time)).total_seconds()

    def values(self) -> dict[str, Any]:
        """The summary's fields for JSON."""
        values = asdict(replace(self, columns={}))
        del values["columns"]
        return {**values, "lsn": format_lsn(self.last_commit_lsn), "exit_code": self.exit_code}


@dataclass(frozen=True, slots=True)
class RunReport:
    """The batches of one run; at least one."""

    batches: Sequence[RunSummary]

    @property
    def exit_code(self) -> int:
        """The worst of all batches. Only the last batch's conditions count, because earlier ones may have ended."""
        *others, last = self.batches
        return max([last.exit_code, *(replace(batch, conditions=()).exit_code for batch in others)])

    def to_json(self) -> str:
        """One object: the last batch's summary plus all batches."""
        batches = [batch.values() for batch in self.batches]
        return json.dumps({"batches": batches, **batches[-1], "exit_code": self.exit_code}, indent=2)


def print_run(report: RunReport, console: Console | None = None) -> None:
    """Prints the summary of each batch."""
    for batch in report.batches:
        print_summary(batch, console)


def print_summary(summary: RunSummary, console: Console | None = None) -> None:
    """Prints the summary of one batch, as text and a table."""
    heading = f"Nothing new in the landing folder of {summary.source}."
    if summary.files:
        heading = (
            f"Batch {summary.batch} of {summary.source}: {counted(summary.files, 'file')}, "
            f"{counted(summary.bytes, 'byte')}, {counted(sum(summary.messages.values()), 'message')}, "
            f"{counted(summary.committed_transactions, 'committed transaction')}."
        )
    applied = [table for table in summary.tables if table.held is None]
    rows = [(t.name, (t.rows, t.inserted, t.updated, t.deleted, t.version), ["; ".join(t.notes)]) for t in applied]
    table = grid("table", ("rows", "inserted", "updated", "deleted", "version"), ["notes"], rows)
    print_parts([heading, table, *_remarks(summary)], console)
    if applied:
        place = Place.parse(max(applied, key=lambda t: t.rows).path)
        query = f"SELECT * FROM {place}" if place.is_in_catalog and not place.tag else show_line(str(place))
        print_parts(["To look at one of them:", f"  {query}"], console, soft_wrap=True)
    print_parts(next_lines(summary.next), console, soft_wrap=True)


def _missing_rows(summary: RunSummary) -> list[str]:
    """Rows and defaults that the archive may lack."""
    lines = condition_lines(summary.conditions)
    known = {condition.name for condition in summary.conditions}
    accepted = [name for name in summary.first_seen if name not in known]
    if accepted:
        lines.append(f"No snapshot: rows older than the archive, if any, are missing from {named(accepted)}.")
    if summary.added_columns:
        names = named(summary.added_columns)
        lines.append(f"A DEFAULT in older rows, if any, is missing: {names}. A snapshot with --repair writes it.")
    return lines


def _remarks(summary: RunSummary) -> list[str]:
    lines = unchanged_lines(summary.tables, ())
    lines += [f"Ahead, by a snapshot as of LSN {format_lsn(lsn)}: {table}" for table, lsn in summary.ahead.items()]
    lines += [f"Possibly replaced: {swap}." for swap in summary.swaps.values()]
    lines += _missing_rows(summary)
    if summary.rounded_floats:
        first, *more = summary.rounded_floats
        lines.append(rounding_remark(f"{first} and {counted(len(more), 'other file')}" if more else first) + ".")
    lines += [f"In quarantine: {damage}" for damage in summary.damages]
    if summary.quarantined_transactions:
        lines.append(
            f"In quarantine, because partly unreadable: {counted(summary.quarantined_transactions, 'transaction')}."
        )
    lines += [f"Not applied: {file}" for file in summary.refused_files]
    lines += [f"Possibly missing: {commit}" for commit in summary.commits_without_prepare]
    lines += shortened(summary.files_not_read, _SHOWN_FILES, "files")
    lines += unchanged_lines((), summary.skipped)
    counts = (
        (summary.open_transactions, "open transaction", "kept until the end arrives"),
        (summary.aborted_transactions, "rolled-back transaction", "skipped"),
        (summary.refused_transactions, "transaction", "not applied, because the origin is refused"),
    )
    lines += [f"{counted(count, noun)}: {fate}." for count, noun, fate in counts if count]
    if any(summary.logical_messages.values()):
        transactional, others = (summary.logical_messages.get(name, 0) for name in ("transactional", "others"))
        lines.append(f"Logical decoding Messages: {transactional:,} transactional, {others:,} non-transactional.")
    lines += dropped_line(summary.dropped)
    lines += [
        f"Ignored: {counted(count, 'catalog Message')}, because {why}"
        for why, count in sorted(summary.ignored_catalog_messages.items())
    ]
    if summary.unknown_definitions:
        lines.append(
            f"Read as without catalog Messages, because some are missing: {named(summary.unknown_definitions)}. On the "
            "server: select pgoutput_etl.send_catalog()"
        )
    if summary.resent_transactions:
        lines.append(f"Sent more than once, applied once: {counted(summary.resent_transactions, 'transaction')}.")
    if summary.accounts:
        lines.append(content_line(summary.content_bytes, summary.accounts))
    if summary.unpublished is not None:
        lines.append(
            f"Views and manifest still show an earlier batch, and every run tries again: {summary.unpublished}"
        )
    if summary.unknown_prepared:
        lines.append(f"Prepared transactions that ended but were never sent: {summary.unknown_prepared:,}.")
    if summary.last_commit_lsn:
        lines.append(consistency_line(summary.last_commit_lsn, summary.excepted))
    return lines
