"""Redrive: reassembles the whole archive to release tables that are held because of unreadable bytes.

Assembly determines which tables such bytes may concern. The redrive therefore reads all files as they are now:
repaired, landed again, or read by a newer version of the software. It also rewrites the ledger's files, relations,
types, and transactions, which count from this batch on (`batches.since`).

Files that earlier runs left unread are read in their place in the order. If later files were read before them, any
table may lack rows, so all tables are rebuilt. All tables are also rebuilt if source.ignore names a file that was
applied, this time without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pgoutput_etl.console import Progress, counted
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.ingest.assemble import assemble, configured
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.ingest.landed_files import accounts_of_others, read_blocks, refuse_renamed
from pgoutput_etl.ingest.listing import rereading_files
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.ingest.source_check import check_history
from pgoutput_etl.landing.fingerprint import FilePart, FileStatus, LandedFile, ScanTask, task_again
from pgoutput_etl.landing.known_files import is_unchanged
from pgoutput_etl.landing.selection import IGNORED, ignoring, is_ignored, set_aside, whole_file
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.batch import Batch, BatchResult, PriorState
from pgoutput_etl.load.rebuild import Rebuild
from pgoutput_etl.load.targets import Targets
from pgoutput_etl.load.writer import TableResult, Writer, refuse_existing_rows, unchanged_result
from pgoutput_etl.masking.policy import masking_policy_of
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.schema.diff import SchemaChange
from pgoutput_etl.schema.relation_history import CommitPosition, is_of_snapshot
from pgoutput_etl.targets.location import scratch_folder
from pgoutput_etl.targets.plan import HELD, HeldTable, TableChanges, TablePlan, TableState, held_from, own_places
from pgoutput_etl.targets.target_plan import settings_of
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.cutoff import Cutoff, find_cutoffs
from pgoutput_etl.transactions.statistics import StatisticsRequest
from pgoutput_etl.types import UserTypes
from pgoutput_etl.work.batch import Prepared
from pgoutput_etl.work.kinds.backfill_order import BackfillOrder, BackfillResult


@dataclass(slots=True)
class Redrive(Prepared[BackfillResult]):
    """Rebuilds held tables and tables that the ledger doesn't know yet; all tables if earlier runs left files
    unread."""

    archive: LedgerArchive
    targets: Targets
    order: BackfillOrder
    progress: Progress
    batch: Batch = field(init=False)
    check_claim: Callable[[], None] = field(init=False)
    rows: MessageRows = field(init=False)
    scans: Mapping[int, FileScan] = field(init=False)
    cutoffs: Mapping[int, Cutoff] = field(init=False)
    held: Mapping[int, TableState] = field(init=False)
    rebuild: Rebuild = field(init=False)
    plan: TablePlan = field(init=False)
    missing: CommittedBlocks = field(init=False)
    results: list[TableResult] = field(init=False)
    schema_changes: list[tuple[TableState, CommitPosition | None, SchemaChange]] = field(init=False)

    @contextmanager
    def prepare(self, batch: Batch, check_claim: Callable[[], None]) -> Iterator[Redrive]:
        config = self.archive.config
        batch = batch.with_order(settings_of(config), self.order.to_json())
        self.batch, self.check_claim = replace(batch, since=batch.number), check_claim
        listing = self.archive.landing.listing()
        with self._naming_unread_files():
            tasks, landed = self._tasks()
        self.progress(f"batch {self.batch.number}: reading the whole archive, {counted(len(tasks), 'file')}")
        landing = self.archive.landing.lenient()
        with self._naming_unread_files():
            blocks, scan_output = read_blocks(landing, tasks)
        try:
            refuse_renamed(landed.values(), listing, landing.listing())
            self.scans = scan_output.scans
            parts = {task.number: whole_file(landed[path], self.scans[task.number]) for path, task in tasks.items()}
            parts |= self._last_part(parts) | self._set_aside(tasks)
            self.batch = replace(self.batch, files=parts)
            assembly = configured(Assembly(), config)
            assemble(blocks, scan_output, self.batch.paths, assembly)
            for entry in self.archive.relations.entries:
                if is_of_snapshot(entry) and entry.relation.oid not in assembly.relations.oids():
                    assembly.relations.declare(entry.relation, entry.position, None, entry.root)
            assembly.types = {**self.archive.assembly.types, **assembly.types}
            user_types = UserTypes.of(assembly.types.values(), config.types)
            assembly.relations.mask = policy = masking_policy_of(config, assembly, user_types)
            if policy is not None:
                blocks.release()
                blocks, _ = read_blocks(landing, tasks, policy)
            self.rows = MessageRows(blocks, None, frozenset(), assembly)
            self._check_order()
            self._plan()
            yield self
        finally:
            blocks.release()

    def _tasks(self) -> tuple[dict[str, ScanTask], dict[str, LandedFile]]:
        """Tasks for all files in full, by path. Bytes that were added to the last file since the last batch are left
        for `apply`. A file may be missing if nothing in it could be read."""
        prior, unread = self.archive.prior_state, self.archive.unread_roots
        numbers = {path: number for path, number in self._numbers().items() if not self._is_ignored(path)}
        optional = {path for path in (*(prior.names[root] for root in unread), *prior.unread) if path in numbers}
        # A receiver may rename a file and reuse its name for the next one, so only these count as repaired.
        repairable = {*optional, *(prior.names[root] for root in self.archive.damaged_roots & prior.names.keys())}
        landed = self.archive.landed(numbers.keys() - optional, sorted(optional), repairable)
        landed = {path: file for path, file in landed.items() if not self._is_needless(file)}
        read = (n for n, part in prior.parts.items() if part.was_read and prior.names[prior.roots[n]] in numbers)
        last = max(read, default=None)
        newest = max([-1 if last is None else last, *(numbers[path] for path in landed if path in prior.unread)])
        tasks = {}
        for path in sorted(landed, key=lambda path: numbers[path]):
            number, is_last = numbers[path], last is not None and prior.roots[last] == numbers[path]
            is_newest = newest in (number, last if is_last else None)
            end = task_again(last, prior.parts[last]).end if is_last and last is not None else None
            tasks[landed[path].path] = ScanTask(number, landed[path].size, is_newest, None, end)
        return tasks, {file.path: file for file in landed.values()}

    def _set_aside(self, tasks: Collection[str]) -> dict[int, FilePart]:
        """The files that earlier runs refused, which would otherwise look new to the next run, and the ignored files.
        tasks: the paths of the files to read."""
        latest, numbers = self.archive.prior_state.by_path, self._numbers()
        ignored = {path for path in numbers if self._is_ignored(path)}
        others = {n: part for path, (n, part) in latest.items() if path not in tasks and path not in ignored}
        refused = {n: p for n, p in others.items() if p.status == FileStatus.REFUSED.value or p.is_needless}
        return refused | {numbers[path]: set_aside(latest[path][1], IGNORED, frozenset()) for path in ignored}

    def _numbers(self) -> dict[str, int]:
        """The number in the archive's order of each file that was or may be read, by path."""
        prior = self.archive.prior_state
        return {**{path: root for root, path in prior.names.items()}, **prior.unread}

    def _is_ignored(self, path: str) -> bool:
        """A resumed redrive ignores the same files as when it began."""
        if self.batch.resumed:
            return any(part.path == path and part.is_needless for part in self.archive.last.files.values())
        return is_ignored(path, self.archive.config.source.ignore)

    def _is_needless(self, file: LandedFile) -> bool:
        """True if earlier runs found that no table depends on the file and it hasn't changed since."""
        prior = self.archive.prior_state
        return is_unchanged(file, prior) and prior.by_path[file.path][1].is_needless

    @contextmanager
    def _naming_unread_files(self) -> Iterator[None]:
        """If an error names set-aside files that still exist, adds how to continue without them."""
        try:
            yield
        except ArchiveError as error:
            paths = [path for path in self.archive.prior_state.unread if path in str(error)]
            if not paths:
                raise
            raise ArchiveError(
                f"{error}. Nothing was written. Put the receiver's copy in its place. If no receiver wrote the file, "
                "remove it, or rebuild the tables without it",
                ("backfill", "--from-quarantine", "--set", ignoring(paths)),
            ) from error

    def _check_order(self) -> None:
        """Raises SequenceError if a file, perhaps one that was set aside for this, has commits that neither follow
        earlier ones nor were sent before."""
        rows = self.rows
        if rows.assembly.needs_history:
            commits = sum(scan.messages.get("C", 0) for scan in self.scans.values())
            check_history(
                self.archive.ledger.transactions.history_of(self.batch, rows, commits), rows.assembly, self._path_of
            )

    def _last_part(self, parts: Mapping[int, FilePart]) -> dict[int, FilePart]:
        """The archive's last file with its size and time as of the last batch, so that the next run notices growth."""
        prior = self.archive.prior_state
        root = None if prior.last is None else prior.roots[prior.last]
        if root is None or root not in parts:
            return {}
        _, before = prior.by_path[prior.names[root]]
        return {root: replace(parts[root], size=before.size, modified=before.modified)}

    def _plan(self) -> None:
        archive, batch, rows, assembly = self.archive, self.batch, self.rows, self.rows.assembly
        late = [path for path in archive.prior_state.left_unread if path in batch.paths.values()]
        rebuild_all = bool(late) or any(map(self._is_ignored, archive.prior_state.names.values()))
        held = {oid: state for oid, state in batch.tables.items() if rebuild_all or state.may_be_redriven}
        cutoffs = find_cutoffs(assembly, rows.statistics(StatisticsRequest()), batch.tables)
        cutoffs = {oid: cutoff.with_paths(self._path_of) for oid, cutoff in cutoffs.items()}
        # A rebuild would end before the current state of these tables.
        worse = {o: state for o, state in held.items() if o in cutoffs and cutoffs[o].lsn <= state.last_commit_lsn}
        applied = [oid for oid in batch.tables if oid not in held]
        writer, since = self._writer(assembly.last_commit_lsn), archive.snapshots(held.keys() - worse.keys())
        scratch = scratch_folder(archive.config)
        rebuild = Rebuild(archive.config, assembly, batch.tables, since, self.progress, writer, scratch)
        missing = rebuild.missing_rows(archive.assembled(rows, {*applied, *worse}, cutoffs))
        paths = own_places(batch.tables, held)
        oids = {*held, *assembly.relations.oids(), *cutoffs} - {*applied, *worse}
        plan = rebuild.plan(missing, oids, paths, cutoffs)
        plan.held += [
            HeldTable(oid, state.relation, cutoffs[oid].reason, TableChanges(oid), state)
            for oid, state in worse.items()
        ]
        if not batch.resumed:
            new = [task for task in plan.tasks if task.path != paths.get(task.oid)]
            refuse_existing_rows(self.targets, plan, new)
        self.cutoffs, self.held, self.rebuild, self.plan, self.missing = cutoffs, held, rebuild, plan, missing

    def write(self) -> None:
        held = self.held
        with rereading_files(self.batch.paths.values()):
            rebuilt, unchanged = self.rebuild.write(self.plan, self.missing)
        self.results = [*rebuilt, *(_with_new_reason(result, self.batch.tables) for result in unchanged)]
        self.schema_changes = [
            (r.state, position, change)
            for r in rebuilt
            for position, change in r.schema_changes
            if position is not None and (r.state.oid not in held or position[0] > held[r.state.oid].last_commit_lsn)
        ]

    def close(self) -> None:
        self.progress("writing the ledger")
        batch, rows, assembly, held = self.batch, self.rows, self.rows.assembly, self.held
        tables = [result.state for result in self.results]
        still_held = [table.oid for table in tables if table.status == HELD]
        others = batch.tables.keys() - {table.oid for table in tables}
        waiting = {oid: state.last_commit_lsn + 1 for oid in others if (state := batch.tables[oid]).status == HELD}
        unapplied = {**held_from(still_held, self.cutoffs), **waiting}
        statistics = rows.statistics(StatisticsRequest(held_from=unapplied))
        if statistics.last_commit is not None:
            assembly.record_commit(*statistics.last_commit)
        before = PriorState(0, {}, [])
        # Entries that remain in quarantine are written again. If a held OID has no path, and assembly no longer finds
        # it, it never was a table.
        current = {table.oid for table in tables}
        vanished = {oid for oid, state in held.items() if not state.path and oid not in current}
        redriven = [*vanished, *(t.oid for t in tables if t != batch.tables.get(t.oid))]
        batch = replace(batch, tables={oid: state for oid, state in batch.tables.items() if oid not in vanished})
        ledger = self.archive.ledger
        ledger.quarantine.mark_redriven(batch, redriven, with_bytes=True)
        ledger.record_ahead(batch, rows, before, statistics)
        accounts = statistics.accounts() | accounts_of_others(batch.files)
        ledger.close(batch, BatchResult(rows, before, self.scans, tables, self.schema_changes, accounts))

    def result(self) -> BackfillResult:
        files = {result.state.oid: list(self.archive.files) for result in self.results}
        lsn = self.rows.assembly.last_commit_lsn
        return BackfillResult(self.batch.number, lsn, self.results, files, self.plan.skipped)

    def _path_of(self, number: int) -> str:
        return self.archive.ledger.files.path_of(self.batch, number)

    def _writer(self, last_commit_lsn: int) -> Writer:
        callbacks = (self.check_claim, self._path_of, self.progress)
        return Writer(self.targets, self.archive.config, self.batch, last_commit_lsn, *callbacks)


def ignores_applied_files(archive: LedgerArchive) -> bool:
    """True if source.ignore names files that were applied."""
    return any(is_ignored(path, archive.config.source.ignore) for path in archive.prior_state.names.values())


def _with_new_reason(result: TableResult, states: Mapping[int, TableState]) -> TableResult:
    """The table's state before the batch, but with the reason why it is held now."""
    before = unchanged_result(result, states)
    return replace(before, state=replace(before.state, reason=result.state.reason))
