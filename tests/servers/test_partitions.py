"""Partitions of real servers that are published through their root, under every mix of replica identities."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import load_config
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.postgres.catalog import QUERY as CATALOG
from pgoutput_etl.postgres.catalog import read_catalog
from pgoutput_etl.postgres.source_server import QUERY, SourceServer
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.snapshot.check_report import check_server
from pgoutput_etl.work.snapshot.checks import PROBLEM, Check
from pgoutput_etl.work.snapshot.request import SnapshotRequest
from pgoutput_etl.work.snapshot.run import snapshot
from tests.support.jobs import Job
from tests.support.judged_targets import JobTarget, MemoryTarget, in_memory
from tests.support.kept_rows import applied
from tests.support.servers.judged_database import judged_database
from tests.support.servers.postgres import Server, Version
from tests.support.verdicts import judge

pytestmark = pytest.mark.e2e

# A root's identity, and its key's columns; a partition's, with the columns that its old tuples have. PostgreSQL rejects
# UPDATE and DELETE of a partition's rows under NOTHING.
ROOTS = {
    "nothing": "",
    "key": "id region",
    "full": "",
    "key and full": "",
    "key and nothing": "",
    "index": "region code",
}
EVERY = "id region code doc w"
PARTITIONS = {"root's key": "id region", "key": "id", "index": "code", "full": EVERY, "nothing": EVERY}
KEYS = ("", "id", "id region", "code")


LARGE = "(select string_agg(md5(i::text || {}), '') from generate_series(1, 300) i)"
NIGHTS = (
    (
        f"insert into t values (1, 'n', 10, {LARGE.format(1)}, 'a'), (2, 'n', 20, {LARGE.format(2)}, null), "
        f"(3, 'm', 30, {LARGE.format(3)}, 'c'), (4, 'm', 40, 'short', null), (5, 'm', 50, null, null)"
    ),
    "update t set w = 'x' where id in (1, 3); delete from t where id = 2",
    (
        "update t set id = 100 where id = 1; update t set w = null, id = 300 where id = 3; "
        "update t set doc = 'd' where id = 4"
    ),
    "delete from t where id in (5, 100); update t set region = 'n' where id = 300; update t set code = code + 1",
)
IN_ONE_PARTITION = (
    "update t set w = 'x' where region = 'n' and id = 1; delete from t where region = 'n' and id = 2",
    (
        "update t set id = 100 where region = 'n' and id = 1; update t set doc = 'd' where region = 'n' and id = 100;"
        "insert into t values (6, 'm', 60)"
    ),
    "update t set code = code + 1 where region = 'n'; insert into t values (7, 'n', 70, 'e', 'f')",
)


def changes(partitions: tuple[str, str]) -> tuple[str, ...]:
    """The nights after the first one."""
    match partitions:
        case ("nothing", "nothing"):
            return ("insert into t values (6, 'n', 60, null, 'd'), (7, 'm', 70, '', null)",)
        case (_, "nothing"):
            return IN_ONE_PARTITION
        case _:
            return NIGHTS[1:]


def definition(root: str, partitions: tuple[str, str]) -> str:
    key = ", primary key (id, region)" if "key" in root else ""
    statements = [
        (
            f"create table t (id int not null, region text not null, code int not null, doc text, w text{key}) "
            "partition by list (region)"
        )
    ]
    for name, identity in zip("nm", partitions, strict=True):
        # Two levels: the row's own partition is below another one.
        statements.append(f"create table t_{name} partition of t for values in ('{name}') partition by list (region)")
        statements.append(f"create table l_{name} partition of t_{name} for values in ('{name}')")
        statements.append(f"alter table l_{name} alter doc set storage external")
        statements += {
            "root's key": [],
            "key": [f"alter table l_{name} add primary key (id)"],
            "index": [
                f"create unique index l_{name}_code on l_{name} (code)",
                f"alter table l_{name} replica identity using index l_{name}_code",
            ],
            "full": [f"alter table l_{name} replica identity full"],
            "nothing": [f"alter table l_{name} replica identity nothing"],
        }[identity]
    if root == "index":
        statements.append("create unique index t_code on t (region, code)")
        statements.append("alter table t replica identity using index t_code")
    elif (identity := root.rpartition(" ")[2]) in ("full", "nothing"):
        statements.append(f"alter table t replica identity {identity}")
    return "; ".join(statements)


def mixes() -> Iterator[tuple[str, tuple[str, str], str]]:
    for root, pair in product(ROOTS, combinations_with_replacement(PARTITIONS, 2)):
        if ("key" in root and "key" in pair) or ("key" not in root and "root's key" in pair):
            continue  # PostgreSQL refuses a second primary key; there is none to inherit
        for key in KEYS:
            if pair == ("nothing", "nothing") and not set(key.split()) <= set((ROOTS[root] or EVERY).split()):
                continue  # held from its first row, as an ordinary table is: no old tuple has such a key
            yield root, pair, key


def is_covered(root: str, partitions: tuple[str, str], key: str) -> bool:
    """True if the messages show which row of the root each of them is about."""
    used = set((key or ROOTS[root]).split())
    return all(used <= set(PARTITIONS[p].split()) and (bool(used) or p in ("full", "nothing")) for p in partitions)


IN_CI = [
    ("nothing", ("key", "key"), ""),
    ("nothing", ("full", "full"), ""),
    ("nothing", ("key", "full"), "id"),
    ("key", ("root's key", "full"), ""),
    ("key", ("root's key", "index"), ""),
    ("key", ("index", "full"), "code"),
    ("full", ("key", "full"), "id"),
    ("key and full", ("root's key", "full"), "id region"),
    ("key and nothing", ("root's key", "nothing"), ""),
    ("index", ("index", "full"), ""),
]


def parameters() -> list[Any]:
    marks = {mix: () if mix in IN_CI else (pytest.mark.soak,) for mix in mixes()}
    return [pytest.param(*mix, id="-".join((mix[0], *mix[1], mix[2])), marks=m) for mix, m in marks.items()]


@pytest.fixture(scope="module", params=[pytest.param(16, marks=pytest.mark.soak), 18])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    version: Version = request.param
    with Server(version) as server:
        yield server


VIA_ROOT = "publish_via_partition_root = true"


@pytest.mark.parametrize(("root", "partitions", "key"), parameters())
def test_a_root_has_the_servers_rows_or_is_held(
    server: Server, tmp_path: Path, landing: Path, root: str, partitions: tuple[str, str], key: str
) -> None:
    rule = f"[{{match: public.t, key: [{', '.join(key.split())}]}}]" if key else "[]"
    target = in_memory(tmp_path, landing, rule)
    assert isinstance(target, MemoryTarget)
    covered = is_covered(root, partitions, key)
    with judged_database(server, "partitions", landing, publication=VIA_ROOT) as database:
        server.psql(definition(root, partitions))
        for number, statements in enumerate((NIGHTS[0], *changes(partitions))):
            server.psql(statements)
            database.land()
            [judgment] = judge(target.night(), database.tables()).values()
            states = [state for state in target.nights.states.values() if state.full_name == "public.t"]
            held = [state.reason or "" for state in states if not state.is_complete]
            assert (judgment.difference == "") == (covered or number == 0), (number, judgment.difference, held)
            assert bool(held) == (not covered and number > 0), (number, held)
            assert all("replica identity" in reason and "public.l_" in reason for reason in held)
            assert all(state.mismatches is None for state in states)


@pytest.mark.parametrize(
    ("root", "partitions", "key", "problem"),
    [
        ("nothing", ("key", "full"), "", "public.l_n has the replica identity (id), and the root has no key"),
        ("nothing", ("key", "full"), "id", None),
        ("nothing", ("full", "full"), "", None),
        ("key", ("root's key", "index"), "", "public.l_m has the replica identity (code), which lacks 'id' of the key"),
        ("key", ("root's key", "full"), "", None),
        ("full", ("key", "key"), "id region", "public.l_m has the replica identity (id), which lacks 'region'"),
    ],
)
def test_a_check_names_partitions_before_the_first_night(
    server: Server, tmp_path: Path, landing: Path, root: str, partitions: tuple[str, str], key: str, problem: str | None
) -> None:
    rule = f"{{match: public.t, key: [{', '.join(key.split())}]}}" if key else "{match: public.x}"
    found = partition_problems(server, tmp_path, landing, definition(root, partitions), rule)
    assert len(found) == (problem is not None)
    assert all(problem is not None and problem in check.text for check in found)
    assert all("REPLICA IDENTITY FULL" in step.command for check in found for step in check.steps)


def test_columns_that_an_index_includes_are_no_identity(server: Server, landing: Path) -> None:
    with judged_database(server, "partitions", landing) as database:
        server.psql(
            "create table t (id int, code int, w text, primary key (id) include (code)); insert into t values (1)"
        )
        [[text]] = database.query(CATALOG.encode(), 1)
        database.land()
    [described] = read_catalog(text or "", (), lambda _: True).tables
    replay = Replay()
    for file in sorted(landing.iterdir()):
        replay.add_file(file.name, file.read_bytes())
    assert described.relation == replay.assembly.relations.newest(described.relation.oid)


def test_tables_that_inherit_are_no_partitions(server: Server, tmp_path: Path, landing: Path) -> None:
    script = "create table t(id int primary key); create table child(code int primary key) inherits (t)"
    assert partition_problems(server, tmp_path, landing, script, "{match: public.x}") == []


def partition_problems(server: Server, tmp_path: Path, landing: Path, script: str, rule: str) -> list[Check]:
    path = tmp_path / "shop.yaml"
    path.write_text(
        f"source: {{name: shop, landing: '{landing}'}}\ntarget: {{root: ./root}}\ntables: [{rule}]\n", encoding="utf-8"
    )
    with judged_database(server, "partitions", landing, publication=VIA_ROOT) as database:
        server.psql(script)
        [[text]] = database.query(QUERY.encode(), 1)
    request = SnapshotRequest(("public.t",), server="postgresql://db/shop")
    report = check_server(SourceServer.of(text or ""), load_config(str(path)), request, None)
    return [check for check in report.checks if (check.status, check.subject) == (PROBLEM, "partitions")]


@pytest.mark.parametrize(
    ("root", "partitions", "key"),
    [("key", ("root's key", "full"), ""), ("nothing", ("key", "full"), "id"), ("nothing", ("key", "full"), "")],
)
def test_streamed_and_resent_transactions(
    server: Server, tmp_path: Path, landing: Path, root: str, partitions: tuple[str, str], key: str
) -> None:
    """The second file sends the first one's transactions again, and all partitions are described anew in it."""
    target = in_memory(tmp_path, landing, f"[{{match: public.t, key: [{key}]}}]" if key else "[]")
    many = "insert into t select i, case i % 2 when 0 then 'n' else 'm' end, i, md5(i::text), 'w' from "
    changes = "update t set w = 'x' where id % 5 = 0; update t set code = -code where id % 7 = 0"
    with judged_database(server, "partitions", landing, publication=VIA_ROOT) as database:
        server.create_slot("resent")
        server.psql(definition(root, partitions))
        server.psql(f"begin; {many} generate_series(1, 3000) i; {changes}; delete from t where id % 3 = 0; commit")
        server.recvlogical("partitions", landing / "0.bin", publications=["p"], proto_version=2, streaming="on")
        first = judge(target.night(), database.tables())["public.t"]
        server.psql(f"begin; {many} generate_series(3001, 6000) i; {changes}; delete from t where id % 4 = 0; commit")
        server.recvlogical("resent", landing / "1.bin", publications=["p"], proto_version=2, streaming="on")
        second = judge(target.night(), database.tables())["public.t"]
    is_covered_here = is_covered(root, partitions, key)
    assert [found.difference == "" for found in (first, second)] == [is_covered_here, is_covered_here]
    assert is_covered_here or (first.is_reported and second.is_reported)


MODES = ("mirror", "soft_delete", "history")


@pytest.mark.soak
@pytest.mark.spark
def test_every_mode_has_the_servers_rows(server: Server, tmp_path: Path, landing: Path, spark: SparkSession) -> None:
    """A root whose key the partitions have among all columns, or alone; unchanged TOAST, and rows that move."""
    mixes = {"t": ("key", ("root's key", "full"), ""), "u": ("key and full", ("root's key", "full"), "id, region")}
    names = {f"{name}_{mode}": (*mix, mode) for name, mix in mixes.items() for mode in MODES}
    rules = [
        f"{{match: public.{name}, mode: {mode}{f', key: [{key}]' if key else ''}}}"
        for name, (_, _, key, mode) in names.items()
    ]
    target = JobTarget(Job(spark, tmp_path, landing, [f"tables=[{', '.join(rules)}]"]))
    with judged_database(server, "partitions", landing, publication=VIA_ROOT) as database:
        for name, (root, partitions, _, _) in names.items():
            server.psql(renamed(definition(root, partitions), name))
        for statements in NIGHTS:
            server.psql("; ".join(renamed(statements, name) for name in names))
            database.land()
            judgments = judge(target.night(), database.tables())
            assert {name: judgment.difference for name, judgment in judgments.items()} == {
                f"public.{name}": "" for name in names
            }


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("is_whole", [False, True])
def test_every_mix_in_one_archive(
    is_whole: bool, server: Server, tmp_path: Path, landing: Path, spark: SparkSession
) -> None:
    """The job applies all nights at once, in two modes. A root that it holds names the partition and both remedies."""
    names = {
        f"t{n}_{mode}": (*mix, mode)
        for (n, mix), mode in product(enumerate(mixes() if is_whole else IN_CI), ("mirror", "append"))
    }
    rules = [
        f"{{match: public.{name}, mode: {mode}{f', key: [{comma_separated(key)}]' if key else ''}}}"
        for name, (_, _, key, mode) in names.items()
    ]
    job = Job(spark, tmp_path, landing, [f"tables=[{', '.join(rules)}]"])
    with judged_database(server, "partitions", landing, publication=VIA_ROOT) as database:
        for name, (root, partitions, _, _) in names.items():
            statements = "; ".join((definition(root, partitions), NIGHTS[0], *changes(partitions)))
            server.psql(renamed(statements, name))
        database.land()
        judgments = judge(JobTarget(job).night(), database.tables())
        with server.connect() as connection:
            query = f"select {comma_separated(EVERY)} from "
            theirs = {name: connection.execute((query + name).encode()).fetchall() for name in names}
    batch = DeltaLedger.of(spark, job.loaded()).batches.last()
    assert batch is not None
    states, replay = {state.table: state for state in batch.tables.values()}, Replay()
    for file in sorted(landing.iterdir()):
        replay.add_file(file.name, file.read_bytes())
    changed = replay.rows_by_relation()
    for name, (root, partitions, key, mode) in names.items():
        reason, oid, mix = states[name].reason or "", states[name].oid, (name, root, partitions, key)
        assert (reason == "") == is_covered(root, partitions, key), (mix, reason)
        if reason:
            named = (f"rows of public.{name} can't", f"its partition public.{name}_l_", "replica identity (")
            remedies = ("`key", "set REPLICA IDENTITY FULL for the partitions on the server, and load a snapshot")
            assert all(text in reason for text in (*named, *remedies)), (mix, reason)
        elif mode == "mirror":
            assert judgments[f"public.{name}"].difference == "", mix
        else:
            shape = replay.table(oid, changed[oid], {f"public.{name}": tuple(key.split())} if key else None).shape
            found = applied(job.rows("public", name), shape)
            assert Counter(tuple(row[column] for column in EVERY.split()) for row in found) == Counter(theirs[name]), (
                mix
            )


def comma_separated(names: str) -> str:
    return ", ".join(names.split())


def renamed(statements: str, name: str) -> str:
    """The statements, about another root and other partitions."""
    return re.sub(r"\bl_[nm]", rf"{name}_\g<0>", re.sub(r"\bt(?=_[nm]|_code|\b)", name, statements))


WITH_KEY = "tables=[{match: public.k, key: [id]}]"


@pytest.mark.soak
@pytest.mark.spark
def test_both_remedies_release_a_held_root(server: Server, tmp_path: Path, landing: Path, spark: SparkSession) -> None:
    job, roots = Job(spark, tmp_path, landing), ("k", "f")

    def night(statements: str, *overrides: str) -> dict[str, str | None]:
        server.psql("; ".join(statements.replace("<t>", root) for root in roots))
        database.land()
        return {table.table: table.held for table in job.run(*overrides).tables}

    def assert_equal(root: str) -> None:
        theirs = sorted(server.psql(f"select id, region, v from {root}").split())
        assert sorted("|".join(map(str, list(row.values())[:3])) for row in job.rows("public", root)) == theirs

    with judged_database(server, "partitions", landing, publication=VIA_ROOT) as database:
        partitions = "; ".join(
            f"create table <t>_{n} partition of <t> for values in ('{n}'); alter table <t>_{n} add primary key (id)"
            for n in "nm"
        )
        rows = "insert into <t> values (1, 'n', 'a'), (2, 'n', 'b'), (3, 'm', 'c'), (4, 'm', 'd')"
        root = "create table <t> (id int, region text, v text) partition by list (region)"
        assert night(f"{root}; {partitions}; {rows}") == {"k": None, "f": None}
        for reason in night("update <t> set v = 'x' where id = 1; delete from <t> where id = 3").values():
            assert reason is not None
            assert "configure `key: [id]` and rebuild the table; or set REPLICA IDENTITY FULL" in reason

        job.backfill(BackfillRequest(("public.k",)), WITH_KEY)
        assert_equal("k")

        server.psql("alter table f_n replica identity full; alter table f_m replica identity full")
        lsn, csv, catalog = server.psql("select pg_current_wal_insert_lsn()"), tmp_path / "f.csv", tmp_path / "catalog"
        csv.write_text("id,region,v\n" + server.psql("select id, region, v from f").replace("|", ","))
        catalog.write_text(database.query(CATALOG.encode(), 1)[0][0] or "")
        at = parse_lsn(lsn.strip())
        request = SnapshotRequest(("public.f",), at, slot_lsn=1, files=str(csv), catalog=str(catalog))
        assert [loaded.table.held for loaded in snapshot(spark, job.loaded(WITH_KEY), request, print).tables] == [None]
        assert_equal("f")
        # The row of one partition comes before the other one's new identity: the former one no longer counts.
        changes = "update <t> set v = 'y' where id = 4; update <t> set v = 'z' where id = 1"
        assert night(changes, WITH_KEY) == {"k": None, "f": None}
        assert_equal("k")
        assert_equal("f")
