"""Brings a server's tables to Delta with one command: from the publication to the first apply.

(1) Creates the publication, the slot, and catalog Messages, as setup.sql does, (2) writes a configuration
from the server's catalog, (3) prints the receiver's command and waits until changes land, (4) loads the rows from
before the slot, (5) applies what has landed. What is done is skipped, so the same command continues after an error.
The receiver comes before the load, because the server keeps all changes until they are received.
"""

from __future__ import annotations

from pgoutput_etl.console import ProgressPrinter
from pgoutput_etl.jobs.command import Command, OutputOptions, PrintedReport, check_options, published, session
from pgoutput_etl.work.start.request import StartRequest


def run(request: StartRequest, output: OutputOptions) -> int:
    check_options(request)
    from pgoutput_etl.work.start.report import print_start
    from pgoutput_etl.work.start.run import Start

    start = Start(request, ProgressPrinter(output.quiet))
    if request.only_server:
        return PrintedReport.of(start.without_load(), print_start).write(output)
    config = start.prepare()

    def load() -> PrintedReport:
        with session("start", config) as spark:
            return PrintedReport.of_changes(start.load(spark, config), print_start)

    return published("start", config, load).write(output)


EXAMPLE = "PGUSER=postgres ./spark-submit.sh jobs/start.py --server postgresql://db:5432/shop --config conf/local.yaml"

COMMAND = Command("start", __doc__, EXAMPLE, (StartRequest, OutputOptions), run)
