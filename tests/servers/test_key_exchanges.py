"""Deferrable keys of a server: random transactions in which rows exchange keys, and what PostgreSQL refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

import pgoutput_etl as pg
from pgoutput_etl.answers.undo.request import UndoRequest
from pgoutput_etl.answers.undo.run import undo
from pgoutput_etl.config.rules import Mode
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.snapshot.request import RowFormat, SnapshotRequest
from pgoutput_etl.work.snapshot.run import snapshot
from tests.spark.load.test_modes import assert_kept, in_modes
from tests.support.jobs import Job
from tests.support.kept_rows import applied
from tests.support.servers.postgres import Server

pytestmark = pytest.mark.e2e

STREAMS_SOON = {"logical_decoding_work_mem": "64kB"}
STATEMENTS = (
    *("update t set pos = pos + 1", "update t set pos = pos - 1", "update t set pos = (pos + {a}) % 8"),
    *("update t set pos = {a} + {b} - pos where pos in ({a}, {b})", "update t set pos = {a} where pos = {b}"),
    *("insert into t values ({a}, '{v}', repeat('{v}', {n}))", "delete from t where pos = {a} and v = '{v}'"),
    *("update t set v = '{v}' where pos = {a}", "update t set big = repeat('{v}', {n}), pos = {b} where pos = {a}"),
)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.soak] * (seed > 1)) for seed in range(1, 6)])
def test_random_transactions(seed: int, tmp_path: Path) -> None:
    """A part of them is streamed, in several segments; a part of each is rolled back."""
    with Server(16 if seed % 2 else 18, STREAMS_SOON) as server, server.connect() as connection:
        connection.execute(
            "create table t (pos int unique deferrable initially deferred, v text, big text);"
            "alter table t replica identity full; alter table t alter big set storage external;"
            "create publication p for table t"
        )
        server.create_slot("s")
        random, replay, committed = Random(seed), Replay(), 0
        for night in range(3):
            committed += sum(commits(connection, random) for _ in range(40))
            file = tmp_path / f"{night}.bin"
            server.recvlogical("s", file, publications=["p"], proto_version=2, streaming="on")
            replay.add_file(str(file), file.read_bytes())
            [found] = replay.tables({"public.t": ("pos",)}).values()
            expected = connection.execute("select pos, v, big from t order by pos").fetchall()
            assert sorted((row["pos"], row["v"], row["big"]) for row in found.rows) == expected
            assert found.mismatches is None
        assert committed > 30
        assert any(outcome.scope is not None for outcome in replay.assembly.outcomes)


def commits(connection: psycopg.Connection[tuple[object, ...]], random: Random) -> bool:
    """False if the key is not unique at the end of a random transaction."""
    try:
        with connection.transaction():
            for _ in range(random.randint(1, 6)):
                is_kept = random.random() < 0.8
                with connection.transaction(force_rollback=not is_kept):
                    a, b = random.sample(range(8), 2)
                    size = random.choice([1, 3000, 40_000])
                    statement = random.choice(STATEMENTS).format(a=a, b=b, v=random.choice("xyz"), n=size)
                    connection.execute(statement.encode())
    except psycopg.errors.UniqueViolation:
        return False
    return True


def test_no_deferrable_index_is_a_replica_identity(server: Server) -> None:
    """So only a configured key can be exchanged, under REPLICA IDENTITY FULL."""
    with server.connect() as connection:
        connection.execute("create table d (id int primary key deferrable, u int not null unique deferrable)")
        connection.execute("insert into d values (1, 1); create publication d for table d")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not have a replica identity"):
            connection.execute("update d set u = 2")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="non-immediate index"):
            connection.execute("alter table d replica identity using index d_u_key")


MODES = {f"public.{mode.value}": mode for mode in Mode}
KEYS = dict.fromkeys(MODES, ("pos",))
WITH_ROWS = ("public.mirror", "public.soft_delete", "public.history")

Rows = list[tuple[Any, ...]]


@dataclass(slots=True)
class ExchangingTables:
    """Tables with equal rows, one for each mode, and a job that applies them. moments: LSNs between transactions, with
    the rows at this time."""

    server: Server
    job: Job
    random: Random
    replay: Replay = field(default_factory=Replay)
    moments: dict[int, Rows] = field(default_factory=dict)

    def create(self) -> None:
        for mode in Mode:
            self.server.psql(
                f"create table {mode.value} (pos int unique deferrable initially deferred, v text, big text);"
                f"alter table {mode.value} replica identity full;"
                f"alter table {mode.value} alter big set storage external"
            )
        self.server.psql("create publication p for all tables")
        self.server.create_slot("s")

    def commit(self, *statements: str) -> None:
        """statements: with <t> for the table."""
        both = "; ".join(statements)
        self.server.psql(f"begin; {'; '.join(both.replace('<t>', mode.value) for mode in Mode)}; commit")
        self.moments[parse_lsn(self.server.current_lsn())] = self.rows()

    def exchange(self) -> None:
        """Random transactions, each with a chain or a circle of rows; rows may change otherwise, too."""
        rows = self.rows()
        for _ in range(2):
            a, b, c = self.random.sample([row[0] for row in rows], 3)
            step, v, size = self.random.choice("+-"), self.random.choice("xyz"), self.random.choice([1, 3000])
            new = f"new {len(self.moments)}"
            circle = f"case pos when {a} then {b} when {b} then {c} else {a} end"
            moves = [
                [f"update <t> set pos = pos {step} 1"],
                [f"update <t> set pos = {a} + {b} - pos where pos in ({a}, {b})"],
                [f"update <t> set pos = {circle} where pos in ({a}, {b}, {c})"],
                [f"delete from <t> where pos = {a}", f"update <t> set pos = {a} where pos = {b}"],
                [
                    f"insert into <t> values ({b}, '{new}', repeat('{v}', {size}))",
                    f"update <t> set pos = {max(row[0] for row in rows) + 2} where pos = {b} and v <> '{new}'",
                ],
            ]
            self.commit(*self.random.choice(moves), f"update <t> set v = '{v}' where pos = {c}")
            rows = self.rows()

    def rows(self) -> Rows:
        with self.server.connect() as connection:
            return connection.execute("select pos, v, big from mirror order by pos").fetchall()

    def land(self) -> None:
        path = self.job.landing / f"{len(list(self.job.landing.iterdir())):03}.bin"
        self.server.recvlogical("s", path, publications=["p"], proto_version=2, streaming="on")
        self.replay.add_file(str(path), path.read_bytes())

    def apply(self) -> None:
        self.land()
        assert {table.held for table in self.job.run().tables} == {None}
        assert set(self.job.mismatches().values()) == {None}

    def assert_equal(self) -> None:
        """All tables have the server's rows."""
        rows = self.rows()
        for name in MODES:
            assert self.current(name) == rows, name

    def current(self, name: str) -> Rows:
        found = self.job.rows(*name.split("."))
        match MODES[name]:
            case Mode.SOFT_DELETE:
                found = [row for row in found if not row["_pg_deleted"]]
            case Mode.HISTORY:
                found = [row for row in found if row["_pg_valid_to_lsn"] is None]
            case Mode.APPEND:
                [shape] = [t.shape for t in self.replay.tables(KEYS).values() if t.shape.relation.full_name == name]
                found = applied(found, shape)
            case _:
                pass
        return _sorted(found)

    def spoil(self) -> None:
        """Another program deletes the rows of all tables."""
        for name in MODES:
            self.job.spark.sql(f"delete from delta.`{self.job.path(*name.split('.'))}`")


def _sorted(rows: list[dict[str, Any]]) -> Rows:
    return sorted((row["pos"], row["v"], row["big"]) for row in rows)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 6))
def test_every_job_orders_exchanges(seed: int, spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    """A backfill, tables as of a moment, an undo, and a snapshot with the changes that follow it, in every mode."""
    job = in_modes(Job(spark, tmp_path, landing), MODES, KEYS)
    with Server(18 if seed % 2 else 16, STREAMS_SOON) as server:
        tables = ExchangingTables(server, job, Random(seed))
        tables.create()
        tables.commit("insert into <t> select i, 'v' || i, repeat(i::text, 3000) from generate_series(1, 6) i")
        tables.exchange()
        tables.apply()
        first = max(tables.moments)
        tables.exchange()
        tables.apply()
        tables.assert_equal()
        assert_moments(tables)
        assert_rebuilt(tables, first)
        assert_undone(tables, first, tmp_path / "undo")
        assert_loaded(tables, tmp_path, is_ahead=seed % 2 == 1)


def assert_moments(tables: ExchangingTables) -> None:
    config = tables.job.loaded()
    for lsn in sorted(tables.moments)[1:-1]:
        found = pg.read_at(tables.job.spark, config, lsn=lsn, tables=WITH_ROWS)
        for name, frame in found.items():
            current = {"public.history": "_pg_valid_to_lsn is null", "public.soft_delete": "not _pg_deleted"}
            read = frame.where(current.get(name, "true")).toArrow().to_pylist()
            assert _sorted(read) == tables.moments[lsn], (name, lsn)


def assert_rebuilt(tables: ExchangingTables, first: int) -> None:
    """A rebuild, and in mode mirror a repair of the rows that the last transactions changed."""
    tables.spoil()
    tables.job.backfill(BackfillRequest(("public.*",)))
    tables.assert_equal()
    assert_kept(tables.job, MODES, tables.replay, KEYS)
    path = tables.job.path("public", "mirror")
    tables.job.spark.sql(f"update delta.`{path}` set v = 'spoiled' where _pg_commit_lsn > {first}")
    tables.job.backfill(BackfillRequest(("public.mirror",), from_lsn=first))
    tables.assert_equal()


def assert_undone(tables: ExchangingTables, first: int, folder: Path) -> None:
    """The script restores the rows from before the last transactions. Mode append has no rows."""
    summary = undo(tables.job.spark, tables.job.loaded(), UndoRequest(str(folder), from_lsn=first))
    assert [left.name for left in summary.left_out] == ["public.append"]
    assert not any(table.xids for table in summary.tables)
    done = tables.server.run_scripts("-f", str(folder / "undo.sql"))
    assert (done.returncode, done.stderr) == (0, "")
    assert tables.rows() == tables.moments[first]


def assert_loaded(tables: ExchangingTables, folder: Path, is_ahead: bool) -> None:
    """A snapshot that is ahead of the archive, or behind it. Exchanges precede and follow it."""
    tables.server.psql("truncate append; insert into append table mirror")
    tables.exchange()
    lsn = parse_lsn(tables.server.current_lsn())
    tables.server.pg_dump(folder / "dump")
    tables.exchange()
    if not is_ahead:
        tables.apply()
    tables.spoil()
    request = SnapshotRequest(("public.*",), lsn, files=str(folder / "dump"), format=RowFormat.DUMP)
    assert snapshot(tables.job.spark, tables.job.loaded(), request, print).exit_code == 0
    if is_ahead:
        tables.apply()
    tables.assert_equal()
