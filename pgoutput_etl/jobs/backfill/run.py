"""Tables done again from the archive: rebuilt, repaired within a range of commits, or built beside as of a commit.

What comes out is always what the archive says, of all commits up to the one that the ledger is consistent through (or
the one asked for, beside): a row that was deleted since doesn't come back, a newer change stays.

In place it is a batch like any other: claimed, written down before it begins, finished by the next run should it die.
It reads no new files, and leaves the LSN through which all tables are consistent where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import no_progress
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.jobs.backfill.beside import SideBuild
from pgoutput_etl.jobs.backfill.commit_range import Progress
from pgoutput_etl.jobs.backfill.in_place import InPlaceBackfill
from pgoutput_etl.jobs.backfill.redrive import Redrive
from pgoutput_etl.jobs.backfill.report import BackfillSummary
from pgoutput_etl.jobs.backfill.request import BackfillOrder, BackfillRequest
from pgoutput_etl.jobs.backfill.summary import _paths, backfill_summary
from pgoutput_etl.jobs.snapshot.request import SnapshotOrder
from pgoutput_etl.jobs.snapshot.run import finish_snapshot
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.ledger import Ledger
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.targets.plan import HELD


def backfill(
    spark: SparkSession, config: Config, request: BackfillRequest, progress: Progress = no_progress
) -> BackfillSummary:
    """Applies archived changes again: to tables in place, or to copies of them elsewhere (`request.into`).

    Raises PgoutputEtlError: either nothing has changed, or the next run of any job finishes the backfill.
    """
    request.check()
    ledger = Ledger(spark, config.state.root, config.source.name)
    last = ledger.last_batch()
    if last is not None and last.resumed and last.backfill is not None and request.into is None:
        progress(f"batch {last.number} is a backfill that died: finishing it")
        finish_backfill(spark, config, ledger, last, progress)
        last = ledger.last_batch()
    if last is None or (last.state is None and not last.tables):
        raise RunError(f"nothing of {config.source.name} was applied yet: run jobs/apply.py")
    archive = LedgerArchive(spark, config, ledger, last)
    oids = _chosen(archive, request.tables)
    order = _ordered(archive, oids, request)
    if request.into is not None:
        return SideBuild(archive, order, progress, request.into).run()
    if last.resumed:
        raise RunError(f"batch {last.number} was begun by a run that died. Run jobs/apply.py, which finishes it, first")
    if not oids and not order.anew:
        return BackfillSummary(config.source.name, 0, last.last_commit_lsn, len(_paths(archive.files)))
    batch = replace(Batch.after(last, {}), backfill=order.to_json())
    if order.anew:
        batch = replace(batch, since=batch.number)
    with ledger.claimed(last, batch, progress) as check_claim:
        return _in_place(archive, order, progress, batch, check_claim)


def _ordered(archive: LedgerArchive, oids: tuple[int, ...], request: BackfillRequest) -> BackfillOrder:
    first = request.first_lsn if request.first_time is None else archive.first_commit(request.first_time)
    last = request.last_lsn if request.last_time is None else archive.last_commit(request.last_time)
    if first is not None and last is not None and first > last:
        raise ConfigError(f"the range of commits is empty: {format_lsn(first)} is behind {format_lsn(last)}")
    held = [oid for oid in oids if oid in archive.last.tables and archive.last.tables[oid].status == HELD]
    anew = bool(held) and archive.assembly.was_damaged and request.into is None
    if request.tables is None and not anew:  # bytes that are about no known table hold none
        has_lost = archive.assembly.was_damaged and archive.ledger.has_lost_bytes()
        anew = has_lost or bool(archive.prior_state.left_unread)
    if anew and request.tables is not None:
        raise RunError(
            f"{archive.name(held[0])} is held, and what holds it may be bytes that could not be read: "
            "--from-quarantine takes up all such tables at once"
        )
    return BackfillOrder(oids, first, last, request.since_version, anew)


def finish_backfill(
    spark: SparkSession, config: Config, ledger: Ledger, batch: Batch, progress: Progress
) -> BackfillSummary:
    """A batch of an earlier run that died."""
    snapshot = SnapshotOrder.from_json(batch.backfill or "{}")
    if snapshot is not None:
        finish_snapshot(spark, config, ledger, batch, snapshot, progress)
        return BackfillSummary(config.source.name, batch.number, batch.last_commit_lsn, 0)
    archive, order = LedgerArchive(spark, config, ledger, batch), BackfillOrder.from_json(batch.backfill or "")
    with ledger.claimed(batch, batch, progress) as check_claim:
        batch = replace(batch, since=batch.number) if order.anew else batch
        return _in_place(archive, order, progress, batch, check_claim)


def _in_place(
    archive: LedgerArchive, order: BackfillOrder, progress: Progress, batch: Batch, check_claim: Callable[[], None]
) -> BackfillSummary:
    if not order.anew:
        return InPlaceBackfill(archive, order, progress, batch, check_claim).run()
    outcomes, skipped, lsn = Redrive(archive, batch, check_claim, progress).run()
    files = {outcome.state.oid: list(archive.files) for outcome in outcomes}
    return backfill_summary(archive, batch.number, lsn, outcomes, files, {}, skipped)


def _chosen(archive: LedgerArchive, patterns: Sequence[str] | None) -> tuple[int, ...]:
    """By the names that the tables bear, of which each belongs to the last that bore it."""
    states = archive.last.tables
    if patterns is None:
        return tuple(sorted(oid for oid, state in states.items() if state.status == HELD))
    found: set[int] = set()
    for pattern in patterns:
        matching = {oid for name, oid in archive.names.items() if fnmatchcase(name, pattern)}
        if not matching:
            raise ConfigError(f"--tables: the archive has no table {pattern!r}")
        found |= matching
    return tuple(sorted(found))
