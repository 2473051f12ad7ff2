"""A server that is written to all the time: verify is exact as of the moment at which it asked."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.answers.verify.ask import Asking
from pgoutput_etl.answers.verify.report import VerifySummary
from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.answers.verify.server_answer import ServerAnswer
from pgoutput_etl.errors import AnotherRunError, RunError
from pgoutput_etl.exit_codes import EXIT_DIFFERENT, EXIT_DONE, EXIT_TRY_LATER
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load import repair
from pgoutput_etl.load.repair import RepairChanges
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta import delta_table, read_table
from pgoutput_etl.work.files.report import RunSummary
from pgoutput_etl.work.snapshot.settled import verify
from pgoutput_etl.work.snapshot.verify_check import check_verify
from tests.support.jobs import Job
from tests.support.servers.postgres import Server, Version

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

TABLES = """
create table counted (
  id bigint primary key, n int not null default 0, note text, price float8, at timestamptz default now()
);
create table named (name text primary key, v numeric(12,2));
create table log (at timestamptz default now(), line text);
alter table log replica identity full;
create table parted (id int, at date, v text, primary key (id, at)) partition by range (at);
create table parted_1 partition of parted for values from ('2024-01-01') to ('2025-01-01');
create table parted_2 partition of parted default;
create table parent (id int primary key, v text);
create table child (extra int, primary key (id)) inherits (parent);
create publication p for all tables with (publish_via_partition_root = true);
"""
ROWS = """
insert into counted select i, i, 'note ' || i, random(), now() from generate_series(1, 3000) i;
insert into named select 'name ' || i, i * 1.5 from generate_series(1, 1500) i;
insert into log (line) select 'line ' || i % 50 from generate_series(1, 400) i;
insert into parted select i, date '2024-12-01' + i % 60, 'v' from generate_series(1, 500) i;
insert into parent select i, 'p' from generate_series(1, 20) i;
insert into child select i, 'c', i from generate_series(101, 120) i;
"""
CHANGES = (
    "update counted set n = n + 1, price = random() where id = {0}",
    "insert into counted (id, note) values ({1}, 'new') on conflict (id) do update set note = null",
    "delete from counted where id = {0}",
    "update named set v = v + 1 where name = 'name {0}'",
    "update named set name = name || 'x' where name = 'name {0}'",
    "insert into log (line) values ('line {0}')",
    "delete from log where ctid in (select ctid from log limit 1)",
    "update parted set at = at + 7 where id = {0} and at < '2026-01-01'",
    "update parent set v = v || '.' where id = {0} % 150",
)


@dataclass(slots=True)
class Pace:
    """pause: seconds between two transactions."""

    pause: float

    @contextmanager
    def while_asking(self, pause: float) -> Iterator[None]:
        """Within the context, the writers have another pace whenever verify asks the server."""
        run = Asking.run

        def at_pace(asking: Asking) -> ServerAnswer:
            before, self.pause = self.pause, pause
            try:
                return run(asking)
            finally:
                self.pause = before

        with patch.object(Asking, "run", at_pace):
            yield


@contextmanager
def writers(server: Server, changes: Sequence[str] = CHANGES, pause: float = 0.05) -> Iterator[Pace]:
    """Within the context, three connections write in transactions of some statements."""
    is_over, pace = threading.Event(), Pace(pause)

    def write(number: int) -> None:
        chance = random.Random(number)
        with server.connect(autocommit=False) as connection:
            while not is_over.is_set():
                for _ in range(chance.randint(1, 6)):
                    change = chance.choice(changes).format(chance.randint(101, 2500), chance.randint(3001, 9000))
                    try:
                        with connection.transaction():
                            connection.execute(change.encode())
                    except psycopg.Error:
                        pass  # two writers changed the same row
                if chance.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()
                time.sleep(pace.pause)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield pace
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


class Archive:
    """A server's archive, and its tables in Delta."""

    def __init__(self, server: Server, job: Job) -> None:
        self.server, self.job, self.files = server, job, 0
        self.url = f"postgresql://postgres@127.0.0.1:{server.port}/{server.database}"

    def receive(self) -> None:
        path = self.job.landing / f"{self.files}.bin"
        self.server.recvlogical("slot", path, publications=["p"], proto_version=2, streaming="on", messages="true")
        self.files += 1

    def apply(self) -> RunSummary:
        self.receive()
        return self.job.run()

    def verify(self, **options: Any) -> VerifySummary:
        options.setdefault("server", None if options.keys() & {"finish", "jdbc"} else self.url)
        return verify(self.job.spark, self.job.loaded(), VerifyRequest(**options), lambda _: None)

    @property
    def kept(self) -> list[Path]:
        return [path for path in (self.job.folder / "tables" / "_pgoutput_etl" / "verify").rglob("*") if path.is_file()]

    def place(self, table: str) -> Place:
        return Place(str(self.job.folder / "tables" / "public" / table))

    def change(self, table: str, condition: str, **values: Any) -> None:
        """As another program would."""
        delta_table(self.job.spark, self.place(table)).update(condition, values)

    def delete(self, table: str, condition: str) -> None:
        delta_table(self.job.spark, self.place(table)).delete(condition)

    def double(self, table: str, condition: str, rows: int) -> None:
        found = read_table(self.job.spark, self.place(table)).where(condition)
        assert found.count() == rows
        found.write.format("delta").mode("append").save(str(self.place(table)))


@pytest.fixture(scope="module")
def archive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archive]:
    """One for all tests: each leaves Delta as it should be, but the last."""
    folder, landing = (tmp_path_factory.mktemp(name) for name in ("in_use", "landing"))
    with archive_of(18, spark, folder, landing) as found:
        yield found


@contextmanager
def archive_of(version: Version, spark: SparkSession, tmp_path: Path, landing: Path) -> Iterator[Archive]:
    with Server(version) as server:
        server.psql(TABLES)
        server.create_slot("slot")
        server.psql(ROWS)
        found = Archive(server, Job(spark, tmp_path, landing))
        found.apply()
        yield found


def check_rounds(
    archive: Archive, rounds: int, pause: float, names: Sequence[str] = ("",), *, since: bool = False
) -> None:
    """Asks during writes, applies, and settles, again and again. names: of the tables to write and to compare. pause:
    as of Pace, while the server is asked. Otherwise less is written, as each apply would take longer than the last one.
    """
    options: dict[str, Any] = {"tables": tuple(f"public.{name or '*'}" for name in names), "since": since}
    changes = [change for change in CHANGES if any(name in change for name in names)]
    with writers(archive.server, changes) as pace, pace.while_asking(pause):
        first = archive.verify(**options)
        assert first.exit_code == EXIT_TRY_LATER, "three writers have changed some table"
        assert first.asked is not None
        undecided = 0
        for _ in range(rounds):
            archive.apply()
            settled = archive.verify(**options)
            differing = [table for table in settled.tables if table.differing or table.why_not is not None]
            assert (settled.exit_code, differing) == (EXIT_DONE, [])
            assert len(settled.tables) == len(first.asked.tables) + len(first.tables)
            undecided += settled.asked is not None and len(settled.asked.tables)
        assert undecided > rounds, "most tables are behind when the server is asked"


def test_the_checklist(archive: Archive) -> None:
    archive.server.psql("create role limited login; grant select on all tables in schema public to limited")
    archive.server.psql("revoke select on named from limited")
    checks = check_verify(archive.job.spark, archive.job.loaded(), VerifyRequest(server=archive.url, checks_only=True))
    assert (checks.exit_code, {check.subject for check in checks.checks if check.status == "ok"}) == (
        EXIT_DONE,
        {"server", "wal_level", "max_replication_slots", "max_wal_senders", "user"},
    )
    assert "verify settles once a commit that verify makes has been applied" in checks.to_json()
    assert re.search(r"verify.* --config \S+job\.yaml --server postgresql://", checks.steps[-1].command)
    url = archive.url.replace("postgres@", "limited@")
    checks = check_verify(archive.job.spark, archive.job.loaded(), VerifyRequest(server=url, checks_only=True))
    assert (checks.exit_code, [check.subject for check in checks.problems]) == (EXIT_DIFFERENT, ["user", "SELECT"])
    archive.server.psql("drop owned by limited; drop role limited")


def test_nobody_else_writes(archive: Archive) -> None:
    equal = archive.verify()
    assert (equal.exit_code, equal.asked, archive.kept) == (EXIT_DONE, None, [])
    assert sum(table.rows for table in equal.tables) == 3000 + 1500 + 400 + 500 + 20 + 20
    archive.server.psql("update named set v = 0 where name = 'name 4'")
    assert len(archive.verify(begin=True, tables=("public.n*", "public.p*")).tables) == 2, "and named is asked"
    through = archive.apply().verified_through
    assert through.keys() == {table.full_name for table in equal.tables}
    assert {name for name, lsn in through.items() if lsn > equal.last_commit_lsn} == {"public.parted", "public.parent"}
    [manifest] = (archive.job.folder / "tables" / "_pgoutput_etl" / "manifests").iterdir()
    shown = {table["table"]: table["verified_through"] for table in json.loads(manifest.read_text())["tables"]}
    assert shown["child"] == format_lsn(equal.last_commit_lsn)


def test_at_once_without_replication(archive: Archive) -> None:
    archive.server.psql(
        "update counted set n = -1 where id = 5; create table late (id int); insert into late values (1)"
    )
    archive.server.psql("create role reader login; grant select on counted, named to reader")
    url, kept = archive.url.replace("postgres@", "reader@"), archive.kept
    refused = archive.verify(jdbc=f"jdbc:{url}", tables=("public.named", "public.l*"))
    assert (refused.exit_code, refused.asked, archive.kept) == (EXIT_DIFFERENT, None, kept)
    assert {t.table: t.why_not for t in refused.tables} == {
        "named": None,
        "log": "--server: the server says: permission denied for table log",
        "late": "--server: the server says: permission denied for table late",
    }
    found = archive.verify(jdbc=f"jdbc:{archive.url}")
    assert found.exit_code == EXIT_DIFFERENT
    assert {t.table: (t.differs, t.why_not) for t in found.tables if t.differing or t.is_held} == {
        "counted": (1, None),
        "late": (0, "never loaded: the server has rows of this table, and Delta has none: load a snapshot"),
    }
    assert archive.verify(jdbc=f"jdbc:{archive.url}", tables=("public.named",)).exit_code == EXIT_DONE


def test_planted_differences_are_found_and_repaired(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    archive.change("counted", "id in (77, 78)", n="n + 1", note="'SECRET'")
    archive.delete("counted", "id in (79, 80, 81)")
    archive.double("counted", "id in (82, 83)", rows=2)
    archive.change("named", "name = 'name 3'", name="'name 3 '")
    archive.delete("parted", "id = 4")
    archive.double("log", "line = 'line 7'", rows=8)
    archive.delete("log", "line = 'line 8'")
    archive.server.psql("update counted set n = -1 where id = 84; update named set v = 0 where name = 'name 4'")
    archive.server.psql("update parted set v = 'w' where id = 5; insert into log (line) values ('more')")
    archive.apply()
    begun = archive.verify(begin=True)
    assert (begun.exit_code, begun.asked and begun.asked.tables) == (
        EXIT_DONE,
        ("public.counted", "public.log", "public.named", "public.parted"),
    )
    [kept] = archive.kept
    assert kept.stat().st_mode & 0o077 == 0, "it has rows"
    early = archive.verify(finish=True)
    assert (early.exit_code, early.asked) == (EXIT_TRY_LATER, begun.asked), "no commit has passed that moment"
    archive.server.psql("update counted set n = n + 5 where id in (78, 83); delete from counted where id = 80")
    archive.server.psql("update named set v = 1 where name = 'name 9'; delete from log where line = 'line 8'")
    archive.apply()
    monkeypatch.setattr(RepairChanges, "_prepared_by_spark", None)  # the driver repairs small tables
    found = archive.verify(finish=True, repair=True)
    assert (found.exit_code, archive.kept) == (EXIT_DIFFERENT, [])
    counts = {t.table: (t.only_delta, t.only_other, t.differs) for t in found.tables if t.differing}
    assert counts == {"counted": (2, 3, 2), "named": (1, 1, 0), "parted": (0, 1, 0), "log": (8, 8, 0)}
    assert {t.table: (t.repair, t.is_repaired) for t in found.tables if t.differing} == {
        "counted": ("4 rows repaired; 3 rows left that changed since: verify again", False),
        "named": ("2 rows repaired", True),
        "parted": ("1 row repaired", True),
        "log": ("8 rows repaired; 1 row left that changed since: verify again", False),
    }
    written = {t.table: (t.inserted, t.updated, t.deleted) for t in found.changed.tables}
    assert written == {"counted": (2, 2, 1), "named": (1, 0, 1), "parted": (1, 0, 0), "log": (0, 0, 8)}
    assert found.next_command is not None
    assert f"--tables public.counted,public.log --server postgresql://127.0.0.1:{archive.server.port}/postgres" in (
        found.next_command
    )
    assert "SECRET" not in found.to_json()
    with pytest.raises(RunError, match="the server has not been asked: run verify --begin"):
        archive.verify(finish=True)
    assert repaired(archive) == {"counted": "1 row repaired"}, "of the two that were one"


def test_no_difference_while_others_write(archive: Archive) -> None:
    check_rounds(archive, 5, pause=0.05, names=("counted", "log"))
    archive.apply()
    archive.verify(finish=True)


@pytest.mark.soak
def test_since_sees_written_ranges_only(archive: Archive) -> None:
    assert archive.verify(jdbc=f"jdbc:{archive.url}").exit_code == EXIT_DONE
    archive.change("counted", "id = 2900", n="n + 1")
    archive.server.psql("update counted set n = n + 1 where id = 42; delete from named where name = 'name 42'")
    before = archive.apply().verified_through
    blind = archive.verify(since=True)
    assert (blind.exit_code, blind.asked) == (EXIT_DONE, None), "nobody looks at row 2900"
    ranges = {table.table: (table.ranges - table.ranges_skipped, table.ranges) for table in blind.tables}
    assert ranges.pop("named") == (1, 256)
    assert (asked := ranges.pop("counted"))[0] == 1 < asked[1] - 4
    assert set(ranges.values()) == {(0, 1)}
    assert [remark for remark in blind.remarks if "verify without --since" in remark], "of the program that wrote 2900"
    archive.change("counted", "id in (43, 44)", n="n + 1")
    archive.server.psql("update counted set n = n + 1 where id = 42; update counted set id = 9999 where id = 44")
    archive.server.psql("truncate only child")
    after = archive.apply().verified_through
    assert {name for name in before if after[name] == before[name]} == {"public.counted"}
    assert archive.verify(begin=True, since=True).asked is not None
    archive.apply()
    found = archive.verify(finish=True)
    tables = {table.table: table for table in found.tables}
    assert (found.exit_code, tables["counted"].differs, tables["counted"].differing) == (EXIT_DIFFERENT, 1, 1), "id 43"
    assert tables["counted"].ranges - tables["counted"].ranges_skipped == 5, "that of 42, in four parts, and 9999"
    assert tables["child"].ranges_skipped == 0, "a TRUNCATE changes all rows"
    whole = archive.verify(jdbc=f"jdbc:{archive.url}")
    assert {table.table: table.differs for table in whole.tables if table.differing} == {"counted": 2}


@pytest.mark.soak
@pytest.mark.parametrize("since", [False, True])
@pytest.mark.parametrize("version", [14, 16, 18])
def test_a_hundred_times(version: Version, since: bool, spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    with archive_of(version, spark, tmp_path, landing) as archive:
        check_rounds(archive, 17, pause=0, since=since)


@pytest.mark.soak
def test_repair_ends_states_and_waits_for_other_runs(
    spark: SparkSession, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "write_on_driver", lambda *_: None)  # Spark repairs larger tables
    with archive_of(18, spark, tmp_path, landing) as archive:
        check_states(archive)


def check_states(archive: Archive) -> None:
    archive.delete("counted", "id = 89")
    archive.server.psql("update counted set n = -1 where id = 88")
    archive.apply()
    assert repaired(archive) == {"counted": "1 row repaired"}
    archive.delete("counted", "id = 90")
    archive.server.psql("delete from counted where id = 90")
    assert [(c.table, c.state.value) for c in archive.apply().conditions] == [("counted", "diverged")]
    assert repaired(archive) == {"counted": "its state has ended"}
    assert archive.apply().conditions == ()
    assert archive.verify(jdbc=f"jdbc:{archive.url}").exit_code == EXIT_DONE
    archive.change("parent", "id = 1", v="'q'")
    archive.server.psql("update parent set v = 'r' where id = 2")
    archive.apply()
    archive.verify(begin=True)
    archive.apply()
    ledger = DeltaLedger.of(archive.job.spark, archive.job.loaded())
    ledger.batches.begin(Batch.next(ledger.batches.last()))
    with pytest.raises(AnotherRunError, match="another run is working on batch"):
        archive.verify(finish=True, repair=True)
    assert len(archive.kept) == 1, "for the next run"


def repaired(archive: Archive) -> dict[str, str]:
    archive.verify(begin=True)
    archive.apply()
    found = archive.verify(finish=True, repair=True)
    assert found.exit_code == EXIT_DONE
    return {table.table: table.repair for table in found.tables if table.repair is not None}
