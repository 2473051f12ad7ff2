"""Reports what landed files contain, without Delta, a ledger or a configuration.

Takes some or all of one slot's archive: files, folders or globs. Local files are read without Spark, on all cores, as
Spark takes longer to start than most archives take to inspect. Files elsewhere (s3a://, abfss://, hdfs://, …) are read
by Spark; --spark also reads local paths with Spark, for files that the whole cluster sees under the same path.
"""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from pgoutput_etl.console import ProgressPrinter
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.exit_codes import EXIT_FAILED
from pgoutput_etl.jobs.command import Command, OutputOptions, check_options
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.options import PATH, PATTERNS, TIME, XID, Former, Option, Value, one_of
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.standard_output import StandardOutput
from pgoutput_etl.timestamps import microseconds_of

if TYPE_CHECKING:
    from pgoutput_etl.inspection.archive import Runner
    from pgoutput_etl.inspection.message_lines import MessageFilter
    from pgoutput_etl.landing.file_index import Listing


def lsns(text: str) -> tuple[int | None, int | None]:
    first, dots, last = text.partition("..")
    try:
        return parse_lsn(first) if first else None, parse_lsn(last) if last else None if dots else parse_lsn(first)
    except ValueError as error:
        raise ValueError(f"{error}; expected FROM..TO, FROM.. or ..TO") from None


def expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


@dataclass(frozen=True, slots=True)
class InspectRequest:
    paths: Annotated[tuple[str, ...], Option("a file, a folder or a glob", PATH, "PATHS", is_list=True)]
    framing: Annotated[
        Framing,
        Option(
            f"how the files separate messages: {', '.join(framing.value for framing in Framing)} (default: auto)",
            one_of(Framing, "FRAMING"),
        ),
    ] = Framing.AUTO
    spark: Annotated[bool, Option("read local files with Spark, too")] = False
    messages: Annotated[bool, Option("print the messages, one per line; the next options choose among them")] = False
    ddl: Annotated[
        bool, Option("list the schema changes, by the catalog Messages; the next options choose among them")
    ] = False
    values: Annotated[bool, Option("print cell values, defaults, labels, and comments, which are hidden otherwise")] = (
        False
    )
    tables: Annotated[
        tuple[str, ...],
        Option("only for these tables, as schema.table", PATTERNS),
        Former("--table", value=Value("PATTERN", lambda pattern: (pattern,))),
    ] = ()
    xid: Annotated[int | None, Option("only of this transaction or subtransaction", XID)] = None
    lsn: Annotated[tuple[int | None, int | None] | None, Option("either may be omitted", Value("FROM..TO", lsns))] = (
        None
    )
    from_time: Annotated[datetime | None, Option("committed at or after: ISO 8601, UTC without a zone", TIME)] = None
    to_time: Annotated[datetime | None, Option("committed at or before", TIME)] = None
    grep: Annotated[
        str | None,
        Option("search in names of tables, columns, types, origins, prefixes", Value("REGEX", expression)),
    ] = None

    def check(self) -> None:
        """Raises ConfigError."""
        if self.messages and self.ddl:
            raise ConfigError("--messages and --ddl can't be combined")
        for name in ("values", "tables", "xid", "from_time", "to_time", "grep", "lsn"):
            if getattr(self, name) not in (None, False, ()) and not self.messages and not self.ddl:
                raise ConfigError(f"--{name.replace('_', '-')} needs --messages or --ddl")

    @property
    def filter(self) -> MessageFilter:
        from pgoutput_etl.inspection.message_lines import MessageFilter

        first, last = self.lsn or (None, None)
        begin, end = (None if time is None else microseconds_of(time) for time in (self.from_time, self.to_time))
        return MessageFilter(self.tables, self.xid, first, last, begin, end, self.grep)


def list_files(request: InspectRequest, stack: ExitStack) -> tuple[Listing, Runner]:
    """The files, and the runner that reads them until `stack` closes."""
    from pgoutput_etl.inspection.local_runner import is_local, list_local, local_runner

    if not request.spark and all(map(is_local, request.paths)):
        landed = list_local(request.paths)
        return landed, stack.enter_context(local_runner(request.framing))
    from pgoutput_etl.ingest.inspection_runner import SparkRunner, list_on_spark
    from pgoutput_etl.spark.session import end_session, start_session

    spark = start_session("pgoutput_etl inspect", {})
    stack.callback(end_session, spark)
    return list_on_spark(spark, request.paths), stack.enter_context(SparkRunner(spark, request.framing))


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _inspect(request: InspectRequest, output: OutputOptions) -> int:
    from pgoutput_etl.answers.inspection_report import print_report, print_schema_commands, schema_commands_json
    from pgoutput_etl.inspection.archive import inspect_archive, inspection_contexts
    from pgoutput_etl.inspection.report import report_on
    from pgoutput_etl.inspection.schema_changes import schema_commands

    with ExitStack() as stack:
        landed, runner = list_files(request, stack)
        progress = ProgressPrinter(output.quiet)
        inspection = inspect_archive(landed, runner, progress)
        report = report_on(inspection)
        if request.messages:
            contexts = inspection_contexts(inspection, request.filter, request.values, output.json)
            runner.print_messages(contexts, _print)
        elif request.ddl:
            commands = schema_commands(inspection, runner, request.filter, request.values)
            if output.json:
                _print(schema_commands_json(commands))
            else:
                print_schema_commands(commands)
        elif output.json:
            _print(report.to_json())
        else:
            print_report(report)
        if request.messages or request.ddl:
            for line in (*report.unreadable, *report.damages, *report.gaps):
                progress(f"damaged or missing: {line}")
        return report.exit_code


def run(request: InspectRequest, output: OutputOptions) -> int:
    check_options(request)
    with StandardOutput():
        return _inspect(request, output)
    return EXIT_FAILED  # the reader of standard output has ended


COMMAND = Command(
    "inspect",
    __doc__,
    "python jobs/inspect.py notebooks/data/shop --messages --tables public.orders --lsn 0/1870000..",
    (InspectRequest, OutputOptions),
    run,
)
