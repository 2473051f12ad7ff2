"""The options of the snapshot job, and the order that its batch stores in the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import ClassVar

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.identifiers import is_chosen
from pgoutput_etl.postgres.catalog import relation_of, relation_row
from pgoutput_etl.postgres.connection import check_url
from pgoutput_etl.protocol.messages import Relation, Type
from pgoutput_etl.targets.plan import KeyRanges


class RowFormat(Enum):
    """The format of files, by the option that names them."""

    CSV = "csv"
    BINARY = "copy"
    DUMP = "dump"


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """tables: shell patterns of schema.table, as for identifiers.is_chosen.

    jdbc: a server's URL. snapshot: the name of an exported snapshot as of `lsn`; without it the job exports one.
    files, format: files with the rows as of `lsn`. columns: of binary files. time: of `lsn`. catalog: a file with the
    result of postgres.catalog.QUERY. publications: the slot's; empty for all. connections: parallel ones to the server.
    slot: the receiver's. slot_lsn: the LSN that its creation returned. checks_only: print the checklist, load nothing.
    repair: write only the rows that differ.
    """

    tables: tuple[str, ...]
    lsn: int | None = None
    jdbc: str | None = None
    snapshot: str | None = None
    files: str | None = None
    format: RowFormat = RowFormat.CSV
    columns: tuple[str, ...] = ()
    time: datetime | None = None
    catalog: str | None = None
    publications: tuple[str, ...] = ()
    connections: int = 4
    slot: str | None = None
    slot_lsn: int | None = None
    checks_only: bool = False
    repair: bool = False
    allows_missing: ClassVar[bool] = False

    def check(self) -> None:
        """Raises ConfigError for options that are missing or exclude each other."""
        if (self.jdbc is None) == (self.files is None):
            raise ConfigError("expected one of --jdbc, --csv, --copy and --dump")
        if self.jdbc is not None:
            check_url(self.jdbc)
        if self.repair and (self.jdbc is None or self.snapshot is not None or self.checks_only):
            raise ConfigError(
                "--repair: expected --jdbc, without --snapshot, --lsn and --check: it compares tables itself"
            )
        if self.jdbc is not None and not self.checks_only and (self.snapshot is None) != (self.lsn is None):
            raise ConfigError(
                "--snapshot and --lsn: expected both, as CREATE_REPLICATION_SLOT returned them, or neither"
            )
        if self.files is not None and self.lsn is None:
            raise ConfigError("--lsn: expected the LSN at which the rows were taken, see docs/snapshot.md")
        if self.files is not None and self.snapshot is not None:
            raise ConfigError("--snapshot: expected only with --jdbc")
        if self.jdbc is not None and self.catalog is not None:
            raise ConfigError("--catalog: expected only with files; --jdbc queries the server")
        self._check_slot()
        if self.columns and self.format is not RowFormat.BINARY:
            raise ConfigError("--columns: expected only with --copy; other formats name their columns")
        if not 1 <= self.connections <= 64:
            raise ConfigError(f"--connections: expected 1 to 64, not {self.connections}")
        if not self.tables:
            raise ConfigError("--tables: expected one or more patterns of schema.table")

    def _check_slot(self) -> None:
        if self.checks_only and self.jdbc is None:
            raise ConfigError("--check: expected --jdbc, the server to check; --lsn is the LSN of files")
        if self.slot is not None and self.jdbc is None:
            raise ConfigError("--slot: expected only with --jdbc; with files, --slot-lsn tells where the slot began")
        if self.slot_lsn is not None and self.lsn is None:
            raise ConfigError("--slot-lsn: expected only with --lsn, with which it is compared")

    def wants(self, name: str) -> bool:
        """name: schema.table."""
        return is_chosen(name, self.tables)


class AutomaticRequest(SnapshotRequest):
    """Of tables that the server may have dropped: a pattern without a table is no error."""

    allows_missing: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Repair:
    """Of one table. version: Delta's, of the ledger's last batch when the table was compared. ranges: of the rows that
    differ."""

    version: int
    ranges: KeyRanges


@dataclass(frozen=True, slots=True)
class SnapshotOrder:
    """The batch's work, as its row in the ledger stores it.

    lsn: the rows include all commits before it. time: microseconds since 2000-01-01 UTC. staged: the path of the rows
    until the batch is done. known: OIDs of all tables that the server had, if it publishes every table that is created
    later; else None. repairs: by OID, if tables are repaired, not replaced. partitions: by the root's OID, on the
    server.
    """

    lsn: int
    time: int | None
    staged: str
    relations: tuple[Relation, ...]
    types: tuple[Type, ...] = ()
    known: frozenset[int] | None = None
    repairs: Mapping[int, Repair] | None = None
    partitions: Mapping[int, tuple[Relation, ...]] = field(default_factory=dict)

    @property
    def through(self) -> int:
        """The highest LSN of a commit that the rows can include."""
        return self.lsn - 1

    @property
    def oids(self) -> tuple[int, ...]:
        return tuple(relation.oid for relation in self.relations)

    def to_json(self) -> str:
        fields = {
            "lsn": self.lsn,
            "time": self.time,
            "staged": self.staged,
            "relations": [relation_row(relation) for relation in self.relations],
            "types": [[t.oid, t.namespace, t.name] for t in self.types],
            "known": None if self.known is None else sorted(self.known),
            "partitions": {root: list(map(relation_row, of_root)) for root, of_root in self.partitions.items()},
            "repairs": None if self.repairs is None else {o: [r.version, r.ranges] for o, r in self.repairs.items()},
        }
        return json.dumps({"snapshot": fields})

    @classmethod
    def from_json(cls, text: str) -> SnapshotOrder | None:
        """None if the text is another job's order."""
        fields = json.loads(text).get("snapshot")
        if fields is None:
            return None
        relations = tuple(relation_of(row) for row in fields["relations"])
        types = tuple(Type(None, *row) for row in fields["types"])
        known = fields.get("known")  # older ledgers have none
        tables = None if known is None else frozenset(known)
        repairs = fields.get("repairs")
        if repairs is not None:
            repairs = {int(oid): Repair(version, _ranges(ranges)) for oid, (version, ranges) in repairs.items()}
        described = fields.get("partitions") or {}  # older ledgers have none, too
        partitions = {int(root): tuple(map(relation_of, of_root)) for root, of_root in described.items()}
        return cls(fields["lsn"], fields["time"], fields["staged"], relations, types, tables, repairs, partitions)


def _ranges(stored: list[list[int]] | None) -> KeyRanges:
    return None if stored is None else tuple((least, greatest) for least, greatest in stored)
