"""The runs of a season: quarantined, waiting and resent transactions, and each night's report of them."""

from __future__ import annotations

import pytest

from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from tests.support.jobs import held, summary_text
from tests.support.season import Season

pytestmark = pytest.mark.spark


def test_a_night_with_nothing_held_is_done(season: Season) -> None:
    assert [summary.exit_code for summary in season.summaries] == [EXIT_DONE, *[EXIT_QUARANTINE] * 4]
    assert [summary.batch for summary in season.summaries] == [1, 2, 3, 4, 5]


def test_a_held_table_stays_unchanged_and_is_reported_each_night(season: Season) -> None:
    assert season.values("odd") == [("1", "a")]
    assert [set(held(summary)) for summary in season.summaries] == [
        set(),
        {"odd"},
        {"odd"},
        {"odd", "spoilt"},
        {"odd", "spoilt"},
    ]


def test_quarantine_has_the_bytes_and_reports_no_value(season: Season) -> None:
    rows = season.nights.ledger("quarantine")
    [message] = [row for row in rows if row["bytes"] is not None and row["xid"] is None]
    assert b"spoilt" in message["bytes"]
    assert message["path"].endswith("003.copydata")
    assert all("spoilt\0" not in (row["reason"] or "") for row in rows)
    assert season.summaries[3].quarantined_transactions == 1
    assert season.values("spoilt") == [("1", "a")]


def test_the_night_reports_the_quarantine(season: Season) -> None:
    assert [len(summary.damages) for summary in season.summaries] == [0, 0, 0, 1, 0]
    assert "In quarantine: file:" in summary_text(season.summaries[3])


def test_a_streamed_transaction_waits_a_night(season: Season) -> None:
    assert [summary.open_transactions for summary in season.summaries] == [0, 0, 0, 1, 0]
    assert season.nights.ledger("open_transactions") == []


def test_a_resent_transaction_counts_once(season: Season) -> None:
    assert [summary.resent_transactions for summary in season.summaries] == [0, 0, 0, 0, 1]
    assert [summary.committed_transactions for summary in season.summaries] == [3, 4, 3, 1, 1]


def test_an_aborted_transaction_is_counted(season: Season) -> None:
    assert [summary.aborted_transactions for summary in season.summaries] == [0, 1, 0, 0, 0]


def test_a_skipped_table_is_reported_and_not_created(season: Season) -> None:
    assert season.summaries[0].skipped == ("public.skipped",)
    assert not season.nights.job.path("public", "skipped").exists()


def test_the_ledger_has_each_file_and_batch(season: Season) -> None:
    done = [row for row in season.nights.ledger("batches") if row["status"] == "done"]
    assert sorted((row["batch"], row["last_commit_lsn"]) for row in done) == [
        *((1, 0x1C0), (2, 0x280), (3, 0x380), (4, 0x440), (5, 0x500)),
    ]
    assert len({row["path"] for row in season.nights.ledger("files")}) == 5
