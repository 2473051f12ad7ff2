"""Plans of tables that several sources or tables share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pgoutput_etl.config.rules import Mode, TableRule
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.load.rebuild import in_their_places
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.targets.target_plan import refuse_other_settings, settings_of
from tests.core.targets.test_catalogs import CONFIG as IN_CATALOG
from tests.core.targets.test_catalogs import places, plan_of
from tests.core.targets.test_planner import CONFIG, state_of
from tests.support.small_archives import T, table

SHARED = TableRule("*.orders", into="shop.orders", tag={"source": "{source}", "tenant": "{schema}"})


def of(schema: str, oid: int = T, name: str = "orders") -> Relation:
    return replace(table(oid=oid, name=name), namespace=schema)


def test_tables_with_different_tags_have_places_of_their_own() -> None:
    relations = of("a", 1), of("b", 2), of("c", 3, "items")
    assert places(plan_of(*relations, config=replace(CONFIG, tables=(SHARED,)))) == {
        1: "root/shop/orders[source=s,tenant=a]",
        2: "root/shop/orders[source=s,tenant=b]",
        3: "root/c/items",
    }
    plan = plan_of(*relations[:2], config=replace(IN_CATALOG, tables=(SHARED,)))
    assert plan.held == []
    assert places(plan) == {
        1: "`main`.`shop`.`orders`[source=s,tenant=a]",
        2: "`main`.`shop`.`orders`[source=s,tenant=b]",
    }


def test_the_table_is_partitioned_by_its_tag() -> None:
    [task] = plan_of(of("a"), config=replace(CONFIG, tables=(SHARED,))).tasks
    assert task.shape.layout.partition_by == ("source", "tenant")
    clustered = replace(SHARED, cluster_by=("source", "tenant", "id"))
    [task] = plan_of(of("a"), config=replace(CONFIG, tables=(clustered,))).tasks
    assert (task.shape.layout.partition_by, task.shape.layout.cluster_by) == ((), ("source", "tenant", "id"))
    assert task.remarks == ()


def test_another_tag_moves_the_rows() -> None:
    state = replace(state_of(of("a")), path=Place.parse("root/shop/orders[source=s,tenant=a]"))
    plan = plan_of(of("b"), config=replace(CONFIG, tables=(SHARED,)), states={T: state})
    [task] = plan.tasks
    assert (task.path, task.moved_from) == (Place.parse("root/shop/orders[source=s,tenant=b]"), (state.path, 7))
    assert plan.vacated == [state.path]


def test_a_table_that_took_the_tag_displaces_the_other() -> None:
    config = replace(CONFIG, tables=(SHARED,))
    place = Place("root/shop/orders").tagged({"source": "s", "tenant": "a"})
    state: TableState = replace(state_of(of("a", 1)), oid=1, path=place)
    plan = plan_of(of("a", 2), config=config, states={1: state})
    assert {task.oid: task.path for task in plan.tasks} == {1: Place("root/_pgoutput_etl/displaced/s/1"), 2: place}
    assert [task.replaces for task in plan.tasks if task.oid == 2] == [True]


def test_two_tables_with_one_tag_are_refused() -> None:
    config = replace(CONFIG, tables=(replace(SHARED, tag={"source": "{source}"}),))
    with pytest.raises(ConfigError, match=r"tables\[0\].tag: a.orders and b.orders would have the same tag"):
        plan_of(of("a", 1), of("b", 2), config=config)


@pytest.mark.parametrize("is_in_catalog", [True, False])
def test_tags_are_equal_whatever_the_order_and_case_of_the_rule(is_in_catalog: bool) -> None:
    rules = (
        TableRule("a.*", into="s.t", tag={"k": "x", "l": "y"}),
        TableRule("b.*", into="S.t", tag={"l": "y", "k": "x"}),
    )
    config = replace(IN_CATALOG if is_in_catalog else CONFIG, tables=rules)
    if not is_in_catalog:
        assert len({*places(plan_of(of("a", 1), of("b", 2), config=config)).values()}) == 2
        return
    with pytest.raises(ConfigError, match=r"a\.orders and b\.orders would have the same tag"):
        plan_of(of("a", 1), of("b", 2), config=config)


def test_a_shared_table_and_one_whose_name_differs_in_case_are_held_in_a_catalog() -> None:
    config = replace(IN_CATALOG, tables=(TableRule("b.*", into="A.orders", tag={"k": "x"}),))
    plan = plan_of(of("a", 1), of("b", 2), config=config)
    assert ["only in case" in held.reason for held in plan.held] == [True]
    assert len(plan.tasks) == 1


def test_a_table_is_rebuilt_where_it_is_unless_a_shared_table_is_involved() -> None:
    own, shared = Place("root/a/orders"), Place("root/shop/orders").tagged({"source": "s", "tenant": "a"})
    before = Place("root/before/orders")
    for config, place, want, vacated in (
        (CONFIG, own, own, []),
        (CONFIG, before, before, []),
        (CONFIG, shared, own, [shared]),
        (replace(CONFIG, tables=(SHARED,)), own, shared, [own]),
        (replace(CONFIG, tables=(SHARED,)), shared, shared, []),
    ):
        plan = in_their_places(plan_of(of("a"), config=config), {T: place})
        assert ([task.path for task in plan.tasks], plan.vacated) == ([want], vacated)


def test_a_table_with_the_shared_name_is_refused() -> None:
    rule = replace(SHARED, match="a.orders")
    with pytest.raises(ConfigError, match=r"tables\[0\].into: the archive has another table shop.orders"):
        plan_of(of("a", 1), of("shop", 2), config=replace(CONFIG, tables=(rule,)))


@pytest.mark.parametrize("name", ["tenant", "Tenant"])
def test_a_table_with_a_column_of_the_tag_is_held(name: str) -> None:
    relation = replace(table("id", name, name="orders"), namespace="a")
    [held] = plan_of(relation, config=replace(CONFIG, tables=(SHARED,))).held
    assert "is also in the tag" in held.reason


@pytest.mark.parametrize("change", [{"into": "shop.others"}, {"tag": {"source": "x"}}, {"into": None, "tag": {}}])
def test_a_batch_is_finished_under_the_tag_that_it_was_begun_with(change: dict[str, Any]) -> None:
    config = replace(CONFIG, tables=(replace(SHARED, mode=Mode.HISTORY),))
    refuse_other_settings(settings_of(config), config, [("a", "orders")], 1)
    other = replace(config, tables=(replace(config.tables[0], **change),))
    with pytest.raises(RunError, match=r"another configuration .*: tables, for a.orders"):
        refuse_other_settings(settings_of(config), other, [("a", "orders")], 1)
