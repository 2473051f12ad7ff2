"""Output of the command line: progress, warnings, errors, and summaries as tables or JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from pgoutput_etl.errors import ConfigError, PgoutputEtlError
from pgoutput_etl.identifiers import printable

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_QUARANTINE = 0, 1, 2, 3


def summary_json(summary: Any, **extra: Any) -> str:
    """The fields of a dataclass that has an `exit_code`, and extra ones."""
    return json.dumps({**asdict(summary), **extra, "exit_code": summary.exit_code}, indent=2)


def own_console() -> Console:
    """A console as wide as the terminal, or 120 columns without one."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def grid(first: str, counts: Iterable[str], words: Iterable[str] = ()) -> Table:
    """A table whose rows have a name, then numbers, then text."""
    table = Table()
    table.add_column(first, overflow="fold")
    for name in counts:
        table.add_column(name, justify="right")
    for name in words:
        table.add_column(name, overflow="fold")
    return table


def exit_code_of(error: Exception) -> int:
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED


def print_error(error: PgoutputEtlError) -> None:
    """Prints to standard error. Lines after the first are indented, so that no name in the error can fake a line."""
    first, *rest = str(error).split("\n")
    for line in (f"{type(error).__name__}: {first}", *(f"  {line}" for line in rest)):
        sys.stderr.write(f"{printable(line)}\n")


def print_warning(text: str) -> None:
    """Prints to standard error, even if progress is off."""
    sys.stderr.write(f"{printable(text)}\n")


class Progress:
    """Prints a line per step to standard error, with the seconds since the start."""

    def __init__(self, quiet: bool = False) -> None:
        self.started = time.monotonic()
        self.quiet = quiet

    def __call__(self, step: str) -> None:
        if not self.quiet:
            sys.stderr.write(f"[{time.monotonic() - self.started:6.1f} s] {printable(step)}\n")
            sys.stderr.flush()


def no_progress(_: str) -> None:
    """Takes the place of `Progress` where nobody wants to see it."""
