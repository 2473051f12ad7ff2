"""Writes tables as of any commit as files that PostgreSQL loads: one table as of 03:57, without a base backup.

By default as of the last applied commit. Writes one folder per table, and a script for psql that loads them in one
transaction.
"""

from __future__ import annotations

from pgoutput_etl.answers.export.request import ExportRequest
from pgoutput_etl.jobs.command import SparkJob, printed, spark_command

EXAMPLE = "./spark-submit.sh jobs/export.py --config conf/demo.yaml --tables public.acct --out ./acct"


def _job() -> SparkJob[ExportRequest]:
    from pgoutput_etl.answers.export.report import print_export
    from pgoutput_etl.answers.export.run import export

    return printed(export, print_export)


COMMAND = spark_command("export", __doc__, EXAMPLE, ExportRequest, _job)
