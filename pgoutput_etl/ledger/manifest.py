"""A source's tables as of its last finished batch, as a JSON document for readers that don't use the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from pgoutput_etl.config.settings import Config, Target
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.places import Place
from pgoutput_etl.targets.condition import conditions_of
from pgoutput_etl.targets.plan import APPLIED, TableState
from pgoutput_etl.timestamps import time_of


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table at a Delta version. lsn: it includes every commit through this one. status: `applied`, or `held` or
    `skipped` for a table that lacks later commits. view: its place, or None. tag: in a shared table, the column values
    that mark the source's rows. state: `held`, `diverged`, or `incomplete`; None if there is no known problem.
    verified_through: the last LSN at which `verify` found it equal to the server's, or None.
    """

    schema: str
    table: str
    path: str
    version: int
    lsn: str
    status: str
    view: str | None = None
    tag: Mapping[str, str] = field(default_factory=dict)
    state: str | None = None
    verified_through: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """lsn, commit_time: LSN and time of the last commit through which all tables without a state are consistent.
    published: when the manifest was written. views: the configured prefix."""

    source: str
    ledger_id: str
    batch: int
    lsn: str
    commit_time: str | None
    published: str
    views: str | None
    tables: tuple[ShownTable, ...]

    @classmethod
    def of(cls, config: Config, done: Batch, now: datetime, verified: Mapping[int, int]) -> Manifest:
        """done: a finished batch. verified: as in `Ledger.verified_through`."""
        target = config.target
        conditions = {table.oid: table.state.value for table in conditions_of(done.tables.values(), config)}
        states = sorted(done.tables.values(), key=lambda state: (state.schema, state.table, state.oid))
        shown = (state for state in states if state.is_readable)
        tables = tuple(
            _shown(state, target, done.last_commit_lsn, conditions.get(state.oid), verified.get(state.oid))
            for state in shown
        )
        time = None if done.state is None else done.state.get("last_commit_ts")
        committed = None if time is None else time_of(time).isoformat()
        reached = (done.ledger_id, done.number, format_lsn(done.last_commit_lsn), committed)
        return cls(config.source.name, *reached, now.isoformat(), target.views, tables)

    @classmethod
    def of_json(cls, text: str) -> Manifest:
        values: dict[str, Any] = json.loads(text)
        return cls(**{**values, "tables": tuple(ShownTable(**table) for table in values["tables"])})

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @property
    def view_versions(self) -> dict[str, tuple[str, int]]:
        """The path and version of each view's table, by view."""
        return {table.view: (table.path, table.version) for table in self.tables if table.view is not None}


def _shown(state: TableState, target: Target, lsn: int, condition: str | None, verified: int | None) -> ShownTable:
    reached = max(lsn, state.last_commit_lsn) if state.status == APPLIED else state.last_commit_lsn
    place = (state.schema, state.table, str(state.path.table), state.version)
    view, tag = _view_of(state.path, target), state.path.tag
    through = None if verified is None else format_lsn(verified)
    return ShownTable(*place, format_lsn(reached), state.status, view, tag, condition, through)


def _view_of(path: Place, target: Target) -> str | None:
    """The view of a table in a catalog: with the prefix bi, `main`.`shop_public`.`orders` of main.shop has the view
    `main`.`bi_public`.`orders`."""
    if target.views is None or target.catalog is None or not path.is_in_catalog:
        return None
    catalog, _, prefix = target.catalog.partition(".")
    _, schema, table = path.catalog_names
    schema = schema.removeprefix(f"{prefix.lower()}_") if prefix else schema
    return str(Place.in_catalog(f"{catalog}.{target.views}", schema, table))
