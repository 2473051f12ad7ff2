"""The plan as text."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from pgoutput_etl.targets.condition import ConditionKind, TableCondition
from pgoutput_etl.work.plan.report import (
    PlannedFile,
    PlannedTable,
    PlannedTransaction,
    PlannedType,
    PlanSummary,
    StoredSize,
    print_plan,
)

ROWS = {"I": 3, "U": 1, "D": 0, "T": 0}
NEW = PlannedTable("public", "new", "out/public/new", ROWS, 3, 0, 0, is_exact=True, is_new=True, has_key=False)
OLD = PlannedTable(
    "public",
    "old\x1b[2J",
    "out/public/old",
    ROWS,
    2,
    1,
    types=(
        PlannedType("day", "date", "date", "unrepresentable", 4),
        PlannedType("span", "interval", "string", "text"),
    ),
    stored=StoredSize(1_000, 12, 3_456_789),
)
WHOLE = PlanSummary(
    "shop",
    2,
    0x200,
    files=(PlannedFile("a.bin", "new", 10), PlannedFile("b.bin", "grown", 20, 7), PlannedFile("c.bin", "duplicate", 9)),
    bytes=23,
    messages={"B": 2, "I": 3},
    transactions={"committed": 2, "open": 1},
    tables=(NEW, OLD),
    waiting=(PlannedTransaction(7, "prepared", "gid-7"),),
)


def printed(plan: PlanSummary) -> str:
    text = StringIO()
    print_plan(plan, Console(file=text, width=200))
    return text.getvalue()


@pytest.mark.parametrize(
    "line",
    [
        "Batch 2 of shop would read 2 files, 23 bytes, 5 messages.",
        "grown, from offset 7",
        "new; no key: all columns identify a row",
        "≈2",
        "3,456,789 bytes in 12 files",
        "Kept as text beside the column, in public.old\\x1b[2J: 4 values of day that date can't hold (date).",
        "Would wait for its end: transaction 7 (gid-7), prepared.",
        "All tables would be consistent through LSN 0/200.",
        "Nothing was written.",
    ],
)
def test_the_plan_as_text(line: str) -> None:
    assert line in printed(WHOLE)


def test_a_table_that_would_be_held_gives_exit_code_3() -> None:
    held = PlanSummary("shop", 2, 0x200, tables=(PlannedTable("public", "t", "", ROWS, held="it can't"),))
    assert (WHOLE.exit_code, held.exit_code) == (0, 3)
    assert "Would not be changed: public.t: it can't" in printed(held)
    assert json.loads(held.to_json())["exit_code"] == 3
    assert "All tables but public.t (held) would be consistent through LSN 0/200." in printed(held)


def test_a_table_that_would_be_incomplete_gives_exit_code_3() -> None:
    plan = replace(WHOLE, conditions=(TableCondition(1, "public", "new", ConditionKind.INCOMPLETE, "why", 0x200),))
    assert plan.exit_code == 3
    text = printed(plan)
    assert "Incomplete: earlier rows, if there were any, are missing: public.new." in text
    assert "All tables but public.new (incomplete) would be consistent through LSN 0/200." in text
    assert json.loads(plan.to_json())["conditions"][0]["state"] == "incomplete"


@pytest.mark.parametrize(
    ("batches", "expected"), [(1, "a later batch"), (3, "3 later batches"), (None, "later batches")]
)
def test_files_of_later_batches_are_counted(batches: int | None, expected: str) -> None:
    plan = replace(WHOLE, later_files=("d.bin", "e.bin", "f.bin"), later_batches=batches)
    assert f"In {expected}: 3 files. Plan again after this batch." in printed(plan)
    assert json.loads(plan.to_json())["later_batches"] == batches


def test_a_plan_without_new_files() -> None:
    assert printed(PlanSummary("shop", 0, 0)).splitlines() == [
        "Nothing new in the landing folder of shop.",
        "Nothing was written.",
    ]
