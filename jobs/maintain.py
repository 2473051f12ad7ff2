"""Keeps a source's Delta tables and its ledger fast and small. Does nothing unless --execute is said.

Puts small files together (OPTIMIZE), removes files that no version of the last days needs (VACUUM), writes checkpoints
of the Delta logs, and deletes rows of the ledger that nothing asks for any more. May run beside the nightly job: what
can't be done safely then is left for the next time, and said.
"""

from __future__ import annotations

import argparse
import sys

from pgoutput_etl.config import load_config, refuse_unbuilt
from pgoutput_etl.errors import ConfigError, PgoutputEtlError
from pgoutput_etl.maintain_report import print_maintenance
from pgoutput_etl.maintaining import maintain
from pgoutput_etl.report import EXIT_FAILED, EXIT_USAGE, Progress, print_error
from pgoutput_etl.retention import LEAST_KEEP_DAYS, STEPS, MaintainRequest
from pgoutput_etl.spark import start_session

EXAMPLE = "example: ./spark-submit.sh jobs/maintain.py --config conf/local.yaml --keep-days 30 --execute"


def words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jobs/maintain.py", description=__doc__, allow_abbrev=False, epilog=EXAMPLE)
    parser.add_argument("--config", required=True, metavar="FILE", help="the YAML file of the nightly job")
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
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the file")
    parser.add_argument("--json", action="store_true", help="print the report for programs")
    parser.add_argument("--quiet", action="store_true", help="show no progress on standard error")
    return parser


def main() -> int:
    arguments = arguments_parser().parse_args()
    request = MaintainRequest(
        arguments.tables,
        arguments.only,
        arguments.zorder,
        arguments.keep_days,
        arguments.ledger_keep_days,
        arguments.execute,
    )
    try:
        config = load_config(arguments.config, arguments.set)
        refuse_unbuilt(config)
        request.check()
        spark = start_session(f"pgoutput_etl maintain {config.source.name}", config.spark, config.secrets)
        try:
            summary = maintain(spark, config, request, Progress(arguments.quiet))
        finally:
            spark.stop()
    except PgoutputEtlError as error:
        print_error(error)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    if arguments.json:
        print(summary.to_json())
    else:
        print_maintenance(summary)
    return summary.exit_code


if __name__ == "__main__":
    sys.exit(main())
