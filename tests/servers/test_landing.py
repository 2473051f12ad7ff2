"""docs/landing.md and conf/landing on real servers: a replay of the landed files equals the server's tables."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgoutput_etl.landing.sequence_gaps import missing_number
from tests.support.servers.landing_machine import ROOT, Machine, replayed, unit
from tests.support.servers.postgres import Version
from tests.support.servers.shop import Shop, serving_shop
from tests.support.servers.standby import Standby
from tests.support.unit_sandbox import is_available, sandboxed

pytestmark = pytest.mark.e2e

GUIDE = dict(
    re.findall(r"<!-- tested: ([\w ]+) -->\n```\w+\n(.*?)```\n", (ROOT / "docs/landing.md").read_text(), re.DOTALL)
)


class SandboxedMachine(Machine):
    """Runs each unit's command with the unit's restrictions. writable: a unit's drop-in with ReadWritePaths."""

    writable: tuple[Path, ...] = ()

    def command(self, name: str) -> list[str]:
        return sandboxed(
            unit(self.root / "etc/systemd/system" / name), [self.state, *self.writable], super().command(name)
        )


@contextmanager
def shop_and_machine(
    version: Version, folder: Path, settings: dict[str, str] | None = None, **changed: str
) -> Iterator[tuple[Shop, Machine]]:
    with serving_shop(version, settings) as shop:
        machine = Machine(shop.server, folder / "machine", **changed)
        try:
            yield shop, machine
        finally:
            machine.end(signal.SIGKILL)


@pytest.mark.parametrize("version", [pytest.param(16, marks=pytest.mark.soak), 18])
def test_the_guides_landing_has_all_of_the_servers_changes(version: Version, tmp_path: Path) -> None:
    """With rotations, and receivers that are killed, are stopped, and can't answer signals."""
    with shop_and_machine(version, tmp_path, ROTATE_SECONDS="0", ROTATE_PATIENCE="1") as (shop, machine):
        with shop.connect() as connection:
            connection.execute("create table keyless (a int)")
            connection.execute(b"create table hidden (a int primary key); alter table hidden replica identity nothing")
            output = machine.run_shell(GUIDE["server"].replace("-f", "-v keyless=accept -f"))
            assert re.findall(r"^ public\.(\w+)$", output, re.MULTILINE)[-2:] == ["keyless", "hidden"], (
                "they can't be updated"
            )
            assert "person" not in output
            connection.execute(b"drop table keyless; drop table hidden")
        machine.run_shell(GUIDE["start"])
        assert (machine.root / "systemctl.log").read_text() == "enable --now pg-landing@shop.service\n"
        machine.start()
        machine.wait_for_text(shop.work())
        machine.rotate()
        assert [path.name for path in machine.files] == ["shop-0000001.bin.gz"]
        machine.wait_for_text(shop.work())
        machine.end(signal.SIGKILL)
        machine.wait(lambda: not shop.slot("active"), "the walsender stays")
        machine.start()
        machine.wait_for_text(shop.work())
        machine.rotate()

        machine.wait_for_text(shop.work())
        machine.pause()
        marker = shop.work()
        rotation = machine.rotate()
        assert "the receiver has not opened a new file" in rotation.stderr
        assert len(machine.files) == 2, "the renamed file may be incomplete"
        machine.resume()
        machine.wait_for_text(marker)
        machine.rotate()
        assert len(machine.files) == 3

        machine.wait_for_text(shop.work())
        machine.end(signal.SIGINT)
        machine.rotate()
        assert [path.name for path in machine.state.iterdir() if path.name in ("current", "renamed")] == []
        assert missing_number([path.name for path in machine.files]) is None
        shop.assert_is(replayed(machine.files), tmp_path)


def is_running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def heed_ctrl_c() -> None:
    """The tests may run in the background of a shell, where Ctrl-C is ignored, and a shell can't undo that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_newcomer_types_the_guide_without_systemd(tmp_path: Path) -> None:
    """With a password, and the settings as they are installed except for the server's address."""
    with serving_shop(18) as shop:
        machine = Machine(shop.server, tmp_path / "machine")
        machine.run_shell(GUIDE["server"])
        machine.run_shell(f"printf 'a secret\\na secret\\n' | setsid --wait {GUIDE['password']}")
        access = shop.server.folder / "data" / "pg_hba.conf"
        access.write_text(GUIDE["connection"].replace("10.0.0.0/8", "127.0.0.1/32") + access.read_text())
        shop.server.psql("select pg_reload_conf()")

        address = f"127.0.0.1:{shop.server.port}"
        line = GUIDE["pgpass"].replace("db.example.org:5432", address).replace("the password", "a secret")
        machine.run_shell(line)
        installed = machine.root / "etc/pg-landing/shop.env"
        text = machine.here(installed.read_text()).replace("db.example.org", "127.0.0.1")
        installed.write_text(text.replace("PGPORT=5432", f"PGPORT={shop.server.port}"))

        cron = GUIDE["cron"].splitlines()[-1].partition("pg-landing  ")[2]
        for script in (GUIDE["shell"], cron):
            arguments = {**machine.shell(script, {}), "preexec_fn": heed_ctrl_c}
            with subprocess.Popen(**arguments, start_new_session=True) as running:
                try:
                    machine.wait(lambda: bool(shop.slot("active")), "no receiver")
                    machine.wait_for_text(shop.work())
                    before = len(machine.files)
                    machine.run_shell(GUIDE["now"])
                    # On a slow machine, the check a minute after the start lands a first file, too.
                    assert len(machine.files) - before in (1, 2)
                    machine.wait_for_text(shop.work())
                    if script == cron:
                        again = subprocess.run(**machine.shell(cron, {}), capture_output=True, check=False)
                        assert (again.returncode, again.stdout, again.stderr) == (1, b"", b"")
                finally:
                    os.killpg(running.pid, signal.SIGINT)  # Ctrl-C
            machine.wait(lambda: not is_running(running.pid), "its processes stay")
        assert not (machine.state / "current").exists()
        shop.assert_is(replayed(machine.files), tmp_path)


def test_a_rotation_waits_for_one_that_runs(tmp_path: Path) -> None:
    """As when one is started by hand in the second in which the timer starts another."""
    scripts = ROOT / "conf/landing"
    holding = subprocess.Popen(["flock", tmp_path / "lock", "sleep", "infinity"], start_new_session=True)
    with holding:
        while subprocess.run(["flock", "--nonblock", tmp_path / "lock", "true"], check=False).returncode == 0:
            time.sleep(0.01)
        with subprocess.Popen([scripts / "rotate.sh", "shop", tmp_path], stderr=subprocess.PIPE) as waiting:
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(0.5)
            os.killpg(holding.pid, signal.SIGKILL)
            assert (waiting.wait(20), waiting.stderr and waiting.stderr.read()) == (0, b"")


def test_without_a_replication_connection(tmp_path: Path) -> None:
    """Lands by COPY, with an upload that fails after each file: nothing is lost, and no files pile up."""
    refusing = tmp_path / "refusing"
    refusing.write_text("#!/bin/sh\nexit 1\n")
    refusing.chmod(0o755)
    with shop_and_machine(16, tmp_path, LANDED_BY="copy") as (shop, machine):
        machine.run_shell(GUIDE["server"])
        machine.run_shell(GUIDE["copy"])
        machine.run("pg-landing-copy@.service")
        assert len(machine.files) == 1, "it has the catalog"
        machine.run("pg-landing-copy@.service")
        assert len(machine.files) == 1, "there were no changes"
        shop.work()
        before = shop.slot("confirmed_flush_lsn")
        machine.set(UPLOAD=str(refusing))
        for _ in range(3):
            machine.run("pg-landing-copy@.service", fails=True)
        assert [path.name for path in machine.files] == ["shop-0000001.pgcopy.gz"], "only one file waits"
        assert shop.slot("confirmed_flush_lsn") == before, "and so does the slot"
        machine.set(MAX_WAITING_SECONDS="0")
        assert "has waited for" in machine.run("pg-landing-watch@.service", fails=True).stderr
        machine.set(UPLOAD="")
        shop.work()
        with shop.connect() as other, other.transaction():
            other.execute("insert into marker values (-1, 'not yet committed')")
            machine.run("pg-landing-copy@.service")
        shop.work()
        machine.run("pg-landing-copy@.service")
        assert len(machine.files) == 3
        shop.assert_is(replayed(machine.files), tmp_path)
        assert machine.run("pg-landing-watch@.service").stderr == "", "no receiver is expected"

        shop.work()
        hand = tmp_path / "hand"
        hand.mkdir()
        machine.run_shell(f"cd {hand}; {GUIDE['by hand']}")
        assert [path.name for path in hand.iterdir()] == ["changes.pgcopy"]
        shop.assert_is(replayed([*machine.files, hand / "changes.pgcopy"]), tmp_path)


def test_the_watch_reports_problems(tmp_path: Path) -> None:
    with shop_and_machine(18, tmp_path, {"max_wal_size": "64MB"}) as (shop, machine):
        watch = "pg-landing-watch@.service"
        assert "can't query the server" in machine.run(watch, fails=True).stderr, "the role doesn't exist yet"
        machine.run_shell(GUIDE["server"])
        assert "no receiver on the slot etl" in machine.run(watch, fails=True).stderr
        machine.start()
        machine.wait(lambda: bool(shop.slot("active")), "no receiver")
        healthy = machine.run(watch)
        assert re.match(r"shop: slot etl active=t wal_status=reserved retained_bytes=\d+ ", healthy.stdout)
        slots = machine.run_shell(f"psql -d shop -qXAt <<'EOF'\n{GUIDE['look']}\nEOF")
        assert slots.splitlines()[0].startswith("etl|t|reserved|")

        machine.set(MAX_RETAINED_BYTES="1", MAX_CATALOG_AGE="0", MAX_DISK_PERCENT="0")
        with shop.connect() as open_transaction, open_transaction.transaction():
            open_transaction.execute("insert into marker values (-1, 'not yet committed')")
            shop.work()
            problems = machine.run(watch, fails=True).stderr
        assert re.search(r"the slot etl retains \d+ bytes of WAL on the server", problems)
        assert "holds VACUUM back by" in problems
        assert re.search(r"the disk below \S+ is \d+ % full", problems)

        machine.end(signal.SIGINT)
        with shop.connect() as connection:
            connection.execute("alter system set max_slot_wal_keep_size = '1MB'")
            connection.execute("select pg_reload_conf()")
            for _ in range(4):
                connection.execute("insert into log values (now(), 'more')")
                connection.execute("select pg_switch_wal()")
            connection.execute("checkpoint")
        assert "the slot etl is lost (wal_removed)" in machine.run(watch, fails=True).stderr

        machine.run_shell(f"psql -d shop <<'EOF'\n{GUIDE['limit']}\n{GUIDE['drop']}\nEOF")
        with shop.connect() as connection:
            assert connection.execute("show max_slot_wal_keep_size").fetchone() == ("64GB",)
        assert "the server has no slot etl" in machine.run(watch, fails=True).stderr
        shop.server.stop()
        assert "can't query the server" in machine.run(watch, fails=True).stderr


@pytest.mark.skipif(not is_available(), reason="this machine can't imitate the units' restrictions")
def test_the_units_work_with_their_restrictions(tmp_path: Path) -> None:
    """With LANDING and METRICS elsewhere, which needs a drop-in, and an upload."""
    with serving_shop(18) as shop:
        landing, uploaded, metrics = (tmp_path / name for name in ("landing", "uploaded", "metrics"))
        for folder in (landing, uploaded, metrics):
            folder.mkdir()
        upload = tmp_path / "upload"
        upload.write_text(f'#!/bin/sh\ncp "$1" "{uploaded}"\n')
        upload.chmod(0o755)
        machine = SandboxedMachine(
            shop.server,
            tmp_path / "machine",
            LANDING=str(landing),
            METRICS=str(metrics / "shop.prom"),
            PGHOST="127.0.0.1",
            ROTATE_SECONDS="1",
            CHECK_SECONDS="1",
            WATCH_SECONDS="1",
        )
        log = machine.root / "receiver.log"
        try:
            machine.run_shell(GUIDE["server"])
            machine.start("pg-landing@.service")
            machine.wait(lambda: log.read_text().count("Read-only file system") > 1, "it may write everywhere")
            shop.work()
            machine.end(signal.SIGINT)
            assert list(landing.iterdir()) == []
            machine.writable = (landing, uploaded, metrics)
            machine.start("pg-landing@.service")
            machine.wait(lambda: len(list(landing.iterdir())) > 0, "nothing lands")
            machine.wait(lambda: 'slot_active{source="shop"} 1\n' in read(metrics / "shop.prom"), "no metrics")
            assert machine.run("pg-landing-watch@.service").stderr == ""
            before = len(list(landing.iterdir()))
            shop.work()
            machine.wait(lambda: len(list(landing.iterdir())) > before, "nothing lands")
            machine.end(signal.SIGINT)
            assert read(machine.state / "current") == "", "it lands what it has received"
            machine.set(UPLOAD=str(upload))
            shop.work()
            machine.run("pg-landing-copy@.service")
            assert len(list(landing.iterdir())) == 0
        finally:
            machine.end(signal.SIGKILL)
        shop.assert_is(replayed(sorted(uploaded.iterdir())), tmp_path)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.soak
def test_the_slot_of_an_idle_publication_advances(tmp_path: Path) -> None:
    """The server doesn't retain WAL of unpublished writes: no heartbeat is needed."""
    with shop_and_machine(18, tmp_path) as (shop, machine):
        machine.run_shell(GUIDE["server"])
        with shop.connect() as connection:
            connection.execute(b"drop publication etl; create publication etl for table marker")
        machine.start()
        machine.wait_for_text(shop.work())
        with shop.connect() as connection:
            connection.execute("insert into doc select -i, repeat('x', 500) from generate_series(1, 20000) i")
        target = shop.server.current_lsn()
        is_confirmed = f"confirmed_flush_lsn >= '{target}'::pg_lsn"
        machine.wait(lambda: bool(shop.slot(is_confirmed)), "the slot does not advance")


@pytest.mark.soak
def test_a_failover_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    """The receiver has the addresses of both servers, and finds the new primary by itself."""
    with shop_and_machine(18, tmp_path, ROTATE_SECONDS="0") as (shop, machine):
        machine.run_shell(GUIDE["failover"])
        standby = Standby(shop.server)
        with standby:
            both = (shop.server, standby)
            machine.set(
                PGHOST=",".join(str(server.folder) for server in both),
                PGPORT=",".join(str(server.port) for server in both),
                PGTARGETSESSIONATTRS="read-write",
            )
            machine.start()
            machine.wait_for_text(shop.work())
            machine.rotate()
            ready = f"psql -d postgres -XAt <<'EOF'\n{GUIDE['ready']}\nEOF"
            elsewhere = Machine(standby, tmp_path / "standby")
            machine.wait(lambda: "etl|t" in elsewhere.run_shell(ready), "the standby's slot is not ready")
            shop.work()  # may or may not reach the standby in time
            shop.server.crash()
            standby.promote()
            elsewhere.run_shell(f"psql -d postgres <<'EOF'\n{GUIDE['promoted']}\nEOF")
            shop.server = standby
            machine.wait_for_text(shop.work())
            machine.end(signal.SIGINT)
            machine.rotate()
            assert machine.run("pg-landing-watch@.service", fails=True).stderr.count("\n") == 1, "no receiver now"
            shop.assert_is(replayed(machine.files), tmp_path)


@pytest.mark.soak
def test_a_slot_has_two_phase_and_failover_in_18(tmp_path: Path) -> None:
    with shop_and_machine(18, tmp_path) as (shop, machine):
        machine.run_shell("psql -d shop -v failover=true -v two_phase=true -f conf/landing/setup.sql")
        assert shop.slot("two_phase and failover")


def test_every_block_of_the_guide_is_run() -> None:
    """A new block must be marked as tested, or listed here as not run."""
    text = (ROOT / "docs/landing.md").read_text()
    blocks = re.findall(r"(<!-- tested: [\w ]+ -->\n)?```(\w+)\n(.*?)```", text, re.DOTALL)
    assert [block for marked, kind, block in blocks if not marked and kind != "yaml" and "docker" not in block] == []
    run = Path(__file__).read_text()
    assert [name for name in GUIDE if name != "install" and f'GUIDE["{name}"]' not in run.replace("'", '"')] == []
    assert GUIDE["install"].strip() == "sudo conf/landing/install.sh"
