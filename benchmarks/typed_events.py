"""Typed change events of an archive: in Spark, from the landed bytes to the events that a MERGE gets; and in one
process, for a writer without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.corpora import Corpus
from benchmarks.jobs import configured, run_job
from benchmarks.sessions import WORK, fresh, linked, session
from pgoutput_etl.changes.compaction import net_events_of
from pgoutput_etl.changes.window import Window
from pgoutput_etl.console import no_progress
from pgoutput_etl.ingest.executors import iterate_blocks, pack_blocks
from pgoutput_etl.ingest.landed_files import new_files, read_files
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.load.change_source import ChangeBlocks
from pgoutput_etl.scan.blocks import BlockKind
from pgoutput_etl.schema.table_shape import TableShape, table_shape
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.cutoff import commits_before
from pgoutput_etl.transactions.outcome import control_rows
from pgoutput_etl.transactions.status_lookup import StatusLookup
from pgoutput_etl.work.batch import World
from pgoutput_etl.work.files.backlog import find_backlog
from pgoutput_etl.work.files.batch_plan import plan_batch
from tests.support.scan_parts import scan_file

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Typing:
    scenario: str
    bytes: int
    seconds: float
    MB_per_s: float


def measure_typing(corpus: Corpus, runs: int, progress: Progress) -> Typing:
    """The median. Each run scans a night's files, decides their transactions, and types and reduces the changes of
    every table, which are discarded."""
    work = fresh(WORK / "typing")
    landing, tables = work / "landing", work / "tables"
    with session() as spark:
        linked(corpus.first, landing)
        progress(f"{corpus.name}: the first night")
        run_job(spark, configured(landing, tables), no_progress)
        linked(corpus.second, landing)
        seconds = []
        for run in range(-1, runs):  # run -1 warms up
            progress(f"{corpus.name}: run {run + 1} of {runs}")
            seconds.append(_type(spark, landing, tables))
    taken = median(seconds[1:])
    return Typing(corpus.name, corpus.landed.bytes, taken, corpus.landed.bytes / taken / 1e6)


def _type(spark: SparkSession, landing: Path, tables: Path) -> float:
    world = World.of(spark, configured(landing, tables))
    backlog = find_backlog(world, no_progress)
    started = time.perf_counter()
    files = new_files(backlog.index, backlog.listing)
    landed = read_files(world.landing, files, backlog.index, backlog.listing)
    batch = replace(Batch.after(backlog.last, {}), files=landed.parts)
    plan = plan_batch(world, batch, landed, world.ledger.history.assembly(batch))
    changes = ChangeBlocks(plan.rows, commits_before(plan.targets.cutoffs))
    changes.prepare(plan.tables.tasks)
    for task in plan.tables.tasks:
        for span in task.spans:
            changes.events(task, span).frame.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - started
    landed.release()
    return seconds


def net_events_in_memory(corpus: Corpus) -> dict[str, tuple[TableShape, pa.Table]]:
    """A night's net events by table, computed by this process alone."""
    assembly, blocks = Assembly(), list[Mapping[str, Any]]()
    for number, path in enumerate(sorted(corpus.second.iterdir())):
        scanned = scan_file(str(path), number, path.read_bytes())
        assembly.add_file(scanned.summary, control_rows(scanned.batches))
        blocks += iterate_blocks(pack_blocks(scanned.batches, BlockKind.CHANGE))
    statuses = StatusLookup.of((*assembly.outcomes, *assembly.open_outcomes()), assembly.watermarks)
    found = {}
    for oid in assembly.relations.oids():
        versions = assembly.relations.versions(oid)
        shape = table_shape(versions.relations[-1], versions, None, moves_toast=False)
        own = [block for block in blocks if block["kind"] == BlockKind.CHANGE.value and block["relation"] == oid]
        events = pa.Table.from_batches(net_events_of(own, statuses, Window(), shape), shape.event_schema())
        found[shape.relation.name] = shape, events
    return found
