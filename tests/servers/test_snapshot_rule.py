"""A snapshot of a server that is written to, and the archive from its LSN on: together they are the server's rows.

In memory, by the reference that replays archives: so that many snapshots can be tried against one archive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.postgres.catalog import QUERY, read_catalog
from pgoutput_etl.postgres.copy_format import text_rows, tuple_of
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.schema.relation_history import RelationEntry, RelationHistory
from pgoutput_etl.targets.plan import BEFORE_FILES
from pgoutput_etl.transactions.assembly import Assembly
from tests.support.kept_rows import counted
from tests.support.servers.live_writers import SETUP, TABLES, psql_with_snapshot, writers
from tests.support.servers.postgres import Server, Version

pytestmark = pytest.mark.e2e
Rows = dict[str, list[dict[str, Any]]]


@dataclass(slots=True)
class Snapshot:
    """What was read by an exported snapshot: by table, its file."""

    lsn: int
    copied: dict[str, Path]


@dataclass(slots=True)
class FromSnapshot(Replay):
    """The reference, begun with a snapshot. shift: of its LSN, to see that it matters."""

    lsn: int = 0
    loaded: list[dict[str, Any]] = field(default_factory=list)

    def load(self, taken: Snapshot, catalog: str, shift: int = 0) -> None:
        self.lsn = taken.lsn + shift
        relations = [t.relation for t in read_catalog(catalog, (), lambda _: True).tables]
        entries = [RelationEntry((BEFORE_FILES, 0), relation, None) for relation in relations]
        self.assembly = Assembly(RelationHistory.of(entries))
        for relation in relations:
            rows = text_rows(taken.copied[relation.name].read_bytes(), relation.name, len(relation.columns))
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
def test_taken_at_any_time(version: Version, count: int, tmp_path: Path) -> None:
    with Server(version) as server:
        server.psql(SETUP)
        server.create_slot("slot")
        catalog = server.psql(f"{QUERY};")
        with writers(server, 8):
            taken = [take(server, tmp_path / f"{number}") for number in range(count)]
        server.recvlogical("slot", tmp_path / "archive", publications=["p"], proto_version=2, streaming="on")
        last = take(server, tmp_path / "last")
    archive = (tmp_path / "archive").read_bytes()
    truth = rows_of(last, archive, catalog)
    assert all(len(rows) > 300 for rows in truth.values())
    spans = [snapshot.lsn for snapshot in taken]
    assert len(set(spans)) == len(spans)
    for snapshot in taken:
        found = rows_of(snapshot, archive, catalog)
        assert {name: counted(rows) for name, rows in found.items()} == {
            name: counted(rows) for name, rows in truth.items()
        }
    wrong = rows_of(taken[0], archive, catalog, -(1 << 16))
    assert counted(wrong["bag"]) != counted(truth["bag"]), "commits before the LSN are in the snapshot already"


def rows_of(taken: Snapshot, archive: bytes, catalog: str, shift: int = 0) -> Rows:
    replay = FromSnapshot()
    replay.load(taken, catalog, shift)
    replay.add_file("archive", archive)
    own = {}
    for table in replay.tables().values():
        names = [column.name for column in table.shape.columns] + ["_pg_unrepresentable"]
        own[table.shape.relation.name] = [{name: row[name] for name in names} for row in table.rows]
    return own
