"""Prints rows of a Delta table: its newest version, or with --config a table as of any commit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING

from pgoutput_etl.config.settings import load_config
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.exit_codes import EXIT_FAILED
from pgoutput_etl.identifiers import pattern_of, printable
from pgoutput_etl.jobs.command import Command, session
from pgoutput_etl.jobs.moment_options import add_moment
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.standard_output import StandardOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "table",
        metavar="TABLE",
        help="a folder or a name in a catalog, as in a run's summary; with --config, schema.table",
    )
    add("--rows", type=int, default=20, metavar="N", help="number of rows (default: %(default)s)")
    add("--version", type=int, metavar="N", help="the Delta version to read (default: the newest)")
    add("--config", metavar="FILE", help="the source's YAML file: read the table as of a commit")
    add_moment(parser)
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the file")


def _check(arguments: argparse.Namespace) -> None:
    """Raises ConfigError."""
    if (arguments.config is None) != (arguments.moment is None):
        raise ConfigError("expected --config together with --at, --at-xid or --before-xid")
    if arguments.moment is not None and arguments.version is not None:
        raise ConfigError("expected either --version or a commit")


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    from pyspark.errors import PySparkException

    try:
        with (_rows_of_version if arguments.moment is None else _rows_at)(arguments) as rows:
            output = StringIO()
            with redirect_stdout(output):
                rows.show(arguments.rows, truncate=40)
    except PySparkException as error:
        print(f"can't read {arguments.table}: {error.getCondition()}", file=sys.stderr)
        return EXIT_FAILED
    with StandardOutput():
        for line in output.getvalue().splitlines():
            print(printable(line))
    return 0


@contextmanager
def _rows_of_version(arguments: argparse.Namespace) -> Iterator[DataFrame]:
    from pgoutput_etl.places import Place
    from pgoutput_etl.spark.delta import read_table
    from pgoutput_etl.spark.session import end_session, start_session

    spark = start_session("pgoutput_etl show", {})
    try:
        yield read_table(spark, Place.parse(arguments.table), arguments.version)
    finally:
        end_session(spark)


@contextmanager
def _rows_at(arguments: argparse.Namespace) -> Iterator[DataFrame]:
    from pgoutput_etl.answers.moment.read import MomentReader, archive_of, commit_of

    config, table = load_config(arguments.config, arguments.set), arguments.table
    with session("show", config) as spark:
        archive = archive_of(spark, config)
        lsn = commit_of(archive, arguments.moment)
        tables = MomentReader(archive).read(lsn, [pattern_of(table)])
        if table in tables.held:
            print(
                f"{table} is incomplete: it has the commits through {format_lsn(tables.held[table])}", file=sys.stderr
            )
        if table in tables.ahead:
            raise ConfigError(
                f"the archive has {table} only since a snapshot at {format_lsn(tables.ahead[table])}, after "
                f"{format_lsn(lsn)}"
            )
        if table not in tables:
            raise ConfigError(f"there was no table {table} at {format_lsn(lsn)}")
        yield tables[table]


EXAMPLE = "./spark-submit.sh jobs/show.py build/demo/tables/public/acct --rows 5"

COMMAND = Command("show", __doc__, EXAMPLE, add_arguments, run)
