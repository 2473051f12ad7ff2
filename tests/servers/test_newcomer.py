"""A newcomer types the commands of the README and docs/getting-started.md in a new clone, with a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.project.test_readme import clone, readme_blocks
from tests.support.servers.postgres import Server
from tools import terminal_picture

ROOT = Path(__file__).parents[2]
_TYPED = re.compile(r"<!-- typed: (\w+) -->\n```sh\n(.*?)```\n", re.DOTALL)
_OUTPUT = re.compile(r"<!-- output: (\w+) -->\n```text\n(.*?)```\n", re.DOTALL)
_PAGES = "\n".join(
    (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in ("getting-started", "snapshot")
)
GUIDE, SHOWN = dict(_TYPED.findall(_PAGES)), dict(_OUTPUT.findall(_PAGES))
_TABLES = """
create table customers (id int primary key, name text, since date);
create table orders (id bigint generated always as identity primary key, customer int, total numeric(12, 2));
create table notes (line text);
alter table notes replica identity full;
insert into customers select i, 'customer ' || i, date '2020-01-01' + i from generate_series(1, 200) i;
insert into orders (customer, total) select i % 200 + 1, i * 1.25 from generate_series(1, 1000) i;
insert into notes values ('a note');
"""
_NIGHT = """
insert into customers values ({night}000, 'a new one', current_date);
update orders set total = total + 1 where id % 7 = {night};
delete from orders where id % 50 = {night};
insert into notes values ('a note of night {night}');
"""

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.soak]


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Types commands in a clone, with the environment that the guide asks for."""

    clone: Path
    environment: dict[str, str]

    def types(self, commands: str) -> str:
        """Returns standard output. Standard error has only progress and messages of PostgreSQL's programs."""
        script = ["bash", "-euo", "pipefail", "-c", commands]
        done = subprocess.run(script, cwd=self.clone, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        assert not re.findall(r"Traceback|\b(?:WARN|ERROR)\b|::", done.stderr), done.stderr
        return done.stdout


@pytest.fixture
def shop() -> Iterator[Server]:
    with Server(18) as server:
        server.psql("create database shop")
        server.database = "shop"
        server.psql(_TABLES)
        yield server


@pytest.fixture
def newcomer(tmp_path: Path, shop: Server) -> Newcomer:
    """`python` has no packages, as on a fresh machine."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").write_text(f'#!/bin/sh\nexec "{Path(sys.executable).resolve()}" -I -S "$@"\n')
    (programs / "python").chmod(0o755)
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME", "LANG", "USER") if name in os.environ}
    server = {"PGHOST": "127.0.0.1", "PGPORT": str(shop.port), "PGUSER": "postgres"}
    path = f"{programs}:{shop.programs}:{os.environ['PATH']}"
    return Newcomer(clone(tmp_path / "clone"), {**kept, **server, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"})


def test_from_a_clone_to_nightly_runs(newcomer: Newcomer, shop: Server) -> None:
    (quick_start,) = readme_blocks("sh")
    shown = terminal_picture.shown((ROOT / "README.md").read_text(encoding="utf-8"))
    assert newcomer.types(quick_start).startswith(shown)
    assert newcomer.types(GUIDE["again"]).startswith("Nothing new in the landing folder of demo.")

    newcomer.types(GUIDE["slot"])
    shop.psql(_NIGHT.format(night=1))
    newcomer.types(GUIDE["archive"])
    assert newcomer.types(GUIDE["init"]).startswith("Wrote conf/shop.yaml: 3 tables.")
    checked_and_loaded = newcomer.types(GUIDE["snapshot"])
    assert_shown("check", checked_and_loaded)
    assert_shown("snapshot", checked_and_loaded)
    for night in (2, 3):
        shop.psql(_NIGHT.format(night=night))
        newcomer.types(GUIDE["archive"])
        output = newcomer.types(GUIDE["night"])
        assert f"Batch {night} of shop: " in output
        assert "shop: nothing is held or in quarantine." in output
        if night == 2:
            assert_shown("night", output)
    assert "<svg" in (newcomer.clone / "status.html").read_text(encoding="utf-8")
    assert_shown("verify", newcomer.types(GUIDE["verify"]))


def assert_shown(name: str, output: str) -> None:
    """A page shows this output, with "…" for what differs each time."""
    expected = ".*".join(map(re.escape, SHOWN[name].split("…")))
    assert re.fullmatch(expected, output, re.DOTALL), f"{SHOWN[name]}\n{output}"
