"""Targets in a catalog: their names, and tables without a possible name."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from pgoutput_etl.config.rules import TableRule
from pgoutput_etl.config.settings import Config, Source, State, Target
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.targets.plan import TableChanges, TablePlan, TableState
from pgoutput_etl.targets.planner import make_plan
from pgoutput_etl.types import UserTypes
from pgoutput_etl.work.backfill.request import BackfillRequest
from tests.core.targets.test_planner import state_of
from tests.support.small_archives import table

CONFIG = Config(Source("s", "landing"), Target(None, "main"), State("ledger"))


def plan_of(
    *relations: Relation,
    config: Config = CONFIG,
    states: dict[int, TableState] | None = None,
    placed: Collection[int] = (),
) -> TablePlan:
    """The plan of an insert into each relation. Relations of one OID are a table that was renamed."""
    history = RelationHistory()
    for n, relation in enumerate(relations, 1):
        history.declare(relation, (0, n), None)
    changes = {relation.oid: TableChanges(relation.oid, inserts=1) for relation in relations}
    return make_plan(config, history, changes, states or {}, UserTypes(), placed=placed)


def places(plan: TablePlan) -> dict[int, str]:
    return {task.oid: str(task.path) for task in plan.tasks}


@pytest.mark.parametrize(
    ("catalog", "place"),
    [
        ("main", "`main`.`public`.`orders`"),
        ("spark_catalog", "`spark_catalog`.`public`.`orders`"),
        ("my-lake", "`my-lake`.`public`.`orders`"),
        ("main.shop", "`main`.`shop_public`.`orders`"),
    ],
)
def test_a_name_in_a_catalog_has_three_parts(catalog: str, place: str) -> None:
    parsed = Place.parse(place)
    assert Place.in_catalog(catalog, "public", "Orders") == parsed
    assert (parsed.is_in_catalog, parsed.identifier) == (True, place)
    assert parsed.catalog_names[0] == catalog.partition(".")[0]
    assert Place("/tables/public/o`rders").identifier == "delta.`/tables/public/o``rders`"
    config = replace(CONFIG, target=Target(None, catalog))
    assert places(plan_of(table(oid=1, name="orders"), config=config)) == {1: place}


@pytest.mark.parametrize("name", ["a b", "a.b", "é", "a`b", "a-b", "a/../b"])
def test_a_name_that_not_every_catalog_accepts_holds_the_table(name: str) -> None:
    plan = plan_of(table(oid=1, name=name), table(oid=2, name="plain"))
    assert places(plan) == {2: "`main`.`public`.`plain`"}
    assert [(held.oid, held.reason.partition(" in a catalog")[0]) for held in plan.held] == [
        (1, f"its table name {name!r} is not possible")
    ]


def test_tables_whose_names_differ_only_in_case_are_held() -> None:
    upper, lower = table(oid=1, name="Orders"), table(oid=2, name="orders")
    plan = plan_of(upper, lower)
    assert places(plan) == {}
    assert ["only in case, which catalogs ignore" in held.reason for held in plan.held] == [True, True]


def test_an_existing_table_continues_and_a_skipped_one_does_not_count() -> None:
    upper, lower = table(oid=1, name="Orders"), table(oid=2, name="orders")
    there = replace(state_of(upper), oid=1, path=Place("`main`.`public`.`orders`"))
    plan = plan_of(upper, lower, states={1: there})
    assert places(plan) == {1: str(there.path)}
    assert [held.oid for held in plan.held] == [2]

    skips = replace(CONFIG, tables=(TableRule("public.Orders", skip=True),))
    assert places(plan_of(upper, lower, config=skips)) == {2: "`main`.`public`.`orders`"}


def test_a_table_that_is_rebuilt_keeps_its_place() -> None:
    """As in backfills and snapshots, which begin without its state."""
    plan = plan_of(table(oid=1, name="Orders"), table(oid=2, name="orders"), placed=[1])
    assert places(plan) == {1: "`main`.`public`.`orders`"}
    assert [held.oid for held in plan.held] == [2]


def test_the_old_name_of_a_renamed_table_is_free() -> None:
    plan = plan_of(table(oid=1, name="Orders"), table(oid=1, name="old_orders"), table(oid=2, name="orders"))
    assert places(plan) == {1: "`main`.`public`.`old_orders`", 2: "`main`.`public`.`orders`"}


def test_a_table_renamed_only_in_case_keeps_its_place() -> None:
    there = replace(state_of(table(oid=1, name="Orders")), oid=1, path=Place("`main`.`public`.`orders`"))
    plan = plan_of(table(oid=1, name="orders"), states={1: there})
    assert [(task.path, task.moved_from) for task in plan.tasks] == [(there.path, None)]


def test_a_displaced_table_moves_to_a_folder() -> None:
    there = replace(state_of(table(oid=1)), oid=1, path=Place("`main`.`public`.`t`"))
    plan = plan_of(table(oid=1), table(oid=2), states={1: there})
    assert places(plan) == {1: "ledger/displaced/s/1", 2: "`main`.`public`.`t`"}
    by_oid = {task.oid: task for task in plan.tasks}
    assert by_oid[1].moved_from == (there.path, 7)
    assert by_oid[2].replaces


def test_a_side_build_is_in_folders() -> None:
    with pytest.raises(ConfigError, match="--out: expected a folder"):
        BackfillRequest(("*",), out="`main`.`shop`").check()
