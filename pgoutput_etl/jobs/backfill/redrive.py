"""Tables that are held because bytes of the archive could not be read, taken up again.

What such bytes are about is decided where the archive is assembled. So all of it is assembled anew, from its files as
they are now: mended, landed again, or read by a version that knows more. What the ledger says of files, relations,
types and transactions is written anew with it, and counts from this batch on (`batches.since`).

Files whose bytes earlier runs left are read in their place, too. If others were read behind them, any table may lack
rows: then all tables are rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.config.settings import OnError
from pgoutput_etl.ingest.assemble import assemble
from pgoutput_etl.ingest.landed_files import read_blocks
from pgoutput_etl.ingest.quarantine import before_cutoffs
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.ingest.status_join import only_committed
from pgoutput_etl.landing.fingerprint import FilePart, LandedFile, ScanTask, task_again
from pgoutput_etl.landing.selection import whole_file
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.batch import Batch, BatchResult, PriorState
from pgoutput_etl.load.rebuild import Rebuild
from pgoutput_etl.load.writer import TableResult, Writer, refuse_existing_rows, unchanged_result
from pgoutput_etl.masking.policy import masking_policy_of
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.schema.diff import SchemaChange
from pgoutput_etl.schema.relation_history import CommitPosition, is_of_snapshot
from pgoutput_etl.spark.platform import persist, unpersist
from pgoutput_etl.targets.plan import HELD, HeldTable, TableChanges, TablePlan, TableState, held_from
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.cutoff import Cutoff, find_cutoffs
from pgoutput_etl.transactions.statistics import StatisticsRequest
from pgoutput_etl.types import UserTypes


@dataclass(slots=True)
class Redrive:
    """All held tables rebuilt, and those that the archive has and the ledger does not; all tables, if the archive has
    files that were passed over."""

    archive: LedgerArchive
    batch: Batch
    check_claim: Callable[[], None]
    progress: Callable[[str], None]

    def run(self) -> tuple[list[TableResult], list[str], int]:
        """The tables, what was skipped, and the last commit."""
        spark, config = self.archive.spark, self.archive.config
        tasks, landed = self._tasks()
        self.progress(f"batch {self.batch.number}: reading all of {len(tasks):,} files")
        salvaging = replace(config, on_error=OnError.QUARANTINE)
        blocks, scanned = read_blocks(spark, salvaging, tasks)
        changes: DataFrame | None = None
        try:
            parts = {task.number: whole_file(landed[path], scanned.scans[task.number]) for path, task in tasks.items()}
            parts |= self._as_before(parts)
            self.batch = replace(self.batch, files=parts)
            assembly = Assembly()
            assembly.origins = config.source.origins
            assemble(blocks, scanned, self.batch.paths, assembly)
            for entry in self.archive.relations.entries:
                if is_of_snapshot(entry) and entry.relation.oid not in assembly.relations.oids():
                    assembly.relations.declare(entry.relation, entry.position, None)
            assembly.types = {**self.archive.assembly.types, **assembly.types}
            user_types = UserTypes.of(assembly.types.values(), config.types)
            assembly.relations.mask = protected = masking_policy_of(config, assembly, user_types)
            if protected is not None:
                unpersist(blocks)
                blocks, _ = read_blocks(spark, salvaging, tasks, protected)
            rows = MessageRows(spark, blocks, None, frozenset(), assembly)
            changes = persist(rows.changes_with_status(), StorageLevel.DISK_ONLY)
            return self._rebuild(rows, changes, scanned.scans)
        finally:
            unpersist(blocks)
            if changes is not None:
                unpersist(changes)

    def _tasks(self) -> tuple[dict[str, ScanTask], dict[str, LandedFile]]:
        """Each file whole, but for what was added to the last one since: that is for the nightly job. One of which
        nothing could be read may be gone."""
        known, unread = self.archive.prior_state, self.archive.unread_roots
        numbers = {**{path: root for root, path in known.names.items()}, **known.unread}
        gone = [*(known.names[root] for root in unread), *known.unread]
        landed = self.archive.landed(numbers.keys() - set(gone), gone)
        last = known.last
        newest = max([-1 if last is None else last, *known.unread.values()])
        tasks = {}
        for path in sorted(landed, key=lambda path: numbers[path]):
            number, is_last = numbers[path], last is not None and known.roots[last] == numbers[path]
            is_newest = newest in (number, last if is_last else None)
            end = task_again(last, known.parts[last]).end if is_last and last is not None else None
            tasks[path] = ScanTask(number, landed[path].size, is_newest, None, end)
        return tasks, landed

    def _as_before(self, parts: Mapping[int, FilePart]) -> dict[int, FilePart]:
        """The file where the archive ends, as the nightly job left it: what was added since shows by size or time."""
        known = self.archive.prior_state
        root = None if known.last is None else known.roots[known.last]
        if root is None or root not in parts:
            return {}
        _, before = known.by_path[parts[root].path]
        return {root: replace(parts[root], size=before.size, modified=before.modified)}

    def _rebuild(
        self, rows: MessageRows, changes: DataFrame, scans: Mapping[int, FileScan]
    ) -> tuple[list[TableResult], list[str], int]:
        batch, assembly = self.batch, rows.assembly
        every = bool(self.archive.prior_state.left_unread)
        held = {oid: state for oid, state in batch.tables.items() if every or state.status == HELD}
        found = find_cutoffs(assembly, rows.statistics(StatisticsRequest()), batch.tables)
        cutoffs = {oid: cutoff.with_paths(self._path_of) for oid, cutoff in found.items()}
        worse = {oid: state for oid, state in held.items() if _is_before(cutoffs.get(oid), state)}
        applied = [oid for oid in batch.tables if oid not in held]
        chosen = only_committed(changes).where(~F.col("relation").isin(*applied, *worse))
        applicable = before_cutoffs(self.archive.spark, chosen, cutoffs)
        root = self.archive.config.state.root.rstrip("/")
        writer = self._writer(assembly.last_commit_lsn)
        since = self.archive.snapshots(oid for oid in held if oid not in worse)
        rebuilding = Rebuild(
            self.archive.spark,
            self.archive.config,
            assembly,
            batch.tables,
            since,
            self.progress,
            writer,
            f"{root}/rebuilt",
        )
        applicable = rebuilding.missing_rows(applicable)
        places = {oid: state.path for oid, state in held.items() if state.path}
        oids = {*held, *assembly.relations.oids(), *cutoffs} - {*applied, *worse}
        plan = rebuilding.plan(applicable, oids, places, cutoffs)
        plan.held += [
            HeldTable(oid, state.relation, cutoffs[oid].reason, TableChanges(oid), state)
            for oid, state in worse.items()
        ]
        if not batch.resumed:
            refuse_existing_rows(self.archive.spark, TablePlan([task for task in plan.tasks if task.oid not in places]))
        self.check_claim()
        self.archive.ledger.begin(batch)
        built, left = rebuilding.write(plan, applicable)
        outcomes = [*built, *(_for_todays_reason(outcome, batch.tables) for outcome in left)]

        self.progress("writing the ledger")
        news: list[tuple[TableState, CommitPosition | None, SchemaChange]] = [
            (o.state, place, change)
            for o in built
            for place, change in o.schema_changes
            if place is not None and (o.state.oid not in held or place[0] > held[o.state.oid].last_commit_lsn)
        ]
        tables = [outcome.state for outcome in outcomes]
        statistics = rows.statistics(StatisticsRequest(held_from=held_from(tables, cutoffs)))
        if statistics.last_commit is not None:
            assembly.record_commit(*statistics.last_commit)
        before = PriorState(0, {}, [])
        # Whatever is in quarantine still is written anew. What seemed to be a table may never have been one.
        seen = {table.oid for table in tables}
        never = {oid for oid, state in held.items() if not state.path and oid not in seen}
        anew = [*never, *(t.oid for t in tables if t != batch.tables.get(t.oid))]
        known = replace(batch, tables={oid: state for oid, state in batch.tables.items() if oid not in never})
        ledger = self.archive.ledger
        ledger.redriven(batch, F.col("relation").isNull() | F.col("relation").isin(*anew))
        ledger.record_ahead(known, rows, before, statistics.messages)
        ledger.close(known, BatchResult(rows, before, scans, tables, news, statistics.accounts()))
        return outcomes, plan.skipped, assembly.last_commit_lsn

    def _path_of(self, number: int) -> str:
        return self.archive.ledger.path_of(self.batch, number)

    def _writer(self, last_commit_lsn: int) -> Writer:
        archive, batch = self.archive, self.batch
        return Writer.of(
            archive.spark, archive.config, batch, last_commit_lsn, self.check_claim, self._path_of, self.progress
        )


def _is_before(cutoff: Cutoff | None, state: TableState) -> bool:
    """Whether a table would be taken back behind where it stands."""
    return cutoff is not None and cutoff.lsn <= state.last_commit_lsn


def _for_todays_reason(outcome: TableResult, states: Mapping[int, TableState]) -> TableResult:
    before = unchanged_result(outcome, states)
    return replace(before, state=replace(before.state, reason=outcome.state.reason))
