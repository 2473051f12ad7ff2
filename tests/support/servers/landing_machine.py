"""A machine with conf/landing installed below a folder. Runs the commands of its units without systemd."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pgoutput_etl.replay.mirror import Replay
from tests.support.servers.postgres import Server

ROOT = Path(__file__).parents[3]
CONF = ROOT / "conf" / "landing"
SOURCE = "shop"
_DEADLINE = 90.0  # seconds

# Stubs of systemctl and sudo for the guide. systemctl logs its arguments.
_SYSTEMCTL = '#!/bin/sh\necho "$*" >>"{folder}/systemctl.log"\n'
_SUDO = '#!/bin/sh\nif [ "$1" = -u ]; then shift 2; fi\nexec "$@"\n'

Unit = list[tuple[str, str, str]]


def unit(path: Path) -> Unit:
    """Section, key, and value of each setting, in order, with continued lines joined. See systemd.syntax(7)."""
    unit_settings, section = [], ""
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and line[0] not in "#;":
            key, equals, value = line.partition("=")
            assert section, f"{path.name}: {line} is in no section"
            assert equals, f"{path.name}: {line} has no ="
            unit_settings.append((section, key, value.strip()))
    return unit_settings


def settings(text: str) -> dict[str, str]:
    """The variables of an EnvironmentFile."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    pairs = (line.partition("=") for line in lines)
    return {name: "".join(shlex.split(value)) if value else "" for name, _, value in pairs}


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
        local = {"PGPASSFILE": str(folder / "none"), "COMPRESS": "gzip", "LANDING": str(self.landed)}
        self._changed = {**local, **changed}
        self._receiver: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The units' environment: the installed file, changed for this server."""
        installed = settings((self.root / f"etc/pg-landing/{SOURCE}.env").read_text())
        return {**installed, **self._server, **self._changed, "PATH": self._path}

    def set(self, **changed: str) -> None:
        self._changed |= changed

    def command(self, name: str) -> list[str]:
        [text] = [value for _, key, value in unit(self.root / "etc/systemd/system" / name) if key == "ExecStart"]
        text = (
            text.replace("%i", SOURCE)
            .replace("%S", f"{self.root}/var/lib")
            .replace("/usr/local", f"{self.root}/usr/local")
        )
        return text.split()

    def script(self, name: str) -> list[str]:
        """The command of an installed script."""
        return [f"{self.root}/usr/local/lib/pg-landing/{name}", SOURCE, str(self.state)]

    def rotate(self) -> subprocess.CompletedProcess[str]:
        """As run.sh does every minute."""
        return self._done(self.script("rotate.sh"))

    def run(self, name: str, *, fails: bool = False) -> subprocess.CompletedProcess[str]:
        """Runs the unit's command."""
        return self._done(self.command(name), fails)

    def _done(self, command: list[str], fails: bool = False) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done

    def run_shell(self, script: str) -> str:
        """Runs a block of the guide in the repository, as if by root, with the folders of this machine."""
        environment = {"DESTDIR": str(self.root), "PGUSER": "postgres", **self._server}
        done: subprocess.CompletedProcess[str] = subprocess.run(
            **self.shell(script, environment), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def shell(self, script: str, environment: Mapping[str, str]) -> dict[str, Any]:
        """Arguments of subprocess to run a script with the folders and programs of this machine."""
        command = ["bash", "-euo", "pipefail", "-c", self.here(script)]
        return {"args": command, "cwd": ROOT, "env": {"PATH": self._path, **environment}}

    def here(self, text: str) -> str:
        """The text with the folders of this machine, whose user pg-landing is the tests' user."""
        text = re.sub(r"(?<![\w.])/(etc|var/lib|usr/local)/", rf"{self.root}/\1/", text)
        return text.replace(" -o pg-landing", "")

    # The receiver

    def start(self, unit: str | None = None) -> None:
        """Starts a receiver without rotations, or the unit. Neither ignores SIGINT, whatever the tests do."""
        command = self.script("receive.sh") if unit is None else self.command(unit)
        with (self.root / "receiver.log").open("ab") as log:
            self._receiver = subprocess.Popen(
                ["env", "--default-signal=INT", *command],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait((self.state / "current").exists, "the receiver has opened no file")

    def end(self, how: signal.Signals) -> None:
        """SIGKILL ends all processes; another signal is for the first one, as KillMode=mixed."""
        if self._receiver is not None:
            if how is signal.SIGKILL:
                os.killpg(self._receiver.pid, how)
            self._receiver.send_signal(how)
            self._receiver.wait(40)
            self._receiver = None

    def pause(self) -> None:
        """Stops the receiver, so that it can't answer a signal, as while it waits for its server."""
        assert self._receiver is not None
        self._receiver.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._receiver is not None
        self._receiver.send_signal(signal.SIGCONT)

    def wait_for_text(self, text: bytes) -> None:
        """Waits until a file of the receiver contains the text."""
        files = [self.state / "current", self.state / "renamed"]
        self.wait(
            lambda: any(text in file.read_bytes() for file in files if file.exists()), f"{text!r} was not received"
        )

    def wait(self, happened: Callable[[], bool], why_not: str) -> None:
        until = time.monotonic() + _DEADLINE
        while not happened():
            log = self.root / "receiver.log"
            assert time.monotonic() < until, f"{why_not}: {log.read_text() if log.exists() else ''}"
            time.sleep(0.01)

    @property
    def files(self) -> list[Path]:
        """The files that a job would read."""
        return sorted(path for path in self.landed.iterdir() if path.name[0] not in "._")


def replayed(files: Iterable[Path]) -> Replay:
    """Replays the files in memory, as a job would read them."""
    replay = Replay(salvages=True)
    for file in files:
        replay.add_file(str(file), file.read_bytes())
    return replay
