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
    order = json.loads(batch.work or "")
    if "erasure" in order:
        raise unfinished_erasure(batch)
    unfinished = _unfinished_snapshot if "snapshot" in order else _unfinished_backfill
    return unfinished(world, batch, progress)


def backfill_work(
    archive: LedgerArchive, targets: Targets, order: BackfillOrder, progress: Progress
) -> Work[BackfillResult]:
    return (Redrive if order.anew else InPlaceBackfill)(archive, targets, order, progress)


def _unfinished_backfill(world: World, batch: Batch, progress: Progress) -> Work[object]:
    archive, order = world.archive_of(batch), BackfillOrder.from_json(batch.work or "")
    oids = {*batch.tables, *archive.relations.oids()} if order.anew else {*order.oids}
    names = names_of(archive.relations, batch.tables, oids)
    refuse_other_settings(batch.settings, world.config, names, batch.number, may_skip=False)
    return backfill_work(archive, world.targets, order, progress)


def _unfinished_snapshot(world: World, batch: Batch, progress: Progress) -> Work[object]:
    order = SnapshotOrder.from_json(batch.work or "")
    names = [(relation.namespace, relation.name) for relation in order.relations]
    refuse_other_settings(batch.settings, world.config, names, batch.number, may_skip=False)
    return SnapshotLoad(world, world.archive_of(batch), order, progress)


def unfinished_erasure(batch: Batch) -> RunError:
    return RunError(
        f"batch {batch.number} was begun by a run of jobs/forget.py that died: finish the erasure {batch.erasure!r} "
        "first, with its request and --execute"
    )
