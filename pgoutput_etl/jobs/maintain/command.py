"""Keeps a source's Delta tables and its ledger fast and small. Does nothing unless --execute is said.

Puts small files together (OPTIMIZE), removes files that no version of the last days needs (VACUUM), writes checkpoints
of the Delta logs, and deletes rows of the ledger that nothing asks for any more. May run beside the nightly job: what
can't be done safely then is left for the next time, and said.
"""

from __future__ import annotations

import argparse

from pgoutput_etl.jobs.command import Command, add_config, add_usual, run_request, words
from pgoutput_etl.jobs.maintain.report import print_maintenance
from pgoutput_etl.jobs.maintain.request import LEAST_KEEP_DAYS, STEPS, MaintainRequest
from pgoutput_etl.jobs.maintain.run import maintain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--execute", action="store_true", help="do it; otherwise it is only said what would be done")
    parser.add_argument("--tables", type=words, default=("*",), metavar="PATTERN,…", help="of the targets, only these")
    parser.add_argument(
        "--only", type=words, default=STEPS, metavar="STEP,…", help=f"some of {', '.join(STEPS)} (default: all)"
    )
    parser.add_argument("--zorder", action="store_true", help="lay targets' rows by their key; rewrites them")
    parser.add_argument(
        "--keep-days",
        type=int,
        default=LEAST_KEEP_DAYS,
        metavar="N",
        help="VACUUM keeps files that a version of these days needs (default, and least: %(default)s)",
    )
    parser.add_argument(
        "--ledger-keep-days", type=int, default=30, metavar="N", help="of the ledger's rows (default: %(default)s)"
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
