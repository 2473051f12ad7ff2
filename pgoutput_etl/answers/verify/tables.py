"""Chooses the tables to verify, and the command that repairs those that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from pgoutput_etl.answers.command_line import job_line
from pgoutput_etl.answers.next_commands import snapshot_of
from pgoutput_etl.config.chosen_tables import matching_names
from pgoutput_etl.config.settings import Config
from pgoutput_etl.identifiers import patterns_of
from pgoutput_etl.spark.delta import is_delta_table
from pgoutput_etl.spark.delta_history import commits_after, is_as_recorded, own_operations
from pgoutput_etl.targets.condition import can_be_repaired
from pgoutput_etl.targets.location import displaced_folder
from pgoutput_etl.targets.plan import TableState


def named_states(config: Config, states: Mapping[int, TableState]) -> dict[str, TableState]:
    """The states of tables that are at their own place, by schema.table."""
    return {s.full_name: s for s in states.values() if not s.path.is_within(displaced_folder(config))}


def chosen_states(config: Config, states: Mapping[int, TableState], patterns: Sequence[str] | None) -> list[TableState]:
    """The matching states, sorted by name. patterns: None for all. Raises ConfigError for a pattern without a match."""
    named = named_states(config, states)
    return [named[name] for name in sorted(matching_names(patterns or ["*"], named, "the ledger"))]


def mending_command(differing: Sequence[TableState], server: str | None, config: Config) -> str | None:
    """The command that repairs the tables. With a server, if only some of them can be repaired, the command for these,
    because only the server has rows that the archive lacks."""
    if not differing:
        return None
    if server is None:
        return job_line(config, "backfill", "--tables", patterns_of(state.full_name for state in differing))
    repairable = [state for state in differing if can_be_repaired(state)]
    snapshot = snapshot_of((state.full_name for state in repairable or differing), server)
    return job_line(config, *snapshot, *(["--repair"] if repairable else []))


def foreign_changes(spark: SparkSession, state: TableState) -> str | None:
    """A remark about later commits by other programs: the comparison reads the version that a run recorded, so it
    doesn't include them."""
    if not state.path or state.version < 0 or not is_delta_table(spark, state.path):
        return None
    later = commits_after(spark, state.path, state.version)
    operations = own_operations(state.path, later)
    if is_as_recorded(operations):
        return None
    return (
        f"{state.schema}.{state.table} was compared at Delta version {state.version}, which the last run wrote. "
        f"Other programs have changed it since: {len(operations):,} commits up to version {later[0].version}. "
        "jobs/backfill.py --tables rebuilds it from the archive"
    )
