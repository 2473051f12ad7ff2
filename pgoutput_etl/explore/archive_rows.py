"""Messages, transactions, and changes of an archive as Arrow batches, one file at a time.

Includes all transactions with their status, even aborted, open, and resent ones. Rows have no cell values;
table_rows.py reads those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.changes.event_log import MESSAGES_PER_FILE, ROWS_PER_MESSAGE
from pgoutput_etl.compression import MAX_SIZE
from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.inspection.archive import Inspection
from pgoutput_etl.inspection.file_scan import FragmentCounter, FragmentTotals, versions_of
from pgoutput_etl.inspection.message_lines import InspectionContext, MessageLine, print_lines
from pgoutput_etl.inspection.report import transaction_report
from pgoutput_etl.landing.fingerprint import KnownContents, ScanTask
from pgoutput_etl.landing.incremental_scan import scan_part
from pgoutput_etl.masking.mask_rows import MaskingPolicy
from pgoutput_etl.masking.policy import masking_policy, scopes_of
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.scan.message_row import CHANGE_TAGS, HEAD
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.table_shape import TIMESTAMP
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS
from pgoutput_etl.transactions.status_lookup import StatusColumns, StatusLookup
from pgoutput_etl.types import UserTypes

FileReader = Callable[[str, bytes], Iterator[pa.RecordBatch]]  # takes a path and its content

_ROWS_PER_BATCH = 8192


MESSAGES = pa.schema(
    [
        ("file", pa.string()),
        ("offset", pa.int64()),  # of its frame, in the decompressed file
        ("lsn", pa.int64()),  # if the framing has LSNs
        ("xid", pa.int64()),
        ("subxid", pa.int64()),
        ("kind", pa.string()),  # the protocol's name; Damage for unreadable bytes
        ("table", pa.string()),  # schema.table at that position; comma-separated for a Truncate
        ("what", pa.string()),  # a description without values
        ("fate", pa.string()),
        ("commit_lsn", pa.int64()),
        ("commit_time", TIMESTAMP),
    ]
)

TRANSACTIONS = pa.schema(
    [
        ("xid", pa.int64()),
        ("kind", pa.string()),  # ordinary, streamed, prepared
        ("fate", pa.string()),
        ("commit_lsn", pa.int64()),
        ("commit_time", TIMESTAMP),
        ("changes", pa.int64()),  # without aborted changes, unless the whole transaction was aborted
        ("aborted_changes", pa.int64()),
        ("bytes", pa.int64()),
        ("gid", pa.string()),
        ("origin", pa.string()),
        ("file", pa.string()),  # where it begins
    ]
)

CHANGES = pa.schema(
    [
        ("table", pa.string()),  # schema.table at that position
        ("op", pa.string()),  # I, U, D, T
        ("bytes", pa.int64()),
        ("xid", pa.int64()),
        ("subxid", pa.int64()),  # inside a stream segment
        ("fate", pa.string()),
        ("commit_lsn", pa.int64()),
        ("commit_time", TIMESTAMP),
        ("seq", pa.int64()),  # orders the changes of one commit
        ("relation", pa.int64()),  # the table's OID
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("lsn", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class RowView:
    """Everything needed to read the rows of any inspected file. Sent to executors. partitions: by the root's OID.
    policy: masks the rows and `versions`."""

    tasks: Mapping[str, ScanTask]
    statuses: StatusLookup
    versions: Mapping[int, RelationVersions]
    partitions: Mapping[int, tuple[Relation, ...]]
    user_types: UserTypes
    framing: Framing = Framing.AUTO
    max_size: int = MAX_SIZE
    policy: MaskingPolicy | None = None

    @classmethod
    def of_inspection(
        cls,
        inspection: Inspection,
        types: Mapping[str, str],
        framing: Framing,
        max_size: int = MAX_SIZE,
        masks: Config | None = None,
    ) -> RowView:
        """masks: the configuration whose masks apply, including to the inspection's relations. Raises ConfigError for
        masks that contradict the archive."""
        assembled = inspection.assembled
        history, user_types = assembled.assembly.relations, UserTypes.of(assembled.assembly.types.values(), types)
        policy = None
        if masks is not None:
            scopes = scopes_of((*assembled.ended, *assembled.open))
            history.mask = policy = masking_policy(masks, history, user_types, scopes)
        versions = {oid: history.versions(oid) for oid in history.oids()}
        partitions = {oid: history.partitions(oid, (-1, -1)) for oid in history.oids()}
        statuses = assembled.statuses()
        return cls(inspection.tasks, statuses, versions, partitions, user_types, framing, max_size, policy)

    def rows(self, path: str, content: bytes) -> Iterator[tuple[pa.RecordBatch, StatusColumns]]:
        """One file's message rows with their transactions' status. Raises ArchiveError if the file has changed since
        the inspection."""
        task = self.tasks[path]
        scanned = scan_part(path, content, task, KnownContents({}), self.framing, True, self.max_size)
        for batch in scanned.rows:
            rows = self.statuses.of_batch(batch if self.policy is None else self.policy.mask(batch))
            if rows.num_rows:
                yield rows, self.statuses.decide(rows)


def message_batches(context: InspectionContext, content: bytes, max_size: int = MAX_SIZE) -> Iterator[pa.RecordBatch]:
    """MESSAGES of one file: every message that the context's filter accepts."""
    lines: list[MessageLine] = []
    print_lines(context, content, lines.append, max_size)
    for begin in range(0, len(lines), _ROWS_PER_BATCH):
        part = lines[begin : begin + _ROWS_PER_BATCH]
        columns: dict[str, Any] = {
            "file": [line.path for line in part],
            "table": [", ".join(line.tables) or None for line in part],
            "commit_time": times(pa.array([line.committed_at for line in part], pa.int64())),
        }
        columns |= {name: [getattr(line, name) for line in part] for name in MESSAGES.names if name not in columns}
        yield pa.RecordBatch.from_pydict(columns, MESSAGES)


def times(microseconds: pa.Array) -> pa.Array:
    return pc.add(microseconds.cast(pa.int64()), POSTGRES_EPOCH_MICROSECONDS).cast(TIMESTAMP)


def change_batches(path: str, content: bytes, view: RowView) -> Iterator[pa.RecordBatch]:
    """The rows of the view CHANGES, for one file."""
    for rows, decided in view.rows(path, content):
        rows, decided = filter_rows(rows, decided, pc.is_in(rows.column("tag"), pa.array(CHANGE_TAGS)))
        columns = {
            "table": _tables(rows, decided, view.versions),
            "op": rows.column("tag"),
            "bytes": pc.subtract(rows.column("end"), rows.column("begin")),
            "xid": decided.top_xid,
            "subxid": rows.column("xid"),
            "fate": decided.names,
            "commit_lsn": decided.commit_lsn,
            "commit_time": times(decided.commit_ts),
            "seq": sequence(rows.column("file"), rows.column("ordinal")),
            "file": pa.repeat(pa.scalar(path), rows.num_rows),
            **{name: rows.column(name) for name in ("relation", "offset", "lsn")},
        }
        yield pa.RecordBatch.from_arrays([columns[name] for name in CHANGES.names], schema=CHANGES)


def filter_rows(rows: pa.RecordBatch, decided: StatusColumns, mask: pa.Array) -> tuple[pa.RecordBatch, StatusColumns]:
    columns = (c.filter(mask) for c in (decided.commit_lsn, decided.commit_ts, decided.top_xid, decided.scope))
    return rows.filter(mask), StatusColumns(decided.status[mask.to_numpy(zero_copy_only=False)], *columns)


def sequence(file: pa.Array, ordinal: pa.Array) -> pa.Array:
    """`_pg_seq` of mode append, except for the second row of an UPDATE without a key."""
    return pc.multiply(pc.add(pc.multiply(file, MESSAGES_PER_FILE), ordinal), ROWS_PER_MESSAGE)


def _tables(rows: pa.RecordBatch, decided: StatusColumns, versions: Mapping[int, RelationVersions]) -> pa.Array:
    """schema.table of each row, or "OID n" without a Relation message."""
    names: list[str] = []
    numbers = np.zeros(rows.num_rows, np.int64)
    relations = rows.column("relation")
    for oid in relations.unique().to_pylist():
        mask = pc.equal(relations, oid)
        names.append(f"OID {oid}")
        row_numbers = np.full(pc.sum(mask).as_py(), len(names) - 1)
        if oid in versions:
            row_numbers += versions_of(*filter_rows(rows, decided, mask), versions[oid]) + 1
            names += [relation.full_name for relation in versions[oid].relations]
        numbers[mask.to_numpy(zero_copy_only=False)] = row_numbers
    return pa.array(names, pa.string()).take(pa.array(numbers))


def transaction_batches(path: str, content: bytes, view: RowView) -> Iterator[pa.RecordBatch]:
    """The rows of TRANSACTIONS for ordinary ones that begin and end in this file; own_transactions has all others."""
    fragments = FragmentCounter()
    commits: list[tuple[pa.RecordBatch, StatusColumns]] = []
    for rows, decided in view.rows(path, content):
        fragments.add(rows, decided)
        fragment = rows.column("unit")
        is_commit = pc.and_(pc.equal(rows.column("tag"), "C"), pc.not_equal(fragment, HEAD))
        own = view.statuses.fragments_of(rows.column("file")[0].as_py())
        is_own = pc.is_in(fragment.cast(pa.int64()), pa.array(own))
        is_ordinary = pc.and_not(is_commit, is_own)
        if pc.any(is_ordinary).as_py():
            commits.append(filter_rows(rows, decided, is_ordinary))
    for rows, decided in commits:
        indexes, count = rows.column("unit").to_numpy() + 1, rows.num_rows
        columns = {
            "xid": decided.top_xid,
            "kind": pa.repeat(pa.scalar("ordinary"), count),
            "fate": decided.names,
            "commit_lsn": decided.commit_lsn,
            "commit_time": times(decided.commit_ts),
            "changes": pa.array(fragments.changes[indexes]),
            "aborted_changes": pa.array(fragments.aborted[indexes]),
            "bytes": pa.array(fragments.bytes[indexes]),
            "gid": pa.nulls(count, pa.string()),
            "origin": rows.column("origin"),
            "file": pa.repeat(pa.scalar(path), count),
        }
        yield pa.RecordBatch.from_arrays([columns[name] for name in TRANSACTIONS.names], schema=TRANSACTIONS)


def own_transactions(inspection: Inspection) -> pa.Table:
    """The rows of TRANSACTIONS for streamed, prepared, and open ones, and for any that continue in another file."""
    rows = []
    for outcome in (*inspection.assembled.ended, *inspection.assembled.open):
        report, commit_ts = transaction_report(inspection, outcome), outcome.commit_ts
        totals = (inspection.total.own_fragments.get(fragment, FragmentTotals()) for fragment in outcome.fragments)
        row = {name: getattr(report, name) for name in ("xid", "kind", "fate", "changes", "gid")}
        row |= {
            "commit_lsn": outcome.commit_lsn,
            "commit_time": None if commit_ts is None else commit_ts + POSTGRES_EPOCH_MICROSECONDS,
            "aborted_changes": sum(fragment.aborted for fragment in totals),
            "bytes": report.size,
            "origin": outcome.origin,
            "file": report.file or None,
        }
        rows.append(row)
    return pa.Table.from_pylist(rows, TRANSACTIONS)


def batches_of_files(read_file: FileReader, files: Iterable[tuple[str, bytes]]) -> Iterator[pa.RecordBatch]:
    """The batches of each file. Adds its path to errors about values, which only name the file's number. files: path
    and content."""
    for path, content in files:
        try:
            yield from read_file(path, content)
        except ArchiveError as error:
            text = str(error)
            raise ArchiveError(text if text.startswith(path) else f"{path}: {text}") from None
