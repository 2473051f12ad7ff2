"""Types the command lines that jobs print, in the session of the tests."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.cli import main


@dataclass(frozen=True, slots=True)
class Outcome:
    """report: the job's JSON; empty after an error. error: what stands on standard error."""

    code: int
    report: Mapping[str, Any]
    error: str

    @property
    def next(self) -> list[str]:
        """The printed commands: those of a report in the order in which to run them, or that of an error."""
        commands = [step["command"] for step in self.report.get("next", ())]
        of_error = self.error.partition("  Next: ")[2].strip()
        return [*commands, of_error] if of_error else commands


def of_own_session(code: str) -> str:
    """A page's Python without the line that starts a session."""
    shorter, count = re.subn(r"^spark = pg\.start_session\(.*\n", "", code, flags=re.MULTILINE)
    assert count == 1
    return shorter


def share_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in the tests' session, and do not end it."""

    @contextmanager
    def session(*_: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("pgoutput_etl.jobs.command.session", session)
    monkeypatch.setattr("pgoutput_etl.jobs.apply.session", session)


def type_command(command: str) -> Outcome:
    program, *arguments = shlex.split(command)
    assert program == "pgoutput-etl"
    output, error = StringIO(), StringIO()
    with redirect_stdout(output), redirect_stderr(error):
        code = main([*arguments, "--quiet", "--json"])
    report = json.loads(output.getvalue()) if output.getvalue() else {}
    return Outcome(code, report, error.getvalue())
