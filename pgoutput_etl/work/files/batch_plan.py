"""A batch's plan: everything is decided and nothing is written. `apply` executes it; `plan` prints it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pgoutput_etl.config.column_rules import changed_masks
from pgoutput_etl.config.settings import OnError
from pgoutput_etl.errors import SequenceError
from pgoutput_etl.ingest.assemble import assemble, configured
from pgoutput_etl.ingest.commit_order import file_ahead, misplaced_file, relations_in
from pgoutput_etl.ingest.landed_files import FileBatch, accounts_of_others
from pgoutput_etl.ingest.quarantine import damage_remarks
from pgoutput_etl.ingest.rounded_floats import files_with_rounded_floats
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.ingest.source_check import CommitOrderError, check_history
from pgoutput_etl.landing.selection import MISPLACED
from pgoutput_etl.ledger.batch import Batch, PriorState
from pgoutput_etl.load.writer import refuse_existing_rows
from pgoutput_etl.masking.mask_rows import MaskingPolicy
from pgoutput_etl.masking.policy import masking_policy_of
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.targets.plan import TablePlan, TableState, created_since, held_from, may_lack_rows, tables_ahead
from pgoutput_etl.targets.target_plan import TargetPlan, names_of, plan_targets, refuse_other_settings
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.statistics import StatisticsRequest, transactions_by_status
from pgoutput_etl.types import UserTypes
from pgoutput_etl.work.batch import World


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """prior: the ledger's state before the batch. path_of: a file's path by its number."""

    batch: Batch
    files: FileBatch
    rows: MessageRows
    prior: PriorState
    targets: TargetPlan
    path_of: Callable[[int], str]

    @property
    def assembly(self) -> Assembly:
        return self.rows.assembly

    @property
    def tables(self) -> TablePlan:
        return self.targets.tables

    def transactions(self) -> Counter[str]:
        """The number of transactions by status."""
        return transactions_by_status(self.assembly.outcomes, self.targets.statistics)

    def accounts(self, held: Collection[int]) -> dict[int, dict[str, int]]:
        """Bytes by file and account. held: OIDs of held tables."""
        statistics = self.targets.statistics
        if held:
            first_lsns = held_from(held, self.targets.cutoffs)
            statistics = self.rows.statistics(StatisticsRequest(held_from=first_lsns))
        return statistics.accounts() | accounts_of_others(self.files.parts)

    def rounded_floats(self) -> tuple[str, ...]:
        """The paths of files whose floats seem to be rounded by the sender."""
        files = files_with_rounded_floats(self.rows, self.targets.statistics.changed)
        return tuple(map(self.path_of, files))

    def damages(self) -> list[str]:
        """One line for each unreadable range of bytes."""
        return damage_remarks(self.files.scan_output.scans, self.path_of)


def plan_batch(world: World, batch: Batch, files: FileBatch, assembly: Assembly) -> BatchPlan:
    """Assembles the batch's files and plans its tables. If leaving out one file puts all commits in order, and no other
    file would do, that file is set aside and its tables are held from there on; the plan's batch and files then differ
    from the given ones.

    assembly: the ledger's state before the batch, which is advanced. Raises ArchiveError or RunError if the batch can't
    be applied.
    """
    try:
        return _plan_in_order(world, batch, files, assembly)
    except CommitOrderError as error:
        scans, salvages = files.scan_output.scans, world.config.on_error is OnError.QUARANTINE and not batch.resumed
        number = misplaced_file(scans, batch.last_commit_lsn, error.lsns) if salvages else None
        if number is None or files.parts[number].offset:  # this part continues a file that was applied
            raise _naming_both(world, batch, scans, error) from None
    controls = files.scan_output.controls.get(number, ())
    files = files.without(number, MISPLACED, relations_in(scans[number], controls))
    batch = replace(batch, files=files.parts)
    return _plan_in_order(world, batch, files, world.ledger.history.assembly(batch))


def with_creations(world: World, batch: Batch, states: Sequence[TableState]) -> Sequence[TableState]:
    """The states after the batch. Adds the creation of new tables where a snapshot's catalog proves it."""
    if not any(may_lack_rows(state) for state in states if state.oid not in batch.tables):
        return states
    known = world.ledger.batches.known_tables()
    return [state if state.oid in batch.tables else created_since(state, known) for state in states]


def _naming_both(world: World, batch: Batch, scans: Mapping[int, FileScan], error: CommitOrderError) -> SequenceError:
    """Adds to the error the file whose commits are ahead: either of the two may be wrong."""
    behind = min(error.lsns)
    ahead = file_ahead(scans, batch.last_commit_lsn, behind)
    if ahead is None:
        rows = world.ledger.store.rows_before("files", ("path", "last_commit_lsn"), batch)
        other = max(rows, key=lambda row: row["last_commit_lsn"] or 0, default={"path": "an earlier batch"})["path"]
    else:
        other = batch.files[ahead].path
    return SequenceError(
        f"{error}. The commits before it are in {other}: one of the two files is wrong. Until this is resolved, no "
        "files are applied: name the wrong one in source.ignore. If it was applied by an earlier run, run "
        "jobs/backfill.py --from-quarantine with it, which rebuilds all tables without it"
    )


def _plan_in_order(world: World, batch: Batch, files: FileBatch, assembly: Assembly) -> BatchPlan:
    """Like `plan_batch`, for files in order. Also raises CommitOrderError."""
    config, ledger = world.config, world.ledger
    path_of = partial(ledger.files.path_of, batch)
    configured(assembly, config)
    prior = ledger.prior_state(assembly)
    ahead = tables_ahead(batch.tables, assembly.last_commit_lsn)
    waiting, masks_of_waiting = ledger.pending.blocks(assembly, batch), ledger.pending.masks(assembly, batch)
    assemble(files.blocks, files.scan_output, batch.paths, assembly, batch.unread)
    user_types = UserTypes.of(assembly.types.values(), config.types)
    policy = masking_policy_of(config, assembly, user_types)
    if not all(_is_masked_alike(policy, assembly, oid, masks) for oid, masks in masks_of_waiting):
        waiting = world.archive_of(batch).waiting(prior.open_fragments, policy)
    assembly.relations.mask = policy
    rows = MessageRows(files.masked(policy), waiting, files.inspected, assembly)
    if assembly.needs_history:
        commits = files.messages().get("C", 0)
        check_history(ledger.transactions.history_of(batch, rows, commits), assembly, path_of)

    if batch.resumed:
        history = assembly.relations
        names = names_of(history, batch.tables, {*history.oids(), *batch.tables})
        refuse_other_settings(batch.settings, config, names, batch.number)
    targets = plan_targets(config, assembly, rows, batch.tables, ahead, path_of)
    if not batch.resumed:
        refuse_existing_rows(world.targets, targets.tables, [*targets.tables.tasks])
    return BatchPlan(batch, files, rows, prior, targets, path_of)


def _is_masked_alike(policy: MaskingPolicy | None, assembly: Assembly, oid: int, masks: Mapping[str, str]) -> bool:
    """True if waiting changes of a relation were stored with the masks that are configured now."""
    if oid not in assembly.relations.oids():
        return not masks  # without a Relation message, changes are stored either empty or unmasked
    versions, _ = assembly.relations.unmasked(oid)
    clear = {column.name for relation in versions.relations for column in relation.columns} - masks.keys()
    return not changed_masks(masks, frozenset(clear), {} if policy is None else policy.masks_of(oid))
