"""The jobs' common command line: arguments, and a report as text or JSON."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

from pgoutput_etl.answers.command_line import example_line, next_line
from pgoutput_etl.config.settings import Config, load_config
from pgoutput_etl.console import (
    DEBUG,
    Progress,
    ProgressPrinter,
    keep_log_private,
    print_error,
    print_stopped,
    print_unexpected,
)
from pgoutput_etl.errors import PgoutputEtlError
from pgoutput_etl.exit_codes import EXIT_STOPPED, exit_code_of
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.spark.options import keep, split
from pgoutput_etl.standard_output import StandardOutput, replace_closed_streams
from pgoutput_etl.timestamps import parse_duration, parse_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Command:
    """A job's command line. name: NAME of jobs/NAME.py; example: a command line for a clone after `make demo`.

    run: returns the exit code. Modules of commands import no pyspark, pandas or rich, so that a mistake is answered
    within milliseconds.
    """

    name: str
    description: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]

    def parser(self, prog: str) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            prog=prog,
            description=self.description,
            allow_abbrev=False,
            epilog=f"Spark's options, such as --master or --driver-memory, may stand among these.\n\n"
            f"example: {example_line(self.example)}\n\nterms: docs/glossary.md",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_arguments(parser)
        parser.add_argument(
            "--debug", action="store_true", help="print errors and Spark's log in full; they may contain rows' values"
        )
        return parser

    def main(self, prog: str | None = None, arguments: Sequence[str] | None = None) -> int:
        """prog: the program's name in messages; arguments: sys.argv's if None."""
        replace_closed_streams()
        parsed = self._parsed(prog or f"jobs/{self.name}.py", sys.argv[1:] if arguments is None else arguments)
        os.environ.pop(DEBUG, None)
        if parsed.debug:
            os.environ[DEBUG] = "1"
        keep_log_private()
        try:
            return self.run(parsed)
        except PgoutputEtlError as error:
            print_error(error)
            return exit_code_of(error)
        except ModuleNotFoundError:
            raise  # the launcher says how to install it
        except KeyboardInterrupt:
            print_stopped()
            return EXIT_STOPPED
        except Exception as error:  # noqa: BLE001 # its text may contain rows' values
            print_unexpected(error, self.name)
            return exit_code_of(error)

    def _parsed(self, prog: str, arguments: Sequence[str]) -> argparse.Namespace:
        """Without Spark's options, which are kept for the session."""
        parser = self.parser(prog)
        try:
            options, own = split(arguments)
        except ValueError as error:
            parser.error(str(error))
        keep(options)
        return parser.parse_args(own)


class JobReport(Protocol):
    @property
    def exit_code(self) -> int: ...

    def to_json(self) -> str: ...


class JobRequest(Protocol):
    """A job's options, as a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def check(self) -> None:
        """Raises ConfigError for options that don't go together."""


R = TypeVar("R", bound=JobReport)
Q = TypeVar("Q", bound=JobRequest)

# Checks a job's options, and returns the work that is left to do.
Job: TypeAlias = Callable[[argparse.Namespace, Config], Callable[[], R]]


def job_command(
    name: str,
    description: str,
    example: str,
    job: Job[R],
    show: Callable[[R], None],
    add_options: Callable[[argparse.ArgumentParser], None] = lambda _: None,
) -> Command:
    """The command of a job with a configuration. It prints the job's report or its error. show: prints text."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--config", required=True, metavar="FILE", help="the source's YAML file")
        add_options(parser)
        parser.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the file"
        )
        add_output(parser)

    def run(arguments: argparse.Namespace) -> int:
        config = load_config(arguments.config, arguments.set)
        try:
            report = job(arguments, config)()
        except PgoutputEtlError as error:
            print_error(error, next_line(config, error.next_job) if error.next_job else None)
            return exit_code_of(error)
        with StandardOutput():
            if arguments.json:
                print(report.to_json())
            else:
                show(report)
        return report.exit_code

    return Command(name, description, example, add_arguments, run)


def request_job(name: str, request_type: type[Q], do: Callable[[SparkSession, Config, Q, Progress], R]) -> Job[R]:
    """A job whose options are the fields of a request, which is checked before Spark starts."""

    def job(arguments: argparse.Namespace, config: Config) -> Callable[[], R]:
        request = request_type(**{field.name: getattr(arguments, field.name) for field in fields(request_type)})
        request.check()

        def work() -> R:
            with session(name, config) as spark:
                return do(spark, config, request, ProgressPrinter(arguments.quiet))

        return work

    return job


@contextmanager
def session(job: str, config: Config, is_light: bool = False) -> Iterator[SparkSession]:
    """A Spark session that ends with the job. is_light: True if there is little work."""
    from pgoutput_etl.spark.session import check_catalog, end_session, start_session

    spark = start_session(f"pgoutput_etl {job} {config.source.name}", config.spark, config.secrets, is_light)
    try:
        if config.target.catalog is not None:
            check_catalog(spark, config.target.catalog)
        yield spark
    except BaseException:
        with suppress(Exception):  # of a JVM that has ended, which must not hide the error
            end_session(spark)
        raise
    end_session(spark)


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="print no progress to standard error")


T = TypeVar("T")


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Reports a ValueError of `parse` as argparse's own errors."""

    def parse_argument(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument


lsn: Callable[[str], int] = argument(parse_lsn)

time: Callable[[str], datetime] = argument(parse_time)

interval: Callable[[str], timedelta] = argument(parse_duration)


def words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
