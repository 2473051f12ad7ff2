"""Builds a backfill's summary."""

from __future__ import annotations

from collections.abc import Iterable

from pgoutput_etl.answers.next_commands import Findings, next_commands
from pgoutput_etl.ledger.archive import LedgerArchive, ReadFile
from pgoutput_etl.targets.condition import conditions_of
from pgoutput_etl.work.backfill.report import BackfilledTable, BackfillSummary
from pgoutput_etl.work.kinds.backfill_order import BackfillResult


def backfill_summary(archive: LedgerArchive, done: BackfillResult) -> BackfillSummary:
    tables = []
    for result in sorted(done.tables, key=lambda r: (r.summary.schema, r.summary.table)):
        oid = result.state.oid
        read = done.files.get(oid, [])
        reason = done.reasons.get(oid)
        how = "rows of the range" if reason is None and done.reasons else f"whole: {reason}" if reason else "whole"
        tables.append(BackfilledTable(result.summary, how, len(file_paths(read)), sum(file.size for file in read)))
    conditions = conditions_of((result.state for result in done.tables), archive.config) if done.batch else ()
    held = {table.table.name: table.table.held for table in tables if table.table.held is not None}
    all_read = {file.number: file for table_files in done.files.values() for file in table_files}.values()
    return BackfillSummary(
        archive.config.source.name,
        done.batch,
        done.lsn,
        len(file_paths(archive.files)),
        tuple(sorted(file_paths(all_read))),
        sum(file.size for file in all_read),
        tuple(tables),
        tuple(done.skipped),
        next_commands(archive.config, Findings(held, conditions=conditions)),
        conditions=conditions,
    )


def file_paths(files: Iterable[ReadFile]) -> set[str]:
    """Each path once, even if the file was read in parts."""
    return {file.path for file in files}
