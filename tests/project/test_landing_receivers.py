"""conf/landing/rotate.sh never lands a file that a receiver may still write to, and never signals another process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.servers.landing_machine import CONF

# Appends to its --file as pg_recvlogical does: through one open file, which SIGHUP replaces.
_RECEIVER = """#!{python}
import signal, sys, time
[name] = [argument.removeprefix("--file=") for argument in sys.argv if argument.startswith("--file=")]
signal.signal(signal.SIGHUP, lambda *_: reopen())
def reopen():
    global file
    file.close()
    file = open(name, "ab", 0)
file = open(name, "ab", 0)
while True:
    file.write(b"changes")
    time.sleep(0.05)
"""
NEW_NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")

NAMESPACES = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*NEW_NAMESPACE, "true"], check=False, capture_output=True).returncode != 0,
    reason="no PID namespace can be created",
)


class Folder:
    """The state of a source, and a stand-in for pg_recvlogical."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.state.mkdir()
        programs = folder / "bin"
        programs.mkdir()
        self.receiver = programs / "pg_recvlogical"
        self.receiver.write_text(_RECEIVER.format(python=sys.executable))
        self.receiver.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PGDATABASE": "shop",
            "SLOT": "etl",
            "PUBLICATION": "etl",
            "PGOUTPUT": "",
            "ROTATE_SECONDS": "0",
            "ROTATE_PATIENCE": "2",
            "COMPRESS": "none",
        }

    @property
    def landed(self) -> list[str]:
        return sorted(path.name for path in (self.state / "landed").iterdir())

    def make_flock_impatient(self) -> None:
        """`flock --timeout` waits a tenth of a second, however many are asked for."""
        flock = self.receiver.with_name("flock")
        real = f'exec {shutil.which("flock")} --timeout 0.1 "${{@:3}}"'
        flock.write_text(f"#!/bin/bash\n[[ $1 == --timeout && $2 -gt 0 ]] || exit 64\n{real}\n")
        flock.chmod(0o755)

    @contextmanager
    def running(self, *command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL)
        try:
            wait(lambda: (self.state / "current").exists() and (self.state / "current").stat().st_size > 0)
            yield process
        finally:
            process.kill()
            process.wait(10)

    def receiving(self, *before: str) -> tuple[str | Path, ...]:
        return (*before, CONF / "receive.sh", "shop", self.state)

    def rotate(self) -> subprocess.CompletedProcess[str]:
        command = [str(CONF / "rotate.sh"), "shop", str(self.state)]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def shop(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def wait(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_running_receiver_opens_a_new_file(shop: Folder) -> None:
    with shop.running(*shop.receiving()) as receiver:
        done = shop.rotate()
        assert (done.returncode, done.stderr) == (0, "")
        wait((shop.state / "current").exists)
        assert receiver.poll() is None
    assert shop.landed == ["shop-0000001.bin"]


def test_a_killed_receivers_file_is_landed(shop: Folder) -> None:
    with shop.running(*shop.receiving()) as receiver:
        receiver.kill()
        receiver.wait(10)
    done = shop.rotate()
    assert (done.returncode, done.stderr) == (0, "")
    assert shop.landed == ["shop-0000001.bin"]


@pytest.mark.parametrize("waiting", ["pg_recvlogical", "receive.sh"])
def test_a_receiver_that_waits_for_its_server_does_not_block_landing(shop: Folder, waiting: str) -> None:
    """It has a lock, but has not opened a file since it started."""
    (shop.state / "current").write_bytes(b"changes")
    shop.receiver.write_text("#!/bin/bash\nwhile :; do sleep 0.1; done\n")
    (shop.receiver.parent / "receive.sh").symlink_to(shop.receiver)
    with shop.running("flock", "--no-fork", shop.state / "receiver.lock", shop.receiver.parent / waiting) as process:
        wait(lambda: Path(f"/proc/{process.pid}/comm").read_text() == f"{waiting}\n")
        done = shop.rotate()
        assert (done.returncode, done.stderr) == (0, "")
    assert shop.landed == ["shop-0000001.bin"]


def test_a_receiver_started_by_hand_is_found(shop: Folder) -> None:
    """It holds no lock; that it has the file open is enough."""
    with shop.running(shop.receiver, f"--file={shop.state / 'current'}"):
        done = shop.rotate()
        assert (done.returncode, done.stderr) == (0, "")
    assert shop.landed == ["shop-0000001.bin"]


def test_without_receive_sh_no_file_is_taken_for_complete(shop: Folder) -> None:
    (shop.state / "current").write_bytes(b"changes")
    for _ in range(2):
        done = shop.rotate()
        assert done.returncode == 1
        assert "can't tell whether a receiver writes to" in done.stderr
    assert shop.landed == []
    with shop.running(*shop.receiving()):
        assert shop.rotate().returncode == 0
    assert shop.landed == ["shop-0000001.bin"]
    assert (shop.state / "landed" / "shop-0000001.bin").read_bytes() == b"changes"


@NAMESPACES
def test_a_receiver_in_another_container_blocks_landing(shop: Folder) -> None:
    with shop.running(*shop.receiving(*NEW_NAMESPACE)):
        # What is visible from outside is hidden from a rotation in a namespace of its own.
        other = subprocess.run(
            [*NEW_NAMESPACE, str(CONF / "rotate.sh"), "shop", str(shop.state)],
            env=shop.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert other.returncode == 1
        assert "it runs in another container, or as another user" in other.stderr
        assert shop.landed == []
        size = (shop.state / "renamed").stat().st_size
        wait(lambda: (shop.state / "renamed").stat().st_size > size)
        assert shop.rotate().returncode == 0, "from here, the receiver is visible"
    assert shop.landed == ["shop-0000001.bin"]


def test_a_stopped_receiver_keeps_its_file(shop: Folder) -> None:
    with shop.running(*shop.receiving()) as receiver:
        receiver.send_signal(signal.SIGSTOP)
        done = shop.rotate()
        assert "the receiver has not opened a new file" in done.stderr
        assert shop.landed == []
        receiver.send_signal(signal.SIGCONT)
        assert shop.rotate().returncode == 0
    assert shop.landed == ["shop-0000001.bin"]


def test_another_process_with_the_file_is_not_signaled(shop: Folder) -> None:
    """Such as a backup that reads it; SIGHUP would end it."""
    shop.state.joinpath("receiver.lock").touch()
    shop.state.joinpath("current").write_bytes(b"changes")
    with (
        (shop.state / "current").open("rb") as file,
        subprocess.Popen(["sleep", "60"], stdin=file) as reader,
    ):
        done = shop.rotate()
        assert (done.returncode, done.stderr) == (0, "")
        assert reader.poll() is None
        reader.kill()
    assert shop.landed == ["shop-0000001.bin"]


def test_only_one_receiver_writes(shop: Folder) -> None:
    with shop.running(*shop.receiving()):
        shop.make_flock_impatient()
        command = [str(part) for part in shop.receiving()]
        second = subprocess.run(command, env=shop.environment, capture_output=True, text=True, check=False, timeout=60)
    assert second.returncode == 75
    assert "another receiver writes to" in second.stderr


def test_the_receiver_confirms_as_the_guide_says(shop: Folder) -> None:
    """A status confirms what was synced."""
    shop.receiver.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" >"{shop.state}/arguments"\n')
    subprocess.run(shop.receiving(), env=shop.environment, check=True)
    arguments = (shop.state / "arguments").read_text().splitlines()
    guide = (CONF.parents[1] / "docs" / "landing.md").read_text()
    [seconds] = re.findall(r"Every (\d+) seconds, `pg_recvlogical` syncs its file \(`--fsync-interval`\)", guide)
    assert {f"--fsync-interval={seconds}", f"--status-interval={seconds}"} <= set(arguments)
    assert f"--file={shop.state}/current" in arguments


@NAMESPACES
def test_the_containers_first_process_restarts_the_receiver_and_ends_cleanly(shop: Folder) -> None:
    """Signals have no default action for process 1 of a PID namespace."""
    shop.environment |= {"RESTART_SECONDS": "0", "CHECK_SECONDS": "1000", "ROTATE_SECONDS": "1000"}
    shop.state.joinpath("rotated").touch()
    with shop.running(*NEW_NAMESPACE, CONF / "run.sh", "shop", shop.state) as outside:
        first = int(Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text())
        for pid in map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split()):
            if Path(f"/proc/{pid}/comm").read_text() == "pg_recvlogical\n":
                os.kill(pid, signal.SIGKILL)
        size = (shop.state / "current").stat().st_size
        wait(lambda: (shop.state / "current").stat().st_size > size)
        os.kill(first, signal.SIGTERM)
        assert outside.wait(30) == 0
    assert shop.landed == ["shop-0000001.bin"]
    assert not (shop.state / "current").exists()
