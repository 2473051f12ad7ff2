"""Every command that errors, summaries, and the errors page tell their readers to run is one that its job takes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pgoutput_etl.answers.command_line import job_line
from pgoutput_etl.cli import command
from pgoutput_etl.config.settings import load_config
from tests.support.command_line import help_of
from tools.error_sites import ROOT

# Within texts: a job, and the options that follow it directly.
_VALUE = r"(?:…|'[^']*'|[\w./=…-]+)"
_IN_TEXTS = re.compile(rf"(?<!spark/)\bjobs/(?P<job>[a-z_]+)\.py(?P<options>(?:[ `]+--[a-z][a-z-]*(?:[ =]{_VALUE})?)*)")

# Stand for values that are inserted at run time.
_VALUES = {"--tables": "public.t", "--server": "postgresql://db:5432/shop", "--set": 'source.ignore=["a.bin"]'}


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Of the modules that name a job. Each process that collects tests parses them, so it does not parse the others."""
    named = re.compile(rf"\bjobs/|['\"](?:{'|'.join(_JOBS)})['\"]")
    found: list[tuple[str, ast.AST]] = []
    for path in sorted((ROOT / "pgoutput_etl").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if named.search(source):
            found += ((path.relative_to(ROOT).as_posix(), node) for node in ast.walk(ast.parse(source)))
    return found


def texts() -> Iterator[tuple[str, str]]:
    """Of string literals, in which `…` stands for what is inserted; and of pages for users."""
    for name, node in nodes():
        if isinstance(node, ast.JoinedStr):
            yield name, "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield name, node.value
    for page in sorted((ROOT / "docs").glob("*.md")):
        yield page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")


def next_jobs() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The tuples of a job and its options that errors and states have."""
    for name, node in nodes():
        if isinstance(node, ast.Tuple) and node.elts and isinstance(node.elts[0], ast.Constant):
            words = list(_words(node))
            if words and words[0] in _JOBS and (len(words) == 1 or words[1].startswith("--")):
                yield name, tuple(words)


def _words(node: ast.Tuple) -> Iterator[str]:
    last = ""
    for element in node.elts:
        if isinstance(element, ast.Constant) and isinstance(element.value, str):
            last = element.value
            yield last
        elif not isinstance(element, ast.Starred):
            yield _VALUES.get(last, "x")


_JOBS = ("apply", "backfill", "snapshot", "inspect", "verify", "maintain", "plan", "status", "undo", "forget", "export")

IN_TEXTS = sorted({(name, m["job"], m["options"]) for name, text in texts() for m in _IN_TEXTS.finditer(text)})
NEXT_JOBS = sorted(set(next_jobs()))


def test_the_search_finds_commands() -> None:
    assert ("pgoutput_etl/work/kinds/snapshot_load.py", ("apply",)) in NEXT_JOBS
    assert {job for _, (job, *_) in NEXT_JOBS} >= {"apply", "backfill", "snapshot"}
    assert any(job == "backfill" and "--from-quarantine" in options for _, job, options in IN_TEXTS)


@pytest.mark.parametrize(("name", "job", "options"), IN_TEXTS)
def test_a_command_within_a_text_names_a_job_and_its_options(name: str, job: str, options: str) -> None:
    usage = help_of(command(job))
    for option in re.findall(r"--[a-z][a-z-]*", options):
        if option not in ("--master", "--packages", "--driver-memory"):  # of spark-submit.sh
            assert re.search(rf"{option}\b", usage), f"{name}: jobs/{job}.py has no option {option}"


@pytest.mark.parametrize(("name", "words"), NEXT_JOBS)
def test_a_command_after_an_error_is_taken_by_its_job(name: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """With its configuration, whose overrides are valid, too."""
    path = tmp_path / "shop.yaml"
    path.write_text("source: {name: shop, landing: ./landing}\ntarget: {root: ./warehouse}\n", encoding="utf-8")
    job, *options = words
    config = load_config(str(path))
    assert f" {job} " in f"{job_line(config, *words)} ", name
    given = [] if job == "inspect" else ["--config", str(path)]
    source, *_ = command(job).parser().parse(job, [*given, *options])
    if given:
        load_config(source.config, source.overrides)
