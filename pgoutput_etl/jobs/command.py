"""The jobs' common command line: arguments, exit codes, and a report as text or JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

from pgoutput_etl.config.settings import Config, load_config
from pgoutput_etl.console import Progress, exit_code_of, print_error
from pgoutput_etl.errors import PgoutputEtlError
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.timestamps import parse_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Command:
    """A job's command line. name: as in jobs/NAME.py; run: returns the exit code."""

    name: str
    description: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]

    def parser(self, prog: str) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            prog=prog, description=self.description, allow_abbrev=False, epilog=f"example: {self.example}"
        )
        self.add_arguments(parser)
        return parser

    def main(self, prog: str | None = None, arguments: Sequence[str] | None = None) -> int:
        """prog: the program's name in messages; arguments: sys.argv's if None."""
        return self.run(self.parser(prog or f"jobs/{self.name}.py").parse_args(arguments))


class JobReport(Protocol):
    @property
    def exit_code(self) -> int: ...

    def to_json(self) -> str: ...


R = TypeVar("R", bound=JobReport)


def run_job(arguments: argparse.Namespace, job: Callable[[Config], R], show: Callable[[R], None]) -> int:
    """Runs a job with its configuration, prints its report or its error, and returns the exit code."""
    try:
        config = load_config(arguments.config, arguments.set)
        report = job(config)
    except PgoutputEtlError as error:
        print_error(error)
        return exit_code_of(error)
    if arguments.json:
        print(report.to_json())
    else:
        show(report)
    return report.exit_code


class JobRequest(Protocol):
    """A job's arguments besides its configuration."""

    def check(self) -> None:
        """Raises ConfigError for arguments that don't go together."""


Q = TypeVar("Q", bound=JobRequest)


def run_request(
    arguments: argparse.Namespace,
    name: str,
    request: Q,
    do: Callable[[SparkSession, Config, Q, Callable[[str], None]], R],
    show: Callable[[R], None],
) -> int:
    """Like run_job, but checks the request before Spark starts."""

    def job(config: Config) -> R:
        request.check()
        with session(name, config) as spark:
            return do(spark, config, request, Progress(arguments.quiet))

    return run_job(arguments, job, show)


@contextmanager
def session(job: str, config: Config) -> Iterator[SparkSession]:
    """A Spark session that ends with the job."""
    from pgoutput_etl.spark.session import check_catalog, end_session, start_session

    spark = start_session(f"pgoutput_etl {job} {config.source.name}", config.spark, config.secrets)
    try:
        if config.target.catalog is not None:
            check_catalog(spark, config.target.catalog)
        yield spark
    finally:
        end_session(spark)


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, metavar="FILE", help="the source's YAML file")


def add_usual(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that every job with a configuration lists last in its help."""
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the file")
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="print no progress to standard error")


T = TypeVar("T")


def _argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Reports a ValueError of `parse` as argparse's own errors."""

    def parse_argument(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument


lsn: Callable[[str], int] = _argument(parse_lsn)

time: Callable[[str], datetime] = _argument(parse_time)


def words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
