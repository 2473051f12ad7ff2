"""Repairs exactly the rows that verify has settled, which are known to differ as of an LSN.

Rows that have changed in the archive since then are left; the next verify compares them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial, reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from pgoutput_etl.answers.verify import run
from pgoutput_etl.answers.verify.report import VerifiedTable, VerifySummary
from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.answers.verify.row_text import text_names
from pgoutput_etl.answers.verify.server_answer import ServerAnswer
from pgoutput_etl.answers.verify.settle import SettledTable
from pgoutput_etl.answers.verify.tables import named_states
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, counted, no_progress
from pgoutput_etl.errors import AnotherRunError
from pgoutput_etl.ingest.executors import blocks_of
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.batch import applied
from pgoutput_etl.load.summary import ChangedTables
from pgoutput_etl.load.target_columns import delta_type
from pgoutput_etl.load.writer import TableResult
from pgoutput_etl.postgres.copy_format import tuple_of
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.scan.blocks import BlockKind
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.table_pool import TablePool
from pgoutput_etl.targets.condition import condition_of, conditions_of
from pgoutput_etl.targets.plan import BEFORE_FILES, TableState
from pgoutput_etl.timestamps import microseconds_of
from pgoutput_etl.work.batch import World
from pgoutput_etl.work.kinds.snapshot_order import Repair, SnapshotOrder
from pgoutput_etl.work.snapshot.changed_keys import ChangedKeys, changed_since_verified
from pgoutput_etl.work.snapshot.repair import why_not_repaired
from pgoutput_etl.work.snapshot.run import load_staged, reliable_archive
from pgoutput_etl.work.snapshot.staging import StagedTables, as_sent, staged_folder

_LATER = "has changed since in a way that can't be followed row by row: verify again"

_CHANGE = pa.schema([MESSAGE_SCHEMA.field(name) for name in ("ordinal", "tag", "old_kind", "old", "new")])


def verify(
    spark: SparkSession, config: Config, request: VerifyRequest, progress: Progress = no_progress
) -> VerifySummary:
    """Like answers.verify.run.verify. With `request.repair`, writes the differences that it settles. Raises
    PgoutputEtlError."""
    repair = SettledRepair(spark, config, progress)
    mend = repair.mend if request.repair else None
    summary = run.verify(spark, config, request, progress, mend, changed_since_verified)
    return replace(summary, changed=repair.changed)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """rows: number to write. left: keys that have changed since. why_not: the reason why nothing is written. messages:
    the rows to write, with MESSAGE_SCHEMA."""

    rows: int = 0
    left: int = 0
    why_not: str | None = None
    messages: DataFrame | None = None


@dataclass(frozen=True, slots=True)
class SettledRepair:
    spark: SparkSession
    config: Config
    progress: Progress
    _outcomes: dict[str, _Outcome] = field(default_factory=dict)  # by name
    _results: list[TableResult] = field(default_factory=list)

    @property
    def changed(self) -> ChangedTables:
        conditions = conditions_of([result.state for result in self._results], self.config)
        summaries = (result.summary for result in self._results)
        return ChangedTables(tuple(summary for summary in summaries if summary.changed_rows), conditions)

    def mend(
        self, answer: ServerAnswer, tables: Sequence[VerifiedTable], found: Sequence[SettledTable]
    ) -> list[VerifiedTable]:
        """The tables, each with the outcome. Raises AnotherRunError if another run is active."""
        world = World.of(self.spark, self.config)
        last = applied(world.ledger.batches.last(), world.ledger.source)
        named = named_states(self.config, last.tables)
        if not self._concerned(tables, named):
            return list(tables)
        if last.resumed:
            raise AnotherRunError(f"another run is working on batch {last.number}. Run again when it is done")
        stage = partial(self._staging, answer, tables, {one.asked.full_name: one for one in found})
        archive = reliable_archive(world, last)
        done, _ = load_staged(world, archive, stage(archive), stage, self.progress)
        self._results.extend(done.tables)
        held = {r.state.full_name: r.summary.held for r in done.tables if r.summary.held is not None}
        return [self._told(table, held.get(table.full_name)) for table in tables]

    def _told(self, table: VerifiedTable, held: str | None) -> VerifiedTable:
        outcome = self._outcomes.get(table.full_name)
        if outcome is None:
            return table
        if held is not None or outcome.why_not is not None:
            return replace(table, repair=f"not repaired: {held or outcome.why_not}")
        parts = [f"{counted(outcome.rows, 'row')} repaired"] if table.differing else ["its state has ended"]
        if outcome.left:
            parts.append(f"{counted(outcome.left, 'row')} left that changed since: verify again")
        if table.rows_unread:
            parts.append("the others by the command below")
        return replace(table, repair="; ".join(parts), is_repaired=not (outcome.left or table.rows_unread))

    def _staging(
        self,
        answer: ServerAnswer,
        tables: Sequence[VerifiedTable],
        found: Mapping[str, SettledTable],
        archive: LedgerArchive,
    ) -> StagedTables:
        """Writes the rows that differ. `_outcomes` has the tables' outcomes then."""
        self._outcomes.clear()
        named, before = named_states(self.config, archive.last.tables), archive.ledger.batches.states_at(answer.lsn - 1)
        at = microseconds_of(datetime.fromisoformat(answer.at))
        states = [replace(one.side.state, last_commit_lsn=answer.lsn - 1) for one in found.values()]
        tables, repairs = self._concerned(tables, named), dict[int, Repair]()
        with staged_folder(archive) as path:
            order = SnapshotOrder(archive.last.last_commit_lsn + 1, at, path, ())
            changed = ChangedKeys.after(self.spark, archive, states, self.progress)

            def changed_rows(table: VerifiedTable) -> _Outcome:
                return self._changed(table, named[table.full_name], found.get(table.full_name), changed, order)

            pool = TablePool.of(self.spark, self.config.merge.parallel_tables, "comparing the rows of", self.progress)
            outcomes = pool.map(tables, lambda table: table.full_name, changed_rows)
            for table, outcome in zip(tables, outcomes, strict=True):
                now = named[table.full_name]
                is_whole = not (outcome.left or table.rows_unread or table.unknown or table.not_compared)
                is_whole = is_whole and not table.ranges_skipped
                is_whole = is_whole and _known(before.states.get(now.oid)) == _known(now)
                if outcome.why_not is None and (outcome.rows or is_whole):
                    repairs[now.oid] = Repair(now.version, (), is_whole)
                if table.differing or now.oid in repairs:
                    self._outcomes[table.full_name] = outcome
            messages = [outcome.messages for outcome in self._outcomes.values() if outcome.messages is not None]
            if messages:
                blocks = blocks_of(reduce(DataFrame.unionByName, messages), BlockKind.CHANGE)
                blocks.write.format("delta").save(path)
        relations = tuple(as_sent(archive.last.tables[oid].relation) for oid in repairs)
        return StagedTables(replace(order, relations=relations, repairs=repairs), (), ())

    def _concerned(self, tables: Sequence[VerifiedTable], named: Mapping[str, TableState]) -> list[VerifiedTable]:
        """The tables that differ, or have a condition that a comparison may end."""

        def has_condition(state: TableState) -> bool:
            rule = self.config.rule_for(state.schema, state.table)
            return condition_of(state, self.config.source.snapshot, rule) is not None

        known = (table for table in tables if table.why_not is None and table.full_name in named)
        return [table for table in known if table.differing > 0 or has_condition(named[table.full_name])]

    def _changed(
        self,
        table: VerifiedTable,
        now: TableState,
        found: SettledTable | None,
        changed: ChangedKeys,
        order: SnapshotOrder,
    ) -> _Outcome:
        """Finds the rows that differ."""
        why = why_not_repaired(self.spark, now)
        if why is not None or not table.differing:
            return _Outcome(why_not=why)
        names = [column.name for column in now.relation.columns]
        if found is None:
            return _Outcome(why_not="none of the rows that differ were kept")
        if sorted(names) != sorted(found.asked.columns):
            return _Outcome(why_not="its columns are not those that the server was asked for")
        spelled = [c for c in found.deciding if c.by_value and isinstance(delta_type(c.type), StringType)]
        if spelled or (table.unknown and not found.choice.key):
            return _Outcome(why_not="its rows can't be told apart by their texts")
        if now.oid in changed.whole:
            return _Outcome(why_not=_LATER)
        changes = found.changes(changed.keys.get(now.oid))
        rows = self._messages(changes.rows, found, now, order).localCheckpoint()
        return _Outcome(rows.count(), changes.left, messages=rows)

    def _messages(self, changes: DataFrame, found: SettledTable, now: TableState, order: SnapshotOrder) -> DataFrame:
        """The changes as rows of MESSAGE_SCHEMA. changes: columns tag (I or D) and t…."""
        positions = [found.asked.columns.index(column.name) for column in now.relation.columns]
        texts = [text_names(len(positions))[position] for position in positions]
        is_whole = not found.choice.key or now.relation.replica_identity is ReplicaIdentity.FULL
        kind = "O" if is_whole else "K"
        rows = changes.select("tag", F.monotonically_increasing_id().alias("ordinal"), *texts)

        def messages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                fields = zip(*(batch.column(name).cast(pa.binary()).to_pylist() for name in texts), strict=True)
                tuples = [tuple_of(row, b"t") for row in fields]
                is_delete = [tag == "D" for tag in batch.column("tag").to_pylist()]
                old = [row if gone else None for row, gone in zip(tuples, is_delete, strict=True)]
                new = [None if gone else row for row, gone in zip(tuples, is_delete, strict=True)]
                kinds = [kind if gone else None for gone in is_delete]
                arrays = {"ordinal": batch.column("ordinal"), "tag": batch.column("tag"), "old_kind": kinds}
                yield pa.RecordBatch.from_pydict({**arrays, "old": old, "new": new}, _CHANGE)

        same = {"file": BEFORE_FILES, "relation": now.oid, "commit_lsn": order.lsn, "commit_ts": order.time}
        sent = rows.mapInArrow(messages, spark_schema(_CHANGE))
        sent = sent.withColumns({name: F.lit(value).cast("long") for name, value in same.items()})
        sent = sent.withColumn("offset", F.col("ordinal"))
        return frame(self.spark, MESSAGE_SCHEMA.empty_table()).unionByName(sent, allowMissingColumns=True)


def _known(state: TableState | None) -> tuple[object, ...] | None:
    """The conditions that a repair ends if they are older than the comparison."""
    return None if state is None else (state.mismatches, state.complete_since, state.doubts)
