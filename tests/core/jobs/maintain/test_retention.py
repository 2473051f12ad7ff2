"""What maintenance may take away, and what it says."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from io import StringIO

import pytest
from rich.console import Console

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.jobs.maintain.report import MaintainedTable, MaintainSummary, print_maintenance
from pgoutput_etl.jobs.maintain.request import MaintainRequest
from pgoutput_etl.jobs.maintain.retention import (
    SMALL_FILE,
    FileCounts,
    RetentionRule,
    counted,
    drop_recent_batches,
    order_of,
    rules,
)
from pgoutput_etl.spark.delta_history import is_as_recorded

NOW = datetime(2026, 3, 31, tzinfo=timezone.utc)
BEFORE, AFTER = FileCounts(12, 1200, 11, 40, 4000), FileCounts(1, 1100, 0, 13, 2300)


def said(summary: MaintainSummary) -> str:
    text = StringIO()
    print_maintenance(summary, Console(file=text, width=200))
    return text.getvalue()


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (MaintainRequest(keep_days=6), "--keep-days: expected 7 or more"),
        (MaintainRequest(ledger_keep_days=0), "--ledger-keep-days"),
        (MaintainRequest(only=("vacuum", "drop")), "--only: expected some of retention, optimize, vacuum, checkpoint"),
        (MaintainRequest(only=()), "--only"),
    ],
)
def test_what_would_take_too_much_is_refused(request_: MaintainRequest, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        request_.check()


def test_what_may_be_asked_for() -> None:
    MaintainRequest(keep_days=7, ledger_keep_days=1, only=("vacuum",), execute=True).check()


def test_a_batch_is_settled_once_it_was_done_for_long_enough() -> None:
    batches = [(n, NOW - timedelta(days=10 - n)) for n in range(1, 6)]
    assert drop_recent_batches(batches, NOW - timedelta(days=7)) == 2
    assert drop_recent_batches(batches, NOW) == 5
    assert drop_recent_batches(batches, NOW - timedelta(days=30)) == 0


def test_claims_of_the_last_batches_stay_however_old() -> None:
    """A run looks at the claims of its batch, the one before and the one after."""
    [claims, quarantine, transactions] = rules(last=10, since=0, settled_batch=10)
    assert claims == RetentionRule("claims", "batch", 9)
    assert transactions == RetentionRule("transactions", "batch", 10), "those of the last batch stay"
    assert quarantine == RetentionRule("quarantine", "redriven", 11), (
        "NULL, which was not redriven, is less than nothing"
    )
    assert rules(last=10, since=0, settled_batch=4) == (
        RetentionRule("claims", "batch", 5),
        RetentionRule("quarantine", "redriven", 5),
        RetentionRule("transactions", "batch", 5),
    )
    assert rules(last=10, since=0, settled_batch=0) == ()
    assert [rule.table for rule in rules(last=2, since=0, settled_batch=2)] == ["quarantine", "transactions"]


def test_what_was_assembled_anew_goes_only_once_that_is_settled() -> None:
    names = ("relations", "types", "open_transactions")
    assert rules(last=10, since=7, settled_batch=7)[3:] == tuple(RetentionRule(name, "batch", 7) for name in names)
    assert [rule.table for rule in rules(last=10, since=7, settled_batch=6)] == ["claims", "quarantine", "transactions"]


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([], True),
        (["OPTIMIZE", "VACUUM START", "VACUUM END"], True),
        (["OPTIMIZE", "WRITE"], False),
        (["RESTORE"], False),
        (["MERGE"], False),
        (["SET TBLPROPERTIES"], False),
    ],
)
def test_a_table_is_touched_only_as_the_ledger_left_it(operations: list[str], expected: bool) -> None:
    assert is_as_recorded(operations) is expected


def test_files_are_counted_by_their_names() -> None:
    stored = {
        "file:/t/part-1.parquet": 100,
        "file:/t/part-2.parquet": SMALL_FILE,
        "file:/t/aB/part-3.parquet": 50,
        "file:/t/deletion_vector_1.bin": 7,
    }
    found = counted(stored, ["file:///t/part-1.parquet", "file:///t/part-2.parquet"])
    assert found == FileCounts(2, 100 + SMALL_FILE, 1, 4, 157 + SMALL_FILE)
    assert counted({}, []) == FileCounts(0, 0, 0, 0, 0)


def test_names_that_delta_would_take_apart_order_nothing() -> None:
    assert order_of(["id", "the key"]) == ("id", "the key")
    assert order_of(["a.b"]) == order_of(["id", "a`b"]) == order_of([]) == ()


def test_where_nobody_may_list_files_optimize_finds_out_itself_and_the_report_says_so() -> None:
    assert not FileCounts(1, 100, None, None, None).may_be_fewer
    unlisted = FileCounts(3, 300, None, None, None)
    assert unlisted.may_be_fewer
    one = MaintainedTable("public.t", "x", unlisted, FileCounts(1, 290, None, None, None), ("optimize",))
    other = MaintainedTable("ledger: claims", "y", BEFORE, AFTER, ("vacuum",))
    text = said(MaintainSummary("shop", True, 2, (one, other)))
    assert re.search(r"public\.t +│ +3 → 1 │ +\? │ +300 → 290 │ +\? │ +\? │", text)
    assert "Bytes on storage: 4,000 before, 2,300 now, without tables whose files can't be listed (1)." in text


def test_a_dry_run_says_that_nothing_was_done() -> None:
    table = MaintainedTable("ledger: claims", "x", BEFORE, None, ("retention", "optimize"), rows=5)
    text = said(MaintainSummary("shop", False, 0, (table,), ("Targets were left alone: why",)))
    assert "retention, optimize" in text
    assert "any more: 5." in text
    assert "Targets were left alone: why" in text
    assert "4,000 bytes on storage. Nothing was done: --execute does it." in text
    assert "→" not in text


def test_what_was_done_is_told_with_before_and_after() -> None:
    left = MaintainedTable("public.odd\x1b", "y", AFTER, AFTER, (), ("it was changed",))
    summary = MaintainSummary("shop", True, 7, (MaintainedTable("public.t", "x", BEFORE, AFTER, ("optimize",)), left))
    text = said(summary)
    for part in ("12 → 1", "4,000 → 2,300", "6,300 before, 4,600 now", "batch 7", "it was changed", "nothing"):
        assert part in text
    assert "\x1b" not in text
    assert json.loads(summary.to_json())["tables"][0]["after"]["files"] == 1
