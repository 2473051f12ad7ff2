"""Compares Delta tables with another side: digests of key ranges first, then the rows of ranges that differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.answers.command_line import jdbc_job_line, job_line
from pgoutput_etl.answers.next_commands import snapshot_of
from pgoutput_etl.answers.verify.key_ranges import differing_ranges, plan_ranges
from pgoutput_etl.answers.verify.report import VerifiedTable, VerifySummary
from pgoutput_etl.answers.verify.request import VerifyRequest, batch_at, refuse_commits_between
from pgoutput_etl.answers.verify.row_diff import row_differences, summarize_differences
from pgoutput_etl.answers.verify.row_text import delta_texts, digests_of, key_size, rows_in_ranges
from pgoutput_etl.answers.verify.sides import CsvRows, OtherDelta, OtherTable, ServerRows
from pgoutput_etl.config.chosen_tables import matching_names
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, no_progress
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.identifiers import patterns_of
from pgoutput_etl.ledger.as_of import consistent_points
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load.holding import FAULTS, held_reason
from pgoutput_etl.load.shared_table import tagged_target
from pgoutput_etl.load.target_columns import current_rows, is_current
from pgoutput_etl.postgres.connection import credentials
from pgoutput_etl.postgres.jdbc import Server, jdbc_errors
from pgoutput_etl.schema.table_shape import table_columns
from pgoutput_etl.spark.delta import delta_table, is_delta_table
from pgoutput_etl.spark.delta_history import is_as_recorded, operations_since
from pgoutput_etl.spark.platform import persist, unpersist
from pgoutput_etl.spark.session import is_running
from pgoutput_etl.spark.table_pool import TablePool
from pgoutput_etl.targets.condition import can_be_repaired
from pgoutput_etl.targets.location import displaced_folder
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.plan import HELD, SKIPPED, TableState
from pgoutput_etl.transactions.outcome import TransactionStatus
from pgoutput_etl.types import UserTypes
from pgoutput_etl.types.canonical_text import ComparedColumn
from pgoutput_etl.xid import newest_xid

Find = Callable[[TableState], "OtherTable | None"]  # None: the other side has no such table

_LARGE = 1_000_000  # rows

_RECENT = 1_000  # transactions searched for the newest xid

_APPEND = "mode append stores changes, not rows: see docs/modes.md"


@dataclass(frozen=True, slots=True)
class _Baseline:
    """The states of Delta's tables at a commit."""

    lsn: int
    tables: Mapping[int, TableState]
    remarks: tuple[str, ...] = ()


def verify(
    spark: SparkSession, config: Config, request: VerifyRequest, progress: Progress = no_progress
) -> VerifySummary:
    """Compares Delta tables with the server, with CSV files or with other Delta tables. Writes nothing.

    Raises PgoutputEtlError.
    """
    request.check()
    ledger = DeltaLedger.of(spark, config)
    last = ledger.batches.last()
    if last is None or (last.state is None and not last.tables):
        raise RunError(f"no batch of {config.source.name} has been applied: run jobs/apply.py")
    baseline = _Baseline(last.last_commit_lsn, last.tables)
    if request.at_lsn is not None:
        baseline = _baseline_at(ledger, request.at_lsn)
    states = _select_tables(config, baseline, request)
    server = None
    if request.jdbc is not None:
        server = Server(spark, request.jdbc, credentials(request.jdbc, os.environ), request.connections)
    types = DeltaArchive.of(spark, config, ledger, last).user_types
    with jdbc_errors():
        before = None if server is None else server.position()
        newest = None if server is None else _newest_xid(ledger)
        threads = min(config.merge.parallel_tables, request.connections)
        pool = TablePool.of(spark, threads, "verifying", progress)
        find = _other_side(spark, request) if server is None else _server_side(server, pool.threads)

        def compare(state: TableState) -> VerifiedTable:
            try:
                with jdbc_errors(of_table=True):
                    return _Comparison(spark, partial(find, state), state, types, request, newest, progress).run()
            except FAULTS as error:
                why = held_reason(error, f"verifying {state.full_name}", str, partial(is_running, spark))
                return VerifiedTable(state.schema, state.table, why_not=why, is_held=True)

        tables = pool.map(states, lambda state: state.full_name, compare, _is_large)
        after = None if server is None else server.position()
    if all(table.why_not is not None and not table.is_held for table in tables):
        raise ConfigError("nothing to compare: " + "; ".join(f"{t.name}: {t.why_not}" for t in tables))
    lsns = None if before is None or after is None else (before, after)
    remarks = baseline.remarks
    if request.at_lsn is None:
        compared = [state for state, table in zip(states, tables, strict=True) if table.why_not is None]
        remarks += tuple(remark for state in compared if (remark := _foreign_changes(spark, state)) is not None)
    differing = {table.name for table in tables if table.differing}
    command = mending_command([state for state in states if state.full_name in differing], request, config)
    return VerifySummary(config.source.name, request.against, baseline.lsn, tuple(tables), lsns, remarks, command)


def mending_command(differing: Sequence[TableState], request: VerifyRequest, config: Config) -> str | None:
    """The command that mends the tables. With a server, if only some of them can be repaired, these: what the archive
    lacks, only the server has."""
    if not differing:
        return None
    if request.jdbc is None:
        return job_line(config, "backfill", "--tables", patterns_of(state.full_name for state in differing))
    repairable = [state for state in differing if can_be_repaired(state)]
    snapshot = snapshot_of((state.full_name for state in repairable or differing), request.jdbc)
    return jdbc_job_line(config, *snapshot, *(["--repair"] if repairable else []))


def _foreign_changes(spark: SparkSession, state: TableState) -> str | None:
    """A remark about later commits by other programs: the comparison reads the version that a run recorded, so it
    doesn't show them."""
    if not state.path or state.version < 0 or not is_delta_table(spark, state.path):
        return None
    [newest] = delta_table(spark, state.path).history(1).select("version").collect()
    if newest["version"] == state.version:
        return None
    operations = operations_since(spark, state.path, state.version)
    if is_as_recorded(operations):
        return None
    return (
        f"{state.schema}.{state.table} was compared at Delta version {state.version}, which the last run wrote. "
        f"Other programs have changed it since: {len(operations):,} commits up to version {newest['version']}. "
        "jobs/backfill.py --tables rebuilds it from the archive"
    )


def _is_large(state: TableState) -> bool:
    return (state.rows or 0) >= _LARGE


def _server_side(server: Server, threads: int) -> Find:
    """Small tables are compared side by side and divide the connections; a large one has all of them."""
    columns = server.columns
    shared = replace(server, connections=max(1, server.connections // threads))

    def find(state: TableState) -> OtherTable | None:
        not_null = columns.get((state.schema, state.table))
        if not_null is None:
            return None
        return ServerRows(server if _is_large(state) else shared, state.schema, state.table, not_null)

    return find


def _other_side(spark: SparkSession, request: VerifyRequest) -> Find:
    """A file or a Delta table stands for the table of any name."""
    only = CsvRows(spark, request.csv) if request.csv is not None else OtherDelta(spark, request.delta or "")
    return lambda _: only


def _baseline_at(ledger: DeltaLedger, lsn: int) -> _Baseline:
    points = consistent_points(ledger.spark, ledger.root, ledger.source).select("batch", "last_commit_lsn").collect()
    batch, reached = batch_at([(row["batch"], row["last_commit_lsn"]) for row in points], lsn)
    between = (
        (F.col("commit_lsn") > reached)
        & (F.col("commit_lsn") <= lsn)
        & (F.col("fate") == TransactionStatus.COMMITTED.value)
    )
    [row] = ledger.store.read("transactions").where(between).agg(F.min("commit_lsn").alias("next")).collect()
    refuse_commits_between(lsn, reached, row["next"])
    is_last = reached == max(row["last_commit_lsn"] for row in points)
    remark = "The archive has no commit after this LSN: commits that have not landed yet would be missing from Delta."
    return _Baseline(reached, ledger.batches.states_after(batch), (remark,) if is_last else ())


def _newest_xid(ledger: DeltaLedger) -> int | None:
    committed = ledger.store.read("transactions").where(F.col("fate") == TransactionStatus.COMMITTED.value)
    rows = committed.orderBy(F.desc("commit_lsn")).select("xid").limit(_RECENT).toArrow().to_pylist()
    return newest_xid([row["xid"] for row in rows if row["xid"] is not None])


def _select_tables(config: Config, baseline: _Baseline, request: VerifyRequest) -> list[TableState]:
    named = {
        f"{s.schema}.{s.table}": s for s in baseline.tables.values() if not s.path.is_within(displaced_folder(config))
    }
    if request.table is not None:
        if request.table not in named:
            raise ConfigError(f"--table: the ledger has no table {request.table}")
        return [named[request.table]]
    return [named[name] for name in sorted(matching_names(request.tables or ["*"], named, "the ledger"))]


@dataclass(frozen=True, slots=True)
class _Comparison:
    spark: SparkSession
    find: Callable[[], OtherTable | None]
    state: TableState
    user_types: UserTypes
    request: VerifyRequest
    newest: int | None
    progress: Progress

    def run(self) -> VerifiedTable:
        schema, table = self.state.schema, self.state.table
        why, is_held = self._why_not(), self.state.status == HELD
        if why is None and not is_delta_table(self.spark, self.state.path):
            why, is_held = f"the table at {self.state.path} no longer exists", True
        other = self.find() if why is None else None
        if other is None:
            why = why or "the other side has no such table"
            return VerifiedTable(schema, table, why_not=why, is_held=is_held)
        columns, not_compared = self._columns(other)
        names = [column.name for column in columns]
        missing = [name for name in self.state.key if name not in names]
        if missing or not columns:
            why = f"key column {missing[0]!r} can't be compared" if missing else "no column can be compared"
            return VerifiedTable(schema, table, why_not=why, not_compared=not_compared)
        return self._compare(other, columns, not_compared)

    def _why_not(self) -> str | None:
        if self.state.status == HELD:
            return f"the table is held: {self.state.reason}"
        if self.state.status == SKIPPED:
            return "the configuration skips the table, or skipped it while changes were committed"
        if not table_mode(self.state.mode).has_rows:
            return _APPEND
        return "no run has written the table" if self.state.version < 0 else None

    def _columns(self, other: OtherTable) -> tuple[list[ComparedColumn], dict[str, str]]:
        """The columns to compare, and the reasons why the others are not compared."""
        state = self.state
        described = table_columns(state.relation, state.retired, self.user_types)
        columns, not_compared = [], {}
        for column, stored in zip(described, state.types, strict=True):
            compared = ComparedColumn(column.name, column.type)
            why = other.why_not(compared)
            if column.name in state.masks and not isinstance(other, OtherDelta):
                why = f"the configuration masks it ({state.masks[column.name].partition(':')[0]})"
            if column.retired and why is not None:
                continue  # a dropped column, which only Delta still has
            if column.type.stored_as != stored:
                why = f"stored as {stored}, but the configuration's `types` has {column.type.stored_as}"
            if why is None:
                columns.append(compared)
            else:
                not_compared[column.name] = why
        known = {column.name for column in described}
        unknown = {name: "the archive has no such column" for name in other.names if name not in known}
        unknown |= {name: "the configuration drops it" for name in unknown if name in state.masks}
        return columns, {**not_compared, **unknown}

    def _rows(self) -> DataFrame:
        columns = table_columns(self.state.relation, self.state.retired, self.user_types)
        return tagged_target(self.spark, self.state.path, columns, self.state.version)

    def _former_rows(self) -> DataFrame | None:
        """Deleted rows with the transaction that deleted them; mode history doesn't store its xid."""
        ends = table_mode(self.state.mode).ends
        if ends is None:
            return None
        unknown = F.lit(None).cast("long")
        ended = self._rows().where(~is_current(self.state.mode))
        return ended.withColumns({name: unknown if end is None else F.col(end) for name, end in ends.items()})

    def _compare(
        self, other: OtherTable, columns: Sequence[ComparedColumn], not_compared: Mapping[str, str]
    ) -> VerifiedTable:
        schema, table = self.state.schema, self.state.table
        current = current_rows(self._rows(), self.state.mode)
        texts = delta_texts(current, columns)
        key = [[column.name for column in columns].index(name) for name in self.state.key]
        ranges = plan_ranges(columns, key, *key_size(current, columns, key))
        ours = digests_of(texts, len(columns), ranges)
        theirs = other.digests(columns, ranges)
        numbers = differing_ranges(ours, theirs)
        counts: dict[str, Any] = {}
        if numbers:
            self.progress(f"{schema}.{table}: comparing rows of {len(numbers):,} of {ranges.count:,} ranges")
            our_rows = rows_in_ranges(texts, columns, ranges, numbers)
            their_rows = other.rows(columns, ranges, numbers)
            former = self._former_rows()
            ended = None if former is None else rows_in_ranges(delta_texts(former, columns), columns, ranges, numbers)
            rows = row_differences(our_rows, their_rows, columns, key, self.newest, ended)
            differences = persist(rows, StorageLevel.DISK_ONLY)
            try:
                counts = summarize_differences(differences, columns, key, self.request)
            finally:
                unpersist(differences)
        return VerifiedTable(
            schema,
            table,
            rows=sum(digest.rows for digest in ours.values()),
            other_rows=sum(digest.rows for digest in theirs.values()),
            ranges=ranges.count,
            ranges_differing=len(numbers),
            by_value=tuple(column.name for column in columns if column.by_value),
            not_compared=dict(not_compared),
            **counts,
        )
