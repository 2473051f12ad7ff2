"""Keeps a source's Delta tables and its ledger fast and small. Changes nothing without --execute.

Compacts small files (OPTIMIZE), removes files that no recent version needs (VACUUM), writes checkpoints of the Delta
logs, and deletes obsolete rows of the ledger. May run beside the nightly job; steps that would not be safe then are
skipped and reported.
"""

from __future__ import annotations

import argparse

from pgoutput_etl.jobs.command import Command, add_config, add_usual, run_request, words
from pgoutput_etl.jobs.maintain.report import print_maintenance
from pgoutput_etl.jobs.maintain.request import MIN_KEEP_DAYS, STEPS, MaintainRequest
from pgoutput_etl.jobs.maintain.run import maintain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--execute", action="store_true", help="run the steps; without it, only list them")
    parser.add_argument("--tables", type=words, default=("*",), metavar="PATTERN,…", help="targets to maintain")
    parser.add_argument(
        "--only", type=words, default=STEPS, metavar="STEP,…", help=f"some of {', '.join(STEPS)} (default: all)"
    )
    parser.add_argument("--zorder", action="store_true", help="order targets' rows by their key; rewrites them")
    parser.add_argument(
        "--keep-days",
        type=int,
        default=MIN_KEEP_DAYS,
        metavar="N",
        help="VACUUM keeps files needed by versions of the last N days (default and minimum: %(default)s)",
    )
    parser.add_argument(
        "--ledger-keep-days",
        type=int,
        default=30,
        metavar="N",
        help="keep obsolete ledger rows for N days (default: %(default)s)",
    )
    add_usual(parser)


def run(arguments: argparse.Namespace) -> int:
    request = MaintainRequest(
        arguments.tables,
        arguments.only,
        arguments.zorder,
        arguments.keep_days,
        arguments.ledger_keep_days,
        arguments.execute,
    )
    return run_request(arguments, "maintain", request, maintain, print_maintenance)


COMMAND = Command(
    "maintain",
    __doc__,
    "./spark-submit.sh jobs/maintain.py --config conf/local.yaml --keep-days 30 --execute",
    add_arguments,
    run,
)
