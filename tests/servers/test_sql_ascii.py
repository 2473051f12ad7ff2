"""A database in SQL_ASCII: docs/types.md says what a walsender does with text that is not UTF-8."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scan_parts import scan_file
from tests.support.servers.judged_database import PUBLICATION, judged_database
from tests.support.servers.postgres import Server

pytestmark = pytest.mark.e2e

ROWS = """
create table t (id int primary key, v text);
insert into t values (1, 'a');
insert into t values (2, 'caf' || chr(233));
insert into t values (3, 'b');
"""


def test_the_walsender_stops_at_a_row_unless_the_receiver_takes_any_bytes(
    server: Server, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with judged_database(server, "ascii", landing, created="encoding 'SQL_ASCII' locale 'C' template template0"):
        server.psql(ROWS)
        monkeypatch.setenv("PGCLIENTENCODING", "UTF8")
        for _ in range(2):
            with pytest.raises(RuntimeError, match='invalid byte sequence for encoding "UTF8": 0xe9'):
                server.recvlogical("ascii", tmp_path / "stopped.bin", publications=[PUBLICATION])
        monkeypatch.setenv("PGCLIENTENCODING", "SQL_ASCII")
        server.recvlogical("ascii", landing / "0.bin", publications=[PUBLICATION])
    scanned = scan_file("0.bin", 0, (landing / "0.bin").read_bytes())
    assert scanned.summary.messages["I"] == 3
    assert not scanned.summary.damages
