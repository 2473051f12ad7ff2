"""Statistics of a batch's rows, added up block by block: bytes and transactions by status, changes by relation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.lsn import MAX_STORED_LSN
from pgoutput_etl.scan.blocks import BlockKind
from pgoutput_etl.scan.message_row import NO_FRAGMENT
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.schema.version_spans import NO_SCOPE, HoldsFrom, RowPositions, VersionSpan, spans_of
from pgoutput_etl.transactions.outcome import ACCOUNTS, Outcome, TransactionStatus
from pgoutput_etl.transactions.status_lookup import COMMITTED, STATUSES, StatusColumns, StatusLookup, numbers_of

TRANSACTIONAL, OTHERS = "transactional", "others"

QUARANTINED = STATUSES.index(TransactionStatus.QUARANTINED)

# The columns that `BatchStatistics.add` reads.
COUNTED_KINDS = (
    *("file", "ordinal", "begin", "end", "tag", "unit", "stretch", "xid", "relation", "old_kind", "unchanged"),
    *("commit_lsn", "commit_ts", "top_xid", "origin"),
)


@dataclass(frozen=True, slots=True)
class CommitRange:
    """The commit LSNs from first to last, both included."""

    first: int = 0
    last: int = MAX_STORED_LSN

    def holds(self, lsn: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        is_inside: npt.NDArray[np.bool_] = (lsn >= self.first) & (lsn <= self.last)
        return is_inside


@dataclass(frozen=True, slots=True)
class StatisticsRequest:
    """The part of a batch to count, by relation OID.

    held_from: the first commit LSN that is quarantined rather than applied. windows: the commits to count; without a
    window, all. versions: where each relation version begins.
    """

    held_from: Mapping[int, int] = field(default_factory=dict)
    windows: Mapping[int, CommitRange] = field(default_factory=dict)
    versions: Mapping[int, HoldsFrom] = field(default_factory=dict)


@dataclass(slots=True)
class RelationStatistics:
    """Statistics of one relation's committed changes.

    truncated_at: the last truncate. unchanged: positions of unchanged TOAST. moves_toast: a row whose key changed has
    unchanged TOAST. spans: by generation and version.
    """

    tags: Counter[str] = field(default_factory=Counter)
    truncated_at: CommitPosition | None = None
    unchanged: set[int] = field(default_factory=set)
    moves_toast: bool = False
    spans: dict[tuple[int, int], VersionSpan] = field(default_factory=dict)

    @property
    def last_row(self) -> CommitPosition | None:
        """The last committed row, in commit order."""
        return max((span.last for span in self.spans.values()), default=None)

    def add_span(self, span: VersionSpan) -> None:
        existing = self.spans.get((span.generation, span.number))
        self.spans[span.generation, span.number] = span if existing is None else existing.joined(span)

    def merge(self, other: RelationStatistics) -> None:
        for span in other.spans.values():
            self.add_span(span)
        self.tags.update(other.tags)
        if other.truncated_at is not None and (self.truncated_at is None or other.truncated_at > self.truncated_at):
            self.truncated_at = other.truncated_at
        self.unchanged |= other.unchanged
        self.moves_toast |= other.moves_toast


@dataclass(slots=True)
class BatchStatistics:
    """Statistics of a batch, by relation OID unless stated otherwise.

    sizes: bytes by file and account. ended: number of ordinary transactions by status. relations: committed changes.
    block_sizes: bytes of tuples in blocks, including rows that are not committed. changed: relations with rows of any
    status. quarantined_from: the first quarantined commit with rows of a relation. messages: number of logical decoding
    Messages, TRANSACTIONAL (committed) and OTHERS. last_commit: LSN and time of the last ordinary commit.
    """

    request: StatisticsRequest = field(default_factory=StatisticsRequest)
    sizes: Counter[tuple[int, str]] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    relations: dict[int, RelationStatistics] = field(default_factory=dict)
    block_sizes: Counter[int] = field(default_factory=Counter)
    changed: set[int] = field(default_factory=set)
    quarantined_from: dict[int, int] = field(default_factory=dict)
    messages: Counter[str] = field(default_factory=Counter)
    last_commit: tuple[int, int] | None = None

    def add(
        self, kind: BlockKind, relation: int | None, rows: pa.RecordBatch, size: int, statuses: StatusLookup
    ) -> None:
        """Adds one block. Bytes of waiting rows were counted in the batch that read them."""
        decided = statuses.decide(rows)
        if kind not in (BlockKind.WAITING, BlockKind.WAITING_LOGICAL):
            self._account(kind, relation, rows, decided)
        if kind is BlockKind.COMMIT:
            for status, count in enumerate(np.bincount(decided.status, minlength=len(STATUSES)).tolist()):
                self.ended[STATUSES[status].value] += count
            self._record_commits(decided)
        elif kind in (BlockKind.LOGICAL, BlockKind.WAITING_LOGICAL):
            belongs = rows.column("unit").to_numpy(zero_copy_only=False) != NO_FRAGMENT
            self.messages[TRANSACTIONAL] += int(np.count_nonzero(belongs & (decided.status == COMMITTED)))
            self.messages[OTHERS] += int(np.count_nonzero(~belongs))
        elif relation is not None:
            self.block_sizes[relation] += size
            if rows.num_rows:
                self.changed.add(relation)
            self._record_quarantined(relation, decided)
            self._count(relation, rows, decided)

    def _record_quarantined(self, relation: int, decided: StatusColumns) -> None:
        is_quarantined = decided.status == QUARANTINED
        if is_quarantined.any():
            lsn = pc.min(pc.fill_null(decided.commit_lsn.filter(pa.array(is_quarantined)), 0)).as_py()
            self.quarantined_from[relation] = min(lsn, self.quarantined_from.get(relation, lsn))

    def _record_commits(self, decided: StatusColumns) -> None:
        limits = pc.min_max(decided.commit_lsn).as_py()
        if limits["max"] is None or (self.last_commit is not None and limits["max"] <= self.last_commit[0]):
            return
        at = pc.index(decided.commit_lsn, limits["max"]).as_py()
        time = decided.commit_ts[at].as_py()
        if time is not None:
            self.last_commit = limits["max"], time

    def _account(self, kind: BlockKind, relation: int | None, rows: pa.RecordBatch, decided: StatusColumns) -> None:
        status = decided.status
        if kind is BlockKind.DAMAGE:
            status = np.full(rows.num_rows, QUARANTINED, np.uint8)
        elif relation is not None and relation in self.request.held_from:
            is_held = numbers_of(decided.commit_lsn) >= self.request.held_from[relation]
            status = np.where((status == COMMITTED) & is_held, QUARANTINED, status)
        file = rows.column("file").to_numpy(zero_copy_only=False)
        sizes = pc.subtract(rows.column("end"), rows.column("begin")).fill_null(0).to_numpy(zero_copy_only=False)
        if not len(file):
            return
        first = int(file.min())
        sums = np.bincount((file - first) * len(STATUSES) + status, weights=sizes)  # exact up to 2^53
        for code in np.flatnonzero(sums).tolist():
            number, index = divmod(code, len(STATUSES))
            self.sizes[first + number, ACCOUNTS[STATUSES[index].value]] += int(sums[code])

    def _count(self, relation: int, rows: pa.RecordBatch, decided: StatusColumns) -> None:
        is_committed = decided.status == COMMITTED
        if relation in self.request.windows:
            is_committed &= self.request.windows[relation].holds(numbers_of(decided.commit_lsn))
        if not is_committed.any():
            return
        chosen = rows if is_committed.all() else rows.filter(pa.array(is_committed))
        statistics = RelationStatistics()
        for span in spans_of(positions_of(chosen, decided, is_committed), self.request.versions.get(relation, {})):
            statistics.add_span(span)
        for count in pc.value_counts(chosen.column("tag")).to_pylist():
            statistics.tags[count["values"]] = count["counts"]
        if statistics.tags["T"]:
            lsn = decided.commit_lsn.filter(pa.array(is_committed))
            statistics.truncated_at = _last_truncate(chosen, lsn)
        unchanged = chosen.column("unchanged")
        if unchanged.null_count < len(unchanged):
            statistics.unchanged = set(pc.unique(pc.list_flatten(unchanged)).to_pylist())
            moves = pc.and_(pc.is_valid(unchanged), pc.equal(chosen.column("old_kind"), "K"))
            statistics.moves_toast = bool(pc.any(moves).as_py())
        self.relations.setdefault(relation, RelationStatistics()).merge(statistics)

    def merge(self, other: BatchStatistics) -> None:
        self.sizes.update(other.sizes)
        self.ended.update(other.ended)
        self.block_sizes.update(other.block_sizes)
        self.changed |= other.changed
        for oid, lsn in other.quarantined_from.items():
            self.quarantined_from[oid] = min(lsn, self.quarantined_from.get(oid, lsn))
        self.messages.update(other.messages)
        self.last_commit = max((c for c in (self.last_commit, other.last_commit) if c is not None), default=None)
        for oid, statistics in other.relations.items():
            self.relations.setdefault(oid, RelationStatistics()).merge(statistics)

    def accounts(self) -> dict[int, dict[str, int]]:
        """The decompressed bytes of each file, by account."""
        accounts: dict[int, dict[str, int]] = {}
        for (file, account), size in self.sizes.items():
            accounts.setdefault(file, {})[account] = size
        return accounts


def positions_of(rows: pa.RecordBatch, decided: StatusColumns, chosen: npt.NDArray[np.bool_]) -> RowPositions:
    """rows: the chosen rows of a block. decided: the statuses of all its rows."""
    lsn, scope = decided.commit_lsn, decided.scope
    if not chosen.all():
        lsn, scope = lsn.filter(pa.array(chosen)), scope.filter(pa.array(chosen))
    file, ordinal = (numbers_of(rows.column(name)) for name in ("file", "ordinal"))
    return RowPositions(numbers_of(lsn), file, ordinal, numbers_of(pc.fill_null(scope, NO_SCOPE)))


def positions_in(
    rows: pa.RecordBatch, statuses: StatusLookup, relation: int, windows: Mapping[int, CommitRange]
) -> RowPositions:
    """The position of each committed row of a relation's block. rows: with the columns COUNTED_KINDS."""
    decided = statuses.decide(rows)
    chosen = decided.status == COMMITTED
    if relation in windows:
        chosen &= windows[relation].holds(numbers_of(decided.commit_lsn))
    return positions_of(rows.filter(pa.array(chosen)), decided, chosen)


def _last_truncate(rows: pa.RecordBatch, lsn: pa.Array) -> CommitPosition:
    is_truncate = pc.equal(rows.column("tag"), "T")
    columns = [lsn, rows.column("file"), rows.column("ordinal")]
    return max(zip(*(column.filter(is_truncate).to_pylist() for column in columns), strict=True))


def transactions_by_status(outcomes: Iterable[Outcome], statistics: BatchStatistics) -> Counter[str]:
    """The number of transactions by status: those with an outcome, and ordinary ones within a file."""
    counts = Counter(outcome.status.value for outcome in outcomes)
    # Quarantined transactions have outcomes.
    counts.update({s: n for s, n in statistics.ended.items() if s != TransactionStatus.QUARANTINED.value})
    return counts
