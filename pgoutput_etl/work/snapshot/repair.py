"""Finds the rows where tables differ from a server's snapshot, so only these are read and written."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from pgoutput_etl.answers.verify.ask import PublishedTable
from pgoutput_etl.answers.verify.key_ranges import differing_ranges, plan_ranges
from pgoutput_etl.answers.verify.row_text import delta_texts, digests_of, key_size
from pgoutput_etl.errors import TableError
from pgoutput_etl.load.shared_table import tagged_target
from pgoutput_etl.postgres.catalog import CatalogTable
from pgoutput_etl.postgres.live_server import ServerMoment
from pgoutput_etl.schema.table_shape import table_columns
from pgoutput_etl.spark.delta import is_delta_table
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.plan import KeyRanges, TableState
from pgoutput_etl.types import UserTypes
from pgoutput_etl.types.canonical_text import ComparedColumn

_EVERYTHING = None


def why_not_repaired(spark: SparkSession, state: TableState | None) -> str | None:
    """The reason why a table can't be repaired, or None."""
    if state is None or state.version < 0:
        return "no run has written the table: load it without --repair"
    if not state.is_complete:
        return f"the table is {state.status}: {state.reason}"
    if state.is_displaced:
        return "another table has its name now"
    if not table_mode(state.mode).is_copy:
        return f"mode {state.mode.value} keeps more than the server's rows: only mirrors can be repaired"
    if state.masks:
        return "columns that the configuration masks can't be compared: load it without --repair"
    if not is_delta_table(spark, state.path):
        return f"there is no table at {state.path} any more: load it without --repair"
    return None


@dataclass(frozen=True, slots=True)
class TableComparison:
    """connections: number that may query one table's digests at the same time."""

    spark: SparkSession
    moment: ServerMoment
    connections: int
    user_types: UserTypes

    def comparable(self, state: TableState | None) -> TableState:
        """Raises TableError if the table can't be repaired."""
        why = why_not_repaired(self.spark, state)
        if state is None or why is not None:
            raise TableError(f"--repair: not possible: {why}")
        return state

    def differing(self, table: CatalogTable, state: TableState) -> KeyRanges:
        """Compares digests of key ranges, computed on each side. Ranges require a key that begins with an integer; any
        other table is read in full if a digest differs."""
        relation = table.relation
        sent = [(column.described_as, column.is_key) for column in relation.columns]
        known = [(column.described_as, column.is_key) for column in state.relation.columns]
        if sent != known or table.filter is not None:
            return _EVERYTHING  # digests would differ in every range
        described = table_columns(relation, (), self.user_types)
        columns = [ComparedColumn(column.name, column.type) for column in described]
        names = [column.name for column in columns]
        key = [names.index(name) for name in state.key]
        stored = table_columns(relation, state.retired, self.user_types)
        rows = tagged_target(self.spark, state.path, stored)  # including changes by other programs
        ranges = plan_ranges(columns, key, *key_size(rows, columns, key))
        ours = digests_of(delta_texts(rows, columns), len(columns), ranges)
        theirs = PublishedTable(table, self.connections).digests(self.moment, columns, ranges)
        numbers = differing_ranges(ours, theirs)
        if ranges.is_hashed or state.key[0] not in table.not_null:
            return _EVERYTHING if numbers else ()
        return tuple(ranges.bounds[number] for number in numbers)
