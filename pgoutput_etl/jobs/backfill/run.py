"""Rebuilds tables from the archive, repairs them within a range of commits, or builds them in another folder.

The result always reflects all commits through the ledger's last consistent one (or through the requested one, in
another folder): rows that were deleted later stay deleted, and newer changes stay.

In place, a backfill is a batch like any other: it is claimed, recorded before it begins, and finished by the next run
if it dies. It reads no new files and doesn't move the LSN through which all tables are consistent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, no_progress
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.jobs.backfill.beside import SideBuild
from pgoutput_etl.jobs.backfill.in_place import InPlaceBackfill
from pgoutput_etl.jobs.backfill.rebuild import later_starts
from pgoutput_etl.jobs.backfill.redrive import Redrive, ignores_applied_files
from pgoutput_etl.jobs.backfill.report import BackfillSummary
from pgoutput_etl.jobs.backfill.request import BackfillOrder, BackfillRequest
from pgoutput_etl.jobs.backfill.summary import backfill_summary, file_paths
from pgoutput_etl.jobs.command import matching_names
from pgoutput_etl.jobs.snapshot.request import SnapshotOrder
from pgoutput_etl.jobs.snapshot.run import finish_snapshot
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.batch import Batch, applied
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger, Ledger
from pgoutput_etl.load.targets import DeltaTargets, Targets
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.targets.target_plan import names_of, refuse_other_settings, settings_of


def backfill(
    spark: SparkSession, config: Config, request: BackfillRequest, progress: Progress = no_progress
) -> BackfillSummary:
    """Applies archived changes again: to tables in place, or to copies of them elsewhere (`request.into`).

    Raises PgoutputEtlError: either nothing has changed, or the next run of any job finishes the backfill.
    """
    request.check()
    ledger = DeltaLedger.of(spark, config)
    archive_of = partial(DeltaArchive.of, spark, config, ledger)
    return backfill_tables(archive_of, ledger, DeltaTargets(spark), request, progress)


def backfill_tables(
    archive_of: Callable[[Batch], LedgerArchive],
    ledger: Ledger,
    targets: Targets,
    request: BackfillRequest,
    progress: Progress,
) -> BackfillSummary:
    """Like `backfill`. archive_of: returns the archive of the batches before a batch."""
    last = ledger.batches.last()
    if last is not None and last.resumed and last.work is not None and request.into is None:
        progress(f"batch {last.number}: finishing the backfill of a run that died")
        finish_backfill(archive_of(last), targets, progress)
        last = ledger.batches.last()
    last = applied(last, ledger.source)
    archive = archive_of(last)
    oids = _matching_oids(archive, request.tables)
    order, not_built = _possible(archive, _order(archive, oids, request), request)
    if request.into is not None:
        return replace(SideBuild(archive, targets, order, progress, request.into).run(), not_built=not_built)
    if last.resumed:
        raise RunError(f"batch {last.number} was begun by a run that died: finish it first", next_job=("apply",))
    if not oids and not order.anew:
        return BackfillSummary(ledger.source, 0, last.last_commit_lsn, len(file_paths(archive.files)))
    batch = replace(Batch.after(last, {}), work=order.to_json(), settings=settings_of(archive.config))
    return replace(_run_batch(archive, targets, order, batch, progress), not_built=not_built)


def _possible(
    archive: LedgerArchive, order: BackfillOrder, request: BackfillRequest
) -> tuple[BackfillOrder, tuple[str, ...]]:
    """The order without the tables that can't be built, and why they can't. Raises ConfigError if none can."""
    if order.anew:
        return order, ()
    newest = archive.last.last_commit_lsn
    in_place = request.into is None
    late = later_starts(archive, order, newest if in_place else order.commits(newest)[1], in_place)
    not_built = tuple(late[oid] for oid in sorted(late, key=archive.name))
    if late and len(late) == len(order.oids):
        raise ConfigError(f"no table can be built: {'; '.join(not_built)}")
    return replace(order, oids=tuple(oid for oid in order.oids if oid not in late)), not_built


def _order(archive: LedgerArchive, oids: tuple[int, ...], request: BackfillRequest) -> BackfillOrder:
    first = request.first_lsn if request.first_time is None else archive.first_commit(request.first_time)
    last = request.last_lsn if request.last_time is None else archive.last_commit(request.last_time)
    if first is not None and last is not None and first > last:
        raise ConfigError(f"the range of commits is empty: {format_lsn(first)} is after {format_lsn(last)}")
    held = [oid for oid in oids if oid in archive.last.tables and archive.last.tables[oid].may_be_redriven]
    redrive = bool(held) and archive.assembly.was_damaged and request.into is None
    if request.tables is None and not redrive:  # unreadable bytes that concern no known table cause no table to be held
        has_lost_bytes = archive.assembly.was_damaged and archive.ledger.quarantine.has_lost_bytes()
        redrive = has_lost_bytes or bool(archive.prior_state.left_unread) or ignores_applied_files(archive)
    if redrive and request.tables is not None:
        raise RunError(
            f"{archive.name(held[0])} is held, possibly because of unreadable bytes: use --from-quarantine, which "
            "redrives all held tables together",
            next_job=("backfill", "--from-quarantine"),
        )
    return BackfillOrder(oids, first, last, request.since_version, redrive)


def finish_backfill(archive: LedgerArchive, targets: Targets, progress: Progress) -> BackfillSummary:
    """Finishes the last batch, a backfill of a run that died."""
    batch, source = archive.last, archive.config.source.name
    batch.refuse_erasure()
    snapshot = SnapshotOrder.from_json(batch.work or "{}")
    if snapshot is not None:
        assert isinstance(archive, DeltaArchive)
        finish_snapshot(archive.spark, archive.config, archive.ledger, batch, snapshot, progress)
        return BackfillSummary(source, batch.number, batch.last_commit_lsn, 0)
    order = BackfillOrder.from_json(batch.work or "")
    oids = {*batch.tables, *archive.relations.oids()} if order.anew else {*order.oids}
    names = names_of(archive.relations, batch.tables, oids)
    refuse_other_settings(batch.settings, archive.config, names, batch.number, may_skip=False)
    return _run_batch(archive, targets, order, batch, progress)


def _run_batch(
    archive: LedgerArchive, targets: Targets, order: BackfillOrder, batch: Batch, progress: Progress
) -> BackfillSummary:
    with archive.ledger.batches.claimed(archive.last, batch, progress) as check_claim:
        if not order.anew:
            return InPlaceBackfill(archive, targets, order, progress, batch, check_claim).run()
        assert isinstance(archive, DeltaArchive)
        batch = replace(batch, since=batch.number)
        results, skipped, lsn = Redrive(archive, batch, check_claim, progress).run()
        files = {result.state.oid: list(archive.files) for result in results}
        return backfill_summary(archive, batch.number, lsn, results, files, {}, skipped)


def _matching_oids(archive: LedgerArchive, patterns: Sequence[str] | None) -> tuple[int, ...]:
    """The OIDs of matching tables; for None, of all tables that may be redriven. A name stands for the last table that
    had it."""
    states = archive.last.tables
    if patterns is None:
        return tuple(sorted(oid for oid, state in states.items() if state.may_be_redriven))
    return tuple(sorted({archive.names[name] for name in matching_names(patterns, archive.names, "the archive")}))
