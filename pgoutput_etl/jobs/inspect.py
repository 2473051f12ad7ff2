"""Reports what landed files contain, without Delta, a ledger or a configuration.

Takes some or all of one slot's archive: files, folders or globs. Local files are read without Spark, on all cores, as
Spark takes longer to start than most archives take to inspect. Files elsewhere (s3a://, abfss://, hdfs://, …) are read
by Spark; --spark also reads local paths with Spark, for files that the whole cluster sees under the same path.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from pgoutput_etl.answers.inspection_report import exit_code, print_report, report_json
from pgoutput_etl.console import ProgressPrinter
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.exit_codes import EXIT_FAILED
from pgoutput_etl.inspection.archive import Runner, inspect_archive, inspection_contexts
from pgoutput_etl.inspection.local_runner import LocalRunner, is_local, list_local
from pgoutput_etl.inspection.message_lines import MessageFilter
from pgoutput_etl.inspection.report import report_on
from pgoutput_etl.jobs.command import Command, add_output, time
from pgoutput_etl.landing.file_index import Listing
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.standard_output import StandardOutput
from pgoutput_etl.timestamps import microseconds_of


def lsns(text: str) -> tuple[int | None, int | None]:
    first, dots, last = text.partition("..")
    try:
        return parse_lsn(first) if first else None, parse_lsn(last) if last else None if dots else parse_lsn(first)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; expected FROM..TO, FROM.. or ..TO") from None


def expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"not a regular expression: {error}") from None
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file, a folder or a glob")
    choices = [framing.value for framing in Framing]
    parser.add_argument("--framing", choices=choices, default="auto", help="how the files separate messages")
    add_output(parser)
    parser.add_argument("--spark", action="store_true", help="read local files with Spark, too")
    add = parser.add_argument_group("messages").add_argument
    add("--messages", action="store_true", help="print the messages, one per line")
    add("--values", action="store_true", help="print cell values, which are hidden otherwise")
    add("--table", metavar="PATTERN", help="only for these tables: schema.table, as a shell pattern")
    add("--xid", type=int, help="only of this transaction or subtransaction")
    add("--lsn", metavar="FROM..TO", type=lsns, default=(None, None), help="either may be omitted")
    add("--from-time", type=time, metavar="TIME", help="committed at or after: ISO 8601, UTC without a zone")
    add("--to-time", type=time, metavar="TIME", help="committed at or before")
    names = "search in names of tables, columns, types, origins, prefixes"
    add("--grep", type=expression, metavar="REGEX", help=names)


def _require_messages(arguments: argparse.Namespace) -> None:
    names = ("values", "table", "xid", "from_time", "to_time", "grep")
    filters = [name for name in names if getattr(arguments, name) not in (None, False)]
    filters += ["lsn"] if arguments.lsn != (None, None) else []
    if filters and not arguments.messages:
        raise ConfigError(f"--{filters[0].replace('_', '-')} needs --messages")


def needs_spark(arguments: argparse.Namespace) -> bool:
    _require_messages(arguments)
    return arguments.spark or not all(is_local(path) for path in arguments.paths)


def list_files(arguments: argparse.Namespace, stack: ExitStack) -> tuple[Listing, Runner]:
    """The files, and the runner that reads them until `stack` closes."""
    framing = Framing(arguments.framing)
    if not needs_spark(arguments):
        landed = list_local(arguments.paths)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="pgoutput-etl.")))
        return landed, stack.enter_context(LocalRunner(folder, framing, os.cpu_count() or 1))
    from pgoutput_etl.ingest.inspection_runner import SparkRunner, list_on_spark
    from pgoutput_etl.spark.session import end_session, start_session

    spark = start_session("pgoutput_etl inspect", {})
    stack.callback(end_session, spark)
    return list_on_spark(spark, arguments.paths), stack.enter_context(SparkRunner(spark, framing))


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _inspect(arguments: argparse.Namespace) -> int:
    with ExitStack() as stack:
        landed, runner = list_files(arguments, stack)
        progress = ProgressPrinter(arguments.quiet)
        inspection = inspect_archive(landed, runner, progress)
        report = report_on(inspection)
        if arguments.messages:
            first, last = arguments.lsn
            begin, end = (limit and microseconds_of(limit) for limit in (arguments.from_time, arguments.to_time))
            wanted = MessageFilter(arguments.table, arguments.xid, first, last, begin, end, arguments.grep)
            runner.print_messages(inspection_contexts(inspection, wanted, arguments.values, arguments.json), _print)
            for line in (*report.unreadable, *report.damages, *report.gaps):
                progress(f"damaged or missing: {line}")
        elif arguments.json:
            _print(report_json(report))
        else:
            print_report(report)
        return exit_code(report)


def run(arguments: argparse.Namespace) -> int:
    with StandardOutput():
        return _inspect(arguments)
    return EXIT_FAILED  # the reader of standard output has ended


COMMAND = Command(
    "inspect",
    __doc__,
    "python jobs/inspect.py tests/data/random16/v2 --messages --table public.acct --lsn 0/1A00000..",
    add_arguments,
    run,
)
