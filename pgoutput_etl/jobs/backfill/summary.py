"""A backfill's result as a run's summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pgoutput_etl.jobs.backfill.report import BackfilledTable, BackfillSummary
from pgoutput_etl.ledger.archive import LedgerArchive, ReadFile
from pgoutput_etl.load.writer import TableResult


def backfill_summary(
    archive: LedgerArchive,
    batch: int,
    lsn: int,
    outcomes: Iterable[TableResult],
    files: Mapping[int, list[ReadFile]],
    reasons: Mapping[int, str | None],
    skipped: Sequence[str],
) -> BackfillSummary:
    tables = []
    for outcome in sorted(outcomes, key=lambda o: (o.summary.schema, o.summary.table)):
        oid = outcome.state.oid
        read = files.get(oid, [])
        how = reasons.get(oid)
        note = "rows of the range" if how is None and reasons else f"whole, as {how}" if how else "whole"
        tables.append(BackfilledTable(outcome.summary, note, len(_paths(read)), sum(file.size for file in read)))
    all_read = {file.number: file for of_table in files.values() for file in of_table}.values()
    return BackfillSummary(
        archive.config.source.name,
        batch,
        lsn,
        len(_paths(archive.files)),
        tuple(sorted(_paths(all_read))),
        sum(file.size for file in all_read),
        tuple(tables),
        tuple(skipped),
    )


def _paths(files: Iterable[ReadFile]) -> set[str]:
    """A file that was read in parts is one."""
    return {file.path for file in files}
