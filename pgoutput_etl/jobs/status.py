"""Reports the state of a source within seconds, without Spark, for people and for monitoring.

Reads the source's ledger and lists its landing folder: the last batch, the age of the last commit, a run at work,
waiting files, open transactions, quarantine, and held tables, with the commands that resolve them. Exits with 3 if
something is held or in quarantine, if a dead run left a batch unfinished, or if the last commit is older than
--max-age. Reads local paths, Databricks volumes, and S3.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pgoutput_etl.answers.status.request import StatusRequest
from pgoutput_etl.config.settings import Config
from pgoutput_etl.jobs.command import interval, job_command

if TYPE_CHECKING:
    from pgoutput_etl.answers.status.report import Status

EXAMPLE = "python jobs/status.py --config conf/local.yaml --max-age 36h --html status.html"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--max-age", type=interval, metavar="AGE", help="exit with 3 if the last commit is older: 90m, 36h or 2d")
    add("--html", metavar="FILE", help="also write a page with the status and charts of the last 30 days")
    add("--schemas", metavar="FOLDER", help="also write every version of the tables' columns as JSON Schema and Avro")
    add("--dbt", metavar="FILE", help="also write the tables as dbt sources, with --max-age as their freshness")


def _job(arguments: argparse.Namespace, config: Config) -> Callable[[], Status]:
    request = StatusRequest(arguments.max_age, arguments.html, arguments.schemas, arguments.dbt)
    request.check()
    return partial(_status, config, request)


def _status(config: Config, request: StatusRequest) -> Status:
    from pgoutput_etl.answers.status.page import write_page
    from pgoutput_etl.answers.status.run import status
    from pgoutput_etl.outputs.dbt import write_sources

    report = status(config, request)
    if request.html is not None:
        write_page(report, request.html)
    if request.schemas is not None:
        from pgoutput_etl.outputs.column_schemas import write_schemas

        write_schemas(config, request.schemas)
    if request.dbt is not None:
        write_sources(config, request.dbt, request.max_age)
    return report


def _print_report(report: Status) -> None:
    from pgoutput_etl.answers.status.report import print_status

    print_status(report)


COMMAND = job_command("status", __doc__, EXAMPLE, _job, _print_report, add_options)
