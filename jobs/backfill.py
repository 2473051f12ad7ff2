"""Does tables again from the archive: rebuilds them, repairs a range of commits, or builds them beside as of a commit.

Without a range a table is rebuilt whole. With one, the rows that its commits touched are brought to what the archive
says of them now: none that was deleted since comes back, no newer change is undone. The nightly job goes on after it.
"""

from __future__ import annotations

import argparse
import sys
from datetime import datetime, timezone

from pgoutput_etl.backfill import backfill
from pgoutput_etl.backfill_report import print_backfill
from pgoutput_etl.backfill_request import Request
from pgoutput_etl.config import load_config, refuse_unbuilt
from pgoutput_etl.errors import ConfigError, PgoutputEtlError
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.report import EXIT_FAILED, EXIT_USAGE, Progress, print_error
from pgoutput_etl.spark import start_session

EXAMPLE = "example: ./spark-submit.sh jobs/backfill.py --config conf/local.yaml --tables 'public.orders,public.line*'"


def lsn(text: str) -> int:
    try:
        return parse_lsn(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.removesuffix("Z") + ("+00:00" if text.endswith("Z") else ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a time: {text!r} (expected ISO 8601, as 2026-03-01T02:13:00Z)") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)


def patterns(text: str) -> tuple[str, ...]:
    return tuple(pattern.strip() for pattern in text.split(",") if pattern.strip())


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jobs/backfill.py", description=__doc__, allow_abbrev=False, epilog=EXAMPLE)
    parser.add_argument("--config", required=True, metavar="FILE", help="the YAML file of the nightly job")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--tables", type=patterns, metavar="PATTERN,…", help="schema.table, as shell patterns")
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
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the file")
    parser.add_argument("--json", action="store_true", help="print the summary for programs")
    parser.add_argument("--quiet", action="store_true", help="show no progress on standard error")
    return parser


def main() -> int:
    arguments = arguments_parser().parse_args()
    request = Request(
        None if arguments.from_quarantine else arguments.tables,
        arguments.from_lsn,
        arguments.to_lsn,
        arguments.from_time,
        arguments.to_time,
        arguments.into,
        arguments.since_version,
    )
    try:
        config = load_config(arguments.config, arguments.set)
        refuse_unbuilt(config)
        request.check()
        spark = start_session(f"pgoutput_etl backfill {config.source.name}", config.spark, config.secrets)
        try:
            summary = backfill(spark, config, request, Progress(arguments.quiet))
        finally:
            spark.stop()
    except PgoutputEtlError as error:
        print_error(error)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    if arguments.json:
        print(summary.to_json())
    else:
        print_backfill(summary)
    return summary.exit_code


if __name__ == "__main__":
    sys.exit(main())
