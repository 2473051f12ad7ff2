"""Loads a snapshot's rows: stages them, and then replaces or repairs tables with them (work/kinds/snapshot_load.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from pgoutput_etl.answers.command_line import job_line
from pgoutput_etl.answers.next_commands import Findings, next_commands
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, no_progress
from pgoutput_etl.errors import AnotherRunError, ConfigError, RunError
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.targets.condition import conditions_of
from pgoutput_etl.work.batch import Nothing, Watch, World, run
from pgoutput_etl.work.kinds.snapshot_load import SnapshotLoad, SnapshotResult
from pgoutput_etl.work.kinds.snapshot_order import SnapshotOrder
from pgoutput_etl.work.kinds.unfinished import unfinished_work
from pgoutput_etl.work.snapshot.check_report import CheckReport, check_server
from pgoutput_etl.work.snapshot.checks import OK, order_problem
from pgoutput_etl.work.snapshot.report import LoadedTable, SnapshotSummary
from pgoutput_etl.work.snapshot.request import SnapshotRequest
from pgoutput_etl.work.snapshot.staging import StagedTables, Staging

_PATIENCE, _PAUSE = 600, 15  # seconds

NO_BATCH = Batch("", 0, {}, False, None, {}, 0)


def snapshot(
    spark: SparkSession, config: Config, request: SnapshotRequest, progress: Progress = no_progress
) -> SnapshotSummary:
    """After a PgoutputEtlError, either nothing was changed, or the next run of any job finishes the batch."""
    request.check()
    world = World.of(spark, config)
    finish_pending(world, progress)
    archive = reliable_archive(world, world.ledger.batches.last())
    remarks = _refuse_lost_rows(archive, request)

    def again(archive: LedgerArchive) -> StagedTables:
        return Staging(spark, archive, request, progress).run()

    with closing(Staging(spark, archive, request, progress).parts()) as parts:
        loads = [load_staged(world, archive, staged, again, progress, _PATIENCE) for staged in parts]
    return _summary(config, loads, remarks)


def load_staged(
    world: World,
    archive: LedgerArchive,
    staged: StagedTables,
    again: Callable[[LedgerArchive], StagedTables],
    progress: Progress,
    patience: float = 0,
) -> tuple[SnapshotResult, StagedTables]:
    """Loads staged rows in a batch. Other runs may have continued while they were staged. again: stages them again.
    patience: seconds to wait for another active run. Raises PgoutputEtlError like `snapshot`."""
    work, machine = _StagedLoad(world, archive, staged, again, progress), world.machine
    until = machine.monotonic() + patience
    try:
        while True:
            try:
                return work.run(), work.staged
            except AnotherRunError as error:
                if work.has_begun or machine.monotonic() >= until:
                    raise
                progress(f"waiting: {error}")
                machine.event().wait(_PAUSE)
    finally:
        if not work.has_begun:
            archive.discard(work.staged.order.staged)


@dataclass(slots=True)
class _StagedLoad:
    """Loads staged rows. Stages them again if another run has changed the tables meanwhile."""

    world: World
    archive: LedgerArchive
    staged: StagedTables
    again: Callable[[LedgerArchive], StagedTables]
    progress: Progress
    load: SnapshotLoad | None = None

    @property
    def has_begun(self) -> bool:
        return self.load is not None and self.load.begun

    def run(self) -> SnapshotResult:
        last = self.world.ledger.batches.last()  # another job may have run while the rows were staged
        if last is not None and last.resumed:
            raise AnotherRunError(f"another run is working on batch {last.number}. Run again when it is done")
        self.archive = reliable_archive(self.world, last)
        return run(self.world.ledger, self, last, Watch(self.progress))

    @contextmanager
    def prepare(
        self, batch: Batch, check_claim: Callable[[], None]
    ) -> Iterator[SnapshotLoad | Nothing[SnapshotResult]]:
        if _is_overtaken(self.staged.order, batch):
            self.progress("comparing again: another run has changed the tables meanwhile, and the next one waits")
            self.archive.discard(self.staged.order.staged)
            self.staged = self.again(self.archive)
        self.load = SnapshotLoad(self.world, self.archive, self.staged.order, self.progress, self.staged.unique)
        with self.load.prepare(batch, check_claim) as prepared:
            yield prepared


def reliable_archive(world: World, last: Batch | None) -> LedgerArchive:
    archive = world.archive_of(last or NO_BATCH)
    unreliable_from = archive.assembly.unreliable_from
    if unreliable_from is not None:
        raise RunError(
            f"from LSN {format_lsn(unreliable_from[0])} on, the archive has unreadable bytes that may concern any "
            "table, so loaded tables could not be updated either. Repair the files, then run jobs/backfill.py "
            "--from-quarantine first"
        )
    return archive


def _summary(
    config: Config, loads: Sequence[tuple[SnapshotResult, StagedTables]], remarks: tuple[str, ...]
) -> SnapshotSummary:
    last, staged = loads[-1]
    tables = [LoadedTable(table, 0, 0) for _, staged in loads for table in staged.unread]
    for done, _ in loads:
        for result in done.tables:
            oid = result.state.oid
            rows = done.loaded.get(oid, 0)
            later_changes = done.changes[oid].total - rows if oid in done.changes else 0
            tables.append(LoadedTable(result.summary, rows, later_changes))
    tables.sort(key=lambda t: (t.table.schema, t.table.table))
    conditions = conditions_of([state for done, _ in loads for state in done.states], config)
    held = {loaded.table.name: loaded.table.held for loaded in tables if loaded.table.held is not None}
    return SnapshotSummary(
        config.source.name,
        max(done.batch for done, _ in loads),
        last.order.lsn,
        last.lsn,
        last.lsn < last.order.through,
        tuple(tables),
        (*staged.skipped, *(name for done, _ in loads for name in done.skipped)),
        remarks,
        repaired=last.order.repairs is not None,
        conditions=conditions,
        next=next_commands(config, Findings(held, conditions=conditions)),
    )


def _is_overtaken(order: SnapshotOrder, batch: Batch) -> bool:
    """True if a table has changed since it was compared. Rows without a difference may then be older than the
    snapshot."""
    return any(
        (state := batch.tables.get(oid)) is None or state.version != repair.version
        for oid, repair in (order.repairs or {}).items()
    )


def check(spark: SparkSession, config: Config, request: SnapshotRequest) -> CheckReport:
    """Checks the server for an initial load. Changes nothing. Raises PgoutputEtlError."""
    request.check()
    world = World.of(spark, config)
    return _checks(world.archive_of(world.ledger.batches.last() or NO_BATCH), request)


def _checks(archive: LedgerArchive, request: SnapshotRequest) -> CheckReport:
    from pgoutput_etl.postgres.live_server import source_server  # needs psycopg, from an extra

    return check_server(source_server(request.url), archive.config, request, archive.commits)


def _refuse_lost_rows(archive: LedgerArchive, request: SnapshotRequest) -> tuple[str, ...]:
    """Returns remarks about the server. Raises ConfigError if rows and archive don't fit together."""
    if request.server is None:
        apply = job_line(archive.config, "apply")
        problem = order_problem(request.lsn or 0, request.slot_lsn, None, archive.commits, apply)
        if problem is not None:
            raise ConfigError(f"--lsn: loading now would lose rows: {problem}")
        return ()
    report = _checks(archive, request)
    losses = [f"{check.subject}: {check.text}" for check in report.checks if check.loses_rows]
    if losses:
        options = ("--tables", ",".join(request.tables), "--server", request.url, "--check")
        raise ConfigError(
            f"loading now would lose rows: {'; '.join(losses)}. For the commands that solve this, run "
            f"{job_line(archive.config, 'snapshot', *options)}"
        )
    return tuple(
        f"Check {check.status}: {check.subject}: {check.text}" for check in report.checks if check.status != OK
    )


def finish_pending(world: World, progress: Progress) -> None:
    """Finishes the batch of a run that died. Raises PgoutputEtlError."""
    last = world.ledger.batches.last()
    if last is None or not last.resumed:
        return
    if last.work is None:
        raise RunError(f"batch {last.number} was begun by a run that died. Run jobs/apply.py first, which finishes it")
    progress(f"batch {last.number}: finishing the work of a run that died")
    run(world.ledger, unfinished_work(world, last, progress), last, Watch(progress))
