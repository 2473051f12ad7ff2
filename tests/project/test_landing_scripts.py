"""conf/landing's scripts, killed between any two of their steps: every byte that was received is landed, in order."""

from __future__ import annotations

import bz2
import gzip
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from pgoutput_etl.landing.sequence_gaps import missing_number
from tests.support.servers.landing_machine import CONF, settings, unit, words

SCRIPTS = sorted(CONF.glob("*.sh"))
UNITS = sorted([*CONF.glob("*.service"), *CONF.glob("*.timer")])
STEPS = ("mv", "rm", "sync", "touch", "chmod", "gzip", "upload")

# Counts the steps of a run, and ends the script, as kill -9 does, after the one that is to be its last.
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
    """rotate.sh on a folder without a receiver: nobody writes to what is renamed."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state, self.uploaded = self.folder / "state", self.folder / "uploaded"
        for path in (self.state, self.uploaded, self.folder / "bin"):
            path.mkdir(parents=True)
        self._put("systemctl", "#!/bin/sh\necho 0\n")
        for name in STEPS:
            does = f'cp "$1" "{self.uploaded}"' if name == "upload" else f'{shutil.which(name)} "$@"'
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


def landing(folder: Path, uploads: bool) -> Landing:
    return Landing(folder, {"UPLOAD": str(folder / "bin" / "upload")} if uploads else {})


def test_killed_after_any_step_nothing_is_lost_or_out_of_order(tmp_path: Path) -> None:
    whole = landing(tmp_path / "whole", uploads=True)
    whole.receive(b"first")
    assert whole.rotate().returncode == 0
    assert whole.steps > 10
    for step in range(1, whole.steps + 1):
        killed = landing(tmp_path / str(step), uploads=True)
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
        left = sorted(path.name for path in killed.state.rglob("*") if path.is_file())
        assert left == ["last", "lock", "rotated"], "what an earlier run left half done is taken away"


def test_an_upload_that_fails_keeps_later_files_waiting(tmp_path: Path) -> None:
    """Whoever sees a number missing stops."""
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
    assert len(shop.landed) == 1, "the first one says that all works"
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
def test_compressions_are_read_by_their_names(tmp_path: Path, compress: str) -> None:
    if compress != "none" and shutil.which(compress) is None:
        pytest.skip(f"no {compress} here")
    shop = landing(tmp_path, uploads=False)
    shop.receive(b"received")
    assert shop.rotate(COMPRESS=compress).returncode == 0
    [path] = shop.landed
    match path.suffix:
        case ".gz":
            found = gzip.decompress(path.read_bytes())
        case ".bz2":
            found = bz2.decompress(path.read_bytes())
        case ".zst" | ".lz4":
            found = pa.input_stream(str(path)).read()
        case suffix:
            assert suffix == ".bin"
            found = path.read_bytes()
    assert found == b"received"


def test_a_compression_that_is_none_is_refused(tmp_path: Path) -> None:
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


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck here")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path: Path) -> None:
    done = subprocess.run(["shellcheck", "-x", str(path)], check=False, capture_output=True, text=True)
    assert done.stdout == ""


KNOWN = {
    "Unit": {"Description", "Documentation", "Wants", "After", "StartLimitIntervalSec"},
    "Service": {
        *("Type", "User", "StateDirectory", "StateDirectoryMode", "EnvironmentFile", "ExecStart", "KillSignal"),
        *("Restart", "RestartSec", "TimeoutStartSec", "Nice"),
        *("NoNewPrivileges", "PrivateTmp", "ProtectHome", "ProtectSystem"),
    },
    "Timer": {"OnCalendar", "AccuracySec"},
    "Install": {"WantedBy"},
}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_say_only_what_systemd_knows(path: Path) -> None:
    said = unit(path)
    assert [(section, key) for section, key, _ in said if key not in KNOWN[section]] == []
    if path.suffix == ".timer":
        assert path.with_suffix(".service").exists()
        return
    told = settings((CONF / "shop.env").read_text())
    [command] = [value for _, key, value in said if key == "ExecStart"]
    used = [name.strip("${}") for name in command.replace("$PGOUTPUT", "${PGOUTPUT}").split("$")[1:]]
    assert [name for name in used if name.partition("}")[0].strip("{") not in told] == []
    program, *_ = words(command, told)
    assert Path(program).is_absolute()
    assert program == "/usr/bin/env" or (CONF / Path(program).name).exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_itself_finds_nothing_wrong(tmp_path: Path) -> None:
    for path in UNITS:
        text = path.read_text().replace("/usr/local/lib/pg-landing", str(CONF))
        (tmp_path / path.name.replace("@", "@shop")).write_text(text)
    names = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names], check=False, capture_output=True, text=True
    )
    ours = [line for line in done.stderr.splitlines() if "pg-landing" in line]
    assert (done.returncode, ours) == (0, [])
