"""The scripts of conf/landing land every received byte in order, even if killed between any two of their steps."""

from __future__ import annotations

import bz2
import gzip
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from pgoutput_etl.landing.sequence_gaps import missing_number
from tests.support.servers.landing_machine import CONF, unit

SCRIPTS = sorted(CONF.rglob("*.sh"))
SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
UNITS = sorted([*CONF.glob("*.service"), *CONF.glob("*.timer")])
STEPS = ("mv", "rm", "mkdir", "mktemp", "sync", "touch", "gzip", "upload")

# Counts the steps of a run, and kills the script with kill -9 after step DIES_AFTER.
_STEP = """#!/bin/bash
n=$(($(cat "$STEPS_DONE" 2>/dev/null || echo 0) + 1))
echo "$n" >"$STEPS_DONE"
{does}
status=$?
if [[ $n == "$DIES_AFTER" ]]; then kill -9 $PPID; fi
exit $status
"""


@dataclass
class Landing:
    """rotate.sh on the folder of a receiver that has ended. syncs: false if `sync`, still a step, writes no disk."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    syncs: bool = True

    def __post_init__(self) -> None:
        self.state, self.uploaded = self.folder / "state", self.folder / "uploaded"
        for path in (self.state, self.uploaded, self.folder / "bin"):
            path.mkdir(parents=True)
        (self.state / "receiver.lock").touch()
        for name in STEPS:
            does = f'cp "$1" "{self.uploaded}"' if name == "upload" else f'{shutil.which(name)} "$@"'
            if name == "sync" and not self.syncs:
                does = '[[ -e "$1" && -e "${2:-$1}" ]]'
            self._put(name, _STEP.replace("{does}", does))

    def _put(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def receive(self, text: bytes) -> None:
        with (self.state / "current").open("ab") as file:
            file.write(text)

    def rotate(self, **changed: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "steps").unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "STEPS_DONE": str(self.folder / "steps"),
            "ROTATE_SECONDS": "0",
            "COMPRESS": "gzip",
            "DIES_AFTER": "",
            **self.environment,
            **changed,
        }
        command = [str(CONF / "rotate.sh"), "shop", str(self.state)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

    @property
    def steps(self) -> int:
        return int((self.folder / "steps").read_text())

    @property
    def landed(self) -> list[Path]:
        folder = self.uploaded if self.environment.get("UPLOAD") else self.state / "landed"
        return sorted(path for path in folder.iterdir() if path.name[0] != ".")


def landing(folder: Path, uploads: bool, syncs: bool = True) -> Landing:
    return Landing(folder, {"UPLOAD": str(folder / "bin" / "upload")} if uploads else {}, syncs)


def test_a_kill_after_any_step_loses_and_reorders_nothing(tmp_path: Path) -> None:
    """A killed process, unlike a machine without power, loses nothing that was not synced."""
    uninterrupted = landing(tmp_path / "whole", uploads=True)
    uninterrupted.receive(b"first")
    assert uninterrupted.rotate().returncode == 0
    assert uninterrupted.steps > 10
    for step in range(1, uninterrupted.steps + 1):
        killed = landing(tmp_path / str(step), uploads=True, syncs=False)
        killed.receive(b"first ")
        assert killed.rotate(DIES_AFTER=str(step)).returncode != 0
        killed.receive(b"second ")
        done = killed.rotate()
        assert done.returncode == 0, done.stderr
        killed.receive(b"third")
        assert killed.rotate().returncode == 0
        names = [path.name for path in killed.landed]
        assert b"".join(gzip.decompress(path.read_bytes()) for path in killed.landed) == b"first second third"
        assert names == [f"shop-{number:07}.bin.gz" for number in range(1, len(names) + 1)]
        assert missing_number(names) is None
        remaining = sorted(path.name for path in killed.state.rglob("*") if path.is_file())
        assert remaining == ["last", "lock", "receiver.lock", "rotated"], "a killed run's partial files are removed"


def test_later_files_wait_for_a_failed_upload(tmp_path: Path) -> None:
    """A job stops at a missing number."""
    refusing = tmp_path / "refusing"
    refusing.write_text("#!/bin/sh\nexit 1\n")
    refusing.chmod(0o755)
    shop = landing(tmp_path / "shop", uploads=True)
    for text in (b"first ", b"second "):
        shop.receive(text)
        assert shop.rotate(UPLOAD=str(refusing)).returncode != 0
    assert shop.landed == []
    shop.receive(b"third")
    assert shop.rotate().returncode == 0
    assert [gzip.decompress(path.read_bytes()) for path in shop.landed] == [b"first ", b"second ", b"third"]
    assert list((shop.state / "landed").iterdir()) == []


def test_a_file_is_landed_when_it_is_large_or_old(tmp_path: Path) -> None:
    shop = landing(tmp_path, uploads=False)
    shop.receive(b"")
    assert shop.rotate().returncode == 0
    assert shop.landed == [], "nothing was received"
    shop.receive(b"first")
    shop.rotate(ROTATE_SECONDS="900")
    assert len(shop.landed) == 1, "the first file lands at once"
    shop.receive(b"second")
    shop.rotate(ROTATE_SECONDS="900")
    assert len(shop.landed) == 1
    shop.rotate(ROTATE_SECONDS="900", ROTATE_BYTES="6")
    assert len(shop.landed) == 2
    shop.receive(b"third")
    long_ago = 1_700_000_000
    os.utime(shop.state / "rotated", (long_ago, long_ago))
    shop.rotate(ROTATE_SECONDS="900")
    assert len(shop.landed) == 3


@pytest.mark.parametrize("compress", ["none", "gzip", "zstd", "lz4", "bzip2"])
def test_a_files_suffix_is_that_of_its_compression(tmp_path: Path, compress: str) -> None:
    if compress != "none" and shutil.which(compress) is None:
        pytest.skip(f"{compress} is not installed")
    shop = landing(tmp_path, uploads=False)
    shop.receive(b"received")
    assert shop.rotate(COMPRESS=compress).returncode == 0
    [path] = shop.landed
    match path.suffix:
        case ".gz":
            content = gzip.decompress(path.read_bytes())
        case ".bz2":
            content = bz2.decompress(path.read_bytes())
        case ".zst" | ".lz4":
            content = pa.input_stream(str(path)).read()
        case suffix:
            assert suffix == ".bin"
            content = path.read_bytes()
    assert content == b"received"


def test_an_unknown_compression_is_refused(tmp_path: Path) -> None:
    shop = landing(tmp_path, uploads=False)
    shop.receive(b"received")
    done = shop.rotate(COMPRESS="rar")
    assert done.returncode != 0
    assert "expected gzip, zstd, lz4, bzip2 or none" in done.stderr
    assert shop.rotate().returncode == 0
    assert len(shop.landed) == 1


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_bash(path: Path) -> None:
    assert subprocess.run(["bash", "-n", str(path)], check=False, capture_output=True).stderr == b""


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path: Path) -> None:
    done = subprocess.run([str(SHELLCHECK), "-x", str(path)], check=False, capture_output=True, text=True)
    assert done.stdout == ""


KNOWN = {
    "Unit": {"Description", "Documentation", "Wants", "After", "StartLimitIntervalSec"},
    "Service": {
        *("Type", "User", "StateDirectory", "StateDirectoryMode", "Environment", "EnvironmentFile"),
        *("ExecStart", "KillMode", "KillSignal"),
        *("Restart", "RestartSec", "TimeoutStartSec", "TimeoutStopSec"),
        *("UMask", "CapabilityBoundingSet", "LimitCORE", "LockPersonality", "MemoryDenyWriteExecute"),
        *("NoNewPrivileges", "PrivateDevices", "PrivateTmp", "ProtectClock", "ProtectControlGroups", "ProtectHome"),
        *("ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "ProtectProc"),
        *("ProtectSystem", "RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID"),
        *("SystemCallArchitectures", "SystemCallErrorNumber", "SystemCallFilter"),
    },
    "Timer": {"OnCalendar", "AccuracySec"},
    "Install": {"WantedBy"},
}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_have_only_settings_known_to_systemd(path: Path) -> None:
    unit_settings = unit(path)
    assert [(section, key) for section, key, _ in unit_settings if key not in KNOWN[section]] == []
    if path.suffix == ".timer":
        assert path.with_suffix(".service").exists()
        return
    [command] = [value for _, key, value in unit_settings if key == "ExecStart"]
    program, *_ = command.split()
    assert Path(program).is_absolute()
    assert (CONF / Path(program).name).exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        text = path.read_text().replace("/usr/local/lib/pg-landing", str(CONF))
        (tmp_path / path.name.replace("@", "@shop")).write_text(text)
    names = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names], check=False, capture_output=True, text=True
    )
    ours = [line for line in done.stderr.splitlines() if "pg-landing" in line]
    assert (done.returncode, ours) == (0, [])


# Hides the folders that an installation changes.
_MACHINE = """set -e
for folder in /etc /run /usr/local/lib /usr/lib/sysusers.d; do mkdir -p $folder; mount -t tmpfs none $folder; done
mkdir -p /run/systemd/system /etc/systemd/system/timers.target.wants
cd /etc/systemd/system
"""
_NAMESPACE = ("unshare", "--map-root-user", "--mount")
_MOUNT = (*_NAMESPACE, "mount", "-t", "tmpfs", "none", "/run")
MOUNTS = pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run(_MOUNT, check=False, capture_output=True).returncode != 0,
    reason="no mount namespace can be created",
)


def install(folder: Path, before: str) -> tuple[list[str], list[str], str]:
    """install.sh on a machine with systemd, after the commands `before`: the calls of systemd's programs, the units and
    links, and standard error."""
    programs, log = folder / "bin", folder / "log"
    programs.mkdir(exist_ok=True)
    log.write_text("")
    for name in ("systemctl", "systemd-sysusers"):
        program = programs / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>"{log}"\n')
        program.chmod(0o755)
    script = f"{_MACHINE}{before}\n{CONF / 'install.sh'}\nfind . -name 'pg-*' -printf '%f\\n'"
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    command = [*_NAMESPACE, "bash", "-c", script]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return log.read_text().splitlines(), sorted(done.stdout.splitlines()), done.stderr


@MOUNTS
def test_an_installation_ends_the_units_of_older_versions_and_keeps_the_watch(tmp_path: Path) -> None:
    units = sorted(path.name for path in UNITS)
    usual = ["systemd-sysusers pg-landing.conf", "systemctl daemon-reload"]
    assert install(tmp_path, "") == (usual, units, "")
    assert install(tmp_path, str(CONF / "install.sh"))[0] == [*usual, *usual], "it restarts nothing"
    older = """touch pg-landing-rotate@.service pg-landing-rotate@.timer
        ln -s ../pg-landing-rotate@.timer timers.target.wants/pg-landing-rotate@shop.timer
        ln -s ../pg-landing-watch@.timer timers.target.wants/pg-landing-watch@shop.timer
        mkdir pg-landing-rotate@shop.service.d"""
    calls, left, errors = install(tmp_path, older)
    assert calls == [
        "systemctl stop pg-landing-rotate@*.timer",
        *usual,
        "systemctl try-restart pg-landing@*.service",
    ], "until it is restarted, an older service only receives"
    assert left == sorted([*units, "pg-landing-rotate@shop.service.d", "pg-landing-watch@shop.timer"])
    assert "pg-landing-rotate@shop.service.d has no effect anymore: move its settings to pg-landing@" in errors
