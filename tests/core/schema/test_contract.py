"""What happens when columns change, by the rule's on_schema_change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pgoutput_etl.config.rules import TableRule
from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import RunError
from pgoutput_etl.protocol.messages import Relation, ReplicaIdentity
from pgoutput_etl.reasons import Reason, ReasonKind, kind_of
from pgoutput_etl.schema.column_matching import Doubt
from pgoutput_etl.schema.contract import OnChange, SchemaContract
from pgoutput_etl.schema.relation_history import RelationHistory, RelationSpan
from pgoutput_etl.targets.plan import TableChanges
from pgoutput_etl.targets.planner import make_plan
from pgoutput_etl.targets.target_plan import refuse_other_settings, settings_of
from pgoutput_etl.transactions.cutoff import Cutoff
from pgoutput_etl.types import UserTypes
from tests.core.targets.test_planner import CONFIG, plan_of, state_of, task_of
from tests.support.small_archives import T, table

INT, BIGINT = 23, 20
BEFORE = table("id", ("v", INT), "w")
CHANGED = {
    "add": (table("id", ("v", INT), "w", ("x", INT)), "column added: x"),
    "drop": (table("id", ("v", INT)), "column dropped: w"),
    "rename": (table("id", ("value", INT), "w"), "column renamed: value (was v)"),
    "retype": (table("id", ("v", BIGINT), "w"), "column retyped: v"),
    "key": (table("id", ("v", INT), "w", key=["w"]), "key changed (id to w)"),
}


def contract(actions: Mapping[str, OnChange]) -> SchemaContract:
    return SchemaContract.of({part: action.value for part, action in actions.items()})


def with_contract(contract: SchemaContract, **rule: object) -> Config:
    return replace(CONFIG, tables=(TableRule("*", on_schema_change=contract, **rule),))  # type: ignore[arg-type]


@pytest.mark.parametrize(("part", "after", "change"), [(part, *changed) for part, changed in CHANGED.items()])
def test_each_kind_of_change_is_followed_held_or_refused(part: str, after: Relation, change: str) -> None:
    state = state_of(BEFORE, types=["string", "int32", "string"])
    others = contract({**dict.fromkeys(CHANGED, OnChange.FAIL), part: OnChange.FOLLOW})
    assert [str(c) for _, c in task_of(plan_of([after], state, with_contract(others))).schema_changes] == [change]

    [held] = plan_of([after], state, with_contract(contract({part: OnChange.HOLD}))).held
    assert held.reason == f"its columns changed, which on_schema_change holds: {change}"
    assert kind_of(held.reason) is (ReasonKind.NEW_TYPE if part == "retype" else ReasonKind.CONTRACT)

    with pytest.raises(RunError, match="asks to stop: ") as failed:
        plan_of([after], state, with_contract(contract({part: OnChange.FAIL})))
    assert f"the columns of public.t changed, and its on_schema_change asks to stop: {change}. " in str(failed.value)


def test_a_new_table_and_a_configured_key_are_no_change() -> None:
    strict = contract(dict.fromkeys(CHANGED, OnChange.FAIL))
    assert len(task_of(plan_of([BEFORE, CHANGED["add"][0]], None, with_contract(strict))).spans) == 2
    state = state_of(BEFORE, types=["string", "int32", "string"])
    rule = with_contract(SchemaContract(key=OnChange.FAIL), key=("id",))
    whole = table("id", ("v", INT), "w", identity=ReplicaIdentity.FULL)
    assert task_of(plan_of([whole], state, rule)).shape.key == (0,)
    assert plan_of([whole], state, with_contract(SchemaContract(key=OnChange.HOLD))).held


def test_kept_columns_stay_in_the_target() -> None:
    state = state_of(BEFORE, types=["string", "int32", "string"])
    keeping = with_contract(SchemaContract(drop=OnChange.KEEP))
    task = task_of(plan_of([CHANGED["drop"][0]], state, keeping))
    assert [column.name for column in task.shape.columns] == ["id", "v", "w"]
    assert [column.name for column in task.retired] == ["w"]
    assert [str(change) for _, change in task.schema_changes] == ["column dropped or renamed: w"]


RETYPED = table("id", ("v", INT), ("w", BIGINT))
UNDECIDED = "columns: {w: {renamed_from: w}}, or columns: {w: added}"


def test_an_ambiguous_change_is_reported_until_it_is_declared() -> None:
    state = state_of(BEFORE, types=["string", "int32", "string"])
    [doubt] = task_of(plan_of([RETYPED], state, CONFIG)).doubts
    assert (doubt.column, doubt.is_kept) == ("w", True)
    declaring = replace(CONFIG, tables=(TableRule("*", columns={"w": {"renamed_from": "w"}}),))
    assert task_of(plan_of([RETYPED], state, declaring)).doubts == ()
    again = table("id", ("v", INT), ("w", BIGINT), "x")
    changed = replace(state, relation=RETYPED, types=("string", "int32", "int64"), doubts=(doubt,))
    assert task_of(plan_of([again], changed, CONFIG)).doubts == (doubt,), "a later change decides nothing"


def test_a_truncate_decides_every_doubt() -> None:
    state = state_of(BEFORE, types=["string", "int32", "string"])
    doubtful = replace(state, doubts=(Doubt("v", True, ()),))
    history = RelationHistory()
    history.declare(RETYPED, (0, 1), None)
    start = (100, 0, 1)
    changes = TableChanges(T, truncates=1, truncated_at=start, runs=(RelationSpan(start, RETYPED),), last_row=start)
    [task] = make_plan(CONFIG, history, {T: changes}, {T: doubtful}, UserTypes()).tasks
    assert task.doubts == ()


def test_an_ambiguous_change_holds_its_table_if_the_rule_says_so() -> None:
    holding = with_contract(SchemaContract.of({"ambiguous": "hold"}))
    state = state_of(BEFORE, types=["string", "int32", "string"])
    [held] = plan_of([RETYPED], state, holding).held
    assert held.reason == (
        "its columns changed, which on_schema_change holds: w has kept its values under another type. Declare "
        f"{UNDECIDED}"
    )
    assert task_of(plan_of([CHANGED["add"][0]], state, holding)).doubts == ()
    doubtful = replace(state, doubts=(Doubt("v", True, ()),))
    assert len(task_of(plan_of([CHANGED["add"][0]], doubtful, holding)).doubts) == 1, "an old doubt holds nothing"


def test_a_held_table_stays_held_until_it_is_rebuilt() -> None:
    holding = with_contract(SchemaContract(add=OnChange.HOLD))
    state = state_of(BEFORE, types=["string", "int32", "string"])
    [held] = plan_of([CHANGED["add"][0]], state, holding).held
    later = replace(state, status="held", reason=held.reason)
    for config in (holding, CONFIG):
        [again] = plan_of([CHANGED["add"][0]], later, config).held
        assert again.reason == held.reason


def test_unreadable_bytes_count_more_than_columns_to_accept() -> None:
    """The rebuild of this table alone would not notice them."""
    holding = with_contract(SchemaContract(add=OnChange.HOLD))
    state = state_of(BEFORE, types=["string", "int32", "string"])
    cutoff = Cutoff(150, "unreadable bytes")
    after = CHANGED["add"][0]
    history = RelationHistory()
    history.declare(after, (0, 1), None)
    changes = TableChanges(T, inserts=1, runs=(RelationSpan((100, 0, 1), after),), last_row=(100, 0, 1))
    for before in (state, replace(state, status="held", reason=Reason("its columns changed", ReasonKind.CONTRACT))):
        [held] = make_plan(holding, history, {T: changes}, {T: before}, UserTypes(), cutoffs={T: cutoff}).held
        assert held.reason == "unreadable bytes"
        [none] = make_plan(holding, history, {}, {T: before}, UserTypes(), cutoffs={T: cutoff}).held
        assert none.reason == "unreadable bytes"


def test_a_batch_is_finished_under_the_contract_that_it_began_with() -> None:
    holding = with_contract(SchemaContract(add=OnChange.HOLD))
    refuse_other_settings(settings_of(holding), holding, [("public", "t")], 1)
    with pytest.raises(RunError, match=r"tables, for public\.t"):
        refuse_other_settings(settings_of(holding), CONFIG, [("public", "t")], 1)


def test_a_contract_that_ignores_ambiguity_still_follows_all_changes() -> None:
    assert SchemaContract.of({"ambiguous": "ignore"}).follows_all
    assert not SchemaContract.of({"ambiguous": "hold"}).follows_all
    assert not SchemaContract.of({"drop": "keep"}).follows_all
