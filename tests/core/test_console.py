"""Output on a terminal: tables, counts and errors."""

from __future__ import annotations

import logging
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from pgoutput_etl.cli import command
from pgoutput_etl.console import ProgressPrinter, Row, counted, grid, log_level, print_error, print_parts
from pgoutput_etl.errors import RunError, without_offset


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
    assert capsys.readouterr().err == "RunError: first\n  second\n  Next: pgoutput-etl apply\n"


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


def test_a_place_is_named_once() -> None:
    assert without_offset("offset 106: expected 5 bytes, found 4") == "expected 5 bytes, found 4"
    assert without_offset("Insert.new at byte 3: expected a kind") == "Insert.new at byte 3: expected a kind"
