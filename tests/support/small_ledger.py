"""A ledger and its landing folder, written with delta-rs: for tests without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from pgoutput_etl.config.settings import Config, load_config
from pgoutput_etl.ledger.tables import FORMAT, SCHEMAS, table_row
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import Relation, ReplicaIdentity
from pgoutput_etl.targets.plan import APPLIED, HELD, TableState
from pgoutput_etl.timestamps import microseconds_of, time_of

NOTHING_OPEN = {
    "version": 1,
    "next_scope": 1,
    "streams": [],
    "prepared": [],
    "tail": None,
    "cut_off_lsn": None,
    "cut_off_gids": [],
    "was_damaged": False,
    "highest_xid": 0,
    "unreliable_from": None,
}


@dataclass(slots=True)
class SmallLedger:
    """options: for delta-rs; root: of the ledger, as delta-rs needs it."""

    folder: Path
    source: str = "shop"
    root: str = ""
    options: dict[str, str] = field(default_factory=dict)
    files: int = 0

    def __post_init__(self) -> None:
        self.root = self.root or str(self.folder / "tables" / "_pgoutput_etl")
        self.landing.mkdir(exist_ok=True)

    @property
    def landing(self) -> Path:
        return self.folder / "landing"

    def config(self, *overrides: str, landing: str | None = None) -> Config:
        path = self.folder / "job.yaml"
        landing = landing or str(self.landing)
        path.write_text(
            f"source: {{name: {self.source}, landing: '{landing}'}}\ntarget: {{root: '{self.folder}/tables'}}\n"
        )
        return load_config(str(path), overrides, {})

    def add(self, table: str, *rows: Mapping[str, Any], without: Iterable[str] = ()) -> None:
        """Appends rows. without: columns that an older version of the ledger lacks."""
        schema = pa.schema([column for column in SCHEMAS[table] if column.name not in set(without)])
        content = pa.Table.from_pylist([{"source": self.source, **row} for row in rows], schema)
        url = f"{self.root}/{table}"
        write_deltalake(url, content, mode="append", schema_mode="merge", storage_options=self.options or None)

    def begin(
        self, batch: int, at: datetime, files: Iterable[Mapping[str, Any]] = (), backfill: str | None = None
    ) -> None:
        row = {"batch": batch, "status": "begun", "at": at, "files": list(files), "ledger_id": "a"}
        self.add("batches", {**row, "backfill": backfill})

    def finish(
        self,
        batch: int,
        at: datetime,
        lsn: int,
        tables: Iterable[Mapping[str, Any]] = (),
        metrics: Mapping[str, Any] | None = None,
        without: Iterable[str] = (),
        backfill: str | None = None,
        since: int = 0,
        format: int = FORMAT,  # noqa: A002 # the column's name
        **state: Any,
    ) -> None:
        """The archive's last commit is a minute older than the batch's end."""
        commit = microseconds_of(at - timedelta(minutes=1))
        row = {
            "batch": batch,
            "status": "done",
            "at": at,
            "last_commit_lsn": lsn,
            "since": since,
            "backfill": backfill,
            "state": json.dumps({**NOTHING_OPEN, "last_commit_lsn": lsn, "last_commit_ts": commit, **state}),
            "tables": list(tables),
            "metrics": None if metrics is None else json.dumps(metrics),
            "format": format,
        }
        self.add("batches", row, without=without)

    def read(self, batch: int, landed: Path, consumed: int | None = None, **columns: Any) -> None:
        """Records a landed file as read by a batch."""
        status = landed.stat()
        row = {
            "batch": batch,
            "file": self.files,
            "path": f"file:{landed}",
            "size": status.st_size,
            "modified": time_of(status.st_mtime_ns // 1_000_000 * 1000 - 946_684_800_000_000),
            "status": "read",
            "offset": 0,
            "consumed": status.st_size if consumed is None else consumed,
            "prefix_hash": f"{self.files:064x}",
            "head": f"{self.files:016x}",
            "messages": {"B": 1, "I": 2, "C": 1},
            "distinctive": True,
            "varied": True,
            "unfinished": False,
        }
        self.add("files", {**row, **columns})
        self.files += 1

    def land(self, name: str, size: int) -> Path:
        path = self.landing / name
        path.write_bytes(b"x" * size)
        return path

    def versions(self) -> dict[str, int]:
        return {path.parent.name: DeltaTable(path.parent).version() for path in Path(self.root).glob("*/_delta_log")}


def state(
    oid: int, table: str, rows: int | None, lsn: int = 0, reason: str | None = None, **fields: Any
) -> dict[str, Any]:
    """A table in a batch's row. reason: why it is held. fields: others of TableState."""
    status = APPLIED if reason is None else HELD
    relation = Relation(None, oid, "public", table, ReplicaIdentity.DEFAULT, ())
    stored = TableState(
        oid=oid,
        schema="public",
        table=table,
        path=Place(f"/x/{oid}"),
        version=1,
        last_commit_lsn=lsn,
        status=status,
        reason=reason,
        relation=relation,
        key=("id",),
        rows=rows,
    )
    return table_row(replace(stored, **fields))
