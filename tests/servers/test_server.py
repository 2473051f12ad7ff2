"""The PostgreSQL server of the other tests in this folder starts and lands changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers.postgres import Server


@pytest.mark.e2e
def test_pg_recvlogical_lands_committed_changes(tmp_path: Path) -> None:
    landed = tmp_path / "recv.bin"
    with Server(18) as server:
        server.psql("create table t (id int primary key, v text); create publication p for table t;")
        server.create_slot("slot")
        server.psql("insert into t values (1, 'one'), (2, 'two')")
        server.recvlogical("slot", landed, publications=["p"])
        first = landed.read_bytes()

        server.psql("delete from t where id = 1")
        server.recvlogical("slot", landed, publications=["p"])

    assert first.startswith(b"B"), "a Begin comes first"
    assert b"one" in first
    assert landed.read_bytes().startswith(first), "the receiver appends to the file"
    assert landed.stat().st_size > len(first)
