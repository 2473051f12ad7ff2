"""systemd's units run with few rights."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.servers.landing_machine import ROOT, unit

SERVICES = sorted((ROOT / "conf").rglob("*.service"))
MOST_EXPOSED = 3.0  # of 10
# They run programs that compile code while they run, or that the user names.
WRITE_CODE = {"pgoutput-etl@", "pgoutput-etl-follow@", "pg-landing@", "pg-landing-copy@"}

systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


@systemd
@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_a_service_is_hardly_exposed(path: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= MOST_EXPOSED


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_a_service_leaves_no_file_that_everybody_can_read(path: Path) -> None:
    settings = {key: value for _, key, value in unit(path)}
    assert (settings["UMask"], settings["LimitCORE"]) == ("0027", "0")
    if "spark-submit.sh" in settings["ExecStart"]:
        assert "--conf spark.hadoop.fs.permissions.umask-mode=027 " in settings["ExecStart"], "Hadoop's own is 022"


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_a_service_keeps_the_rights_that_it_needs(path: Path) -> None:
    settings = {key: value for _, key, value in unit(path)}
    assert ("MemoryDenyWriteExecute" in settings) == (path.stem not in WRITE_CODE)
    assert "PrivateNetwork" not in settings
    assert "PrivateUsers" not in settings, "rotate.sh signals the receiver"
    if path.stem == "pg-landing@":
        assert settings["KillMode"] == "mixed", "run.sh lets a rotation and an upload finish"
        assert "ProtectProc" not in settings, "rotate.sh finds the receiver in /proc"
