"""Loads the rows of tables that appeared in the archive without their earlier rows: `source.snapshot: auto`."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import Config, Snapshots
from pgoutput_etl.console import Progress, counted
from pgoutput_etl.errors import PgoutputEtlError
from pgoutput_etl.identifiers import pattern_of
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.plan import TableState, may_lack_rows
from pgoutput_etl.work.snapshot.request import AutomaticRequest
from pgoutput_etl.work.snapshot.run import snapshot


def load_missing_rows(spark: SparkSession, config: Config, progress: Progress) -> None:
    """Takes a snapshot of the tables that may lack rows, if `source.snapshot` is `auto`. A failed snapshot is only
    reported: the run still applies the archive, and the next run tries again."""
    if config.source.snapshot is not Snapshots.AUTO:
        return
    last = DeltaLedger.of(spark, config).batches.last()
    if last is None or last.resumed:
        return
    names = [state.full_name for state in last.tables.values() if _may_be_loaded(state, config)]
    if not names:
        return
    request = AutomaticRequest(tuple(map(pattern_of, sorted(names))), server=config.source.server_url)
    progress(f"loading a snapshot of {counted(len(names), 'table')}")
    try:
        snapshot(spark, config, request, progress)
    except PgoutputEtlError as error:
        progress(f"the snapshot failed, and the next run tries again: {error}")


def _may_be_loaded(state: TableState, config: Config) -> bool:
    """False if a snapshot would do harm: lose the history that other modes keep, or apply column changes that somebody
    must accept. Also False for a table whose name now belongs to another table."""
    rule = config.rule_for(state.schema, state.table)
    is_plain = table_mode(state.mode).is_copy and rule.on_schema_change.follows_all and not rule.skip
    return is_plain and state.is_complete and may_lack_rows(state) and not state.is_displaced
