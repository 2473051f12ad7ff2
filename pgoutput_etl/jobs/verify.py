"""Checks that Delta and PostgreSQL hold the same rows; writes nothing.

Compares tables with a server (--jdbc), or one table with PostgreSQL's CSV (--csv) or another Delta table (--delta):
first digests of key ranges, then the rows of ranges that differ. Prints keys only with --keys, and other values only
with --values.
"""

from __future__ import annotations

from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.jobs.command import SparkJob, printed, spark_command

EXAMPLE = (
    "PGPASSWORD=… ./spark-submit.sh --packages org.postgresql:postgresql:42.7.7 jobs/verify.py "
    "--config conf/local.yaml --jdbc jdbc:postgresql://db:5432/shop?user=etl"
)


def _job() -> SparkJob[VerifyRequest]:
    from pgoutput_etl.answers.verify.report import print_verification
    from pgoutput_etl.answers.verify.run import verify

    return printed(verify, print_verification)


COMMAND = spark_command("verify", __doc__, EXAMPLE, VerifyRequest, _job)
