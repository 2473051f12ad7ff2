"""The checklist of an initial load: what would lose rows, and the commands for one server and configuration."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pgoutput_etl.config.settings import load_config
from pgoutput_etl.postgres.queries import RECEIVER_ENVIRONMENT
from pgoutput_etl.postgres.source_server import Publication, ReplicationSlot, SourceServer, SourceTable
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.transactions.statistics import CommitRange
from pgoutput_etl.work.snapshot.check_report import CheckReport, check_server, print_checks
from pgoutput_etl.work.snapshot.checks import NOTE, PROBLEM, Check, order_problem
from pgoutput_etl.work.snapshot.request import SnapshotRequest

URL = "jdbc:postgresql://db:5432/shop?user=etl&ssl=true"
LIBPQ = "postgresql://db:5432/shop?user=etl&sslmode=verify-full"
PART: Mapping[str, Any] = {"name": "etl", "columns": ["id", "v"], "filter": None}
TABLE = SourceTable("public", "t", False, False, True, "d", True, True, False, ("id", "v"), (PART,))
SLOT = ReplicationSlot("etl", "pgoutput", "shop", False, True, 0x100, None)
SERVER = SourceServer(
    version=180_004,
    database="shop",
    user="etl",
    is_standby=False,
    lsn=0x900,
    wal_level="logical",
    max_slots=10,
    max_senders=10,
    senders=1,
    may_replicate=True,
    slots=(SLOT,),
    publications=(Publication("etl", ()),),
    tables=(TABLE,),
)
REQUEST = SnapshotRequest(("public.*",), server=URL)


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    path = tmp_path / "shop.yaml"
    path.write_text("source: {name: shop, landing: ./landing}\ntarget: {root: ./warehouse}\n", encoding="utf-8")
    return path


def checked(
    configuration: Path, server: SourceServer, applied: CommitRange | None = None, **options: Any
) -> tuple[CheckReport, list[Check]]:
    """The report, and its findings except those that are ok."""
    request = replace(REQUEST, **options)
    report = check_server(server, load_config(str(configuration)), request, applied)
    return report, [check for check in report.checks if check.status in (NOTE, PROBLEM)]


def test_nothing_is_missing(configuration: Path) -> None:
    report, findings = checked(configuration, SERVER)
    assert (findings, report.exit_code) == ([], 0)
    assert [shlex.split(step.command) for step in report.steps] == [
        [
            *("./spark-submit.sh", "jobs/snapshot.py", "--config", str(configuration)),
            *("--tables", "public.*", "--server", LIBPQ, "--slot", "etl"),
        ],
        ["./spark-submit.sh", "jobs/apply.py", "--config", str(configuration)],
    ]


def test_an_empty_server_gets_every_command_in_order(configuration: Path) -> None:
    table = replace(TABLE, publications=())
    server = replace(SERVER, wal_level="replica", may_replicate=False, slots=(), publications=(), tables=(table,))
    report, findings = checked(configuration, server)
    assert [(check.subject, check.loses_rows) for check in findings] == [
        ("wal_level", False),
        ("user", False),
        ("publication", False),
        ("slot", True),
    ]
    psql = ["psql", "-U", "postgres", "postgresql://db:5432/shop?sslmode=verify-full", "-c"]
    assert [shlex.split(step.command) for step in report.steps[:5]] == [
        [*psql, "ALTER SYSTEM SET wal_level = 'logical'"],
        [*psql, 'ALTER ROLE "etl" REPLICATION'],
        [*psql, 'CREATE PUBLICATION "etl" FOR ALL TABLES'],
        [
            "psql",
            LIBPQ,
            "-c",
            "SELECT pg_catalog.pg_create_logical_replication_slot('etl', 'pgoutput')",
        ],
        [
            *("env", "PGCLIENTENCODING=UTF8", f"PGOPTIONS={RECEIVER_ENVIRONMENT['PGOPTIONS']}"),
            *("pg_recvlogical", "-d", LIBPQ, "--slot", "etl"),
            *("-o", "proto_version=4", "-o", 'publication_names="etl"', "-o", "streaming=parallel"),
            *("-o", "messages=true"),
            *("--start", "-f", str(Path.cwd() / "landing/shop-0000001.bin")),
        ],
    ]
    assert [step.command.split("jobs/")[1][:8] for step in report.steps[5:]] == ["snapshot", "apply.py"]
    assert report.exit_code == 3


def test_no_publication_is_created_for_tables_that_the_server_lacks(configuration: Path) -> None:
    request = SnapshotRequest(("public.missing",), server=LIBPQ)
    report = check_server(replace(SERVER, publications=()), load_config(str(configuration)), request, None)
    assert not any("CREATE PUBLICATION" in step.command for step in report.steps)
    assert any("no table 'public.missing'" in check.text for check in report.checks)


@pytest.mark.parametrize(
    ("settings", "version", "name", "statement"),
    [
        ({"extra_float_digits": "0"}, 180_004, "extra_float_digits is '0'", "SET extra_float_digits = 3"),
        ({"extra_float_digits": "-3"}, 120_000, "extra_float_digits is '-3'", "SET extra_float_digits = 3"),
        ({}, 110_000, "extra_float_digits is '0'", "SET extra_float_digits = 3"),
        ({"datestyle": "German, DMY"}, 180_004, "DateStyle is 'German, DMY'", "SET DateStyle = ISO"),
        ({"intervalstyle": "iso_8601"}, 180_004, "IntervalStyle is 'iso_8601'", "SET IntervalStyle = postgres"),
        ({"bytea_output": "escape"}, 180_004, "bytea_output is 'escape'", "SET bytea_output = hex"),
        ({"client_encoding": "latin1"}, 180_004, "client_encoding is 'latin1'", "SET client_encoding = UTF8"),
    ],
)
def test_settings_of_role_and_database_that_change_values_are_noted(
    configuration: Path, settings: Mapping[str, str], version: int, name: str, statement: str
) -> None:
    report, [note] = checked(configuration, replace(SERVER, version=version, sender_settings={"landing": settings}))
    assert (note.status, note.subject, report.exit_code) == (NOTE, "sender settings", 0)
    assert note.text.startswith(f"{name} for landing in shop: ")
    assert shlex.split(report.steps[0].command)[-1] == f'ALTER ROLE "landing" IN DATABASE "shop" {statement}'


def test_the_encoding_of_the_database_counts_unless_it_is_overruled(configuration: Path) -> None:
    server = replace(SERVER, encoding="LATIN1", sender_settings={"landing": {}})
    _, [note] = checked(configuration, server)
    assert note.text.startswith("client_encoding is 'LATIN1' for landing in shop: ")
    overruled = {"landing": {"client_encoding": "UTF8"}}
    for suitable in (replace(server, sender_settings=overruled), replace(server, encoding="SQL_ASCII")):
        assert checked(configuration, suitable)[1] == []


def test_suitable_settings_of_role_and_database_are_not_noted(configuration: Path) -> None:
    usual = {"datestyle": "ISO, DMY", "timezone": "Asia/Kolkata", "client_encoding": "utf-8", "work_mem": "1GB"}
    for version, digits in ((180_004, "1"), (120_000, "2"), (110_000, "3")):
        settings = {"landing": {**usual, "extra_float_digits": digits}}
        assert checked(configuration, replace(SERVER, version=version, sender_settings=settings))[1] == []


def test_a_slot_from_before_its_publication_is_created_again(configuration: Path) -> None:
    server = replace(
        SERVER, publications=(), slots=(replace(SLOT, is_active=False),), tables=(replace(TABLE, publications=()),)
    )
    report, _ = checked(configuration, server)
    functions = [
        word for step in report.steps for word in ("CREATE PUB", "drop_rep", "create_log") if word in step.command
    ]
    assert functions == ["CREATE PUB", "drop_rep", "create_log"]


@pytest.mark.parametrize(
    ("slot", "text"),
    [
        (replace(SLOT, why_lost="wal_removed"), "etl is lost (wal_removed)"),
        (replace(SLOT, database="other"), "etl is a slot of database other"),
        (replace(SLOT, plugin="wal2json"), "etl has the plugin wal2json, not pgoutput"),
        (replace(SLOT, is_temporary=True), "etl is temporary"),
        (replace(SLOT, name="else"), "etl does not exist"),
    ],
)
def test_an_unusable_slot_loses_rows(configuration: Path, slot: ReplicationSlot, text: str) -> None:
    _, [problem] = checked(configuration, replace(SERVER, slots=(slot,)), slot="etl")
    assert (problem.subject, problem.loses_rows) == ("slot", True)
    assert text in problem.text


def test_another_consumers_lost_slot_is_no_problem(configuration: Path) -> None:
    lost = replace(SLOT, name="other", why_lost="wal_removed")
    assert checked(configuration, replace(SERVER, slots=(lost, SLOT)))[1] == []
    _, [problem] = checked(configuration, replace(SERVER, slots=(lost,)))
    assert problem.loses_rows
    _, [note] = checked(configuration, replace(SERVER, slots=(SLOT, replace(SLOT, name="also"))))
    assert (note.status, note.text) == (NOTE, "2 may be the receiver's: name it with --slot")


COLUMNS = (RelationColumn(True, "id", 23, -1), RelationColumn(False, "v", 25, -1))
KEYED = Relation(None, 1, "public", "t", ReplicaIdentity.DEFAULT, COLUMNS)
GENERATED = replace(TABLE, described=(KEYED,), columns=("v",), publications=({**PART, "columns": None},))
UNSENT = "public.t is held at its first UPDATE or DELETE: id of its key is not sent"
TABLES = [
    (replace(TABLE, may_select=False), PROBLEM, 'GRANT SELECT ON "public"."t" TO "etl"', False),
    (replace(TABLE, rows_hidden=True), PROBLEM, 'ALTER ROLE "etl" BYPASSRLS', True),
    (replace(TABLE, has_key=False), PROBLEM, 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL', False),
    (replace(TABLE, identity="n"), PROBLEM, 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL', False),
    (replace(TABLE, identity="f", has_key=False), NOTE, "matched by all their values: public.t", False),
    (replace(TABLE, publications=({**PART, "filter": "(id > 3)"},)), NOTE, "only rows that pass it", False),
    (replace(TABLE, publications=({**PART, "columns": ["id"]},)), NOTE, "only some columns", False),
    (GENERATED, PROBLEM, UNSENT, False),
    (replace(TABLE, is_root=True), NOTE, "partitions become one table", False),
]


@pytest.mark.parametrize(("table", "status", "text", "loses_rows"), TABLES)
def test_tables(configuration: Path, table: SourceTable, status: str, text: str, loses_rows: bool) -> None:
    _, [found] = checked(configuration, replace(SERVER, tables=(table,)))
    assert (found.status, found.loses_rows) == (status, loses_rows)
    assert text in " ".join([found.text, *(step.command for step in found.steps)])


@pytest.mark.parametrize(
    "server",
    [
        "postgresql://etl@standby:5433/shop?sslmode=require",
        "postgresql://standby/shop?user=etl&sslmode=require",
        "postgresql:///shop?host=/run/standby&port=5433&sslmode=require",
        "postgresql://etl@one,two/shop?sslmode=require&target_session_attrs=standby&load_balance_hosts=random",
    ],
)
def test_a_privilege_that_a_standby_lacks_is_granted_on_the_primary(configuration: Path, server: str) -> None:
    denied = replace(SERVER, is_standby=True, tables=(replace(TABLE, may_select=False),))
    report = check_server(denied, load_config(str(configuration)), replace(REQUEST, server=server), None)
    [step] = [step for step in report.steps if "GRANT" in step.command]
    assert step.text == "on the primary, let the user read the tables"
    grant = 'GRANT USAGE ON SCHEMA "public" TO "etl"; GRANT SELECT ON "public"."t" TO "etl"'
    url = "postgresql://PRIMARY/shop?sslmode=require"
    assert shlex.split(step.command) == ["psql", "-U", "postgres", url, "-c", grant]


def test_a_setting_of_a_standby_is_its_own(configuration: Path) -> None:
    server = replace(SERVER, is_standby=True, wal_level="replica")
    report = check_server(server, load_config(str(configuration)), REQUEST, None)
    [step] = [step for step in report.steps if "ALTER SYSTEM" in step.command]
    assert "primary" not in step.text
    assert "PRIMARY" not in step.command


def test_tables_that_no_publication_contains(configuration: Path) -> None:
    other = replace(TABLE, table="u", publications=())
    unlogged = replace(other, table="w", is_logged=False)
    _, [note, problem] = checked(configuration, replace(SERVER, tables=(TABLE, other, unlogged)))
    assert note.text == "unlogged, so not replicated: public.w"
    assert problem.steps[0].command.endswith("""-c 'ALTER PUBLICATION "etl" ADD TABLE "public"."u"'""")
    _, [unknown] = checked(configuration, SERVER, tables=("public.t", "public.none"))
    assert unknown.text == "the server has no table 'public.none'"
    _, [omits] = checked(configuration, replace(SERVER, publications=(Publication("etl", ("DELETE",)),)))
    assert "does not publish DELETE" in omits.text


def test_the_archive_of_another_server(configuration: Path) -> None:
    _, [problem] = checked(configuration, SERVER, CommitRange(0x200, 0x901))
    assert "not the server of the archive, or it was restored" in problem.text
    assert problem.loses_rows
    _, [problem] = checked(configuration, SERVER, lsn=0x901, checks_only=True)
    assert "the rows are from another server" in problem.text


def test_full_settings_count_the_slot_to_create(configuration: Path) -> None:
    _, findings = checked(configuration, replace(SERVER, max_slots=1, max_senders=1))
    assert [check.text for check in findings] == ["1 of 1 in use; the load needs 1 more"] * 2


@pytest.mark.parametrize(
    ("slot_lsn", "confirmed", "first_commit", "is_safe"),
    [
        (None, None, None, False),
        (0x100, None, None, True),
        (0x101, None, None, False),
        (0x101, 0x50, 0x50, False),
        (0x100, 0x200, 0x200, True),
        (None, 0x100, None, True),
        (None, 0x101, None, False),
        (None, 0x101, 0x100, True),
        (None, 0x100, 0x200, True),
        (None, None, 0x101, False),
    ],
)
def test_rows_as_of_an_lsn_are_safe_if_the_slot_existed(
    slot_lsn: int | None, confirmed: int | None, first_commit: int | None, is_safe: bool
) -> None:
    applied = None if first_commit is None else CommitRange(first_commit)
    assert (order_problem(0x100, slot_lsn, confirmed, applied, "apply") is None) is is_safe


def test_the_report(configuration: Path) -> None:
    report, _ = checked(configuration, replace(SERVER, slots=()))
    text = StringIO()
    print_checks(report, Console(file=text, width=80))
    lines = text.getvalue().splitlines()
    assert lines[0] == "1 problem. Loading now would lose rows, and is refused."
    assert any(line.startswith("│ problem: slot ") for line in lines)
    assert "   ./spark-submit.sh jobs/apply.py --config " + str(configuration) in lines
    assert '"loses_rows": true' in report.to_json()
