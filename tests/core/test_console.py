"""Output on a terminal: tables, counts and errors."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import datetime, timedelta
from io import StringIO

import pytest
from rich.console import Console

from pgoutput_etl.cli import command
from pgoutput_etl.console import (
    ProgressPrinter,
    Row,
    counted,
    grid,
    log_level,
    print_error,
    print_parts,
    print_unexpected,
)
from pgoutput_etl.error_codes import ErrorCode
from pgoutput_etl.errors import RunError, TableError, mark_spark_as_ended, without_offset
from pgoutput_etl.outputs.ended_run import EndedRun, RunMetrics, RunOutput
from pgoutput_etl.outputs.publish import RunPublisher
from pgoutput_etl.reasons import ReasonKind


def test_one_is_singular() -> None:
    assert [counted(n, "file") for n in (0, 1, 2, 1234)] == ["0 files", "1 file", "2 files", "1,234 files"]


def printed(rows: list[Row], limit: int | None = None) -> str:
    text = StringIO()
    table = grid("table", ("bytes", "truncates"), ("gid", "notes"), rows, limit, rare=["truncates"])
    print_parts([table], Console(file=text, width=100))
    return text.getvalue()


def test_columns_without_a_cell_are_left_out() -> None:
    text = printed([("a", (0, 0), ("", "new")), ("b", (0, 0), ("", ""))])
    assert [name for name in ("bytes", "truncates", "gid", "notes") if name in text] == ["bytes", "notes"]
    text = printed([("a", (0, 0), ("", "")), ("b", (5, 1), ("x", ""))])
    assert [name for name in ("bytes", "truncates", "gid", "notes") if name in text] == ["bytes", "truncates", "gid"]


def test_a_column_with_a_cell_below_the_limit_stays() -> None:
    text = printed([("a", (1, 0), ("", "")), ("b", (1, 0), ("x", ""))], limit=1)
    assert "gid" in text
    assert "… and 1 more" in text


def test_an_error_ends_with_the_command_that_resolves_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(RunError("first\nsecond"), "pgoutput-etl apply")
    assert capsys.readouterr().err == "PGO-4000: RunError: first\n  second\n  Next: pgoutput-etl apply\n"


def test_an_error_of_any_kind_after_spark_has_ended_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    error = ValueError("null")
    assert print_unexpected(error, "apply") is ErrorCode.UNEXPECTED
    mark_spark_as_ended(error)
    assert print_unexpected(error, "apply") is ErrorCode.JAVA_ENDED
    assert "  Spark's Java process has ended: it ran out of memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("level", "progress", "library"),
    [("debug", True, "INFO"), ("info", True, "WARN"), ("warning", False, "WARN"), ("error", False, "ERROR")],
)
def test_a_log_level_is_that_of_progress_and_of_libraries(
    level: str, progress: bool, library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    monkeypatch.setenv("PGOUTPUT_ETL_LOG_LEVEL", "info")
    seen: list[tuple[bool, bool, int, str]] = []

    def run(*_: object) -> int:
        seen.append(
            (ProgressPrinter().quiet, ProgressPrinter(quiet=True).quiet, logging.root.level, log_level().of_libraries)
        )
        logging.getLogger("library").info("SECRET")
        return 0

    assert replace(command("plan"), run=run).main("plan", ["--config", "a", "--log-level", level]) == 0
    assert seen == [(not progress, True, logging.getLevelName(library), library)]
    assert not ProgressPrinter().quiet, "the level is that of the job"
    assert capsys.readouterr().err == ("INFO library: \n" if level == "debug" else "")
    logging.captureWarnings(False)


def test_in_json_each_line_of_standard_error_is_an_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    monkeypatch.setenv("PGOUTPUT_ETL_LOG_FORMAT", "text")
    monkeypatch.setenv("PGOUTPUT_ETL_DEBUG", "")  # restored after the test

    def run(*_: object) -> int:
        ProgressPrinter()("reading é\nb")
        logging.getLogger("library").warning("SECRET")
        logging.getLogger("pgoutput_etl.load.holding").warning("writing %s failed", "t", exc_info=ValueError("SECRET"))
        RunPublisher([Broken()]).end(EndedRun(RunMetrics("s", "", 0.0, 1, 0.0)))
        raise raised.pop()

    def lines(*options: str) -> list[dict[str, object]]:
        code = replace(command("plan"), run=run).main("plan", ["--config", "a", "--log-format", "json", *options])
        objects = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        assert {datetime.fromisoformat(line.pop("time")).utcoffset() for line in objects} == {timedelta(0)}
        assert objects[-1].get("exit_code", code) == code
        return objects

    jobs, outputs = "pgoutput_etl.jobs", "pgoutput_etl.outputs"
    failure = {
        "level": "ERROR",
        "logger": jobs,
        "code": "PGO-3040",
        "error": "TableError",
        "kind": "not UTF-8",
        "exit_code": 1,
    }
    raised = [ValueError("SECRET"), KeyboardInterrupt(), TableError("first\nsecond", ReasonKind.NOT_UTF8)]
    assert lines() == [
        {"level": "INFO", "logger": jobs, "message": "reading é\\nb", "seconds": 0.0},
        {"level": "WARNING", "logger": "library", "message": ""},
        {
            "level": "WARNING",
            "logger": "pgoutput_etl.load.holding",
            "message": "writing t failed (ValueError)",
            "error": "ValueError",
        },
        {"level": "WARNING", "logger": outputs, "message": "metrics.broken: the run could not be published: OSError"},
        {**failure, "message": "PGO-3040: TableError: first\nsecond"},
    ]
    assert lines()[-1] == {
        "level": "ERROR",
        "logger": jobs,
        "message": "stopped by SIGINT (Ctrl-C)",
        "exit_code": 130,
    }
    mistake = lines("--no")
    assert [(line["code"], line["exit_code"], "--no" in str(line["message"])) for line in mistake] == [
        ("PGO-1200", 2, True)
    ]
    *_, announced, traced = lines("--debug")
    assert announced["message"] == "--debug: the rest may contain rows' values"
    assert str(traced["message"]).splitlines()[-1] == "ValueError: SECRET"
    monkeypatch.delenv("PGOUTPUT_ETL_DEBUG")
    ProgressPrinter()("reading")
    assert not capsys.readouterr().err.startswith("{"), "the format is that of the job"
    logging.captureWarnings(False)


class Broken(RunOutput):
    key = "metrics.broken"

    def end(self, _: EndedRun) -> None:
        raise OSError


def test_a_place_is_named_once() -> None:
    assert without_offset("offset 106: expected 5 bytes, found 4") == "expected 5 bytes, found 4"
    assert without_offset("Insert.new at byte 3: expected a kind") == "Insert.new at byte 3: expected a kind"
