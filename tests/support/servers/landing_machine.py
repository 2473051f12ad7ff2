"""A machine on which conf/landing is installed, below a folder: its units' own commands are run, without systemd."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pgoutput_etl.replay.mirror import Replay
from tests.support.servers.postgres import Server

ROOT = Path(__file__).parents[3]
CONF = ROOT / "conf" / "landing"
SOURCE = "shop"
_DEADLINE = 90.0  # seconds

# systemctl and sudo, as far as a script or a guide needs them: what is asked for is noted.
_SYSTEMCTL = """#!/bin/sh
echo "$*" >>"{folder}/systemctl.log"
case "$1" in show) cat "{folder}/mainpid" 2>/dev/null || echo 0 ;; esac
"""
_SUDO = '#!/bin/sh\nexec "$@"\n'

Unit = list[tuple[str, str, str]]


def unit(path: Path) -> Unit:
    """Section, key and value of each setting, in order; lines that go on are put together. As systemd.syntax(7)."""
    found, section = [], ""
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and line[0] not in "#;":
            key, equals, value = line.partition("=")
            assert section, f"{path.name}: {line} is in no section"
            assert equals, f"{path.name}: {line} has no ="
            found.append((section, key, value.strip()))
    return found


def settings(text: str) -> dict[str, str]:
    """An EnvironmentFile's."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    pairs = (line.partition("=") for line in lines)
    return {name: "".join(shlex.split(value)) if value else "" for name, _, value in pairs}


def words(command: str, environment: Mapping[str, str]) -> list[str]:
    """A command line's: ${NAME} is part of a word, $NAME alone is as many words as its value has."""
    found: list[str] = []
    for word in shlex.split(command):
        if re.fullmatch(r"\$\w+", word):
            found += environment.get(word[1:], "").split()
        else:
            found.append(re.sub(r"\$\{(\w+)\}", lambda name: environment.get(name[1], ""), word))
    return found


class Machine:
    """conf/landing, installed below `folder` for the database `shop` of `server`."""

    def __init__(self, server: Server, folder: Path, **changed: str) -> None:
        self.root = folder
        self.state = folder / "var/lib/pg-landing" / SOURCE
        self.landed = self.state / "landed"
        self.state.mkdir(parents=True)
        stubs = folder / "stubs"
        stubs.mkdir()
        for name, text in (("systemctl", _SYSTEMCTL.format(folder=folder)), ("sudo", _SUDO)):
            (stubs / name).write_text(text)
            (stubs / name).chmod(0o755)
        self._stubs = stubs
        self._server = {"PGHOST": str(server.folder), "PGPORT": str(server.port)}
        self._path = f"{self._stubs}:{server.programs}:{os.environ['PATH']}"
        self.run_shell("sudo conf/landing/install.sh")
        here = {"PGPASSFILE": str(folder / "none"), "COMPRESS": "gzip", "LANDING": str(self.landed)}
        self._changed = {**here, **changed}
        self._receiver: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What systemd gives the units: the environment's file as it is installed, with this server in it."""
        said = settings((self.root / f"etc/pg-landing/{SOURCE}.env").read_text())
        return {**said, **self._server, **self._changed, "PATH": self._path}

    def set(self, **changed: str) -> None:
        self._changed |= changed

    def command(self, name: str) -> list[str]:
        [text] = [value for _, key, value in unit(self.root / "etc/systemd/system" / name) if key == "ExecStart"]
        text = (
            text.replace("%i", SOURCE)
            .replace("%S", f"{self.root}/var/lib")
            .replace("/usr/local", f"{self.root}/usr/local")
        )
        return words(text, self.environment)

    def run(self, name: str, *, fails: bool = False) -> subprocess.CompletedProcess[str]:
        """What starting the unit does."""
        done = subprocess.run(
            self.command(name), env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done

    def run_shell(self, script: str) -> str:
        """A block of the guide, as it is; in the repository, as root, with the folders of this machine."""
        script = re.sub(r"(?<![\w.])/(etc|var/lib)/", rf"{self.root}/\1/", script)
        environment = {"PATH": self._path, "DESTDIR": str(self.root), "PGUSER": "postgres", **self._server}
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # The receiver

    def start(self, status_interval: str = "10") -> None:
        command = [
            word.replace("interval=10", f"interval={status_interval}") for word in self.command("pg-landing@.service")
        ]
        with (self.root / "receiver.log").open("ab") as log:
            self._receiver = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        (self.root / "mainpid").write_text(f"{self._receiver.pid}\n")
        self.wait((self.state / "current").exists, "the receiver opens no file")

    def end(self, how: signal.Signals) -> None:
        if self._receiver is not None:
            self._receiver.send_signal(how)
            self._receiver.wait(20)
            (self.root / "mainpid").write_text("0\n")
            self._receiver = None

    def pause(self) -> None:
        """It can't answer a signal, as while it waits for its server."""
        assert self._receiver is not None
        self._receiver.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._receiver is not None
        self._receiver.send_signal(signal.SIGCONT)

    def received(self, text: bytes) -> None:
        """Returns when it stands in a file of the receiver."""
        files = [self.state / "current", self.state / "renamed"]
        self.wait(
            lambda: any(text in file.read_bytes() for file in files if file.exists()), f"{text!r} is not received"
        )

    def wait(self, happened: Callable[[], bool], why_not: str) -> None:
        until = time.monotonic() + _DEADLINE
        while not happened():
            log = self.root / "receiver.log"
            assert time.monotonic() < until, f"{why_not}: {log.read_text() if log.exists() else ''}"
            time.sleep(0.01)

    @property
    def files(self) -> list[Path]:
        """What a job would read."""
        return sorted(path for path in self.landed.iterdir() if path.name[0] not in "._")


def replayed(files: Iterable[Path]) -> Replay:
    """What a job would make of the files, in memory."""
    replay = Replay(salvages=True)
    for file in files:
        replay.add_file(str(file), file.read_bytes())
    return replay
