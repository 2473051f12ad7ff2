"""The undo as an HTML page, without any row's values."""

from __future__ import annotations

from pgoutput_etl.answers.page.parts import card, document, facts_card, header, note, stack, table, text
from pgoutput_etl.answers.undo.report import UndoSummary, changed_again_by, psql_line
from pgoutput_etl.exit_codes import EXIT_DONE
from pgoutput_etl.lsn import format_lsn

_BEFORE_RUNNING = (
    "The script changes nothing if a row is not what the archive has, or if a trigger or a cascade would update or "
    "delete other rows. Its comments name the rows that it leaves as they are."
)


def page(summary: UndoSummary) -> str:
    """HTML."""
    is_whole = summary.exit_code == EXIT_DONE
    verdict = "every row can be restored" if is_whole else "some rows stay as they are"
    through = format_lsn(summary.last_commit_lsn)
    facts = [
        ("Transactions", f"{summary.commits:,}"),
        ("Changes to undo", f"{summary.changes:,}"),
        ("Rows in conflict", f"{sum(table.conflicts for table in summary.tables):,}"),
        ("Compared with", f"all commits up to {through}"),
    ]
    cards = [facts_card("Undo", facts)]
    if summary.tables:
        heads = ("table", "inserts", "updates", "deletes", "rows in conflict", "changed again by")
        rows = [
            (t.name, *(f"{count:,}" for count in (t.inserts, t.updates, t.deletes, t.conflicts)), changed_again_by(t))
            for t in summary.tables
        ]
        cards.append(card("Tables: changes that the script undoes", table(heads, rows, words=(5,))))
    kept = [(t.name, ", ".join(t.kept)) for t in summary.tables if t.kept]
    if kept:
        cards.append(card("New columns that keep what they hold", table(("table", "columns"), kept, words=(1,))))
    if summary.left_out:
        left_out = [(left.name, left.reason) for left in summary.left_out]
        cards.append(card("Tables that it leaves as they are", table(("table", "reason"), left_out, words=(1,))))
    if summary.changes:
        cards.append(card("Run it", f"<pre>{text(psql_line(summary))}</pre>{note(_BEFORE_RUNNING)}"))
    body = header(summary.title, verdict, is_whole, f"As of LSN {through}") + stack(cards)
    return document(summary.title, body)
