"""The work of a batch that a dead run began, by its stored order: all kinds other than landed files."""

from __future__ import annotations

import json

from pgoutput_etl.console import Progress
from pgoutput_etl.errors import RunError
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.load.targets import Targets
from pgoutput_etl.targets.target_plan import names_of, refuse_other_settings
from pgoutput_etl.work.batch import Work, World
from pgoutput_etl.work.kinds.backfill_order import BackfillOrder, BackfillResult
from pgoutput_etl.work.kinds.in_place import InPlaceBackfill
from pgoutput_etl.work.kinds.redrive import Redrive
from pgoutput_etl.work.kinds.snapshot_load import SnapshotLoad
from pgoutput_etl.work.kinds.snapshot_order import SnapshotOrder


def unfinished_work(world: World, batch: Batch, progress: Progress) -> Work[object]:
    """The work of a batch that a dead run began. Raises RunError if this run can't finish it: it erases rows, which
    takes the request, or it began with another configuration."""
    text = batch.work or ""
    stored = json.loads(text)
    if "erasure" in stored:
        raise unfinished_erasure(batch)
    archive = world.archive_of(batch)
    work: Work[object]
    if "snapshot" in stored:
        load = SnapshotOrder.from_json(text)
        names = {(relation.namespace, relation.name) for relation in load.relations}
        work = SnapshotLoad(world, archive, load, progress)
    else:
        order = BackfillOrder.from_json(text)
        oids = {*batch.tables, *archive.relations.oids()} if order.anew else {*order.oids}
        names = names_of(archive.relations, batch.tables, oids)
        work = backfill_work(archive, world.targets, order, progress)
    refuse_other_settings(batch.settings, world.config, names, batch.number, may_skip=False)
    return work


def backfill_work(
    archive: LedgerArchive, targets: Targets, order: BackfillOrder, progress: Progress
) -> Work[BackfillResult]:
    return (Redrive if order.anew else InPlaceBackfill)(archive, targets, order, progress)


def unfinished_erasure(batch: Batch) -> RunError:
    return RunError(
        f"batch {batch.number} was begun by a run of jobs/forget.py that died: finish the erasure {batch.erasure!r} "
        "first, with its request and --execute"
    )
