"""Applies an archive in memory, one change after another: the reference that every faster path must match.

It needs neither Spark nor Delta, and keeps every row of every table. Use it in tests, and for small archives in
notebooks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby, pairwise
from typing import Any

import pyarrow as pa

from pgoutput_etl.changes.bag import Bag, Values, may_be_rows, value_of
from pgoutput_etl.changes.events import INSERTED, MOVED_IN, ROW_SCHEMA, events
from pgoutput_etl.changes.key_chains import PRESUMING, not_unique
from pgoutput_etl.changes.key_exchanges import without_exchanges
from pgoutput_etl.errors import SequenceError, TableError
from pgoutput_etl.landing.fingerprint import KnownContents, ScanTask
from pgoutput_etl.landing.incremental_scan import scan_part
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.message_row import CHANGE_TAGS, LOGICAL_TAG
from pgoutput_etl.scan.request import ScanResult
from pgoutput_etl.schema.column_changes import ChangedAt, changed_at, with_changes
from pgoutput_etl.schema.column_matching import Declared
from pgoutput_etl.schema.declarations import Declarations
from pgoutput_etl.schema.diff import Lineage
from pgoutput_etl.schema.migration import Retired, SchemaMigration, converted, migration_to, next_version
from pgoutput_etl.schema.relation_history import CommitPosition, RelationSpan, RelationVersions
from pgoutput_etl.schema.removal import Removal, removal_of, removed_from
from pgoutput_etl.schema.table_shape import NEVER, UNREPRESENTABLE, TableShape, table_shape
from pgoutput_etl.targets.mismatches import Mismatches, added
from pgoutput_etl.targets.modes import METADATA_COLUMNS
from pgoutput_etl.targets.moves import with_moves, with_removals
from pgoutput_etl.targets.plan import TableChanges
from pgoutput_etl.targets.planner import Name, name_holders
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.cutoff import Cutoff, find_cutoffs
from pgoutput_etl.transactions.logical_messages import LOGICAL_SCHEMA, decoded
from pgoutput_etl.transactions.origin_filter import ANY, Origins
from pgoutput_etl.transactions.outcome import FragmentId, Outcome, TransactionStatus, control_rows
from pgoutput_etl.transactions.statistics import BatchStatistics
from pgoutput_etl.types import UserTypes

Row = dict[str, Any]

_Key = tuple[Any, ...]


@dataclass(slots=True)
class ReplayedTable:
    """A table at the end of the archive. rows: Python values as converted by Arrow, with the Delta table's column
    names. mismatches: since its last truncate."""

    shape: TableShape
    rows: list[Row]
    mismatches: Mismatches | None


@dataclass(frozen=True, slots=True)
class ReplayedSpan:
    """Rows under one shape of their table. migration: converts the rows of earlier spans; None if nothing changes.
    removal: of rows that leave at that point."""

    shape: TableShape
    migration: SchemaMigration | None
    rows: list[Row]
    removal: Removal | None = None


@dataclass(slots=True)
class Replay:
    """The message rows of all files, in order, with the assembly that decides the status of their transactions."""

    assembly: Assembly = field(default_factory=Assembly)
    salvages: bool = False  # continue after unreadable bytes
    origins: Origins = field(default=ANY, kw_only=True)  # of the transactions to apply
    _messages: list[Row] = field(default_factory=list)
    _files: int = 0

    def add_file(self, path: str, content: bytes) -> FileScan:
        """Adds the next file in order. Raises ArchiveError with the file's path."""
        task = ScanTask(self._files, len(content), leaves_tail=False)
        return self.add_scanned(path, scan_part(path, content, task, KnownContents({}), salvages=self.salvages))

    def add_scanned(self, path: str, scan: ScanResult) -> FileScan:
        """Adds a scanned file or part of a file. File numbers must increase."""
        self._files = scan.summary.file + 1
        self.assembly.origins = self.origins
        rows = [row for batch in scan.batches for row in batch.to_pylist()]
        try:
            self.assembly.add_file(scan.summary, control_rows(scan.batches))
        except SequenceError as error:
            raise SequenceError(f"{path}: {error}") from None
        self.assembly.replace_streams((row["top_xid"], (row["file"], row["unit"])) for row in rows if row["tag"] == "C")
        self._messages += rows
        return scan.summary

    def committed(self) -> Iterator[Row]:
        """The committed changes in the order to apply them, each with its commit and `scope`."""
        changes = (row for row in self._messages if row["tag"] in CHANGE_TAGS)
        yield from sorted(self._committed(changes), key=lambda r: (r["commit_lsn"], r["file"], r["ordinal"]))

    def _committed(self, rows: Iterable[Row]) -> Iterator[Row]:
        statuses = fragment_outcomes(self.assembly)
        watermarks = {(mark.file, mark.epoch): mark.lsn for mark in self.assembly.watermarks}
        for row in rows:
            outcome = statuses.get((row["file"], row["unit"]))
            if outcome is None:
                is_new = row["commit_lsn"] > watermarks.get((row["file"], row["stretch"]), -1)
                if is_new and self.origins.accepts(row["origin"]):
                    yield {**row, "scope": None}
            elif outcome.status is TransactionStatus.COMMITTED and row["xid"] not in outcome.aborted_subxids:
                committed = {"commit_lsn": outcome.commit_lsn, "commit_ts": outcome.commit_ts, "top_xid": outcome.xid}
                yield {**row, **committed, "scope": outcome.scope}

    def logical_messages(self) -> list[Row]:
        """The committed logical decoding Messages, in archive order, with the columns of the ledger's `messages`.
        commit_ts: microseconds since 2000-01-01 UTC."""
        outcomes = fragment_outcomes(self.assembly)
        messages, identities, transactional = [], set(), []
        for row in (row for row in self._messages if row["tag"] == LOGICAL_TAG):
            outcome = outcomes.get((row["file"], row["unit"]))
            message = decoded(row["body"], row["unit"], row["xid"], None if outcome is None else outcome.scope)
            fields = {name: getattr(message, name) for name in ("prefix", "content", "lsn", "transactional")}
            row = {**row, **fields, "xid": message.xid}
            if message.transactional:
                transactional.append(row)
            elif (identity := (message.lsn, message.prefix, message.content)) not in identities:
                identities.add(identity)
                messages.append({**row, "commit_lsn": None, "commit_ts": None, "top_xid": None})
        messages += self._committed(transactional)
        messages.sort(key=lambda r: (r["file"], r["ordinal"]))
        return [{name: row["top_xid" if name == "xid" else name] for name in LOGICAL_SCHEMA.names} for row in messages]

    def cutoffs(self) -> dict[int, Cutoff]:
        """The cutoffs, by relation OID."""
        if not self.assembly.was_damaged:
            return {}
        outcomes = fragment_outcomes(self.assembly)
        quarantined: dict[int, int] = {}
        changes = [row for row in self._messages if row["tag"] in CHANGE_TAGS]
        for row in changes:
            outcome = outcomes.get((row["file"], row["unit"]))
            is_aborted = outcome is not None and row["xid"] in outcome.aborted_subxids
            if outcome is not None and outcome.status is TransactionStatus.QUARANTINED and not is_aborted:
                lsn = outcome.commit_lsn or 0
                quarantined[row["relation"]] = min(quarantined.get(row["relation"], lsn), lsn)
        statistics = BatchStatistics(changed={row["relation"] for row in changes}, quarantined_from=quarantined)
        return find_cutoffs(self.assembly, statistics, ())

    def tables(
        self,
        keys: Mapping[str, tuple[str, ...]] | None = None,
        declared: Mapping[str, Declared] | None = None,
        types: Mapping[str, str] | None = None,
        until: int | None = None,
    ) -> dict[int, ReplayedTable]:
        """The tables, by OID. keys: columns by schema.table, for tables whose key the archive doesn't contain.
        declared: the configured column lineage, by schema.table. types: the configured types. until: LSN of the last
        commit to apply. Raises TableError for a schema change that can't be interpreted, and for a configured key that
        isn't unique."""
        by_relation = self.rows_by_relation(until)
        return {oid: self.table(oid, rows, keys, declared, types, until) for oid, rows in by_relation.items()}

    def table(
        self,
        oid: int,
        rows: list[Row],
        keys: Mapping[str, tuple[str, ...]] | None = None,
        declared: Mapping[str, Declared] | None = None,
        types: Mapping[str, str] | None = None,
        until: int | None = None,
    ) -> ReplayedTable:
        """rows: the table's changes in order."""
        last_truncate = max((i for i, row in enumerate(rows) if row["tag"] == "T"), default=0)
        table: KeyedRows | BagOfRows | None = None
        mismatches: Mismatches | None = None
        for span in self.spans(oid, rows[last_truncate:], keys or {}, declared or {}, types or {}, until):
            migrated = rows_under(span.shape)
            if table is not None and span.migration is not None:
                for event in migrated_rows(table.events(), span.migration):
                    migrated.put(event)
            table = migrated if span.removal is None else without_removed(migrated, span.removal)
            apply_rows(table, span.rows)
            mismatches = added(mismatches, table.mismatches)
        assert table is not None
        return ReplayedTable(table.shape, [target_row(event, table.shape) for event in table.events()], mismatches)

    def name_holders(self) -> dict[Name, int]:
        """The OID of the table that holds each name, as in targets/planner.py."""
        last = {row["relation"]: row for row in self.committed()}
        versions = self.assembly.relations.versions
        return name_holders({}, {oid: self._changes(oid, [row], versions(oid)) for oid, row in last.items()})

    def rows_by_relation(self, until: int | None = None) -> dict[int, list[Row]]:
        """Each table's changes to apply, in order. until: LSN of the last commit to apply."""
        by_relation: dict[int, list[Row]] = {}
        cutoffs = self.cutoffs()
        for row in self.committed():
            cutoff = cutoffs.get(row["relation"])
            is_before = until is None or row["commit_lsn"] <= until
            if is_before and (cutoff is None or row["commit_lsn"] < cutoff.lsn):
                by_relation.setdefault(row["relation"], []).append(row)
        return by_relation

    def spans(
        self,
        oid: int,
        rows: list[Row],
        keys: Mapping[str, tuple[str, ...]],
        declared: Mapping[str, Declared],
        types: Mapping[str, str],
        until: int | None = None,
    ) -> Iterator[ReplayedSpan]:
        """A table's rows, split where its columns change."""
        versions = self.assembly.relations.versions(oid)
        user_types = UserTypes.of(self.assembly.types.values(), types)
        runs = self._changes(oid, rows, versions, until).runs
        name = runs[-1].relation.full_name
        declarations = Declarations(declared.get(name, {}))
        declarations.foresee([run.relation.columns for run in runs])
        before: TableShape | None = None
        retired: Retired = ()
        changed: ChangedAt = {}
        ends = [bisect_left(rows, run.start, key=_position_of) for run in runs[1:]]
        for run, (first, end) in zip(runs, pairwise((0, *ends, len(rows))), strict=True):
            relation, entry, own = run.relation, run.removal, rows[first:end]
            lineage: Lineage | None = None
            if before is not None:
                lineage, retired = next_version(before.relation, retired, relation, declarations)
                changed = changed_at(changed, before.relation, relation, lineage, run.start[0])
            all_columns = frozenset(range(len(relation.columns)))
            partitions = self.assembly.relations.partitions(oid, run.start[1:])
            shape = table_shape(relation, versions, keys.get(name), all_columns, True, user_types, retired, partitions)
            shape = with_changes(shape, changed)
            if any(row["tag"] in ("U", "D") for row in own):
                shape.check_partitions()
            migration = None if before is None or lineage is None else migration_to(before.columns, shape, lineage)
            removal = None if entry is None else removal_of(entry, relation, shape.columns, {})
            yield ReplayedSpan(shape, migration, own, removal if removal and removal.partitions else None)
            before = shape

    def _changes(self, oid: int, rows: list[Row], versions: RelationVersions, until: int | None = None) -> TableChanges:
        """The versions of the rows, plus moves and removals, which have no rows."""
        last = self.assembly.last_commit_lsn if until is None else until
        history, cutoffs = self.assembly.relations, self.cutoffs()
        versions_of_rows = groupby(rows, lambda row: _relation_of(row, versions))
        runs = tuple(RelationSpan(_position_of(next(run)), relation) for relation, run in versions_of_rows)
        changes = {oid: TableChanges(oid, runs=runs, last_row=_position_of(rows[-1]))}
        changes = with_moves(history, changes, {}, last, cutoffs)
        return with_removals(history, changes, {}, last, cutoffs)[oid]


def _position_of(row: Row) -> CommitPosition:
    return row["commit_lsn"], row["file"], row["ordinal"]


def _relation_of(row: Row, versions: RelationVersions) -> Relation:
    number = versions.at((row["file"], row["ordinal"]), row["scope"])
    if number is None:
        raise SequenceError(
            f"no Relation message describes OID {versions.oid} where it has changes: the archive begins after the "
            "server sent it"
        )
    return versions.relations[number]


def rows_under(shape: TableShape) -> KeyedRows | BagOfRows:
    return BagOfRows(shape) if shape.is_bag else KeyedRows(shape)


def apply_rows(table: KeyedRows | BagOfRows, rows: Iterable[Row]) -> None:
    for is_truncate, run in groupby(rows, key=lambda row: row["tag"] == "T"):
        if is_truncate:
            table.clear()
            continue
        changes = without_exchanges(pa.RecordBatch.from_pylist(list(run), ROW_SCHEMA), table.shape)
        for event in events(changes, table.shape).to_pylist():
            table.apply(event | {"_unrep": _texts(event)})


def _texts(row: Row) -> dict[str, str | None]:
    """By column name, PostgreSQL's text of a value that the target type can't represent; None if unknown."""
    return {entry["key"]: entry["value"] for entry in row["_unrep"] or ()}


def fragment_outcomes(assembly: Assembly) -> dict[FragmentId, Outcome]:
    """The outcome of every fragment that has one."""
    return {
        fragment: outcome
        for outcome in (*assembly.outcomes, *assembly.open_outcomes())
        for fragment in outcome.fragments
    }


class KeyedRows:
    """A table with a key. by_key: the event that wrote each row, with unchanged values filled in. last: commit LSN and
    xid of each key's last event. mismatches: of the events applied so far."""

    def __init__(self, shape: TableShape) -> None:
        self.shape = shape
        self.by_key: dict[_Key, Row] = {}
        self.moving: Row | None = None
        self.last: dict[_Key, tuple[int, int | None]] = {}
        self.mismatches: Mismatches | None = None

    def apply(self, event: Row) -> None:
        key = self.key(event)
        self.mismatches = added(self.mismatches, self._mismatch(key, event))
        self.last[key] = (event["_lsn"], event["_xid"])
        match event["_op"]:
            case "D":
                self.by_key.pop(key, None)
            case "X":
                self.moving = self.by_key.pop(key, None)
            case "V":
                self.by_key[key] = self._filled(event, self.moving)
            case _:
                self.by_key[key] = self._filled(event, self.by_key.get(key))

    def _mismatch(self, key: _Key, event: Row) -> Mismatches | None:
        op, is_there = event["_op"], key in self.by_key
        is_together = event["_xid"] is not None and self.last.get(key) == (event["_lsn"], event["_xid"])
        is_twice = op == INSERTED and is_there and is_together
        if is_twice and not self.shape.has_unique_key:
            raise TableError(not_unique(self.shape, event["_xid"], format_lsn(event["_lsn"])))
        if not is_there and op in PRESUMING:
            return Mismatches(1, 0, event["_lsn"], event["_xid"])
        if is_twice or (is_there and op == MOVED_IN):
            return Mismatches(0, 1, event["_lsn"], event["_xid"])
        return None

    def key(self, event: Row) -> _Key:
        texts = event["_unrep"]
        columns = self.shape.columns
        return tuple(x for i in self.shape.key for x in (_key_value(event[f"c{i}"]), texts.get(columns[i].name)))

    def _filled(self, event: Row, base: Row | None) -> Row:
        """Fills in unchanged values; if the archive never contained the whole row, they are unknown."""
        texts = dict(event["_unrep"])
        filled = dict(event)
        for i in self.shape.toast:
            if event[f"u{i}"]:
                name = self.shape.columns[i].name
                filled[f"c{i}"] = None if base is None else base[f"c{i}"]
                base_texts = {name: None} if base is None else base["_unrep"]
                if name in base_texts:
                    texts[name] = base_texts[name]
        return filled | {"_unrep": texts}

    def clear(self) -> None:
        self.by_key.clear()
        self.last.clear()
        self.mismatches = None

    def put(self, event: Row) -> None:
        self.by_key[self.key(event)] = event

    def events(self) -> Iterable[Row]:
        return self.by_key.values()


def _key_value(value: Any) -> Any:
    """Equal for values that PostgreSQL's unique indexes consider equal: NaN equals NaN, and -0 equals 0. An hstore's
    pairs are dictionaries, in hstore's order."""
    if isinstance(value, dict):
        return tuple(value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_key_value, value))
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


class BagOfRows:
    """A table without a key: a DELETE removes one of several equal rows. A value that was never sent is not NULL."""

    def __init__(self, shape: TableShape) -> None:
        self.shape = shape
        self.live = [(i, column.name) for i, column in enumerate(shape.columns) if not column.retired]
        changed = shape.changed_at or [NEVER] * len(shape.columns)
        columns = [shape.columns[i] for i, _ in self.live]
        self.rows: Bag[Row] = Bag([changed[i] for i, _ in self.live], may_be_rows(columns))
        self.not_found: Mismatches | None = None
        self.found_stale: list[tuple[int, Mismatches]] = []  # each with the LSN up to which rows are proven wrong

    @property
    def mismatches(self) -> Mismatches | None:
        """The mismatches of the events applied so far. Finding a stale row is a mismatch only if rows remain that it
        proves wrong."""
        proven = max((lsn for lsn, _ in self.found_stale), default=NEVER)
        found = self.found_stale if self.rows.has_any_until(proven) else []
        return reduce(added, (mismatches for _, mismatches in found), self.not_found)

    def apply(self, event: Row) -> None:
        if event["_op"] == INSERTED:
            self.put(event)
            return
        lsn = event["_lsn"]
        taken, mismatch = self.rows.take(self._values(event), lsn), Mismatches(1, 0, lsn, event["_xid"])
        if taken is None:
            self.not_found = added(self.not_found, mismatch)
        elif taken.proven != NEVER:
            self.found_stale.append((taken.proven, mismatch))

    def _values(self, event: Row) -> Values:
        return tuple(value_of(event[f"c{i}"], event["_unrep"], name) for i, name in self.live)

    def put(self, event: Row) -> None:
        self.rows.add(self._values(event), event["_lsn"], event)

    def clear(self) -> None:
        self.rows.equal.clear()
        self.not_found = None
        self.found_stale.clear()

    def events(self) -> Iterable[Row]:
        return [event for equal in self.rows.equal.values() for _, event in equal]


def migrated_rows(events: Iterable[Row], migration: SchemaMigration) -> list[Row]:
    """Converts existing rows to the next shape of their table."""
    rows = list(events)
    fields = [(f"c{i}", column.type.arrow) for i, column in enumerate(migration.before)]
    entries = [{**row, "_unrep": [{"key": k, "value": v} for k, v in row["_unrep"].items()]} for row in rows]
    metadata = ("_lsn", "_ts", "_xid")
    batch = pa.RecordBatch.from_pylist(entries, pa.schema([*fields, ("_unrep", UNREPRESENTABLE)]))
    after = zip(rows, converted(batch, migration).to_pylist(), strict=True)
    return [{**row, "_unrep": _texts(row), **{name: old[name] for name in metadata}} for old, row in after]


def without_removed(table: KeyedRows | BagOfRows, removal: Removal) -> KeyedRows | BagOfRows:
    """The rows that remain when others leave with their partition."""
    left, is_gone = rows_under(table.shape), removed_from(removal)
    for event in table.events():
        if not is_gone({column.name: event[f"c{i}"] for i, column in enumerate(table.shape.columns)}, event["_unrep"]):
            left.put(event)
    return left


def target_row(event: Row, shape: TableShape) -> Row:
    """A row with the target's column names: the table's own columns, then the metadata columns."""
    row = {column.name: event[f"c{i}"] for i, column in enumerate(shape.columns)}
    metadata = (event["_lsn"], event["_ts"], event["_xid"], event["_unrep"] or None)
    return row | dict(zip(METADATA_COLUMNS, metadata, strict=True))
