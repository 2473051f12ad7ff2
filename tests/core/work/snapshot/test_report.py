"""The snapshot job's summary, as text and as JSON."""

from __future__ import annotations

import json
from io import StringIO

from rich.console import Console

from pgoutput_etl.answers.next_commands import NextCommand
from pgoutput_etl.load.summary import TableSummary
from pgoutput_etl.work.snapshot.report import LoadedTable, SnapshotSummary, print_snapshot

LOADED = LoadedTable(TableSummary("public", "orders", "/lake/public/orders", 7, rows=1200), 1195, 9)
HELD = LoadedTable(TableSummary("public", "odd\x1b[2J", "", -1, held="the snapshot: no date"), 3, 0)


def printed(summary: SnapshotSummary) -> str:
    text = StringIO()
    print_snapshot(summary, Console(file=text, width=150))
    return text.getvalue()


def test_the_summary_counts_loaded_rows_and_later_changes() -> None:
    text = printed(SnapshotSummary("shop", 3, 0x200, 0x300, False, (LOADED,), ("public.audit",)))
    assert "│ public.orders │ 1,200 │  1,195 │             9 │       7 │" in text
    assert "Skipped, as configured: public.audit" in text
    assert "Loaded rows as of LSN 0/200, and applied the archive's later changes." in text


def test_the_summary_reports_a_snapshot_ahead_of_the_archive() -> None:
    assert "as of LSN 0/200. The archive ends before it" in printed(SnapshotSummary("shop", 3, 0x200, 0x100, True))


def test_an_unchanged_table_gives_exit_code_3_and_an_escaped_name() -> None:
    summary = SnapshotSummary("shop", 3, 0x200, 0x300, False, (LOADED, HELD))
    assert summary.exit_code == 3
    assert "Not changed: public.odd\\x1b[2J: the snapshot: no date" in printed(summary)
    report = json.loads(summary.to_json())
    assert (report["lsn"], report["exit_code"], report["tables"][0]["loaded"]) == ("0/200", 3, 1195)


def test_the_summary_ends_with_the_commands_to_run_next() -> None:
    summary = SnapshotSummary(
        "shop", 3, 0x200, 0x300, False, (HELD,), next=(NextCommand("1 table is held:", "do this"),)
    )
    assert printed(summary).endswith("Next:\n  1 table is held:\n    do this\n")
