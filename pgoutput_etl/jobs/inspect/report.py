"""An inspection's report, as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgoutput_etl.console import EXIT_DONE, EXIT_QUARANTINE, grid, own_console
from pgoutput_etl.identifiers import printable
from pgoutput_etl.inspection.report_model import (
    ArchiveReport,
    FileReport,
    RelationReport,
    TransactionReport,
    VersionReport,
)
from pgoutput_etl.inspection.server_settings import FORMAT

_MAX_ROWS = 20

_KINDS = {"I": "inserts", "U": "updates", "D": "deletes", "T": "truncates"}


def exit_code(report: ArchiveReport) -> int:
    return EXIT_QUARANTINE if report.is_damaged else EXIT_DONE


def report_json(report: ArchiveReport) -> str:
    return json.dumps({**report.to_dict(), "exit_code": exit_code(report)}, indent=2)


def print_report(report: ArchiveReport, console: Console | None = None) -> None:
    console = console or own_console()
    for line in _heading(report):
        console.print(printable(line), markup=False)
    if report.files:
        console.print(_files(report.files))
    if report.relations:
        console.print(_relations(report.relations))
    for relation in report.relations:
        for line in _versions(relation):
            console.print(printable(line), markup=False, soft_wrap=True)
    if report.biggest:
        console.print(_transactions("Biggest transactions", report.biggest))
    if report.open:
        console.print(_transactions("Open transactions: their end is not in these files", report.open[:_MAX_ROWS]))
    for line in _ending(report):
        console.print(printable(line), markup=False)


def _heading(report: ArchiveReport) -> list[str]:
    lines = [
        f"{len(report.files):,} files, {report.bytes:,} bytes ({report.content_bytes:,} of content).",
        f"{sum(report.messages.values()):,} messages, framing {', '.join(report.framings) or 'unknown'}.",
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


def _files(files: Sequence[FileReport]) -> Table:
    rows = grid("file", ("bytes", "messages"), ("framing", "first commit", "last commit", "status"))
    for file in files[:_MAX_ROWS]:
        counts = f"{file.size:,}", f"{sum(file.messages.values()):,}"
        resent = f", resent {file.reconnections:,} times" if file.reconnections else ""
        texts = (file.framing, file.first_commit_lsn, file.last_commit_lsn, file.status + resent)
        rows.add_row(Text(printable(file.path)), *counts, *(text or "" for text in texts))
    if len(files) > _MAX_ROWS:
        rows.add_row(f"… and {len(files) - _MAX_ROWS:,} more")
    return rows


def _relations(relations: Iterable[RelationReport]) -> Table:
    rows = grid("table", ("OID", "versions", *_KINDS.values()), ["not committed"])
    for relation in relations:
        counts = (len(relation.versions), *(relation.committed[tag] for tag in _KINDS))
        others = ", ".join(f"{count:,} {status}" for status, count in relation.others.items())
        rows.add_row(Text(printable(_name(relation))), str(relation.oid), *(f"{n:,}" for n in counts), others)
    return rows


def _name(relation: RelationReport) -> str:
    return "no Relation message" if relation.schema is None else f"{relation.schema}.{relation.table}"


def _versions(relation: RelationReport) -> list[str]:
    lines = []
    for number, version in enumerate(relation.versions, start=1):
        suffix = f" (version {number})" if len(relation.versions) > 1 else ""
        lines.append(f"{version.schema}.{version.table}{suffix}: {_columns(version)}")
    return lines


def _columns(version: VersionReport) -> str:
    columns = ", ".join(f"{c.name} {c.type}{' key' if c.is_key else ''}" for c in version.columns)
    return f"{columns}; replica identity {version.replica_identity}"


def _transactions(title: str, transactions: Iterable[TransactionReport]) -> Table:
    grid = Table(title=title, title_justify="left")
    for name in ("xid", "changes", "bytes"):
        grid.add_column(name, justify="right")
    for name in ("kind", "status", "committed", "gid", "begins in"):
        grid.add_column(name, overflow="fold")
    for transaction in transactions:
        counts = str(transaction.xid or ""), f"{transaction.changes:,}", f"{transaction.size:,}"
        committed = " ".join(text for text in (transaction.commit_lsn, transaction.commit_time) if text)
        names = (Text(printable(text)) for text in (transaction.gid or "", transaction.file))
        grid.add_row(*counts, transaction.kind, transaction.fate, committed, *names)
    return grid


def _ending(report: ArchiveReport) -> list[str]:
    lines = []
    if report.origins:
        lines.append("Origins: " + ", ".join(f"{name} {count:,}" for name, count in report.origins.items()) + ".")
    for prefix, count in report.prefixes.items():
        lines.append(
            f"Messages with the prefix {prefix!r}: {count['transactional']:,} transactional, "
            f"{count['non_transactional']:,} non-transactional, {count['size']:,} bytes."
        )
    lines += [f"Can't be read: {line}" for line in (*report.unreadable, *report.damages)]
    lines += [f"Missing, or out of order: {line}" for line in report.gaps]
    lines += report.remarks[:_MAX_ROWS]
    if len(report.remarks) > _MAX_ROWS:
        lines.append(f"… and {len(report.remarks) - _MAX_ROWS:,} more remarks")
    parts = ", ".join(f"{size:,} {name}" for name, size in report.accounts.items())
    lines.append(f"Content, {report.content_bytes:,} bytes: {parts or 'none'}.")
    if report.unknown_prepared:
        lines.append(f"Prepared transactions that ended but were never sent: {report.unknown_prepared:,}.")
    lines.append("Damaged: see above." if report.is_damaged else "Nothing is damaged or missing.")
    return lines
