"""A fault of Spark or Delta Lake in the work on one table holds that table; the others are applied."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from delta.tables import DeltaMergeBuilder, DeltaTable
from deltalake import DeltaTable as OtherTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrameReader, DataFrameWriter, SparkSession
from tenacity import stop_after_attempt

from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.answers.verify.run import verify
from pgoutput_etl.changes.events import HEAP_PER_BYTE
from pgoutput_etl.load import driver_merge, targets, writer
from pgoutput_etl.load.holding import SPARK_ERRORS, spark_fault
from pgoutput_etl.load.rebuild import Rebuild
from pgoutput_etl.load.writer import Writer
from pgoutput_etl.protocol.messages import PgoutputMessage
from pgoutput_etl.spark import retries
from pgoutput_etl.spark.delta_files import DeltaFiles
from pgoutput_etl.spark.delta_write import DeltaWrite
from pgoutput_etl.spark.session import is_running
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.upkeep import retention
from pgoutput_etl.work.upkeep import run as maintain_run
from pgoutput_etl.work.upkeep.request import MaintainRequest
from pgoutput_etl.work.upkeep.run import maintain
from tests.support.jobs import Nights, held
from tests.support.small_archives import TOAST, insert, table, transaction, update

pytestmark = pytest.mark.spark

CANARY = "s3cr3t-canary-41"

# Calls to Delta Lake. Whatever a job does with a table passes one of them.
CALLS: tuple[tuple[type, str], ...] = (
    *((DeltaTable, name) for name in ("forPath", "isDeltaTable", "history", "detail", "delete", "restoreToVersion")),
    (DeltaMergeBuilder, "execute"),
    (DataFrameWriter, "save"),
    (DataFrameReader, "load"),
    (SparkSession, "sql"),
    (DeltaFiles, "read"),
    (DeltaWrite, "commit"),
)

REASONS = ("Spark or Delta Lake failed: ", "Delta refuses the layout of ")

# The job's work on one table, with the position of the argument that has the table's task.
WORK: tuple[tuple[Any, str, int], ...] = (
    (writer, "_refuse_existing_rows", 1),
    (Writer, "_move", 1),
    (Writer, "_write_table", 2),
    (Rebuild, "_replace_table", 2),
)


@dataclass
class Faults:
    """Makes the call number n of the table tn fail, if there is one. calls: by table."""

    spark: SparkSession
    calls: Counter[str] = field(default_factory=Counter)
    _working: threading.local = field(default_factory=threading.local)

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, place in WORK:
                stack.enter_context(patch.object(owner, name, self._on_table(getattr(owner, name), place)))
            for kind, name in CALLS:
                original = vars(kind)[name]
                failing: Any = self._failing(original.__func__ if isinstance(original, classmethod) else original)
                stack.enter_context(
                    patch.object(kind, name, classmethod(failing) if isinstance(original, classmethod) else failing)
                )
            yield

    def _on_table(self, work: Callable[..., Any], place: int) -> Callable[..., Any]:
        @wraps(work)
        def on_table(*arguments: Any) -> Any:
            self._working.table = arguments[place].shape.relation.name
            try:
                return work(*arguments)
            finally:
                self._working.table = None

        return on_table

    def _failing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def failing(*arguments: Any, **options: Any) -> Any:
            name = getattr(self._working, "table", None)
            if name is not None:
                self.calls[name] += 1
                if self.calls[name] == int(name[1:]):
                    self._fail(self.calls[name])
            return call(*arguments, **options)

        return failing

    def _fail(self, number: int) -> None:
        """With an error of Spark's, or of another class of Java, as py4j has it."""
        if number % 2:
            self.spark._jvm.java.lang.Integer.parseInt(CANARY)  # type: ignore[union-attr]
        self.spark.table(f"`{CANARY}`")


def names(count: int) -> dict[int, str]:
    """Tables by OID; the last two have no call that fails."""
    return {100 + n: f"t{n:02}" for n in [*range(1, count + 1), 98, 99]}


def create(tables: dict[int, str]) -> list[PgoutputMessage]:
    relations = [table("id", "v", oid=oid, name=name) for oid, name in tables.items()]
    return transaction(1, 0x100, *relations, *(insert(i, "a", oid=oid) for oid in tables for i in "123"))


def change(tables: dict[int, str]) -> list[PgoutputMessage]:
    return transaction(2, 0x200, *(m for oid in tables for m in (update("1", "x", oid=oid), insert("4", "b", oid=oid))))


def alter(tables: dict[int, str]) -> list[PgoutputMessage]:
    """`v` leaves, and `w` comes, so that every table's columns change before it is written."""
    relations = [table("id", "w", "u", oid=oid, name=name) for oid, name in tables.items()]
    return transaction(2, 0x200, *relations, *(insert("4", "b", "c", oid=oid) for oid in tables))


def layout(_: dict[int, str]) -> str:
    return "tables=[{match: '*', cluster_by: [id], comment: ours}]"


def layout_of_altered(_: dict[int, str]) -> str:
    """The archive leaves it open whether `v` was renamed to one of the new columns."""
    return "tables=[{match: '*', cluster_by: [id], comment: ours, columns: {w: added, u: added}}]"


def other_places(tables: dict[int, str]) -> str:
    return f"tables=[{', '.join(f'{{match: public.{name}, rename: other.{name}}}' for name in tables.values())}]"


def no_rules(_: dict[int, str]) -> str:
    return "tables=[]"


ALL = BackfillRequest(("*",))


@pytest.mark.parametrize(
    ("calls", "rules", "messages"),
    [
        pytest.param(14, layout, create, id="create", marks=pytest.mark.soak),
        pytest.param(2, no_rules, change, id="write on the driver"),
        pytest.param(10, no_rules, change, id="write"),
        pytest.param(16, layout_of_altered, alter, id="evolve, lay out, and write", marks=pytest.mark.soak),
        pytest.param(20, other_places, change, id="move", marks=pytest.mark.soak),
        pytest.param(16, layout, None, id="rebuild", marks=pytest.mark.soak),
    ],
)
def test_every_call_to_delta_may_fail(
    nights: Nights,
    calls: int,
    rules: Callable[[dict[int, str]], str],
    messages: Callable[[dict[int, str]], list[PgoutputMessage]] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of as many tables as there are calls, each fails at another one. A rebuild then mends all of them."""
    tables, faults, job = names(calls), Faults(nights.job.spark), nights.job
    if messages is not create:
        assert nights.night(create(tables)).exit_code == 0
    job.overrides.append(rules(tables))
    with faults.planted(), monkeypatch.context() as patched:
        if calls > 2:
            patched.setattr(driver_merge, "SMALL_BYTES", -1)
        if messages is None:
            backfilled = job.backfill(ALL)
            failed = {t.table.table: t.table.held for t in backfilled.tables if t.table.held}
            exit_code = backfilled.exit_code
        else:
            applied = nights.night(messages(tables))
            failed, exit_code = held(applied), applied.exit_code
    made = max(faults.calls["t98"], faults.calls["t99"])
    assert made <= calls, "a table for each call"
    expected = {name for name in tables.values() if int(name[1:]) <= made}
    assert failed.keys() <= expected
    assert exit_code == 3
    schema = "other" if rules is other_places else "public"
    right = nights.values("t99", schema)
    harmless = {name: nights.values(name, schema) for name in expected - failed.keys()}
    assert harmless == dict.fromkeys(harmless, right), "a call that has another way"
    assert {reason for reason in failed.values() if not reason.startswith(REASONS)} == set()
    assert CANARY not in str(failed)
    if messages is not None:
        assert job.run().exit_code == 3
        assert job.backfill(BackfillRequest(None)).exit_code == 0
    else:
        assert job.backfill(ALL).exit_code == 0
    if rules is other_places:  # a rebuild leaves a table where it is, and the next batch moves it
        assert nights.night(transaction(3, 0x300, *(insert("5", "c", oid=oid) for oid in tables))).exit_code == 0
        right = nights.values("t99", schema)
    else:
        assert job.run().exit_code == 0
    found = {name: nights.values(name, schema) for name in tables.values()}
    assert found == dict.fromkeys(found, right)
    assert len(right) == (3 if messages in (create, None) else 4) + (rules is other_places)


@pytest.mark.soak
def test_a_data_file_that_is_gone_ends_the_maintenance_and_verification_of_its_table_alone(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "LEAST_SMALL_FILES", 2)
    monkeypatch.setattr(maintain_run, "LEDGER_TABLES", ())
    job, tables = nights.job, {100: "t", 101: "u"}
    nights.night(create(tables))
    nights.night(transaction(2, 0x200, *(insert("9", "z", oid=oid) for oid in tables)))
    next(job.path("public", "t").rglob("*.parquet")).unlink()

    maintained = maintain(job.spark, job.loaded(), MaintainRequest(execute=True), lambda _: None)
    assert maintained.exit_code == 3
    t, u = sorted(maintained.tables, key=lambda table: table.name)
    assert (t.name, t.failed, u.failed, u.steps) == ("public.t", True, False, ("optimize",))
    assert t.left[0].startswith("Spark or Delta Lake failed: ")

    u_path = str(job.path("public", "u"))
    verified = verify(job.spark, job.loaded(), VerifyRequest(delta=u_path, tables=("public.t",)), lambda _: None)
    assert verified.exit_code == 3
    assert (verified.tables[0].why_not or "").startswith("Spark or Delta Lake failed: ")
    verified = verify(job.spark, job.loaded(), VerifyRequest(delta=u_path, tables=("public.u",)), lambda _: None)
    assert verified.exit_code == 0


@pytest.mark.soak
def test_a_row_that_java_has_no_memory_for_holds_its_table_until_there_is_more(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, job = {100: "t", 101: "u"}, nights.job
    described = [table("id", "v", oid=oid, name=name) for oid, name in tables.items()]
    with monkeypatch.context() as patch:
        patch.setattr(targets, "heap_of", lambda _: 1000 * HEAP_PER_BYTE)
        summary = nights.night(
            transaction(1, 0x100, *described, insert("1", CANARY * 100, oid=100), insert("1", "a", oid=101))
        )
    assert summary.exit_code == 3
    [(name, reason)] = held(summary).items()
    assert (name, CANARY in reason) == ("t", False)
    assert "public.t, column 'v': expected a row of at most 1,000 bytes, found one of 1,613, 1,600 in this" in reason
    assert "Give Java 1g (spark.executor.memory; without a cluster, spark.driver.memory)" in reason
    assert nights.values("u") == [("1", "a")]
    assert job.backfill(BackfillRequest(None)).exit_code == 0
    assert nights.values("t") == [("1", CANARY * 100)]


@pytest.mark.soak
def test_a_stored_row_that_java_has_no_memory_for_holds_its_table_until_there_is_more(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, job = {100: "t", 101: "u"}, nights.job
    t, u = (table("id", "v", "w", oid=oid, name=name) for oid, name in tables.items())
    rows = [insert("1", CANARY * 300, "a", oid=100), insert("2", "a", "a", oid=100)]
    assert nights.night(transaction(1, 0x100, t, *rows, u, insert("1", "a", "a", oid=101))).exit_code == 0

    def change(number: int, value: str) -> list[PgoutputMessage]:
        return transaction(number, 0x100 * number, *(update("1", TOAST, value, oid=oid) for oid in tables))

    with monkeypatch.context() as patch:
        patch.setattr(targets, "heap_of", lambda _: 4000 * HEAP_PER_BYTE)
        summary = nights.night(change(2, "b"))
        assert summary.exit_code == 3
        [(name, reason)] = held(summary).items()
        assert (name, CANARY in reason) == ("t", False)
        assert "public/t: expected stored rows of at most 4,000 bytes, found one of 4,8" in reason
        assert ".parquet. It was written with more memory. Give Java 1g (spark.executor.memory; without a" in reason
        assert nights.values("u") == [("1", "a", "b")]
        assert job.backfill(BackfillRequest(None)).exit_code == 3
        assert nights.night(transaction(3, 0x300, update("1", TOAST, "c", oid=101))).exit_code == 3
    assert job.backfill(BackfillRequest(None)).exit_code == 0
    assert nights.values("t") == [("1", CANARY * 300, "b"), ("2", "a", "a")]
    assert nights.night(change(4, "d")).exit_code == 0
    assert [row[-1] for name in ("t", "u") for row in nights.values(name)] == ["d", "a", "d"]


def fault_of(spark: SparkSession, fail: Callable[[], Any]) -> str | None:
    with pytest.raises(SPARK_ERRORS) as raised:
        fail()
    fault = spark_fault(raised.value, partial(is_running, spark))
    return None if fault is None else str(fault)


def test_errors_that_other_tables_meet_end_the_run(spark: SparkSession) -> None:
    java = spark._jvm.java  # type: ignore[union-attr]
    assert fault_of(spark, lambda: java.io.FileOutputStream("/dev/full").write(1)) is None
    assert fault_of(spark, lambda: java.net.Socket("127.0.0.1", 1)) is None
    found = fault_of(spark, lambda: spark.table(f"`{CANARY}: No space left on device CANCELED`"))
    assert found == "Spark or Delta Lake failed: ExtendedAnalysisException (TABLE_OR_VIEW_NOT_FOUND, SQLSTATE 42P01)"

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(60)
        yield from batches

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(lambda: spark.range(1).mapInArrow(wait, "id long").collect())
        while not spark.sparkContext.statusTracker().getActiveJobsIds():
            time.sleep(0.1)
        spark.sparkContext.cancelAllJobs()
        assert fault_of(spark, job.result) is None


@contextmanager
def another_program(path: Path) -> Iterator[threading.Event]:
    """Updates the table again and again, until the event is set."""
    stopped = threading.Event()

    def run() -> None:
        while not stopped.wait(0.1):
            with suppress(CommitFailedError):
                OtherTable(path).update(updates={"v": "v"})

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield stopped
        finally:
            stopped.set()
        running.result()


@pytest.mark.soak
def test_a_write_that_meets_other_commits_is_repeated_and_then_held(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, job = {100: "t", 101: "u", 102: "w"}, nights.job
    job.overrides.append("target.readers=all")  # as the other program is no Spark
    nights.night(create(tables))
    monkeypatch.setattr(retries.again, "stop", stop_after_attempt(3))
    with another_program(job.path("public", "t")) as stopped:
        monkeypatch.setattr(retries.again, "sleep", lambda _: stopped.set())
        assert nights.night(change(tables)).exit_code == 0
        assert stopped.is_set(), "it has met another commit"
    assert nights.values("t") == nights.values("u") == [("1", "x"), ("2", "a"), ("3", "a"), ("4", "b")]

    monkeypatch.setattr(retries.again, "sleep", lambda _: None)
    with another_program(job.path("public", "t")):
        summary = nights.night(transaction(3, 0x300, *(update("2", "y", oid=oid) for oid in tables)))
    assert summary.exit_code == 3
    assert held(summary).keys() == {"t"}
    assert held(summary)["t"].startswith("other writers changed the table during each attempt to write it (")
    assert nights.values("u")[1] == ("2", "y")
    assert job.backfill(BackfillRequest(None)).exit_code == 0
    assert nights.values("t") == nights.values("u")
