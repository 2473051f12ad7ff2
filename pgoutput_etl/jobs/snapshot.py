"""Loads table rows as of an LSN, including rows from before the slot, and applies the archive's later commits.

The order of an initial load: (1) create the publication, (2) create the slot, (3) start landing, (4) load the snapshot,
(5) apply. A snapshot from before the slot would lose the commits in between, and is refused. --check compares a server
with this order, and prints what is missing and the next commands.

The rows come from a server (--server), through a snapshot that the job exports unless --snapshot names one, or from
files that COPY or pg_dump wrote (--csv, --copy, --dump) as of --lsn. Loaded tables are replaced; others are not
affected.
"""

from __future__ import annotations

from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import PgoutputEtlError
from pgoutput_etl.jobs.command import PrintedReport, SparkJob, spark_command
from pgoutput_etl.jobs.parser import printing
from pgoutput_etl.postgres.catalog import QUERY
from pgoutput_etl.work.snapshot.request import SnapshotRequest

_FEW_BYTES = 1 << 25  # of a database; an empty one has a quarter of this

EXAMPLE = (
    "PGUSER=etl PGPASSWORD=… ./spark-submit.sh jobs/snapshot.py --config conf/local.yaml --tables 'public.*' "
    "--server postgresql://db:5432/shop"
)

CATALOG_QUERY = printing(
    "--catalog-query",
    "print the query for psql and exit",
    f"SELECT pg_catalog.set_config('search_path', '', false) \\g /dev/null\n{QUERY};",
)


def _job() -> SparkJob[SnapshotRequest]:
    from pgoutput_etl.work.snapshot.check_report import print_checks
    from pgoutput_etl.work.snapshot.report import print_snapshot
    from pgoutput_etl.work.snapshot.run import check, snapshot

    return lambda spark, config, request, progress: (
        PrintedReport.of(check(spark, config, request), print_checks)
        if request.checks_only
        else PrintedReport.of_changes(snapshot(spark, config, request, progress), print_snapshot)
    )


def _is_light(_: Config, request: SnapshotRequest) -> bool:
    if request.server is None:
        return False
    from pgoutput_etl.postgres.live_server import database_bytes

    try:
        return database_bytes(request.url) <= _FEW_BYTES
    except PgoutputEtlError:
        return False  # the job itself reports the error


COMMAND = spark_command(
    "snapshot",
    __doc__,
    EXAMPLE,
    SnapshotRequest,
    _job,
    (CATALOG_QUERY,),
    is_published=lambda request: not request.checks_only,
    is_light=_is_light,
)
