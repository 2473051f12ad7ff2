"""Prints rows of a Delta table."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from io import StringIO

from pgoutput_etl.exit_codes import EXIT_FAILED
from pgoutput_etl.identifiers import printable
from pgoutput_etl.jobs.command import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="the table's folder or its name in a catalog, as in a run's summary")
    parser.add_argument("--rows", type=int, default=20, help="number of rows (default: %(default)s)")
    parser.add_argument("--version", type=int, help="the Delta version to read (default: the newest)")


def run(arguments: argparse.Namespace) -> int:
    from pyspark.errors import AnalysisException

    from pgoutput_etl.spark.delta import read_table
    from pgoutput_etl.spark.session import end_session, start_session

    spark = start_session("pgoutput_etl show", {})
    try:
        output = StringIO()
        with redirect_stdout(output):
            read_table(spark, arguments.path, arguments.version).show(arguments.rows, truncate=40)
        for line in output.getvalue().splitlines():
            print(printable(line))
    except AnalysisException as error:
        print(f"can't read {arguments.path}: {error.getCondition()}", file=sys.stderr)
        return EXIT_FAILED
    finally:
        end_session(spark)
    return 0


EXAMPLE = "./spark-submit.sh jobs/show.py build/demo/tables/public/acct --rows 5"

COMMAND = Command("show", __doc__, EXAMPLE, add_arguments, run)
