"""What all jobs have in common on a command line: arguments, exit codes, a report for people or for programs."""

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
    """A job as it is typed. name: as in jobs/NAME.py; run: gives the exit code."""

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

    def main(self, prog: str | None = None, given: Sequence[str] | None = None) -> int:
        """`prog`: what was typed, `given`: and what behind it; what the process was started with, if None."""
        return self.run(self.parser(prog or f"jobs/{self.name}.py").parse_args(given))


class JobReport(Protocol):
    @property
    def exit_code(self) -> int: ...

    def to_json(self) -> str: ...


R = TypeVar("R", bound=JobReport)


def run_job(arguments: argparse.Namespace, job: Callable[[Config], R], show: Callable[[R], None]) -> int:
    """Does a job that has a configuration, and prints what it reports, or why it could not; gives the exit code."""
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
    """What a job is asked for beside its configuration."""

    def check(self) -> None:
        """Raises ConfigError for what can't be asked for together."""


Q = TypeVar("Q", bound=JobRequest)


def run_request(
    arguments: argparse.Namespace,
    name: str,
    request: Q,
    do: Callable[[SparkSession, Config, Q, Callable[[str], None]], R],
    show: Callable[[R], None],
) -> int:
    """As run_job; what is asked for is checked before Spark starts."""

    def job(config: Config) -> R:
        request.check()
        with session(name, config) as spark:
            return do(spark, config, request, Progress(arguments.quiet))

    return run_job(arguments, job, show)


@contextmanager
def session(job: str, config: Config) -> Iterator[SparkSession]:
    """Spark for as long as a job takes."""
    from pgoutput_etl.spark.session import check_catalog, end_session, start_session

    spark = start_session(f"pgoutput_etl {job} {config.source.name}", config.spark, config.secrets)
    try:
        if config.target.catalog is not None:
            check_catalog(spark, config.target.catalog)
        yield spark
    finally:
        end_session(spark)


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, metavar="FILE", help="the YAML file of the nightly job")


def add_usual(parser: argparse.ArgumentParser) -> None:
    """What every job with a configuration has last in its help."""
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the file")
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report for programs")
    parser.add_argument("--quiet", action="store_true", help="show no progress on standard error")


T = TypeVar("T")


def _argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """With what is wrong said as argparse says it."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


lsn: Callable[[str], int] = _argument(parse_lsn)

time: Callable[[str], datetime] = _argument(parse_time)


def words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
