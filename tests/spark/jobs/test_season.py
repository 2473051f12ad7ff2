"""Jobs that only read, on a season: verify, plan, inspect, status, and maintain without --execute."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from pgoutput_etl.answers.status.report import WaitingFiles
from pgoutput_etl.answers.status.request import StatusRequest
from pgoutput_etl.answers.status.run import status
from pgoutput_etl.answers.verify.report import VerifySummary
from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.answers.verify.run import verify
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.work.plan.report import StoredSize
from pgoutput_etl.work.upkeep.request import MaintainRequest
from pgoutput_etl.work.upkeep.run import maintain
from tests.spark.jobs.test_plan import inspected, planned, tree
from tests.support.jobs import held
from tests.support.season import SIXTH, Season

pytestmark = pytest.mark.spark
ORDERS = "id,v,w\n1,again,\n3,c,\n4,d,w\n5,e,\n"


def compared(season: Season, folder: Path, name: str, rows: str, at_lsn: int | None = None) -> VerifySummary:
    path = folder / "rows.csv"
    path.write_text(rows, encoding="utf-8")
    request = VerifyRequest(csv=str(path), tables=(f"public.{name}",), at=at_lsn)
    return verify(season.nights.job.spark, season.nights.job.loaded(), request, lambda _: None)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("orders", ORDERS),
        ("soft", "id,v\n1,aa\n"),
        ("past", "v,id\naa,1\n"),
        ("bag", "a,b\nx,1\ny,\nx,1\n"),
    ],
    ids=["orders", "soft", "past", "bag"],
)
def test_verify_finds_no_difference(season: Season, tmp_path: Path, name: str, rows: str) -> None:
    summary = compared(season, tmp_path, name, rows)
    assert (summary.exit_code, [table.differing for table in summary.tables]) == (0, [0])


def test_verify_names_the_transactions_of_differing_rows(season: Season, tmp_path: Path) -> None:
    summary = compared(season, tmp_path, "orders", ORDERS.replace("d,w", "SECRET,w").replace("3,c,\n", "7,g,\n"))
    [table] = summary.tables
    assert (summary.exit_code, table.only_delta, table.only_other, table.differs) == (3, 1, 1, 1)
    assert table.columns == {"v": 1}
    assert {(change.xid, change.commit_lsn) for change in table.transactions} == {(10, 0x1C0), (12, 0x380)}
    assert "SECRET" not in summary.to_json()


def test_verify_compares_an_earlier_commit(season: Season, tmp_path: Path) -> None:
    assert compared(season, tmp_path, "orders", "id,v\n1,aa\n3,c\n", at_lsn=0x280).exit_code == 0


def test_verify_refuses_a_commit_within_a_batch(season: Season, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no batch ended there"):
        compared(season, tmp_path, "orders", ORDERS, at_lsn=0x210)


def test_verify_refuses_a_table_in_mode_append(season: Season, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing to compare: public\.events: mode append stores changes"):
        compared(season, tmp_path, "events", "id,v\n1,a\n")


def test_plan_counts_a_night_before_it_is_applied(season: Season) -> None:
    nights = season.nights
    path = nights.job.landing / "005.copydata"
    try:
        nights.land(SIXTH, name=path.name)
        summary = planned(nights.job)
    finally:
        path.unlink()
    tables = {table.table: (table.inserted, table.updated, table.deleted) for table in summary.tables if not table.held}
    assert (summary.batch, tables) == (6, {"orders": (1, 1, 0)})
    orders = nights.job.spark.read.format("delta").load(str(nights.job.path("public", "orders")))
    files = [Path(unquote(urlsplit(name).path)) for name in orders.inputFiles()]
    stored = StoredSize(orders.count(), len(files), sum(file.stat().st_size for file in files))
    assert [table.stored for table in summary.tables if table.table == "orders"] == [stored]


def test_inspect_counts_what_the_nights_counted(season: Season) -> None:
    report = inspected(season.nights.job.landing)
    for fate in ("committed", "aborted", "resent", "quarantined"):
        total = sum(getattr(summary, f"{fate}_transactions") for summary in season.summaries)
        assert (fate, report.transactions[fate]) == (fate, total)
    assert report.transactions["open"] == 0


def test_status_has_the_figures_of_the_last_night(season: Season) -> None:
    """It reads without Spark what Spark wrote."""
    report, last = status(season.nights.job.loaded(), StatusRequest()), season.summaries[-1]
    assert (report.batch, report.last_commit_lsn, report.exit_code) == (5, last.last_commit_lsn, last.exit_code)
    assert {table.table: table.reason for table in report.held} == held(last)
    assert report.quarantine.ranges == season.summaries[3].damages
    assert report.quarantine.bytes == season.summaries[3].accounts["quarantined"] > 0
    assert (report.waiting, report.open.transactions, report.claim) == (WaitingFiles(), 0, None)


def test_maintenance_without_execute_writes_nothing(season: Season) -> None:
    job = season.nights.job
    before = tree(job.folder / "tables")
    summary = maintain(job.spark, job.loaded(), MaintainRequest(tables=("public.orders",), zorder=True), lambda _: None)
    assert tree(job.folder / "tables") == before
    [table] = [table for table in summary.tables if table.name == "public.orders"]
    assert (table.steps[0], table.after) == ("optimize by key", None)
