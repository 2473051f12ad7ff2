"""The plan of a batch for its tables: tasks, schema spans, and tables that are held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pgoutput_etl.config.settings import Mode
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.schema.diff import SchemaChange
from pgoutput_etl.schema.migration import Retired, SchemaMigration
from pgoutput_etl.schema.relation_history import CommitPosition, RelationSpan
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.transactions.cutoff import Cutoff

# SKIPPED: the configuration skips it, and it lacks changes that were committed meanwhile.
APPLIED, HELD, SKIPPED = "applied", "held", "skipped"

# The number of what stands for a file before all others, a snapshot's rows: so far before that there may be as many of
# them as there are (appended.py).
BEFORE_FILES = -(1 << 20)


@dataclass(frozen=True, slots=True)
class TableState:
    """Where a table stands, by its OID. status: APPLIED; HELD if it could not be brought further; SKIPPED.

    last_commit_lsn: every commit up to it is in the table. version: Delta's, -1 for one that was never written.
    retired: columns that the relation no longer has, and the target does (lineage.py). types: of the columns in the
    target, retired ones last. rows: how many it has; None if nobody knows without looking. uses: what was done to
    columns' values (column_uses.py), by column. snapshot: the Delta version that a snapshot left, which has rows that
    the archive doesn't; None if there was none. last_row: the last of its committed rows that was seen, by which the
    tables that bear one name follow one another; None in a ledger that is older.
    """

    oid: int
    schema: str
    table: str
    path: str
    version: int
    last_commit_lsn: int
    status: str
    reason: str | None
    relation: Relation
    key: tuple[str, ...]
    retired: Retired = ()
    types: tuple[str, ...] = ()
    rows: int | None = None
    mode: Mode = Mode.MIRROR
    uses: Mapping[str, str] = field(default_factory=dict)
    snapshot: int | None = None
    last_row: CommitPosition | None = None

    @property
    def is_complete(self) -> bool:
        """Whether it lacks no commit that the archive has."""
        return self.status == APPLIED


@dataclass(frozen=True, slots=True)
class TableChanges:
    """What the committed rows of one relation amount to, counted without looking into them.

    truncated_at: the last truncate. unchanged: positions of unchanged TOAST. size: bytes of the blocks that they are
    in, if that was counted. runs: the versions that they stood under, in the order of commits, as far as any is known;
    last_row: the last of them.
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

    @property
    def total(self) -> int:
        return self.inserts + self.updates + self.deletes + self.truncates


@dataclass(frozen=True, slots=True)
class SchemaSpan:
    """A table's rows from one change of its columns to the next, in a mirror of those since the last truncate.

    start, end: None for the first and the last. reshaping: what the rows that are there go through before; None if
    there are none, or nothing changes.
    """

    shape: TableShape
    start: CommitPosition | None
    end: CommitPosition | None
    migration: SchemaMigration | None


@dataclass(frozen=True, slots=True)
class TableTask:
    """One table to write.

    moved_from: path and version of the rows to begin with, if they are elsewhere. replaces: another table's rows are
    at `path`. schema_changes: with the place of the first row that shows them, None for those of the table's name.
    cut: the table is held afterwards.
    """

    spans: tuple[SchemaSpan, ...]
    path: str
    changes: TableChanges
    state: TableState | None
    moved_from: tuple[str, int] | None
    replaces: bool
    schema_changes: tuple[tuple[CommitPosition | None, SchemaChange], ...]
    retired: Retired
    cutoff: Cutoff | None = None
    mode: Mode = Mode.MIRROR
    uses: Mapping[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> TableShape:
        """At the end of the batch."""
        return self.spans[-1].shape

    @property
    def oid(self) -> int:
        return self.shape.relation.oid


@dataclass(frozen=True, slots=True)
class HeldTable:
    """A table that is left where it stands; what it would have received is in the archive still.

    complete_to: the LSN up to which it has all commits, if that is further than its last batch. moves_to: where its
    rows go, as another table takes its place.
    """

    oid: int
    relation: Relation
    reason: str
    changes: TableChanges
    state: TableState | None
    complete_to: int | None = None
    moves_to: str | None = None


@dataclass(slots=True)
class TablePlan:
    """passed_over: tables that the configuration skips and that get changes; skipped: their names."""

    tasks: list[TableTask] = field(default_factory=list)
    held: list[HeldTable] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    vacated: list[str] = field(default_factory=list)
    passed_over: list[HeldTable] = field(default_factory=list)


def held_from(tables: Iterable[TableState], cutoffs: Mapping[int, Cutoff]) -> dict[int, int]:
    """By OID, of tables after a batch: the commit LSN from which on one that is held has none of its changes."""
    return {t.oid: cutoffs[t.oid].lsn if t.oid in cutoffs else 0 for t in tables if t.status == HELD}


def tables_ahead(states: Mapping[int, TableState], last_commit_lsn: int) -> dict[int, int]:
    """By OID, of tables that a snapshot brought past the last commit of the archive: the last one that they have."""
    ahead = {oid: state.last_commit_lsn for oid, state in states.items() if state.is_complete}
    return {oid: lsn for oid, lsn in ahead.items() if lsn > last_commit_lsn}
