"""Loads table rows as of an LSN, including rows from before the slot, and applies the archive's later commits.

The order of an initial load: (1) create the publication, (2) create the slot, (3) start landing, (4) load the snapshot,
(5) apply. A snapshot from before the slot would lose the commits in between, and is refused. --check compares a server
with this order, and prints what is missing and the next commands.

The rows come from a server (--jdbc), through a snapshot that the job exports unless --snapshot names one, or from files
that COPY or pg_dump wrote (--csv, --copy, --dump) as of --lsn. Loaded tables are replaced; others are not affected.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress
from pgoutput_etl.exit_codes import EXIT_DONE
from pgoutput_etl.jobs.command import job_command, lsn, request_job, time, words
from pgoutput_etl.postgres.catalog import QUERY
from pgoutput_etl.work.snapshot.request import RowFormat, SnapshotRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgoutput_etl.work.snapshot.check_report import CheckReport
    from pgoutput_etl.work.snapshot.report import SnapshotSummary


class _CatalogQuery(argparse.Action):
    """Prints the query, as --help prints the help."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"SELECT pg_catalog.set_config('search_path', '', false) \\g /dev/null\n{QUERY};")
        parser.exit(EXIT_DONE)


class _Files(argparse.Action):
    """Stores the path, and the format that the option's name means."""

    def __call__(self, _: argparse.ArgumentParser, namespace: argparse.Namespace, *values: Any) -> None:
        namespace.files, option = values
        namespace.format = RowFormat(option.removeprefix("--"))


EXAMPLE = (
    "PGUSER=etl PGPASSWORD=… ./spark-submit.sh --packages org.postgresql:postgresql:42.7.7 jobs/snapshot.py "
    "--config conf/local.yaml --tables 'public.*' --jdbc jdbc:postgresql://db:5432/shop"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--tables",
        type=words,
        required=True,
        metavar="PATTERN,…",
        help="schema.table, as shell patterns; !PATTERN leaves out",
    )
    side = parser.add_mutually_exclusive_group(required=True)
    side.add_argument("--jdbc", metavar="URL", help="a server; PGUSER and PGPASSWORD hold the credentials")
    for option, metavar, description in (
        ("--csv", "PATH", "one table from COPY … TO … WITH (FORMAT csv, HEADER)"),
        ("--copy", "PATH", "one table from COPY … TO … WITH (FORMAT binary)"),
        ("--dump", "FOLDER", "the output of pg_dump -Fd"),
    ):
        side.add_argument(option, dest="files", action=_Files, metavar=metavar, help=description)
    parser.set_defaults(format=RowFormat.CSV)
    add("--lsn", type=lsn, metavar="LSN", help="the LSN of the rows; not needed with --jdbc alone")
    add("--snapshot", metavar="NAME", help="with --jdbc: an exported snapshot as of --lsn")
    add("--time", type=time, metavar="TIME", help="the time of that LSN: ISO 8601, UTC if no zone")
    add("--columns", type=words, default=(), metavar="NAME,…", help="with --copy: the files' columns, if not all")
    add("--catalog", metavar="FILE", help="with files: the output of --catalog-query")
    add("--catalog-query", nargs=0, action=_CatalogQuery, help="print the query for psql and exit")
    add(
        "--publication",
        dest="publications",
        type=words,
        default=(),
        metavar="NAME,…",
        help="the slot's publications (default: all)",
    )
    add("--check", dest="checks_only", action="store_true", help="with --jdbc: print a checklist; load nothing")
    add("--repair", action="store_true", help="with --jdbc: write only the rows that differ, while other runs continue")
    add("--slot", metavar="NAME", help="with --jdbc: the receiver's slot, if the database has several")
    add("--slot-lsn", type=lsn, metavar="LSN", help="with --lsn: the LSN that the slot's creation returned")
    add("--connections", type=int, default=4, metavar="N", help="parallel connections (default: %(default)s)")


def _run(
    spark: SparkSession, config: Config, request: SnapshotRequest, progress: Progress
) -> SnapshotSummary | CheckReport:
    from pgoutput_etl.work.snapshot.run import check, snapshot

    return check(spark, config, request) if request.checks_only else snapshot(spark, config, request, progress)


def _print_report(report: SnapshotSummary | CheckReport) -> None:
    from pgoutput_etl.work.snapshot.check_report import CheckReport, print_checks
    from pgoutput_etl.work.snapshot.report import print_snapshot

    if isinstance(report, CheckReport):
        print_checks(report)
    else:
        print_snapshot(report)


JOB = request_job("snapshot", SnapshotRequest, _run)

COMMAND = job_command("snapshot", __doc__, EXAMPLE, JOB, _print_report, add_options)
