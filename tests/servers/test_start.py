"""`start` brings a server's tables to Delta with one command, and the same command continues it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.errors import ConfigError, RunError, TryLaterError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_TRY_LATER, exit_code_of
from pgoutput_etl.work.start.catalog_key import VARIABLE
from pgoutput_etl.work.start.report import StartSummary, print_start
from pgoutput_etl.work.start.request import StartRequest
from pgoutput_etl.work.start.run import Start
from tests.support.servers.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

TABLES = """
create table customers (id int primary key, name text);
create table "Odd name" (id int primary key, v text);
create table parted (id int primary key, v text) partition by range (id);
create table parted_1 partition of parted default;
create table notes (line text);
insert into customers select i, 'customer ' || i from generate_series(1, 100) i;
insert into "Odd name" select i, 'v' from generate_series(1, 10) i;
insert into parted select i, 'p' from generate_series(1, 20) i;
"""


@dataclass
class Terminal:
    """Reads a start's progress, and types the receiver's command when it is told to."""

    environment: dict[str, str]
    lines: list[str] = field(default_factory=list)
    receivers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        command = line.partition("run in another terminal: ")[2]
        if command:
            self.receivers.append(subprocess.Popen(["bash", "-c", f"exec {command}"], env=self.environment))

    def stop(self) -> None:
        while self.receivers:
            receiver = self.receivers.pop()
            receiver.terminate()
            receiver.wait(timeout=30)


@pytest.fixture
def shop() -> Iterator[Server]:
    with Server(18) as server:
        server.psql("create database shop")
        server.database = "shop"
        server.psql(TABLES)
        yield server


@pytest.fixture
def terminal(shop: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    path = f"{shop.programs}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    monkeypatch.delenv(VARIABLE, raising=False)
    reader = Terminal({"PATH": path})
    yield reader
    reader.stop()
    os.environ.pop(VARIABLE, None)


@pytest.fixture
def request_of(shop: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartRequest:
    monkeypatch.chdir(tmp_path)
    return StartRequest(f"postgresql://postgres@127.0.0.1:{shop.port}/shop", "shop.yaml", wait=timedelta(minutes=1))


def started(spark: SparkSession, request: StartRequest, terminal: Terminal) -> StartSummary:
    start = Start(request, terminal)
    config = start.prepare()
    assert config.source.catalog_key is not None
    return start.load(spark, config)


def stored(spark: SparkSession, table: str) -> DataFrame:
    return spark.read.format("delta").load(str(Path.cwd() / "warehouse" / "public" / table))


def test_from_a_server_to_tables(
    spark: SparkSession,
    shop: Server,
    terminal: Terminal,
    request_of: StartRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shop.psql("alter table notes replica identity full; insert into notes values ('a'), ('b')")
    summary = started(spark, request_of, terminal)
    assert summary.exit_code == EXIT_DONE
    assert summary.snapshot is not None
    assert {t.table.name: t.loaded for t in summary.snapshot.tables} == {
        "public.customers": 100,
        "public.Odd name": 10,
        "public.notes": 2,
        "public.parted_1": 20,
    }
    changed = {(t.name, t.inserted) for t in summary.changed.tables if t.inserted}
    assert changed == {("public.customers", 100), ("public.Odd name", 10), ("public.notes", 2), ("public.parted_1", 20)}
    key = (Path("shop.catalog.env").read_text()).strip().removeprefix(f"{VARIABLE}=")
    assert Path("shop.catalog.env").stat().st_mode & 0o777 == 0o600
    assert key == shop.psql("select encode(key, 'hex') from pgoutput_etl.catalog_key").strip()
    print_start(summary)
    shown = capsys.readouterr().out
    assert "max_slot_wal_keep_size" in shown
    assert key not in shown + "".join(terminal.lines) + Path("shop.yaml").read_text()

    shop.psql("insert into customers values (1000, 'new'); create table later (id int primary key)")
    shop.psql("insert into later values (1); alter table customers rename name to full_name")
    again = started(spark, request_of, terminal)
    assert (again.exit_code, again.snapshot) == (EXIT_DONE, None), "each table is loaded once"
    assert stored(spark, "customers").count() == 101
    assert "full_name" in stored(spark, "customers").columns
    assert stored(spark, "later").count() == 1
    assert len(terminal.receivers) == 1

    with pytest.raises(RunError, match=r"psql failed: replication slot .* is active"):
        Start(replace(request_of, undo=True), terminal).undo()
    terminal.stop()
    assert "Dropped the slot etl" in Start(replace(request_of, undo=True), terminal).undo().remarks[0]
    left = "select count(*) from pg_publication union all select count(*) from pg_event_trigger "
    assert shop.psql(left + "union all select count(*) from pg_replication_slots").split() == ["0", "0", "0"]


def test_a_rehearsal_and_refusals_change_nothing(shop: Server, terminal: Terminal, request_of: StartRequest) -> None:
    with pytest.raises(ConfigError, match=r"reject UPDATEs and DELETEs of public\.notes once"):
        Start(request_of, terminal).prepare()
    accepted = replace(request_of, accept_keyless=True)
    steps = Start(accepted, terminal).rehearse().steps
    assert [step.is_done for step in steps] == [False] * 5
    setup, _, receive, load, following = (step.command for step in steps)
    assert shlex.split(setup)[0] == "psql"
    assert "keyless=accept" in shlex.split(setup)
    assert re.search(r"pg_recvlogical .*proto_version=4.*landing/shop/shop-0000001\.bin", receive)
    assert f"--server {request_of.server}" in load
    assert following.endswith("--config shop.yaml")
    assert not [*Path().iterdir()]
    assert shop.psql("select count(*) from pg_publication").strip() == "0"


def test_without_a_receiver_it_says_so(shop: Server, terminal: Terminal, request_of: StartRequest) -> None:
    deaf = replace(request_of, accept_keyless=True, wait=timedelta(seconds=0))
    with pytest.raises(TryLaterError, match="no receiver has confirmed") as error:
        Start(deaf, lambda _: None).prepare()
    assert exit_code_of(error.value) == EXIT_TRY_LATER
    assert Path("shop.yaml").exists()
    shop.psql("drop publication etl")
    with pytest.raises(ConfigError, match=r"--landing: shop\.yaml exists"):
        Start(replace(deaf, landing="elsewhere"), terminal).prepare()


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ("postgresql://postgres:secret@127.0.0.1/shop", "everybody on the machine can read a password"),
        ("jdbc:postgresql://127.0.0.1/shop", "expected libpq's URL"),
    ],
)
def test_urls_that_psql_cant_have_are_refused(server: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        StartRequest(server, "shop.yaml").check()
