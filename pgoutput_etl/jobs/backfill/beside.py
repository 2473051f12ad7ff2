"""A backfill beside the table: builds a new one from the archive, then replaces the old one with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from pyspark import StorageLevel

from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.identifiers import path_segment
from pgoutput_etl.jobs.backfill.commit_range import Progress, _commits, _lacking
from pgoutput_etl.jobs.backfill.report import BackfillSummary
from pgoutput_etl.jobs.backfill.request import BackfillOrder
from pgoutput_etl.jobs.backfill.summary import backfill_summary
from pgoutput_etl.ledger.archive import LedgerArchive, refuse_unreadable
from pgoutput_etl.load.evolve import applications
from pgoutput_etl.load.rebuild import Rebuild
from pgoutput_etl.load.writer import Writer
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.spark.delta import is_delta_table
from pgoutput_etl.spark.platform import persist, unpersist
from pgoutput_etl.targets.location import target_name
from pgoutput_etl.targets.plan import HeldTable, TableChanges


@dataclass(slots=True)
class SideBuild:
    """Tables as of a commit, in a folder of their own. The ledger is read, and nothing of it written."""

    archive: LedgerArchive
    order: BackfillOrder
    progress: Progress
    folder: str

    def run(self) -> BackfillSummary:
        archive, last = self.archive, self.archive.last
        commits = _commits(self.order, last.last_commit_lsn)
        since = archive.since(self.order.since_version, self.order.oids)
        commits = _lacking(self.order.oids, since, commits.last)
        if commits.last > last.last_commit_lsn:
            raise ConfigError(f"--to-lsn: the last commit that was applied is {format_lsn(last.last_commit_lsn)}")
        files = archive.files_with(self.order.oids, commits)
        rows = persist(archive.committed(files, self.order.oids, commits), StorageLevel.DISK_ONLY)
        try:
            refuse_unreadable(rows)
            ledger_id = f"{last.ledger_id}:into:{uuid4().hex}"
            writer = Writer(
                archive.spark,
                ledger_id,
                last.number,
                commits.last,
                commits.last,
                archive.config.merge.parallel_tables,
                False,
                lambda: None,  # no claim: nobody else writes there
                partial(archive.ledger.path_of, last),
                self.progress,
            )
            root = self.folder.rstrip("/")
            rebuilding = Rebuild(
                archive.spark,
                archive.config,
                archive.assembly,
                last.tables,
                since,
                self.progress,
                writer,
                f"{root}/_rebuilt",
            )
            lacking = rebuilding.missing_rows(rows)
            cutoff = archive.cutoff_before(self.order.oids, commits.last)
            plan = rebuilding.plan(lacking, [oid for oid in self.order.oids if oid not in cutoff], {})
            plan.held += [
                HeldTable(oid, state.relation, state.reason or "", TableChanges(oid), state)
                for oid, state in cutoff.items()
            ]
            for n, task in enumerate(plan.tasks):
                state = last.tables.get(task.oid)
                relation = task.shape.relation if state is None else state.relation
                place = "/".join([root, *map(path_segment, target_name(archive.config, relation))])
                self._refuse_others(place, task.oid)
                plan.tasks[n] = replace(task, path=place)
            built, left = rebuilding.write(plan, lacking)
            outcomes = built + left
        finally:
            unpersist(rows)
        by_table = {oid: [f for f in files if oid in f.changes] for oid in self.order.oids}
        return backfill_summary(archive, 0, commits.last, outcomes, by_table, {}, plan.skipped)

    def _refuse_others(self, place: str, oid: int) -> None:
        """Raises RunError if there is a table that no earlier backfill of the same one put there."""
        if not is_delta_table(self.archive.spark, place):
            return
        mine = f"pgoutput_etl:{self.archive.last.ledger_id}:into:"
        if not any(a.startswith(mine) and a.endswith(f":{oid}") for a in applications(self.archive.spark, place)):
            raise RunError(f"there is a table at {place} that is no earlier backfill of this one")
