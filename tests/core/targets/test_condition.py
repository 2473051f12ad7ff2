"""What is known against a table, from its state, `source.snapshot`, and its rule."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace

import pytest

from pgoutput_etl.config.rules import Mode, OnMissingRow, TableRule
from pgoutput_etl.config.settings import Snapshots
from pgoutput_etl.places import Place
from pgoutput_etl.schema.column_matching import Doubt
from pgoutput_etl.schema.contract import SchemaContract
from pgoutput_etl.targets.condition import (
    ConditionKind,
    TableCondition,
    condition_lines,
    condition_of,
    conditions_of,
    consistency_line,
    excepted_tables,
)
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.targets.plan import HELD, SKIPPED, WAS_SKIPPED, CompleteSince, Since, TableState
from tests.core.targets.test_planner import CONFIG, state_of
from tests.support.small_archives import T, table

FIRST = CompleteSince(Since.FIRST_CHANGE, 0x100)
COMPLETE = [CompleteSince(kind, 0x90) for kind in (Since.SNAPSHOT, Since.CREATION, Since.TRUNCATE)]
MISSING, DOUBLED = Mismatches(3, 0, 0x200, 741), Mismatches(0, 1, 0x200, 741)
RULE = TableRule("*")
MANUAL, AUTO, ACCEPT = Snapshots.MANUAL, Snapshots.AUTO, Snapshots.ACCEPT


def state(since: CompleteSince | None = COMPLETE[0], found: Mismatches | None = None, **fields: object) -> TableState:
    values = {"complete_since": since, "mismatches": found, **fields}
    return replace(state_of(table()), **values)  # type: ignore[arg-type]


def of(table_state: TableState, snapshots: Snapshots = MANUAL, rule: TableRule = RULE) -> ConditionKind | None:
    found = condition_of(table_state, snapshots, rule)
    return None if found is None else found.state


@pytest.mark.parametrize("snapshots", Snapshots)
@pytest.mark.parametrize("since", COMPLETE)
def test_a_complete_table_is_consistent_until_a_change_contradicts_its_rows(
    since: CompleteSince, snapshots: Snapshots
) -> None:
    assert of(state(since), snapshots) is None
    assert of(state(since, MISSING), snapshots) is ConditionKind.DIVERGED
    assert of(state(since, DOUBLED), snapshots) is ConditionKind.DIVERGED


@pytest.mark.parametrize("found", [None, MISSING])
def test_a_table_known_from_its_first_change_on_is_incomplete_unless_that_is_accepted(found: Mismatches | None) -> None:
    assert of(state(FIRST, found), MANUAL) is ConditionKind.INCOMPLETE
    assert of(state(FIRST, found), AUTO) is ConditionKind.INCOMPLETE
    assert of(state(FIRST, found), ACCEPT) is None


@pytest.mark.parametrize("since", [None, FIRST])
@pytest.mark.parametrize("snapshots", Snapshots)
def test_two_rows_with_one_key_contradict_each_other_in_any_table(
    since: CompleteSince | None, snapshots: Snapshots
) -> None:
    assert of(state(since, DOUBLED), snapshots) is ConditionKind.DIVERGED


def test_a_table_of_an_older_ledger_is_incomplete_only_if_a_change_proves_it() -> None:
    assert of(state(None)) is None
    assert of(state(None, MISSING)) is ConditionKind.INCOMPLETE
    assert of(state(None, MISSING), ACCEPT) is None


def test_mismatches_that_the_rule_ignores_do_not_count() -> None:
    ignoring = replace(RULE, on_missing_row=OnMissingRow.IGNORE)
    assert of(state(found=MISSING), rule=ignoring) is None
    assert of(state(found=DOUBLED), rule=ignoring) is None
    assert of(state(FIRST, MISSING), rule=ignoring) is ConditionKind.INCOMPLETE
    holding = replace(RULE, on_missing_row=OnMissingRow.HOLD)
    assert of(state(found=MISSING), rule=holding) is ConditionKind.DIVERGED


def test_mode_append_has_no_rows_to_contradict() -> None:
    assert of(state(found=DOUBLED, mode=Mode.APPEND)) is None
    assert of(state(FIRST, DOUBLED, mode=Mode.APPEND)) is ConditionKind.INCOMPLETE
    for mode in (Mode.HISTORY, Mode.SOFT_DELETE):
        assert of(state(found=MISSING, mode=mode)) is ConditionKind.DIVERGED


@pytest.mark.parametrize("version", [7, -1])
def test_a_held_table_is_only_held(version: int) -> None:
    held = condition_of(state(FIRST, DOUBLED, status=HELD, reason="why", version=version), MANUAL, RULE)
    assert held == TableCondition(T, "public", "t", ConditionKind.HELD, "why", 90)


def test_a_table_that_the_configuration_skips_is_never_named() -> None:
    skipping = replace(RULE, skip=True)
    for status in ("applied", HELD, SKIPPED):
        assert of(state(FIRST, DOUBLED, status=status), rule=skipping) is None


def test_a_table_that_is_no_longer_skipped_lacks_commits() -> None:
    """The next batch holds it, but a run without new files has none."""
    found = condition_of(state(status=SKIPPED, reason=WAS_SKIPPED), ACCEPT, RULE)
    assert found is not None
    assert (found.state, found.reason) == (ConditionKind.HELD, WAS_SKIPPED)


def test_tables_that_nobody_reads_under_their_names_do_not_alarm() -> None:
    assert of(state(FIRST, DOUBLED, version=-1)) is None
    displaced = state(FIRST, DOUBLED, path=Place(f"root/_pgoutput_etl/displaced/s/{T}"))
    assert of(displaced) is None
    assert of(replace(displaced, status=HELD)) is ConditionKind.HELD, "changes of it are applied nowhere"


CAUSES = (
    "Likely causes: another program has changed the Delta table, a landed file is missing, or the server changed rows "
    "without sending them"
)
THREE = "3 UPDATEs or DELETEs met no row"
TRANSACTION = "in transaction 741, committed at LSN 0/200"
ALTHOUGH = ". The table has all rows since a snapshot at LSN 0/90"
EARLIER = "rows from before its first change at LSN 0/100 are missing"


@pytest.mark.parametrize(
    ("table_state", "reason"),
    [
        (
            state(COMPLETE[0], Mismatches(3, 2, 0x200, 741)),
            f"{THREE} and 2 changes gave a row the key of another row; the first was {TRANSACTION}{ALTHOUGH}. {CAUSES}",
        ),
        (state(None, DOUBLED), f"1 change gave a row the key of another row; it was {TRANSACTION}. {CAUSES}"),
        (state(FIRST, MISSING), f"{EARLIER}: {THREE}; the first was {TRANSACTION}"),
        (
            state(None, Mismatches(1, 0, 0x200, 741)),
            f"rows from before the archive are missing: 1 UPDATE or DELETE met no row; it was {TRANSACTION}",
        ),
        (state(FIRST), f"{EARLIER}, if there were any"),
    ],
)
def test_the_reason_has_counts_and_the_first_commit(table_state: TableState, reason: str) -> None:
    found = condition_of(table_state, MANUAL, RULE)
    assert found is not None
    assert found.reason == reason
    assert found.mismatches == table_state.mismatches


KEPT, NEW = Doubt("v", True, ()), Doubt("total", False, ("n",))


def test_a_table_is_ambiguous_until_every_doubt_is_declared() -> None:
    doubtful = state(doubts=(KEPT, NEW))
    [found] = conditions_of([doubtful], CONFIG)
    assert (found.state, found.reason) == (ConditionKind.AMBIGUOUS, f"{KEPT}; {NEW}")
    assert condition_lines([found]) == [f"Ambiguous: public.t: {KEPT}; {NEW}"]
    one = condition_of(doubtful, MANUAL, TableRule("*", columns={"total": "added"}))
    assert one is not None
    assert one.reason == str(KEPT)
    both: dict[str, str | Mapping[str, str]] = {"total": "added", "v": {"renamed_from": "v"}}
    assert of(doubtful, rule=TableRule("*", columns=both)) is None
    assert of(doubtful, rule=TableRule("*", on_schema_change=SchemaContract.of({"ambiguous": "ignore"}))) is None


def test_the_other_declaration_asks_for_a_rebuild() -> None:
    found = condition_of(state(doubts=(NEW,)), MANUAL, TableRule("*", columns={"total": {"renamed_from": "n"}}))
    assert found is not None
    assert found.reason == "the declaration of total contradicts what was applied: rebuild the table"


def test_rows_that_contradict_count_more_than_a_doubt_and_a_doubt_more_than_missing_rows() -> None:
    assert of(state(found=MISSING, doubts=(KEPT,))) is ConditionKind.DIVERGED
    assert of(state(FIRST, doubts=(KEPT,))) is ConditionKind.AMBIGUOUS
    assert of(state(FIRST, doubts=(KEPT,)), ACCEPT) is ConditionKind.AMBIGUOUS


@pytest.mark.parametrize(
    ("fields", "is_repairable"),
    [
        ({}, True),
        ({"key": ()}, True),
        ({"mode": Mode.HISTORY}, False),
        ({"masks": {"note": "drop"}}, False),
        ({"status": HELD}, False),
    ],
)
def test_only_mirrors_without_masks_can_be_repaired(fields: dict[str, object], is_repairable: bool) -> None:
    found = condition_of(state(FIRST, DOUBLED, **fields), MANUAL, RULE)
    assert found is not None
    assert found.can_be_repaired == is_repairable


def test_conditions_are_sorted_by_name_and_follow_each_tables_rule() -> None:
    rules = (TableRule("public.b", skip=True), TableRule("public.c", on_missing_row=OnMissingRow.IGNORE))
    states = [state(found=MISSING, table=name) for name in "dcba"]
    assert [found.name for found in conditions_of(states, replace(CONFIG, tables=rules))] == ["public.a", "public.d"]


def test_a_condition_as_json() -> None:
    [found] = conditions_of([state(found=MISSING)], CONFIG)
    fields = json.loads(json.dumps(asdict(found)))
    assert (fields["state"], fields["table"], fields["lsn"]) == ("diverged", "t", 90)
    assert fields["mismatches"] == {"missing": 3, "doubled": 0, "commit_lsn": 0x200, "xid": 741}


def conditions(count: int, since: CompleteSince | None, found: Mismatches | None = None) -> tuple[TableCondition, ...]:
    return conditions_of([state(since, found, table=f"t{i:02}") for i in range(count)], CONFIG)


def test_tables_that_only_may_lack_rows_share_a_line() -> None:
    names = ", ".join(f"public.t0{i}" for i in range(8))
    assert condition_lines(conditions(10, FIRST)) == [
        f"Incomplete: earlier rows, if there were any, are missing: {names} and 2 more."
    ]


def test_proven_conditions_have_a_line_each() -> None:
    lines = condition_lines(conditions(12, COMPLETE[0], MISSING))
    assert len(lines) == 11
    assert lines[0].startswith("Diverged: public.t00: 3 UPDATEs or DELETEs met no row; the first was")
    assert lines[-1] == "… and 2 more tables"
    [line] = condition_lines(conditions(1, FIRST, MISSING))
    assert line.startswith("Incomplete: public.t00: rows from before its first change at LSN 0/100 are missing: 3 UPD")
    assert condition_lines(conditions_of([state(status=HELD)], CONFIG)) == []


def test_the_line_names_the_tables_that_are_excepted() -> None:
    assert consistency_line(0x200, {}) == "All tables are consistent through LSN 0/200."
    one = excepted_tables(conditions(1, FIRST))
    assert consistency_line(0x200, one) == "All tables but public.t00 (incomplete) are consistent through LSN 0/200."
    many = excepted_tables(conditions(6, COMPLETE[0], MISSING), ["public.new"])
    names = "public.new (ahead), public.t00 (diverged), public.t01 (diverged) and 4 more"
    assert consistency_line(0x200, many, "would be") == f"All tables but {names} would be consistent through LSN 0/200."
