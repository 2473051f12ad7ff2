"""Prints rows of a table: of a Delta table, or with --config of a source's table as of any commit.

Without --at, these are the rows of the newest Delta version, and with --config those as of the last applied commit.
LSNs are printed in PostgreSQL's form; --where compares the stored numbers.
"""

from __future__ import annotations

from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Annotated

from pgoutput_etl.answers.moment.request import NamedAsOf
from pgoutput_etl.config.settings import Config, load_config
from pgoutput_etl.console import print_to_stderr
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.exit_codes import EXIT_FAILED
from pgoutput_etl.identifiers import printable
from pgoutput_etl.jobs.command import Command, Overrides, SourceName, check_options, session
from pgoutput_etl.options import FILE, NAMES, NUMBER, Option, Value
from pgoutput_etl.standard_output import StandardOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    where: Annotated[str | None, Option("only rows that meet a condition in Spark's SQL", Value("SQL"))] = None
    columns: Annotated[tuple[str, ...], Option("only these columns", NAMES)] = ()
    version: Annotated[int | None, Option("the Delta version to read (default: the newest)", NUMBER)] = None
    config: Annotated[str | None, Option("the source's YAML file: read the table as of a commit", FILE)] = None
    at: NamedAsOf = None
    overrides: Overrides = ()
    source: SourceName = None

    def check(self) -> None:
        """Raises ConfigError."""
        if self.config is None and self.at is not None:
            raise ConfigError("--at: expected --config, which names the archive")
        if self.config is not None and self.version is not None:
            raise ConfigError("expected either --version or --config")


def run(request: ShowRequest) -> int:
    check_options(request)
    from pyspark.errors import PySparkException

    config = None if request.config is None else load_config(request.config, request.overrides, source=request.source)
    try:
        with ExitStack() as stack:
            lines = _lines(_session(config, stack), request, config)
    except PySparkException as error:
        print_to_stderr(f"can't read {request.table}: {error.getCondition()}", "ERROR", exit_code=EXIT_FAILED)
        return EXIT_FAILED
    with StandardOutput():
        for line in lines:
            print(printable(line))
    return 0


def _session(config: Config | None, stack: ExitStack) -> SparkSession:
    """A session that ends with the stack."""
    if config is not None:
        from pgoutput_etl.work.files.light_work import is_small

        return stack.enter_context(session("show", config, is_small(config), only_reads=True))
    from pgoutput_etl.spark.session import end_session, start_session

    spark = start_session("pgoutput_etl show", {})
    stack.callback(end_session, spark)
    return spark


def _lines(spark: SparkSession, request: ShowRequest, config: Config | None) -> list[str]:
    from pgoutput_etl.answers.moment.show import printed_rows, show

    rows = show(
        spark,
        request.table,
        config,
        at=request.at,
        version=request.version,
        where=request.where,
        columns=request.columns,
        progress=print_to_stderr,
    )
    output = StringIO()
    with redirect_stdout(output):
        printed_rows(rows).show(request.rows, truncate=40)
    return output.getvalue().splitlines()


EXAMPLE = "./spark-submit.sh jobs/show.py build/demo/tables/public/orders --rows 5 --where 'id < 10'"

COMMAND = Command("show", __doc__, EXAMPLE, (ShowRequest,), run)
