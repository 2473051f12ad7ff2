"""A table's archived changes and stored rows, by key, as PostgreSQL's texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pgoutput_etl.answers.undo.steps import Change, Key, Row
from pgoutput_etl.answers.verify.row_text import delta_texts, text_names
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.load import append
from pgoutput_etl.load.change_source import ChangeBlocks
from pgoutput_etl.schema.table_shape import TableColumn
from pgoutput_etl.targets.modes import OLD_KEY_COLUMN, OP_COLUMN, SEQ_COLUMN, UNCHANGED_COLUMN
from pgoutput_etl.targets.plan import TableTask
from pgoutput_etl.types.canonical_text import ComparedColumn


@dataclass(frozen=True, slots=True)
class RowChanges:
    """columns: the table's current ones. key: positions of the key's columns; empty without a key."""

    task: TableTask
    columns: tuple[ComparedColumn, ...]
    key: tuple[int, ...]

    @classmethod
    def of(cls, task: TableTask) -> RowChanges:
        columns = tuple(ComparedColumn(c.name, c.type) for c in task.shape.columns if not c.retired)
        return cls(task, columns, task.shape.key)

    def log(self, rows: CommittedBlocks) -> DataFrame:
        """The table's changes: the columns of `_texts`, op, seq, unchanged (names of values not sent), and the row's
        keys before and after the change, old and key, which are NULL if no such row existed."""
        events = ChangeBlocks(rows, rows.windows, finds_keys=False)
        logs = []
        for span in self.task.spans:
            changes = append.rows_after(None, span.shape, events.event_log(self.task, span))
            kept = {"op": OP_COLUMN, "seq": SEQ_COLUMN, "moved": OLD_KEY_COLUMN, "unchanged": UNCHANGED_COLUMN}
            logs.append(self._texts(changes, span.shape.columns, kept))
        log = reduce(DataFrame.unionByName, logs)
        key = self._key_of(log)
        moved = F.array(*(F.col("moved")[F.lit(self.columns[i].name)] for i in self.key)).cast("array<string>")
        old = F.when(F.col("moved").isNull(), key).otherwise(moved)
        ends = {"old": F.when(F.col("op") != "I", old), "key": F.when(F.col("op") != "D", key)}
        log = log.withColumns(ends)
        return (log if self.key else _with_whole_updates(log)).localCheckpoint()

    def keys(self, log: DataFrame, is_selected: Column) -> DataFrame:
        """As `one`, the keys of rows with a selected change, and all other keys that these rows ever had in the log."""
        keys, count = _keys_in(log.where(is_selected)).localCheckpoint(), -1
        while (now := keys.count()) != count:
            keys, count = keys.union(_keys_in(_with_keys(log, keys))).distinct().localCheckpoint(), now
        return keys

    def changes(self, log: DataFrame, keys: DataFrame, is_selected: Column) -> list[Change]:
        """The changes of rows with these keys, in order."""
        found = _with_keys(log, keys).withColumn("is_selected", is_selected).toArrow().to_pylist()
        changes = []
        for row in sorted(found, key=lambda row: (row["lsn"], row["seq"])):
            new = self._row(row) if row["op"] != "D" else None
            old, key = (None if row[end] is None else tuple(row[end]) for end in ("old", "key"))
            position, absent = (row["lsn"], row["xid"], row["seq"] >> 1), frozenset(row["absent"])
            changes.append(Change(*position, row["is_selected"], old, key, new, absent))
        return changes

    def rows(self, stored: DataFrame, keys: DataFrame) -> dict[Key, Row]:
        """The stored rows with these keys. First converts only the stored keys to texts."""
        whole = F.struct(*map(quoted, stored.columns))
        texts = delta_texts(stored, [self.columns[i] for i in self.key], {"whole": whole})
        stored_key = F.array(*(F.col(name) for name in text_names(len(self.key))))
        wanted = texts.join(keys, stored_key.eqNullSafe(F.col("one")), "left_semi").select("whole.*")
        rows = self._texts(wanted, self.task.stored_columns, {})
        found = rows.withColumn("key", self._key_of(rows)).toArrow().to_pylist()
        return {tuple(row["key"]): self._row(row) for row in found}

    def _texts(self, rows: DataFrame, stored: Sequence[TableColumn], kept: Mapping[str, str]) -> DataFrame:
        """t… and unknown of all columns, absent (positions of columns added later), lsn, xid, and the columns in
        `kept`, renamed."""
        names = {column.name for column in stored if not column.retired}
        present = [i for i, column in enumerate(self.columns) if column.name in names]
        absent = [i for i in range(len(self.columns)) if i not in present]
        others = {name: F.col(column) for name, column in kept.items()}
        texts = delta_texts(rows, [self.columns[i] for i in present], others)
        positions = F.array(*map(F.lit, present))
        sent = F.transform(F.coalesce("unknown", F.array().cast("array<int>")), lambda i: positions[i])
        values = {f"t{i}": F.lit(None).cast("string") for i in absent}
        values |= {f"t{i}": F.col(f"t{n}") for n, i in enumerate(present)}
        return texts.select(
            *(values[name].alias(name) for name in text_names(len(self.columns))),
            sent.alias("unknown"),
            F.array(*map(F.lit, absent)).cast("array<int>").alias("absent"),
            *("lsn", "xid", *kept),
        )

    def _key_of(self, texts: DataFrame) -> Column:
        return F.array(*(texts[f"t{i}"] for i in self.key or range(len(self.columns))))

    def _row(self, row: Mapping[str, Any]) -> Row:
        unsent = [i for i, column in enumerate(self.columns) if column.name in (row.get("unchanged") or ())]
        unknown = frozenset([*row["unknown"], *row["absent"], *unsent])
        return Row(tuple(row[name] for name in text_names(len(self.columns))), unknown, frozenset(row["absent"]))


def _with_whole_updates(log: DataFrame) -> DataFrame:
    """Joins the DELETE and INSERT of an UPDATE in a table without a key: both are from one message, and the INSERT gets
    the old row."""
    message = Window.partitionBy("lsn", F.shiftright("seq", 1))
    log = log.withColumns({end: F.max(end).over(message) for end in ("old", "key")})
    return log.where((F.col("op") != "D") | F.col("key").isNull())


def _keys_in(log: DataFrame) -> DataFrame:
    return log.select(F.explode(F.array("old", "key")).alias("one")).where(F.col("one").isNotNull()).distinct()


def _with_keys(log: DataFrame, keys: DataFrame) -> DataFrame:
    """The changes of rows that had one of these keys. Uses two joins, because Spark would compare every pair for an
    OR."""
    old, new = (keys.select(F.col("one").alias(f"{end}_one")) for end in ("old", "key"))
    joined = log.join(old, F.col("old").eqNullSafe(F.col("old_one")), "left")
    joined = joined.join(new, F.col("key").eqNullSafe(F.col("key_one")), "left")
    return joined.where(F.coalesce("old_one", "key_one").isNotNull()).drop("old_one", "key_one")
