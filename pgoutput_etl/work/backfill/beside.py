"""Backfill into another folder: builds copies of tables as of a commit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from uuid import uuid4

from pgoutput_etl.console import Progress
from pgoutput_etl.errors import ConfigError, RunError, TableError
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.load.targets import Targets
from pgoutput_etl.load.writer import Writer, no_claim
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.places import Place
from pgoutput_etl.targets.location import place_below
from pgoutput_etl.targets.plan import HeldTable, TableChanges
from pgoutput_etl.work.backfill.report import BackfillSummary
from pgoutput_etl.work.backfill.summary import backfill_summary
from pgoutput_etl.work.kinds.backfill_order import BackfillOrder, BackfillResult
from pgoutput_etl.work.kinds.rebuild import archive_rebuild


def build_beside(
    archive: LedgerArchive, targets: Targets, order: BackfillOrder, progress: Progress, folder: str
) -> BackfillSummary:
    """Builds tables in a separate folder. Reads the ledger but writes nothing to it."""
    last, oids = archive.last, order.oids
    _, through = order.commits(last.last_commit_lsn)
    if through > last.last_commit_lsn:
        raise ConfigError(f"--to-lsn: the last applied commit is {format_lsn(last.last_commit_lsn)}")
    root, path_of = folder.rstrip("/"), partial(archive.ledger.files.path_of, last)
    ledger_id = f"{last.ledger_id}:into:{uuid4().hex}"
    batch = replace(last, ledger_id=ledger_id, resumed=False, last_commit_lsn=through)
    writer = Writer(targets, archive.config, batch, through, no_claim, path_of, progress)
    with archive_rebuild(archive, order, oids, writer, f"{root}/_rebuilt") as (rebuild, rows, files):
        cut_off = archive.cutoff_before(oids, through)
        plan = rebuild.plan(rows, [oid for oid in oids if oid not in cut_off], {})
        plan.held += [
            HeldTable(oid, state.relation, state.reason or "", TableChanges(oid), state)
            for oid, state in cut_off.items()
        ]
        for n, task in enumerate(plan.tasks):
            state = last.tables.get(task.oid)
            relation = task.shape.relation if state is None else state.relation
            path = place_below(root, archive.config, relation)
            _refuse_other_table(archive, targets, path, task.oid)
            plan.tasks[n] = replace(task, path=path)
        rebuilt, unchanged = rebuild.write(plan, rows)
    files_of = {oid: [f for f in files if oid in f.changes] for oid in oids}
    return backfill_summary(archive, BackfillResult(0, through, rebuilt + unchanged, files_of, plan.skipped))


def _refuse_other_table(archive: LedgerArchive, targets: Targets, path: Place, oid: int) -> None:
    """Raises RunError if the path has a table that isn't from an earlier backfill of the same table."""
    try:
        exists = targets.check_free(path, is_new=True)
    except TableError as error:
        raise RunError(str(error)) from None
    if not exists or (path.tag and not targets.has_rows(path)):
        return
    prefix = f"pgoutput_etl:{archive.last.ledger_id}:into:"
    if not any(a.startswith(prefix) and a.endswith(f":{oid}") for a in targets.applications(path)):
        raise RunError(f"the table at {path} was not written by an earlier backfill of this table")
