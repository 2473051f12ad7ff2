"""The reference for modes history and soft_delete: replays an archive and returns the rows their tables must have.

After each commit the whole table is compared with the table before it: a new row begins a version at that commit, a
missing row ends one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from itertools import groupby

from pgoutput_etl.replay.mirror import (
    BagOfRows,
    KeyedRows,
    Replay,
    ReplayedSpan,
    Row,
    apply_rows,
    migrated_rows,
    rows_under,
    target_row,
    without_removed,
)
from pgoutput_etl.schema.column_matching import Declared
from pgoutput_etl.schema.removal import Removal
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS, time_of


@dataclass(frozen=True, slots=True)
class TableHistory:
    """Rows as the Delta tables store them. latest: None for a table without a key."""

    shape: TableShape
    versions: list[Row]
    latest: list[Row] | None


@dataclass(frozen=True, slots=True)
class _Commit:
    lsn: int
    ts: datetime
    xid: int | None


@dataclass(slots=True)
class _Version:
    event: Row
    begun: _Commit
    ended: _Commit | None = None


def table_histories(
    replay: Replay,
    keys: Mapping[str, tuple[str, ...]] | None = None,
    declared: Mapping[str, Declared] | None = None,
    types: Mapping[str, str] | None = None,
) -> dict[int, TableHistory]:
    """Histories by OID. The arguments are those of Replay.tables."""
    by_relation = replay.rows_by_relation()
    return {oid: table_history(replay, oid, rows, keys, declared, types) for oid, rows in by_relation.items()}


def table_history(
    replay: Replay,
    oid: int,
    rows: list[Row],
    keys: Mapping[str, tuple[str, ...]] | None = None,
    declared: Mapping[str, Declared] | None = None,
    types: Mapping[str, str] | None = None,
) -> TableHistory:
    """The arguments are those of Replay.table."""
    tracker = _VersionTracker()
    for span in replay.spans(oid, rows, keys or {}, declared or {}, types or {}):
        tracker.apply(span)
    tracker.compare()
    return tracker.history()


@dataclass(slots=True)
class _VersionTracker:
    """versions: in the order in which they began. current: by the identity of their event. latest: the last version of
    each row; a row that is inserted under the key of a deleted one is the same row."""

    table: KeyedRows | BagOfRows | None = None
    versions: list[_Version] = field(default_factory=list)
    current: dict[int, _Version] = field(default_factory=dict)
    latest: list[_Version] = field(default_factory=list)
    commit: _Commit | None = None

    def apply(self, span: ReplayedSpan) -> None:
        if self.table is None:
            self.table = rows_under(span.shape)
        elif span.migration is not None:
            self._migrate(span)
        if span.removal is not None:
            self._remove(span.removal)
        for commit, rows in groupby(span.rows, key=_commit_of):
            if self.commit is not None and commit != self.commit:
                self.compare()
            apply_rows(self.table, rows)
            self.commit = commit

    def compare(self) -> None:
        """Begins and ends versions at the last commit."""
        assert self.table is not None
        assert self.commit is not None
        living = {id(event): event for event in self.table.events()}
        for identity in self.current.keys() - living.keys():
            self.current.pop(identity).ended = self.commit
        for identity, event in living.items():
            if identity not in self.current:
                version = self.current[identity] = _Version(event, self.commit)
                self.versions.append(version)
                if isinstance(self.table, KeyedRows):
                    self._replace_latest(self.table, version)

    def _replace_latest(self, table: KeyedRows, version: _Version) -> None:
        """Replaces the living row of the key, else its newest deleted row if one commit deleted only one."""
        key = table.key(version.event)
        same = [other for other in self.latest if table.key(other.event) == key]
        replaced = [other for other in same if other.ended in (None, self.commit)]
        if not replaced:
            newest = max((other.ended.lsn for other in same if other.ended), default=None)
            replaced = [other for other in same if other.ended and other.ended.lsn == newest]
        if len(replaced) == 1:
            self.latest = [other for other in self.latest if other is not replaced[0]]
        self.latest.append(version)

    def _remove(self, removal: Removal) -> None:
        assert self.table is not None
        commit = _Commit(removal.lsn, time_of(removal.ts or 0), removal.xid)
        if self.commit is not None and commit != self.commit:
            self.compare()
        self.table, self.commit = without_removed(self.table, removal), commit

    def _migrate(self, span: ReplayedSpan) -> None:
        """Ended versions migrate too: they are rows of the same table."""
        assert self.table is not None
        assert span.migration is not None
        living = {id(event): event for event in self.table.events()}
        ended = {id(v.event): v.event for v in self.versions if id(v.event) not in living}
        after = dict(zip(living, migrated_rows(living.values(), span.migration), strict=True))
        without_key = replace(span.migration, key=(), initial={}, reformed={})
        after |= zip(ended, migrated_rows(ended.values(), without_key), strict=True)
        table = rows_under(span.shape)
        for event in self.table.events():
            table.put(after[id(event)])
        for version in self.versions:
            version.event = after[id(version.event)]
        self.current = {id(version.event): version for version in self.current.values()}
        self.latest = self.latest if isinstance(table, KeyedRows) else []
        self.table = table

    def history(self) -> TableHistory:
        assert self.table is not None
        shape = self.table.shape
        versions = [target_row(v.event, shape) | _validity(v) for v in self.versions]
        latest = [target_row(v.event, shape) | _end(v) for v in self.latest]
        return TableHistory(shape, versions, latest if isinstance(self.table, KeyedRows) else None)


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
