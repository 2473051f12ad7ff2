"""Archives with catalog Messages: what is a fact then, on real servers."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.answers.status.request import StatusRequest
from pgoutput_etl.answers.status.run import status
from pgoutput_etl.config.settings import load_config
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.jobs.command import OutputOptions
from pgoutput_etl.jobs.inspect import InspectRequest
from pgoutput_etl.jobs.inspect import run as inspect
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.targets.condition import ConditionKind, condition_lines, conditions_of
from pgoutput_etl.targets.drops import dropped_names
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.plan.run import plan
from tests.servers.test_sql_cases import ONLY_THE_JOB, cases
from tests.spark.jobs.test_apply_job import ROOT, run
from tests.spark.load.test_layout import found
from tests.support.jobs import Job
from tests.support.jobs import Nights as JobNights
from tests.support.judged_targets import JobTarget, JudgedTarget, MemoryTarget, in_memory, memory_config
from tests.support.nights import Nights
from tests.support.servers.catalog_history import CatalogHistory
from tests.support.servers.judged_database import CATALOG, CATALOG_KEY, judged_database
from tests.support.servers.postgres import Server, Servers, Version
from tests.support.servers.sql_cases import SqlCase, all_cases
from tests.support.truth import assert_equals_truth
from tests.support.verdicts import Verdict

pytestmark = pytest.mark.e2e

# What the server has changed without sending it: the job says so. Other cases are right, without a word.
_REPORTED = {
    *("attach_without_old_rows", "bag_all_rows_updated", "bag_type_using", "column_list_without_key_part"),
    *("domain_and_base", "domain_key", "domain_modifier", "generated_drop_expression"),
    *("neighbor_takes_a_type", "partition_keys_only_on_leaves", "partitions_wide_key", "pk_generated_insert"),
    *("pk_partly_generated", "rename_attach", "set_expression", "unlogged_toggle"),
    *("via_root_detach_with_rows", "catalog_retypes", "ascii_values", "key_retype_uncertain", "pk_only_generated"),
    *("catalog_default_and_type", "catalog_type_changes"),
    *("catalog_computed_published", "catalog_detach", "catalog_reattach", "catalog_unlogged"),
}

SENDER = {"float_digits": "the sender rounds values", "regclass_rename": "the sender prints names by its search_path"}

# Types need no declaration.
_ONLY_THE_JOB = {
    name: why for name, why in ONLY_THE_JOB.items() if name not in ("binary_composite_of_domain", "underscore_types")
}

# The configuration needs the mask for the staging table, too: the job stops, and says so.
_MASKED = {"staging_swap_masked": "ConfigError"}

_KEY, _ENVIRON = "source.catalog_key=${CATALOG_KEY}", {"CATALOG_KEY": CATALOG_KEY}

_IN_CI = {"drop_add_last"}

# Those of which the rows alone say something else.
_FACTS = {
    *("bag_add_default", "bag_enum_rename", "bag_type_using", "bigint_key_swap", "catalog_in_modes"),
    *("catalog_without_rows", "composite_attribute", "domain_modifier", "drop_add_last", "enum_key"),
    *("generated_drop_expression", "key_swap_key_last", "rename_then_add_old_name", "set_expression"),
    *("shadow_column_declared", "staging_swap", "staging_swap_masked", "swap_keep_old", "unlogged_toggle"),
    *("via_root_detach", "timestamp_zone_declared", "catalog_defaults", "catalog_names", "catalog_partitions"),
    *("binary_composite_of_domain", "underscore_types", "catalog_types", "catalog_types_binary"),
    *("catalog_computed", "catalog_computed_published", "catalog_default_and_type", "catalog_type_changes"),
    *("catalog_root_keys", "full_on_root_only"),
}


@pytest.mark.parametrize("case", cases({**SENDER, **_ONLY_THE_JOB}, _FACTS, has_catalog=True))
def test_a_case_in_memory(case: SqlCase, servers: Servers, tmp_path: Path, landing: Path) -> None:
    target = in_memory(tmp_path, landing, case.rules, [_KEY], _ENVIRON)
    target.is_replayed = not target.nights.config.tables
    assert_as_expected(case, servers(case.version), landing, target)


@pytest.mark.spark
@pytest.mark.parametrize("case", cases({**SENDER, **_MASKED}, _IN_CI, has_catalog=True))
def test_a_case_through_the_job(
    case: SqlCase, servers: Servers, tmp_path: Path, landing: Path, spark: SparkSession
) -> None:
    job = Job(spark, tmp_path, landing, [f"tables={case.rules}", _KEY], dict(_ENVIRON))
    assert_as_expected(case, servers(case.version), landing, JobTarget(job))


_REBUILT = (
    "catalog_detach",
    "catalog_without_rows",
    "catalog_in_modes",
    "catalog_names",
    "bag_add_default",
    "staging_swap",
)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in all_cases() if case.name in _REBUILT])
def test_a_rebuild_is_equal(
    case: SqlCase, servers: Servers, tmp_path: Path, landing: Path, spark: SparkSession
) -> None:
    job = Job(spark, tmp_path, landing, [f"tables={case.rules}", _KEY], dict(_ENVIRON))
    target = JobTarget(job)
    assert_as_expected(case, servers(case.version), landing, target)
    before = {name: sorted(table.rows, key=str) for name, table in target.tables().items()}
    rebuilt = job.backfill(BackfillRequest(("*",)))
    assert rebuilt.exit_code == (EXIT_QUARANTINE if case.name in _REPORTED else EXIT_DONE)
    assert {name: sorted(table.rows, key=str) for name, table in target.tables().items()} == before


def assert_as_expected(case: SqlCase, server: Server, landing: Path, target: JudgedTarget) -> None:
    nights = case.judged_nights(server, landing, target, has_catalog=True)
    wrong = [
        {name: judgment.difference for name, judgment in judgments.items() if judgment.verdict is Verdict.OTHER}
        for judgments in nights
    ]
    assert not any(wrong), wrong
    if "catalog" in case.flags:
        right = [judgment for judgments in nights for name, judgment in judgments.items() if name in case.right]
        assert not [judgment for judgment in right if judgment.difference or judgment.is_reported]
    if case.name not in _REPORTED:
        last = {name: judgment.difference for name, judgment in nights[-1].items() if judgment.is_reported}
        assert last == {}


@pytest.mark.spark
@pytest.mark.soak
def test_a_repair_mends_rewritten_tables(
    servers: Servers, tmp_path: Path, landing: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that the summary prints; after it, the table is consistent."""
    monkeypatch.setenv("PGUSER", "postgres")
    monkeypatch.setenv("PGPASSWORD", "none")
    job, server = Job(spark, tmp_path, landing), servers(18)
    job.write_config()
    with judged_database(server, "rewritten", landing, has_catalog=True) as database:
        server.psql("create table t (id int primary key, v int); insert into t values (1, 1), (2, 2)")
        server.psql("create table b (v int); alter table b replica identity full; insert into b values (1), (1), (2)")
        server.psql("create table u (id int primary key); insert into u values (1)")
        database.land()
        assert job.run().conditions == ()
        server.psql("alter table t alter v type bigint using v * 100; alter table t add r float default random()")
        server.psql("alter table b alter v type bigint using v * 100; alter table u set unlogged")
        server.psql("insert into u values (2); delete from u where id = 1; alter table u set logged")
        database.land()
        conditions = {condition.name: condition for condition in job.run().conditions}
        assert {name: condition.state.value for name, condition in conditions.items()} == dict.fromkeys(
            ("public.b", "public.t", "public.u"), "rewritten"
        )
        assert "UNLOGGED" in conditions["public.u"].reason
        assert "UNLOGGED" not in conditions["public.t"].reason
        url = f"postgresql://127.0.0.1:{server.port}/rewritten"
        submit: list[str | Path] = [ROOT / "spark-submit.sh", "--master=local[2]"]
        repair = ["--config", str(job.config), "--tables", "public.b,public.t,public.u", "--server", url, "--repair"]
        repaired = run(*submit, ROOT / "jobs/snapshot.py", *repair)
        assert repaired.returncode == 0, repaired.stdout + repaired.stderr
        server.psql("update t set v = v + 1 where id = 1; delete from b where v = 200")
        database.land()
        assert job.run().conditions == ()
        for name in ("t", "b", "u"):
            server.copy_csv(f"public.{name}", tmp_path / f"truth-{name}.csv")
            assert_equals_truth(job.rows("public", name), tmp_path / f"truth-{name}.csv")


def test_a_signed_message_that_is_sent_again_does_not_count(servers: Servers, landing: Path) -> None:
    """By a user who can read the slot, for a column that was dropped and added again alike."""
    server = servers(18)
    with judged_database(server, "copied", landing, has_catalog=True) as database:
        server.psql("create role reader replication login; create table t (id int primary key, v int)")
        server.create_slot("spy")
        server.psql("alter table t alter v set not null; insert into t values (1, 7); alter table t drop v, add v int")
        server.psql(
            "set role reader; do $$ declare copy record; begin for copy in"
            " select substr(data, 36) as content from pg_logical_slot_peek_binary_changes('spy', null, null,"
            " 'proto_version', '1', 'publication_names', 'p', 'messages', 'true')"
            " where get_byte(data, 0) = ascii('M') and length(data) > 99 order by lsn limit 1 loop"
            " perform pg_logical_emit_message(true, 'pgoutput_etl.catalog', copy.content); end loop; end $$;"
            "reset role; select pg_drop_replication_slot('spy'); drop role reader"
        )
        server.psql("insert into t values (2, 8)")
        database.land()
        replay = read_landed(landing)
        definitions = replay.assembly.relations.definitions
        known = definitions.definition(replay.name_holders()["public", "t"], None)
        assert known is not None
        assert [column.number for column in known.columns] == [1, 3]
        assert definitions.refused == {"they are copies of earlier ones": 1}


def read_landed(landing: Path) -> Replay:
    replay = Replay()
    for file in sorted(landing.iterdir()):
        replay.add_file(file.name, file.read_bytes())
    return replay


def unknown(replay: Replay) -> set[str]:
    names = {oid: name for (_, name), oid in replay.name_holders().items()}
    assert replay.assembly.relations.definitions.refused == {}
    return {names[oid] for oid in replay.assembly.relations.definitions.unknown()}


def test_a_night_without_messages_is_noticed_and_mended_by_sending_the_catalog(servers: Servers, landing: Path) -> None:
    server = servers(18)
    with judged_database(server, "lost", landing, has_catalog=True) as database:
        server.psql("create table t (id int primary key, v int); insert into t values (1, 1); create table u (id int)")
        database.land()
        server.psql("alter table t drop v, add v int; insert into t values (2, 2)")
        database.options = {**database.options, "messages": "false"}
        database.land()
        assert unknown(read_landed(landing)) == set()
        database.options = {**database.options, "messages": "true"}
        server.psql("begin; alter table u add w int; rollback; alter table u add v int")
        database.land()
        assert unknown(read_landed(landing)) == {"t"}
        server.psql("select pgoutput_etl.send_catalog(); insert into t values (3, 3)")
        database.land()
        replay = read_landed(landing)
        assert unknown(replay) == set()
        newest = replay.assembly.relations.newest(replay.name_holders()["public", "t"])
        assert newest is not None
        assert newest.catalog is not None
        assert newest.catalog.rewrites > 0


def test_a_table_that_leaves_the_publication_lacks_changes(servers: Servers, tmp_path: Path, landing: Path) -> None:
    """From then on, not only when it returns; another publication, and other columns in it, are no gap."""
    server, config = servers(16), load_config(str(memory_config(tmp_path, landing)), [_KEY], dict(_ENVIRON))
    target = MemoryTarget(Nights(config), landing)
    with judged_database(server, "left", landing, has_catalog=True) as database:
        server.psql("create table t (id int primary key, v int); create table o (id int primary key, v int)")
        server.psql("begin; drop publication p; create publication p for table t, o; commit")
        server.psql("insert into t values (1, 1); insert into o values (1, 1)")
        nights = [
            "create publication q for table o; alter publication q drop table o",
            "alter publication p set table t, o (id)",
            "insert into o values (2, 2); alter publication p drop table t; insert into t values (2, 2)",
            "alter publication p add table t; insert into t values (3, 3)",
        ]
        reported = []
        for statements in ("", *nights):
            server.psql(statements)
            database.land()
            reported.append(target.night().reported)
        assert reported == [frozenset(), frozenset(), frozenset(), {"public.t"}, {"public.t"}]
        [condition] = conditions_of(target.nights.states.values(), config)
        assert condition.state is ConditionKind.INCOMPLETE
        assert condition.reason.startswith("it left the publication, or returned, before LSN ")
        [line] = condition_lines([condition])
        assert condition.reason in line


_ON_DROP = """[
{match: "public.a*", on_drop: archive}, {match: "public.k", on_drop: keep},
{match: "public.c*", into: shared.c, tag: {t: "{table}"}, on_drop: archive}]"""


@pytest.mark.spark
@pytest.mark.soak
def test_the_summary_names_unknown_definitions_until_they_are_sent_anew(
    servers: Servers, tmp_path: Path, landing: Path, spark: SparkSession
) -> None:
    job, server = Job(spark, tmp_path, landing), servers(18)
    with judged_database(server, "unknown", landing, has_catalog=True) as database:
        sent = {**database.options, "messages": "true"}
        server.psql("create table t (id int primary key, v int); insert into t values (1, 1); create table u (id int)")
        database.land()
        assert job.run().unknown_definitions == ()
        server.psql("alter table t drop v, add v int; insert into t values (2, 2)")
        database.options = {**sent, "messages": "false"}
        database.land()
        assert job.run().unknown_definitions == ()
        database.options = sent
        for statement in ("alter table u add v int", "insert into t values (3, 3)"):
            server.psql(statement)
            database.land()
            summary = job.run()
            assert summary.unknown_definitions == ("public.t",)
        server.psql("select pgoutput_etl.send_catalog(); insert into t values (4, 4)")
        database.land()
        summary = job.run()
        assert summary.unknown_definitions == ()
        states = {condition.name: condition.state.value for condition in summary.conditions}
        assert states == {"public.t": "rewritten", "public.u": "rewritten"}


def test_no_message_is_missing_with_concurrent_transactions_of_all_kinds(servers: Servers, landing: Path) -> None:
    server, chance = servers(18), Random(47)
    with judged_database(server, "concurrent", landing, has_catalog=True) as database:
        levels = ("read committed", "repeatable read", "serializable")
        connections = [server.connect() for _ in range(6)]
        for number, connection in enumerate(connections):
            connection.execute(f"create table t{number} (id int primary key)".encode())
        is_open = dict.fromkeys(range(6), False)
        for step in range(300):
            number = chance.randrange(6)
            connection, ends = (
                connections[number],
                chance.choice(["commit", "commit", "rollback", "prepare", "savepoint"]),
            )
            if not is_open[number]:
                connection.execute(f"begin isolation level {chance.choice(levels)}".encode())
            elif ends == "prepare":
                connection.execute(f"prepare transaction 'c{step}'".encode())
                connection.execute(f"{chance.choice(['commit', 'rollback'])} prepared 'c{step}'".encode())
            elif ends == "savepoint":
                connection.execute(f"savepoint s; alter table t{number} add u{step} int; rollback to s".encode())
            else:
                connection.execute(ends.encode())
            is_open[number] = ends == "savepoint" or not is_open[number]
            if is_open[number]:
                connection.execute(
                    f"alter table t{number} add c{step} int; insert into t{number} values ({step})".encode()
                )
            if step % 60 == 0:
                database.land()
        for connection in connections:
            connection.close()
        database.land()
        assert unknown(read_landed(landing)) == set()


@pytest.mark.parametrize("version", [pytest.param(16, marks=pytest.mark.soak), 18])
def test_inspect_lists_what_a_server_did(
    version: Version, servers: Servers, landing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Spark, and in the words of the commands."""
    server = servers(version)
    with judged_database(server, "ddl", landing, has_catalog=True) as database:
        server.psql("create type mood as enum ('red'); create table t (id int primary key, m mood)")
        server.psql("begin; alter table t add gone int; rollback; alter table t add c int default 1, add d text")
        server.psql("alter type mood rename value 'red' to 'blue'; alter table t alter c type bigint using c * 2")
        server.psql("alter table t rename d to e; alter table t drop c; alter table t rename to u; drop table u")
        database.land()
    assert inspect(InspectRequest((str(landing),), ddl=True), OutputOptions(json=True, quiet=True)) == 0
    listed = [(c["command"], c["table"], "; ".join(c["changes"])) for c in json.loads(capsys.readouterr().out)]
    assert listed == [
        ("CREATE TABLE", "t", "table created (id int4, m public.mood)"),
        ("ALTER TABLE", "t", "column added: c (int4); existing rows got a default: c; column added: d (text)"),
        ("ALTER TYPE", "t", "type changed: m (labels)"),
        ("ALTER TABLE", "t", "values computed anew"),
        ("ALTER TABLE", "t", "column retyped: c (int4 to int8)"),
        ("ALTER TABLE", "t", "column renamed: e (was d)"),
        ("ALTER TABLE", "t", "column dropped: c"),
        ("ALTER TABLE", "u", "table renamed (was public.t)"),
        ("DROP TABLE", "u", "table dropped"),
    ]


@pytest.mark.spark
def test_plan_contract_and_ledger_see_commands(
    servers: Servers, tmp_path: Path, landing: Path, spark: SparkSession
) -> None:
    """A column that is dropped and added again alike, without a row: the rows would never show it."""
    rule = "{match: public.kept, on_schema_change: {drop: hold}}"
    job, server = Job(spark, tmp_path, landing, [f"tables=[{rule}]"]), servers(18)
    with judged_database(server, "commands", landing, has_catalog=True) as database:
        server.psql("create table t (id int primary key, v int); insert into t values (1, 1)")
        server.psql("create table kept (id int primary key, v int); insert into kept values (1, 1)")
        database.land()
        job.run()
        server.psql("alter table t drop v, add v int; alter table t rename to u; alter table kept drop v, add v int")
        database.land()
        planned = plan(spark, job.loaded())
        again = ("column dropped: v", "column added: v (int4)")
        assert [(c.command, c.table, c.changes) for c in planned.commands] == [
            ("ALTER TABLE", "t", again),
            ("ALTER TABLE", "u", ("table renamed (was public.t)",)),
            ("ALTER TABLE", "kept", again),
        ]
        [held] = [table.held for table in planned.tables if table.held is not None]
        assert "on_schema_change holds: column dropped: v" in held
        assert [t.held for t in job.run().tables if t.held is not None] == [held]
        changes = {(c["table"], c["kind"], c["shown_by"]) for c in JobNights(job).ledger("schema_changes")}
        kinds = ("column added", "column dropped", "table renamed")
        assert changes == {("u", kind, "catalog") for kind in kinds}


@pytest.mark.spark
@pytest.mark.soak
def test_comments_are_the_servers(servers: Servers, tmp_path: Path, landing: Path, spark: SparkSession) -> None:
    """At their commit, without a row. Not in place of configured ones, and not of masked columns."""
    own, t = "{id: {comment: ours}}", "{secret: {redact: x, comment: theirs}}"
    rules = f"tables=[{{match: public.own, comment: configured, columns: {own}}}, {{match: public.t, columns: {t}}}]"
    job, server = Job(spark, tmp_path, landing, [rules]), servers(18)

    def comments(table: str) -> tuple[str | None, dict[str, str]]:
        laid_out = found(job, table)
        return laid_out.comment, laid_out.comments

    def night(sql: str) -> dict[str, int]:
        server.psql(sql)
        database.land()
        job.run()
        return job.versions()

    with judged_database(server, "comments", landing, has_catalog=True) as database:
        created = "create table {0} (id int primary key, v text, secret text); insert into {0} values (1, 'a', 'b');"
        commented = "comment on table {0} is 'it''s \\ ${{x}}'; comment on column {0}.v is 'one';"
        night(f"{created.format('late')} {created.format('t')} {created.format('own')}")
        night(f"{commented.format('t')} {commented.format('own')}")
        night("comment on column t.secret is 'hidden'")
        assert comments("t") == ("it's \\ ${x}", {"v": "one", "secret": "theirs"})
        assert comments("own") == ("configured", {"id": "ours", "v": "one"})
        assert comments("late") == (None, {})
        key = "comment on table t is null; comment on column t.id is 'key'"
        night(f"{commented.format('late')} alter table own rename v to w; {key}")
        assert comments("late") == ("it's \\ ${x}", {"v": "one"})
        assert comments("own") == ("configured", {"id": "ours", "w": "one"})
        assert comments("t") == ("", {"v": "one", "id": "key", "secret": "theirs"})
        before = job.versions()
        again = f"{commented.format('late')} comment on column t.v is 'two'; comment on column t.v is 'one'"
        assert night(again) == before, "nothing has changed"
        after = night("insert into t values (2, 'x', 'y'); insert into late values (2, 'x', 'y')")
        assert after == before | {"t": before["t"] + 1, "late": before["late"] + 1}
        night("begin; truncate late; insert into late values (3, 'x', 'y'); comment on column late.v is null; commit")
        assert comments("late") == ("it's \\ ${x}", {"v": ""})
        assert job.backfill(BackfillRequest(("public.t",))).exit_code == 0
        assert comments("t")[1] == {"v": "one", "id": "key", "secret": "theirs"}


def test_dropped_tables_are_kept_or_archived(
    servers: Servers, tmp_path: Path, landing: Path, spark: SparkSession
) -> None:
    """By their rules; without one, each summary names them, and status does."""
    job = Job(spark, tmp_path, landing, [f"tables={_ON_DROP}", _KEY], dict(_ENVIRON))
    server, names = servers(16), ("a", "k", "r", "c1", "c2")
    with judged_database(server, "dropped", landing, has_catalog=True) as database:
        for name in names:
            server.psql(f"create table {name} (id int primary key); insert into {name} values (1)")
        database.land()
        assert job.run().dropped == ()
        server.psql("insert into a values (2); drop table a, k, r, c1")
        database.land()
        assert job.run().dropped == ("public.r",)
        assert job.run().dropped == ("public.r",)
        assert status(job.loaded(), StatusRequest()).dropped == ("public.r",)
        assert [len(job.rows("public", name)) for name in ("a", "k", "r")] == [0, 1, 1]
        assert [row["t"] for row in job.rows("shared", "c")] == ["c2"]
        [archived] = [
            path for path in tmp_path.glob("tables/_pgoutput_etl/displaced/*/*") if _ids(spark, path) == [1, 2]
        ]
        server.psql("create table a (id int primary key); insert into a values (3)")
        database.land()
        assert job.run().conditions == ()
        assert ([row["id"] for row in job.rows("public", "a")], _ids(spark, archived)) == ([3], [1, 2])


def _ids(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row["id"] for row in spark.read.format("delta").load(str(path)).collect())


def test_a_drop_that_nobody_has_signed_archives_nothing(servers: Servers, tmp_path: Path, landing: Path) -> None:
    """And without a key, no rule can ask for it."""
    config = load_config(str(memory_config(tmp_path, landing)))
    target = MemoryTarget(Nights(config), landing)
    with judged_database(servers(16), "unsigned", landing, has_catalog=True) as database:
        database.server.psql("create table a (id int primary key); insert into a values (1); drop table a")
        database.land()
        target.night()
    rules = 'tables=[{match: "public.a", on_drop: archive}]'
    archiving = load_config(str(memory_config(tmp_path, landing)), [rules, _KEY], dict(_ENVIRON))
    target.nights.night([], archiving)
    [state] = target.nights.states.values()
    assert not state.is_displaced
    assert dropped_names(config, [state.oid], {state.oid: state}) == ("public.a",)
    with pytest.raises(ConfigError, match=r"on_drop: expected source\.catalog_key"):
        load_config(str(memory_config(tmp_path, landing)), [rules])


OPTIONS: list[tuple[Version, int, dict[str, str]]] = [
    (18, 1, {}),
    (18, 4, {"streaming": "parallel", "binary": "true"}),
    (16, 2, {"streaming": "on"}),
    (16, 3, {"streaming": "on", "binary": "true"}),
]

SEEDS = [pytest.param(seed, marks=() if seed < 4 else pytest.mark.soak) for seed in range(200)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_history(seed: int, servers: Servers, tmp_path: Path) -> None:
    version, protocol, options = OPTIONS[seed % len(OPTIONS)]
    assert_right_every_night(servers(version), seed, tmp_path, protocol, options)


def assert_right_every_night(server: Server, seed: int, tmp_path: Path, protocol: int, options: dict[str, str]) -> None:
    """Without a declaration."""
    name = f"history_{seed}"
    server.psql(f"create database {name}")
    server.database = name
    try:
        server.psql("create schema other; create publication p for all tables")
        server.create_slot(name, two_phase=protocol >= 3)
        assert server.run_scripts("-f", str(CATALOG)).returncode == 0
        with server.connect() as connection:
            history = CatalogHistory(connection, Random(seed), name="t", can_prepare=protocol >= 3)
            history.create()
            replay = Replay()
            for night in range(4):
                for _ in range(6):
                    history.step()
                file = tmp_path / f"{night}.bin"
                server.recvlogical(name, file, publications=["p"], proto_version=protocol, messages="true", **options)
                server.copy_csv(history.full_name, tmp_path / "truth.csv", has_generated=False)
                replay.add_file(str(file), file.read_bytes())
                assert unknown(replay) == set()
                oid = replay.name_holders()[history.schema, history.name]
                rows = replay.tables()[oid].rows
                try:
                    assert_equals_truth(rows, tmp_path / "truth.csv")
                except AssertionError as error:
                    raise AssertionError(f"{error}\n" + "\n".join(history.log[-100:])) from None
    finally:
        server.database = "postgres"
        server.psql(f"select pg_drop_replication_slot('{name}')")
        server.psql(f"drop database {name} with (force)")
