"""Checks that Delta and PostgreSQL hold the same rows; writes nothing.

Compares tables with a server (--jdbc), or one table with PostgreSQL's CSV (--csv) or another Delta table (--delta):
first digests of key ranges, then the rows of ranges that differ. Prints cell values only with --values.
"""

from __future__ import annotations

import argparse

from pgoutput_etl.jobs.command import Command, add_config, add_usual, lsn, run_request, words
from pgoutput_etl.jobs.verify.report import print_verification
from pgoutput_etl.jobs.verify.request import DEFAULT_LIMIT, VerifyRequest
from pgoutput_etl.jobs.verify.run import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    side = parser.add_mutually_exclusive_group(required=True)
    side.add_argument("--jdbc", metavar="URL", help="a live server; user and password come from PGUSER and PGPASSWORD")
    side.add_argument("--csv", metavar="PATH", help="output of COPY … TO … WITH (FORMAT csv, HEADER)")
    side.add_argument(
        "--delta", metavar="PATH", help="another Delta table's current version: a folder, or `catalog`.`schema`.`table`"
    )
    parser.add_argument("--tables", type=words, metavar="PATTERN,…", help="with --jdbc: tables to compare")
    parser.add_argument("--table", metavar="SCHEMA.TABLE", help="with --csv and --delta: the table to compare")
    parser.add_argument("--at-lsn", type=lsn, metavar="LSN", help="the LSN at which --csv or --delta was taken")
    parser.add_argument("--values", action="store_true", help="print the values of rows that differ")
    parser.add_argument(
        "--limit", type=int, default=DEFAULT_LIMIT, metavar="N", help="differing rows to list (default: %(default)s)"
    )
    parser.add_argument(
        "--connections", type=int, default=4, metavar="N", help="parallel connections (default: %(default)s)"
    )
    add_usual(parser)


def run(arguments: argparse.Namespace) -> int:
    request = VerifyRequest(
        arguments.tables,
        arguments.jdbc,
        arguments.csv,
        arguments.delta,
        arguments.table,
        arguments.at_lsn,
        arguments.values,
        arguments.limit,
        arguments.connections,
    )
    return run_request(arguments, "verify", request, verify, print_verification)


COMMAND = Command(
    "verify",
    __doc__,
    (
        "PGPASSWORD=… ./spark-submit.sh --packages org.postgresql:postgresql:42.7.7 jobs/verify.py "
        "--config conf/local.yaml --jdbc jdbc:postgresql://db:5432/shop?user=etl"
    ),
    add_arguments,
    run,
)
