"""What tables hold in each mode: written event by event, and as a replay of the whole archive has it.

A stored row is the event that wrote it. Modes history and soft_delete store all versions of a row, with `_to` in those
that ended; which of them a soft_delete keeps follows from these. Mode append stores all events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count, groupby
from random import Random
from typing import Any

import pyarrow as pa

from pgoutput_etl.changes.event_log import TRUNCATED
from pgoutput_etl.changes.events import MOVED_IN, MOVED_OUT, ROW_SCHEMA, UPDATED
from pgoutput_etl.config.rules import Mode
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.replay.mirror import BagOfRows, KeyedRows, Replay, Row, migrated_rows, rows_under, target_row
from pgoutput_etl.schema.migration import SchemaMigration
from pgoutput_etl.schema.relation_history import RelationEntry
from pgoutput_etl.schema.removal import Removal, removed_from
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.timestamps import time_of
from tests.support.modes_reference import table_history
from tests.support.nights import events_of

# A row as it is compared: its text, its commit LSN, and whether PostgreSQL has it, too
Printed = tuple[str, int, bool]
Rows = tuple[Printed, ...]

RETIRED = "; retired: "
_KEPT = ("_to", "_op", "_file", "_ordinal")


def random_modes(chance: Random, entries: Iterable[RelationEntry]) -> dict[str, Mode]:
    """By the table's name. All names of a table have the same mode."""
    names: dict[int, dict[str, None]] = {}
    bags = set()
    for relation in (entry.relation for entry in entries):
        names.setdefault(relation.oid, {})[relation.full_name] = None
        is_full = relation.replica_identity is ReplicaIdentity.FULL
        if is_full or not any(column.is_key for column in relation.columns):
            bags.add(relation.oid)
    modes: dict[str, Mode] = {}
    for oid, own in names.items():
        choices = [mode for mode in Mode if not (oid in bags and table_mode(mode).needs_key)]
        drawn = chance.choice(choices)
        modes |= dict.fromkeys(own, next((modes[name] for name in own if name in modes), drawn))
    is_mixed = any(len({modes[name] for name in own}) > 1 for own in names.values())
    return dict.fromkeys(modes, Mode.HISTORY) if is_mixed else modes


def rows_after(
    mode: Mode, shape: TableShape, rows: Iterable[Row], events: Iterable[Row]
) -> tuple[tuple[Row, ...], Mismatches | None]:
    """The stored rows after these events, and the mismatches of the events with the rows before them."""
    if not table_mode(mode).has_rows:
        return (*rows, *events), None
    table = rows_under(shape)
    ended = [row for row in rows if row.get("_to") is not None]
    for row in rows:
        if row.get("_to") is None:
            table.put(row)
    for (lsn, ts), own in groupby(events, key=lambda event: (event["_lsn"], event["_ts"])):
        before = {id(row): row for row in table.events()}
        for event in own:
            _apply(table, event)
        living = {id(row) for row in table.events()}
        gone = (row for identity, row in before.items() if identity not in living)
        ended += [{**row, "_to": (lsn, ts)} for row in gone if row["_lsn"] < lsn and mode is not Mode.MIRROR]
    return (*ended, *table.events()), table.mismatches


def _apply(table: KeyedRows | BagOfRows, event: Row) -> None:
    if event["_op"] == TRUNCATED:
        table.clear()
    else:
        table.apply(event)


def migrated(mode: Mode, rows: Iterable[Row], migration: SchemaMigration) -> tuple[Row, ...]:
    """Former versions, and changes, need no key."""
    has_rows = table_mode(mode).has_rows
    found: list[Row] = []
    for row in rows:
        is_current = has_rows and row.get("_to") is None
        [new] = migrated_rows([row], migration if is_current else replace(migration, key=()))
        found.append({**{name: row[name] for name in _KEPT if name in row}, **new})
    return tuple(found)


def rows_left(mode: Mode, shape: TableShape | None, rows: Iterable[Row], removal: Removal) -> list[Row]:
    """The stored rows after others have left with their partition."""
    is_gone, end = removed_from(removal), (removal.lsn, time_of(removal.ts or 0))
    columns = () if shape is None else shape.columns
    left: list[Row] = []
    for row in rows:
        values = {column.name: row[f"c{i}"] for i, column in enumerate(columns)}
        if row.get("_to") is not None or not is_gone(values, row["_unrep"]):
            left.append(row)
        elif not table_mode(mode).is_copy:
            left.append({**row, "_to": end})
    return left


def needs_key(mode: Mode, rows: Iterable[Row]) -> bool:
    """True if rows that may be changed or deleted are stored."""
    return table_mode(mode).has_rows and any(row.get("_to") is None for row in rows)


def printed(mode: Mode, shape: TableShape, rows: Iterable[Row]) -> Rows:
    if not table_mode(mode).has_rows:
        return _printed_changes(shape, rows)
    return tuple(sorted(_printed_version(target_row(row, shape), row.get("_to"), shape) for row in rows))


def _printed_version(row: Row, end: tuple[int, Any] | None, shape: TableShape) -> Printed:
    until = "" if end is None else f"until {end[0]}, {end[1].isoformat()} "
    return until + _text(row, shape), row["_pg_commit_lsn"], end is None


def _text(row: Row, shape: TableShape) -> str:
    """With the columns at the end that only former versions of the relation had."""
    retired = {column.name for column in shape.columns if column.retired}
    values = {name: value for name, value in row.items() if name not in retired}
    return f"{values}{RETIRED}{ {name: row[name] for name in sorted(retired)} }"


def _printed_changes(shape: TableShape, events: Iterable[Row]) -> Rows:
    """In order, and with their numbers within a commit: the archive's files are not those of the replay."""
    changes = sorted(
        (event for event in events if event["_op"] != MOVED_OUT),
        key=lambda event: (event["_lsn"], event["_file"], event["_ordinal"], event["_op"]),
    )
    found: list[Printed] = []
    for lsn, own in groupby(changes, key=lambda event: event["_lsn"]):
        for number, event in zip(count(), own):
            op = UPDATED if event["_op"] == MOVED_IN else event["_op"]
            found.append((f"{op} {number} {_text(target_row(event, shape), shape)}", lsn, False))
    return tuple(sorted(found))


def replayed(mode: Mode, replay: Replay, oid: int, rows: list[Row]) -> tuple[Rows, Mismatches | None]:
    """rows: the table's changes in order. Raises TableError."""
    table = replay.table(oid, rows)
    if not table_mode(mode).has_rows:
        stored: tuple[Row, ...] = ()
        for span in replay.spans(oid, rows, {}, {}, {}):
            stored = stored if span.migration is None else migrated(mode, stored, span.migration)
            changes = pa.Table.from_pylist(span.rows, ROW_SCHEMA)
            stored = (*stored, *events_of(changes, span.shape, keeps_changes=True))
        return printed(mode, table.shape, stored), None
    if mode is Mode.MIRROR:
        return tuple(sorted(_printed_version(row, None, table.shape) for row in table.rows)), table.mismatches
    names = [column.name for column in table.shape.columns]
    found = []
    for version in table_history(replay, oid, rows).versions:
        end = version["_pg_valid_to_lsn"], version["_pg_valid_to_ts"]
        row = {name: value for name, value in version.items() if name in names or "_valid_" not in name}
        found.append(_printed_version(row, None if end[0] is None else end, table.shape))
    return tuple(sorted(found)), table.mismatches
