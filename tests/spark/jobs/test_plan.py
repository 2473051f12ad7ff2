"""jobs/plan.py reports what jobs/apply.py then does, and writes nothing; jobs/inspect.py agrees with both."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.ingest import scanned_blocks
from pgoutput_etl.ingest.inspection_runner import SparkRunner, list_on_spark
from pgoutput_etl.inspection.archive import inspect_archive, inspection_contexts
from pgoutput_etl.inspection.local_runner import LocalRunner, list_local
from pgoutput_etl.inspection.message_lines import MessageFilter
from pgoutput_etl.inspection.report import report_on
from pgoutput_etl.inspection.report_model import ArchiveReport
from pgoutput_etl.load.summary import TableSummary
from pgoutput_etl.load.writer import TableResult, Writer
from pgoutput_etl.protocol.messages import ReplicaIdentity, Type
from pgoutput_etl.work.files.pipeline import apply
from pgoutput_etl.work.files.report import RunSummary
from pgoutput_etl.work.plan.report import PlannedTable, PlanSummary
from pgoutput_etl.work.plan.run import plan
from tests.support.captures import CAPTURES, DATA, files_of
from tests.support.jobs import Job, Nights, summary_text
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
STATUSES = ("committed", "open", "aborted", "resent", "quarantined")


def tree(folder: Path) -> dict[str, tuple[int, str]]:
    """Modification time and digest of every file below a folder."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def planned(job: Job, *overrides: str) -> PlanSummary:
    config = job.loaded(*overrides)
    before = tree(job.folder)
    summary = plan(job.spark, config, lambda _: None)
    assert tree(job.folder) == before, "a plan writes nothing"
    return summary


def assert_as_planned(expected: PlanSummary, done: RunSummary) -> None:
    counts = {status: getattr(done, f"{status}_transactions") for status in STATUSES}
    assert {status: expected.transactions[status] for status in STATUSES} == counts
    assert (expected.batch, expected.last_commit_lsn, expected.bytes) == (done.batch, done.last_commit_lsn, done.bytes)
    assert (expected.messages, expected.damages, expected.skipped) == (done.messages, done.damages, done.skipped)
    assert (expected.content_bytes, expected.accounts) == (done.content_bytes, done.accounts)
    assert (expected.refused_files, expected.files_not_read) == (done.refused_files, done.files_not_read)
    assert expected.exit_code == done.exit_code
    new = {t.table for t in done.tables if t.held is None and "new" in t.notes}
    assert {t.table for t in expected.tables if t.held is None and t.is_new} == new
    assert {t.table: effects(t) for t in expected.tables} == {t.table: effects(t) for t in done.tables}


def effects(table: PlannedTable | TableSummary) -> tuple[str | None, int, int, int]:
    counts = (table.inserted, table.updated, table.deleted)
    return (None, *counts) if table.held is None else (table.held, 0, 0, 0)


def inspected(landing: Path) -> ArchiveReport:
    with TemporaryDirectory() as folder, LocalRunner(Path(folder)) as runner:
        return report_on(inspect_archive(list_local([str(landing)]), runner, lambda _: None))


def assert_inspection_agrees(report: ArchiveReport, done: RunSummary) -> None:
    """done: the first run on the archive."""
    counts = {status: getattr(done, f"{status}_transactions") for status in STATUSES}
    assert {status: report.transactions[status] for status in STATUSES} == counts
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
    """A transaction with an unreadable value."""
    return copydata(transaction(15, lsn, change)).replace(b"10", b"\0\0")


def test_apply_reports_what_was_planned(nights: Nights) -> None:
    """A duplicate, an open transaction, an unrepresentable value, columns that change, unreadable bytes. Then nothing
    lands, and a table's mode is changed."""
    nights.land(FIRST)
    shutil.copy(nights.job.landing / "000.copydata", nights.job.landing / "001.copydata")
    (nights.job.landing / "002.copydata").write_bytes(copydata(CHANGED) + broken(0x800, insert("10", "k", oid=2)))

    expected = planned(nights.job)
    done = nights.job.run()

    assert_as_planned(expected, done)
    assert_inspection_agrees(inspected(nights.job.landing), done)
    tables = {t.table: t for t in expected.tables}
    files = [(f.what, Path(f.path).name) for f in expected.files]
    assert files == [("new", "000.copydata"), ("new", "002.copydata"), ("duplicate", "001.copydata")]
    assert [(t.xid, t.kind) for t in expected.waiting] == [(9, "streamed")]
    assert (tables["t"].rows_in, tables["t"].is_exact) == ({"I": 4, "U": 1, "D": 2, "T": 0}, False)
    assert any("added" in change for change in tables["t"].schema_changes)
    assert effects(tables["t"]) == (None, 2, 0, 0), "rows, although a column was added between them"
    types = {column.column: (column.why, column.found) for column in tables["t"].types}
    assert types == {"day": ("unrepresentable", 1), "span": ("text", 0)}
    assert (tables["bag"].has_key, tables["bag"].held is None) == (False, False)
    assert (expected.exit_code, expected.accounts["quarantined"] > 0) == (3, True)

    for run in (partial(planned, nights.job), nights.job.run):
        with pytest.raises(ConfigError, match=r"public\.t was written in mode mirror"):
            run("tables=[{match: public.t, mode: history}]")


@pytest.mark.soak
def test_a_second_night_is_planned_without_reading_the_tables(nights: Nights) -> None:
    nights.land(FIRST)
    nights.job.run()
    moved = transaction(14, 0x700, update("9", "z", None, None, None, old_key=("4", None, None, None, None)))
    bag = transaction(13, 0x600, delete_full("1", "x", oid=2), insert("5", "y", oid=2))
    second = copydata([*stream_commit(9, 0x380), *CHANGED, *bag, *moved])
    (nights.job.landing / "001.copydata").write_bytes(second)

    expected = planned(nights.job)
    done = nights.job.run()
    assert_as_planned(expected, done)
    assert {t.table for t in done.tables if "rows counted in each of 2 commits" in t.notes} == {"t"}
    tables = {t.table: t for t in expected.tables}
    assert (tables["later"].is_new, tables["later"].inserted) == (True, 1)
    t = tables["t"]
    assert (t.inserted, t.updated, t.deleted, t.is_exact) == (1, 1, 1, False), "4 came and went, 9 is new"

    (nights.job.landing / "002.copydata").write_bytes(broken(0x800, insert("10", "k", None, None, "l")))
    expected = planned(nights.job)
    assert_as_planned(expected, nights.job.run())
    assert [t.table for t in expected.tables if t.held is not None] != []


@pytest.mark.parametrize("name", ["9.odd name[1].bin", pytest.param("0.odd name[1].bin", marks=pytest.mark.soak)])
def test_spark_inspects_files_like_this_machine(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Also with the first part of a message, in the newest file (which may still be written) or in an earlier one, and
    with a file that is no archive."""
    for file in files_of(DATA / "pg16" / "v4_parallel"):
        shutil.copy(file, tmp_path)
    (tmp_path / name).write_bytes(b"\0\0\0\x40r\0what a length_prefixed file may begin with")
    (tmp_path / "1.txt").write_bytes(b"no archive at all")
    with TemporaryDirectory() as folder, LocalRunner(Path(folder)) as local_runner, SparkRunner(spark) as spark_runner:
        local = inspect_archive(list_local([f"file:{tmp_path}"]), local_runner, lambda _: None)
        on_spark = inspect_archive(list_on_spark(spark, [str(tmp_path)]), spark_runner, lambda _: None)
        local_lines: list[str] = []
        spark_lines: list[str] = []
        wanted = MessageFilter(tables=("public.p*",))
        local_runner.print_messages(inspection_contexts(local, wanted, True, False), local_lines.append)
        spark_runner.print_messages(inspection_contexts(on_spark, wanted, True, False), spark_lines.append)
    report = report_on(on_spark)
    expected = repr(report_on(local).to_dict()).replace(str(tmp_path), "")
    assert repr(report.to_dict()).replace(f"file:{tmp_path}", "") == expected
    assert [line.replace(f"file:{tmp_path}", "") for line in spark_lines] == [
        line.replace(str(tmp_path), "") for line in local_lines
    ]
    assert len(local_lines) > 40
    assert any(name in line for line in (report.remarks if name[0] == "9" else report.damages))
    assert any("1.txt" in line for line in report.unreadable)


def slots() -> Iterator[Path]:
    for server in sorted(path for path in CAPTURES.iterdir() if path.is_dir()):
        yield from sorted(path for path in server.iterdir() if path.is_dir() and not path.name.startswith("truth"))


@pytest.mark.soak
def test_an_interrupted_batch_is_planned_as_apply_finishes_it(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> list[TableResult]:
        raise RunError("killed")

    nights.land(transaction(1, 0x100, table(), insert("1", "a")))
    with monkeypatch.context() as patched:
        patched.setattr(Writer, "write", dies)
        with pytest.raises(RunError, match="killed"):
            nights.job.run()
    later = nights.land(transaction(2, 0x200, insert("2", "b")))

    expected = planned(nights.job)
    assert (expected.resumes, expected.batch) == (True, 1)
    assert [path.removeprefix("file:") for path in expected.later_files] == [str(later)]
    first, _ = apply(nights.job.spark, nights.job.loaded(), lambda _: None)
    assert_as_planned(expected, first)


@pytest.mark.soak
@pytest.mark.parametrize("slot", [*slots()], ids=lambda path: f"{path.parent.name}-{path.name}")
def test_plans_of_real_archives(nights: Nights, slot: Path) -> None:
    for file in files_of(slot):
        shutil.copy(file, nights.job.landing)
        expected = planned(nights.job)
        done = nights.job.run()
        assert_as_planned(expected, done)
        if done.batch == 1:
            assert_inspection_agrees(inspected(nights.job.landing), done)


def test_partitions_that_will_hold_their_root_are_named_before_they_do(nights: Nights) -> None:
    root, partition = table(key=()), table(oid=1, name="t_1")
    nights.land(transaction(1, 0x100, root, partition, insert("1", "a")))
    [remark] = planned(nights.job).remarks
    assert remark.startswith("The first UPDATE or DELETE holds public.t: rows of public.t can't be identified: ")
    assert "its partition public.t_1 has the replica identity (id), and the root has no key" in remark
    assert [loaded.held for loaded in nights.job.run().tables] == [None]
    nights.land(transaction(2, 0x200, update("1", "b")))
    [reason] = [loaded.held for loaded in nights.job.run().tables]
    assert reason is not None
    assert remark.endswith(reason), "the ledger keeps the partition's identity"


@pytest.mark.soak
def test_rounded_floats_unmasked_copies_and_keys_of_an_enum_are_named(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    mood, columns = Type(None, 90001, "public", "mood"), (("id", 90001), ("x", 701), ("y", 700), "email")
    exact = [(str(n), repr(n / 7), f"{n / 7:.8g}", "a@b") for n in range(1, 40)]
    rounded = [(key, f"{float(x):.15g}", f"{float(y):.6g}", email) for key, x, y, email in exact]
    person = table(*columns, oid=1, name="person")
    nights.land(transaction(1, 0x100, mood, person, *(insert(*row, oid=1) for row in exact)))
    copy = table(*columns, oid=2, name="person_new")
    nights.land(transaction(2, 0x200, copy, *(insert(*row, oid=2) for row in rounded)))
    redacted = "{match: public.person, columns: {email: redact}}"
    unmasked, key, other_key, second = planned(nights.job, f"tables=[{redacted}]").remarks
    assert key.startswith("public.person has a key whose text depends on the server's catalog: id (public.mood).")
    assert other_key.startswith("public.person_new has a key")
    assert unmasked.startswith("public.person_new has the columns of public.person, but email would be stored without")
    assert "/001.copydata: no float has more digits than extra_float_digits = 0 leaves" in second
    monkeypatch.setattr(scanned_blocks, "_FEW_BYTES", 0)  # in Spark instead of on the driver
    job = replace(nights.job, overrides=[f"tables=[{redacted}, {{match: public.person_new, skip: true}}]"])
    assert planned(job).remarks == (key, second)
    done = job.run()
    assert [Path(path).name for path in done.rounded_floats] == ["001.copydata"]
    assert f"{second}." in " ".join(summary_text(done).split())
