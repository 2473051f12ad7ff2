"""Compares a server's answer (ask.py) with Delta as of exactly its LSN, or as the last batch left it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.answers.moment.read import MomentReader, TablesFound
from pgoutput_etl.answers.verify.delta_side import (
    ColumnChoice,
    DeltaSide,
    compared_table,
    faulty_table,
    why_not_compared,
)
from pgoutput_etl.answers.verify.key_ranges import Digest, differing_ranges
from pgoutput_etl.answers.verify.report import VerifiedTable
from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.answers.verify.row_diff import differences, row_differences
from pgoutput_etl.answers.verify.row_text import canonicalize, rows_in_ranges, text_names
from pgoutput_etl.answers.verify.server_answer import AskedTable, ServerAnswer
from pgoutput_etl.answers.verify.sides import OtherColumns
from pgoutput_etl.answers.verify.tables import named_states
from pgoutput_etl.console import Progress
from pgoutput_etl.identifiers import pattern_of
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.load.holding import FAULTS
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.table_pool import TablePool
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.types.canonical_text import ComparedColumn

_NOT_LOADED = "never loaded: the server has rows of this table, and Delta has none: load a snapshot"

_GONE = "its rows as of that moment are not known: a snapshot, or another table of its name, has replaced them since"

_SPELLING = "more rows differ than are kept, perhaps by spelling alone, or by values that were never sent: ask again"

_COLUMNS = "its columns have changed since Delta was read: ask again"


@dataclass(frozen=True, slots=True)
class RowsToChange:
    """rows: tag and t…: I for the server's rows, D for rows to delete in Delta (only the key counts, if there is one).
    left: number of keys, or of a bag's rows, that have changed since."""

    rows: DataFrame
    left: int


@dataclass(frozen=True, slots=True)
class SettledTable:
    """A table that differs. side: as of the answer's LSN. theirs: the server's rows in the ranges `numbers`."""

    asked: AskedTable
    side: DeltaSide
    choice: ColumnChoice
    numbers: Sequence[int]
    theirs: DataFrame

    @property
    def deciding(self) -> list[ComparedColumn]:
        """The columns that identify rows."""
        return [self.choice.columns[i] for i in self.choice.key or range(len(self.choice.columns))]

    def changes(self, touched: DataFrame | None) -> RowsToChange:
        """The rows that still differ, except those that have changed since the answer. touched: these rows, as `one`,
        an array of the texts of the deciding columns."""
        columns, key = self.choice.columns, self.choice.key
        names = text_names(len(columns))
        raw = self.theirs.withColumn("raw", F.array(*names))  # as the server spelled them
        ours, theirs = (
            rows_in_ranges(rows, columns, self.asked.ranges, self.numbers) for rows in (self.side.texts(columns), raw)
        )
        differing = row_differences(ours, theirs, columns, key).where(F.col("kind") != "same").localCheckpoint()
        positions = key or tuple(range(len(columns)))
        rows = differing.withColumn("one", F.array(*(F.coalesce(f"d{i}", f"o{i}") for i in positions)))
        keys, left = rows.select("one").distinct(), 0
        if touched is not None:
            later = self._canonical(touched).withColumn("has_changed", F.lit(True))
            found = keys.join(later, F.col("one").eqNullSafe(F.col("later")), "left").localCheckpoint()
            keys, left = found.where("has_changed IS NULL").select("one"), found.where("has_changed").count()
            rows = rows.join(keys.toDF("kept"), F.col("one").eqNullSafe(F.col("kept")), "left_semi")
        if not key:
            tag = F.when(F.col("kind") == "only_delta", "D").otherwise("I").alias("tag")
            texts = (F.coalesce(f"d{i}", f"o{i}").alias(name) for i, name in enumerate(names))
            return RowsToChange(rows.select(F.explode(F.sequence(F.lit(1), "n")), tag, *texts).drop("col"), left)
        own = F.array(*(F.col(names[i]) for i in key)).alias("own")
        wanted = theirs.select("raw", own).join(keys, F.col("own").eqNullSafe(F.col("one")), "left_semi")
        gone = keys.join(wanted.select("own"), F.col("own").eqNullSafe(F.col("one")), "left_anti")
        texts = (F.col("one")[key.index(i)] if i in key else F.lit(None) for i in range(len(names)))
        deletes = gone.select(F.lit("D").alias("tag"), F.array(*texts).cast("array<string>").alias("raw"))
        both = deletes.unionByName(wanted.select(F.lit("I").alias("tag"), "raw"))
        return RowsToChange(both.select("tag", *(F.col("raw")[i].alias(name) for i, name in enumerate(names))), left)

    def _canonical(self, touched: DataFrame) -> DataFrame:
        """The touched rows as `later`, with their texts in the same form as in differences."""
        deciding = self.deciding
        names = text_names(len(deciding))
        texts = touched.where("one IS NOT NULL").select(*(F.col("one")[n].alias(t) for n, t in enumerate(names)))

        def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return (canonicalize(batch, deciding) for batch in batches)

        return texts.mapInArrow(convert, texts.schema).select(F.array(*names).alias("later")).distinct()


@dataclass(frozen=True, slots=True)
class Settling:
    """archive: of the last batch, which has passed the answer's LSN or is compared even though commits are missing."""

    archive: DeltaArchive
    answer: ServerAnswer
    request: VerifyRequest
    progress: Progress
    found: list[SettledTable] = field(default_factory=list)  # tables that differ in rows that were kept

    def run(self) -> list[VerifiedTable]:
        archive, answer = self.archive, self.answer
        if self.request.is_live:
            found = self._found()
            sides = {state.full_name: DeltaSide(state, rows, archive.user_types) for state, rows in found.rows}
            held = {state.full_name: state for state in found.held.values()}
        else:
            stored, held = named_states(archive.config, archive.last.tables), {}
            names = [table.full_name for table in answer.tables]
            sides = {name: DeltaSide.stored(archive.spark, stored[name], archive.user_types) for name in names}
        pool = TablePool.of(archive.spark, archive.config.merge.parallel_tables, "verifying", self.progress)
        settled = pool.map(answer.tables, lambda table: table.full_name, partial(self._settled, sides, held))
        lost = [
            VerifiedTable(schema, table, why_not=_NOT_LOADED, is_held=True)
            for schema, table in answer.missing
            if f"{schema}.{table}" not in sides
        ]
        return [*answer.decided, *settled, *lost]

    def _found(self) -> TablesFound:
        known = self.archive.oids_by_name()
        names = [*(table.full_name for table in self.answer.tables), *map(".".join, self.answer.missing)]
        patterns = [pattern_of(name) for name in names if name in known]
        if not patterns:
            return TablesFound((), {}, {})
        return (
            MomentReader(self.archive.spark, self.archive, self.progress)
            .find(self.answer.lsn - 1, patterns)
            .named(patterns)
        )

    def _settled(
        self, sides: Mapping[str, DeltaSide], held: Mapping[str, TableState], asked: AskedTable
    ) -> VerifiedTable:
        name = asked.full_name
        try:
            if name in held:
                why = why_not_compared(held[name]) or "the table lacks changes, as it was held"
                return VerifiedTable(asked.schema, asked.table, why_not=why, is_held=True)
            if name not in sides:
                return VerifiedTable(asked.schema, asked.table, why_not=_GONE, is_undecided=True)
            return self._compared(sides[name], asked)
        except FAULTS as error:
            return faulty_table(self.archive.spark, asked.schema, asked.table, error)

    def _compared(self, side: DeltaSide, asked: AskedTable) -> VerifiedTable:
        choice = side.chosen(OtherColumns(asked.columns, "the server was not asked for it"), asked.columns)
        if tuple(column.name for column in choice.columns) != asked.columns or choice.why_not is not None:
            return VerifiedTable(asked.schema, asked.table, why_not=_COLUMNS, is_undecided=True)
        side = side.within(choice.columns, asked.ranges)
        ours = side.digests(choice.columns, asked.ranges)
        numbers = differing_ranges(ours, asked.digests)
        with_rows = [number for number in numbers if number in asked.rows]
        others = [number for number in numbers if number not in asked.rows]
        if others and self._may_be_equal(side.texts(choice.columns), choice, asked, others):
            return VerifiedTable(asked.schema, asked.table, why_not=_SPELLING, is_undecided=True)
        counts: dict[str, Any] = {}
        if with_rows:
            kept = self._rows(asked, with_rows)
            self.found.append(SettledTable(asked, side, choice, with_rows, kept))
            theirs = rows_in_ranges(kept, choice.columns, asked.ranges, with_rows)
            counts = differences(side, choice, asked.ranges, with_rows, theirs, self.request)
        empty = Digest()
        unread = sum(max(ours.get(n, empty).rows, asked.digests.get(n, empty).rows) for n in others)
        names = asked.schema, asked.table
        return compared_table(*names, choice, asked.ranges, ours, asked.digests, rows_unread=unread, **counts)

    def _may_be_equal(self, texts: DataFrame, choice: ColumnChoice, asked: AskedTable, numbers: Sequence[int]) -> bool:
        """True if the rows of these ranges may be equal although their digests differ: spelled differently, or with
        values that were never sent."""
        rows = rows_in_ranges(texts, choice.columns, asked.ranges, numbers)
        return bool(choice.by_value) or not rows.where(F.size("unknown") > 0).isEmpty()

    def _rows(self, asked: AskedTable, numbers: Sequence[int]) -> DataFrame:
        names = text_names(len(asked.columns))
        rows = [row for number in numbers for row in asked.rows[number]]
        arrays = [pa.array([row[i] for row in rows], pa.string()) for i in range(len(names))]
        return frame(self.archive.spark, pa.table(arrays, names=names))
