"""The inspect job's report, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from pgoutput_etl.console import Row, content_line, counted, grid, print_parts, shortened
from pgoutput_etl.inspection import report_model
from pgoutput_etl.inspection.report_model import ArchiveReport
from pgoutput_etl.inspection.schema_changes import SchemaCommand
from pgoutput_etl.inspection.server_settings import FORMAT

_MAX_ROWS = 20

_KINDS = {"I": "inserts", "U": "updates", "D": "deletes", "T": "truncates"}


def print_schema_commands(commands: Sequence[SchemaCommand], console: Console | None = None) -> None:
    rows: list[Row] = []
    for command in commands:
        texts = (command.commit_lsn or "", command.command, f"{command.schema}.{command.table}")
        rows.append((command.commit_time or "", [str(command.xid or "")], [*texts, "; ".join(command.changes)]))
    listed = grid("committed", ["xid"], ["LSN", "command", "table", "changes"], rows)
    print_parts([listed if rows else "No catalog Message shows a schema change."], console)


def schema_commands_json(commands: Sequence[SchemaCommand]) -> str:
    return json.dumps([asdict(command) for command in commands], indent=2)


def print_report(report: ArchiveReport, console: Console | None = None) -> None:
    """Prints the contents of files."""
    print_parts([*_heading(report), _files(report.files), _relations(report.relations)], console)
    print_parts([line for relation in report.relations for line in _versions(relation)], console, soft_wrap=True)
    biggest = _transactions("Biggest transactions", report.biggest)
    open_at_end = _transactions("Open transactions: their end is not in these files", report.open[:_MAX_ROWS])
    print_parts([biggest, open_at_end, *_ending(report)], console)


def _heading(report: ArchiveReport) -> list[str]:
    lines = [
        f"{counted(len(report.files), 'file')}, {counted(report.bytes, 'byte')} ({report.content_bytes:,} of content).",
        f"{counted(sum(report.messages.values()), 'message')}, framing {', '.join(report.framings) or 'unknown'}.",
    ]
    if report.messages:
        lines.append(f"Protocol {report.protocol}; {report.server}. {_settings(report)}")
    if report.last_lsn is not None:
        lines.append(f"LSNs {report.first_lsn} to {report.last_lsn}.")
    if report.last_commit_lsn is not None:
        lines.append(f"Commits from {report.first_commit_lsn} to {report.last_commit_lsn}.")
    if report.last_commit_time is not None:
        lines.append(f"Committed from {report.first_commit_time} to {report.last_commit_time}.")
    counts = ", ".join(f"{count:,} {status}" for status, count in report.transactions.items() if count)
    lines.append(f"Transactions: {counts or 'none'}.")
    if report.sizes:
        sizes = ", ".join(f"{count:,} with {name} changes" for name, count in report.sizes.items())
        lines.append(f"Committed transactions: {sizes}.")
    return lines


def _settings(report: ArchiveReport) -> str:
    settings = {setting: ", ".join(values) for setting, values in report.settings.items()}
    formats = settings.pop(FORMAT, None)
    parts = [] if formats is None else [f"Values in {formats.replace(', ', ' and ')} format"]
    parts += [f"{setting} {value}" for setting, value in settings.items()]
    return "; ".join(parts) + "." if parts else "No values to infer settings from."


def _files(files: Sequence[report_model.FileReport]) -> Table:
    rows: list[Row] = []
    for file in files:
        resent = f", resent {counted(file.reconnections, 'time')}" if file.reconnections else ""
        texts = (file.framing or "", file.first_commit_lsn or "", file.last_commit_lsn or "", file.status + resent)
        rows.append((file.path, (file.size, sum(file.messages.values())), texts))
    return grid("file", ("bytes", "messages"), ("framing", "first commit", "last commit", "status"), rows, _MAX_ROWS)


def _relations(relations: Iterable[report_model.RelationReport]) -> Table:
    rows: list[Row] = []
    for relation in relations:
        name = "no Relation message" if relation.schema is None else f"{relation.schema}.{relation.table}"
        counts = [len(relation.versions), *(relation.committed[tag] for tag in _KINDS)]
        others = ", ".join(f"{count:,} {status}" for status, count in relation.others.items())
        rows.append((name, [str(relation.oid), *counts], [others]))
    return grid("table", ("OID", "versions", *_KINDS.values()), ["not committed"], rows, rare=["truncates"])


def _versions(relation: report_model.RelationReport) -> list[str]:
    lines = []
    for number, version in enumerate(relation.versions, start=1):
        suffix = f" (version {number})" if len(relation.versions) > 1 else ""
        lines.append(f"{version.schema}.{version.table}{suffix}: {_columns(version)}")
    return lines


def _columns(version: report_model.VersionReport) -> str:
    columns = ", ".join(f"{c.name} {c.type}{' key' if c.is_key else ''}" for c in version.columns)
    return f"{columns}; replica identity {version.replica_identity}"


def _transactions(title: str, transactions: Iterable[report_model.TransactionReport]) -> Table:
    rows = []
    for transaction in transactions:
        committed = " ".join(text for text in (transaction.commit_lsn, transaction.commit_time) if text)
        texts = (transaction.kind, transaction.fate, committed, transaction.gid or "", transaction.file)
        rows.append((str(transaction.xid or ""), (transaction.changes, transaction.size), texts))
    table = grid("xid", ("changes", "bytes"), ("kind", "status", "committed", "gid", "begins in"), rows)
    table.title, table.title_justify, table.columns[0].justify = title, "left", "right"
    return table


def _ending(report: ArchiveReport) -> list[str]:
    lines = []
    if report.origins:
        lines.append("Origins: " + ", ".join(f"{name} {count:,}" for name, count in report.origins.items()) + ".")
    for prefix, count in report.prefixes.items():
        lines.append(
            f"Messages with the prefix {prefix!r}: {count['transactional']:,} transactional, "
            f"{count['non_transactional']:,} non-transactional, {counted(count['size'], 'byte')}."
        )
    lines += [f"Can't be read: {line}" for line in (*report.unreadable, *report.damages)]
    lines += [f"Missing, or out of order: {line}" for line in report.gaps]
    lines += shortened(report.remarks, _MAX_ROWS, "remarks")
    lines.append(content_line(report.content_bytes, report.accounts))
    if report.unknown_prepared:
        lines.append(f"Prepared transactions that ended but were never sent: {report.unknown_prepared:,}.")
    lines.append("Damaged: see above." if report.is_damaged else "Nothing is damaged or missing.")
    return lines
