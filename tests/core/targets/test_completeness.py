"""From which commit on a table has all rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgoutput_etl.config.rules import TableRule
from pgoutput_etl.config.settings import Snapshots
from pgoutput_etl.ledger.tables import table_row, table_state
from pgoutput_etl.schema.relation_history import RelationSpan
from pgoutput_etl.targets.condition import ConditionKind, condition_of
from pgoutput_etl.targets.plan import (
    CompleteSince,
    Since,
    TableChanges,
    TableState,
    complete_since,
    created_since,
    may_lack_rows,
)
from tests.core.targets.test_planner import state_of
from tests.support.small_archives import T, table

FIRST, SNAPSHOT = CompleteSince(Since.FIRST_CHANGE, 100), CompleteSince(Since.SNAPSHOT, 90)
SPANS = (RelationSpan((150, 0, 1), table()), RelationSpan((160, 0, 9), table("id", "v", "w")))


def written(known: CompleteSince | None) -> TableState:
    return replace(state_of(table()), complete_since=known)


def test_a_new_table_is_known_from_its_first_change_on() -> None:
    assert complete_since(None, TableChanges(T, runs=SPANS)) == CompleteSince(Since.FIRST_CHANGE, 150)
    skipped = replace(written(None), version=-1)
    assert complete_since(skipped, TableChanges(T, runs=SPANS)) == CompleteSince(Since.FIRST_CHANGE, 150)


@pytest.mark.parametrize("known", [None, FIRST, SNAPSHOT])
def test_later_batches_and_rebuilds_keep_what_is_known(known: CompleteSince | None) -> None:
    assert complete_since(written(known), TableChanges(T, runs=SPANS)) == known


@pytest.mark.parametrize(
    ("known", "expected"),
    [(None, CompleteSince(Since.TRUNCATE, 155)), (FIRST, CompleteSince(Since.TRUNCATE, 155)), (SNAPSHOT, SNAPSHOT)],
)
def test_a_truncate_leaves_no_earlier_rows(known: CompleteSince | None, expected: CompleteSince) -> None:
    changes = TableChanges(T, runs=SPANS, truncates=1, truncated_at=(155, 0, 3))
    assert complete_since(written(known), changes) == expected


def test_a_root_lacks_the_rows_of_a_table_that_became_its_partition() -> None:
    gained, attached = TableChanges(T, runs=SPANS, gained=("public.old",)), CompleteSince(Since.ATTACHMENT, 150)
    for known in (None, FIRST, SNAPSHOT):
        assert complete_since(written(known), gained) == attached
    assert complete_since(written(attached), TableChanges(T, runs=SPANS)) == attached
    assert created_since(written(attached), [(90, frozenset())]) == written(attached)
    truncated = TableChanges(T, runs=SPANS, truncates=1, truncated_at=(155, 0, 3))
    assert complete_since(written(attached), truncated) == CompleteSince(Since.TRUNCATE, 155)
    for snapshots in Snapshots:
        condition = condition_of(written(attached), snapshots, TableRule("*"))
        assert condition is not None
        assert condition.state is ConditionKind.INCOMPLETE


def test_a_table_that_a_server_did_not_have_was_created_later() -> None:
    state = written(FIRST)
    created = replace(state, complete_since=CompleteSince(Since.CREATION, 100))
    assert created_since(state, [(90, frozenset({7, 8}))]) == created
    assert created_since(state, [(90, frozenset({T}))]) == state, "it existed"
    assert created_since(state, [(101, frozenset({7}))]) == state, "the snapshot is later than the change"
    assert created_since(state, []) == state
    assert created_since(written(SNAPSHOT), [(90, frozenset())]) == written(SNAPSHOT)


@pytest.mark.parametrize("known", [None, *(CompleteSince(kind, 100) for kind in Since)])
def test_the_ledger_keeps_it(known: CompleteSince | None) -> None:
    state = written(known)
    assert table_state(table_row(state)) == state
    older = {name: value for name, value in table_row(state).items() if not name.startswith("complete")}
    assert table_state(older).complete_since is None
    unproven = (Since.FIRST_CHANGE, Since.ATTACHMENT, Since.REWRITE, Since.UNLOGGED, Since.GAP)
    assert may_lack_rows(state) == (known is not None and known.kind in unproven)
