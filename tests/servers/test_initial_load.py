"""Initial loads: with the commands that the checklist prints, and in an order that would lose rows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load import change_source
from pgoutput_etl.load.batch_keys import keys_of_blocks
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.postgres.catalog import QUERY as CATALOG
from pgoutput_etl.postgres.catalog import Catalog, CatalogTable
from pgoutput_etl.postgres.source_server import QUERY, SourceServer
from pgoutput_etl.protocol.messages import Relation, ReplicaIdentity
from pgoutput_etl.work.snapshot import load_progress, sources
from pgoutput_etl.work.snapshot.request import RowFormat, SnapshotRequest
from pgoutput_etl.work.snapshot.run import snapshot
from pgoutput_etl.work.snapshot.sources import SnapshotServer
from tests.spark.jobs.test_apply_job import ROOT, run
from tests.support.jobs import Job
from tests.support.servers.live_writers import psql_with_snapshot
from tests.support.servers.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.e2e]
TABLES = """
create table t (id int primary key, v text);
insert into t select i, 'before ' || i from generate_series(1, 100) i;
create table "Odd ""name" (id int primary key);
create table without_key (id int);
"""


def source(server: Server, role: str = "postgres") -> SourceServer:
    with server.connect() as connection:
        connection.execute(f"set role {role}".encode())
        row = connection.execute(QUERY.encode()).fetchone()
    assert row is not None
    return SourceServer.of(row[0])


@pytest.mark.parametrize("version", [16, 18])
def test_the_query_describes_a_server(version: Any) -> None:
    with Server(version) as server:
        server.psql(
            TABLES
            + """
            create table parts (id int primary key) partition by range (id);
            create table part_1 partition of parts for values from (1) to (9);
            create unlogged table unlogged (id int primary key);
            create table hidden (id int primary key);
            alter table hidden enable row level security;
            create role reader login;
            grant select on t, hidden to reader;
            create publication p for table t (id) where (id > 3), hidden with (publish = 'insert,update');
            create publication roots for table parts with (publish_via_partition_root);
            """
        )
        server.psql(
            """
            alter database postgres set extra_float_digits = 0;
            alter role reader set extra_float_digits = -1;
            alter role reader in database postgres set extra_float_digits = 1;
            alter role reader set datestyle = 'German, DMY';
            """
        )
        server.create_slot("etl")
        found = source(server, "reader")
        assert (found.version // 10_000, found.database, found.user) == (version, "postgres", "reader")
        assert (found.wal_level, found.max_slots, found.senders, found.may_replicate) == ("logical", 20, 0, False)
        assert source(server).may_replicate
        assert found.encoding == "UTF8"
        assert found.sender_settings == {"reader": {"extra_float_digits": "1", "datestyle": "German, DMY"}}
        assert source(server).sender_settings == {"postgres": {"extra_float_digits": "0"}}
        [slot] = found.slots
        assert (slot.name, slot.plugin, slot.database, slot.is_active) == ("etl", "pgoutput", "postgres", False)
        assert slot.why_lost is None
        assert slot.confirmed is not None
        assert 0 < slot.confirmed <= found.lsn
        assert [(p.name, p.omitted) for p in found.publications] == [("p", ("DELETE", "TRUNCATE")), ("roots", ())]
        tables = {table.table: table for table in found.tables}
        assert set(tables) == {"t", 'Odd "name', "without_key", "parts", "part_1", "unlogged", "hidden"}
        assert {name for name, table in tables.items() if table.may_select} == {"t", "hidden"}
        assert {name for name, table in tables.items() if table.rows_hidden} == {"hidden"}
        assert {name for name, table in tables.items() if not table.has_key} == {"without_key"}
        assert {name for name, table in tables.items() if not table.is_logged} == {"unlogged"}
        assert {name for name, table in tables.items() if table.publications} == {"t", "hidden", "parts"}
        [published] = tables["t"].publications
        assert (published["name"], published["columns"], published["filter"]) == ("p", ["id"], "(id > 3)")
        assert tables["parts"].is_root
        assert tables["part_1"].is_partition


@pytest.mark.parametrize("version", [16, 18])
def test_a_lost_slot_and_a_slot_that_a_receiver_uses(version: Any, tmp_path: Path) -> None:
    limits = {"max_slot_wal_keep_size": "1MB", "wal_keep_size": "0", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with Server(version, limits) as server:
        server.psql(f"{TABLES} create publication p for all tables; create role reader;")
        server.create_slot("lost")
        server.create_slot("used")
        with server.start_recvlogical("used", tmp_path / "used.bin", publications=["p"]) as receiver:
            deadline = time.monotonic() + 60
            while not (slots := {slot.name: slot for slot in source(server).slots})["used"].is_active:
                if time.monotonic() > deadline:
                    receiver.kill()
                    pytest.fail("the receiver does not start")
            senders, settings = source(server).senders, source(server, "reader").sender_settings
            receiver.terminate()
        assert (senders, slots["lost"].is_active) == (1, False)
        assert settings.keys() == {"reader", "postgres"}, "of the receiver, too"
        for _ in range(4):
            server.psql("insert into t select max(id) + 1 from t; select pg_switch_wal(); checkpoint;")
        assert {slot.why_lost is not None for slot in source(server).slots if slot.name == "lost"} == {True}


@pytest.mark.soak
@pytest.mark.parametrize("version", [16, 18])
def test_the_printed_commands_load_an_empty_target(
    version: Any, spark: SparkSession, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGUSER", "postgres")
    job = Job(spark, tmp_path, landing)
    job.write_config()
    with Server(version) as server:
        monkeypatch.setenv("PATH", f"{server.programs}:{os.environ['PATH']}")
        server.psql(TABLES)
        url = f"postgresql://127.0.0.1:{server.port}/postgres"
        submit: list[str | Path] = [ROOT / "spark-submit.sh", "--master=local[2]"]
        loading: list[str | Path] = [ROOT / "jobs/snapshot.py", "--config", job.config, "--server", url]

        refused = run(*submit, *loading, "--tables", "public.*")
        assert refused.returncode == 2, refused.stderr
        assert "loading now would lose rows: slot: database postgres has no pgoutput slot" in refused.stderr
        done = run(*submit, *loading, "--tables", "public.*", "--check", "--json")
        assert done.returncode == 3, done.stderr
        report = json.loads(done.stdout)
        problems = [check["subject"] for check in report["checks"] if check["status"] == "problem"]
        assert problems == ["publication", "slot"]

        receivers = []
        try:
            for number, step in enumerate(report["steps"]):
                server.psql(f"insert into t values ({1000 + number}, 'before step {number}')")
                command = step["command"]
                if " pg_recvlogical " in command:
                    command += " --status-interval=1 --fsync-interval=1"
                    receivers.append(subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=ROOT))
                    continue
                if "jobs/apply.py" in command:
                    _wait_until_received(server)
                ran = run("bash", "-c", f"cd '{ROOT}' && {command}")
                assert ran.returncode == 0, (command, ran.stderr)
        finally:
            for receiver in receivers:
                receiver.terminate()
                receiver.wait(timeout=60)
        assert [step["command"].split()[0] for step in report["steps"]] == [
            *("psql", "psql", "env", "./spark-submit.sh", "./spark-submit.sh")
        ]
        with server.connect() as connection:
            expected = connection.execute("select id, v from t order by id").fetchall()
        rows = sorted((row["id"], row["v"]) for row in job.rows("public", "t"))
        assert len(rows) == 105
        assert rows == expected


@pytest.mark.soak
@pytest.mark.parametrize("small", [1 << 26, 0], ids=["whole", "in shares"])
def test_tables_that_cant_be_read_are_left_out(
    spark: SparkSession, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(sources, "_SMALL", small)
    job, progress = Job(spark, tmp_path, landing), list[str]()
    large = '\n"x", ' * 1_000_000
    with Server(18) as server:
        server.psql("create role reader login replication")
        for name in "abcdefgh":
            server.psql(
                f"create table {name} (id int primary key, v text); insert into {name} values (1, ''), (2, null)"
            )
        server.psql(f"grant select on a, b, d, e, f, h to reader; insert into e values (3, '{large}')")
        server.psql("create table parts (id int primary key) partition by range (id); grant select on parts to reader")
        server.psql("create table part partition of parts for values from (1) to (9); insert into part values (1), (8)")
        failing = "h where (10 / (id - 2) < 100)"  # after COPY has sent a row
        server.psql(
            f"create publication p for table a, b, c, d, e, f, g, parts, {failing} with (publish_via_partition_root)"
        )
        server.create_slot("etl")
        url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres?user=reader&ApplicationName=load"
        done = snapshot(spark, job.loaded(), SnapshotRequest(("public.*",), server=url), progress.append)
    loaded = {table.table.table: table.loaded for table in done.tables if table.table.held is None}
    assert loaded == {"a": 2, "b": 2, "d": 2, "e": 3, "f": 2, "parts": 2}
    held = {table.table.table: table.table.held for table in done.tables if table.table.held is not None}
    denied = {name: f"--server: the server says: permission denied for table {name}" for name in "cg"}
    assert held == {**denied, "h": "--server: the server can't be read (SQLSTATE 22012)"}
    assert {row["id"]: row["v"] for row in job.rows("public", "e")} == {1: "", 2: None, 3: large}
    assert any(re.match(r"read \d+ rows in .* per second, about .* left", line) for line in progress)


@pytest.mark.parametrize("in_between", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["at once", "a night"])
def test_a_load_that_died_goes_on_with_the_tables_it_has_left(
    spark: SparkSession, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch, in_between: bool
) -> None:
    """It dies in its second batch, after the table was written."""
    for name in ("_SMALL", "_PART"):
        monkeypatch.setattr(sources, name, 1)
    monkeypatch.setattr(load_progress, "_EVERY", 0.01)
    job, close, begun = Job(spark, tmp_path, landing), DeltaLedger.close_backfill, list[int]()

    def die(ledger: DeltaLedger, batch: Batch, *rest: Any) -> None:
        begun.append(batch.number)
        if len(begun) == 2:
            raise KeyboardInterrupt
        close(ledger, batch, *rest)

    with Server(18) as server:
        address = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"

        def load() -> tuple[set[str], list[str]]:
            """The names of the tables that were loaded, and the progress."""
            progress = list[str]()
            done = snapshot(spark, job.loaded(), SnapshotRequest(("public.*",), server=address), progress.append)
            return {table.table.table for table in done.tables}, progress

        for name in "abc":
            server.psql(f"create table {name} (id int primary key, v text)")
            server.psql(f"insert into {name} select i, 'old' from generate_series(1, 9) i; analyze {name}")
        server.psql("create publication p for all tables")
        server.create_slot("etl")
        with monkeypatch.context() as dying:
            dying.setattr(DeltaLedger, "close_backfill", die)
            with pytest.raises(KeyboardInterrupt):
                load()
        for name in "abc":
            server.psql(f"update {name} set v = 'new' where id < 3; delete from {name} where id = 7")
        server.recvlogical("etl", landing / "0.bin", publications=["p"])
        if in_between:
            job.run()  # finishes the second table, and applies the changes; the third one is incomplete
        names, progress = load()
        assert names == {"c"}
        assert any(re.fullmatch(r"the load as of LSN \S+ continues: 1 table left", line) for line in progress)
        assert any(line.startswith("reading public.c: about 9 rows, 0 MB") for line in progress)
        assert any(re.match(r"\d rows so far; 0 MB of 0 MB", line) for line in progress)
        old, new = dict.fromkeys(range(1, 10), "old"), {1: "new", 2: "new", **dict.fromkeys((3, 4, 5, 6, 8, 9), "old")}
        for name in "abc":
            expected = new if in_between or name == "c" else old
            assert {row["id"]: row["v"] for row in job.rows("public", name)} == expected
        if in_between:
            monkeypatch.undo()
            assert load()[0] == {*"abc"}, "a load that has ended begins anew"


def sized(sizes: dict[int, int], connections: int) -> SnapshotServer:
    """A server's tables by OID, with their bytes; each has the name of its OID."""
    relations = (Relation(None, oid, "public", str(oid), ReplicaIdentity.DEFAULT, ()) for oid in sizes)
    tables = tuple(CatalogTable(relation, None, is_root=False, not_null=frozenset()) for relation in relations)
    rows = [{"oid": oid, "pages": size >> 13, "bytes": size, "rows": 0} for oid, size in sizes.items()]
    moment = SimpleNamespace(ask=lambda _: rows)
    found = SnapshotServer(None, moment, SnapshotRequest(("*.*",), server="postgresql://", connections=connections))  # type: ignore[arg-type]
    found.__dict__["catalog"] = Catalog(180_000, tables, ())
    return found


def test_tables_are_loaded_in_batches_and_shared_evenly_by_connections() -> None:
    mib = 1 << 20
    sizes = {1: 5000 * mib, 2: 1, 3: 700 * mib, 4: 400 * mib, 5: 30 * mib, 6: 100 * mib}
    server = sized(sizes, 3)
    relations = {oid: table.relation for oid, table in server.tables.items()}
    parts = [[relation.oid for relation in part] for part in server.parts(list(relations.values()))]
    assert parts == [[2, 5, 6, 4], [3], [1]], "at most a GiB, or one larger table"
    copies = [copy for oid in (2, 5, 6, 4) for copy in server.copies(sources.Inserts(relations[oid], 0, None))]
    assert Counter(copy.inserts.relation.oid for copy in copies) == {2: 1, 5: 1, 6: 3, 4: 3}
    spread = [[copy.bytes // mib for copy in part] for part in sources._spread(copies, 3)]
    assert sorted(spread) == [[0, 33, 133], [30, 33, 133], [33, 133]], "small ones first"
    assert [len(part) for part in sources._spread(copies[:1] * 9, 3)] == [3, 3, 3], "tables without rows, too"
    assert [len(part) for part in sources._spread(copies[:2], 3)] == [1, 1]
    assert server.parts([]) == []


@pytest.mark.soak
def test_a_table_that_is_larger_than_the_heap_is_loaded(tmp_path: Path, landing: Path) -> None:
    """Once, Spark read the staged blocks of a whole file at a time."""
    config = tmp_path / "job.yaml"
    config.write_text(f"source: {{name: test, landing: '{landing}'}}\ntarget: {{root: '{tmp_path}/tables'}}\n")
    with Server(18) as server:
        server.psql("create table accounts (aid int primary key, bid int, abalance int, filler char(84))")
        server.psql("insert into accounts select i, i % 10, i, '' from generate_series(1, 8000000) i; analyze accounts")
        server.psql("create publication p for all tables")
        server.create_slot("etl")
        url = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"
        submit: list[str | Path] = [ROOT / "spark-submit.sh", "--master=local[2]", "--driver-memory=1g"]
        done = run(*submit, ROOT / "jobs/snapshot.py", "--config", config, "--server", url, "--tables", "*.*", "--json")
    assert done.returncode == 0, done.stderr
    assert [table["loaded"] for table in json.loads(done.stdout)["tables"]] == [8_000_000]


@pytest.mark.soak
def test_keys_that_the_server_keeps_unique_are_not_looked_up(
    spark: SparkSession, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But others are, because two rows may have one key in Delta."""
    monkeypatch.setattr(change_source, "DRIVER_TABLE_BYTES", -1)
    looked_up = set[str]()

    def recorded(*arguments: Any) -> Any:
        looked_up.add(arguments[3].relation.name)
        return keys_of_blocks(*arguments)

    monkeypatch.setattr(change_source, "keys_of_blocks", recorded)
    rules = [
        "{match: public.masked, columns: {id: {hash: sha256}}}",
        "{match: public.full_rows, key: [id]}",
    ]
    job = Job(spark, tmp_path, landing, [f"tables=[{', '.join(rules)}]"], {"PGOUTPUT_ETL_SALT": "0123456789" * 4})
    with Server(18) as server:
        for name in ("plain", "masked", "full_rows"):
            server.psql(f"create table {name} (id int primary key, n int)")
        server.psql("create table uuids (id uuid, at date, n int, primary key (id, at))")
        server.psql("create table texts (id text primary key, n int)")
        server.psql("create table partly (id int, at date, n int, primary key (id, at))")
        server.psql("alter table full_rows replica identity full")
        named = "plain, masked, full_rows, texts, uuids, partly (id, n)"
        server.psql(f"create publication p for table {named} with (publish = 'insert')")
        server.psql("insert into partly select 1, date '2026-01-01' + i, i from generate_series(1, 9) i")
        for name in ("plain", "masked", "full_rows"):
            server.psql(f"insert into {name} select i, i from generate_series(1, 9) i")
        server.psql("insert into texts select i, i from generate_series(1, 9) i")
        server.psql("insert into uuids select md5('1')::uuid, date '2026-01-01' + i, i from generate_series(1, 9) i")
        server.create_slot("etl")
        url = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"
        done = snapshot(spark, job.loaded(), SnapshotRequest(("public.*",), server=url))
    rows = {table.table.table: table.table.rows for table in done.tables}
    others = {"masked", "full_rows", "texts", "partly"}
    assert rows == {**dict.fromkeys(others | {"plain", "uuids"}, 9), "partly": 1}
    assert looked_up == others


def _wait_until_received(server: Server) -> None:
    end, deadline = parse_lsn(server.current_lsn()), time.monotonic() + 60
    while max(slot.confirmed or 0 for slot in source(server).slots) < end:
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.soak
@pytest.mark.parametrize("version", [16, 18])
def test_a_dump_from_before_the_slot_is_refused(
    version: Any, spark: SparkSession, tmp_path: Path, landing: Path
) -> None:
    """The row that is inserted between the dump and the slot is in neither of them."""
    job = Job(spark, tmp_path, landing)
    catalog = tmp_path / "catalog.json"

    def load(folder: str, lsn: str, slot_lsn: int | None = None) -> None:
        request = SnapshotRequest(
            ("public.t",),
            parse_lsn(lsn),
            files=str(tmp_path / folder),
            format=RowFormat.DUMP,
            catalog=str(catalog),
            slot_lsn=slot_lsn,
        )
        assert snapshot(spark, job.loaded(), request, lambda _: None).exit_code == 0

    with Server(version) as server:
        server.psql(f"{TABLES} create publication p for all tables;")
        with psql_with_snapshot(server) as (name, early):
            server.pg_dump(tmp_path / "early", "--snapshot", name)
        server.psql("insert into t values (1000, 'between')")
        server.create_slot("etl")
        [slot] = [slot for slot in source(server).slots if slot.name == "etl"]
        with psql_with_snapshot(server) as (name, late):
            server.pg_dump(tmp_path / "late", "--snapshot", name)
        server.psql("insert into t values (1001, 'after')")
        catalog.write_text(server.psql(CATALOG))
        server.recvlogical("etl", landing / "0.bin", publications=["p"])

    for slot_lsn in (None, slot.confirmed):
        with pytest.raises(ConfigError, match="--lsn: "):
            load("early", early, slot_lsn)
    load("late", late, slot.confirmed)
    assert job.run().exit_code == 0
    with pytest.raises(ConfigError, match="the archive is known to have all commits only from"):
        load("early", early)
    rows = {row["id"]: row["v"] for row in job.rows("public", "t")}
    assert (len(rows), rows[1000], rows[1001]) == (102, "between", "after")
