"""A snapshot's order, as stored in its batch's row in the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field

from pgoutput_etl.postgres.catalog import relation_of, relation_row
from pgoutput_etl.protocol.messages import Relation, Type
from pgoutput_etl.targets.plan import KeyRanges


@dataclass(frozen=True, slots=True)
class Repair:
    """The repair of one table. version: its Delta version in the ledger's last batch when it was compared. ranges: key
    ranges that differ, whose rows are staged; without ranges, only the staged rows and deletes are applied. is_whole:
    the table equals the server's afterwards."""

    version: int
    ranges: KeyRanges
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class UnfinishedLoad:
    """A load with more batches to come. tables: its patterns. since: the LSN of its first batch; a run that continues
    the load has later LSNs."""

    tables: tuple[str, ...]
    since: int


@dataclass(frozen=True, slots=True)
class SnapshotOrder:
    """The batch's work, as stored in its row in the ledger.

    lsn: the rows include all commits before it. time: microseconds since 2000-01-01 UTC. staged: the path of the rows
    until the batch is done. known: OIDs of all tables on the server, if it publishes every table that is created later;
    otherwise None. repairs: by OID, if tables are repaired rather than replaced. partitions: those on the server, by
    the root's OID. unfinished: None in the last batch of a load.
    """

    lsn: int
    time: int | None
    staged: str
    relations: tuple[Relation, ...]
    types: tuple[Type, ...] = ()
    known: frozenset[int] | None = None
    repairs: Mapping[int, Repair] | None = None
    partitions: Mapping[int, tuple[Relation, ...]] = field(default_factory=dict)
    unfinished: UnfinishedLoad | None = None

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
            "repairs": None if self.repairs is None else {o: [*astuple(r)] for o, r in self.repairs.items()},
            "unfinished": None if self.unfinished is None else asdict(self.unfinished),
        }
        return json.dumps({"snapshot": fields})

    @classmethod
    def from_json(cls, text: str) -> SnapshotOrder:
        fields = json.loads(text)["snapshot"]
        relations = tuple(relation_of(row) for row in fields["relations"])
        types = tuple(Type(None, *row) for row in fields["types"])
        known = fields.get("known")  # missing in older ledgers
        tables = None if known is None else frozenset(known)
        repairs = fields.get("repairs")
        if repairs is not None:
            repairs = {int(oid): Repair(at, _ranges(ranges), *rest) for oid, (at, ranges, *rest) in repairs.items()}
        described = fields.get("partitions") or {}  # missing in older ledgers, too
        partitions = {int(root): tuple(map(relation_of, of_root)) for root, of_root in described.items()}
        load = fields.get("unfinished")
        unfinished = None if load is None else UnfinishedLoad(tuple(load["tables"]), load["since"])
        of_tables = (relations, types, tables, repairs, partitions)
        return cls(fields["lsn"], fields["time"], fields["staged"], *of_tables, unfinished)


def _ranges(stored: list[list[int]] | None) -> KeyRanges:
    return None if stored is None else tuple((least, greatest) for least, greatest in stored)
