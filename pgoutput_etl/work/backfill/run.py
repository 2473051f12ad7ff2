"""Rebuilds tables from the archive, repairs them within a range of commits, or builds them in another folder.

The result always reflects all commits through the ledger's last consistent one or, in another folder, through the
requested one: rows that were deleted later stay deleted, and newer changes stay.

In place, a backfill is a batch like any other: it is claimed, recorded before it begins, and finished by the next run
if this one dies. It reads no new files and doesn't move the LSN through which all tables are consistent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from pgoutput_etl.answers.moment.read import commit_of
from pgoutput_etl.config.chosen_tables import matching_names
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, no_progress
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.batch import applied
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.moment import Moment
from pgoutput_etl.work.backfill.beside import build_beside
from pgoutput_etl.work.backfill.report import BackfillSummary
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.backfill.summary import backfill_summary, file_paths
from pgoutput_etl.work.batch import Watch, World, run
from pgoutput_etl.work.kinds.backfill_order import BackfillOrder
from pgoutput_etl.work.kinds.rebuild import later_starts
from pgoutput_etl.work.kinds.redrive import ignores_applied_files
from pgoutput_etl.work.kinds.unfinished import backfill_work, unfinished_work


def backfill(
    spark: SparkSession, config: Config, request: BackfillRequest, progress: Progress = no_progress
) -> BackfillSummary:
    """Applies archived changes again: to tables in place, or to copies of them elsewhere (`request.out`).

    Raises PgoutputEtlError: either nothing has changed, or the next run of any job finishes the backfill.
    """
    request.check()
    return backfill_tables(World.of(spark, config), request, progress)


def backfill_tables(world: World, request: BackfillRequest, progress: Progress) -> BackfillSummary:
    """Like `backfill`."""
    ledger = world.ledger
    last = ledger.batches.last()
    if last is not None and last.resumed and last.work is not None and request.out is None:
        progress(f"batch {last.number}: finishing the backfill of a run that died")
        run(ledger, unfinished_work(world, last, progress), last, Watch(progress))
        last = ledger.batches.last()
    last = applied(last, ledger.source)
    archive = world.archive_of(last)
    oids = _matching_oids(archive, request.tables)
    order, not_built = _possible(archive, _order(archive, oids, request), request)
    if request.out is not None:
        return replace(build_beside(archive, world.targets, order, progress, request.out), not_built=not_built)
    if last.resumed:
        raise RunError(f"batch {last.number} was begun by a run that died: finish it first", next_job=("apply",))
    if not oids and not order.anew:
        return BackfillSummary(ledger.source, 0, last.last_commit_lsn, len(file_paths(archive.files)))
    done = run(ledger, backfill_work(archive, world.targets, order, progress), last, Watch(progress))
    return replace(backfill_summary(archive, done), not_built=not_built)


def _possible(
    archive: LedgerArchive, order: BackfillOrder, request: BackfillRequest
) -> tuple[BackfillOrder, tuple[str, ...]]:
    """The order without tables that can't be built, and the reasons. Raises ConfigError if none can be built."""
    if order.anew:
        return order, ()
    newest = archive.last.last_commit_lsn
    in_place = request.out is None
    late = later_starts(archive, order, newest if in_place else order.commits(newest)[1], in_place)
    not_built = tuple(late[oid] for oid in sorted(late, key=archive.name))
    if late and len(late) == len(order.oids):
        raise ConfigError(f"no table can be built: {'; '.join(not_built)}")
    return replace(order, oids=tuple(oid for oid in order.oids if oid not in late)), not_built


def _order(archive: LedgerArchive, oids: tuple[int, ...], request: BackfillRequest) -> BackfillOrder:
    first = request.from_lsn if request.from_time is None else archive.first_commit(request.from_time)
    last = request.to_lsn if request.to_time is None else archive.last_commit(request.to_time)
    last = last if request.at is None else commit_of(archive, Moment.of(request.at))
    if first is not None and last is not None and first > last:
        raise ConfigError(f"the range of commits is empty: {format_lsn(first)} is after {format_lsn(last)}")
    held = [oid for oid in oids if oid in archive.last.tables and archive.last.tables[oid].may_be_redriven]
    redrive = bool(held) and archive.assembly.was_damaged and request.out is None
    if request.tables is None and not redrive:  # unreadable bytes that affect no known table hold no table
        has_lost_bytes = archive.assembly.was_damaged and archive.ledger.quarantine.has_lost_bytes()
        redrive = has_lost_bytes or bool(archive.prior_state.left_unread) or ignores_applied_files(archive)
    if redrive and request.tables is not None:
        raise RunError(
            f"{archive.name(held[0])} is held, possibly because of unreadable bytes: use --from-quarantine, which "
            "redrives all held tables together",
            next_job=("backfill", "--from-quarantine"),
        )
    return BackfillOrder(oids, first, last, request.since_version, redrive)


def _matching_oids(archive: LedgerArchive, patterns: Sequence[str] | None) -> tuple[int, ...]:
    """The OIDs of matching tables; for None, of all tables that may be redriven. If several tables had a name, the last
    one matches."""
    states = archive.last.tables
    if patterns is None:
        return tuple(sorted(oid for oid, state in states.items() if state.may_be_redriven))
    return tuple(sorted({archive.names[name] for name in matching_names(patterns, archive.names, "the archive")}))
