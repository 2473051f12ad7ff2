"""User types that nobody declares, because catalog Messages define them: through the job, rebuilds and snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import load_config
from pgoutput_etl.exit_codes import EXIT_USAGE
from pgoutput_etl.postgres.catalog import QUERY
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.snapshot.request import RowFormat, SnapshotRequest
from pgoutput_etl.work.snapshot.run import snapshot
from tests.support.jobs import Job
from tests.support.judged_targets import JobTarget, MemoryTarget, in_memory
from tests.support.nights import Nights
from tests.support.servers.judged_database import CATALOG, JudgedDatabase, judged_database
from tests.support.servers.postgres import Server, Servers, Version
from tests.support.servers.sql_cases import CASES, read_case
from tests.support.verdicts import Verdict, judge

pytestmark = pytest.mark.e2e

TYPES = {
    "t": "id int, a decimal(10,2), b array<decimal(10,2)>, c array<int>, d array<int>, e array<int>, f array<string>, "
    "g string, h array<string>, i timestamp_ntz, j array<timestamp_ntz>, k array<binary>, z int, "
    "more array<decimal(10,2)>, status string",
    "u": "id int, a string, b array<string>, c string, d array<string>, e string, f array<string>, g string, "
    "h array<string>, i string, j string, k array<string>, z int",
    "v": "id int, a string, b array<string>, c string, d string, e array<string>, z int",
    "h": "id int, a decimal(12,2), b array<int>, c string, d string, more array<int>",
}


SALT = {"PGOUTPUT_ETL_SALT": "0123456789abcdef0123456789abcdef"}


def stored(job: Job, table: str) -> str:
    fields = job.spark.read.format("delta").load(str(job.path("public", table))).dtypes
    return ", ".join(f"{name} {kind}" for name, kind in fields if not name.startswith("_"))


def rows(target: JobTarget) -> dict[str, list[Any]]:
    return {name: sorted(table.rows, key=str) for name, table in target.tables().items()}


def assert_right(target: Any, database: JudgedDatabase) -> None:
    judgments = judge(target.night(), database.tables())
    wrong = {n: j.difference for n, j in judgments.items() if j.verdict is Verdict.OTHER or j.is_reported}
    assert wrong == {}


def load(job: Job, server: Server, tables: tuple[str, ...], has_catalog: bool = True) -> None:
    """A snapshot from COPY in binary form. has_catalog: the server describes the tables, not the archive."""
    catalog = job.folder / "catalog.json"
    catalog.write_text(server.psql(QUERY))
    described = {"catalog": str(catalog)} if has_catalog else {}
    lsn = int(server.psql("select pg_current_wal_lsn() - '0/0'").strip())
    for name in tables:
        path = job.folder / f"{name}.copy"
        server.psql(f"copy {name} to stdout (format binary)", output=path)
        options: dict[str, Any] = {"lsn": lsn, "files": str(path), "format": RowFormat.BINARY, **described}
        done = snapshot(job.spark, job.loaded(), SnapshotRequest((f"public.{name}",), **options), lambda _: None)
        assert done.exit_code == 0, done.tables


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize(
    ("version", "binary"),
    [(version, binary) for version in (18, 16) for binary in ("true", "false")],
)
def test_the_job_a_rebuild_and_a_snapshot_agree(
    version: Version, binary: str, servers: Servers, tmp_path: Path, landing: Path, spark: SparkSession
) -> None:
    """In CI, other tests have all types in memory."""
    case, server = read_case(CASES / "catalog_types.sql"), servers(version)
    job = Job(spark, tmp_path, landing, [f"tables={case.rules}"])
    target = JobTarget(job)
    with judged_database(server, "typed", landing, has_catalog=True, binary=binary) as database:
        for statements in case.nights:
            server.psql(statements)
            database.land()
            assert_right(target, database)
        assert {name: stored(job, name) for name in TYPES} == TYPES
        before = rows(target)
        assert job.backfill(BackfillRequest(("*",))).exit_code == 0
        assert {name: stored(job, name) for name in TYPES} == TYPES
        assert rows(target) == before
        load(job, server, ("t", "u", "v"))
        assert {name: stored(job, name) for name in TYPES} == TYPES
        assert rows(target) == before
        server.psql("update t set a = a + 1; update u set z = 6; update v set z = 7")
        database.land()
        assert_right(target, database)


BEFORE = """
create domain price as numeric(10,2); create domain posint as int; create type mood as enum ('a', 'b');
create table t (id int primary key, a price, b posint[], c mood, d mood[]); alter table t replica identity full;
create table h (id int primary key, a price); create table m (id int primary key, a price, b posint[]);
insert into m values (1, 1.5, '{1,NULL}');
insert into t values (1, 1.5, '{1,NULL}', 'a', '{a}'), (2, 'NaN', '{{1},{2}}', null, null);
insert into h values (1, 2.5); update h set a = 3; delete from t where id = 3
"""


@pytest.mark.spark
@pytest.mark.soak
def test_stored_values_follow_when_the_catalog_is_installed(
    servers: Servers, tmp_path: Path, landing: Path, spark: SparkSession
) -> None:
    """Without a row after it, and a rebuild has the same rows. Hashed values have the same texts as before."""
    hashed = "{match: public.m, columns: {a: {hash: sha256}, b: {hash: sha256}}}"
    server, job = (
        servers(18),
        Job(spark, tmp_path, landing, [f"tables=[{{match: public.h, mode: history}}, {hashed}]"], SALT),
    )
    target = JobTarget(job)
    with judged_database(server, "before", landing, messages="true") as database:
        server.psql(BEFORE)
        database.land()
        assert_right(target, database)
        assert stored(job, "t") == "id int, a string, b array<string>, c string, d array<string>"
        [hashes] = job.rows("public", "m")
        assert server.run_scripts("-f", str(CATALOG)).returncode == 0
        server.psql("insert into m select 2, a, b from m")
        database.land()
        assert_right(target, database)
        for row in job.rows("public", "m"):
            assert (row["a"], row["b"]) == (hashes["a"], hashes["b"])
        assert stored(job, "t") == "id int, a decimal(10,2), b array<int>, c string, d array<string>"
        assert stored(job, "h") == "id int, a decimal(10,2)"
        server.psql("update t set c = 'b' where id = 2; delete from t where id = 1; update h set a = 4")
        server.psql("alter table t add e price default 7; insert into t values (4)")
        database.land()
        assert_right(target, database)
        before = rows(target)
        assert job.backfill(BackfillRequest(("*",))).exit_code == 0
        assert rows(target) == before
        load(job, server, ("t",), has_catalog=False)
        assert rows(target) == before


@pytest.mark.parametrize(("text", "is_right"), [("numeric(20,4)", False), ("numeric(10,2)", True), ("text", True)])
def test_a_declaration_that_contradicts_the_catalog_stops_the_run(
    text: str, is_right: bool, servers: Servers, tmp_path: Path, landing: Path
) -> None:
    in_memory(tmp_path, landing, "[]")
    config = load_config(str(tmp_path / "memory.yaml"), [f'types={{public.price: "{text}"}}'], {})
    target, server = MemoryTarget(Nights(config), landing), servers(18)
    with judged_database(server, "declared", landing, has_catalog=True) as database:
        server.psql("create domain price as numeric(10,2); create table t (id int primary key, p price, l price[])")
        server.psql("insert into t values (1, 1.5, '{1.5}')")
        database.land()
        if is_right:
            assert_right(target, database)
        else:
            night = target.night()
            wrong = "column 'p' of public.t: types: public.price: numeric(20,4) contradicts the server's catalog"
            assert (night.exit_code, (night.error or "").startswith(wrong)) == (EXIT_USAGE, True)


@pytest.mark.parametrize("types", ["{}", "{public.price: text, public.posint: text}"])
def test_a_contract_holds_a_table_whose_types_the_catalog_shows(
    types: str, servers: Servers, tmp_path: Path, landing: Path
) -> None:
    """text keeps the stored type."""
    in_memory(tmp_path, landing, "[]")
    rules = "tables=[{match: public.t, on_schema_change: {retype: hold}}]"
    config = load_config(str(tmp_path / "memory.yaml"), [rules, f"types={types}"], {})
    target, server = MemoryTarget(Nights(config), landing), servers(18)
    with judged_database(server, "contract", landing, messages="true") as database:
        server.psql(BEFORE)
        database.land()
        assert_right(target, database)
        assert server.run_scripts("-f", str(CATALOG)).returncode == 0
        database.land()
        if types == "{}":
            assert target.night().reported == {"public.t"}
        else:
            assert_right(target, database)
