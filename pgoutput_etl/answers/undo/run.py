"""Computes what transactions changed, and generates SQL that restores the rows that have not changed since."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.answers.moment.read import MomentReader, archive_of, commit_of
from pgoutput_etl.answers.undo.page import page
from pgoutput_etl.answers.undo.report import LeftOut, UndoSummary, counts_of
from pgoutput_etl.answers.undo.request import UndoRequest
from pgoutput_etl.answers.undo.row_changes import RowChanges
from pgoutput_etl.answers.undo.script import UndoneTable, script
from pgoutput_etl.answers.undo.steps import Row, history_of
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, counted, no_progress
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.load.target_columns import current_rows
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.moment import Moment
from pgoutput_etl.postgres.connection import server_url
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.schema.table_shape import TableColumn
from pgoutput_etl.spark.shared_file import shared_file
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.moves import with_removals
from pgoutput_etl.targets.plan import APPLIED, TablePlan, TableState, TableTask
from pgoutput_etl.targets.planner import make_plan
from pgoutput_etl.transactions.statistics import CommitRange
from pgoutput_etl.types.arrays import FIRST_USER_OID


def undo(spark: SparkSession, config: Config, request: UndoRequest, progress: Progress = no_progress) -> UndoSummary:
    """Reads the archive and the tables, and writes the script and a page about it. If it raises PgoutputEtlError, it
    has written nothing."""
    archive = archive_of(spark, config)
    folder, name = request.script
    sql, html = (shared_file(spark, folder, file, config.state.access()) for file in (name, request.page))
    if sql is None or html is None:
        raise RunError("undo can't write over Spark Connect, where files are the server's: run it without")
    if sql.read() is not None:
        raise ConfigError(f"--out: {folder} has a script {name} already: choose another name")
    undone = undone_tables(archive, request, progress)
    summary = UndoSummary(
        config.source.name,
        folder,
        undone.commits,
        archive.last.last_commit_lsn,
        tuple(map(counts_of, undone.tables)),
        undone.left_out,
        name,
        request.page,
        server_url(config.source.server_url) if config.source.server or config.source.jdbc else "",
    )
    html.replace(page(summary))
    sql.replace("".join(script(summary.title, undone.tables, request.disable_triggers)))
    return summary


@dataclass(frozen=True, slots=True)
class Selection:
    """The commits to undo. listed: their LSNs, or None for all in the range."""

    range: CommitRange
    listed: frozenset[int] | None = None

    @classmethod
    def of(cls, archive: DeltaArchive, request: UndoRequest) -> Selection:
        """Raises ConfigError if there is no such commit."""
        if request.xid is not None:
            lsn = commit_of(archive, Moment(xid=request.xid))
            return cls(CommitRange(lsn, lsn))
        reached = archive.last.last_commit_lsn
        last = reached if request.to_lsn is None else commit_of(archive, Moment(lsn=request.to_lsn))
        commits = CommitRange(request.from_lsn or 0, last)
        if request.origin is None:
            return cls(commits)
        listed = archive.commits_from(request.origin, commits)
        if not listed:
            raise ConfigError(f"--origin: the ledger has no transaction from {request.origin!r}{_within(commits)}")
        return cls(CommitRange(listed[0], listed[-1]), frozenset(listed))

    def condition(self, lsn: Column) -> Column:
        within = lsn.between(self.range.first, self.range.last)
        return within if self.listed is None else within & lsn.isin(*self.listed)


def _within(commits: CommitRange) -> str:
    return f" from {format_lsn(commits.first)} to {format_lsn(commits.last)}"


@dataclass(frozen=True, slots=True)
class Undone:
    """commits: number of transactions that changed these tables. left_out: tables that are not undone."""

    commits: int
    tables: tuple[UndoneTable, ...]
    left_out: tuple[LeftOut, ...]


def undone_tables(archive: DeltaArchive, request: UndoRequest, progress: Progress = no_progress) -> Undone:
    """Raises PgoutputEtlError."""
    origins = archive.config.source.origins
    if origins.skipped or origins.accepted is not None:
        raise ConfigError("source.origins refuses transactions, so the tables lack changes that the server has")
    selection = Selection.of(archive, request)
    before = selection.range.first - 1
    reader = MomentReader(archive.spark, archive, progress, through=archive.last.last_commit_lsn)
    rows = reader.changes(before, request.tables)
    touching = rows.commits().where(selection.condition(F.col("commit_lsn"))).collect()
    if not touching:
        raise ConfigError(f"no transaction{_within(selection.range)} changed these tables")
    oids = {row["relation"] for row in touching}
    found = reader.find(before, request.tables)
    plan = planned(archive, rows, [state for state, _ in found.rows], oids)
    tasks, held = {task.oid: task for task in plan.tasks}, {held.oid: held.reason for held in plan.held}
    stored = {state.oid: frame for state, frame in found.rows}
    left_out, tables = list[LeftOut](), list[UndoneTable]()
    for oid in sorted(oids):
        task, now = tasks.get(oid), _relation_now(archive, oid)
        name = f"OID {oid}" if now is None else now.full_name
        if _is_replaced(archive, oid):
            left_out.append(LeftOut(name, "another table has its name now"))
        elif task is None:
            left_out.append(LeftOut(name, held.get(oid, "the configuration skips it")))
        elif (why_not := why_not_followed(task, oid in found.held or oid in found.ahead)) is not None:
            left_out.append(LeftOut(name, why_not))
        else:
            progress(f"comparing {name}: {counted(task.changes.total, 'change')}")
            tables.append(_undone(task, now or task.shape.relation, rows, selection, stored.get(oid)))
    return Undone(
        len({row["commit_lsn"] for row in touching}),
        tuple(sorted(tables, key=lambda table: table.full_name)),
        tuple(sorted(left_out, key=lambda left: left.name)),
    )


def _relation_now(archive: DeltaArchive, oid: int) -> Relation | None:
    state = archive.last.tables.get(oid)
    return archive.relations.newest(oid) if state is None else state.relation


def _is_replaced(archive: DeltaArchive, oid: int) -> bool:
    state = archive.last.tables.get(oid)
    return state is not None and (state.is_displaced or archive.names.get(archive.name(oid)) != oid)


def planned(
    archive: LedgerArchive, rows: CommittedBlocks, before: Iterable[TableState], oids: Collection[int]
) -> TablePlan:
    """How the changes would be applied to the rows before them. oids: tables to undo."""
    states = {state.oid: replace(state, status=APPLIED, reason=None) for state in before}
    own = {oid: state for oid, state in states.items() if oid in oids}
    counts = {oid: counted for oid, counted in rows.counts(archive.relations).items() if oid in oids}
    return make_plan(
        archive.config,
        archive.relations,
        with_removals(archive.relations, counts, own, archive.last.last_commit_lsn),
        own,
        archive.user_types,
        named=states,
        accepts_changes=True,
    )


def why_not_followed(task: TableTask, is_incomplete: bool = False) -> str | None:
    """Why a table's changes can't be traced row by row, or None."""
    if is_incomplete:
        return "its rows before these transactions are not known"
    if task.changes.truncates:
        return "it has been truncated since: jobs/export.py writes its rows as of before"
    if any(span.removal is not None for span in task.spans):
        return "a partition has left it since, with its rows"
    if not table_mode(task.mode).has_rows:
        return "mode append has changes, not rows"
    variants = [column.name for column in task.shape.columns if column.type.holds_variant]
    if variants:
        return f"variant, which doesn't keep PostgreSQL's text: {', '.join(variants)}"
    if task.masks:
        return f"masked: {', '.join(sorted(task.masks))}"
    now = _types_of(task.shape.columns)
    if not now:
        return "it has no columns"
    spans = [_types_of(columns) for columns in (task.stored_columns, *(span.shape.columns for span in task.spans))]
    if any(before.items() - after.items() for before, after in pairwise(spans)):
        return "columns have been dropped, renamed, or given another type since"
    if task.shape.is_bag and any(types != now for types in spans):
        return "it has no key, and columns have been added since"
    if len({frozenset(span.shape.columns[i].name for i in span.shape.key) for span in task.spans}) > 1:
        return "its key has changed since"
    return None


def _types_of(columns: Sequence[TableColumn]) -> dict[str, str]:
    """Type names, by column."""
    return {column.name: column.type.name for column in columns if not column.retired}


def _undone(
    task: TableTask, relation: Relation, rows: CommittedBlocks, selection: Selection, stored: DataFrame | None
) -> UndoneTable:
    """The changes that the script undoes in one table. relation: its newest description."""
    table = RowChanges.of(task)
    log, is_selected = table.log(rows), selection.condition(F.col("lsn"))
    keys = table.keys(log, is_selected)
    changes = table.changes(log, keys, is_selected)
    before: Mapping[tuple[str | None, ...], Row] = {}
    if stored is not None and table.key:
        before = table.rows(current_rows(stored, task.mode), keys)
    history = history_of(changes, before, bool(table.key))
    types = {column.name: column.type_oid for column in task.shape.relation.columns}
    looked_up = {i: f"key_{task.oid}_{i}" for i in table.key if types[table.columns[i].name] >= FIRST_USER_OID}
    name = (relation.namespace, relation.name)
    return UndoneTable(*name, table.columns, table.key, history.steps, history.conflicts, looked_up)
