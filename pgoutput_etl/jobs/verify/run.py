"""Whether Delta's tables hold the rows that another side holds: digests of ranges first, rows where they differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.config.settings import Config, Mode
from pgoutput_etl.console import no_progress
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.jobs.verify.canonical_text import ComparedColumn
from pgoutput_etl.jobs.verify.key_ranges import Digest, differing, has_integer_key, plan_ranges
from pgoutput_etl.jobs.verify.report import VerifiedTable, VerifySummary
from pgoutput_etl.jobs.verify.request import VerifyRequest, batch_at, refuse_between
from pgoutput_etl.jobs.verify.row_diff import found_in, row_differences
from pgoutput_etl.jobs.verify.row_text import delta_texts, digests_of, rows_within
from pgoutput_etl.jobs.verify.sides import CsvRows, OtherDelta, OtherTable, server_table
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.as_of import consistent_points
from pgoutput_etl.ledger.ledger import Ledger
from pgoutput_etl.postgres.connection import credentials
from pgoutput_etl.postgres.jdbc import Server, jdbc_errors
from pgoutput_etl.schema.table_shape import table_columns
from pgoutput_etl.spark.delta import delta_table, is_delta_table, read_table
from pgoutput_etl.spark.delta_history import is_as_recorded
from pgoutput_etl.spark.platform import persist, unpersist
from pgoutput_etl.targets.modes import DELETED_COLUMN, VALID_TO_LSN, VALID_TO_TS
from pgoutput_etl.targets.plan import HELD, SKIPPED, TableState
from pgoutput_etl.transactions.outcome import TransactionStatus
from pgoutput_etl.types import UserTypes
from pgoutput_etl.xid import newest_xid

Progress = Callable[[str], None]

Find = Callable[[str, str], "OtherTable | None"]

_RECENT = 1_000  # transactions by which the newest xid is found

_APPEND = "mode append has changes, not rows: docs/modes.md says how rows come of them"


@dataclass(frozen=True, slots=True)
class _Baseline:
    """Where Delta's tables stood at a commit."""

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
    ledger = Ledger(spark, config.state.root, config.source.name)
    last = ledger.last_batch()
    if last is None or (last.state is None and not last.tables):
        raise RunError(f"nothing of {config.source.name} was applied yet: run jobs/apply.py")
    standing = _Baseline(last.last_commit_lsn, last.tables)
    if request.at_lsn is not None:
        standing = _standing_at(ledger, request.at_lsn)
    chosen = _chosen(config, standing, request)
    server = None
    if request.jdbc is not None:
        server = Server(spark, request.jdbc, credentials(request.jdbc, os.environ), request.connections)
    types = LedgerArchive(spark, config, ledger, last).user_types
    with jdbc_errors():
        before = None if server is None else server.position()
        newest = None if server is None else _newest_xid(ledger)
        find = _other_side(spark, request) if server is None else partial(server_table, server)
        tables = [_Comparison(spark, find, state, types, request, newest, progress).run() for state in chosen]
        after = None if server is None else server.position()
    if all(table.why_not is not None and not table.is_held for table in tables):
        raise ConfigError("nothing to compare: " + "; ".join(f"{t.name}: {t.why_not}" for t in tables))
    lsns = None if before is None or after is None else (before, after)
    remarks = standing.remarks
    if request.at_lsn is None:
        remarks += tuple(said for state in chosen if (said := _changed_by_others(spark, state)) is not None)
    return VerifySummary(config.source.name, request.against, standing.lsn, tuple(tables), lsns, remarks)


def _changed_by_others(spark: SparkSession, state: TableState) -> str | None:
    """What is compared is what runs wrote: somebody's changes behind that are said, as nothing else would show them."""
    if not state.path or state.version < 0 or not is_delta_table(spark, state.path):
        return None
    [newest] = delta_table(spark, state.path).history(1).select("version").collect()
    if newest["version"] == state.version:
        return None
    since = delta_table(spark, state.path).history().where(F.col("version") > state.version)
    operations = [row["operation"] for row in since.select("operation").collect()]
    if is_as_recorded(operations):
        return None
    return (
        f"{state.schema}.{state.table} was changed by others since a run left it at Delta version {state.version}, "
        f"which is what was compared: {len(operations):,} commits, the last one version {newest['version']}. "
        "jobs/backfill.py --tables makes it again from the archive"
    )


def _other_side(spark: SparkSession, request: VerifyRequest) -> Find:
    """Of a file or a Delta table, whatever the table's name is."""
    only = CsvRows(spark, request.csv) if request.csv is not None else OtherDelta(spark, request.delta or "")
    return lambda _schema, _table: only


def _standing_at(ledger: Ledger, lsn: int) -> _Baseline:
    points = consistent_points(ledger.spark, ledger.root, ledger.source).select("batch", "last_commit_lsn").collect()
    batch, reached = batch_at([(row["batch"], row["last_commit_lsn"]) for row in points], lsn)
    between = (
        (F.col("commit_lsn") > reached)
        & (F.col("commit_lsn") <= lsn)
        & (F.col("fate") == TransactionStatus.COMMITTED.value)
    )
    [row] = ledger.read("transactions").where(between).agg(F.min("commit_lsn").alias("next")).collect()
    refuse_between(lsn, reached, row["next"])
    is_last = reached == max(row["last_commit_lsn"] for row in points)
    remark = "The archive has no commit behind that: what was committed since, and isn't landed yet, would be missing."
    return _Baseline(reached, ledger.states_after(batch), (remark,) if is_last else ())


def _newest_xid(ledger: Ledger) -> int | None:
    committed = ledger.read("transactions").where(F.col("fate") == TransactionStatus.COMMITTED.value)
    rows = committed.orderBy(F.desc("commit_lsn")).select("xid").limit(_RECENT).toArrow().to_pylist()
    return newest_xid([row["xid"] for row in rows if row["xid"] is not None])


def _chosen(config: Config, standing: _Baseline, request: VerifyRequest) -> list[TableState]:
    displaced = f"{config.state.root.rstrip('/')}/displaced/"
    named = {f"{s.schema}.{s.table}": s for s in standing.tables.values() if not s.path.startswith(displaced)}
    if request.table is not None:
        if request.table not in named:
            raise ConfigError(f"--table: the ledger has no table {request.table}")
        return [named[request.table]]
    found: set[str] = set()
    for pattern in request.tables or ("*",):
        matching = {name for name in named if fnmatchcase(name, pattern)}
        if not matching:
            raise ConfigError(f"--tables: the ledger has no table {pattern!r}")
        found |= matching
    return [named[name] for name in sorted(found)]


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One table."""

    spark: SparkSession
    find: Find
    state: TableState
    user_types: UserTypes
    request: VerifyRequest
    newest: int | None
    progress: Progress

    def run(self) -> VerifiedTable:
        schema, table = self.state.schema, self.state.table
        self.progress(f"comparing {schema}.{table}")
        why, is_held = self._why_not(), self.state.status == HELD
        if why is None and not is_delta_table(self.spark, self.state.path):
            why, is_held = f"there is no table at {self.state.path} any more", True
        other = self.find(schema, table) if why is None else None
        if other is None:
            why = why or "the other side has no such table"
            return VerifiedTable(schema, table, why_not=why, is_held=is_held)
        columns, not_compared = self._columns(other)
        names = [column.name for column in columns]
        missing = [name for name in self.state.key if name not in names]
        if missing or not columns:
            why = f"its key's column {missing[0]!r} can't be" if missing else "no column can be"
            return VerifiedTable(schema, table, why_not=why, not_compared=not_compared)
        return self._compared(other, columns, not_compared)

    def _why_not(self) -> str | None:
        if self.state.status == HELD:
            return f"it is held: {self.state.reason}"
        if self.state.status == SKIPPED:
            return "the configuration skips it, or did so while changes were committed"
        if self.state.mode is Mode.APPEND:
            return _APPEND
        return "it was never written" if self.state.version < 0 else None

    def _columns(self, other: OtherTable) -> tuple[list[ComparedColumn], dict[str, str]]:
        """Those that are compared, and why the others aren't."""
        state = self.state
        described = table_columns(state.relation, state.retired, self.user_types)
        columns, not_compared = [], {}
        for column, stored in zip(described, state.types, strict=True):
            compared = ComparedColumn(column.name, column.type)
            why = other.why_not(compared)
            if column.name in state.uses and not isinstance(other, OtherDelta):
                why = f"it is not as it was sent ({state.uses[column.name].partition(':')[0]})"
            if column.retired and why is not None:
                continue  # it is kept in Delta alone
            if column.type.stored_as != stored:
                why = f"it is stored as {stored}, and the configuration's `types` says {column.type.stored_as}"
            if why is None:
                columns.append(compared)
            else:
                not_compared[column.name] = why
        known = {column.name for column in described}
        further = {name: "the archive has no such column" for name in other.names if name not in known}
        further |= {name: "the configuration drops it" for name in further if name in state.uses}
        return columns, {**not_compared, **further}

    def _rows(self) -> DataFrame:
        return read_table(self.spark, self.state.path, self.state.version)

    def _living(self) -> DataFrame:
        if self.state.mode is Mode.SOFT_DELETE:
            return self._rows().where(~F.col(DELETED_COLUMN))
        is_history = self.state.mode is Mode.HISTORY
        return self._rows().where(F.col(VALID_TO_LSN).isNull()) if is_history else self._rows()

    def _ended(self) -> DataFrame | None:
        """Rows that were there, with who took them away; a history has no xid of that."""
        if self.state.mode is Mode.SOFT_DELETE:
            return self._rows().where(F.col(DELETED_COLUMN))
        if self.state.mode is not Mode.HISTORY:
            return None
        ended = self._rows().where(F.col(VALID_TO_LSN).isNotNull())
        who = {"_pg_commit_lsn": F.col(VALID_TO_LSN), "_pg_commit_ts": F.col(VALID_TO_TS)}
        return ended.withColumns({**who, "_pg_xid": F.lit(None).cast("long")})

    def _compared(
        self, other: OtherTable, columns: Sequence[ComparedColumn], not_compared: Mapping[str, str]
    ) -> VerifiedTable:
        schema, table = self.state.schema, self.state.table
        living = self._living()
        texts = delta_texts(living, columns)
        key = [[column.name for column in columns].index(name) for name in self.state.key]
        ranges = plan_ranges(columns, key, *_size(living, columns, key))
        ours = digests_of(texts, len(columns), ranges)
        theirs = other.digests(columns, ranges)
        which = differing(ours, theirs)
        counts: dict[str, Any] = {}
        if which:
            self.progress(f"{schema}.{table}: row by row in {len(which):,} of {ranges.count:,} ranges")
            here = rows_within(texts, columns, ranges, which)
            there = other.rows(columns, ranges, which)
            gone = self._ended()
            ended = None if gone is None else rows_within(delta_texts(gone, columns), columns, ranges, which)
            differences = row_differences(here, there, columns, key, self.newest, ended)
            found = persist(differences, StorageLevel.DISK_ONLY)
            try:
                counts = found_in(found, columns, self.request)
            finally:
                unpersist(found)
        return VerifiedTable(
            schema,
            table,
            rows=_rows(ours.values()),
            other_rows=_rows(theirs.values()),
            ranges=ranges.count,
            ranges_differing=len(which),
            by_value=tuple(column.name for column in columns if column.by_value),
            not_compared=dict(not_compared),
            **counts,
        )


def _size(
    living: DataFrame, columns: Sequence[ComparedColumn], key: Sequence[int]
) -> tuple[int, tuple[int | None, int | None]]:
    """Rows, and the least and the greatest key where ranges are of integers."""
    if not has_integer_key(columns, key):
        return 0, (None, None)
    first = F.col(quoted(columns[key[0]].name))
    [row] = living.agg(F.count("*").alias("rows"), F.min(first).alias("least"), F.max(first).alias("most")).collect()
    return row["rows"], (row["least"], row["most"])


def _rows(digests: Iterable[Digest]) -> int:
    return sum(digest.rows for digest in digests)
