"""The rebuild of whole tables from the archive's commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.ledger.archive import LedgerArchive, ReadFile
from pgoutput_etl.load.rebuild import Rebuild
from pgoutput_etl.load.writer import Writer
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.transactions.statistics import CommitRange
from pgoutput_etl.work.kinds.backfill_order import BackfillOrder


def later_starts(archive: LedgerArchive, order: BackfillOrder, last: int, in_place: bool) -> dict[int, str]:
    """By OID, why a table can't be built as of the commit `last`: it starts from a later commit, because its earlier
    rows are not in the archive."""
    if in_place and order.since_version is None:
        states = {oid: archive.last.tables[oid] for oid in order.oids if oid in archive.last.tables}
        since = {oid: state for oid, state in states.items() if state.snapshot is not None}
    else:
        since = dict(archive.since(order.since_version, order.oids))
    start = "a snapshot" if order.since_version is None else f"its Delta version {order.since_version}"
    return {
        oid: f"{archive.name(oid)} starts from {start} as of LSN {format_lsn(state.last_commit_lsn)}, later than "
        f"{format_lsn(last)}"
        for oid, state in since.items()
        if state.last_commit_lsn > last
    }


@contextmanager
def archive_rebuild(
    archive: LedgerArchive, order: BackfillOrder, oids: Sequence[int], writer: Writer, scratch: str
) -> Iterator[tuple[Rebuild, CommittedBlocks, list[ReadFile]]]:
    """A rebuild of these tables through the writer's last commit, with the rows that it needs and their files."""
    since = archive.since(order.since_version, oids)
    bases = [since[oid].last_commit_lsn if oid in since else -1 for oid in oids]
    commits = CommitRange(min(bases, default=-1) + 1, writer.last_commit_lsn)
    files = archive.files_with(oids, commits)
    config, tables = archive.config, archive.last.tables
    rebuild = Rebuild(config, archive.assembly, tables, since, writer.progress, writer, scratch)
    with archive.reading(files, oids, commits) as rows:
        yield rebuild, rebuild.missing_rows(rows), files
