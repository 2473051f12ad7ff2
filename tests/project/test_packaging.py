"""The release: the sdist, and the wheel built from it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from pgoutput_etl import __version__
from pgoutput_etl.spark.packages import SPARKS
from tests.project.test_readme import shell_environment
from tools import dist, matrix

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "pgoutput_etl" / "answers" / "page"
_DEMO = re.compile(
    r"<!-- demo commands -->\n```sh\n(.*?)```\n\n<!-- demo commands' output -->\n```text\n(.*?)```\n", re.DOTALL
)
_CHANGING = ("backfill", "maintain", "forget")  # in this order, after the others


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("packages")
    matrix.copy_repository(folder / "source")
    return matrix.build(folder / "source", folder)


def read_metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as files:
        [name] = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(files.read(name).decode())


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_the_wheel_has_the_package_and_nothing_else(packages: tuple[Path, Path]) -> None:
    sdist, wheel = packages
    sources = (path.relative_to(ROOT).as_posix() for path in (ROOT / "pgoutput_etl").rglob("*.py"))
    with ZipFile(wheel) as files:
        contents = {name for name in files.namelist() if ".dist-info/" not in name}
        data = {name for name in contents if ".data/data/share/pgoutput_etl/" in name}
        [entry] = [name for name in files.namelist() if name.endswith("entry_points.txt")]
        assert "pgoutput-etl = pgoutput_etl.cli:main" in files.read(entry).decode()
        assert [name for name in files.namelist() if name.endswith("/licenses/LICENSE")]
    names = contents - data
    shipped = [*(ROOT / "conf/landing").glob("*.sql"), *(ROOT / "notebooks/data/shop").iterdir()]
    assert {tuple(PurePosixPath(name).parts[-2:]) for name in data} == {p.parts[-2:] for p in shipped}
    assert names == {
        *sources,
        "pgoutput_etl/py.typed",
        "pgoutput_etl/config/schema.json",
        "pgoutput_etl/spark/log4j2.properties",
        *(f"pgoutput_etl/answers/page/{path.name}" for path in PAGE.glob("*") if path.suffix in {".css", ".j2"}),
    }
    with tarfile.open(sdist) as archive:
        assert names <= {PurePosixPath(*PurePosixPath(name).parts[1:]).as_posix() for name in archive.getnames()}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_the_metadata_of_the_wheel(packages: tuple[Path, Path]) -> None:
    metadata = read_metadata(packages[1])
    assert (metadata["Name"], metadata["Version"]) == ("pgoutput-etl", __version__)
    assert f"## [{__version__}] - 20" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert str(metadata.get_payload()).startswith("# pgoutput_etl")


def test_published_packages_have_addresses_and_links_that_hold(tmp_path: Path) -> None:
    for name in ("README.md", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    dist.add_addresses(tmp_path, "https://example.org/etl")
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)", readme)
    assert all(target.startswith("https://") for target in targets)
    own = [target.partition(f"/v{__version__}/")[2] for target in targets if target.startswith("https://example.org/")]
    assert len(own) > 20
    assert [path for path in own if not (ROOT / path).exists()] == []
    assert f"](https://example.org/etl/raw/v{__version__}/docs/img/demo.svg)" in readme
    settings = (tmp_path / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.urls]\nHomepage = "https://example.org/etl"\n' in settings
    assert f'"https://example.org/etl/blob/v{__version__}/CHANGELOG.md"' in settings


@dataclass(frozen=True, slots=True)
class Shell:
    """In an environment that has only the wheel, and sees the dependencies of this one."""

    folder: Path

    def typed(self, commands: str) -> str:
        path = f"{self.folder / 'env' / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euc", commands],
            cwd=self.folder,
            env={**shell_environment(), "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def shell(packages: tuple[Path, Path], tmp_path: Path) -> Shell:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(packages[1])], check=True)
    [own] = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return Shell(tmp_path)


@pytest.mark.spark
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_the_demo_runs_from_the_wheel_without_a_clone(shell: Shell) -> None:
    said = shell.typed("pgoutput-etl demo --log-format json 2>log.jsonl").splitlines()
    log = [json.loads(line) for line in (shell.folder / "log.jsonl").read_text().splitlines()]
    assert {(line["level"], line["logger"]) for line in log} >= {("INFO", "pgoutput_etl.jobs")}
    assert any(line["message"].endswith("writing the ledger") for line in log)
    assert "All tables are consistent through LSN 0/18D02B0." in said
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [(commands, output)] = _DEMO.findall(readme)
    for line, command in zip(said[-2:], commands.splitlines(), strict=True):
        assert command.startswith(line.strip()), "the demo names the commands that the README has"
    assert shell.typed(commands) == output


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_pages_show_what_their_commands_print_after_the_demo(shell: Shell) -> None:
    shell.typed("pgoutput-etl demo")
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
    shown = {page: _DEMO.findall(text) for page, text in texts.items()}
    pages = sorted(page for page, blocks in shown.items() if blocks and page not in _CHANGING)
    counts = {page: text.count("<!-- demo commands -->") for page, text in texts.items()}
    assert {page: len(blocks) for page, blocks in shown.items()} == counts
    assert all(counts[page] for page in _CHANGING)
    for page in (*pages, *_CHANGING):
        for commands, output in shown[page]:
            expected = ".*".join(map(re.escape, output.split("…")))
            assert re.fullmatch(expected, shell.typed(commands), re.DOTALL), f"{page}: {commands}"


def test_the_matrix_has_every_supported_spark() -> None:
    """And there is a Delta Lake for each."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [pyspark] = re.findall(r'^    "(pyspark>=[^"]+)"', text, re.MULTILINE)
    supported: SpecifierSet = Requirement(pyspark).specifier
    minors = [f"{major}.{minor}" for major in (3, 4, 5) for minor in range(10)]
    assert tuple(minor for minor in minors if supported.contains(f"{minor}.0")) == matrix.SPARKS
    assert matrix.SPARKS == SPARKS


def test_the_matrix_changes_only_sparks_pinned_version() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    before, after = lock.splitlines(), matrix.pins("4.1", lock).splitlines()
    assert [line for line in after if line not in before] == ["pyspark[connect]==4.1.*"]
    assert len(after) == len(before)
    with pytest.raises(SystemExit):
        matrix.pins("4.1", "numpy==1")
