"""Delta's side of a comparison: the rows of one table, and the columns that can be compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.answers.verify.key_ranges import Digest, Ranges, differing_ranges, has_integer_key
from pgoutput_etl.answers.verify.report import VerifiedTable
from pgoutput_etl.answers.verify.row_text import delta_texts, digests_of, digests_of_batches, key_size, small_texts
from pgoutput_etl.answers.verify.sides import OtherColumns
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load.holding import held_reason
from pgoutput_etl.load.shared_table import tagged_target
from pgoutput_etl.load.small_rows import SmallTable
from pgoutput_etl.load.target_columns import current_rows, has_two_forms, is_current
from pgoutput_etl.schema.table_shape import table_columns
from pgoutput_etl.spark.delta import is_delta_table
from pgoutput_etl.spark.session import is_running
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.plan import HELD, SKIPPED, TableState
from pgoutput_etl.types import UserTypes
from pgoutput_etl.types.canonical_text import ComparedColumn

_SMALL_BYTES = 1 << 19  # of a table's files; for more, Spark is faster than Python

_APPEND = "mode append stores changes, not rows: see docs/modes.md"


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """key: positions among the columns. not_compared: reasons, by column. why_not: why no row can be compared."""

    columns: tuple[ComparedColumn, ...]
    key: tuple[int, ...]
    not_compared: dict[str, str]
    why_not: str | None = None

    @property
    def by_value(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.by_value)


@dataclass(frozen=True, slots=True)
class DeltaSide:
    """rows: of the target in its mode, including former versions. small: the table, if its digests need no Spark
    job."""

    state: TableState
    rows: DataFrame
    user_types: UserTypes
    small: SmallTable | None = None

    @classmethod
    def stored(cls, spark: SparkSession, state: TableState, user_types: UserTypes) -> DeltaSide:
        """The table as the last batch left it."""
        columns = table_columns(state.relation, state.retired, user_types)
        rows = tagged_target(spark, state.path, columns, state.version)
        is_plain = table_mode(state.mode).is_copy and not state.path.tag
        is_plain = is_plain and not any(has_two_forms(column.type) for column in columns)
        small = SmallTable.of(spark, state.path, state.version, columns, _SMALL_BYTES) if is_plain else None
        return cls(state, rows, user_types, small)

    @property
    def current(self) -> DataFrame:
        return current_rows(self.rows, self.state.mode)

    def texts(self, columns: Sequence[ComparedColumn]) -> DataFrame:
        return delta_texts(self.current, columns)

    def digests(self, columns: Sequence[ComparedColumn], ranges: Ranges) -> dict[int, Digest]:
        """Like `digests_of`."""
        rows = None if self.small is None else self.small.rows()
        if rows is not None:
            return digests_of_batches(small_texts(rows, columns), len(columns), ranges)
        return digests_of(self.texts(columns), len(columns), ranges)

    def key_size(
        self, columns: Sequence[ComparedColumn], key: Sequence[int]
    ) -> tuple[int, tuple[int | None, int | None]]:
        """Like `row_text.key_size`."""
        rows = self.small.rows() if self.small is not None and has_integer_key(columns, key) else None
        if rows is None:
            return key_size(self.current, columns, key)
        limits = pc.min_max(rows.column(columns[key[0]].name)).as_py()
        return rows.num_rows, (limits["min"], limits["max"])

    def within(self, columns: Sequence[ComparedColumn], ranges: Ranges) -> DeltaSide:
        """This side, without rows outside the compared ranges, as far as Spark can skip them."""
        if ranges.only is None or ranges.is_hashed:
            return self
        key = F.col(quoted(columns[ranges.columns[0]].name))
        spans = [key.between(low, high) for low, high in ranges.spans()]
        return replace(self, rows=self.rows.where(reduce(or_, spans, key.isNull())))

    def former(self, columns: Sequence[ComparedColumn]) -> DataFrame | None:
        """Deleted rows with the transaction that deleted them; mode history doesn't store its xid."""
        ends = table_mode(self.state.mode).ends
        if ends is None:
            return None
        unknown = F.lit(None).cast("long")
        ended = self.rows.where(~is_current(self.state.mode))
        ended = ended.withColumns({name: unknown if end is None else F.col(end) for name, end in ends.items()})
        return delta_texts(ended, columns)

    def chosen(self, other: OtherColumns, only: Collection[str] | None = None) -> ColumnChoice:
        """The columns to compare with the other side's. only: limits them to these, in this order."""
        state = self.state
        described = table_columns(state.relation, state.retired, self.user_types)
        columns, not_compared = [], {}
        for column, stored in zip(described, state.types, strict=True):
            compared = ComparedColumn(column.name, column.type)
            why = other.why_not(compared)
            if column.name in state.masks and other.types is None:
                why = f"the configuration masks it ({state.masks[column.name].partition(':')[0]})"
            if column.retired and why is not None:
                continue  # a dropped column that only Delta still has
            if column.type.stored_as != stored:
                why = f"stored as {stored}, but the configuration's `types` has {column.type.stored_as}"
            if why is None:
                columns.append(compared)
            else:
                not_compared[column.name] = why
        for name in other.unknown({column.name for column in described}):
            is_dropped = name in state.masks
            not_compared[name] = "the configuration drops it" if is_dropped else "the archive has no such column"
        if only is not None:
            by_name = {column.name: column for column in columns}
            columns = [by_name[name] for name in only if name in by_name]
        names = [column.name for column in columns]
        missing = [name for name in state.key if name not in names]
        why_not = f"key column {missing[0]!r} can't be compared" if missing else None
        why_not = why_not or (None if columns else "no column can be compared")
        key = () if missing else tuple(map(names.index, state.key))
        return ColumnChoice(tuple(columns), key, not_compared, why_not)


def compared_table(
    schema: str,
    table: str,
    choice: ColumnChoice,
    ranges: Ranges,
    ours: Mapping[int, Digest],
    theirs: Mapping[int, Digest],
    **others: Any,
) -> VerifiedTable:
    """A table whose digests have been compared. others: further fields."""
    return VerifiedTable(
        schema,
        table,
        rows=sum(digest.rows for digest in ours.values()),
        other_rows=sum(digest.rows for digest in theirs.values()),
        ranges=ranges.count,
        ranges_skipped=ranges.count - len(ranges.numbers),
        ranges_differing=len(differing_ranges(ours, theirs)),
        by_value=choice.by_value,
        not_compared=choice.not_compared,
        **others,
    )


def faulty_table(spark: SparkSession, schema: str, table: str, error: Exception) -> VerifiedTable:
    """A table that an error in FAULTS concerns. Raises the error if it ends the run."""
    why = held_reason(error, f"verifying {schema}.{table}", str, partial(is_running, spark))
    return VerifiedTable(schema, table, why_not=why, is_held=True)


def why_not_read(spark: SparkSession, state: TableState) -> tuple[str | None, bool]:
    """The reason why a table's stored rows can't be compared, or None; and True if the table is held or missing."""
    why = why_not_compared(state)
    if why is None and not is_delta_table(spark, state.path):
        return f"the table at {state.path} no longer exists", True
    return why, state.status == HELD


def why_not_compared(state: TableState) -> str | None:
    """The reason why a table's rows never correspond to those on a server, or None."""
    if state.status == HELD:
        return f"the table is held: {state.reason}"
    if state.status == SKIPPED:
        return "the configuration skips the table, or skipped it while changes were committed"
    if not table_mode(state.mode).has_rows:
        return _APPEND
    return "no run has written the table" if state.version < 0 else None
