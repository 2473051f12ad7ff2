"""Inspects a landed file in two steps, so that files can be inspected in parallel.

`inspect_file` scans a file as apply does and returns the assembly's input. `count` summarizes the file's rows after the
assembly has decided every transaction's status. In between, rows are stored without tuples, a few bytes each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.changes.fast_events import versions_in_force
from pgoutput_etl.compression import MAX_SIZE
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.inspection.message_lines import as_lsn, as_time
from pgoutput_etl.inspection.report_model import TransactionReport
from pgoutput_etl.inspection.server_settings import SettingsSample, sample_settings
from pgoutput_etl.landing.fingerprint import KnownContents, ScanTask
from pgoutput_etl.landing.incremental_scan import scan_part
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.blocks import BLOCK_SCHEMA, BlockKind, Packer, unpacked
from pgoutput_etl.scan.census import MessageCensus
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.message_row import CATALOG_TAG, CHANGE_TAGS
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.version_spans import UNDESCRIBED
from pgoutput_etl.transactions.outcome import Control, FragmentId, control_rows
from pgoutput_etl.transactions.statistics import COUNTED_KINDS, BatchStatistics, StatisticsRequest
from pgoutput_etl.transactions.status_lookup import (
    ABORTED,
    COMMITTED,
    DECIDED_BY,
    STATUSES,
    Integers,
    StatusColumns,
    StatusLookup,
)

HEAD_SCHEMA = pa.schema([BLOCK_SCHEMA.field(name) for name in ("kind", "relation", "rows", "head")])

BIGGEST = 10

_POWERS = 10 ** np.arange(18)

_COUNTED = (*COUNTED_KINDS, "changes")


@dataclass(frozen=True, slots=True)
class FileInspection:
    """A scanned file. error: the reason why it can't be read; then the other fields are empty."""

    number: int
    scan: FileScan | None = None
    error: str | None = None
    controls: tuple[Control, ...] = ()
    census: MessageCensus = field(default_factory=MessageCensus)
    settings: SettingsSample = field(default_factory=Counter)


def inspect_file(
    path: str, content: bytes, task: ScanTask, framing: Framing = Framing.AUTO, max_size: int = MAX_SIZE
) -> tuple[FileInspection, bytes]:
    """The inspection, and the rows without tuples as an Arrow stream of HEAD_SCHEMA. Reports damage instead of raising
    errors."""
    try:
        scanned = scan_part(path, content, task, KnownContents({}), framing, True, max_size, with_census=True)
    except ArchiveError as error:
        return FileInspection(task.number, error=str(error)), b""
    controls, census = tuple(control_rows(scanned.rows)), scanned.census or MessageCensus()
    inspection = FileInspection(task.number, scanned.summary, None, controls, census, sample_settings(scanned.rows))
    return inspection, _heads(scanned.batches)


def _heads(batches: list[pa.RecordBatch]) -> bytes:
    packer = Packer(BlockKind.CHANGE)
    sink = pa.BufferOutputStream()
    bare = (_without_tuples(batch) for batch in batches)
    with pa.ipc.new_stream(sink, HEAD_SCHEMA) as writer:
        for block in (*(block for batch in bare for block in packer.add(batch)), *packer.rest()):
            writer.write_batch(block.select(HEAD_SCHEMA.names))
    heads: bytes = sink.getvalue().to_pybytes()
    return heads


def _without_tuples(batch: pa.RecordBatch) -> pa.RecordBatch:
    for name in ("old", "new", "body"):
        position = batch.schema.get_field_index(name)
        batch = batch.set_column(position, batch.schema.field(position), pa.nulls(batch.num_rows, pa.binary()))
    return batch


def _blocks(heads: bytes, kind: BlockKind | None = None) -> Iterator[dict[str, Any]]:
    """kind: None for all."""
    if heads:
        with pa.ipc.open_stream(heads) as reader:
            for batch in reader:
                yield from (block for block in batch.to_pylist() if kind is None or block["kind"] == kind.value)


def ends(heads: bytes, xids: frozenset[int]) -> list[tuple[int, FragmentId]]:
    """Xid and fragment of each of a file's ordinary transactions that has one of the given xids."""
    fragments = []
    for block in _blocks(heads, BlockKind.COMMIT):
        rows = unpacked(block, ["top_xid", "file", "unit"])
        rows = rows.filter(pc.is_in(rows.column("top_xid"), pa.array(sorted(xids), pa.int64())))
        fragments += [(row["top_xid"], (row["file"], row["unit"])) for row in rows.to_pylist()]
    return fragments


@dataclass(frozen=True, slots=True)
class FragmentTotals:
    """changes: including aborted ones. size: bytes."""

    changes: int = 0
    aborted: int = 0
    size: int = 0


@dataclass(slots=True)
class FragmentCounts:
    """Totals of a file's rows.

    changes: rows by relation, tag, and transaction status. digits: ordinary committed transactions by the number of
    digits in their number of changes. biggest: ordinary transactions, each with the number of its file, whose path is
    not known here. own_fragments: fragments with an Outcome. times: of the first and last commit.
    """

    statistics: BatchStatistics = field(default_factory=BatchStatistics)
    changes: Counter[tuple[int, str, str]] = field(default_factory=Counter)
    digits: Counter[int] = field(default_factory=Counter)
    biggest: list[tuple[int, TransactionReport]] = field(default_factory=list)
    own_fragments: dict[FragmentId, FragmentTotals] = field(default_factory=dict)
    times: tuple[int, int] | None = None

    def merge(self, other: FragmentCounts) -> None:
        self.statistics.merge(other.statistics)
        self.changes.update(other.changes)
        self.digits.update(other.digits)
        self.biggest = sorted([*self.biggest, *other.biggest], key=lambda t: (-t[1].size, t[0]))[:BIGGEST]
        self.own_fragments.update(other.own_fragments)
        self.times = _merge_ranges(self.times, other.times)


def _merge_ranges(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def count(heads: bytes, statuses: StatusLookup, held_from: Mapping[int, int]) -> FragmentCounts:
    """Totals of one file's rows. held_from: see StatisticsRequest."""
    counts = FragmentCounts(BatchStatistics(StatisticsRequest(held_from)))
    fragments = FragmentCounter()
    commits: list[tuple[pa.RecordBatch, StatusColumns]] = []
    for block in _blocks(heads):
        kind, relation = BlockKind(block["kind"]), block["relation"]
        rows = statuses.of_batch(unpacked(block, _COUNTED))
        if not rows.num_rows:
            continue
        counts.statistics.add(kind, relation, rows, 0, statuses)
        decided = statuses.decide(rows)
        fragments.add(rows, decided)
        if kind is BlockKind.COMMIT:
            commits.append((rows, decided))
        elif relation is not None:
            pairs = pa.table({"tag": rows.column("tag"), "status": pa.array(decided.status)})
            for row in pairs.group_by(["tag", "status"]).aggregate([([], "count_all")]).to_pylist():
                counts.changes[relation, row["tag"], STATUSES[row["status"]].value] += row["count_all"]
    own = statuses.fragments_of(fragments.file)
    for rows, decided in commits:
        is_own = np.isin(rows.column("unit").to_numpy(zero_copy_only=False), own)
        _count_commits(counts, fragments, rows, decided, is_own)
    counts.own_fragments = {(fragments.file, fragment): fragments.totals(fragment) for fragment in own.tolist()}
    return counts


def commits(heads: bytes, statuses: StatusLookup) -> tuple[Integers, Integers, Integers]:
    """Xid, LSN, and status (an index of STATUSES) of a file's ordinary transactions."""
    parts: list[tuple[Integers, Integers, Integers]] = []
    for block in _blocks(heads, BlockKind.COMMIT):
        rows = statuses.of_batch(unpacked(block, DECIDED_BY))
        decided = statuses.decide(rows)
        xid, lsn = decided.top_xid.fill_null(-1).to_numpy(), decided.commit_lsn.fill_null(-1).to_numpy()
        parts.append((xid, lsn, decided.status.astype(np.int64)))
    empty = np.zeros(0, np.int64)
    xid, lsn, status = (np.concatenate([empty, *(part[i] for part in parts)]) for i in (0, 1, 2))
    is_known = lsn >= 0
    return xid[is_known], lsn[is_known], status[is_known]


def catalog_messages(heads: bytes, statuses: StatusLookup) -> dict[int, tuple[int | None, int | None, int | None]]:
    """Xid, commit LSN, and commit time of the transaction of each committed catalog Message in a file, by ordinal."""
    found: dict[int, tuple[int | None, int | None, int | None]] = {}
    for block in _blocks(heads, BlockKind.CONTROL):
        rows = unpacked(block, (*DECIDED_BY, "ordinal", "tag"))
        rows = statuses.of_batch(rows.filter(pc.equal(rows.column("tag"), CATALOG_TAG)))
        decided = statuses.decide(rows)
        columns = (decided.top_xid, decided.commit_lsn, decided.commit_ts)
        values = zip(*(column.to_pylist() for column in columns), strict=True)
        ordinals, is_committed = rows.column("ordinal").to_pylist(), decided.status == COMMITTED
        found |= {o: v for o, v, counts in zip(ordinals, values, is_committed, strict=True) if counts}
    return found


def undescribed(heads: bytes, statuses: StatusLookup, versions: Mapping[int, RelationVersions]) -> set[int]:
    """OIDs of relations with committed changes in a file at positions where no Relation message describes them."""
    found: set[int] = set()
    for block in _blocks(heads):
        oid = block["relation"]
        if oid is not None and oid not in found:
            rows = statuses.of_batch(unpacked(block, (*DECIDED_BY, "ordinal")))
            decided = statuses.decide(rows)
            numbers = versions_of(rows, decided, versions.get(oid, RelationVersions(oid, (), {})))
            found |= {oid} if (numbers[decided.status == COMMITTED] == UNDESCRIBED).any() else set()
    return found


def versions_of(rows: pa.RecordBatch, decided: StatusColumns, versions: RelationVersions) -> Integers:
    """The number of the relation's version for each row; -1 for none."""
    return versions_in_force(rows.append_column("scope", decided.scope), versions)


def _count_commits(
    totals: FragmentCounts,
    fragments: FragmentCounter,
    rows: pa.RecordBatch,
    decided: StatusColumns,
    is_own: npt.NDArray[np.bool_],
) -> None:
    """Counts ordinary transactions without an Outcome; the others are in own_fragments."""
    fragment = rows.column("unit").to_numpy(zero_copy_only=False)
    counts = rows.column("changes").fill_null(0).to_numpy(zero_copy_only=False)
    is_committed = decided.status == COMMITTED
    done = counts[is_committed & ~is_own]
    digits = np.searchsorted(_POWERS, done, side="right")  # 0 has no digits
    totals.digits.update(dict(enumerate(np.bincount(digits).tolist())))
    limits = pc.min_max(decided.commit_ts.filter(pa.array(is_committed))).as_py()
    if limits["min"] is not None:
        totals.times = _merge_ranges(totals.times, (limits["min"], limits["max"]))
    sizes = np.where(is_own, -1, fragments.bytes[fragment + 1])
    biggest = []
    for i in np.argsort(-sizes, kind="stable")[:BIGGEST].tolist():
        if not is_own[i]:
            xid, lsn, time = (c[i].as_py() for c in (decided.top_xid, decided.commit_lsn, decided.commit_ts))
            kind, counted = ("ordinary", STATUSES[decided.status[i]].value), (int(counts[i]), int(sizes[i]))
            report = TransactionReport(xid, *kind, *counted, None, "", as_lsn(lsn), as_time(time))
            biggest.append((fragments.file, report))
    totals.merge(FragmentCounts(biggest=biggest))


@dataclass(slots=True)
class FragmentCounter:
    """Counts changes, aborted changes, and bytes of one file by fragment, at index fragment + 1. A Truncate counts once
    per table."""

    file: int = 0
    changes: Integers = field(default_factory=lambda: np.zeros(1, np.int64))
    aborted: Integers = field(default_factory=lambda: np.zeros(1, np.int64))
    bytes: Integers = field(default_factory=lambda: np.zeros(1, np.int64))

    def add(self, rows: pa.RecordBatch, decided: StatusColumns) -> None:
        self.file = rows.column("file")[0].as_py()
        fragment = rows.column("unit").to_numpy(zero_copy_only=False).astype(np.int64) + 1  # NO_FRAGMENT is -1
        room = int(fragment.max()) + 1
        if room > len(self.changes):
            more = np.zeros(max(room, 2 * len(self.changes)) - len(self.changes), np.int64)
            self.changes, self.aborted, self.bytes = (
                np.append(counts, more) for counts in (self.changes, self.aborted, self.bytes)
            )
        size = pc.subtract(rows.column("end"), rows.column("begin")).fill_null(0).to_numpy(zero_copy_only=False)
        self.bytes += np.bincount(fragment, size, len(self.bytes)).astype(np.int64)
        is_change = pc.is_in(rows.column("tag"), pa.array(CHANGE_TAGS)).to_numpy(zero_copy_only=False)
        self.changes += np.bincount(fragment[is_change], minlength=len(self.changes))
        self.aborted += np.bincount(fragment[is_change & (decided.status == ABORTED)], minlength=len(self.changes))

    def totals(self, fragment: int) -> FragmentTotals:
        i = fragment + 1
        if i >= len(self.bytes):
            return FragmentTotals()
        return FragmentTotals(int(self.changes[i]), int(self.aborted[i]), int(self.bytes[i]))
