"""Rebuilds tables from the archive, repairs the rows of a range of commits, or builds tables in another folder.

Without a range, whole tables are rebuilt. With a range, the rows that its commits changed are set to their current
state in the archive: rows deleted since stay deleted, and newer changes stay. Later runs continue from there.
"""

from __future__ import annotations

from pgoutput_etl.jobs.command import SparkJob, printed_changes, spark_command
from pgoutput_etl.work.backfill.request import BackfillRequest

EXAMPLE = "./spark-submit.sh jobs/backfill.py --config conf/demo.yaml --tables 'public.acct,public.line*'"


def _job() -> SparkJob[BackfillRequest]:
    from pgoutput_etl.work.backfill.report import print_backfill
    from pgoutput_etl.work.backfill.run import backfill

    return printed_changes(backfill, print_backfill)


COMMAND = spark_command("backfill", __doc__, EXAMPLE, BackfillRequest, _job, is_published=lambda _: True)
