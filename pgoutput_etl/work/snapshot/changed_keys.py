"""Finds the keys of rows that have changed in the archive since a commit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.answers.moment.read import MomentReader
from pgoutput_etl.answers.undo.row_changes import RowChanges
from pgoutput_etl.answers.undo.run import planned, why_not_followed
from pgoutput_etl.console import Progress
from pgoutput_etl.identifiers import pattern_of
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.targets.plan import TableState, TableTask


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """keys: by OID, the column `one`: texts of the key or, without a key, of the whole row. whole: OIDs of tables that
    have changed in ways that can't be traced row by row."""

    keys: Mapping[int, DataFrame]
    whole: Collection[int]

    @classmethod
    def after(
        cls, spark: SparkSession, archive: LedgerArchive, states: Sequence[TableState], progress: Progress
    ) -> ChangedKeys:
        """states: the tables, each before the changes that follow its last commit."""
        ends = {state.oid: state.last_commit_lsn for state in states}
        first, through = min(ends.values(), default=0), archive.last.last_commit_lsn
        if not ends or first >= through:
            return cls({}, ())
        patterns = [pattern_of(state.full_name) for state in states]
        rows = MomentReader(spark, archive, progress, through=through).changes(first, patterns).after(ends)
        changed = {row["relation"] for row in rows.commits().collect()} & ends.keys()
        tasks = {task.oid: task for task in planned(archive, rows, states, changed).tasks} if changed else {}
        logs = {oid: RowChanges.of(task).log(rows) for oid, task in tasks.items() if _changes_rows_only(task)}
        keys = {oid: log.select(F.explode(F.array("old", "key")).alias("one")) for oid, log in logs.items()}
        return cls({oid: own.where("one IS NOT NULL") for oid, own in keys.items()}, changed - keys.keys())


def _changes_rows_only(task: TableTask) -> bool:
    """True if the batch leaves the table's other rows unchanged."""
    return why_not_followed(task) is None and all(span.migration is None for span in task.spans)


def changed_since_verified(
    archive: DeltaArchive, states: Sequence[TableState], progress: Progress
) -> dict[int, DataFrame | None]:
    """By OID, for tables that were once found equal to the server's: the keys of rows that have changed since, or None
    if there are none. Tables that were also written in other ways than row by row are left out. states: the tables
    now."""
    bases, now = archive.ledger.verified_states(), {state.oid: state for state in states}
    same = [base for oid, base in bases.items() if oid in now and _form(base) == _form(now[oid])]
    changed = ChangedKeys.after(archive.spark, archive, same, progress)
    # A new version without changed rows means that the batch changed the rows that it found.
    rewritten = {base.oid for base in same if base.version != now[base.oid].version} - changed.keys.keys()
    whole = rewritten.union(changed.whole)
    return {base.oid: changed.keys.get(base.oid) for base in same if base.oid not in whole}


def _form(state: TableState) -> tuple[object, ...]:
    """The properties of a table whose changes affect rows that no event names."""
    return state.path, state.relation, state.key, state.types, state.mode, state.masks, state.complete_since
