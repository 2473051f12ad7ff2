"""A source's tables and its ledger kept fast and small, beside runs that may be at work.

Compacting changes no row, but it takes files away that a MERGE may be about to change, so that one of the two would
fail. Targets are therefore touched under a claim of their own, as if this were a run: another one waits for its end, or
this one leaves targets alone where another is at work, or has died in the midst of a batch. What is only ever appended
to (most of the ledger) is compacted beside anything.

The ledger says at which Delta version each table was whole. Compacting makes a new one, which is written down, in a
batch that reads and changes nothing, before VACUUM takes anything away: so the version that `reading` and the next run
go by is always the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.jobs.maintain.report import MaintainedTable, MaintainSummary
from pgoutput_etl.jobs.maintain.request import MaintainRequest
from pgoutput_etl.jobs.maintain.retention import APPENDED_TO, RetentionRule, drop_recent_batches, order_of, rules
from pgoutput_etl.jobs.maintain.table_upkeep import CONFLICTS, DeltaFolder
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.ledger import Ledger
from pgoutput_etl.ledger.tables import SCHEMAS
from pgoutput_etl.spark.delta import is_delta_table
from pgoutput_etl.spark.delta_history import is_as_recorded
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.transactions.outcome import TRIMMED, TransactionStatus

Progress = Callable[[str], None]

LEDGER_TABLES = (*SCHEMAS, "open_transactions")


def maintain(spark: SparkSession, config: Config, request: MaintainRequest, progress: Progress) -> MaintainSummary:
    """Raises PgoutputEtlError. Whatever it dies in, tables and ledger are whole."""
    request.check()
    ledger = Ledger(spark, config.state.root, config.source.name)
    last = ledger.last_batch()
    if last is None:
        raise RunError(f"nothing of {config.source.name} was applied yet: there is nothing to maintain")
    why_beside = _why_beside(ledger, last)
    if why_beside is not None and request.execute and ledger.has_one_driver:
        said = f"{why_beside}. On S3 so was the ledger: only one driver at a time may write to it"
        return MaintainSummary(ledger.source, True, 0, (), (said,))
    batch = Batch.after(last, {})
    work = _Work(spark, ledger, last, batch, request, progress, why_beside)
    if why_beside is not None or not request.execute:
        return work.run(lambda: None)
    with ledger.claimed(last, batch, progress) as check_claim:
        return work.run(check_claim)


def _why_beside(ledger: Ledger, last: Batch) -> str | None:
    """Why targets have to be left alone."""
    if last.resumed:
        return f"batch {last.number} was begun by a run that died: jobs/apply.py finishes it. Targets were left alone"
    try:
        ledger.claims().refuse_others(Batch.number_of_next(last))
    except RunError as error:
        return f"Targets were left alone: {error}"
    return None


@dataclass(slots=True)
class _Work:
    """why_beside: another run is at work, or has died; then only what can be done beside it is done."""

    spark: SparkSession
    ledger: Ledger
    last: Batch
    batch: Batch
    request: MaintainRequest
    progress: Progress
    why_beside: str | None
    moved: dict[int, TableState] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)  # by somebody else
    gone: list[str] = field(default_factory=list)

    def run(self, check_claim: Callable[[], None]) -> MaintainSummary:
        targets = {} if self.why_beside is not None else self._targets()
        found = {oid: self._compacted(state, check_claim) for oid, state in targets.items()}
        if self.moved:
            check_claim()
            self.progress("writing where tables stand now")
            self.ledger.close_backfill(self.batch, self.moved, [], [])
        kept = {oid: () if oid in self.changed else ("vacuum", "checkpoint") for oid in found}
        tables = [self._finished(table, kept[oid], check_claim) for oid, table in found.items()]
        rules_of = {rule.table: rule for rule in self._rules()}
        there = [name for name in LEDGER_TABLES if is_delta_table(self.spark, self.ledger.path(name))]
        tables += [self._of_ledger(name, rules_of.get(name), check_claim) for name in there]
        remarks = (*self.gone, *(() if self.why_beside is None else (self.why_beside,)))
        number = self.batch.number if self.moved else 0
        return MaintainSummary(self.ledger.source, self.request.execute, number, tuple(tables), remarks)

    def _targets(self) -> dict[int, TableState]:
        states = {oid: state for oid, state in self.last.tables.items() if state.path and state.version >= 0}
        found: dict[int, TableState] = {}
        for pattern in self.request.tables:
            matching = {oid: s for oid, s in states.items() if fnmatchcase(f"{s.schema}.{s.table}", pattern)}
            if not matching and pattern != "*":
                raise ConfigError(f"--tables: the ledger has no table {pattern!r}")
            found |= matching
        gone = {oid for oid, state in found.items() if not is_delta_table(self.spark, state.path)}
        self.gone += [f"{s.schema}.{s.table}: there is no table at {s.path}" for o, s in found.items() if o in gone]
        return {oid: state for oid, state in found.items() if oid not in gone}

    def _compacted(self, state: TableState, check_claim: Callable[[], None]) -> MaintainedTable:
        folder, name = DeltaFolder(self.spark, state.path), f"{state.schema}.{state.table}"
        newest, operations = folder.commits_since(state.version)
        before = folder.measure()
        if not is_as_recorded(operations):
            why = (
                f"it was changed since batch {self.last.number} left it at version {state.version}, which is kept as "
                "it is: jobs/apply.py, or jobs/backfill.py --tables, makes a version of its own"
            )
            self.changed.add(state.oid)
            return MaintainedTable(name, state.path, before, left=(why,))
        steps: list[str] = []
        left: list[str] = []
        order = order_of(state.key) if self.request.zorder else ()
        if self.request.zorder and not order:
            left.append("it has no key whose names Delta can be told for a Z-order; small files are put together")
        if "optimize" in self.request.only and (before.may_be_fewer or order):
            steps.append("optimize by key" if order else "optimize")
            if self.request.execute:
                check_claim()
                self.progress(f"compacting {name}")
                if not folder.optimize(order):
                    steps, left = ["optimize"], ["Delta has no statistics of its key: small files are put together"]
                newest, _ = folder.commits_since(state.version)
        if newest != state.version and self.request.execute:
            self.moved[state.oid] = replace(state, version=newest)
        return MaintainedTable(name, state.path, before, steps=tuple(steps), left=tuple(left))

    def _of_ledger(self, name: str, rule: RetentionRule | None, check_claim: Callable[[], None]) -> MaintainedTable:
        folder = DeltaFolder(self.spark, self.ledger.path(name))
        before = folder.measure()
        rows = 0 if rule is None or "retention" not in self.request.only else self._old(rule).count()
        is_due = "optimize" in self.request.only and before.may_be_fewer
        is_safe = name in APPENDED_TO or (self.why_beside is None and not self._is_shared())
        steps, left = [], ["left as it is: other runs may change its rows"] if is_due and not is_safe else []
        try:
            if rule is not None and rows:
                self._delete_old(folder, rule, check_claim)
                steps.append("retention")
            if is_due and is_safe:
                self._compact_ledger(folder, name)
                steps.append("optimize")
        except CONFLICTS:
            left.append("another run changed it at the same moment: left for the next time")
        table = MaintainedTable(f"ledger: {name}", folder.path, before, None, tuple(steps), tuple(left), rows)
        return self._finished(table, ("vacuum", "checkpoint"), check_claim)

    def _delete_old(self, folder: DeltaFolder, rule: RetentionRule, check_claim: Callable[[], None]) -> None:
        if not self.request.execute:
            return
        check_claim()
        self.progress(f"deleting what nothing asks for any more of the ledger's {rule.table}")
        old = (F.col("t.source") == self.ledger.source) & (F.col(f"t.{rule.column}") < rule.before)
        if rule.table != "transactions":
            folder.delete(old)
            return
        ordinary = self._ordinary(rule)
        [row] = ordinary.agg(F.max("commit_lsn").alias("lsn")).collect()
        self.ledger.record_trimmed(self.last, row["lsn"] or 0)  # first: a run may come between
        folder.delete_others(old & _is_ordinary("t."), _ends_of_files(ordinary), ("batch", "file", "unit"))

    def _compact_ledger(self, folder: DeltaFolder, name: str) -> None:
        if self.request.execute:
            self.progress(f"compacting the ledger's {name}")
            folder.optimize()

    def _finished(
        self, table: MaintainedTable, steps: Iterable[str], check_claim: Callable[[], None]
    ) -> MaintainedTable:
        """VACUUM comes only after the ledger has the newest versions."""
        folder = DeltaFolder(self.spark, table.path)
        done, left = list(table.steps), list(table.left)
        for step in steps:
            if step not in self.request.only:
                continue
            done.append(step)
            if not self.request.execute:
                continue
            check_claim()
            if step == "vacuum":
                self.progress(f"vacuuming {table.name}")
                folder.vacuum(self.request.keep_days * 24)
            elif (why := folder.checkpoint()) is not None:
                done.remove(step)
                left.append(why)
        after = folder.measure() if self.request.execute else None
        return replace(table, after=after, steps=tuple(done), left=tuple(left))

    def _rules(self) -> tuple[RetentionRule, ...]:
        if self.why_beside is not None:
            return ()
        done = self.ledger.read("batches").where(F.col("status") == "done").select("batch", "at").collect()
        cutoff = datetime.now(timezone.utc) - timedelta(days=self.request.ledger_keep_days)
        times = [(row["batch"], row["at"].astimezone(timezone.utc)) for row in done]
        return rules(self.last.number, self.last.since, drop_recent_batches(times, cutoff))

    def _old(self, rule: RetentionRule) -> DataFrame:
        """The rows that may go."""
        if rule.table == "transactions":
            ordinary = self._ordinary(rule)
            return ordinary.join(_ends_of_files(ordinary), ["batch", "file", "unit"], "left_anti")
        return self.ledger.read(rule.table).where(F.col(rule.column) < rule.before)

    def _ordinary(self, rule: RetentionRule) -> DataFrame:
        return self.ledger.read(rule.table).where((F.col(rule.column) < rule.before) & _is_ordinary())

    def _is_shared(self) -> bool:
        """Whether other sources, whose runs this one's claim doesn't keep off, have rows there."""
        batches = self.spark.read.format("delta").load(self.ledger.path("batches"))
        return bool(batches.where(F.col("source") != self.ledger.source).limit(1).count())


def _is_ordinary(table: str = "") -> Column:
    """Transactions that began and ended in one file: what became of their rows is told without them."""
    return F.col(f"{table}units").isNull() & (F.col(f"{table}fate") != TRIMMED)


def _ends_of_files(transactions: DataFrame) -> DataFrame:
    """Batch, file and unit of those that a file's committed ones lie between, by LSN and by time."""
    committed = transactions.where(F.col("fate") == TransactionStatus.COMMITTED.value)
    of_lsn, of_time = F.struct("commit_lsn", "unit"), F.struct("commit_ts", "unit")
    ends = [which(by)["unit"] for by in (of_lsn, of_time) for which in (F.min, F.max)]
    fragments = committed.groupBy("batch", "file").agg(F.array_distinct(F.array(*ends)).alias("units"))
    return fragments.select("batch", "file", F.explode("units").alias("unit"))
