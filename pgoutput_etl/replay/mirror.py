"""An archive applied in memory, one change after the other: the reference that everything faster has to equal.

No Spark, no Delta: for tests, and for a notebook with a file or two. It holds every row of every table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa

from pgoutput_etl.changes.events import INSERTED, ROW_SCHEMA, events
from pgoutput_etl.errors import SequenceError
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.fragment import ScanResult
from pgoutput_etl.scan.message_row import CHANGE_TAGS, LOGICAL_TAG
from pgoutput_etl.scan.scan_file import scan_file
from pgoutput_etl.schema.diff import Declared, Lineage
from pgoutput_etl.schema.migration import Retired, SchemaMigration, converted, migration_to, next_version
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.table_shape import UNREPRESENTABLE, TableShape, table_shape
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.cutoff import Cutoff, cutoffs_by_relation
from pgoutput_etl.transactions.logical_messages import LOGICAL_SCHEMA, decoded
from pgoutput_etl.transactions.origin_filter import ANY, Origins
from pgoutput_etl.transactions.outcome import FragmentId, Outcome, TransactionStatus, control_rows
from pgoutput_etl.types import UserTypes

Row = dict[str, Any]

_Key = tuple[Any, ...]


@dataclass(slots=True)
class ReplayedTable:
    """The rows at the end of the archive, as Arrow gives them to Python; `unrepresentable` as in the Delta table."""

    shape: TableShape
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class ReplayedSpan:
    """Rows that stood under one shape of their table. reshaping: what those from before go through; None for none."""

    shape: TableShape
    migration: SchemaMigration | None
    rows: list[Row]


@dataclass(slots=True)
class Replay:
    """What the files say, in order: `rows` of all messages with the outcome of their transactions."""

    assembly: Assembly = field(default_factory=Assembly)
    salvages: bool = False  # go on behind bytes that can't be read
    origins: Origins = field(default=ANY, kw_only=True)  # whose transactions are applied
    _messages: list[Row] = field(default_factory=list)
    _files: int = 0

    def add_file(self, path: str, content: bytes) -> FileScan:
        """The next file in order. Raises ArchiveError naming it."""
        return self.add_scanned(path, scan_file(path, self._files, content, salvages=self.salvages))

    def add_scanned(self, path: str, scanned: ScanResult) -> FileScan:
        """The same, of a file or a part of one; each has a number past that of the one before."""
        self._files = scanned.summary.file + 1
        self.assembly.origins = self.origins
        rows = [row for batch in scanned.batches for row in batch.to_pylist()]
        try:
            self.assembly.add_file(scanned.summary, control_rows(scanned.batches))
        except SequenceError as error:
            raise SequenceError(f"{path}: {error}") from None
        for row in rows:
            begun = self.assembly.streams_begun()
            if row["tag"] == "C" and (row["file"], row["unit"]) > begun.get(row["top_xid"], (row["file"], row["unit"])):
                self.assembly.replaced(row["top_xid"])
        self._messages += rows
        return scanned.summary

    def committed(self) -> Iterator[Row]:
        """The rows of changes that count, each with its commit and `scope`, in the order of applying them."""
        changes = (row for row in self._messages if row["tag"] in CHANGE_TAGS)
        yield from sorted(self._committed(changes), key=lambda r: (r["commit_lsn"], r["file"], r["ordinal"]))

    def _committed(self, rows: Iterable[Row]) -> Iterator[Row]:
        statuses = fragment_outcomes(self.assembly)
        marks = {(mark.file, mark.epoch): mark.lsn for mark in self.assembly.watermarks}
        for row in rows:
            outcome = statuses.get((row["file"], row["unit"]))
            if outcome is None:
                is_new = row["commit_lsn"] > marks.get((row["file"], row["stretch"]), -1)
                if is_new and self.origins.accepts(row["origin"]):
                    yield {**row, "scope": None}
            elif outcome.status is TransactionStatus.COMMITTED and row["xid"] not in outcome.aborted_subxids:
                committed = {"commit_lsn": outcome.commit_lsn, "commit_ts": outcome.commit_ts, "top_xid": outcome.xid}
                yield {**row, **committed, "scope": outcome.scope}

    def logical_messages(self) -> list[Row]:
        """The logical decoding Messages that count, as the ledger's `messages` has them, in the order in which they
        came. commit_ts: microseconds since 2000-01-01 UTC."""
        outcomes = fragment_outcomes(self.assembly)
        found, seen = [], set()
        of_transactions = []
        for row in self._messages:
            if row["tag"] != LOGICAL_TAG:
                continue
            outcome = outcomes.get((row["file"], row["unit"]))
            message = decoded(row["body"], row["unit"], row["xid"], None if outcome is None else outcome.scope)
            own = {name: getattr(message, name) for name in ("prefix", "content", "lsn", "transactional")}
            row = {**row, **own, "xid": message.xid}
            if message.transactional:
                of_transactions.append(row)
            elif (identity := (message.lsn, message.prefix, message.content)) not in seen:
                seen.add(identity)
                found.append({**row, "commit_lsn": None, "commit_ts": None, "top_xid": None})
        found += self._committed(of_transactions)
        found.sort(key=lambda r: (r["file"], r["ordinal"]))
        return [{name: row["top_xid" if name == "xid" else name] for name in LOGICAL_SCHEMA.names} for row in found]

    def cutoffs(self) -> dict[int, Cutoff]:
        """By relation: from which commit on it can't be applied to."""
        if not self.assembly.was_damaged:
            return {}
        outcomes = fragment_outcomes(self.assembly)
        own: dict[int, int] = {}
        changes = [row for row in self._messages if row["tag"] in CHANGE_TAGS]
        for row in changes:
            outcome = outcomes.get((row["file"], row["unit"]))
            is_aborted = outcome is not None and row["xid"] in outcome.aborted_subxids
            if outcome is not None and outcome.status is TransactionStatus.QUARANTINED and not is_aborted:
                lsn = outcome.commit_lsn or 0
                own[row["relation"]] = min(own.get(row["relation"], lsn), lsn)
        return cutoffs_by_relation(self.assembly, own, {row["relation"] for row in changes}, ())

    def tables(
        self,
        keys: Mapping[str, tuple[str, ...]] | None = None,
        declared: Mapping[str, Declared] | None = None,
        types: Mapping[str, str] | None = None,
        until: int | None = None,
    ) -> dict[int, ReplayedTable]:
        """By OID. `keys`: schema.table -> columns, for tables whose key the archive doesn't tell. `declared`:
        schema.table -> what the configuration says of its columns' lineage; `types`: its types. `until`: as of the
        commit at that LSN. Raises TableError for a table that can't be followed."""
        by_relation = self.rows_by_relation(until)
        return {oid: self.table(oid, rows, keys, declared, types) for oid, rows in by_relation.items()}

    def table(
        self,
        oid: int,
        rows: list[Row],
        keys: Mapping[str, tuple[str, ...]] | None = None,
        declared: Mapping[str, Declared] | None = None,
        types: Mapping[str, str] | None = None,
    ) -> ReplayedTable:
        """`rows`: what is applied to it, in order."""
        last_truncate = max((i for i, row in enumerate(rows) if row["tag"] == "T"), default=0)
        table: KeyedRows | BagOfRows | None = None
        for epoch in self.spans(oid, rows[last_truncate:], keys or {}, declared or {}, types or {}):
            new = rows_under(epoch.shape)
            if table is not None and epoch.migration is not None:
                for event in migrated_row(table.events(), epoch.migration):
                    new.put(event)
            table = new
            apply_rows(table, epoch.rows)
        assert table is not None
        return ReplayedTable(table.shape, [named(event, table.shape) for event in table.events()])

    def name_holders(self) -> dict[tuple[str, str], int]:
        """By schema and name the OID of the table that bears it: the last of which a committed row stood under that
        name, unless a later one of its own stood under another."""
        names: dict[int, tuple[str, str]] = {}
        versions = {oid: self.assembly.relations.versions(oid) for oid in self.assembly.relations.oids()}
        for row in self.committed():
            oid = row["relation"]
            relation = _relation_of(row, versions[oid])
            names.pop(oid, None)  # the order of the dictionary is that of the last rows
            names[oid] = (relation.namespace, relation.name)
        return {name: oid for oid, name in names.items()}

    def rows_by_relation(self, until: int | None = None) -> dict[int, list[Row]]:
        """What is applied to each table, in order."""
        by_relation: dict[int, list[Row]] = {}
        found = self.cutoffs()
        for row in self.committed():
            cutoff = found.get(row["relation"])
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
    ) -> Iterator[ReplayedSpan]:
        """A table's rows, cut where its columns change."""
        versions = self.assembly.relations.versions(oid)
        user_types = UserTypes.of(self.assembly.types.values(), types)
        runs = [(relation, list(run)) for relation, run in groupby(rows, key=lambda row: _relation_of(row, versions))]
        name = f"{runs[-1][0].namespace}.{runs[-1][0].name}"
        before: TableShape | None = None
        retired: Retired = ()
        for relation, run in runs:
            found: Lineage | None = None
            if before is not None:
                found, retired = next_version(before.relation, retired, relation, declared.get(name, {}))
            everything = frozenset(range(len(relation.columns)))
            shape = table_shape(relation, versions, keys.get(name), everything, True, user_types, retired)
            after = None if before is None or found is None else migration_to(before.columns, shape, found)
            yield ReplayedSpan(shape, after, run)
            before = shape


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
        for event in events(pa.RecordBatch.from_pylist(list(run), ROW_SCHEMA), table.shape).to_pylist():
            event["_unrep"] = {entry["key"]: entry["value"] for entry in event["_unrep"] or ()}
            table.apply(event)


def fragment_outcomes(assembly: Assembly) -> dict[FragmentId, Outcome]:
    """The outcome of every unit that has one of its own."""
    return {
        fragment: outcome
        for outcome in (*assembly.outcomes, *assembly.open_outcomes())
        for fragment in outcome.fragments
    }


class KeyedRows:
    """A table with a key: key -> the event that its row was written by, with what was unchanged filled in."""

    def __init__(self, shape: TableShape) -> None:
        self.shape = shape
        self.by_key: dict[_Key, Row] = {}
        self.moving: Row | None = None

    def apply(self, event: Row) -> None:
        key = self.key(event)
        match event["_op"]:
            case "D":
                self.by_key.pop(key, None)
            case "X":
                self.moving = self.by_key.pop(key, None)
            case "V":
                self.by_key[key] = self._filled(event, self.moving)
            case _:
                self.by_key[key] = self._filled(event, self.by_key.get(key))

    def key(self, event: Row) -> _Key:
        odd = event["_unrep"]
        columns = self.shape.columns
        return tuple(x for i in self.shape.key for x in (_key_value(event[f"c{i}"]), odd.get(columns[i].name)))

    def _filled(self, event: Row, base: Row | None) -> Row:
        """A value that is unchanged, of a row that the archive never had whole, is not known."""
        odd = dict(event["_unrep"])
        filled = dict(event)
        for i in self.shape.toast:
            if not event[f"u{i}"]:
                continue
            name = self.shape.columns[i].name
            filled[f"c{i}"] = None if base is None else base[f"c{i}"]
            base_odd = {name: None} if base is None else base["_unrep"]
            if name in base_odd:
                odd[name] = base_odd[name]
        return filled | {"_unrep": odd}

    def clear(self) -> None:
        self.by_key.clear()

    def put(self, event: Row) -> None:
        self.by_key[self.key(event)] = event

    def events(self) -> Iterable[Row]:
        return self.by_key.values()


def _key_value(value: Any) -> Any:
    """Equal for the values that PostgreSQL's unique indexes hold to be equal: NaN is NaN, and -0 is 0."""
    if isinstance(value, list | tuple):
        return tuple(map(_key_value, value))
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


class BagOfRows:
    """A table without a key: a delete takes one of equal rows away."""

    def __init__(self, shape: TableShape) -> None:
        self.shape = shape
        self.equal_rows: dict[str, list[Row]] = {}

    def apply(self, event: Row) -> None:
        equal = self.equal_rows.setdefault(self._content(event), [])
        if event["_op"] == INSERTED:
            equal.append(event)
        elif equal:
            equal.pop()

    def _content(self, event: Row) -> str:
        live = [i for i, column in enumerate(self.shape.columns) if not column.retired]
        odd = {self.shape.columns[i].name: event["_unrep"].get(self.shape.columns[i].name) for i in live}
        return repr(([event[f"c{i}"] for i in live], odd))

    def put(self, event: Row) -> None:
        self.equal_rows.setdefault(self._content(event), []).append(event)

    def clear(self) -> None:
        self.equal_rows.clear()

    def events(self) -> Iterable[Row]:
        return [event for equal in self.equal_rows.values() for event in equal]


def migrated_row(events: Iterable[Row], reshaping: SchemaMigration) -> list[Row]:
    """Rows that are there, under the next version of their relation."""
    rows = list(events)
    fields = [(f"c{i}", column.type.arrow) for i, column in enumerate(reshaping.before)]
    entries = [{**row, "_unrep": [{"key": k, "value": v} for k, v in row["_unrep"].items()]} for row in rows]
    stamps = {name: [row[name] for row in rows] for name in ("_lsn", "_ts", "_xid")}
    batch = pa.RecordBatch.from_pylist(entries, pa.schema([*fields, ("_unrep", UNREPRESENTABLE)]))
    after = converted(batch, reshaping).to_pylist()
    return [
        {
            **row,
            "_unrep": {entry["key"]: entry["value"] for entry in row["_unrep"] or ()},
            **{name: values[i] for name, values in stamps.items()},
        }
        for i, row in enumerate(after)
    ]


def named(event: Row, shape: TableShape) -> Row:
    """A row of the target: the table's own columns, then what the target adds to them."""
    row = {column.name: event[f"c{i}"] for i, column in enumerate(shape.columns)}
    return row | {
        "_pg_commit_lsn": event["_lsn"],
        "_pg_commit_ts": event["_ts"],
        "_pg_xid": event["_xid"],
        "_pg_unrepresentable": event["_unrep"] or None,
    }
