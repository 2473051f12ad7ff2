"""A job's command line, in this process."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from pgoutput_etl.jobs.command import Command


def help_of(command: Command) -> str:
    parser = command.parser()
    return parser.get_help(click.Context(parser))


def refusal(command: Command, arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The error message for invalid arguments, printed without a Spark session and without standard output."""
    config = folder / "job.yaml"
    config.write_text("source: {name: a, landing: b}\ntarget: {root: c}\n")
    code = command.main(f"{command.name}.py", ["--config", str(config), *arguments])
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    return printed.err
