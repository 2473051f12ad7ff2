"""Deferrable keys of a server: random transactions in which rows exchange keys, and what PostgreSQL refuses."""

from __future__ import annotations

from pathlib import Path
from random import Random

import psycopg
import pytest

from pgoutput_etl.replay.mirror import Replay
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
