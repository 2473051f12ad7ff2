"""jobs/plan.py says what jobs/apply.py then does, and writes nothing; jobs/inspect.py agrees with both."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.errors import RunError
from pgoutput_etl.ingest.inspection_runner import SparkRunner, list_on_spark
from pgoutput_etl.inspection.archive import inspect_archive, inspection_contexts
from pgoutput_etl.inspection.local_runner import LocalRunner, list_local
from pgoutput_etl.inspection.message_lines import MessageFilter
from pgoutput_etl.inspection.report import report_on
from pgoutput_etl.inspection.report_model import ArchiveReport
from pgoutput_etl.jobs.apply.pipeline import apply
from pgoutput_etl.jobs.apply.report import RunSummary
from pgoutput_etl.jobs.plan.report import PlannedTable, PlanSummary
from pgoutput_etl.jobs.plan.run import plan
from pgoutput_etl.load.summary import TableSummary
from pgoutput_etl.load.writer import TableResult, Writer
from pgoutput_etl.protocol.messages import ReplicaIdentity
from tests.support.captures import CAPTURES, DATA, files_of
from tests.support.jobs import Job, Nights
from tests.support.small_archives import (
    Change,
    copydata,
    delete,
    delete_full,
    insert,
    segment,
    stream_commit,
    table,
    transaction,
    update,
)

pytestmark = pytest.mark.spark
BAG = table(oid=2, name="bag", identity=ReplicaIdentity.FULL)
FATES = ("committed", "open", "aborted", "resent", "quarantined")


def tree(folder: Path) -> dict[str, tuple[int, str]]:
    """All that lies below it: when it was written, and its bytes."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def planned(job: Job, *overrides: str) -> PlanSummary:
    config = job.loaded(*overrides)
    before = tree(job.folder)
    found = plan(job.spark, config, lambda _: None)
    assert tree(job.folder) == before, "a plan writes nothing"
    return found


def assert_held_what_it_said(said: PlanSummary, done: RunSummary) -> None:
    fates = {fate: getattr(done, f"{fate}_transactions") for fate in FATES}
    assert {fate: said.transactions[fate] for fate in FATES} == fates
    assert (said.batch, said.last_commit_lsn, said.bytes) == (done.batch, done.last_commit_lsn, done.bytes)
    assert (said.messages, said.damages, said.skipped) == (done.messages, done.damages, done.skipped)
    assert (said.content_bytes, said.accounts) == (done.content_bytes, done.accounts)
    assert (said.refused_files, said.files_not_read) == (done.refused_files, done.files_not_read)
    assert said.exit_code == done.exit_code
    new = {t.table for t in done.tables if t.held is None and "new" in t.notes}
    assert {t.table for t in said.tables if t.held is None and t.is_new} == new
    assert {t.table: figures(t) for t in said.tables} == {t.table: figures(t) for t in done.tables}


def figures(table: PlannedTable | TableSummary) -> tuple[str | None, int, int, int]:
    counts = (table.inserted, table.updated, table.deleted)
    return (None, *counts) if table.held is None else (table.held, 0, 0, 0)


def inspected(landing: Path) -> ArchiveReport:
    with TemporaryDirectory() as folder, LocalRunner(Path(folder)) as runner:
        return report_on(inspect_archive(list_local([str(landing)]), runner, lambda _: None))


def assert_inspection_agrees(report: ArchiveReport, done: RunSummary) -> None:
    """With the first run over an archive."""
    fates = {fate: getattr(done, f"{fate}_transactions") for fate in FATES}
    assert {fate: report.transactions[fate] for fate in FATES} == fates
    assert (report.messages, report.content_bytes) == (done.messages, done.content_bytes)
    assert report.accounts == {name: size for name, size in done.accounts.items() if size}
    assert (report.unknown_prepared, len(report.damages)) == (done.unknown_prepared, len(done.damages))


DAYS = table("id", "v", ("day", 1082), ("span", 1186))
WIDER = table("id", "v", ("day", 1082), ("span", 1186), "w")
FIRST = [
    *transaction(1, 0x100, DAYS, insert("1", "a", "infinity", "1 day"), insert("2", "b", "2026-01-01", None)),
    *transaction(2, 0x180, insert("3", "c", None, None), delete("3", None, None, None)),
    *transaction(3, 0x200, BAG, insert("1", "x", oid=2), insert("1", "x", oid=2), delete_full("1", "x", oid=2)),
    *segment(9, table("id", oid=4, name="later"), insert("1", oid=4), first=True),
]
CHANGED = [
    *transaction(11, 0x400, update("1", "aa", None, None), WIDER, insert("4", "d", None, None, "e")),
    *transaction(12, 0x500, delete("2", None, None, None, None)),
]


def broken(lsn: int, change: Change) -> bytes:
    """A transaction of which a value can't be read."""
    return copydata(transaction(15, lsn, change)).replace(b"10", b"\0\0")


def test_what_is_planned_is_what_apply_then_reports(nights: Nights) -> None:
    """A duplicate, an open transaction, a value without its place, columns that change, bytes that can't be read."""
    nights.land(FIRST)
    shutil.copy(nights.job.landing / "000.copydata", nights.job.landing / "001.copydata")
    (nights.job.landing / "002.copydata").write_bytes(copydata(CHANGED) + broken(0x800, insert("10", "k", oid=2)))

    said = planned(nights.job)
    done = nights.job.run()

    assert_held_what_it_said(said, done)
    assert_inspection_agrees(inspected(nights.job.landing), done)
    tables = {t.table: t for t in said.tables}
    whats = [(f.what, Path(f.path).name) for f in said.files]
    assert whats == [("new", "000.copydata"), ("new", "002.copydata"), ("duplicate", "001.copydata")]
    assert [(t.xid, t.kind) for t in said.waiting] == [(9, "streamed")]
    assert (tables["t"].rows_in, tables["t"].is_exact) == ({"I": 4, "U": 1, "D": 2, "T": 0}, True)
    assert any("added" in change for change in tables["t"].schema_changes)
    odd = {each.column: (each.why, each.found) for each in tables["t"].types}
    assert odd == {"day": ("unrepresentable", 1), "span": ("text", 0)}
    assert (tables["bag"].has_key, tables["bag"].held is None) == (False, False)
    assert (said.exit_code, said.accounts["quarantined"] > 0) == (3, True)


@pytest.mark.soak
def test_a_second_night_is_planned_without_a_look_at_the_tables(nights: Nights) -> None:
    nights.land(FIRST)
    nights.job.run()
    moved = transaction(14, 0x700, update("9", "z", None, None, None, old_key=("4", None, None, None, None)))
    bag = transaction(13, 0x600, delete_full("1", "x", oid=2), insert("5", "y", oid=2))
    second = copydata([*stream_commit(9, 0x380), *CHANGED, *bag, *moved])
    (nights.job.landing / "001.copydata").write_bytes(second)

    said = planned(nights.job)
    assert_held_what_it_said(said, nights.job.run())
    tables = {t.table: t for t in said.tables}
    assert (tables["later"].is_new, tables["later"].inserted) == (True, 1)
    figures_of_t = (tables["t"].inserted, tables["t"].updated, tables["t"].deleted, tables["t"].is_exact)
    assert figures_of_t == (1, 1, 1, False), "4 came and went, 9 is new"

    (nights.job.landing / "002.copydata").write_bytes(broken(0x800, insert("10", "k", None, None, "l")))
    said = planned(nights.job)
    assert_held_what_it_said(said, nights.job.run())
    assert [t.table for t in said.tables if t.held is not None] != []


@pytest.mark.parametrize("name", ["9.odd name[1].bin", "0.odd name[1].bin"])
def test_spark_looks_into_files_as_this_machine_does(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Beside the first part of a message: in the newest file, which may still be written, or in one before others. And
    beside a file that is no archive."""
    for file in files_of(DATA / "pg16" / "v4_parallel"):
        shutil.copy(file, tmp_path)
    (tmp_path / name).write_bytes(b"\0\0\0\x40r\0what a length_prefixed file may begin with")
    (tmp_path / "1.txt").write_bytes(b"no archive at all")
    with TemporaryDirectory() as folder, LocalRunner(Path(folder)) as local, SparkRunner(spark) as there:
        here = inspect_archive(list_local([f"file:{tmp_path}"]), local, lambda _: None)
        elsewhere = inspect_archive(list_on_spark(spark, [str(tmp_path)]), there, lambda _: None)
        lines: dict[str, list[str]] = {"here": [], "there": []}
        local.print_messages(
            inspection_contexts(here, MessageFilter(table="public.p*"), True, False), lines["here"].append
        )
        there.print_messages(
            inspection_contexts(elsewhere, MessageFilter(table="public.p*"), True, False), lines["there"].append
        )
    here_said = repr(report_on(here).to_dict()).replace(str(tmp_path), "")
    assert repr(report_on(elsewhere).to_dict()).replace(f"file:{tmp_path}", "") == here_said
    assert [line.replace(f"file:{tmp_path}", "") for line in lines["there"]] == [
        line.replace(str(tmp_path), "") for line in lines["here"]
    ]
    assert len(lines["here"]) > 40
    said = report_on(elsewhere).remarks if name[0] == "9" else report_on(elsewhere).damages
    assert any(name in line for line in said)
    assert any("1.txt" in line for line in report_on(elsewhere).unreadable)


def slots() -> Iterator[Path]:
    for server in sorted(path for path in CAPTURES.iterdir() if path.is_dir()):
        yield from sorted(path for path in server.iterdir() if path.is_dir() and not path.name.startswith("truth"))


@pytest.mark.soak
def test_a_batch_that_died_is_planned_as_it_will_be_finished(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> list[TableResult]:
        raise RunError("killed")

    nights.land(transaction(1, 0x100, table(), insert("1", "a")))
    with monkeypatch.context() as patched:
        patched.setattr(Writer, "write", dies)
        with pytest.raises(RunError, match="killed"):
            nights.job.run()
    later = nights.land(transaction(2, 0x200, insert("2", "b")))

    said = planned(nights.job)
    assert (said.resumes, said.batch) == (True, 1)
    assert [path.removeprefix("file:") for path in said.later_files] == [str(later)]
    first, _ = apply(nights.job.spark, nights.job.loaded(), lambda _: None)
    assert_held_what_it_said(said, first)


@pytest.mark.soak
@pytest.mark.parametrize("slot", [*slots()], ids=lambda path: f"{path.parent.name}-{path.name}")
def test_plans_of_real_archives(nights: Nights, slot: Path) -> None:
    for file in files_of(slot):
        shutil.copy(file, nights.job.landing)
        said = planned(nights.job)
        done = nights.job.run()
        assert_held_what_it_said(said, done)
        if done.batch == 1:
            assert_inspection_agrees(inspected(nights.job.landing), done)
