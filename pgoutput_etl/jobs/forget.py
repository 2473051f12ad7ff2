"""Erases chosen rows from everything that the archive feeds: landed files, the ledger, and all versions of the tables.

Without --execute the job only reports what it would erase. Afterwards --prove looks for what should be gone.
"""

from __future__ import annotations

from pgoutput_etl.jobs.command import SparkJob, printed_changes, spark_command
from pgoutput_etl.work.erasure.request import ForgetRequest

EXAMPLE = "./spark-submit.sh jobs/forget.py --config conf/demo.yaml --request erasure.yaml"


def _job() -> SparkJob[ForgetRequest]:
    from pgoutput_etl.work.erasure.report import print_forget
    from pgoutput_etl.work.erasure.run import forget

    return printed_changes(forget, print_forget)


COMMAND = spark_command("forget", __doc__, EXAMPLE, ForgetRequest, _job, is_published=lambda request: request.execute)
