"""The dry run: builds the plan that `apply` would execute, and prints it. Writes nothing: no claim, no ledger row, no
table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from pgoutput_etl.answers.command_line import job_line
from pgoutput_etl.answers.next_commands import Findings, NextCommand, next_commands
from pgoutput_etl.config.settings import Config, Target
from pgoutput_etl.console import Progress, counted, no_progress
from pgoutput_etl.ingest.landed_files import FileBatch, new_files, read_again, read_files
from pgoutput_etl.inspection.float_digits import rounding_remark
from pgoutput_etl.inspection.report import kind_of_transaction
from pgoutput_etl.landing.fingerprint import FilePart, FileStatus
from pgoutput_etl.landing.selection import tail_remark
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.masking.unmasked_copies import unmasked_copies
from pgoutput_etl.schema.definition_changes import changed_definitions
from pgoutput_etl.targets.condition import ConditionKind, TableCondition, conditions_of
from pgoutput_etl.targets.key_spelling import changeable_keys
from pgoutput_etl.targets.partitions import partition_remarks
from pgoutput_etl.targets.plan import HeldTable, TableChanges, TableState
from pgoutput_etl.targets.written_settings import refuse_other_modes
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.outcome import TransactionStatus, summed_accounts
from pgoutput_etl.types import UserTypes
from pgoutput_etl.work.batch import World
from pgoutput_etl.work.files.backlog import Backlog, find_backlog
from pgoutput_etl.work.files.batch_plan import BatchPlan, plan_batch, with_creations
from pgoutput_etl.work.kinds.unfinished import unfinished_work
from pgoutput_etl.work.plan.effects import change_counts, count_effects
from pgoutput_etl.work.plan.report import PlannedCommand, PlannedFile, PlannedTable, PlannedTransaction, PlanSummary


def plan(spark: SparkSession, config: Config, progress: Progress = no_progress) -> PlanSummary:
    """The next batch, as `apply` would apply it now. Raises PgoutputEtlError where apply would stop before it writes.

    Decodes every row, as apply does, because only that reveals which tables would be held because of their rows.
    """
    world = World.of(spark, config)
    backlog = find_backlog(world, progress)
    summary = _plan_next(world, backlog, progress)
    refused = (*summary.refused_files, *backlog.listing.not_plain.values())
    summary = replace(summary, refused_files=refused)
    states = {} if backlog.last is None else backlog.last.tables
    if not summary.files and not summary.resumes:
        refuse_other_modes(states.values(), config)
    known = conditions_of(states.values(), config)
    return replace(summary, next=_next(config, summary, known))


def _plan_next(world: World, backlog: Backlog, progress: Progress) -> PlanSummary:
    if backlog.interrupted is not None:
        return _plan_interrupted(world, backlog, backlog.interrupted, progress)
    files = new_files(backlog.index, backlog.listing)
    if not files:
        remarks = tuple(map(tail_remark, backlog.index.tails(backlog.listing)))
        return replace(_nothing_new(world, backlog.last), files_not_read=remarks)
    progress(f"scanning {counted(len(files), 'file')}")
    batch_files = read_files(world.landing, files, backlog.index, backlog.listing)
    if not batch_files.parts:
        batch_files.release()
        return replace(_nothing_new(world, backlog.last), files_not_read=batch_files.remarks)
    later = tuple(part.path for step in batch_files.later for part in step.to_read.values())
    summary = _plan_files(world, Batch.after(backlog.last, batch_files.parts), batch_files, progress)
    return replace(summary, later_files=later, later_batches=len(batch_files.later))


def _next(config: Config, plan: PlanSummary, known: Sequence[TableCondition]) -> tuple[NextCommand, ...]:
    """The next commands. Problems that the ledger already has are resolved as after a run; problems that this batch
    would add are better resolved before it. known: the tables' conditions in the ledger."""
    held = {table.name: table.held for table in plan.tables if table.held is not None}
    held_before = [condition.name for condition in known if condition.state is ConditionKind.HELD]
    old = Findings({name: reason for name, reason in held.items() if name in held_before}, conditions=known)
    if not plan.files and not plan.resumes:
        quarantined = plan.transactions.get(TransactionStatus.QUARANTINED.value, 0)
        return next_commands(
            config,
            replace(old, damages=plan.damages, quarantined_transactions=quarantined, refused_files=plan.refused_files),
        )
    is_clean = not plan.damages and held.keys() <= {*held_before}
    reason = (
        "Carry it out:" if is_clean else "Repair what would be held or in quarantine first, or carry it out without:"
    )
    if plan.resumes:
        reason = "Finish the batch of the run that died:"
    return NextCommand(reason, job_line(config, "apply")), *next_commands(config, old)


def _plan_interrupted(world: World, backlog: Backlog, batch: Batch, progress: Progress) -> PlanSummary:
    """The batch of a run that died, and the paths of the new files after it."""
    files = new_files(backlog.index.with_parts(batch.files), backlog.listing)
    later = tuple(file.path for file in files.values())
    batches = None if world.config.merge.max_transactions is not None and len(later) > 1 else min(len(later), 1)
    if batch.work is not None:
        unfinished_work(world, batch, progress)  # raises the error that would stop apply
        summary = _nothing_new(world, batch)
        remarks = ("apply first finishes the backfill of a run that died: plan again then",)
        summary = replace(summary, resumes=True, remarks=remarks)
    else:
        summary = _plan_files(world, batch, read_again(world.landing, batch.files), progress)
    return replace(summary, later_files=later, later_batches=batches)


def _nothing_new(world: World, last: Batch | None) -> PlanSummary:
    """Repeats what earlier runs quarantined, as apply does."""
    if last is None:
        return PlanSummary(world.config.source.name, 0, 0)
    left, conditions = world.ledger.quarantine.leftovers(), conditions_of(last.tables.values(), world.config)
    return PlanSummary(
        world.config.source.name,
        last.number,
        last.last_commit_lsn,
        transactions={TransactionStatus.QUARANTINED.value: left.transactions},
        tables=tuple(_held_state(last.tables[c.oid]) for c in conditions if c.state is ConditionKind.HELD),
        conditions=conditions,
        damages=left.damages,
        refused_files=left.refused_files,
    )


def _held_state(state: TableState) -> PlannedTable:
    changes = change_counts(TableChanges(state.oid))
    return PlannedTable(state.schema, state.table, str(state.path), changes, has_key=bool(state.key), held=state.reason)


def _plan_files(world: World, batch: Batch, files: FileBatch, progress: Progress) -> PlanSummary:
    try:
        assembly = world.ledger.history.assembly(batch)
        progress("assembling transactions")
        return _explain(world, plan_batch(world, batch, files, assembly), progress)
    finally:
        files.release()


def _explain(world: World, plan: BatchPlan, progress: Progress) -> PlanSummary:
    batch, assembly, files = plan.batch, plan.assembly, plan.files
    with ThreadPoolExecutor(world.config.merge.parallel_tables) as pool:
        tables = list(pool.map(partial(count_effects, plan, progress), plan.tables.tasks))
    held = [task.oid for task, table in zip(plan.tables.tasks, tables, strict=True) if table.held is not None]
    accounts = plan.accounts([*held, *(table.oid for table in plan.tables.held)])
    tables += [_held_table(held) for held in plan.tables.held]
    waiting = assembly.open_outcomes()
    statuses = plan.transactions() | {TransactionStatus.OPEN.value: len(waiting)}
    return PlanSummary(
        source=world.config.source.name,
        batch=batch.number,
        last_commit_lsn=assembly.last_commit_lsn,
        resumes=batch.resumed,
        files=tuple(_planned_file(part) for _, part in sorted(files.parts.items())),
        bytes=batch.size,
        messages=files.messages(),
        transactions={status.value: statuses.get(status.value, 0) for status in TransactionStatus},
        unknown_prepared=len(assembly.unknown_prepared),
        tables=tuple(sorted(tables, key=lambda table: (table.schema, table.table))),
        conditions=_conditions(world, plan, held),
        waiting=tuple(PlannedTransaction(o.xid, kind_of_transaction(o), o.gid) for o in waiting),
        skipped=tuple(plan.tables.skipped),
        vacated=tuple(map(str, plan.tables.vacated)),
        content_bytes=files.content_bytes(),
        accounts=summed_accounts(accounts.values()),
        damages=tuple(plan.damages()),
        refused_files=files.refused(),
        files_not_read=files.not_read(),
        remarks=_remarks(world, plan),
        commands=tuple(_commands(batch, assembly)),
    )


def _commands(batch: Batch, assembly: Assembly) -> list[PlannedCommand]:
    """The commands, without those of transactions that were sent before."""
    types, newest = UserTypes.of(assembly.types.values(), {}), batch.last_commit_lsn + 1
    commands = []
    for entry, changes in changed_definitions(assembly.relations.definitions.added, types):
        if entry.commit_lsn is not None and entry.commit_lsn >= newest:
            newest, table = entry.commit_lsn, entry.definition
            place = (format_lsn(newest), entry.command, table.namespace, table.name)
            commands.append(PlannedCommand(*place, tuple(change.text(False) for change in changes)))
    return list(dict.fromkeys(commands))


def _conditions(world: World, plan: BatchPlan, held: Collection[int]) -> tuple[TableCondition, ...]:
    """The conditions of the tables that the batch would not hold. It isn't known yet which of its changes will meet no
    row. held: OIDs of the tables that it would hold."""
    batch, lsn = plan.batch, plan.assembly.last_commit_lsn
    left = {*held, *(table.oid for table in plan.tables.held)}
    written = [TableState.planned(task, task.state, lsn) for task in plan.tables.tasks]
    states = batch.tables | {state.oid: state for state in with_creations(world, batch, written)}
    return conditions_of((state for oid, state in states.items() if oid not in left), world.config)


def _remarks(world: World, plan: BatchPlan) -> tuple[str, ...]:
    written = (task.oid for task in plan.tables.tasks)
    shapes = [task.shape for task in plan.tables.tasks]
    copies = unmasked_copies(world.config, plan.assembly.relations, written)
    return (
        *copies,
        *changeable_keys(shapes),
        *partition_remarks(shapes),
        *map(rounding_remark, plan.rounded_floats()),
        *_views_remark(world.config.target),
    )


def _views_remark(target: Target) -> tuple[str, ...]:
    if target.views is None or target.catalog is None:
        return ()
    schemas = f"{target.catalog.partition('.')[0]}.{target.views}_*"
    return (f"Then the views in {schemas} would show the tables as of this batch.",)


def _planned_file(part: FilePart) -> PlannedFile:
    status = part.status
    if status == FileStatus.READ.value:
        status = "grown" if part.offset else "new"
    return PlannedFile(part.path, status, part.size, part.offset)


def _held_table(held: HeldTable) -> PlannedTable:
    relation, path = held.relation, "" if held.state is None else str(held.state.path)
    return PlannedTable(relation.namespace, relation.name, path, change_counts(held.changes), held=held.reason)
