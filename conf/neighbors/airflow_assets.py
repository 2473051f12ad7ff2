"""Airflow 3: apply every night, with an asset event for each table that was written, and a DAG that such an event
starts. Copy this file to the DAGs folder and set the constants."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias, dag, task
from airflow.sdk.exceptions import AirflowFailException

SUBMIT = ["/opt/pgoutput_etl/spark-submit.sh", "--master", "yarn", "--deploy-mode", "client"]
FOLDER = "/opt/pgoutput_etl"
CONFIG = "/etc/pgoutput_etl/shop.yaml"
SOURCE = "shop"
DONE, USAGE, QUARANTINE = 0, 2, 3
START = datetime(2026, 1, 1, tzinfo=timezone.utc)

# An alias stands for assets that are known only after the run: new tables need no change of this file.
TABLES = AssetAlias(f"pgoutput_etl_{SOURCE}")


def asset_of(schema: str, table: str) -> Asset:
    """The names are those in PostgreSQL. The URI does not depend on where the Delta table is."""
    uri = f"x-pgoutput-etl://{SOURCE}/{quote(schema, safe='')}/{quote(table, safe='')}"
    return Asset(name=f"{SOURCE}.{schema}.{table}", uri=uri)


def run_apply() -> tuple[int, dict[str, Any]]:
    """The exit code, 0 or 3, and the summary; the task's log has the progress. Errors are retried, except wrong
    configurations."""
    command = [*SUBMIT, "jobs/apply.py", "--config", CONFIG, "--json"]
    done = subprocess.run(command, cwd=FOLDER, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == USAGE:
        raise AirflowFailException("apply: the configuration or the command line is wrong")
    if done.returncode not in (DONE, QUARANTINE):
        raise RuntimeError(f"apply failed with exit code {done.returncode}")
    return done.returncode, json.loads(done.stdout)


def written_tables(summary: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """By schema and name, each table that the run wrote: the extra information of its event."""
    written: dict[tuple[str, str], dict[str, Any]] = {}
    for batch in summary["batches"]:
        for table in batch["tables"]:
            if table["held"] is None:
                name = (table["schema"], table["table"])
                before = written.get(name, {})
                counts = ("inserted", "updated", "deleted")
                changes = {count: before.get(count, 0) + table[count] for count in counts}
                place = {"lsn": batch["lsn"], "delta_version": table["version"], "path": table["path"]}
                written[name] = {"rows": table["rows"], **changes, **place}
    return written


@dag(
    schedule="30 2 * * *",
    start_date=START,
    catchup=False,  # a run applies everything new
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10), "execution_timeout": timedelta(hours=6)},
    tags=["pgoutput_etl"],
)
def pgoutput_etl_shop_assets() -> None:
    @task(outlets=[TABLES])
    def apply(*, outlet_events: Any = None) -> int:
        code, summary = run_apply()
        for (schema, table), extra in written_tables(summary).items():
            outlet_events[TABLES].add(asset_of(schema, table), extra=extra)
        return code

    @task(retries=0)
    def quarantine(code: int) -> None:
        """Fails, and so notifies, if apply quarantined data."""
        if code == QUARANTINE:
            raise AirflowFailException("data is in quarantine, or tables are not consistent: see the log of apply")

    quarantine(apply())


@dag(schedule=[asset_of("public", "orders")], start_date=START, catchup=False, tags=["pgoutput_etl"])
def orders_report() -> None:
    @task
    def report(*, triggering_asset_events: Any = None) -> None:
        """Replace this with what depends on the table."""
        for events in triggering_asset_events.values():
            print("orders is at Delta version", events[-1].extra["delta_version"])

    report()


pgoutput_etl_shop_assets()
orders_report()
