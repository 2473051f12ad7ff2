"""Dagster: a nightly run of apply as one asset per table. Copy this file to a code location and set the constants."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import dagster as dg  # without `from __future__ import annotations`, which Dagster refuses for a context

SUBMIT = ["/opt/pgoutput_etl/spark-submit.sh", "--master", "yarn", "--deploy-mode", "client"]
FOLDER = "/opt/pgoutput_etl"
CONFIG = "/etc/pgoutput_etl/shop.yaml"
SOURCE = "shop"
TABLES = ["public.customers", "public.orders"]  # names in PostgreSQL
RETRIES, RETRY_SECONDS = 2, 600
DONE, USAGE, QUARANTINE = 0, 2, 3


def key_of(table: str) -> dg.AssetKey:
    return dg.AssetKey([SOURCE, *table.split(".", 1)])


def apply() -> tuple[int, dict[str, Any]]:
    """The exit code, 0 or 3, and the run's summary; the run's log has its progress. A wrong configuration is not
    retried."""
    command = [*SUBMIT, "jobs/apply.py", "--config", CONFIG, "--json"]
    done = subprocess.run(command, cwd=FOLDER, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == USAGE:
        raise dg.Failure("apply: the configuration or the command line is wrong", allow_retries=False)
    if done.returncode not in (DONE, QUARANTINE):
        raise dg.RetryRequested(max_retries=RETRIES, seconds_to_wait=RETRY_SECONDS)
    return done.returncode, json.loads(done.stdout)


def written_tables(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By name, each table that the run wrote: its metadata after the last batch."""
    written: dict[str, dict[str, Any]] = {}
    for batch in summary["batches"]:
        for table in batch["tables"]:
            if table["held"] is None:
                name = f"{table['schema']}.{table['table']}"
                before = written.get(name, {})
                counts = ("inserted", "updated", "deleted")
                written[name] = {
                    "dagster/row_count": table["rows"],
                    **{count: before.get(count, 0) + table[count] for count in counts},
                    "lsn": batch["lsn"],
                    "delta_version": table["version"],
                    "path": dg.MetadataValue.path(table["path"]),
                }
    return written


def inconsistent_tables(code: int, summary: dict[str, Any]) -> dict[str, str]:
    """By name, the state of a table that is held, diverged, or incomplete, and the reason. Data in quarantine that
    belongs to no table may belong to any."""
    tables = summary["conditions"]
    states = {f"{table['schema']}.{table['table']}": f"{table['state']}: {table['reason']}" for table in tables}
    if code == QUARANTINE and not states:
        return dict.fromkeys(TABLES, "data is in quarantine: see the log of the run")
    return states


@dg.multi_asset(
    name=f"apply_{SOURCE}",
    specs=[dg.AssetSpec(key_of(table), kinds={"deltalake", "spark"}, skippable=True) for table in TABLES],
    check_specs=[dg.AssetCheckSpec("complete", asset=key_of(table)) for table in TABLES],
)
def tables(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
    """Materializes the tables that the run wrote. Check `complete` fails for tables that are not consistent."""
    code, summary = apply()
    written, inconsistent = written_tables(summary), inconsistent_tables(code, summary)
    for name in TABLES:
        if name in written:
            version = dg.DataVersion(str(written[name]["delta_version"]))
            yield dg.MaterializeResult(key_of(name), metadata=written[name], data_version=version)
        reason = inconsistent.get(name)
        yield dg.AssetCheckResult(
            passed=reason is None, check_name="complete", asset_key=key_of(name), description=reason
        )
    for name in sorted(written.keys() - set(TABLES)):
        context.log.warning(f"{name} was written and is not in TABLES")


nightly = dg.ScheduleDefinition(
    name=f"nightly_{SOURCE}", target=dg.AssetSelection.assets(tables), cron_schedule="30 2 * * *"
)

defs = dg.Definitions(assets=[tables], schedules=[nightly])
