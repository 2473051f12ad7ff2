"""A batch's plan for its tables: tasks, schema spans, and tables that are held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from pgoutput_etl.config.rules import DEFAULT_MODE, Mode
from pgoutput_etl.places import NO_PLACE, Place
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.reasons import CONTRACT_KINDS, Reason, ReasonKind, kind_of
from pgoutput_etl.schema.column_changes import ChangedAt, changes_of
from pgoutput_etl.schema.column_matching import Doubt
from pgoutput_etl.schema.declarations import Used
from pgoutput_etl.schema.diff import SchemaChange
from pgoutput_etl.schema.migration import Retired, SchemaMigration
from pgoutput_etl.schema.relation_history import CommitPosition, RelationSpan
from pgoutput_etl.schema.removal import Removal
from pgoutput_etl.schema.table_shape import TableColumn, TableShape
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.transactions.cutoff import Cutoff

# SKIPPED: the configuration skips the table, which lacks changes committed since.
APPLIED, HELD, SKIPPED = "applied", "held", "skipped"

# The folder, within the ledger's, for tables whose names now belong to other tables
DISPLACED = "displaced"

# The reason in a skipped table's state. If the configuration no longer skips it, the next batch holds it.
WAS_SKIPPED = Reason(
    "it lacks changes that were committed while the configuration skipped it: rebuild it from the archive",
    ReasonKind.SKIPPED,
)

# The file number of a snapshot's rows. It sorts before every file, and is low enough for `_pg_seq` to number any count
# of rows (changes/event_log.py).
BEFORE_FILES = -(1 << 20)

# Some rows of a table: inclusive ranges of the key's first column, an integer. None stands for all rows.
KeyRanges = tuple[tuple[int, int], ...] | None


class Since(Enum):
    """The reason why a table has all rows from a commit on. ATTACHMENT proves that earlier rows are wrong: those of an
    attached partition are missing; those of a detached one remain, or are missing in the detached table itself. REWRITE
    proves that earlier rows have other values on the server. UNLOGGED and GAP prove that changes are missing, from a
    time when the table was UNLOGGED or in no publication. FIRST_CHANGE proves nothing: earlier rows are missing, if
    there were any."""

    SNAPSHOT = "snapshot"
    # After a snapshot of a server that publishes all tables and didn't have this one; or from a catalog Message.
    CREATION = "creation"
    TRUNCATE = "truncate"
    FIRST_CHANGE = "first change"
    ATTACHMENT = "attachment"
    REWRITE = "rewrite"
    UNLOGGED = "unlogged"
    GAP = "gap"


_UNPROVEN = (Since.FIRST_CHANGE, Since.ATTACHMENT, Since.REWRITE, Since.UNLOGGED, Since.GAP)


@dataclass(frozen=True, slots=True)
class CompleteSince:
    """Since when a table is complete. lsn: of the first commit or of the snapshot."""

    kind: Since
    lsn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table after its last batch. status: APPLIED, HELD, or SKIPPED. reason: why it is held or skipped.

    last_commit_lsn: the table has every commit up to this LSN. version: its Delta version; -1 if it was never written.
    retired: columns that only remain in the target (schema/column_matching.py). types: of the target's columns; retired
    ones are last. rows: row count, or None if unknown. masks: by column. snapshot: the Delta version that a snapshot
    wrote, with rows that the archive lacks, or None. last_row: the table's last committed row, which determines which
    of several tables has a name; None in an older ledger. complete_since: None if it was never written, or in an older
    ledger. mismatches: those since the table was loaded, rebuilt, or truncated; None if there are none, or in an older
    ledger. doubts: about its columns, since then. used: declarations about its columns that its changes have used.
    changed_at: see schema/column_changes.py. memory: size in bytes of a Java heap that was enough for all of its rows;
    None if unknown, or in an older ledger.
    """

    oid: int
    schema: str
    table: str
    path: Place
    version: int
    last_commit_lsn: int
    status: str
    reason: str | None
    relation: Relation
    key: tuple[str, ...]
    retired: Retired = ()
    types: tuple[str, ...] = ()
    rows: int | None = None
    mode: Mode = DEFAULT_MODE
    masks: Mapping[str, str] = field(default_factory=dict)
    snapshot: int | None = None
    last_row: CommitPosition | None = None
    complete_since: CompleteSince | None = None
    mismatches: Mismatches | None = None
    doubts: tuple[Doubt, ...] = ()
    used: Used = field(default_factory=dict)
    changed_at: ChangedAt = field(default_factory=dict)
    memory: int | None = None

    @classmethod
    def unwritten(cls, table: HeldTable, status: str, last_commit_lsn: int) -> TableState:
        """The state of a table without rows so far. status: HELD or SKIPPED."""
        return cls(
            oid=table.oid,
            schema=table.relation.namespace,
            table=table.relation.name,
            path=NO_PLACE,
            version=-1,
            last_commit_lsn=last_commit_lsn,
            status=status,
            reason=table.reason,
            relation=table.relation,
            key=(),
            last_row=table.changes.last_row,
        )

    @classmethod
    def planned(cls, task: TableTask, known: TableState | None, last_commit_lsn: int) -> TableState:
        """The state after a task, as far as it follows from the plan. known: the table's state in the ledger."""
        relation, columns = task.shape.relation, task.shape.columns
        return cls(
            oid=task.oid,
            schema=relation.namespace,
            table=relation.name,
            path=task.path,
            version=0,
            last_commit_lsn=last_commit_lsn,
            status=APPLIED,
            reason=None,
            relation=relation,
            key=tuple(columns[i].name for i in task.shape.key),
            retired=task.retired,
            types=tuple(column.type.stored_as for column in columns),
            mode=task.mode,
            masks=task.masks,
            complete_since=complete_since(known, task.changes),
            mismatches=mismatches_left(task.state, task.changes),
            doubts=task.doubts,
            used=task.used,
            changed_at=changes_of(task.shape),
        )

    @property
    def is_complete(self) -> bool:
        """True if the table has every commit of the archive."""
        return self.status == APPLIED

    @property
    def is_displaced(self) -> bool:
        """True if its name now belongs to another table, and its rows are below the ledger's folder."""
        return self.path.is_named(DISPLACED, str(self.oid))

    @property
    def is_readable(self) -> bool:
        """True if there is a Delta table under its name."""
        return self.version >= 0 and not self.is_displaced

    @property
    def may_be_redriven(self) -> bool:
        """True if the table is held for any reason except new columns, which somebody must accept."""
        return self.status == HELD and kind_of(self.reason) not in CONTRACT_KINDS

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.table}"


def own_places(tables: Mapping[int, TableState], oids: Iterable[int]) -> dict[int, Place]:
    """The paths of tables that have one, by OID. If several tables have a path, it belongs to the last one that wrote
    there."""
    written = sorted(tables.values(), key=lambda state: state.version)
    owners = {state.path: state.oid for state in written if state.path}
    return {oid: path for path, oid in owners.items() if oid in set(oids)}


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Statistics of one relation's committed changes.

    truncated_at: the last truncate. unchanged: positions of unchanged TOAST. moves_toast: a row whose key changed has
    some. size: bytes of their blocks, or None if unknown. runs: the relation's versions in commit order, as far as they
    are described. last_row: the last change. gained: tables that became partitions of the relation; their rows now
    belong to it, but were not sent again. lost: former partitions, whose rows no longer belong to it. left: former
    roots, which its rows were sent under. unsent: the first commit that left values in the table's rows unsent, or that
    follows missing changes.
    """

    oid: int
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    truncated_at: CommitPosition | None = None
    unchanged: frozenset[int] = frozenset()
    moves_toast: bool = False
    size: int | None = None
    runs: tuple[RelationSpan, ...] = ()
    last_row: CommitPosition | None = None
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    unsent: CompleteSince | None = None

    @property
    def total(self) -> int:
        return self.inserts + self.updates + self.deletes + self.truncates


@dataclass(frozen=True, slots=True)
class SchemaSpan:
    """A table's rows between two changes of its columns; in a mirror, only rows since the last truncate.

    start, end: None for the first and the last span. migration: of the target's existing rows, before the span is
    written; None if there are none or nothing changes. removal: existing rows that leave at that point.
    """

    shape: TableShape
    start: CommitPosition | None
    end: CommitPosition | None
    migration: SchemaMigration | None
    removal: Removal | None = None


@dataclass(frozen=True, slots=True)
class TableTask:
    """One table to write.

    moved_from: path and version of the table's rows if they are at another path. replaces: another table's rows are at
    `path`. schema_changes: each with the first row after it, or None if it only changes the table's name or path.
    cutoff: if set, the table is held after this batch. masks: by column. remarks: about parts of its layout that it
    can't have. way_out: where its rows go if it is held and another table takes their path. doubts, used: as in
    TableState, after the batch.
    """

    spans: tuple[SchemaSpan, ...]
    path: Place
    changes: TableChanges
    state: TableState | None
    moved_from: tuple[Place, int] | None
    replaces: bool
    schema_changes: tuple[tuple[CommitPosition | None, SchemaChange], ...]
    retired: Retired
    cutoff: Cutoff | None = None
    mode: Mode = DEFAULT_MODE
    masks: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    way_out: Place | None = None
    doubts: tuple[Doubt, ...] = ()
    used: Used = field(default_factory=dict)

    @property
    def shape(self) -> TableShape:
        """The shape at the end of the batch."""
        return self.spans[-1].shape

    @property
    def stored_columns(self) -> tuple[TableColumn, ...]:
        """The columns of existing rows, before the batch."""
        first = self.spans[0]
        return first.shape.columns if first.migration is None else first.migration.before

    @property
    def oid(self) -> int:
        return self.shape.relation.oid

    @property
    def full_name(self) -> str:
        return self.shape.relation.full_name


@dataclass(frozen=True, slots=True)
class HeldTable:
    """A table that is not changed. A later backfill applies its changes from the archive.

    complete_to: the LSN up to which the table has all commits, if this batch raises it. moves_to: the new path of its
    rows if another table takes their path.
    """

    oid: int
    relation: Relation
    reason: str
    changes: TableChanges
    state: TableState | None
    complete_to: int | None = None
    moves_to: Place | None = None


def others_at(tables: Mapping[int, TableState], task: TableTask) -> list[TableState]:
    """The other tables at a task's path."""
    return [state for oid, state in tables.items() if oid != task.oid and state.path == task.path]


@dataclass(slots=True)
class TablePlan:
    """skipped: names of tables that have changes but are skipped by the configuration. vacated: paths that no table
    uses any more. passed_over: skipped tables that have changes or must move."""

    tasks: list[TableTask] = field(default_factory=list)
    held: list[HeldTable] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    vacated: list[Place] = field(default_factory=list)
    passed_over: list[HeldTable] = field(default_factory=list)


def complete_since(before: TableState | None, changes: TableChanges) -> CompleteSince | None:
    """The completeness of a table that this batch writes. before: its state in the ledger; changes: the ones
    written."""
    known = None if before is None else before.complete_since
    if changes.gained or changes.lost or changes.left:
        return CompleteSince(Since.ATTACHMENT, changes.runs[0].start[0])
    if changes.unsent is not None:
        return changes.unsent
    if changes.truncated_at is not None and (known is None or known.kind in _UNPROVEN):
        return CompleteSince(Since.TRUNCATE, changes.truncated_at[0])
    is_new = before is None or before.version < 0
    if known is not None or not is_new or not changes.runs:
        return known
    marks = [mark for run in changes.runs if (mark := run.relation.catalog) is not None] if before is None else []
    lsn = changes.runs[0].start[0]
    if any(mark.unlogged or mark.gaps for mark in marks[:1]):
        return CompleteSince(Since.GAP if marks[0].gaps else Since.UNLOGGED, lsn)
    is_created = any(mark.is_created for mark in marks)
    return CompleteSince(Since.CREATION if is_created else Since.FIRST_CHANGE, lsn)


def mismatches_left(before: TableState | None, changes: TableChanges) -> Mismatches | None:
    """The mismatches that remain after these changes; a truncate clears them. before: the table's state."""
    return None if before is None or changes.truncates else before.mismatches


def may_lack_rows(state: TableState) -> bool:
    """True if the table lacks any rows that preceded its first change in the archive, or has rows of the wrong
    partitions."""
    return state.complete_since is not None and state.complete_since.kind in _UNPROVEN


def created_since(state: TableState, known: Iterable[tuple[int, frozenset[int]]]) -> TableState:
    """The state of a new table; `complete_since` becomes CREATION if a server's snapshot shows that it didn't exist
    then. known: LSN and tables of such snapshots."""
    since = state.complete_since
    if since is None or since.kind is not Since.FIRST_CHANGE:
        return state
    is_proven = any(lsn <= since.lsn and state.oid not in oids for lsn, oids in known)
    return replace(state, complete_since=CompleteSince(Since.CREATION, since.lsn)) if is_proven else state


def held_from(held: Iterable[int], cutoffs: Mapping[int, Cutoff]) -> dict[int, int]:
    """By OID of a held table, the first commit LSN in the batch that is not applied to it. held: OIDs."""
    return {oid: cutoffs[oid].lsn if oid in cutoffs else 0 for oid in held}


def tables_ahead(states: Mapping[int, TableState], last_commit_lsn: int) -> dict[int, int]:
    """By OID, the last commit LSN of each table that a snapshot advanced beyond the archive's last commit."""
    ahead = {oid: state.last_commit_lsn for oid, state in states.items() if state.is_complete}
    return {oid: lsn for oid, lsn in ahead.items() if lsn > last_commit_lsn}


def snapshots_ahead(states: Mapping[int, TableState], last_commit_lsn: int) -> dict[str, int]:
    """By name, the LSN of the snapshot of each table that is ahead."""
    return {states[oid].full_name: lsn + 1 for oid, lsn in tables_ahead(states, last_commit_lsn).items()}
