"""Says whether Delta and PostgreSQL hold the same rows; writes nothing.

Compares tables with a server (--jdbc), or one table with PostgreSQL's CSV (--csv) or another Delta table (--delta): by
digests of ranges of keys, and row by row where these differ. Values are shown only if --values is said.
"""

from __future__ import annotations

import argparse
import sys

from pgoutput_etl.config import load_config, refuse_unbuilt
from pgoutput_etl.errors import ConfigError, PgoutputEtlError
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.report import EXIT_FAILED, EXIT_USAGE, Progress, print_error
from pgoutput_etl.spark import start_session
from pgoutput_etl.verify_report import print_verification
from pgoutput_etl.verify_request import DEFAULT_LIMIT, VerifyRequest
from pgoutput_etl.verifying import verify

EXAMPLE = (
    "example: PGPASSWORD=… ./spark-submit.sh --packages org.postgresql:postgresql:42.7.7 jobs/verify.py "
    "--config conf/local.yaml --jdbc jdbc:postgresql://db:5432/shop?user=etl"
)


def lsn(text: str) -> int:
    try:
        return parse_lsn(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def patterns(text: str) -> tuple[str, ...]:
    return tuple(pattern.strip() for pattern in text.split(",") if pattern.strip())


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jobs/verify.py", description=__doc__, allow_abbrev=False, epilog=EXAMPLE)
    parser.add_argument("--config", required=True, metavar="FILE", help="the YAML file of the nightly job")
    side = parser.add_mutually_exclusive_group(required=True)
    side.add_argument(
        "--jdbc", metavar="URL", help="a server, as it is now; user and password from PGUSER and PGPASSWORD"
    )
    side.add_argument("--csv", metavar="PATH", help="what COPY … TO … WITH (FORMAT csv, HEADER) wrote")
    side.add_argument("--delta", metavar="PATH", help="another Delta table, as it is now")
    parser.add_argument("--tables", type=patterns, metavar="PATTERN,…", help="with --jdbc: of all tables, these")
    parser.add_argument("--table", metavar="SCHEMA.TABLE", help="with --csv and --delta: which table it is")
    parser.add_argument("--at-lsn", type=lsn, metavar="LSN", help="the LSN at which --csv or --delta was taken")
    parser.add_argument("--values", action="store_true", help="show the values of rows that differ")
    parser.add_argument(
        "--limit", type=int, default=DEFAULT_LIMIT, metavar="N", help="of how many such rows (default: %(default)s)"
    )
    parser.add_argument(
        "--connections", type=int, default=4, metavar="N", help="to the server, at a time (default: %(default)s)"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the file")
    parser.add_argument("--json", action="store_true", help="print the report for programs")
    parser.add_argument("--quiet", action="store_true", help="show no progress on standard error")
    return parser


def main() -> int:
    arguments = arguments_parser().parse_args()
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
    try:
        config = load_config(arguments.config, arguments.set)
        refuse_unbuilt(config)
        request.check()
        spark = start_session(f"pgoutput_etl verify {config.source.name}", config.spark, config.secrets)
        try:
            summary = verify(spark, config, request, Progress(arguments.quiet))
        finally:
            spark.stop()
    except PgoutputEtlError as error:
        print_error(error)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    if arguments.json:
        print(summary.to_json())
    else:
        print_verification(summary)
    return summary.exit_code


if __name__ == "__main__":
    sys.exit(main())
