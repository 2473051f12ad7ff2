"""What modes history and soft_delete keep of an archive, replayed: the reference that the jobs' tables have to equal.

After each commit the table is looked at as a whole: a row that was not there has begun with it, one that is not there
any more has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import groupby
from typing import Any

from pgoutput_etl.replay.mirror import (
    BagOfRows,
    KeyedRows,
    Replay,
    ReplayedSpan,
    Row,
    apply_rows,
    migrated_row,
    named,
    rows_under,
)
from pgoutput_etl.schema.diff import Declared
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS


@dataclass(frozen=True, slots=True)
class Remembered:
    """Rows as the Delta tables have them. latest: None for a table that has no key."""

    shape: TableShape
    versions: list[Row]
    latest: list[Row] | None


@dataclass(frozen=True, slots=True)
class _Commit:
    lsn: int
    ts: datetime
    xid: int


@dataclass(slots=True)
class _Version:
    event: Row
    begun: _Commit
    ended: _Commit | None = None


def remembered(
    replay: Replay,
    keys: Mapping[str, tuple[str, ...]] | None = None,
    declared: Mapping[str, Declared] | None = None,
    types: Mapping[str, str] | None = None,
) -> dict[int, Remembered]:
    """By OID; the arguments are those of Replay.tables."""
    found = {}
    for oid, rows in replay.rows_by_relation().items():
        memory = _Memory()
        for epoch in replay.spans(oid, rows, keys or {}, declared or {}, types or {}):
            memory.take(epoch)
        memory.look()
        found[oid] = memory.told()
    return found


@dataclass(slots=True)
class _Memory:
    """versions: in the order of their beginnings. latest: of each key its last version."""

    table: KeyedRows | BagOfRows | None = None
    versions: list[_Version] = field(default_factory=list)
    current: dict[int, _Version] = field(default_factory=dict)
    latest: dict[Any, _Version] = field(default_factory=dict)
    commit: _Commit | None = None

    def take(self, epoch: ReplayedSpan) -> None:
        if self.table is None:
            self.table = rows_under(epoch.shape)
        elif epoch.migration is not None:
            self._reshape(epoch)
        for commit, rows in groupby(epoch.rows, key=_commit_of):
            if self.commit is not None and commit != self.commit:
                self.look()
            apply_rows(self.table, rows)
            self.commit = commit

    def look(self) -> None:
        """At the table as the last commit left it."""
        assert self.table is not None
        assert self.commit is not None
        living = {id(event): event for event in self.table.events()}
        for number in [number for number in self.current if number not in living]:
            self.current.pop(number).ended = self.commit
        for number, event in living.items():
            if number not in self.current:
                self.current[number] = _Version(event, self.commit)
                self.versions.append(self.current[number])
                if isinstance(self.table, KeyedRows):
                    self.latest[self.table.key(event)] = self.current[number]

    def _reshape(self, epoch: ReplayedSpan) -> None:
        """Versions that have ended, too: they are rows of the same table."""
        assert self.table is not None
        assert epoch.migration is not None
        before = {id(event): event for event in (*(v.event for v in self.versions), *self.table.events())}
        after = dict(zip(before, migrated_row(before.values(), epoch.migration), strict=True))
        table = rows_under(epoch.shape)
        for event in self.table.events():
            table.put(after[id(event)])
        for version in self.versions:
            version.event = after[id(version.event)]
        self.current = {id(version.event): version for version in self.current.values()}
        in_order: Iterable[_Version] = sorted(self.latest.values(), key=lambda v: v.ended is None)
        self.latest = {table.key(v.event): v for v in in_order} if isinstance(table, KeyedRows) else {}
        self.table = table

    def told(self) -> Remembered:
        assert self.table is not None
        shape = self.table.shape
        versions = [named(v.event, shape) | _validity(v) for v in self.versions]
        latest = [named(v.event, shape) | _end(v) for v in self.latest.values()]
        return Remembered(shape, versions, latest if isinstance(self.table, KeyedRows) else None)


def _commit_of(row: Row) -> _Commit:
    microseconds = row["commit_ts"] + POSTGRES_EPOCH_MICROSECONDS
    time = datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=microseconds)
    return _Commit(row["commit_lsn"], time, row["top_xid"])


def _validity(version: _Version) -> Row:
    ended = version.ended
    return {
        "_pg_valid_from_lsn": version.begun.lsn,
        "_pg_valid_to_lsn": None if ended is None else ended.lsn,
        "_pg_valid_from_ts": version.begun.ts,
        "_pg_valid_to_ts": None if ended is None else ended.ts,
    }


def _end(version: _Version) -> Row:
    ended = version.ended
    if ended is None:
        return {"_pg_deleted": False}
    stamps = {"_pg_commit_lsn": ended.lsn, "_pg_commit_ts": ended.ts, "_pg_xid": ended.xid}
    return {**stamps, "_pg_deleted": True}
