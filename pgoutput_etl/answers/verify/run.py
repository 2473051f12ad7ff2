"""Compares Delta tables with another side: digests of key ranges first, then the rows of ranges that differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.answers.verify.delta_side import ColumnChoice, DeltaSide, why_not_read
from pgoutput_etl.answers.verify.key_ranges import differing_ranges, plan_ranges
from pgoutput_etl.answers.verify.report import VerifiedTable, VerifySummary
from pgoutput_etl.answers.verify.request import VerifyRequest, batch_at, refuse_commits_between
from pgoutput_etl.answers.verify.row_diff import differences
from pgoutput_etl.answers.verify.row_text import digests_of, key_size
from pgoutput_etl.answers.verify.sides import CsvRows, OtherDelta, OtherTable, ServerRows
from pgoutput_etl.answers.verify.tables import chosen_states, foreign_changes, mending_command, named_states
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, no_progress
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.ledger.as_of import consistent_points
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load.holding import FAULTS, held_reason
from pgoutput_etl.postgres.connection import credentials
from pgoutput_etl.postgres.jdbc import Server, jdbc_errors
from pgoutput_etl.spark.session import is_running
from pgoutput_etl.spark.table_pool import TablePool
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.transactions.outcome import TransactionStatus
from pgoutput_etl.types import UserTypes
from pgoutput_etl.xid import newest_xid

Find = Callable[[TableState], "OtherTable | None"]  # None: the other side has no such table

_LARGE = 1_000_000  # rows

_RECENT = 1_000  # transactions searched for the newest xid


@dataclass(frozen=True, slots=True)
class _Baseline:
    """The states of Delta's tables at a commit."""

    lsn: int
    tables: Mapping[int, TableState]
    remarks: tuple[str, ...] = ()


def verify(
    spark: SparkSession, config: Config, request: VerifyRequest, progress: Progress = no_progress
) -> VerifySummary:
    """Compares Delta tables with the server, with CSV files or with other Delta tables. Writes nothing but what a
    server in use was asked, until that is settled.

    Raises PgoutputEtlError.
    """
    request.check()
    if request.is_live:
        from pgoutput_etl.answers.verify.live import LiveVerification

        return LiveVerification.of(spark, config, request, progress).run()
    ledger = DeltaLedger.of(spark, config)
    last = ledger.batches.last()
    if last is None or (last.state is None and not last.tables):
        raise RunError(f"no batch of {config.source.name} has been applied: run jobs/apply.py")
    baseline = _Baseline(last.last_commit_lsn, last.tables)
    if request.at_lsn is not None:
        baseline = _baseline_at(ledger, request.at_lsn)
    if request.table is None:
        states = chosen_states(config, baseline.tables, request.tables)
    else:
        named = named_states(config, baseline.tables)
        if request.table not in named:
            raise ConfigError(f"--table: the ledger has no table {request.table}")
        states = [named[request.table]]
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
        remarks += tuple(remark for state in compared if (remark := foreign_changes(spark, state)) is not None)
    differing = {table.name for table in tables if table.differing}
    command = mending_command([state for state in states if state.full_name in differing], request.jdbc, config)
    return VerifySummary(config.source.name, request.against, baseline.lsn, tuple(tables), lsns, remarks, command)


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
        why, is_held = why_not_read(self.spark, self.state)
        other = self.find() if why is None else None
        if other is None:
            why = why or "the other side has no such table"
            return VerifiedTable(schema, table, why_not=why, is_held=is_held)
        side = DeltaSide.stored(self.spark, self.state, self.user_types)
        choice = side.chosen(other)
        if choice.why_not is not None:
            return VerifiedTable(schema, table, why_not=choice.why_not, not_compared=dict(choice.not_compared))
        return self._compare(side, other, choice)

    def _compare(self, side: DeltaSide, other: OtherTable, choice: ColumnChoice) -> VerifiedTable:
        schema, table, columns = self.state.schema, self.state.table, choice.columns
        texts = side.texts(columns)
        ranges = plan_ranges(columns, choice.key, *key_size(side.current, columns, choice.key))
        ours = digests_of(texts, len(columns), ranges)
        theirs = other.digests(columns, ranges)
        numbers = differing_ranges(ours, theirs)
        counts: dict[str, Any] = {}
        if numbers:
            self.progress(f"{schema}.{table}: comparing rows of {len(numbers):,} of {ranges.count:,} ranges")
            rows = other.rows(columns, ranges, numbers)
            counts = differences(side, choice, ranges, numbers, rows, self.request, self.newest)
        return VerifiedTable(
            schema,
            table,
            rows=sum(digest.rows for digest in ours.values()),
            other_rows=sum(digest.rows for digest in theirs.values()),
            ranges=ranges.count,
            ranges_differing=len(numbers),
            by_value=choice.by_value,
            not_compared=dict(choice.not_compared),
            **counts,
        )
