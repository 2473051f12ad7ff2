"""The pinned dependencies have no known vulnerability."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AUDIT = "pip-audit==2.10.1"  # in an environment of its own, as its dependencies are not those of this package


@pytest.mark.soak
@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-docs.lock"])
def test_no_pinned_version_has_a_known_vulnerability(lock: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    subprocess.run([tmp_path / "bin" / "pip", "install", "-q", AUDIT], check=True)
    options = ("--no-deps", "--disable-pip", "--format=json", "--progress-spinner=off")
    command = [str(tmp_path / "bin" / "pip-audit"), f"--requirement={ROOT / lock}", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if not done.stdout:
        pytest.skip("PyPI's database of vulnerabilities does not answer")
    found = json.loads(done.stdout)["dependencies"]
    audited = [dependency for dependency in found if "vulns" in dependency]
    if not audited:
        pytest.skip("PyPI's database of vulnerabilities knows none of the packages: a mirror may not have it")
    assert [(d["name"], d["version"], [v["id"] for v in d["vulns"]]) for d in audited if d["vulns"]] == []
    assert len(audited) == len(found), [d["name"] for d in found if "vulns" not in d]
