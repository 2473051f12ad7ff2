"""Maintenance's rules and its report."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from io import StringIO

import pytest
from rich.console import Console

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta_history import is_as_recorded
from pgoutput_etl.targets.plan import HELD, TableState
from pgoutput_etl.targets.swaps import suspected_swaps
from pgoutput_etl.work.upkeep.report import MaintainedTable, MaintainSummary, print_maintenance
from pgoutput_etl.work.upkeep.request import MaintainRequest
from pgoutput_etl.work.upkeep.retention import (
    LEAST_SMALL_FILES,
    SMALL_FILE,
    FileCounts,
    RetentionRule,
    StoredFile,
    count_files,
    last_batch_before,
    obsolete_copies,
    retention_rules,
    zorder_columns,
)
from tests.core.targets.test_planner import state_of
from tests.support.small_archives import table

NOW = datetime(2026, 3, 31, tzinfo=timezone.utc)
BEFORE, AFTER = FileCounts(12, 1200, 11, 40, 4000, 27), FileCounts(1, 1100, 0, 13, 2300, 0)


def printed(summary: MaintainSummary) -> str:
    text = StringIO()
    print_maintenance(summary, Console(file=text, width=200))
    return text.getvalue()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (MaintainRequest(keep_days=6), "--keep-days: expected 7 or more"),
        (MaintainRequest(ledger_keep_days=0), "--ledger-keep-days"),
        (MaintainRequest(only=("vacuum", "drop")), "--only: expected some of retention, displaced, optimize, vacuum"),
        (MaintainRequest(only=()), "--only"),
    ],
)
def test_wrong_arguments_are_refused(request_: MaintainRequest, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        request_.check()


def test_valid_arguments_pass() -> None:
    MaintainRequest(keep_days=7, ledger_keep_days=1, only=("vacuum",), execute=True).check()


def test_the_last_batch_done_before_a_time() -> None:
    batches = [(n, NOW - timedelta(days=10 - n)) for n in range(1, 6)]
    assert last_batch_before(batches, NOW - timedelta(days=7)) == 2
    assert last_batch_before(batches, NOW) == 5
    assert last_batch_before(batches, NOW - timedelta(days=30)) == 0


def test_claims_of_the_last_batches_stay_however_old() -> None:
    """A run reads the claims of its own batch and of both neighbors."""
    [claims, quarantine, transactions] = retention_rules(last=10, since=0, settled_batch=10)
    assert claims == RetentionRule("claims", "batch", 9)
    assert transactions == RetentionRule("transactions", "batch", 10), "those of the last batch stay"
    assert quarantine == RetentionRule("quarantine", "redriven", 11)
    assert retention_rules(last=10, since=0, settled_batch=4) == (
        RetentionRule("claims", "batch", 5),
        RetentionRule("quarantine", "redriven", 5),
        RetentionRule("transactions", "batch", 5),
    )
    assert retention_rules(last=10, since=0, settled_batch=0) == ()
    assert [rule.table for rule in retention_rules(last=2, since=0, settled_batch=2)] == ["quarantine", "transactions"]


def test_rows_before_a_redrive_go_once_the_redrive_is_settled() -> None:
    names = ("relations", "types", "open_transactions")
    assert retention_rules(last=10, since=7, settled_batch=7)[3:] == tuple(
        RetentionRule(name, "batch", 7) for name in names
    )
    assert [rule.table for rule in retention_rules(last=10, since=7, settled_batch=6)] == [
        "claims",
        "quarantine",
        "transactions",
    ]


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([], True),
        (["OPTIMIZE", "VACUUM START", "VACUUM END"], True),
        (["OPTIMIZE", "WRITE"], False),
        (["RESTORE"], False),
        (["MERGE"], False),
        (["CLUSTER BY", "SET TBLPROPERTIES", "OPTIMIZE"], True),
        (["CHANGE COLUMN"], False),
    ],
)
def test_operations_after_which_a_table_is_as_recorded(operations: list[str], expected: bool) -> None:
    assert is_as_recorded(operations) is expected


def stored(name: str, size: int = 100, days: int = 0) -> StoredFile:
    return StoredFile(f"file:/t/{name}", size, NOW - timedelta(days=days))


def test_files_are_counted_by_their_names() -> None:
    files = [
        stored("part-1.parquet"),
        stored("part-2.parquet", SMALL_FILE),
        stored("aB/part-3.parquet", 50),
        stored("deletion_vector_1.bin", 7),
    ]
    counts = count_files(files, ["file:///t/part-1.parquet", "file:///t/part-2.parquet"], NOW - timedelta(days=7))
    assert counts == FileCounts(2, 100 + SMALL_FILE, 1, 4, 157 + SMALL_FILE, 0)
    assert count_files([], [], NOW) == FileCounts(0, 0, 0, 0, 0, 0)


def test_vacuum_is_due_for_old_files_that_the_newest_version_does_not_use() -> None:
    expiry = NOW - timedelta(days=7)
    used = ["file:///t/part-1.parquet", "file:///t/part-2.parquet"]
    old_but_used = [stored("part-1.parquet", days=90), stored("part-2.parquet", days=90)]
    recent = stored("part-3.parquet", days=6)
    assert not count_files([*old_but_used, recent], used, expiry).may_vacuum
    expired = stored("part-3.parquet", days=8)
    assert count_files([*old_but_used, expired], used, expiry).may_vacuum
    vectors = [stored(f"deletion_vector_{n}.bin", days=8) for n in range(3)]
    assert not count_files([*old_but_used, *vectors[:2]], used, expiry).may_vacuum, "the files may have one each"
    assert count_files([*old_but_used, *vectors], used, expiry).expired == 1
    assert FileCounts(1, 100, None, None, None, None).may_vacuum, "unknown"


def test_few_small_files_are_left_alone() -> None:
    assert not FileCounts(60, 1200, LEAST_SMALL_FILES - 1, 60, 1200, 0).may_compact
    assert FileCounts(60, 1200, LEAST_SMALL_FILES, 60, 1200, 0).may_compact


def test_names_that_delta_would_split_are_not_used_for_zorder() -> None:
    assert zorder_columns(["id", "the key"]) == ("id", "the key")
    assert zorder_columns(["a.b"]) == zorder_columns(["id", "a`b"]) == zorder_columns([]) == ()


def test_tables_whose_files_can_not_be_listed() -> None:
    assert not FileCounts(LEAST_SMALL_FILES - 1, 100, None, None, None, None).may_compact
    unlisted = FileCounts(300, 300, None, None, None, None)
    assert unlisted.may_compact
    one = MaintainedTable("public.t", "x", unlisted, FileCounts(1, 290, None, None, None, None), ("optimize",))
    other = MaintainedTable("ledger: claims", "y", BEFORE, AFTER, ("vacuum",))
    text = printed(MaintainSummary("shop", True, 2, (one, other)))
    assert re.search(r"public\.t +│ +300 → 1 │ +\? │ +300 → 290 │ +\? │ +\? │", text)
    assert "Bytes on storage: 4,000 before, 2,300 now, without 1 table whose files can't be listed." in text


def test_the_report_of_a_dry_run() -> None:
    table = MaintainedTable("ledger: claims", "x", BEFORE, None, ("retention", "optimize"), rows=5)
    text = printed(MaintainSummary("shop", False, 0, (table,), ("Targets were skipped: why",)))
    assert "retention, optimize" in text
    assert "Obsolete ledger rows: 5." in text
    assert "Targets were skipped: why" in text
    assert "Bytes on storage: 4,000. Dry run: nothing was changed; use --execute." in text
    assert "→" not in text


def test_the_report_has_counts_before_and_after() -> None:
    left = MaintainedTable("public.odd\x1b", "y", AFTER, AFTER, (), ("another program has changed it",))
    summary = MaintainSummary("shop", True, 7, (MaintainedTable("public.t", "x", BEFORE, AFTER, ("optimize",)), left))
    text = printed(summary)
    for part in ("12 → 1", "4,000 → 2,300", "6,300 before, 4,600 now", "Batch 7", "has changed it", "nothing"):
        assert part in text
    assert "\x1b" not in text
    assert json.loads(summary.to_json())["tables"][0]["after"]["files"] == 1


def named(oid: int, last_row: int, name: str = "t_new") -> TableState:
    return replace(state_of(table(oid=oid, name=name)), oid=oid, last_row=(last_row, 0, 0))


def displaced(oid: int, last_row: int) -> TableState:
    return replace(named(oid, last_row), path=Place(f"root/_pgoutput_etl/displaced/s/{oid}"))


def test_displaced_tables_that_have_not_changed_for_long_are_removed() -> None:
    old, changed, recent, held = displaced(1, 10), displaced(2, 20), displaced(3, 30), displaced(4, 40)
    held = replace(held, status=HELD)
    holder = named(5, 50)
    states = {state.oid: state for state in (old, changed, recent, held, holder)}
    was_there = replace(recent, path=Place("root/public/t_new"))
    before = {1: replace(old, version=1), 2: replace(changed, last_row=(5, 0, 0)), 3: was_there, 4: held, 5: holder}
    assert obsolete_copies(states, before) == [old], "compaction made a new version"
    assert obsolete_copies(states, {}) == []


def test_the_newest_displaced_table_stays_while_a_swap_is_suspected() -> None:
    still = named(1, 5, "t")
    states = {state.oid: state for state in (still, displaced(2, 20), displaced(3, 30), named(4, 40))}
    assert obsolete_copies(states, states) == [states[2]]
    assert suspected_swaps({oid: state for oid, state in states.items() if oid != 2})
    copied = {**states, 1: replace(still, last_row=(35, 0, 0))}
    assert obsolete_copies(copied, copied) == [states[2], states[3]]
