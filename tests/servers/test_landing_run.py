"""conf/landing/run.sh, with the settings of the example container, on real servers: nothing is lost or reordered."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from pgoutput_etl.landing.sequence_gaps import missing_number
from tests.support.servers.landing_machine import CONF, replayed, settings
from tests.support.servers.postgres import Server, Version
from tests.support.servers.shop import Shop, serving_shop
from tests.support.servers.standby import Standby

pytestmark = pytest.mark.e2e

COMPOSE = yaml.safe_load((CONF / "container" / "compose.yaml").read_text())["services"]["shop"]
# Stores under a hidden name first; jobs ignore it.
_UPLOAD = '#!/bin/sh\ncp "$1" "{folder}/.part" && mv "{folder}/.part" "{folder}/${{1##*/}}"\n'
_DEADLINE = 90.0  # seconds


class Container:
    """The processes of the example container, with the folders of the image below `folder`."""

    def __init__(self, server: Server, folder: Path, **changed: str) -> None:
        self.folder = folder
        self.uploaded = folder / "uploaded"
        self.uploaded.mkdir(parents=True)
        upload = folder / "upload"
        upload.write_text(_UPLOAD.format(folder=self.uploaded))
        upload.chmod(0o755)
        [env_file] = COMPOSE["env_file"]
        self.environment = {
            **settings((CONF / "container" / env_file).read_text()),
            **COMPOSE["environment"],
            "PGHOST": str(server.folder),
            "PGPORT": str(server.port),
            "PGPASSFILE": str(folder / "none"),
            "PATH": f"{server.programs}:{os.environ['PATH']}",
            "UPLOAD": str(upload),
            "COMPRESS": "gzip",
            "RESTART_SECONDS": "1",
            "CHECK_SECONDS": "1",
            "WATCH_SECONDS": "2",
            "LANDING": str(folder / "landed"),
            **changed,
        }
        self.state = Path(self._command(COMPOSE["command"])[1])
        self._main: subprocess.Popen[bytes] | None = None

    def _command(self, words: list[str]) -> list[str]:
        places = {"/var/lib/pg-landing": str(self.folder / "volume"), "/usr/local/lib/pg-landing": str(CONF)}
        for place, here in places.items():
            words = [word.replace(place, here) for word in words]
        return words

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def files(self) -> list[Path]:
        return sorted(self.uploaded.glob("shop-*"))

    def start(self) -> None:
        command = [str(CONF / "run.sh"), *self._command(COMPOSE["command"])]
        with (self.folder / "log").open("ab") as log:
            self._main = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def stop(self) -> None:
        """As `docker stop`; checks that nothing stays behind."""
        assert self._main is not None
        self._main.send_signal(signal.SIGTERM)
        assert self._main.wait(60) == 0, self.log
        self._main = None
        kept = sorted(path.name for path in self.state.rglob("*") if path.is_file())
        assert kept == ["last", "lock", "receiver.lock", "rotated"], self.log
        assert receivers(self.state) == []

    def kill(self) -> None:
        """As if the machine lost its power."""
        if self._main is not None:
            self._main.kill()
            self._main.wait()
        for pid in receivers(self.state):
            os.kill(pid, signal.SIGKILL)

    def kill_receiver(self) -> None:
        [pid] = receivers(self.state)
        os.kill(pid, signal.SIGKILL)
        self.wait(lambda: receivers(self.state) not in ([], [pid]), "no new receiver started")

    def is_healthy(self) -> bool:
        _, *command = COMPOSE["healthcheck"]["test"]
        done = subprocess.run(self._command(command), env=self.environment, capture_output=True, check=False)
        return done.returncode == 0

    def wait_for_files(self, count: int) -> None:
        self.wait(lambda: len(self.files) >= count, f"no {count} files")

    def wait_for_text(self, text: bytes) -> None:
        self.wait(lambda: self._has_text(text), f"{text!r} was not received")

    def _has_text(self, text: bytes) -> bool:
        for path in (self.state / "current", self.state / "renamed", *reversed(self.files)):
            try:
                content = path.read_bytes()
            except FileNotFoundError:  # it was renamed or landed
                continue
            if text in (gzip.decompress(content) if path.suffix == ".gz" else content):
                return True
        return False

    def wait(self, happened: Callable[[], bool], why_not: str) -> None:
        until = time.monotonic() + _DEADLINE
        while not happened():
            assert time.monotonic() < until, f"{why_not}: {self.log}"
            time.sleep(0.05)


def receivers(state: Path) -> list[int]:
    """The processes of pg_recvlogical that write below the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it ended
            continue
        if command[0].endswith(b"pg_recvlogical") and f"--file={state}/current".encode() in command:
            found.append(int(process.name))
    return found


@contextmanager
def shop_and_container(version: Version, folder: Path, **changed: str) -> Iterator[tuple[Shop, Container]]:
    with serving_shop(version) as shop:
        container = Container(shop.server, folder / "container", **changed)
        try:
            yield shop, container
        finally:
            container.kill()


def set_up(shop: Shop, *options: str) -> None:
    command = [*("psql", "--no-psqlrc", "--dbname=shop", "--username=postgres"), *options]
    environment = {
        "PATH": f"{shop.server.programs}:{os.environ['PATH']}",
        "PGHOST": str(shop.server.folder),
        "PGPORT": str(shop.server.port),
    }
    command.append(f"--file={CONF / 'setup.sql'}")
    subprocess.run(command, env=environment, capture_output=True, check=True)


@pytest.mark.parametrize(
    ("version", "limits"),
    [
        pytest.param(
            16,
            {"ROTATE_SECONDS": "2", "ROTATE_BYTES": "1000000000"},
            id="16, files by age",
            marks=pytest.mark.soak,
        ),
        pytest.param(18, {"ROTATE_SECONDS": "100000", "ROTATE_BYTES": "100000"}, id="18, files by size"),
    ],
)
def test_a_container_lands_everything(version: Version, limits: dict[str, str], tmp_path: Path) -> None:
    with shop_and_container(version, tmp_path, **limits) as (shop, container):
        set_up(shop)
        container.start()
        container.wait(lambda: bool(shop.slot("active")), "no receiver")
        assert container.is_healthy()
        for count in (1, 2):
            shop.work()
            container.wait_for_files(count)
        container.wait_for_text(shop.work())
        container.kill_receiver()
        container.wait(lambda: bool(shop.slot("active")), "no receiver after kill -9")
        container.wait_for_text(shop.work())

        shop.server.crash()
        assert not container.is_healthy()
        container.wait(lambda: "can't query the server" in container.log, "the watch does not report")
        shop.server.restart()
        container.wait_for_text(shop.work())

        container.wait_for_text(shop.work())
        container.stop()
        container.wait(lambda: not container.is_healthy(), "the watch misses no receiver")
        shop.work()
        container.start()
        container.wait(lambda: bool(shop.slot("active")), "no receiver after a restart")
        container.wait_for_text(shop.work())
        container.stop()
        shop.assert_is(replayed(container.files), tmp_path)
        assert missing_number([path.name for path in container.files]) is None


def test_a_container_whose_server_is_away_ends_cleanly(tmp_path: Path) -> None:
    """It lands what it has received, and starts without a server."""
    with shop_and_container(18, tmp_path, ROTATE_SECONDS="100000") as (shop, container):
        set_up(shop)
        container.start()
        shop.work()
        container.wait_for_files(1)
        container.wait_for_text(shop.work())
        shop.server.crash()
        container.stop()
        assert len(container.files) == 2
        container.start()
        container.wait(lambda: container.log.count("Is the server running") >= 2, "it gives up")
        shop.server.restart()
        container.wait_for_text(shop.work())
        container.stop()
        shop.assert_is(replayed(container.files), tmp_path)


@pytest.mark.soak
def test_a_container_follows_a_failover(tmp_path: Path) -> None:
    with shop_and_container(18, tmp_path, ROTATE_SECONDS="1") as (shop, container):
        set_up(shop, "--set=failover=true")
        with shop.connect() as primary:
            primary.execute("alter system set synchronized_standby_slots = 'standby'")
        standby = Standby(shop.server)
        with standby:
            with shop.connect() as primary:
                primary.execute("select pg_reload_conf()")
            both = (shop.server, standby)
            container.environment |= {
                "PGHOST": ",".join(str(server.folder) for server in both),
                "PGPORT": ",".join(str(server.port) for server in both),
                "PGTARGETSESSIONATTRS": "read-write",
            }
            container.start()
            shop.work()
            container.wait_for_files(1)
            ready = "select synced and not temporary and invalidation_reason is null from pg_replication_slots"

            def is_ready() -> bool:
                with standby.connect() as connection:
                    return (True,) in connection.execute(f"{ready} where slot_name = 'etl'".encode()).fetchall()

            container.wait(is_ready, "the standby's slot is not ready")
            shop.work()  # may or may not reach the standby in time
            shop.server.crash()
            standby.promote()
            with standby.connect() as promoted:
                promoted.execute("alter system reset synchronized_standby_slots")
                promoted.execute("select pg_reload_conf()")
            shop.server = standby
            container.wait_for_text(shop.work())
            container.wait(container.is_healthy, "the watch finds problems at the new primary")
            container.stop()
            shop.assert_is(replayed(container.files), tmp_path)
