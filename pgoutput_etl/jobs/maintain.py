"""Keeps a source's Delta tables and its ledger fast and small. Changes nothing without --execute.

Compacts small files (OPTIMIZE), removes files that no recent version needs (VACUUM), writes checkpoints of the Delta
logs, deletes obsolete rows of the ledger, and removes displaced tables. May run beside apply; steps that
would not be safe then are skipped and reported.
"""

from __future__ import annotations

from pgoutput_etl.jobs.command import SparkJob, printed, spark_command
from pgoutput_etl.jobs.each_source import SourceUse
from pgoutput_etl.work.files.light_work import has_few_rows
from pgoutput_etl.work.upkeep.request import MaintainRequest

EXAMPLE = "./spark-submit.sh jobs/maintain.py --config conf/local.yaml --keep-days 30 --execute"


def _job() -> SparkJob[MaintainRequest]:
    from pgoutput_etl.work.upkeep.report import print_maintenance
    from pgoutput_etl.work.upkeep.run import maintain

    return printed(maintain, print_maintenance)


EACH_SOURCE: SourceUse[MaintainRequest] = SourceUse(lambda _: False)

COMMAND = spark_command(
    "maintain",
    __doc__,
    EXAMPLE,
    MaintainRequest,
    _job,
    sources=EACH_SOURCE,
    is_light=lambda config, _: has_few_rows(config),
    is_published=lambda request: request.execute,
)
