"""Reports the state of a source within seconds, without Spark, for people and for monitoring.

Reads the source's ledger and lists its landing folder: the last batch, the age of the last commit, a run at work,
waiting files, open transactions, quarantine, and held tables, with the commands that resolve them. Exits with 3 if
something is held or in quarantine, if a dead run left a batch unfinished, or if the last commit is older than
--max-age. Reads local paths, Databricks volumes, and S3.
"""

from __future__ import annotations

from pgoutput_etl.answers.status.request import StatusRequest
from pgoutput_etl.config.settings import Config
from pgoutput_etl.jobs.command import OutputOptions, PrintedReport, job_command
from pgoutput_etl.jobs.each_source import SourceUse

EXAMPLE = "python jobs/status.py --config conf/local.yaml --max-age 36h --html status.html"


def _status(request: StatusRequest, config: Config, _: OutputOptions) -> PrintedReport:
    from pgoutput_etl.answers.status.report import print_status
    from pgoutput_etl.answers.status.run import status
    from pgoutput_etl.outputs.dbt import write_sources

    report = status(config, request)
    if request.html is not None:
        from pgoutput_etl.answers.status.page import write_page  # needs the extra `reports`

        write_page(report, request.html)
    if request.schemas is not None:
        from pgoutput_etl.outputs.column_schemas import write_schemas

        write_schemas(config, request.schemas)
    if request.dbt is not None:
        write_sources(config, request.dbt, request.max_age)
    return PrintedReport.of(report, print_status)


EACH_SOURCE: SourceUse[StatusRequest] = SourceUse(lambda request: request.writes_files)

COMMAND = job_command("status", __doc__, EXAMPLE, StatusRequest, _status, sources=EACH_SOURCE)
