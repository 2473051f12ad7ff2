"""Does tables again from the archive: rebuilds them, repairs a range of commits, or builds them beside as of a commit.

Without a range a table is rebuilt whole. With one, the rows that its commits touched are brought to what the archive
says of them now: none that was deleted since comes back, no newer change is undone. The nightly job goes on after it.
"""

from __future__ import annotations

import argparse

from pgoutput_etl.jobs.backfill.report import print_backfill
from pgoutput_etl.jobs.backfill.request import BackfillRequest
from pgoutput_etl.jobs.backfill.run import backfill
from pgoutput_etl.jobs.command import Command, add_config, add_usual, lsn, run_request, time, words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--tables", type=words, metavar="PATTERN,…", help="schema.table, as shell patterns")
    which.add_argument("--from-quarantine", action="store_true", help="all tables that are held, rebuilt")
    parser.add_argument("--from-lsn", type=lsn, metavar="LSN", help="the first commit of the range, as 16/B374D848")
    parser.add_argument("--to-lsn", type=lsn, metavar="LSN", help="the last one")
    parser.add_argument(
        "--from-time", type=time, metavar="TIME", help="the same by commit time: ISO 8601, UTC if no zone"
    )
    parser.add_argument("--to-time", type=time, metavar="TIME")
    parser.add_argument(
        "--into", metavar="ROOT", help="build ROOT/schema/table, as of --to-lsn or --to-time, and no more"
    )
    parser.add_argument(
        "--since-version", type=int, metavar="N", help="begin with the table's Delta version N, not with the archive"
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
