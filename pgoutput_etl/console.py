"""Command-line output: progress, warnings, errors, and summaries as tables or JSON."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from enum import Enum
from itertools import compress
from typing import TYPE_CHECKING, Any

from pgoutput_etl.error_codes import ErrorCode
from pgoutput_etl.errors import PgoutputEtlError, brief, code_of_line, had_spark_ended, own_lines, step_of, text_of
from pgoutput_etl.exit_codes import exit_code_of
from pgoutput_etl.identifiers import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Progress = Callable[[str], None]  # called with one line per step

_NUMBER: dict[str, Any] = {"justify": "right"}
_TEXT: dict[str, Any] = {"overflow": "fold"}

Row = tuple[str, Iterable[int | str], Iterable[str]]


def summary_json(summary: Any, **extra: Any) -> str:
    """The fields of a dataclass, plus extra ones and its `exit_code`."""
    return json.dumps({**asdict(summary), **extra, "exit_code": summary.exit_code}, indent=2)


def grid(
    first: str,
    numbers: Iterable[str],
    texts: Iterable[str],
    rows: Sequence[Row],
    limit: int | None = None,
    rare: Collection[str] = (),
) -> Table:
    """A table whose rows have a name, then numbers, then texts. Omits empty columns, and rare ones that only contain 0.

    limit: number of rows to list. rare: names of number columns.
    """
    from rich.table import Table  # slow to import: not for progress and errors
    from rich.text import Text

    table = Table()
    table.add_column(first, overflow="fold")
    numbers = list(numbers)
    columns = [*numbers, *texts]
    cells = [[*counts, *words] for _, counts, words in rows]
    empty = [("", 0) if column in rare else ("",) for column in columns]
    shown = [any(row[i] not in empty[i] for row in cells) for i in range(len(columns))]
    for column in compress(columns, shown):
        table.add_column(column, **_NUMBER if column in numbers else _TEXT)
    for (name, *_), row in zip(rows[:limit], cells, strict=False):
        words = (cell if isinstance(cell, str) else f"{cell:,}" for cell in compress(row, shown))
        table.add_row(Text(printable(name)), *(Text(printable(word)) for word in words))
    if limit is not None and len(rows) > limit:
        table.add_row(f"… and {len(rows) - limit:,} more")
    return table


def counted(number: int, noun: str, plural: str = "") -> str:
    """The number with its noun in singular or plural. plural: the plural form, if it is irregular."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def duration(seconds: float) -> str:
    """The duration in one or two units: 45 s, 12 min, 8 h 5 min, 3 d 4 h, 200 d."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 48 * 3600:
        hours, minutes = divmod(whole // 60, 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(whole // 3600, 24)
    return f"{days} d {hours} h" if hours and days < 100 else f"{days} d"


def shortened(lines: Sequence[str], limit: int, noun: str) -> list[str]:
    """The first lines, and the number of remaining ones."""
    more = len(lines) - limit
    return [*lines[:limit], f"… and {more:,} more {noun}"] if more > 0 else list(lines)


def content_line(size: int, accounts: Mapping[str, int]) -> str:
    """The decompressed bytes in total and by account."""
    parts = ", ".join(f"{count:,} {account}" for account, count in accounts.items() if count or account == "applied")
    return f"Content: {counted(size, 'byte')} ({parts})." if parts else f"Content: {counted(size, 'byte')}."


def print_parts(parts: Iterable[str | Table], console: Console | None, soft_wrap: bool = False) -> None:
    """Prints lines, and tables that have rows.

    console: None for one as wide as the terminal, or 120 columns if there is no terminal. soft_wrap: lets the terminal
    wrap lines.
    """
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Rich would end the process

    console = console or Output(width=None if sys.stdout.isatty() else 120, highlight=False)
    for part in parts:
        if isinstance(part, str):
            console.print(printable(part), markup=False, soft_wrap=soft_wrap)
        elif part.row_count:
            console.print(part)


# Set while a job with --debug runs: prints errors and Spark's log in full.
DEBUG = "PGOUTPUT_ETL_DEBUG"

_LOG_LEVEL, _LOG_FORMAT = "PGOUTPUT_ETL_LOG_LEVEL", "PGOUTPUT_ETL_LOG_FORMAT"

_JOBS = "pgoutput_etl.jobs"  # the logger for output of jobs themselves


class LogLevel(Enum):
    """The output on standard error besides the jobs' own errors and warnings. debug: also what Spark and libraries log
    at INFO; info: progress, and warnings of Spark and libraries; warning: no progress; error: only their errors."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def shows_progress(self) -> bool:
        return self in (LogLevel.DEBUG, LogLevel.INFO)

    @property
    def of_libraries(self) -> str:
        """The level for Python's logging and Log4j, which both know these names."""
        return {LogLevel.DEBUG: "INFO", LogLevel.ERROR: "ERROR"}.get(self, "WARN")


class LogFormat(Enum):
    """The format of what jobs print to standard error. json: each line is an object with time (UTC), level, logger, and
    message, and for an error also its class and exit code."""

    TEXT = "text"
    JSON = "json"


def set_log(level: LogLevel = LogLevel.INFO, log_format: LogFormat = LogFormat.TEXT) -> None:
    """Sets the log of this process and its children, for the duration of a job."""
    os.environ.update({_LOG_LEVEL: level.value, _LOG_FORMAT: log_format.value})


def log_level() -> LogLevel:
    return LogLevel(os.environ.get(_LOG_LEVEL, LogLevel.INFO.value))


def is_json_log() -> bool:
    return os.environ.get(_LOG_FORMAT) == LogFormat.JSON.value


_JAVA_MEMORY = "Java is out of memory: give it more (--driver-memory, --executor-memory)"

_JAVA_ENDED = "Spark's Java process has ended: it ran out of memory (--driver-memory), or was stopped"

_FULL = "a disk is full: the target's, or that of Spark's own files (spark.local.dir, by default /tmp)"

# Each with a pattern, searched for in the classes and messages of an error, its causes, and the errors that it
# replaced. Without a JVM, Java exceptions have no text.
_ADVICE = (
    (r"No space left on device|Disk quota exceeded", ErrorCode.DISK_FULL, _FULL),
    (r"OutOfMemoryError", ErrorCode.JAVA_MEMORY, _JAVA_MEMORY),
    (
        r"Py4JNetworkError|ConnectionRefusedError|^Py4JJavaError $|^Py4JError An error [^\n]*\Z",
        ErrorCode.JAVA_ENDED,
        _JAVA_ENDED,
    ),
    (
        r"Python worker exited unexpectedly",
        ErrorCode.WORKER_ENDED,
        "a Python worker has ended: it ran out of memory, or was stopped",
    ),
    (r"ExecutorLostFailure", ErrorCode.EXECUTOR_LOST, "an executor was lost: it ran out of memory, or was stopped"),
)


def print_error(error: PgoutputEtlError, command: str | None = None) -> None:
    """Prints an error to standard error. Lines after the first are indented, so that no name in it can fake a line.

    command: resolves the error.
    """
    first, *rest = str(error).split("\n")
    rest += [] if command is None else [f"Next: {command}"]
    _print_failure(error, error.code, f"{type(error).__name__}: {first}", *rest)


def print_unexpected(error: Exception, job: str) -> ErrorCode:
    """Prints an error of a library or of this package's code to standard error, like `print_error`, and returns its
    code. Its text may contain values of rows, so it is only printed with --debug."""
    step = step_of(error)
    where = f"{job} failed" if step is None else f"{job} failed {step}"
    own = own_lines(error)[-1:]
    texts = [f"{type(e).__name__} {text_of(e)}" for e in _with_hidden(error)]
    known = [(code, advice) for sign, code, advice in _ADVICE if any(re.search(sign, t, re.MULTILINE) for t in texts)]
    if had_spark_ended(error):
        known.append((ErrorCode.JAVA_ENDED, _JAVA_ENDED))
    codes = [*map(code_of_line, own), *(code for code, _ in known), ErrorCode.UNEXPECTED]
    hint = "The error's text may contain rows' values. To see it, run the same command with --debug"
    lines = [*own, f"{where}: {brief(error)}", *(advice for _, advice in known[:1]), hint]
    _print_failure(error, codes[0], *lines)
    return codes[0]


def _with_hidden(error: BaseException) -> Iterator[BaseException]:
    """The error, followed by its causes and the errors that it replaced."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _print_failure(error: Exception, code: ErrorCode, first: str, *rest: str) -> None:
    kind = error.kind if isinstance(error, PgoutputEtlError) else None
    _print_lines(
        [f"{code}: {first}", *rest],
        "ERROR",
        code=str(code),
        error=type(error).__name__,
        kind=kind and kind.value,
        exit_code=exit_code_of(error),
    )
    if DEBUG not in os.environ:
        return
    print_to_stderr("--debug: the rest may contain rows' values", "WARNING")
    if is_json_log():
        _print_lines("".join(traceback.format_exception(error)).splitlines(), "ERROR")
    else:
        traceback.print_exception(error)


def print_to_stderr(text: str, level: str = "INFO", logger: str = _JOBS, **more: str | float | None) -> None:
    """Prints to standard error, even if progress is off. If that fails, as on a full disk, the run continues.

    level, logger: as in Python's logging; these and `more`, without None, are only printed as JSON.
    """
    _print_lines([text], level, logger, **more)


def _print_lines(lines: Iterable[str], level: str, logger: str = _JOBS, **more: str | float | None) -> None:
    shown = [*map(printable, lines)]
    if is_json_log():
        now = datetime.now(timezone.utc).isoformat()
        values = {"time": now, "level": level, "logger": logger, "message": "\n".join(shown), **more}
        text = json.dumps({name: value for name, value in values.items() if value is not None})
    else:
        text = "\n  ".join(shown)
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # discards the buffer, too


class _PrivateLog(logging.Handler):
    """Prints what libraries log: with --debug in full, otherwise only the logger and an error's class. This package's
    own texts contain no values."""

    def emit(self, record: logging.LogRecord) -> None:
        if DEBUG in os.environ:
            print_to_stderr(self.format(record), record.levelname, record.name)
            return
        text = record.getMessage() if record.name.startswith("pgoutput_etl") else ""
        error = record.exc_info[1] if record.exc_info else None
        text += f" ({brief(error)})" if error else ""
        line = text if is_json_log() else f"{record.levelname} {record.name}: {text}"
        print_to_stderr(line, record.levelname, record.name, error=type(error).__name__ if error else None)


def keep_log_private() -> None:
    """Applies to the process's logs and warnings, unless logging is already configured."""
    if not logging.root.handlers:
        logging.basicConfig(handlers=[_PrivateLog()])
        logging.captureWarnings(True)
    if any(isinstance(handler, _PrivateLog) for handler in logging.root.handlers):
        logging.root.setLevel(log_level().of_libraries)


class ProgressPrinter:
    """Prints a line per step to standard error, with the seconds since the start."""

    def __init__(self, quiet: bool = False) -> None:
        self.started = time.monotonic()
        self.quiet = quiet or not log_level().shows_progress

    def __call__(self, step: str) -> None:
        if self.quiet:
            return
        seconds = time.monotonic() - self.started
        print_to_stderr(step if is_json_log() else f"[{seconds:6.1f} s] {step}", seconds=round(seconds, 1))


def no_progress(_: str) -> None:
    """A Progress that prints nothing."""
