"""An archive applied in memory, one change after the other: the reference that everything faster has to equal.

No Spark, no Delta: for tests, and for a notebook with a file or two. It holds every row of every table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa

from pgoutput_etl.changes import INSERTED, ROW_SCHEMA, TableShape, events, table_shape
from pgoutput_etl.errors import ArchiveError, SequenceError
from pgoutput_etl.message_rows import CHANGE_TAGS, FileScan
from pgoutput_etl.outcomes import Fate, Outcome, UnitId, control_rows
from pgoutput_etl.scan import scan_file
from pgoutput_etl.transactions import Assembly

Row = dict[str, Any]
_Key = tuple[Any, ...]


@dataclass(slots=True)
class ReplayedTable:
    """The rows at the end of the archive, as Arrow gives them to Python; `unrepresentable` as in the Delta table."""

    shape: TableShape
    rows: list[Row]


@dataclass(slots=True)
class Replay:
    """What the files say, in order: `rows` of all messages with the outcome of their transactions."""

    assembly: Assembly = field(default_factory=Assembly)
    _messages: list[Row] = field(default_factory=list)
    _files: int = 0

    def add_file(self, path: str, content: bytes) -> FileScan:
        """The next file in order. Raises ArchiveError naming it."""
        scanned = scan_file(path, self._files, content)
        self._files += 1
        rows = [row for batch in scanned.batches for row in batch.to_pylist()]
        try:
            self.assembly.add_file(scanned.summary, control_rows(rows))
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
        found = []
        fates = unit_outcomes(self.assembly)
        marks = {(mark.file, mark.stretch): mark.lsn for mark in self.assembly.watermarks}
        for row in self._messages:
            if row["tag"] not in CHANGE_TAGS:
                continue
            outcome = fates.get((row["file"], row["unit"]))
            if outcome is None:
                if row["commit_lsn"] > marks.get((row["file"], row["stretch"]), -1):
                    found.append({**row, "scope": None})
            elif outcome.fate is Fate.COMMITTED and row["xid"] not in outcome.aborted_subxids:
                committed = {"commit_lsn": outcome.commit_lsn, "commit_ts": outcome.commit_ts, "top_xid": outcome.xid}
                found.append({**row, **committed, "scope": outcome.scope})
        yield from sorted(found, key=lambda r: (r["commit_lsn"], r["file"], r["ordinal"]))

    def tables(self, keys: Mapping[str, tuple[str, ...]] | None = None) -> dict[int, ReplayedTable]:
        """By OID. `keys`: schema.table -> columns, for tables whose key the archive doesn't tell."""
        by_relation: dict[int, list[Row]] = {}
        for row in self.committed():
            by_relation.setdefault(row["relation"], []).append(row)
        return {oid: self._table(oid, rows, keys or {}) for oid, rows in by_relation.items()}

    def _table(self, oid: int, rows: list[Row], keys: Mapping[str, tuple[str, ...]]) -> ReplayedTable:
        relation = self.assembly.relations.latest(oid)
        versions = self.assembly.relations.versions(oid)
        if relation is None:
            raise ArchiveError(f"no Relation message describes OID {oid}: the archive begins after the server sent it")
        toast = frozenset(
            version.columns[i].name
            for version in versions.relations
            for row in rows
            for i in row["unchanged"] or ()
            if i < len(version.columns)
        )
        shape = table_shape(relation, versions, keys.get(f"{relation.namespace}.{relation.name}"), toast)
        table: _Keyed | _Bag = _Bag() if shape.is_bag else _Keyed(shape)
        for is_truncate, run in groupby(rows, key=lambda row: row["tag"] == "T"):
            if is_truncate:
                table.clear()
                continue
            for event in events(pa.RecordBatch.from_pylist(list(run), ROW_SCHEMA), shape).to_pylist():
                event["_unrep"] = {entry["key"]: entry["value"] for entry in event["_unrep"] or ()}
                table.apply(event)
        return ReplayedTable(shape, [_named(event, shape) for event in table.events()])


def unit_outcomes(assembly: Assembly) -> dict[UnitId, Outcome]:
    """The outcome of every unit that has one of its own."""
    return {unit: outcome for outcome in (*assembly.outcomes, *assembly.open_outcomes()) for unit in outcome.units}


class _Keyed:
    """A table with a key: key -> the event that its row was written by, with what was unchanged filled in."""

    def __init__(self, shape: TableShape) -> None:
        self.shape = shape
        self.by_key: dict[_Key, Row] = {}
        self.moving: Row | None = None

    def apply(self, event: Row) -> None:
        key = self._key(event)
        match event["_op"]:
            case "D":
                self.by_key.pop(key, None)
            case "X":
                self.moving = self.by_key.pop(key, None)
            case "V":
                self.by_key[key] = self._filled(event, self.moving)
            case _:
                self.by_key[key] = self._filled(event, self.by_key.get(key))

    def _key(self, event: Row) -> _Key:
        odd = event["_unrep"]
        columns = self.shape.columns
        return tuple(x for i in self.shape.key for x in (event[f"c{i}"], odd.get(columns[i].name)))

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

    def events(self) -> Iterable[Row]:
        return self.by_key.values()


class _Bag:
    """A table without a key: a delete takes one of equal rows away."""

    def __init__(self) -> None:
        self.equal_rows: dict[str, list[Row]] = {}

    def apply(self, event: Row) -> None:
        cells = [(name, value) for name, value in event.items() if name[0] == "c"]
        equal = self.equal_rows.setdefault(repr((cells, event["_unrep"])), [])
        if event["_op"] == INSERTED:
            equal.append(event)
        elif equal:
            equal.pop()

    def clear(self) -> None:
        self.equal_rows.clear()

    def events(self) -> Iterable[Row]:
        return [event for equal in self.equal_rows.values() for event in equal]


def _named(event: Row, shape: TableShape) -> Row:
    """A row of the target: the table's own columns, then what the target adds to them."""
    row = {column.name: event[f"c{i}"] for i, column in enumerate(shape.columns)}
    return row | {
        "_pg_commit_lsn": event["_lsn"],
        "_pg_commit_ts": event["_ts"],
        "_pg_xid": event["_xid"],
        "_pg_unrepresentable": event["_unrep"] or None,
    }
