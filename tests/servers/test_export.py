"""Exported tables, loaded into a real server, are the tables as they were at that commit; and so are undone ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.answers.export.request import ExportFormat, ExportRequest
from pgoutput_etl.answers.export.run import export
from pgoutput_etl.answers.undo.request import UndoRequest
from pgoutput_etl.answers.undo.run import undo
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.moment import Moment
from tests.spark.load.test_type_matrix import create, fill
from tests.support.jobs import Job
from tests.support.servers.postgres import Server
from tests.support.type_cases import USER_TYPES, Case, cases

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

ODD = """
create schema "odd schema";
create table "odd schema"."it's ""a.b"" t" (
    id int generated always as identity primary key, "a,b" text, "c\\d" text default 'x', number numeric
);
"""

ROWS = r"""
insert into "odd schema"."it's ""a.b"" t" ("a,b", "c\d", number) values
    ('', null, 'NaN'),
    (E'tab\t, line\n, \\N, \r', E'\\.', 1.50), ('ünïcode 😀', '\N', '-Infinity'), (null, ''';drop', 0);
"""

DISASTER = """
begin;
select pg_current_xact_id()::text;
update "odd schema"."it's ""a.b"" t" set "a,b" = 'gone' where id < 3;
delete from matrix;
commit;
"""


@dataclass(frozen=True, slots=True)
class Disaster:
    """A server with a column of each type, and an applied archive, whose last transaction spoils the rows."""

    server: Server
    job: Job
    columns: list[Case]
    truth: list[bytes]
    xid: int


@pytest.fixture(scope="module")
def disaster(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disaster]:
    folder, columns = tmp_path_factory.mktemp("disaster"), columns_of_all_types()
    (folder / "landing").mkdir()
    job = Job(spark, folder, folder / "landing")
    with Server(18) as server:
        yield Disaster(server, job, columns, *after_a_disaster(server, job, columns))


def test_an_undo_restores_every_type_exactly(disaster: Disaster, tmp_path: Path) -> None:
    server, job = disaster.server, disaster.job
    assert rows(server, tmp_path / "spoiled") != disaster.truth
    summary = undo(job.spark, job.loaded(), UndoRequest(str(tmp_path / "undo"), xid=disaster.xid))
    assert summary.exit_code == 0
    done = server.run_scripts("-f", str(tmp_path / "undo" / "undo.sql"))
    assert done.returncode == 0, done.stderr
    assert rows(server, tmp_path / "restored") == disaster.truth


@pytest.mark.parametrize("form", [ExportFormat.SQL, pytest.param(ExportFormat.COPY, marks=pytest.mark.soak)])
def test_tables_come_back_as_they_were(form: ExportFormat, disaster: Disaster, tmp_path: Path) -> None:
    job, into = disaster.job, tmp_path / "export"
    request = ExportRequest(("*.*",), str(into), Moment(xid=disaster.xid, before=True), form)
    summary = export(job.spark, job.loaded(), request)
    assert summary.exit_code == 0
    assert {table.name: table.rows for table in summary.tables}['odd schema.it\'s "a.b" t'] == 4
    with pytest.raises(ConfigError, match="exists: name another folder"):
        export(job.spark, job.loaded(), request)

    server, database = disaster.server, f"restored_{form.value}"
    server.psql(f"create database {database}")
    server.database = database
    try:
        server.psql(USER_TYPES + ODD)
        create(server, disaster.columns)
        done = server.run_scripts("-f", "load.sql", cwd=into)
        assert done.returncode == 0, done.stderr
        assert rows(server, tmp_path / "restored") == disaster.truth
    finally:
        server.database = "postgres"


def columns_of_all_types() -> list[Case]:
    """Without what this server can't read: XML, as it is built without libxml, and the last timestamp, once it is
    rounded."""
    return [case for case in cases(18, "text") if not case.type.startswith(("xml", "timestamp(", "timestamptz("))]


def after_a_disaster(server: Server, job: Job, columns: list[Case]) -> tuple[list[bytes], int]:
    """Lands and applies tables with these columns, and a transaction that spoils them. Returns the rows before it, and
    its xid."""
    server.psql(USER_TYPES + ODD)
    create(server, columns)
    server.psql("drop publication p; create publication p for all tables")
    server.create_slot("slot")
    fill(server, columns)
    server.psql(ROWS)
    truth = rows(server, job.folder / "truth")
    xid = int(server.psql(DISASTER))
    server.recvlogical("slot", job.landing / "1.bin", publications=["p"])
    assert job.run().exit_code == 0
    return truth, xid


def rows(server: Server, path: Path) -> list[bytes]:
    """The rows of both tables, in COPY's text."""
    found: list[bytes] = []
    for table in ("matrix", '"odd schema"."it\'s ""a.b"" t"'):
        server.psql(f"copy (select * from {table} order by id) to stdout", output=path)
        found += path.read_bytes().splitlines()
    return found
