"""Loads table rows as of an LSN, including rows from before the slot, and applies the archive's later commits.

The rows come from a server (--jdbc), through a snapshot that the job exports unless --snapshot names one, or from files
that COPY or pg_dump wrote (--csv, --copy, --dump) as of --lsn. Loaded tables are replaced; others are not affected.
"""

from __future__ import annotations

import argparse

from pgoutput_etl.console import EXIT_DONE
from pgoutput_etl.jobs.command import Command, add_config, add_usual, lsn, run_request, time, words
from pgoutput_etl.jobs.snapshot.report import print_snapshot
from pgoutput_etl.jobs.snapshot.request import RowFormat, SnapshotRequest
from pgoutput_etl.jobs.snapshot.run import snapshot
from pgoutput_etl.postgres.catalog import QUERY


class _CatalogQuery(argparse.Action):
    """Prints the query, as --help prints the help."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"{QUERY};")
        parser.exit(EXIT_DONE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--tables", type=words, required=True, metavar="PATTERN,…", help="schema.table, as shell patterns"
    )
    side = parser.add_mutually_exclusive_group(required=True)
    side.add_argument("--jdbc", metavar="URL", help="a server; PGUSER and PGPASSWORD hold the credentials")
    side.add_argument("--csv", metavar="PATH", help="one table from COPY … TO … WITH (FORMAT csv, HEADER)")
    side.add_argument("--copy", metavar="PATH", help="one table from COPY … TO … WITH (FORMAT binary)")
    side.add_argument("--dump", metavar="FOLDER", help="the output of pg_dump -Fd")
    parser.add_argument("--lsn", type=lsn, metavar="LSN", help="the LSN of the rows; not needed with --jdbc alone")
    parser.add_argument("--snapshot", metavar="NAME", help="with --jdbc: an exported snapshot as of --lsn")
    parser.add_argument("--time", type=time, metavar="TIME", help="the time of that LSN: ISO 8601, UTC if no zone")
    parser.add_argument(
        "--columns", type=words, default=(), metavar="NAME,…", help="with --copy: the files' columns, if not all"
    )
    parser.add_argument("--catalog", metavar="FILE", help="with files: the output of --catalog-query")
    parser.add_argument("--catalog-query", nargs=0, action=_CatalogQuery, help="print the query for psql and exit")
    parser.add_argument(
        "--publication", type=words, default=(), metavar="NAME,…", help="the slot's publications (default: all)"
    )
    parser.add_argument(
        "--connections", type=int, default=4, metavar="N", help="parallel connections (default: %(default)s)"
    )
    add_usual(parser)


def run(arguments: argparse.Namespace) -> int:
    formats = {RowFormat.CSV: arguments.csv, RowFormat.BINARY: arguments.copy, RowFormat.DUMP: arguments.dump}
    row_format, files = next(((f, path) for f, path in formats.items() if path is not None), (RowFormat.CSV, None))
    request = SnapshotRequest(
        arguments.tables,
        arguments.lsn,
        arguments.jdbc,
        arguments.snapshot,
        files,
        row_format,
        arguments.columns,
        arguments.time,
        arguments.catalog,
        arguments.publication,
        arguments.connections,
    )
    return run_request(arguments, "snapshot", request, snapshot, print_snapshot)


COMMAND = Command(
    "snapshot",
    __doc__,
    (
        "PGUSER=etl PGPASSWORD=… ./spark-submit.sh --packages org.postgresql:postgresql:42.7.7 jobs/snapshot.py "
        "--config conf/local.yaml --tables 'public.*' --jdbc jdbc:postgresql://db:5432/shop"
    ),
    add_arguments,
    run,
)
