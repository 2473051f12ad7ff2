"""The README's commands and configuration work: the blocks after `<!-- tested -->`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pgoutput_etl.config.settings import load_config
from tests.support.captures import truth_tables
from tests.support.truth import read_csv
from tools import terminal_picture
from tools.matrix import copy_repository

ROOT = Path(__file__).parents[2]
_TESTED = re.compile(r"<!-- tested -->\n```(\w+)\n(.*?)```\n", re.DOTALL)
_ROW = re.compile(r"^│ (\S+) +│ +([0-9,]+) │", re.MULTILINE)


def readme_blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [block for name, block in _TESTED.findall(text) if name == language]


def clone(folder: Path) -> Path:
    """A clone of this repository that uses the running Python instead of the environment that `make` installs."""
    copy_repository(folder)
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (folder / ".venv" / ".installed").touch()
    return folder


def shell_environment() -> dict[str, str]:
    """The environment of a shell that runs neither in Spark nor, as the tests do, in `make`."""
    spark = {"SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT", "PYTHONPATH"}
    make = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    return {key: value for key, value in os.environ.items() if key not in spark | make}


def truth_counts() -> dict[str, int]:
    truth = ROOT / "notebooks" / "data" / "truth"
    return {table.full_name: len(read_csv(table.truth)[1]) for table in truth_tables(truth)}


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_the_first_commands_work_and_print_what_the_readme_shows(tmp_path: Path) -> None:
    (commands,) = readme_blocks("sh")
    folder = clone(tmp_path / "clone")

    done = subprocess.run(
        ["bash", "-euc", commands], cwd=folder, env=shell_environment(), capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    shown = terminal_picture.shown((ROOT / "README.md").read_text(encoding="utf-8"))
    output, table_rows = done.stdout[: len(shown)], done.stdout[len(shown) :]
    assert output == shown, "make demo 2>/dev/null | python -m tools.terminal_picture"
    assert "|_pg_commit_lsn|" in table_rows
    assert "only showing top 5 rows" in table_rows


def test_the_readme_shows_the_row_counts_of_this_archive() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = text.partition("<!-- demo output -->")[2].partition("<!-- end of demo output -->")[0]
    rows = {table: int(count.replace(",", "")) for table, count in _ROW.findall(shown)}
    assert rows.keys() == {*truth_counts(), "public.lines", "public.visits"}
    assert {table: rows[table] for table in truth_counts()} == truth_counts()


def test_the_readmes_picture_shows_the_same_run() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert terminal_picture.PICTURE.relative_to(ROOT).as_posix() in text
    expected = ["$ make demo", *terminal_picture.shown(text).splitlines()]
    drawn = terminal_picture.texts(terminal_picture.PICTURE.read_text(encoding="utf-8"))
    assert drawn == ["".join(line.split()) for line in expected], "make demo | python -m tools.terminal_picture"


def test_the_output_of_a_new_run_replaces_the_old_one() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    changed = terminal_picture.with_output(text, "Batch 7 of demo: 1 files.\n")
    assert terminal_picture.shown(changed) == "Batch 7 of demo: 1 files.\n"
    assert terminal_picture.with_output(changed, terminal_picture.shown(text)) == text


def test_the_readmes_configuration_is_valid(tmp_path: Path) -> None:
    (text,) = readme_blocks("yaml")
    path = tmp_path / "shop.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(str(path), environ={})
    assert config.rule_for("public", "audit_2026").skip
    assert config.rule_for("public", "customers").key == ("id",)


def test_every_file_named_in_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"\]\(([^):#]+)(?:#[^)]*)?\)", text) + re.findall(r"\b(?:jobs|conf)/\w+\.\w+", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
