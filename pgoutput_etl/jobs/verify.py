"""Checks that Delta and PostgreSQL hold the same rows.

Compares tables with a server (--server), or one table with PostgreSQL's CSV (--csv) or another Delta table (--delta):
first digests of key ranges, then the rows of ranges that differ. A server in use is asked as of one moment, and the
answers are compared once an apply has passed it; --repair then writes the rows that differ. Prints keys only with
--keys, and other values only with --values.
"""

from __future__ import annotations

from dataclasses import replace

from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.config.settings import Config
from pgoutput_etl.jobs.command import PrintedReport, SparkJob, spark_command
from pgoutput_etl.jobs.each_source import SourceUse
from pgoutput_etl.work.files.light_work import has_few_rows

EXAMPLE = (
    "PGPASSWORD=… ./spark-submit.sh jobs/verify.py --config conf/local.yaml --server postgresql://etl@db:5432/shop"
)


def _job() -> SparkJob[VerifyRequest]:
    from pgoutput_etl.answers.verify.report import print_verification
    from pgoutput_etl.work.snapshot.check_report import print_checks
    from pgoutput_etl.work.snapshot.settled import verify
    from pgoutput_etl.work.snapshot.verify_check import check_verify

    return lambda spark, config, request, progress: (
        PrintedReport.of(check_verify(spark, config, request), print_checks)
        if request.checks_only
        else PrintedReport.of_changes(verify(spark, config, request, progress), print_verification)
    )


def _of_source(request: VerifyRequest, config: Config) -> VerifyRequest:
    """The request, with the server that the source names if the command line names no other side."""
    return request if request.has_side or request.finish else replace(request, server=config.source.server)


EACH_SOURCE: SourceUse[VerifyRequest] = SourceUse(lambda request: request.has_side, _of_source)

COMMAND = spark_command(
    "verify",
    __doc__,
    EXAMPLE,
    VerifyRequest,
    _job,
    sources=EACH_SOURCE,
    is_light=lambda config, _: has_few_rows(config),
    is_published=lambda request: request.of_server and not request.begin and not request.checks_only,
)
