"""The rows of an archive that somebody explores: messages, transactions and changes, a file at a time, as Arrow.

Every sending of every transaction is there, with its fate: what was aborted, is open or came twice, too. No row has a
cell's value: those are for who asks for one table's (table_rows.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.changes.fast_events import versions_in_force
from pgoutput_etl.compression import MAX_SIZE
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.inspection.archive import Inspection
from pgoutput_etl.inspection.file_scan import FragmentTotals
from pgoutput_etl.inspection.message_lines import InspectionContext, MessageLine, print_lines
from pgoutput_etl.inspection.report import kind_of_transaction, transaction_report
from pgoutput_etl.landing.fingerprint import KnownContents, ScanTask
from pgoutput_etl.landing.incremental_scan import scan_part
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.message_row import CHANGE_TAGS, HEAD
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.table_shape import TIMESTAMP
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS
from pgoutput_etl.transactions.outcome import Outcome
from pgoutput_etl.transactions.status_lookup import ABORTED, STATUSES, StatusColumns, StatusLookup
from pgoutput_etl.types import UserTypes

_ROWS_TOGETHER = 8192

_MESSAGES_IN_A_FILE = 1 << 39

# As appended.py has them: `seq` orders the changes of a commit.
_OF_A_MESSAGE = 2


MESSAGES = pa.schema(
    [
        ("file", pa.string()),
        ("offset", pa.int64()),  # of its frame, in the decompressed file
        ("lsn", pa.int64()),  # where the framing has it
        ("xid", pa.int64()),
        ("subxid", pa.int64()),
        ("kind", pa.string()),  # the protocol's name; Damage for bytes that can't be read
        ("table", pa.string()),  # schema.table at that place; of a Truncate all, with commas
        ("what", pa.string()),  # in words, without values
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
        ("changes", pa.int64()),  # that count, if it was committed; all of them, if it was aborted
        ("aborted_changes", pa.int64()),  # of subtransactions, or all
        ("bytes", pa.int64()),
        ("gid", pa.string()),
        ("origin", pa.string()),
        ("file", pa.string()),  # it begins in
    ]
)

CHANGES = pa.schema(
    [
        ("table", pa.string()),  # schema.table at that place
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
    """What the rows of any file are told with, once all files were looked into. Goes to executors."""

    tasks: Mapping[str, ScanTask]
    statuses: StatusLookup
    versions: Mapping[int, RelationVersions]
    user_types: UserTypes
    framing: Framing = Framing.AUTO
    max_size: int = MAX_SIZE

    @classmethod
    def of_inspection(
        cls, found: Inspection, types: Mapping[str, str], framing: Framing, max_size: int = MAX_SIZE
    ) -> RowView:
        history, known = found.assembled.assembly.relations, found.assembled.assembly.types
        versions = {oid: history.versions(oid) for oid in history.oids()}
        user_types = UserTypes.of(known.values(), types)
        return cls(found.tasks, found.assembled.statuses(), versions, user_types, framing, max_size)

    def rows(self, path: str, content: bytes) -> Iterator[tuple[pa.RecordBatch, StatusColumns]]:
        """Message rows of one file, each batch with what became of them. Raises ArchiveError if it isn't the file that
        was looked into any more."""
        task = self.tasks[path]
        scanned = scan_part(path, content, task, KnownContents({}), self.framing, True, self.max_size)
        for batch in scanned.rows:
            rows = self.statuses.of_batch(batch)
            if rows.num_rows:
                yield rows, self.statuses.decide(rows)


def message_batches(context: InspectionContext, content: bytes, max_size: int = MAX_SIZE) -> Iterator[pa.RecordBatch]:
    """MESSAGES of one file: every message that the scene wants."""
    lines: list[MessageLine] = []
    print_lines(context, content, lines.append, max_size)
    for begin in range(0, len(lines), _ROWS_TOGETHER):
        yield _as_messages(lines[begin : begin + _ROWS_TOGETHER])


def _as_messages(lines: list[MessageLine]) -> pa.RecordBatch:
    columns = {
        "file": [line.path for line in lines],
        "table": [", ".join(line.tables) or None for line in lines],
        "commit_time": _times(pa.array([line.committed_at for line in lines], pa.int64())),
        **{
            name: [getattr(line, name) for line in lines] for name in ("offset", "lsn", "xid", "subxid", "kind", "what")
        },
        **{name: [getattr(line, name) for line in lines] for name in ("fate", "commit_lsn")},
    }
    return pa.RecordBatch.from_pydict({name: columns[name] for name in MESSAGES.names}, MESSAGES)


def _times(microseconds: pa.Array) -> pa.Array:
    return pc.add(microseconds.cast(pa.int64()), POSTGRES_EPOCH_MICROSECONDS).cast(TIMESTAMP)


def change_batches(path: str, content: bytes, view: RowView) -> Iterator[pa.RecordBatch]:
    """CHANGES of one file."""
    for rows, decided in view.rows(path, content):
        yield _as_changes(path, *only(rows, decided, pc.is_in(rows.column("tag"), pa.array(CHANGE_TAGS))), view)


def only(rows: pa.RecordBatch, decided: StatusColumns, chosen: pa.Array) -> tuple[pa.RecordBatch, StatusColumns]:
    """Those of the rows."""
    columns = (c.filter(chosen) for c in (decided.commit_lsn, decided.commit_ts, decided.top_xid, decided.scope))
    return rows.filter(chosen), StatusColumns(decided.status[chosen.to_numpy(zero_copy_only=False)], *columns)


def _as_changes(path: str, rows: pa.RecordBatch, decided: StatusColumns, view: RowView) -> pa.RecordBatch:
    columns = {
        "table": _tables(rows, decided, view.versions),
        "op": rows.column("tag"),
        "bytes": pc.subtract(rows.column("end"), rows.column("begin")),
        "xid": decided.top_xid,
        "subxid": rows.column("xid"),
        "fate": status_names(decided.status),
        "commit_lsn": decided.commit_lsn,
        "commit_time": _times(decided.commit_ts),
        "seq": sequence(rows.column("file"), rows.column("ordinal")),
        "file": pa.repeat(pa.scalar(path), rows.num_rows),
        **{name: rows.column(name) for name in ("relation", "offset", "lsn")},
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in CHANGES.names], schema=CHANGES)


def status_names(statuses: npt.NDArray[np.uint8]) -> pa.Array:
    return pa.array([status.value for status in STATUSES]).take(pa.array(statuses))


def sequence(file: pa.Array, ordinal: pa.Array) -> pa.Array:
    """`_pg_seq` of a table in mode append, but for the second row of an UPDATE without a key."""
    return pc.multiply(pc.add(pc.multiply(file, _MESSAGES_IN_A_FILE), ordinal), _OF_A_MESSAGE)


def versions_of(rows: pa.RecordBatch, decided: StatusColumns, versions: RelationVersions) -> npt.NDArray[np.int64]:
    """Per row of this relation, which version held; -1 for none."""
    placed = pa.RecordBatch.from_arrays(
        [rows.column("file"), rows.column("ordinal"), decided.scope], names=["file", "ordinal", "scope"]
    )
    found: npt.NDArray[np.int64] = versions_in_force(placed, versions)
    return found


def _tables(rows: pa.RecordBatch, decided: StatusColumns, versions: Mapping[int, RelationVersions]) -> pa.Array:
    """schema.table of each row, or its OID where nothing describes it."""
    names: list[str] = []
    numbers = np.zeros(rows.num_rows, np.int64)
    relations = rows.column("relation")
    for oid in relations.unique().to_pylist():
        chosen = pc.equal(relations, oid)
        names.append(f"OID {oid}")
        of_rows = np.full(pc.sum(chosen).as_py(), len(names) - 1)
        if oid in versions:
            held = versions_of(*only(rows, decided, chosen), versions[oid])
            of_rows += held + 1
            names += [f"{relation.namespace}.{relation.name}" for relation in versions[oid].relations]
        numbers[chosen.to_numpy(zero_copy_only=False)] = of_rows
    return pa.array(names, pa.string()).take(pa.array(numbers))


def transaction_batches(path: str, content: bytes, view: RowView) -> Iterator[pa.RecordBatch]:
    """TRANSACTIONS of one file: the ordinary ones that begin and end in it. own_transactions has all others."""
    fragments = _FragmentSums()
    commits: list[tuple[pa.RecordBatch, StatusColumns]] = []
    for rows, decided in view.rows(path, content):
        fragments.add(rows, decided)
        fragment = rows.column("unit")
        chosen = pc.and_(pc.equal(rows.column("tag"), "C"), pc.not_equal(fragment, HEAD))
        own = view.statuses.fragments_of(rows.column("file")[0].as_py())
        commits.append(
            only(rows, decided, pc.and_(chosen, pc.invert(pc.is_in(fragment.cast(pa.int64()), pa.array(own)))))
        )
    for rows, decided in commits:
        if rows.num_rows:
            yield _as_transactions(path, rows, decided, fragments)


@dataclass(slots=True)
class _FragmentSums:
    """Bytes, changes and aborted changes by the number of the unit, from NO_UNIT (-1) on. A Truncate is as many changes
    as it names tables."""

    sizes: npt.NDArray[np.int64]
    changes: npt.NDArray[np.int64]
    aborted: npt.NDArray[np.int64]

    def __init__(self) -> None:
        self.sizes = self.changes = self.aborted = np.zeros(0, np.int64)

    def add(self, rows: pa.RecordBatch, decided: StatusColumns) -> None:
        fragment = rows.column("unit").to_numpy() + 1
        size = pc.subtract(rows.column("end"), rows.column("begin")).to_numpy(zero_copy_only=False)
        is_change = pc.is_in(rows.column("tag"), pa.array(CHANGE_TAGS)).to_numpy(zero_copy_only=False)
        self.sizes = _added(self.sizes, np.bincount(fragment, size).astype(np.int64))
        self.changes = _added(self.changes, np.bincount(fragment[is_change]))
        self.aborted = _added(self.aborted, np.bincount(fragment[is_change & (decided.status == ABORTED)]))


def _added(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    found = longer.copy()
    found[: len(shorter)] += shorter
    return found


def _at(numbers: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0 behind the end."""
    found: npt.NDArray[np.int64] = np.append(numbers, 0)[np.minimum(places, len(numbers))]
    return found


def _as_transactions(
    path: str, rows: pa.RecordBatch, decided: StatusColumns, fragments: _FragmentSums
) -> pa.RecordBatch:
    fragment, count = rows.column("unit").to_numpy() + 1, rows.num_rows
    columns = {
        "xid": decided.top_xid,
        "kind": pa.repeat(pa.scalar("ordinary"), count),
        "fate": status_names(decided.status),
        "commit_lsn": decided.commit_lsn,
        "commit_time": _times(decided.commit_ts),
        "changes": pa.array(_at(fragments.changes, fragment)),
        "aborted_changes": pa.array(_at(fragments.aborted, fragment)),
        "bytes": pa.array(_at(fragments.sizes, fragment)),
        "gid": pa.nulls(count, pa.string()),
        "origin": rows.column("origin"),
        "file": pa.repeat(pa.scalar(path), count),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in TRANSACTIONS.names], schema=TRANSACTIONS)


def own_transactions(found: Inspection) -> pa.Table:
    """TRANSACTIONS that are streamed, prepared, go from one file to another, or whose end is not there."""
    outcomes = [*found.assembled.ended, *found.assembled.open]
    return pa.Table.from_pylist([_own_transaction(found, outcome) for outcome in outcomes], TRANSACTIONS)


def _own_transaction(found: Inspection, outcome: Outcome) -> dict[str, object]:
    told = transaction_report(found, outcome)
    commit_ts = outcome.commit_ts
    return {
        "xid": outcome.xid,
        "kind": kind_of_transaction(outcome),
        "fate": outcome.status.value,
        "commit_lsn": outcome.commit_lsn,
        "commit_time": None if commit_ts is None else commit_ts + POSTGRES_EPOCH_MICROSECONDS,
        "changes": told.changes,
        "aborted_changes": sum(
            found.total.own_fragments.get(fragment, FragmentTotals()).aborted for fragment in outcome.fragments
        ),
        "bytes": told.size,
        "gid": outcome.gid,
        "origin": outcome.origin,
        "file": told.file or None,
    }


def named_file(path: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What can't be typed says which file it is in, not which number."""
    try:
        yield from batches
    except ArchiveError as error:
        said = str(error)
        raise ArchiveError(said if said.startswith(path) else f"{path}: {said}") from None
