"""Partitions that a root gains and loses, as far as the archive shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgoutput_etl.config.settings import Snapshots
from pgoutput_etl.ledger.tables import table_row
from pgoutput_etl.protocol.messages import PgoutputMessage
from pgoutput_etl.targets.condition import ConditionKind, condition_of
from pgoutput_etl.targets.plan import CompleteSince, Since, TableChanges
from pgoutput_etl.targets.target_plan import TargetPlan
from tests.support.nights import CONFIG, Nights
from tests.support.small_archives import Change, copydata, insert, table, transaction, truncate

ROOT, LEAF = 100, 101
THROUGH_ROOT = (table("id", "v", oid=ROOT, name="r"), table("id", "v", oid=LEAF, name="r_n"))
ALONE = THROUGH_ROOT[1]


def apply(nights: Nights, *changes: Change) -> TargetPlan:
    number = nights.files + 1
    messages: list[PgoutputMessage] = transaction(number, number * 0x100, *changes)
    return nights.night([copydata(messages, 0x1000 * number)])


def changes_of(plan: TargetPlan, oid: int) -> TableChanges:
    [changes] = [task.changes for task in plan.tables.tasks if task.oid == oid]
    return changes


@pytest.fixture
def nights() -> Nights:
    """A root that is complete, with a row of its partition."""
    nights = Nights()
    apply(nights, THROUGH_ROOT[0], truncate(ROOT), *THROUGH_ROOT, insert("1", "a", oid=ROOT))
    return nights


def test_a_root_keeps_the_rows_of_a_partition_that_has_its_own_now(nights: Nights) -> None:
    detached = apply(nights, ALONE, insert("2", "b", oid=LEAF))
    assert detached.tables.tasks[0].remarks == (
        "It was a partition of public.r, under which the rows that it had before were sent. Load a snapshot",
    )
    assert nights.states[LEAF].complete_since == CompleteSince(Since.ATTACHMENT, 0x200)
    plan = apply(nights, THROUGH_ROOT[0], insert("3", "c", oid=ROOT))
    assert changes_of(plan, ROOT).lost == ("public.r_n",)
    [task] = plan.tables.tasks
    assert task.remarks == (
        "public.r_n is no longer a partition: the rows that it had before are left in this table. Load a snapshot",
    )
    state = nights.states[ROOT]
    assert state.complete_since == CompleteSince(Since.ATTACHMENT, 0x300)
    condition = condition_of(state, Snapshots.ACCEPT, CONFIG.rule_for("public", "r"))
    assert condition is not None
    assert condition.state is ConditionKind.INCOMPLETE
    assert "a partition was attached or detached" in condition.reason
    assert changes_of(apply(nights, insert("4", "d", oid=ROOT)), ROOT).lost == ()
    apply(nights, truncate(ROOT))
    assert nights.states[ROOT].complete_since == CompleteSince(Since.TRUNCATE, 0x500)


def test_in_one_night(nights: Nights) -> None:
    plan = apply(nights, ALONE, insert("2", "b", oid=LEAF), THROUGH_ROOT[0], insert("3", "c", oid=ROOT))
    assert changes_of(plan, ROOT).lost == ("public.r_n",)


def test_a_snapshot_after_the_detachment_has_no_such_rows(nights: Nights) -> None:
    """Even if the partition's own rows go on, and the root's first row since then is later."""
    apply(nights, ALONE, insert("2", "b", oid=LEAF))
    loaded = replace(nights.states[ROOT], complete_since=CompleteSince(Since.SNAPSHOT, 0x280), last_row=None)
    nights.tables = [table_row(state) for state in (nights.states | {ROOT: loaded}).values()]
    apply(nights, ALONE, insert("3", "c", oid=LEAF))
    assert changes_of(apply(nights, THROUGH_ROOT[0], insert("4", "d", oid=ROOT)), ROOT).lost == ()


def test_a_partition_that_is_described_again_is_none(nights: Nights) -> None:
    plan = apply(nights, *THROUGH_ROOT, insert("2", "b", oid=ROOT))
    assert (changes_of(plan, ROOT).gained, changes_of(plan, ROOT).lost) == ((), ())
