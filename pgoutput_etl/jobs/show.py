"""Prints rows of a Delta table: its newest version, or with --config a table as of any commit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Annotated

from pgoutput_etl.answers.moment.request import AsOf, Moment
from pgoutput_etl.config.settings import load_config
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.exit_codes import EXIT_FAILED
from pgoutput_etl.identifiers import pattern_of, printable
from pgoutput_etl.jobs.command import Command, Overrides, SourceName, session
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.options import FILE, NUMBER, Option, Value
from pgoutput_etl.standard_output import StandardOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class ShowRequest:
    table: Annotated[
        str,
        Option(
            "a folder or a name in a catalog, as in a run's summary; with --config, schema.table",
            Value("TABLE"),
            "TABLE",
        ),
    ]
    rows: Annotated[int, Option("number of rows", NUMBER)] = 20
    version: Annotated[int | None, Option("the Delta version to read (default: the newest)", NUMBER)] = None
    config: Annotated[str | None, Option("the source's YAML file: read the table as of a commit", FILE)] = None
    moment: AsOf = None
    overrides: Overrides = ()
    source: SourceName = None

    def check(self) -> None:
        """Raises ConfigError."""
        if (self.config is None) != (self.moment is None):
            raise ConfigError("expected --config together with --at, --at-xid or --before-xid")
        if self.moment is not None and self.version is not None:
            raise ConfigError("expected either --version or a commit")


def run(request: ShowRequest) -> int:
    request.check()
    from pyspark.errors import PySparkException

    config, moment = request.config, request.moment
    try:
        with (
            _rows_of_version(request) if config is None or moment is None else _rows_at(request, config, moment) as rows
        ):
            output = StringIO()
            with redirect_stdout(output):
                rows.show(request.rows, truncate=40)
    except PySparkException as error:
        print(f"can't read {request.table}: {error.getCondition()}", file=sys.stderr)
        return EXIT_FAILED
    with StandardOutput():
        for line in output.getvalue().splitlines():
            print(printable(line))
    return 0


@contextmanager
def _rows_of_version(request: ShowRequest) -> Iterator[DataFrame]:
    from pgoutput_etl.places import Place
    from pgoutput_etl.spark.delta import read_table
    from pgoutput_etl.spark.session import end_session, start_session

    spark = start_session("pgoutput_etl show", {})
    try:
        yield read_table(spark, Place.parse(request.table), request.version)
    finally:
        end_session(spark)


@contextmanager
def _rows_at(request: ShowRequest, file: str, moment: Moment) -> Iterator[DataFrame]:
    from pgoutput_etl.answers.moment.read import MomentReader, archive_of, commit_of

    config, table = load_config(file, request.overrides, source=request.source), request.table
    with session("show", config) as spark:
        archive = archive_of(spark, config)
        lsn = commit_of(archive, moment)
        tables = MomentReader(spark, archive).read(lsn, [pattern_of(table)])
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

COMMAND = Command("show", __doc__, EXAMPLE, (ShowRequest,), run)
