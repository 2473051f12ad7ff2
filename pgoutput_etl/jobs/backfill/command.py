"""Rebuilds tables from the archive, repairs the rows of a range of commits, or builds tables in another folder.

Without a range, whole tables are rebuilt. With a range, the rows that its commits changed are set to their current
state in the archive: rows deleted since stay deleted, and newer changes stay. The nightly job continues afterwards.
"""

from __future__ import annotations

import argparse

from pgoutput_etl.jobs.backfill.report import print_backfill
from pgoutput_etl.jobs.backfill.request import BackfillRequest
from pgoutput_etl.jobs.backfill.run import backfill
from pgoutput_etl.jobs.command import Command, add_config, add_usual, lsn, run_request, time, words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    tables = parser.add_mutually_exclusive_group(required=True)
    tables.add_argument("--tables", type=words, metavar="PATTERN,…", help="schema.table, as shell patterns")
    tables.add_argument("--from-quarantine", action="store_true", help="rebuild all held tables")
    parser.add_argument("--from-lsn", type=lsn, metavar="LSN", help="the range's first commit, such as 16/B374D848")
    parser.add_argument("--to-lsn", type=lsn, metavar="LSN", help="the range's last commit")
    parser.add_argument(
        "--from-time", type=time, metavar="TIME", help="the first commit by time: ISO 8601, UTC if no zone"
    )
    parser.add_argument("--to-time", type=time, metavar="TIME", help="the last commit by time")
    parser.add_argument("--into", metavar="ROOT", help="only build ROOT/schema/table, as of --to-lsn or --to-time")
    parser.add_argument(
        "--since-version",
        type=int,
        metavar="N",
        help="start from the table's Delta version N, not from nothing",
    )
    add_usual(parser)


def run(arguments: argparse.Namespace) -> int:
    request = BackfillRequest(
        None if arguments.from_quarantine else arguments.tables,
        arguments.from_lsn,
        arguments.to_lsn,
        arguments.from_time,
        arguments.to_time,
        arguments.into,
        arguments.since_version,
    )
    return run_request(arguments, "backfill", request, backfill, print_backfill)


COMMAND = Command(
    "backfill",
    __doc__,
    "./spark-submit.sh jobs/backfill.py --config conf/local.yaml --tables 'public.orders,public.line*'",
    add_arguments,
    run,
)
