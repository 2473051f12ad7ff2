"""Airflow: apply, verify and maintain every night. Copy this file to the DAGs folder and set the constants."""

from __future__ import annotations

import subprocess
from datetime import datetime, timedelta, timezone

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowFailException

SUBMIT = ["/opt/pgoutput_etl/spark-submit.sh", "--master", "yarn", "--deploy-mode", "client"]
FOLDER = "/opt/pgoutput_etl"
CONFIG = "/etc/pgoutput_etl/shop.yaml"
# User and password are in the worker's PGUSER and PGPASSWORD.
SERVER = "postgresql://db.example:5432/shop"
USAGE, QUARANTINE, TRY_LATER = 2, 3, 75


def run(job: str, *arguments: str) -> int:
    """The exit code, 0, 3, or 75; the task's log has the summary. Errors are retried, except wrong configurations. 75:
    another run is working on the source, or verify has asked the server for the first time."""
    command = [*SUBMIT, f"jobs/{job}.py", "--config", CONFIG, *arguments]
    code = subprocess.run(command, cwd=FOLDER, check=False).returncode
    if code == USAGE:
        raise AirflowFailException(f"{job}: the configuration or the command line is wrong")
    if code not in (0, QUARANTINE, TRY_LATER):
        raise RuntimeError(f"{job} failed with exit code {code}")
    return code


@dag(
    schedule="30 2 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,  # a run applies everything new
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10), "execution_timeout": timedelta(hours=6)},
    tags=["pgoutput_etl"],
)
def pgoutput_etl_shop() -> None:
    @task
    def apply() -> int:
        return run("apply")

    @task(retries=0)
    def quarantine(code: int) -> None:
        """Fails, and so notifies, if apply quarantined data."""
        if code == QUARANTINE:
            raise AirflowFailException("data is in quarantine, or tables are not consistent: see the log of apply")

    @task(retries=0)
    def verify() -> None:
        """Compares what the server was asked the night before, and asks again. Fails if rows differ."""
        if run("verify", "--server", SERVER) == QUARANTINE:
            raise AirflowFailException("Delta and PostgreSQL have different rows: see the log of verify")

    @task
    def maintain() -> None:
        run("maintain", "--execute")

    applied = apply()
    quarantine(applied)
    applied >> verify()
    applied >> maintain()


pgoutput_etl_shop()
