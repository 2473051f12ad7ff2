"""Computes what transactions changed, and writes SQL that undoes it: a bad deploy, a wrong UPDATE.

Rows that later transactions changed again are left as they are, and reported. The job only reads: it writes the script
and a page about it, and connects to no server.
"""

from __future__ import annotations

from pgoutput_etl.answers.undo.request import UndoRequest
from pgoutput_etl.jobs.command import SparkJob, printed, spark_command
from pgoutput_etl.work.files.light_work import is_small

EXAMPLE = "./spark-submit.sh jobs/undo.py --config conf/demo.yaml --xid 751 --out undo.sql"


def _job() -> SparkJob[UndoRequest]:
    from pgoutput_etl.answers.undo.report import print_undo
    from pgoutput_etl.answers.undo.run import undo

    return printed(undo, print_undo)


COMMAND = spark_command(
    "undo", __doc__, EXAMPLE, UndoRequest, _job, is_light=lambda config, _: is_small(config), only_reads=True
)
