"""The HTML page about an undo; it contains no values of rows."""

from __future__ import annotations

from pgoutput_etl.answers.page.render import render
from pgoutput_etl.answers.undo.report import UndoSummary, changed_again_by, psql_line
from pgoutput_etl.exit_codes import EXIT_DONE
from pgoutput_etl.lsn import format_lsn


def page(summary: UndoSummary) -> str:
    """The HTML text."""
    is_whole = summary.exit_code == EXIT_DONE
    through = format_lsn(summary.last_commit_lsn)
    return render(
        "undo",
        title=summary.title,
        heading=summary.title,
        verdict="every row can be restored" if is_whole else "some rows stay as they are",
        is_good=is_whole,
        when=f"As of LSN {through}",
        facts=[
            ("Transactions", f"{summary.commits:,}"),
            ("Changes to undo", f"{summary.changes:,}"),
            ("Rows in conflict", f"{sum(table.conflicts for table in summary.tables):,}"),
            ("Compared with", f"all commits up to {through}"),
        ],
        tables=[
            (t.name, *(f"{count:,}" for count in (t.inserts, t.updates, t.deletes, t.conflicts)), changed_again_by(t))
            for t in summary.tables
        ],
        kept=[(t.name, ", ".join(t.kept)) for t in summary.tables if t.kept],
        left_out=[(left.name, left.reason) for left in summary.left_out],
        command=psql_line(summary) if summary.changes else "",
    )
