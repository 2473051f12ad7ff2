"""verify asks a standby as of exactly the LSN that it has replayed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.errors import RunError
from pgoutput_etl.exit_codes import EXIT_DIFFERENT, EXIT_DONE, EXIT_TRY_LATER
from pgoutput_etl.postgres import live_server
from pgoutput_etl.work.snapshot.check_report import CheckReport
from pgoutput_etl.work.snapshot.checks import Check
from pgoutput_etl.work.snapshot.verify_check import check_verify
from tests.servers.test_verify_in_use import Archive, archive_of, writers
from tests.support.servers.postgres import Server
from tests.support.servers.standby import Standby

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.soak]

_PAUSED = "select pg_get_wal_replay_pause_state() = 'paused'"


@pytest.fixture
def archive(spark: SparkSession, tmp_path: Path, landing: Path) -> Iterator[Archive]:
    with archive_of(18, spark, tmp_path, landing) as found:
        yield found


def pause(standby: Server) -> None:
    standby.psql("select pg_wal_replay_pause()")
    while standby.psql(_PAUSED).strip() != "t":
        time.sleep(0.05)


def checklist(archive: Archive, url: str) -> CheckReport:
    return check_verify(archive.job.spark, archive.job.loaded(), VerifyRequest(server=url, checks_only=True))


def replay(archive: Archive, url: str) -> Check:
    checks = {check.subject: check for check in checklist(archive, url).checks}
    assert checks.keys() == {"server", "replay", "archive"}
    return checks["replay"]


def test_a_standby_of_a_server_in_use(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    with Standby(archive.server) as standby:
        url = f"postgresql://postgres@127.0.0.1:{standby.port}/postgres"
        with writers(archive.server, pause=0.01):
            monkeypatch.setattr(live_server, "_REPLAYED_ATTEMPTS", 3)
            with pytest.raises(RunError, match="replays changes all the time"):
                archive.verify(server=url)
            for _ in range(3):
                time.sleep(0.5)
                assert replay(archive, url).status == "problem"
                pause(standby)
                assert replay(archive, url).status == "ok"
                begun = archive.verify(server=url, begin=True)
                standby.psql("select pg_wal_replay_resume()")
                assert begun.exit_code in (EXIT_DONE, EXIT_TRY_LATER)
                archive.apply()
                assert archive.verify(finish=True).exit_code == EXIT_DONE
        archive.server.psql("insert into counted (id) values (-1)")
        archive.apply()
        archive.delete("counted", "id = -1")
        archive.server.psql("insert into counted (id) values (-2)")
        archive.apply()
        archive.verify(server=url, begin=True)
        archive.server.psql("insert into counted (id) values (-3)")
        archive.apply()
        assert archive.verify(finish=True).exit_code == EXIT_DIFFERENT


def test_an_idle_standby_needs_no_pause(archive: Archive) -> None:
    with Standby(archive.server) as standby:
        written = threading.Thread(target=lambda: archive.server.psql("select pg_sleep(1); delete from named"))
        url = f"postgresql://postgres@127.0.0.1:{standby.port}/postgres"
        assert replay(archive, url).status == "note"
        archive.server.psql("create role limited login")
        archive.apply()
        limited = url.replace("postgres@", "limited@")
        grant = next(step for step in checklist(archive, limited).steps if "GRANT SELECT" in step.command)
        assert grant.text.startswith("on the primary, "), "a standby can't run it"
        archive.server.psql("drop role limited")
        written.start()
        archive.verify(server=url, begin=True)
        written.join()
        archive.server.psql("insert into parent values (-1)")
        archive.apply()
        assert archive.verify(finish=True).exit_code == EXIT_DONE
