"""A batch as the ledger records it: its files, the state before it and its tables' results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.landing.fingerprint import FilePart, FileStatus
from pgoutput_etl.protocol.messages import Type
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.schema.diff import SchemaChange
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.transactions.outcome import FragmentId


@dataclass(frozen=True, slots=True)
class Batch:
    """What one run applies: files by number, and what was known before it. resumed: an earlier run began it.

    ledger_id tells this ledger's batches from those of another one, should a ledger be lost and begun anew. backfill:
    what is done again, as JSON, in a batch that reads no new files. since: the batch from which on the ledger's rows
    count about files, relations, types and transactions: then the whole archive was assembled anew. settings: of the
    configuration that it was begun with (batch_plan.settings_of); None in a ledger that is older.
    """

    ledger_id: str
    number: int
    files: dict[int, FilePart]
    resumed: bool
    state: dict[str, Any] | None
    tables: dict[int, TableState]
    last_commit_lsn: int
    backfill: str | None = None
    since: int = 0
    settings: str | None = None

    @classmethod
    def after(cls, last: Batch | None, files: dict[int, FilePart]) -> Batch:
        if last is None:
            return cls(uuid4().hex, 1, files, False, None, {}, 0)
        lsn = last.last_commit_lsn
        return cls(last.ledger_id, last.number + 1, files, False, last.state, last.tables, lsn, since=last.since)

    @staticmethod
    def number_of_next(last: Batch | None) -> int:
        """Of the batch that a run would be at work on: that of a run that died, else a new one."""
        return 1 if last is None else last.number + (not last.resumed)

    @property
    def to_read(self) -> dict[int, FilePart]:
        return {number: file for number, file in self.files.items() if file.status == FileStatus.READ.value}

    @property
    def paths(self) -> dict[int, str]:
        return {number: file.path for number, file in self.to_read.items()}

    @property
    def size(self) -> int:
        """Bytes as they are on storage; decompressed, of files that went on."""
        return sum(f.consumed - f.offset if f.offset else f.size for f in self.to_read.values())

    @property
    def first_file(self) -> int:
        return min(self.files)


@dataclass(frozen=True, slots=True)
class PriorState:
    """What was in the ledger before a batch."""

    relation_entries: int
    types: dict[int, Type]
    open_units: list[FragmentId]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a batch leaves to the ledger.

    tables: those that were looked at. schema_changes: what was changed of them, with the place of the first row that
    shows it. accounts: bytes per file and fate.
    """

    rows: MessageRows
    prior: PriorState
    scans: Mapping[int, FileScan]
    tables: list[TableState]
    schema_changes: list[tuple[TableState, CommitPosition | None, SchemaChange]]
    accounts: Mapping[int, Mapping[str, int]]
