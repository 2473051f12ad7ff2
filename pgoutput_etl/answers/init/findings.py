"""Facts about an archive that its configuration depends on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgoutput_etl.errors import TableError
from pgoutput_etl.inspection.archive import Inspection
from pgoutput_etl.landing.fingerprint import LandedFile
from pgoutput_etl.landing.known_files import natural_order
from pgoutput_etl.landing.sequence_gaps import is_consecutive, missing_numbers
from pgoutput_etl.protocol.messages import Relation, ReplicaIdentity
from pgoutput_etl.schema.partitions import are_full, check_identities, common_identity, of_columns, own_key
from pgoutput_etl.types import UserTypes, type_of

# Types whose values are texts, so that STRING represents them exactly.
_TEXT_TYPES = frozenset({"text", "varchar", "char", '"char"', "name", "citext", "xml", "uuid"})


@dataclass(frozen=True, slots=True)
class TableFindings:
    """The newest description of a table. key: names of its columns; empty without a key, or if it consists of every
    column (is_full: REPLICA IDENTITY FULL). as_text: names and types of columns that become STRING because Delta has no
    such type. problem: the reason why partitions' replica identities would hold the table. common: in that case, the
    columns that the old tuples of all partitions have."""

    schema: str
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    is_full: bool
    as_text: tuple[tuple[str, str], ...]
    problem: str | None = None
    common: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class ArchiveFindings:
    """files: number of files in the landing folder; inspected: number of files that were read. unreadable: one line per
    file. is_numbered: consecutive names prove that no file is missing. missing: one line per gap in the numbers."""

    files: int
    inspected: int
    framings: tuple[str, ...]
    tables: tuple[TableFindings, ...]
    is_numbered: bool
    missing: tuple[str, ...]
    unreadable: tuple[str, ...]


def sample(landed: Sequence[LandedFile], most_bytes: int) -> list[LandedFile]:
    """The newest and the first files, alternately, up to `most_bytes` in total, but at least one of each. Servers
    describe tables at the start of a connection, and the newest files show the current columns."""
    ordered = sorted(landed, key=lambda file: natural_order(file.path))
    chosen: list[LandedFile] = []
    while ordered:
        file = ordered.pop(-1 if len(chosen) % 2 == 0 else 0)
        if len(chosen) >= 2 and sum(f.size for f in chosen) + file.size > most_bytes:
            break
        chosen.append(file)
    return chosen


def archive_findings(landed: Iterable[LandedFile], inspection: Inspection) -> ArchiveFindings:
    """landed: all files. inspection: of some or all of them."""
    paths = sorted((file.path for file in landed), key=natural_order)
    assembly = inspection.assembled.assembly
    user_types = UserTypes.of(assembly.types.values(), {})
    roots = assembly.relations.roots()
    tables = {}  # the newer of two OIDs with the same name
    for relation in filter(None, map(assembly.relations.newest, sorted(assembly.relations.oids()))):
        if relation not in roots:
            partitions = of_columns((p for p, root in roots.items() if root == relation), relation)
            tables[relation.namespace, relation.name] = described_table(relation, partitions, user_types)
    return ArchiveFindings(
        files=len(paths),
        inspected=len(inspection.landed),
        framings=tuple(sorted({scan.framing for scan in inspection.scans.values() if scan.messages})),
        tables=tuple(tables[name] for name in sorted(tables)),
        is_numbered=is_consecutive(paths),
        missing=tuple(line for _, line in missing_numbers(paths)),
        unreadable=tuple(inspection.errors.values()),
    )


def described_table(relation: Relation, partitions: Sequence[Relation], user_types: UserTypes) -> TableFindings:
    """partitions: those of the table, if it is a root."""
    key, problem = own_key(relation), None
    try:
        check_identities(relation, key, partitions)
    except TableError as error:
        problem = str(error)
    are_rows = are_full(partitions) and not key
    as_text = []
    for column in relation.columns:
        stored = type_of(column, user_types)
        if stored.stored_as == "string" and stored.name.partition("(")[0] not in _TEXT_TYPES:
            as_text.append((column.name, stored.name))
    return TableFindings(
        relation.namespace,
        relation.name,
        tuple(column.name for column in relation.columns),
        key,
        are_rows or relation.replica_identity is ReplicaIdentity.FULL,
        tuple(as_text),
        problem,
        common_identity(relation, partitions) if problem else (),
    )
