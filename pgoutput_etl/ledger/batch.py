"""A batch as recorded in the ledger: its files, the state before it, and the resulting tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from pgoutput_etl.errors import RunError
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.landing.fingerprint import FilePart, FileStatus
from pgoutput_etl.ledger.tables import erasure_of
from pgoutput_etl.protocol.messages import Type
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.schema.diff import SchemaChange
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.transactions.outcome import FragmentId


def applied(last: Batch | None, source: str) -> Batch:
    """The last batch. Raises RunError if none has been applied yet."""
    if last is None or (last.state is None and not last.tables):
        raise RunError(f"no batch of {source} has been applied", next_job=("apply",))
    return last


@dataclass(frozen=True, slots=True)
class Batch:
    """A run's unit of work: files by number, and the state before it. resumed: an earlier run began the batch.

    ledger_id distinguishes this ledger from one that was lost and started over. work: the request, as JSON, for a batch
    that reads no new files. since: the batch that last reassembled the whole archive; rows of earlier batches about
    files, relations, types, and transactions don't count. settings: the configuration's when the batch began
    (target_plan.settings_of); None in an older ledger.
    """

    ledger_id: str
    number: int
    files: dict[int, FilePart]
    resumed: bool
    state: dict[str, Any] | None
    tables: dict[int, TableState]
    last_commit_lsn: int
    work: str | None = None
    since: int = 0
    settings: str | None = None

    @classmethod
    def after(cls, last: Batch | None, files: dict[int, FilePart]) -> Batch:
        if last is None:
            return cls(uuid4().hex, 1, files, False, None, {}, 0)
        return replace(last, number=last.number + 1, files=files, resumed=False, work=None, settings=None)

    @classmethod
    def next(cls, last: Batch | None) -> Batch:
        """The batch to work on: the unfinished one, or a new one after the last."""
        return last if last is not None and last.resumed else cls.after(last, {})

    def with_order(self, settings: str, work: str | None = None) -> Batch:
        """The batch with everything that a run needs to finish it. A resumed batch keeps its original values."""
        return self if self.resumed else replace(self, work=work, settings=settings)

    @property
    def erasure(self) -> str | None:
        """The reference of the erasure request that the batch carries out; None for other batches."""
        order = erasure_of(self.work)
        return None if order is None else str(order["reference"])

    @property
    def to_read(self) -> dict[int, FilePart]:
        return {number: file for number, file in self.files.items() if file.status == FileStatus.READ.value}

    @property
    def unread(self) -> dict[int, frozenset[int] | None]:
        """The files that are not read although they have a place in the order. By number: the OIDs of the relations
        that may depend on the file, or None for any relation."""
        return {n: file.relations for n, file in self.files.items() if file.status == FileStatus.UNREADABLE.value}

    @property
    def paths(self) -> dict[int, str]:
        return {number: file.path for number, file in self.to_read.items()}

    @property
    def size(self) -> int:
        """Bytes to read, as stored; for the remainder of a partly read file, decompressed bytes."""
        return sum(f.consumed - f.offset if f.offset else f.size for f in self.to_read.values())

    @property
    def first_file(self) -> int:
        return min(self.files)


@dataclass(frozen=True, slots=True)
class PriorState:
    """The ledger's relations, types, and open transactions before a batch."""

    relation_entries: int
    types: dict[int, Type]
    open_fragments: list[FragmentId]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Everything that a batch writes to the ledger.

    tables: results of all tables in the batch's plan. schema_changes: each with the position of the first row after it.
    accounts: bytes per file and transaction status.
    """

    rows: MessageRows
    prior: PriorState
    scans: Mapping[int, FileScan]
    tables: list[TableState]
    schema_changes: list[tuple[TableState, CommitPosition | None, SchemaChange]]
    accounts: Mapping[int, Mapping[str, int]]
