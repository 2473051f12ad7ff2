"""Receivers are killed repeatedly during a workload: a replay of their files equals the server's tables."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.transactions.outcome import TransactionStatus
from tests.core.transactions.test_assembly import through_the_night
from tests.support.jobs import Job, held
from tests.support.scan_parts import scan_file
from tests.support.servers.postgres import Server, Version
from tests.support.servers.receivers import Reception, run_killed_receivers
from tests.support.servers.workload import TABLES, Workload
from tests.support.truth import assert_equals_truth

pytestmark = pytest.mark.e2e

PROTOCOLS: dict[Version, tuple[int, ...]] = {16: (1, 2, 3), 18: (1, 2, 3, 4)}
QUICK: list[tuple[Version, int, Framing]] = [(16, 7, Framing.RECVLOGICAL), (18, 3, Framing.RECVLOGICAL)]
LONG = [(version, seed, framing) for version in PROTOCOLS for seed in range(100, 118) for framing in Framing]
RUNS = [
    *(pytest.param(*run, 5, id=f"{run[0]}-{run[1]}-{run[2].value}") for run in QUICK),
    *(
        pytest.param(*run, 10, id=f"{run[0]}-{run[1]}-{run[2].value}", marks=pytest.mark.soak)
        for run in LONG
        if run[2] in (Framing.RECVLOGICAL, Framing.COPYDATA, Framing.LENGTH_PREFIXED)
    ),
]


def reception_of(version: Version, chance: random.Random, framing: Framing) -> Reception:
    protocol = chance.choice(PROTOCOLS[version])
    options = {"proto_version": str(protocol), "publication_names": '"p"', "messages": "true"}
    if protocol >= 2:
        options["streaming"] = "parallel" if protocol == 4 and chance.random() < 0.7 else "on"
    if chance.random() < 0.3:
        options["binary"] = "true"
    return Reception(options, framing)


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    folder = tmp_path / "truth"
    folder.mkdir()
    return folder


def recorded(version: Version, seed: int, framing: Framing, lives: int, landing: Path, truth: Path) -> Counter[str]:
    """Writes landed files, and the server's final rows as CSV. Returns counts of the receivers' events."""
    chance = random.Random(seed)
    with Server(version) as server:
        receivers = run_killed_receivers(server, chance, reception_of(version, chance, framing), landing, lives)
        for table in TABLES:
            server.copy_csv(f"public.{table}", truth / f"{table}.csv")
    return receivers.events


@pytest.mark.parametrize(("version", "seed", "framing", "lives"), RUNS)
def test_killed_receivers_leave_all_of_the_servers_changes(
    version: Version,
    seed: int,
    framing: Framing,
    lives: int,
    landing: Path,
    truth: Path,
    record_property: Callable[[str, object], None],
) -> None:
    events = recorded(version, seed, framing, lives, landing, truth)
    for nightly in (False, True):
        replay = Replay(salvages=True)
        for file in sorted(landing.iterdir()):
            replay.add_file(str(file), file.read_bytes())
            if nightly:
                replay.assembly = through_the_night(replay.assembly)
        events["rows compared"] += assert_holds(replay, truth)
        events["resent"] += resent(replay)
        assert TransactionStatus.QUARANTINED not in {outcome.status for outcome in replay.assembly.outcomes}
        assert replay.assembly.unreadable_ranges == []
    for name, count in events.items():
        record_property(name, count)


def test_a_workload_ends_even_if_the_server_has_restarted() -> None:
    class Always(random.Random):
        def random(self) -> float:
            return 0.0

    with Server(18) as server:
        workload = Workload(server, Always(1), prepares=False)
        workload.create()
        for session in workload._sessions:
            session.connection.execute("begin")
            session.in_transaction = True
        server.psql("select pg_terminate_backend(pid) from pg_stat_activity where state = 'idle in transaction'")
        workload.close()
        assert all(session.connection.closed for session in workload._sessions)


def assert_holds(replay: Replay, truth: Path) -> int:
    tables = replay.tables()
    holders = replay.name_holders()
    compared = 0
    for name in TABLES:
        oid = holders.get(("public", name))
        rows = tables[oid].rows if oid in tables else []
        assert_equals_truth(rows, truth / f"{name}.csv")
        compared += len(rows)
    return compared


def resent(replay: Replay) -> int:
    """The number of resent transactions, which did not count."""
    marks = {(mark.file, mark.epoch): mark.lsn for mark in replay.assembly.watermarks}
    commits = [row for row in replay._messages if row["tag"] == "C" and row["commit_lsn"] is not None]
    old = [row for row in commits if row["commit_lsn"] <= marks.get((row["file"], row["stretch"]), -1)]
    return len(old) + sum(outcome.status is TransactionStatus.RESENT for outcome in replay.assembly.outcomes)


@pytest.mark.parametrize("version", [pytest.param(16, marks=pytest.mark.soak), 18])
def test_facts_of_pg_recvlogical(version: Version, tmp_path: Path) -> None:
    """It appends; SIGHUP makes it open a new file; unconfirmed changes are sent again, even after SIGINT."""
    path, renamed = tmp_path / "current", tmp_path / "renamed"
    with Server(version) as server:
        server.psql("create table t (id int primary key); create publication p for all tables")
        server.create_slot("slot")

        def start() -> subprocess.Popen[bytes]:
            return server.start_recvlogical("slot", path, "--no-loop", "-s", "1000", publications=["p"])

        def insert(number: int) -> None:
            server.psql(f"insert into t values ({number})")

        receiver = start()
        insert(1)
        wait_for_commits(path, 1)
        receiver.kill()
        receiver.wait()
        wait_until_inactive(server)
        receiver = start()
        assert commits(wait_for_commits(path, 2)) == [1, 1], "appended, and sent again"
        path.rename(renamed)
        insert(2)
        wait_for_commits(renamed, 3)
        receiver.send_signal(signal.SIGHUP)
        wait_for_commits(path, 0)
        insert(3)
        assert commits(wait_for_commits(path, 1)) == [3]
        assert commits(renamed.read_bytes()) == [1, 1, 2], "the renamed file grows until the signal"
        receiver.send_signal(signal.SIGINT)
        assert receiver.wait(20) == 0
        wait_until_inactive(server)
        insert(4)
        server.recvlogical("slot", path, publications=["p"])
        assert commits(path.read_bytes()) == [3, 1, 2, 3, 4], "the end of a run confirms nothing"
        insert(5)
        server.recvlogical("slot", path, publications=["p"])
        assert commits(path.read_bytes()) == [3, 1, 2, 3, 4, 5], "reaching --endpos confirms"


def commits(data: bytes) -> list[int]:
    """The ids that committed transactions inserted, one per transaction, in order."""
    rows = [row for batch in scan_file("current", 0, data).batches for row in batch.to_pylist()]
    return [int(row["new"][7:]) for row in rows if row["tag"] == "I"]


def wait_for_commits(path: Path, count: int) -> bytes:
    until = time.monotonic() + 20
    while True:
        with contextlib.suppress(FileNotFoundError, ArchiveError):
            data = path.read_bytes()
            if data[-1:] in (b"", b"\n") and scan_file("current", 0, data).summary.messages.get("C", 0) >= count:
                return data
        assert time.monotonic() < until, f"{count} commits were not received"
        time.sleep(0.01)


def wait_until_inactive(server: Server) -> None:
    with server.connect() as connection:
        until = time.monotonic() + 20
        while connection.execute("select active from pg_replication_slots").fetchone() != (False,):
            assert time.monotonic() < until
            time.sleep(0.01)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("version", "seed", "nights"),
    [
        pytest.param(18, 5, 1, marks=pytest.mark.soak),
        *(pytest.param(v, seed, 4, marks=pytest.mark.soak) for v in PROTOCOLS for seed in (20, 21, 22)),
    ],
)
def test_files_of_killed_receivers_through_the_job(
    version: Version, seed: int, nights: int, landing: Path, truth: Path, tmp_path: Path, spark: SparkSession
) -> None:
    recorded(version, seed, Framing.RECVLOGICAL, 4 + nights, landing, truth)
    files = sorted(landing.iterdir())
    night = tmp_path / "night"
    night.mkdir()
    job = Job(spark, tmp_path, night)
    for number in range(nights):
        for file in files[len(files) * number // nights : len(files) * (number + 1) // nights]:
            file.rename(night / file.name)
        summary = job.run()
        assert (held(summary), summary.quarantined_transactions) == ({}, 0), "torn messages were sent again"
        assert summary.exit_code == (EXIT_QUARANTINE if summary.damages else EXIT_DONE)
    for table in TABLES:
        assert_equals_truth(job.rows("public", table), truth / f"{table}.csv")
