"""Loads rows from before the slot: tables as of an LSN, and what the archive has of them from there on.

From a server (--jdbc), whose snapshot it has exported itself unless one is named, or from files that COPY or pg_dump
wrote (--csv, --copy, --dump), with the LSN at which they hold. Tables that are loaded take the place of what was there;
others go on.
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
    side.add_argument("--jdbc", metavar="URL", help="a server; user and password from PGUSER and PGPASSWORD")
    side.add_argument("--csv", metavar="PATH", help="what COPY … TO … WITH (FORMAT csv, HEADER) wrote, of one table")
    side.add_argument("--copy", metavar="PATH", help="what COPY … TO … WITH (FORMAT binary) wrote, of one table")
    side.add_argument("--dump", metavar="FOLDER", help="what pg_dump -Fd wrote")
    parser.add_argument("--lsn", type=lsn, metavar="LSN", help="where the rows hold; not needed with --jdbc alone")
    parser.add_argument("--snapshot", metavar="NAME", help="with --jdbc: an exported snapshot, which holds at --lsn")
    parser.add_argument("--time", type=time, metavar="TIME", help="when that was: ISO 8601, UTC if no zone")
    parser.add_argument("--columns", type=words, default=(), metavar="NAME,…", help="with --copy: if it has not all")
    parser.add_argument("--catalog", metavar="FILE", help="with files: what --catalog-query gave")
    parser.add_argument(
        "--catalog-query", nargs=0, action=_CatalogQuery, help="print that query, for psql, and no more"
    )
    parser.add_argument("--publication", type=words, default=(), metavar="NAME,…", help="the slot's; all, if not said")
    parser.add_argument(
        "--connections", type=int, default=4, metavar="N", help="to the server, at a time (default: %(default)s)"
    )
    add_usual(parser)


def run(arguments: argparse.Namespace) -> int:
    formats = {RowFormat.CSV: arguments.csv, RowFormat.BINARY: arguments.copy, RowFormat.DUMP: arguments.dump}
    form, files = next(((f, path) for f, path in formats.items() if path is not None), (RowFormat.CSV, None))
    request = SnapshotRequest(
        arguments.tables,
        arguments.lsn,
        arguments.jdbc,
        arguments.snapshot,
        files,
        form,
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
