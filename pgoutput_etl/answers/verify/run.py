"""Compares Delta tables with another side: first digests of key ranges, then the rows of ranges that differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.answers.moment.read import commit_of
from pgoutput_etl.answers.verify.delta_side import DeltaSide, compared_table, faulty_table, why_not_read
from pgoutput_etl.answers.verify.key_ranges import differing_ranges, plan_ranges
from pgoutput_etl.answers.verify.report import VerifiedTable, VerifySummary
from pgoutput_etl.answers.verify.request import VerifyRequest, batch_at, refuse_commits_between
from pgoutput_etl.answers.verify.row_diff import differences
from pgoutput_etl.answers.verify.row_text import digests_of, rows_in_ranges
from pgoutput_etl.answers.verify.sides import OtherRows, csv_rows, delta_rows
from pgoutput_etl.answers.verify.tables import chosen_states, foreign_changes, mending_command
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, no_progress
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.ledger.as_of import consistent_points
from pgoutput_etl.ledger.batch import applied
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load.holding import FAULTS
from pgoutput_etl.moment import Moment
from pgoutput_etl.postgres.copy_format import copy_errors
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.transactions.outcome import TransactionStatus
from pgoutput_etl.types import UserTypes

if TYPE_CHECKING:
    from pgoutput_etl.answers.verify.live import Changed, Mend


@dataclass(frozen=True, slots=True)
class _Baseline:
    """The states of Delta's tables as of a commit."""

    lsn: int
    tables: Mapping[int, TableState]
    remarks: tuple[str, ...] = ()


def verify(
    spark: SparkSession,
    config: Config,
    request: VerifyRequest,
    progress: Progress = no_progress,
    mend: Mend | None = None,
    changed: Changed | None = None,
) -> VerifySummary:
    """Compares Delta tables with a server, or one table with CSV files or another Delta table. Only writes the answers
    of a server in use, until they are settled, and then the changes that `mend` makes. changed: as for
    LiveVerification.

    Raises PgoutputEtlError.
    """
    request.check()
    if request.of_server:
        from pgoutput_etl.answers.verify.live import LiveVerification

        summary = LiveVerification(spark, config, request, DeltaLedger.of(spark, config), progress, mend, changed).run()
    else:
        summary = _with_rows(spark, config, request, progress)
    reasons = [
        f"{t.name}: {t.why_not}" for t in summary.tables if not (t.why_not is None or t.is_held or t.is_undecided)
    ]
    if len(reasons) == len(summary.tables) and summary.asked is None:
        raise ConfigError(f"nothing to compare: {'; '.join(reasons)}")
    return summary


def _with_rows(spark: SparkSession, config: Config, request: VerifyRequest, progress: Progress) -> VerifySummary:
    ledger = DeltaLedger.of(spark, config)
    last = applied(ledger.batches.last(), ledger.source)
    baseline = _Baseline(last.last_commit_lsn, last.tables)
    archive = DeltaArchive.of(spark, config, ledger, last)
    if request.at is not None:
        baseline = _baseline_at(ledger, _lsn_of(archive, Moment.of(request.at)))
    states = chosen_states(config, baseline.tables, request.tables)
    if len(states) != 1:
        names = ", ".join(state.full_name for state in states)
        raise ConfigError(f"--tables: --csv and --delta hold one table, not {names or 'none'}")
    [state] = states
    path, read = (request.delta or "", delta_rows) if request.csv is None else (request.csv, csv_rows)
    progress(f"verifying {state.full_name}")
    try:
        with copy_errors():
            table = _compared(spark, state, archive.user_types, read(spark, path), request, progress)
    except FAULTS as error:
        table = faulty_table(spark, state.schema, state.table, error)
    remarks = baseline.remarks
    if request.at is None and table.why_not is None and (remark := foreign_changes(spark, state)) is not None:
        remarks += (remark,)
    command = mending_command([state] if table.differing else [], None, config)
    return VerifySummary(config.source.name, path, baseline.lsn, (table,), None, remarks, command)


def _lsn_of(archive: DeltaArchive, moment: Moment) -> int:
    """The moment's LSN. A given LSN may be later than all commits, because it says when the rows were read."""
    return commit_of(archive, moment) if moment.lsn is None else moment.lsn - moment.before


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


def _compared(
    spark: SparkSession,
    state: TableState,
    user_types: UserTypes,
    other: OtherRows,
    request: VerifyRequest,
    progress: Progress,
) -> VerifiedTable:
    why, is_held = why_not_read(spark, state)
    if why is not None:
        return VerifiedTable(state.schema, state.table, why_not=why, is_held=is_held)
    side = DeltaSide.stored(spark, state, user_types)
    choice = side.chosen(other.columns)
    columns = choice.columns
    if choice.why_not is not None:
        why, not_compared = choice.why_not, choice.not_compared
        return VerifiedTable(state.schema, state.table, why_not=why, not_compared=not_compared)
    ranges = plan_ranges(columns, choice.key, *side.key_size(columns, choice.key))
    texts = other.texts(columns)
    ours, theirs = side.digests(columns, ranges), digests_of(texts, len(columns), ranges)
    numbers = differing_ranges(ours, theirs)
    counts: dict[str, Any] = {}
    if numbers:
        progress(f"{state.full_name}: comparing rows of {len(numbers):,} of {ranges.count:,} ranges")
        rows = rows_in_ranges(texts, columns, ranges, numbers)
        counts = differences(side, choice, ranges, numbers, rows, request)
    return compared_table(state.schema, state.table, choice, ranges, ours, theirs, **counts)
