"""A snapshot taken during writes, and the archive from its LSN on, together give the server's rows.

Uses the in-memory replay, to test many snapshots with one archive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.postgres.catalog import QUERY, read_catalog
from pgoutput_etl.postgres.copy_format import tuple_of
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.schema.relation_history import RelationEntry, RelationHistory
from pgoutput_etl.targets.plan import BEFORE_FILES
from pgoutput_etl.transactions.assembly import Assembly
from tests.support.copied_rows import text_rows
from tests.support.kept_rows import counted
from tests.support.servers.live_writers import SETUP, TABLES, psql_with_snapshot, writers
from tests.support.servers.postgres import Server, Version

pytestmark = pytest.mark.e2e
Rows = dict[str, list[dict[str, Any]]]


@dataclass(slots=True)
class Snapshot:
    """The files of an exported snapshot, by table."""

    lsn: int
    copied: dict[str, Path]


@dataclass(slots=True)
class FromSnapshot(Replay):
    """A replay that begins with a snapshot. shift: changes the snapshot's LSN, to show that it matters."""

    lsn: int = 0
    loaded: list[dict[str, Any]] = field(default_factory=list)

    def load(self, snapshot: Snapshot, catalog: str, shift: int = 0) -> None:
        self.lsn = snapshot.lsn + shift
        relations = [t.relation for t in read_catalog(catalog, (), lambda _: True).tables]
        entries = [RelationEntry((BEFORE_FILES, 0), relation, None) for relation in relations]
        self.assembly = Assembly(RelationHistory.of(entries))
        for relation in relations:
            rows = text_rows(snapshot.copied[relation.name].read_bytes(), relation.name, len(relation.columns))
            for number, fields in enumerate(rows):
                place = {"file": BEFORE_FILES, "ordinal": number, "offset": number, "scope": None}
                row = {
                    "relation": relation.oid,
                    "tag": "I",
                    "old_kind": None,
                    "old": None,
                    "new": tuple_of(fields, b"t"),
                }
                self.loaded.append({**place, **row, "commit_lsn": self.lsn, "commit_ts": 0, "top_xid": None})

    def committed(self) -> Iterator[dict[str, Any]]:
        yield from self.loaded
        yield from (row for row in Replay.committed(self) if row["commit_lsn"] >= self.lsn)


def take(server: Server, folder: Path) -> Snapshot:
    folder.mkdir()
    with psql_with_snapshot(server) as (name, lsn):
        for table in TABLES:
            begin = f"begin isolation level repeatable read; set transaction snapshot '{name}'; "
            server.psql(f"{begin} copy {table} to stdout; commit", output=folder / table)
    return Snapshot(parse_lsn(lsn), {table: folder / table for table in TABLES})


@pytest.mark.parametrize(("version", "count"), [(18, 3), pytest.param(16, 15, marks=pytest.mark.soak)])
def test_snapshots_taken_at_any_time(version: Version, count: int, tmp_path: Path) -> None:
    with Server(version) as server:
        server.psql(SETUP)
        server.create_slot("slot")
        catalog = server.psql(f"{QUERY};")
        with writers(server, 8):
            snapshots = [take(server, tmp_path / f"{number}") for number in range(count)]
        server.recvlogical("slot", tmp_path / "archive", publications=["p"], proto_version=2, streaming="on")
        last = take(server, tmp_path / "last")
    archive = (tmp_path / "archive").read_bytes()
    truth = rows_of(last, archive, catalog)
    assert all(len(rows) > 300 for rows in truth.values())
    spans = [snapshot.lsn for snapshot in snapshots]
    assert len(set(spans)) == len(spans)
    for snapshot in snapshots:
        rows_by_table = rows_of(snapshot, archive, catalog)
        assert {name: counted(rows) for name, rows in rows_by_table.items()} == {
            name: counted(rows) for name, rows in truth.items()
        }
    wrong = rows_of(snapshots[0], archive, catalog, -(1 << 16))
    assert counted(wrong["bag"]) != counted(truth["bag"]), "the snapshot already has commits before its LSN"


def rows_of(snapshot: Snapshot, archive: bytes, catalog: str, shift: int = 0) -> Rows:
    replay = FromSnapshot()
    replay.load(snapshot, catalog, shift)
    replay.add_file("archive", archive)
    rows_by_table = {}
    for table in replay.tables().values():
        names = [column.name for column in table.shape.columns] + ["_pg_unrepresentable"]
        rows_by_table[table.shape.relation.name] = [{name: row[name] for name in names} for row in table.rows]
    return rows_by_table
