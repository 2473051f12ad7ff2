"""What a run tells: a summary for people, the same for programs."""

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


def summary_json(summary: Any, **named: Any) -> str:
    """Of a dataclass with an `exit_code`: its fields, and what is named beside them."""
    return json.dumps({**asdict(summary), **named, "exit_code": summary.exit_code}, indent=2)


def own_console() -> Console:
    """For people: as wide as their terminal, or as a page where there is none."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def grid(first: str, counts: Iterable[str], words: Iterable[str] = ()) -> Table:
    """A table of which each row has a name, then numbers, then words."""
    found = Table()
    found.add_column(first, overflow="fold")
    for name in counts:
        found.add_column(name, justify="right")
    for name in words:
        found.add_column(name, overflow="fold")
    return found


def exit_code_of(error: Exception) -> int:
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED


def print_error(error: PgoutputEtlError) -> None:
    """On standard error. Lines behind the first one are set in, so that no name in it can pass for a line of ours."""
    first, *rest = str(error).split("\n")
    for line in (f"{type(error).__name__}: {first}", *(f"  {line}" for line in rest)):
        sys.stderr.write(f"{printable(line)}\n")


def print_warning(text: str) -> None:
    """On standard error, also where no progress is shown."""
    sys.stderr.write(f"{printable(text)}\n")


class Progress:
    """A line per step on standard error, with the seconds since the start."""

    def __init__(self, quiet: bool = False) -> None:
        self.started = time.monotonic()
        self.quiet = quiet

    def __call__(self, step: str) -> None:
        if not self.quiet:
            sys.stderr.write(f"[{time.monotonic() - self.started:6.1f} s] {printable(step)}\n")
            sys.stderr.flush()


def no_progress(_: str) -> None:
    """Takes the place of `Progress` where nobody wants to see it."""
