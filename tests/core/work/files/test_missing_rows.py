"""Which tables `source.snapshot: auto` loads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pgoutput_etl.config.rules import Mode, TableRule
from pgoutput_etl.config.settings import Snapshots
from pgoutput_etl.places import Place
from pgoutput_etl.schema.contract import OnChange, SchemaContract
from pgoutput_etl.targets.plan import CompleteSince, Since
from pgoutput_etl.work.files.missing_rows import _may_be_loaded, load_missing_rows
from tests.core.targets.test_planner import CONFIG, state_of
from tests.support.small_archives import T, table

STATE = replace(state_of(table()), complete_since=CompleteSince(Since.FIRST_CHANGE, 100))


def test_a_mirror_that_is_known_from_its_first_change_on() -> None:
    assert _may_be_loaded(STATE, CONFIG)


@pytest.mark.parametrize(
    "state",
    [
        replace(STATE, complete_since=None),
        replace(STATE, complete_since=CompleteSince(Since.TRUNCATE, 100)),
        replace(STATE, status="held"),
        replace(STATE, status="skipped"),
        replace(STATE, mode=Mode.HISTORY),
        replace(STATE, path=Place(f"root/_pgoutput_etl/displaced/{T}")),
    ],
)
def test_tables_that_a_snapshot_would_harm_or_not_help(state: object) -> None:
    assert not _may_be_loaded(state, CONFIG)  # type: ignore[arg-type]


@pytest.mark.parametrize("snapshots", [Snapshots.MANUAL, Snapshots.ACCEPT])
def test_only_auto_loads_anything(snapshots: Snapshots) -> None:
    config = replace(CONFIG, source=replace(CONFIG.source, snapshot=snapshots))
    session: Any = None  # nothing is asked of it
    reported: list[str] = []
    load_missing_rows(session, config, reported.append)
    assert not reported


@pytest.mark.parametrize("rule", [{"skip": True}, {"on_schema_change": SchemaContract(add=OnChange.HOLD)}])
def test_rules_that_exclude_it(rule: dict[str, object]) -> None:
    config = replace(CONFIG, tables=(TableRule("*", **rule),))  # type: ignore[arg-type]
    assert not _may_be_loaded(STATE, config)
