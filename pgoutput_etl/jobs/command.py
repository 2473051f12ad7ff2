"""The jobs' common command line: options, and a report as text or JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias, TypeVar

import click

from pgoutput_etl.answers.command_line import example_line, job_line
from pgoutput_etl.config.settings import Config, load_config, load_configs
from pgoutput_etl.console import (
    DEBUG,
    LogFormat,
    LogLevel,
    Progress,
    ProgressPrinter,
    is_json_log,
    keep_log_private,
    print_error,
    print_to_stderr,
    print_unexpected,
    set_log,
)
from pgoutput_etl.error_codes import ErrorCode
from pgoutput_etl.errors import ConfigError, PgoutputEtlError, coded
from pgoutput_etl.exit_codes import EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE, exit_code_of, worst_code
from pgoutput_etl.extras import EXTRA_OF, missing_module
from pgoutput_etl.jobs.each_source import SourceUse, one_session, shared_session
from pgoutput_etl.jobs.parser import Parser
from pgoutput_etl.options import FILE, NAME, Option, Value, one_of
from pgoutput_etl.places import is_relative
from pgoutput_etl.standard_output import StandardOutput, replace_closed_streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgoutput_etl.load.summary import ChangedTables

Overrides: TypeAlias = Annotated[
    tuple[str, ...], Option("override a key of the file", Value("KEY=VALUE"), "--set", is_list=True)
]

SourceName: TypeAlias = Annotated[str | None, Option("the source, if the file has several", NAME)]

Quiet: TypeAlias = Annotated[bool, Option("print no progress to standard error")]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a job that takes a configuration."""

    config: Annotated[str, Option("the source's YAML file", FILE)]
    overrides: Overrides = ()
    source: SourceName = None

    def load(self) -> Config:
        """Raises ConfigError."""
        return load_config(self.config, self.overrides, source=self.source)

    def load_all(self) -> tuple[Config, ...]:
        """Raises ConfigError."""
        return load_configs(self.config, self.overrides) if self.source is None else (self.load(),)


@dataclass(frozen=True, slots=True)
class OutputOptions:
    json: Annotated[bool, Option("print the report as JSON")] = False
    quiet: Quiet = False


@dataclass(frozen=True, slots=True)
class _LogOptions:
    log_level: Annotated[
        LogLevel,
        Option(
            "what to print to standard error: errors, also warnings, also progress (info, the default), or also the "
            "log of Spark and libraries (debug)",
            one_of(LogLevel),
        ),
    ] = LogLevel.INFO
    log_format: Annotated[
        LogFormat,
        Option("lines of text on standard error (the default), or one JSON object per line", one_of(LogFormat)),
    ] = LogFormat.TEXT
    debug: Annotated[bool, Option("print errors and Spark's log in full; they may contain rows' values")] = False


@dataclass(frozen=True, slots=True)
class Command:
    """A job's command line. name: NAME in jobs/NAME.py; example: a command line for a clone after `make demo`.

    parts: dataclasses whose fields declare the options; run: takes an instance of each, and returns the exit code.
    Modules of commands don't import pyspark, pandas, or rich, so mistakes are reported within milliseconds.
    """

    name: str
    description: str
    example: str
    parts: tuple[type[Any], ...]
    run: Callable[..., int]
    extra: tuple[click.Option, ...] = ()

    def parser(self) -> Parser:
        end = (
            f"Spark's options, such as --master or --driver-memory, may stand among these.\n"
            f"example: {example_line(self.example)}\nterms: docs/glossary.md"
        )
        return Parser(self.name, self.description, end, (*self.parts, _LogOptions), self.extra)

    def main(self, prog: str | None = None, arguments: Sequence[str] | None = None) -> int:
        """prog: the program's name in messages; arguments: None for those in sys.argv."""
        replace_closed_streams()
        os.environ.pop(DEBUG, None)
        prog = prog or f"jobs/{self.name}.py"
        given = sys.argv[1:] if arguments is None else arguments
        try:
            set_log(log_format=_log_format_in(given))
            parsed = self._parsed(prog, given)
            if isinstance(parsed, int):
                return parsed
            *parts, log = parsed
            set_log(log.log_level, log.log_format)
            if log.debug:
                os.environ[DEBUG] = "1"
            keep_log_private()
            return self.run(*parts)
        except PgoutputEtlError as error:
            print_error(error)
            return exit_code_of(error)
        except ModuleNotFoundError as error:
            module = (error.name or "").partition(".")[0]
            if module not in EXTRA_OF:
                raise
            print_to_stderr(missing_module(prog, module), "ERROR", exit_code=EXIT_USAGE)
            return EXIT_USAGE
        except KeyboardInterrupt:
            print_to_stderr("stopped by SIGINT (Ctrl-C)", "ERROR", exit_code=EXIT_STOPPED)
            return EXIT_STOPPED
        except Exception as error:  # noqa: BLE001 # its text may contain rows' values
            print_unexpected(error, self.name)
            return exit_code_of(error)
        finally:
            set_log()

    def _parsed(self, prog: str, arguments: Sequence[str]) -> tuple[Any, ...] | int:
        """An instance of each part, or the exit code after a mistake or --help."""
        try:
            with StandardOutput():
                return self.parser().parse(prog, arguments)
        except click.UsageError as mistake:
            if is_json_log():
                text, code = mistake.format_message(), ErrorCode.OPTIONS
                print_to_stderr(f"{code}: {text}", "ERROR", code=str(code), exit_code=EXIT_USAGE)
            else:
                mistake.show()
            return EXIT_USAGE
        except click.exceptions.Exit as ended:
            return ended.exit_code
        return EXIT_FAILED  # the reader of standard output has ended


def _log_format_in(arguments: Sequence[str]) -> LogFormat:
    """The log format, as far as the command line can be parsed; also used to report its mistakes."""
    words = " ".join(arguments).replace("--log-format=", "--log-format ").split()
    is_json = ("--log-format", LogFormat.JSON.value) in pairwise(words)
    return LogFormat.JSON if is_json else LogFormat.TEXT


class JobReport(Protocol):
    @property
    def exit_code(self) -> int: ...

    def to_json(self) -> str: ...


class JobRequest(Protocol):
    """A job's options, as a dataclass."""

    def check(self) -> None:
        """Raises ConfigError for options that can't be combined."""


@coded(ErrorCode.OPTIONS, ConfigError)
def check_options(request: JobRequest) -> None:
    """Raises ConfigError."""
    request.check()


class ChangeReport(JobReport, Protocol):
    """The report of a job that changes tables."""

    @property
    def changed(self) -> ChangedTables: ...


R = TypeVar("R", bound=JobReport)
C = TypeVar("C", bound=ChangeReport)
Q = TypeVar("Q", bound=JobRequest)


@dataclass(frozen=True, slots=True)
class PrintedReport:
    """print: prints the report as text. changed: None if the job changes no rows."""

    report: JobReport
    print: Callable[[], None]
    changed: ChangedTables | None = None

    @classmethod
    def of(cls, report: R, show: Callable[[R], None]) -> PrintedReport:
        return cls(report, partial(show, report))

    @classmethod
    def of_changes(cls, report: C, show: Callable[[C], None]) -> PrintedReport:
        return cls(report, partial(show, report), report.changed)

    def write(self, output: OutputOptions, heading: str | None = None) -> int:
        """Prints the report, as text below the heading, or as JSON. Returns its exit code."""
        with StandardOutput():
            if output.json:
                print(self.report.to_json())
            else:
                if heading is not None:
                    print(heading)
                self.print()
        return self.report.exit_code


Job: TypeAlias = Callable[[Q, Config, OutputOptions], PrintedReport]

# Works on several sources at the same time, and returns the exit code; None if the request is for one after another.
AtOnce: TypeAlias = Callable[[Q, Sequence[Config], OutputOptions], int | None]

SparkJob: TypeAlias = "Callable[[SparkSession, Config, Q, Progress], PrintedReport]"


def job_command(
    name: str,
    description: str,
    example: str,
    request: type[Q],
    work: Job[Q],
    extra: tuple[click.Option, ...] = (),
    sources: SourceUse[Q] | None = None,
    at_once: AtOnce[Q] | None = None,
) -> Command:
    """The command of a job with a configuration. It prints the job's report or error. sources: for a job that accepts
    several."""
    use: SourceUse[Q] = sources or SourceUse()

    def run(source: SourceOptions, request: Q, output: OutputOptions) -> int:
        configs = (source.load(),) if use.is_for_one(request) else source.load_all()
        requests = [use.of_source(request, config) for config in configs]
        for own in requests:
            check_options(own)
        has_others = len(configs) > 1
        if has_others and at_once is not None and (code := at_once(request, configs, output)) is not None:
            return code
        outcomes = []
        with one_session() if has_others else nullcontext():
            for own, config in zip(requests, configs, strict=True):
                if has_others:
                    print_to_stderr(f"source {config.source.name}")
                with SourceOutcome(name, config, has_others) as outcome:
                    outcome.printed = work(own, config, output)
                outcome.print(output)
                outcomes.append(outcome)
        return print_together(outcomes, output) if has_others else outcomes[0].exit_code

    return Command(name, description, example, (SourceOptions, request, OutputOptions), run, extra)


@dataclass(slots=True)
class SourceOutcome:
    """The result for one source: a report, or the exit code of an error, which has been printed. has_others: an error
    in this source doesn't stop the others."""

    job: str
    config: Config
    has_others: bool
    printed: PrintedReport | None = None
    failed: int = 0
    code: ErrorCode | None = None

    def __enter__(self) -> SourceOutcome:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if isinstance(error, PgoutputEtlError):
            print_error(error, job_line(self.config, *error.next_job) if error.next_job else None)
            self.code = error.code
        elif self.has_others and isinstance(error, Exception) and not isinstance(error, ModuleNotFoundError):
            self.code = print_unexpected(error, self.job)  # its text may contain values of rows
        else:
            return False
        self.failed = exit_code_of(error)
        return True

    @property
    def exit_code(self) -> int:
        return self.failed if self.printed is None else self.printed.report.exit_code

    def print(self, output: OutputOptions) -> None:
        if self.printed is not None and not (output.json and self.has_others):
            self.printed.write(output, f"source {self.config.source.name}" if self.has_others else None)

    def values(self) -> dict[str, Any]:
        report = None if self.printed is None else json.loads(self.printed.report.to_json())
        values = {"source": self.config.source.name, "exit_code": self.exit_code, "report": report}
        return values if self.code is None else {**values, "code": str(self.code)}


def print_together(
    outcomes: Sequence[SourceOutcome], output: OutputOptions, indent: int | None = 2, **more: Any
) -> int:
    """Prints several sources' JSON. Returns the worst exit code. indent: None for a single line."""
    worst = worst_code([outcome.exit_code for outcome in outcomes])
    if output.json:
        values = {**more, "sources": [outcome.values() for outcome in outcomes], "exit_code": worst}
        with StandardOutput():
            print(json.dumps(values, indent=indent))
    return worst


def spark_command(
    name: str,
    description: str,
    example: str,
    request: type[Q],
    imported: Callable[[], SparkJob[Q]],
    extra: tuple[click.Option, ...] = (),
    sources: SourceUse[Q] | None = None,
    is_published: Callable[[Q], bool] = lambda _: False,
    is_light: Callable[[Config, Q], bool] = lambda _config, _request: False,
    only_reads: bool = False,
) -> Command:
    """The command of a job that runs in a Spark session. imported: imports the job's function and returns it.
    is_published: True for a request whose run appears in configured metrics, lineage, and notifications. is_light,
    only_reads: as for `session`."""

    def work(request: Q, config: Config, output: OutputOptions) -> PrintedReport:
        def run() -> PrintedReport:
            with session(name, config, is_light(config, request), only_reads) as spark:
                return imported()(spark, config, request, ProgressPrinter(output.quiet))

        return published(name, config, run) if is_published(request) else run()

    return job_command(name, description, example, request, work, extra, sources)


def published(job: str, config: Config, run: Callable[[], PrintedReport]) -> PrintedReport:
    """Runs the job, and publishes its metrics, lineage, and notifications."""
    from pgoutput_etl.load.summary import NO_CHANGES
    from pgoutput_etl.work.files.recorder import RunRecorder

    with RunRecorder(config.source.name, config.metrics, config.notify, job=job) as recorder:
        done = run()
        recorder.job_done(done.report.exit_code, done.changed or NO_CHANGES)
    return done


def printed(do: Callable[[SparkSession, Config, Q, Progress], R], show: Callable[[R], None]) -> SparkJob[Q]:
    return lambda *arguments: PrintedReport.of(do(*arguments), show)


def printed_changes(do: Callable[[SparkSession, Config, Q, Progress], C], show: Callable[[C], None]) -> SparkJob[Q]:
    return lambda *arguments: PrintedReport.of_changes(do(*arguments), show)


@contextmanager
def session(job: str, config: Config, is_light: bool = False, only_reads: bool = False) -> Iterator[SparkSession]:
    """A Spark session that ends with the job or, if there are several sources, with the last one. is_light: True if
    there is little work. only_reads: a light job only queries a few rows, and runs no MERGE that reads a table."""
    from pgoutput_etl.spark.connect import is_connect
    from pgoutput_etl.spark.session import check_catalog, end_session, start_session

    shared = shared_session()
    spark = None if shared is None else shared.spark
    if spark is None:
        name, has_little_work = f"pgoutput_etl {job} {config.source.name}", is_light and shared is None
        reads_few = has_little_work and only_reads
        spark = start_session(name, config.spark, config.secrets, has_little_work, reads_few)
    try:
        if shared is not None:
            shared.spark = spark
        if config.target.catalog is not None:
            check_catalog(spark, config.target.catalog)
        if is_connect(spark) and config.target.root is not None and is_relative(config.target.root):
            raise ConfigError(
                "target.root: expected an absolute path or a URL: over Spark Connect, files are the server's"
            )
        yield spark
    except BaseException as error:
        if shared is None:
            with suppress(Exception):  # from a JVM that has ended, which must not hide the error
                end_session(spark, error)
        raise
    if shared is None:
        end_session(spark)
