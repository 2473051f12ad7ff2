"""Backfill into another folder: builds tables as of a commit, beside the targets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from pyspark import StorageLevel

from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.identifiers import path_segment
from pgoutput_etl.jobs.backfill.commit_range import Progress, missing_commits, requested_commits
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
    """Builds tables in a folder of their own. It reads the ledger but writes nothing to it."""

    archive: LedgerArchive
    order: BackfillOrder
    progress: Progress
    folder: str

    def run(self) -> BackfillSummary:
        archive, last = self.archive, self.archive.last
        since = archive.since(self.order.since_version, self.order.oids)
        commits = missing_commits(self.order.oids, since, requested_commits(self.order, last.last_commit_lsn).last)
        if commits.last > last.last_commit_lsn:
            raise ConfigError(f"--to-lsn: the last applied commit is {format_lsn(last.last_commit_lsn)}")
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
                lambda: None,  # no claim: no other run writes to this folder
                partial(archive.ledger.path_of, last),
                self.progress,
            )
            root = self.folder.rstrip("/")
            rebuild = Rebuild(
                archive.spark,
                archive.config,
                archive.assembly,
                last.tables,
                since,
                self.progress,
                writer,
                f"{root}/_rebuilt",
            )
            missing_rows = rebuild.missing_rows(rows)
            cut_off = archive.cutoff_before(self.order.oids, commits.last)
            plan = rebuild.plan(missing_rows, [oid for oid in self.order.oids if oid not in cut_off], {})
            plan.held += [
                HeldTable(oid, state.relation, state.reason or "", TableChanges(oid), state)
                for oid, state in cut_off.items()
            ]
            for n, task in enumerate(plan.tasks):
                state = last.tables.get(task.oid)
                relation = task.shape.relation if state is None else state.relation
                path = "/".join([root, *map(path_segment, target_name(archive.config, relation))])
                self._refuse_other_table(path, task.oid)
                plan.tasks[n] = replace(task, path=path)
            rebuilt, unchanged = rebuild.write(plan, missing_rows)
        finally:
            unpersist(rows)
        by_table = {oid: [f for f in files if oid in f.changes] for oid in self.order.oids}
        return backfill_summary(archive, 0, commits.last, rebuilt + unchanged, by_table, {}, plan.skipped)

    def _refuse_other_table(self, path: str, oid: int) -> None:
        """Raises RunError if the path has a table that no earlier backfill of the same table wrote."""
        if not is_delta_table(self.archive.spark, path):
            return
        prefix = f"pgoutput_etl:{self.archive.last.ledger_id}:into:"
        if not any(a.startswith(prefix) and a.endswith(f":{oid}") for a in applications(self.archive.spark, path)):
            raise RunError(f"the table at {path} was not written by an earlier backfill of this table")
