"""An archive's inspection, printed for people and for programs."""

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

_SHOWN = 20

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
        console.print(_transactions("The biggest transactions", report.biggest))
    if report.open:
        console.print(_transactions("Open: their end is not in these files", report.open[:_SHOWN]))
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
    ended = ", ".join(f"{count:,} {status}" for status, count in report.transactions.items() if count)
    lines.append(f"Transactions: {ended or 'none'}.")
    if report.sizes:
        sizes = ", ".join(f"{count:,} with {name} changes" for name, count in report.sizes.items())
        lines.append(f"Of the committed ones: {sizes}.")
    return lines


def _settings(report: ArchiveReport) -> str:
    shown = {setting: ", ".join(values) for setting, values in report.settings.items()}
    formats = shown.pop(FORMAT, None)
    said = [] if formats is None else [f"Values in {formats.replace(', ', ' and ')} form"]
    said += [f"{setting} {value}" for setting, value in shown.items()]
    return "; ".join(said) + "." if said else "No values to tell settings from."


def _files(files: Sequence[FileReport]) -> Table:
    rows = grid("file", ("bytes", "messages"), ("framing", "first commit", "last commit", "status"))
    for file in files[:_SHOWN]:
        counts = f"{file.size:,}", f"{sum(file.messages.values()):,}"
        again = f", sent again {file.reconnections:,} times" if file.reconnections else ""
        texts = (file.framing, file.first_commit_lsn, file.last_commit_lsn, file.status + again)
        rows.add_row(Text(printable(file.path)), *counts, *(text or "" for text in texts))
    if len(files) > _SHOWN:
        rows.add_row(f"… and {len(files) - _SHOWN:,} more")
    return rows


def _relations(relations: Iterable[RelationReport]) -> Table:
    rows = grid("table", ("OID", "versions", *_KINDS.values()), ["not counted"])
    for relation in relations:
        counts = (len(relation.versions), *(relation.committed[tag] for tag in _KINDS))
        others = ", ".join(f"{count:,} {status}" for status, count in relation.others.items())
        rows.add_row(Text(printable(_name(relation))), str(relation.oid), *(f"{n:,}" for n in counts), others)
    return rows


def _name(relation: RelationReport) -> str:
    return "not described here" if relation.schema is None else f"{relation.schema}.{relation.table}"


def _versions(relation: RelationReport) -> list[str]:
    lines = []
    for number, version in enumerate(relation.versions, start=1):
        which = f" (version {number})" if len(relation.versions) > 1 else ""
        lines.append(f"{version.schema}.{version.table}{which}: {_columns(version)}")
    return lines


def _columns(version: VersionReport) -> str:
    columns = ", ".join(f"{c.name} {c.type}{' key' if c.is_key else ''}" for c in version.columns)
    return f"{columns}; replica identity {version.replica_identity}"


def _transactions(title: str, transactions: Iterable[TransactionReport]) -> Table:
    grid = Table(title=title, title_justify="left")
    for name in ("xid", "changes", "bytes"):
        grid.add_column(name, justify="right")
    for name in ("kind", "fate", "committed", "gid", "begins in"):
        grid.add_column(name, overflow="fold")
    for each in transactions:
        counts = str(each.xid or ""), f"{each.changes:,}", f"{each.size:,}"
        committed = " ".join(text for text in (each.commit_lsn, each.commit_time) if text)
        names = (Text(printable(text)) for text in (each.gid or "", each.file))
        grid.add_row(*counts, each.kind, each.fate, committed, *names)
    return grid


def _ending(report: ArchiveReport) -> list[str]:
    lines = []
    if report.origins:
        lines.append("Origins: " + ", ".join(f"{name} {count:,}" for name, count in report.origins.items()) + ".")
    for prefix, count in report.prefixes.items():
        lines.append(
            f"Messages with the prefix {prefix!r}: {count['transactional']:,} transactional, "
            f"{count['non_transactional']:,} not, {count['size']:,} bytes."
        )
    lines += [f"Can't be read: {line}" for line in (*report.unreadable, *report.damages)]
    lines += [f"Missing, or out of order: {line}" for line in report.gaps]
    lines += _shortened(report.remarks)
    parts = ", ".join(f"{size:,} {name}" for name, size in report.accounts.items())
    lines.append(f"Of {report.content_bytes:,} bytes of content: {parts or 'none'}.")
    if report.unknown_prepared:
        lines.append(f"Ends of prepared transactions that were never sent: {report.unknown_prepared:,}.")
    lines.append("Damaged: see above." if report.is_damaged else "Nothing is damaged or missing.")
    return lines


def _shortened(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _SHOWN
    return [*lines] if more <= 0 else [*lines[:_SHOWN], f"… and {more:,} more remarks"]
