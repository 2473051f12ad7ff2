"""The report of an inspected archive as frozen dataclasses."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from pgoutput_etl.console import summary_json
from pgoutput_etl.exit_codes import quarantine_code


@dataclass(frozen=True, slots=True)
class FileReport:
    """status: read, duplicate (same content as another file), left (still being written or compressed), or unreadable.
    size: on storage; content_bytes: decompressed. reconnections: how often the server restarted from an earlier
    point."""

    path: str
    status: str
    size: int
    content_bytes: int | None = None
    framing: str | None = None
    messages: dict[str, int] = field(default_factory=dict)
    first_lsn: str | None = None
    last_lsn: str | None = None
    first_commit_lsn: str | None = None
    last_commit_lsn: str | None = None
    reconnections: int = 0
    tail: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionReport:
    """kind: ordinary, streamed, or prepared. size: bytes. commit_lsn, commit_time: None without a Commit message."""

    xid: int | None
    kind: str
    fate: str
    changes: int
    size: int
    gid: str | None
    file: str
    commit_lsn: str | None
    commit_time: str | None
    aborted_subtransactions: int = 0


@dataclass(frozen=True, slots=True)
class ColumnReport:
    name: str
    type: str
    is_key: bool


@dataclass(frozen=True, slots=True)
class VersionReport:
    """A relation's description, valid from message `ordinal` of `file` on. streamed: within a streamed transaction."""

    schema: str
    table: str
    replica_identity: str
    columns: tuple[ColumnReport, ...]
    file: str
    ordinal: int
    streamed: bool


@dataclass(frozen=True, slots=True)
class RelationReport:
    """committed: changes by kind. others: changes that were not committed, by status."""

    oid: int
    schema: str | None
    table: str | None
    versions: tuple[VersionReport, ...]
    committed: dict[str, int]
    others: dict[str, int]


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """sizes: committed transactions by their number of changes, such as "10-99"."""

    files: tuple[FileReport, ...]
    bytes: int
    content_bytes: int
    framings: tuple[str, ...]
    messages: dict[str, int]
    protocol: str
    server: str
    settings: dict[str, dict[str, int]]
    first_lsn: str | None
    last_lsn: str | None
    first_commit_lsn: str | None
    last_commit_lsn: str | None
    first_commit_time: str | None
    last_commit_time: str | None
    transactions: dict[str, int]
    unknown_prepared: int
    sizes: dict[str, int]
    biggest: tuple[TransactionReport, ...]
    open: tuple[TransactionReport, ...]
    relations: tuple[RelationReport, ...]
    types: dict[str, str]
    origins: dict[str, int]
    prefixes: dict[str, dict[str, int]]
    accounts: dict[str, int]
    damages: tuple[str, ...]
    unreadable: tuple[str, ...]
    gaps: tuple[str, ...]
    remarks: tuple[str, ...]
    is_damaged: bool

    @property
    def exit_code(self) -> int:
        return quarantine_code(self.is_damaged)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return summary_json(self)
