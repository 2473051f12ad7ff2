"""Moments between changes of definitions, which one batch has: each is as the server was then."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.answers.moment.read import read_at
from pgoutput_etl.answers.undo.report import LeftOut
from pgoutput_etl.answers.undo.request import UndoRequest
from pgoutput_etl.answers.undo.run import undo
from pgoutput_etl.lsn import parse_lsn
from tests.servers.test_catalog import _ENVIRON, _KEY
from tests.support.jobs import Job
from tests.support.servers.judged_database import judged_database
from tests.support.servers.postgres import Server, Servers

pytestmark = [pytest.mark.spark, pytest.mark.soak]


def after(server: Server, statement: str) -> str:
    """The LSN after a statement, and a row of another table."""
    server.psql(f"{statement}; insert into o values (1)")
    return server.psql("select pg_current_wal_lsn()").strip()


def test_a_moment_has_the_rows_that_left_later(
    servers: Servers, tmp_path: Path, landing: Path, spark: SparkSession
) -> None:
    """Although one batch has both; without any row of the root after the moment, too."""
    rules = 'tables=[{match: "public.h", mode: history}, {match: "public.s", mode: soft_delete}]'
    job, server = Job(spark, tmp_path, landing, [rules, _KEY], dict(_ENVIRON)), servers(16)
    via_root = "publish_via_partition_root = true"
    steps = ("insert into r values (3, 1)", "alter table r detach partition r1", "insert into r values (4, 2)")
    with judged_database(server, "moments", landing, publication=via_root, has_catalog=True) as database:
        server.psql("create table r (id int, p int, primary key (id, p)) partition by list (p)")
        for name in ("h", "s"):
            server.psql(f"create table {name} (like r including all) partition by list (p)")
        for name in ("r", "h", "s"):
            server.psql(f"create table {name}1 partition of {name} for values in (1)")
            server.psql(f"create table {name}2 partition of {name} for values in (2)")
        server.psql("create table o (id int); insert into r values (1, 1), (2, 2); insert into o values (1)")
        database.land()
        job.run()
        moments = [after(server, statement) for statement in steps]
        for name in ("h", "s"):
            server.psql(f"insert into {name} values (1, 1), (2, 2)")
            server.psql(f"begin; insert into {name} values (3, 1); alter table {name} detach partition {name}1; commit")
        server.psql("insert into o values (2)")
        database.land()
        assert job.run().conditions == ()
        ended = [row for row in job.rows("public", "h") if row["_pg_valid_to_lsn"] is not None]
        assert [(row["id"], row["_pg_valid_to_ts"] > row["_pg_valid_from_ts"]) for row in ended] == [(1, True)]
        deleted = {row["id"]: row for row in job.rows("public", "s") if row["_pg_deleted"]}
        assert deleted.keys() == {1, 3}
        assert len({row["_pg_commit_lsn"] for row in deleted.values()}) == 1
        assert all(row["_pg_commit_ts"] is not None and row["_pg_xid"] for row in deleted.values())

        def ids(lsn: str) -> list[int]:
            rows = read_at(spark, job.loaded(), lsn=lsn, tables=["public.r"])["public.r"].collect()
            return sorted(row["id"] for row in rows)

        assert [ids(moment) for moment in moments] == [[1, 2, 3], [2], [2, 4]]
        first = parse_lsn(moments[0])
        request = UndoRequest(str(tmp_path / "undo"), from_lsn=1, to_lsn=first, tables=("public.r",))
        [left_out] = undo(spark, job.loaded(), request).left_out
        assert left_out == LeftOut("public.r", "a partition has left it since, with its rows")


def test_a_moment_has_the_definitions_of_its_time(
    servers: Servers, tmp_path: Path, landing: Path, spark: SparkSession
) -> None:
    """No row of the table follows the command."""
    job, server = Job(spark, tmp_path, landing, [_KEY], dict(_ENVIRON)), servers(18)
    steps = ("insert into t values (2, 'b')", "alter type e rename value 'a' to 'c'")
    with judged_database(server, "moments", landing, has_catalog=True) as database:
        server.psql(
            "create type e as enum ('a', 'b'); create table t (id int primary key, v e); create table o (id int)"
        )
        server.psql("insert into t values (1, 'a'); insert into o values (1)")
        database.land()
        job.run()
        moments = [after(server, statement) for statement in steps]
        server.psql("insert into o values (2)")
        database.land()
        assert job.run().conditions == ()

        def rows(lsn: str) -> list[tuple[int, str]]:
            found = read_at(spark, job.loaded(), lsn=lsn, tables=["public.t"])["public.t"].collect()
            return sorted((row["id"], row["v"]) for row in found)

        assert [rows(moment) for moment in moments] == [[(1, "a"), (2, "b")], [(1, "c"), (2, "b")]]
