"""A job for several sources: each has its turn whatever becomes of the others, and the process ends with the worst
exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.cli import main
from pgoutput_etl.config.settings import Config, load_configs
from pgoutput_etl.errors import ConfigError, PgoutputEtlError, RunError, TryLaterError
from pgoutput_etl.exit_codes import worst_code
from pgoutput_etl.jobs import verify
from pgoutput_etl.jobs.command import Command, OutputOptions, PrintedReport, job_command
from pgoutput_etl.jobs.each_source import SourceUse


@dataclass(frozen=True, slots=True)
class NoOptions:
    def check(self) -> None:
        pass


EACH: SourceUse[NoOptions] = SourceUse(lambda _: False)


@dataclass(frozen=True)
class Done:
    source: str
    exit_code: int

    def to_json(self) -> str:
        return json.dumps({"done": self.source})


def show(done: Done) -> None:
    sys.stdout.write(f"done: {done.source}\n")


def command_with(results: Mapping[str, int | Exception], sources: SourceUse[NoOptions] | None = EACH) -> Command:
    """A job whose run for each source ends with an exit code or an error."""

    def work(_: NoOptions, config: Config, __: OutputOptions) -> PrintedReport:
        result = results[config.source.name]
        if isinstance(result, Exception):
            raise result
        return PrintedReport.of(Done(config.source.name, result), show)

    return job_command("apply", "", "python jobs/apply.py", NoOptions, work, sources=sources)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "all.yaml"
    sources = "".join(f"  - {{name: {name}, landing: {tmp_path}}}\n" for name in "abc")
    path.write_text(f"sources:\n{sources}target: {{root: '{tmp_path}/{{source}}'}}\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ((0, 0, 0), 0),
        ((0, TryLaterError("busy"), 0), 75),
        ((TryLaterError("busy"), 3, 0), 3),
        ((3, RunError("gone"), 3), 1),
        ((OSError("hunter2"), 3, 0), 1),
        ((RunError("gone"), ConfigError("types differ"), TryLaterError("busy")), 2),
    ],
)
def test_the_worst_exit_code_of_all_sources(
    results: tuple[int | Exception, ...], code: int, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = command_with(dict(zip("abc", results, strict=True)))
    assert command.main("apply", ["--config", config]) == code
    printed = capsys.readouterr()
    done = [line for line in printed.out.splitlines() if line.startswith("done")]
    assert done == [f"done: {name}" for name, result in zip("abc", results, strict=True) if isinstance(result, int)]
    assert "hunter2" not in printed.err
    for name, result in zip("abc", results, strict=True):
        after = printed.err.partition(f"source {name}\n")[2]
        if isinstance(result, PgoutputEtlError):
            assert after.startswith(f"{result.code}: {type(result).__name__}: {result}")


def test_the_report_for_programs_has_all_sources(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = command_with({"a": 0, "b": RunError("gone"), "c": 3})
    assert command.main("apply", ["--config", config, "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "sources": [
            {"source": "a", "exit_code": 0, "report": {"done": "a"}},
            {"source": "b", "exit_code": 1, "report": None, "code": "PGO-4000"},
            {"source": "c", "exit_code": 3, "report": {"done": "c"}},
        ],
        "exit_code": 1,
    }


def test_one_source_of_several_runs_as_if_it_were_alone(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = command_with({"b": 3})
    assert command.main("apply", ["--config", config, "--source", "b", "--json"]) == 3
    assert json.loads(capsys.readouterr().out) == {"done": "b"}


def test_other_jobs_and_what_is_for_one_source_ask_for_it(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_with({}, None).main("apply", ["--config", config]) == 2
    for job, *options in (
        ("status", "--html", "page.html"),
        ("verify", "--server", "postgresql://db/shop"),
        ("backfill", "--tables", "*"),
        ("undo", "--xid", "1", "--into", "a"),
    ):
        capsys.readouterr()
        assert main([job, "--config", config, *options]) == 2, job
        assert "expected the name of a source (--source), because it has several: a, b, c" in capsys.readouterr().err


def test_status_and_validate_report_all_sources_without_spark(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--config", config, "--json"]) == 0
    assert [source["source"] for source in json.loads(capsys.readouterr().out)["sources"]] == ["a", "b", "c"]
    assert main(["status", "--config", config, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [source["report"]["source"] for source in report["sources"]] == ["a", "b", "c"]
    Path(config).write_text(Path(config).read_text().replace("{name: b", "{nam: b") + "rules: all", encoding="utf-8")
    assert main(["validate", "--config", config, "--json"]) == 2
    errors = json.loads(capsys.readouterr().out)["errors"]
    assert [(e["key"], e["line"]) for e in errors] == [("rules", 6), ("sources[1].nam", 3), ("sources[1].name", 3)]


def test_verify_asks_the_server_that_a_source_names(config: str) -> None:
    text = Path(config).read_text(encoding="utf-8")
    Path(config).write_text(text.replace("name: b,", "name: b, server: 'postgresql://db/b',"), encoding="utf-8")
    a, b, _ = load_configs(config)
    of_source = verify.EACH_SOURCE.of_source
    assert [of_source(VerifyRequest(), config).server for config in (a, b)] == [None, "postgresql://db/b"]
    given = VerifyRequest(server="postgresql://other/b")
    assert of_source(given, b) == given
    assert of_source(VerifyRequest(finish=True), b) == VerifyRequest(finish=True)


@pytest.mark.parametrize("codes", [(2, 1, 3, 75, 0), (1, 3, 75, 0), (3, 75, 0), (75, 0), (0,), (130, 2)])
def test_the_order_of_exit_codes(codes: tuple[int, ...]) -> None:
    assert worst_code(codes) == worst_code(reversed(codes)) == codes[0]
