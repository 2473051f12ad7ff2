"""Decides which stored row of a bag each DELETE removes."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from pgoutput_etl.changes.bag import Bag, Values, may_be_rows, value_of
from pgoutput_etl.load.net_effect import any_of, event_content, rows_with_content
from pgoutput_etl.schema.table_shape import NEVER, TableColumn, TableShape

_MOST_ROWS = 100_000  # compared one by one in a task; with more candidates, stale rows are ignored


def ranked(deletes: DataFrame, shape: TableShape) -> DataFrame:
    """Adds to DELETEs of stored rows the row that each removes: `gone`, its content, and `nth`, its rank among equal
    rows, newest first. deletes: with `_seq`."""
    in_order = Window.partitionBy("gone").orderBy("_seq")
    return deletes.withColumn("gone", event_content(shape)).withColumn("nth", F.row_number().over(in_order))


def settled(deletes: DataFrame, stored: DataFrame, shape: TableShape) -> DataFrame:
    """Like `ranked`, but a DELETE without an equal row removes the stale row that it refers to (changes/bag.py);
    `proven` is then an LSN, otherwise NULL. stored: the table's current rows."""
    deletes = deletes.withColumn("proven", F.lit(None).cast("long"))
    if not shape.changed_at and not _has_row(deletes, shape):
        return deletes
    rows = rows_with_content(stored, shape).select("content", F.col("row._pg_commit_lsn").alias("lsn"))
    copies = rows.groupBy("content").agg(F.count("*").alias("copies"))
    compared = deletes.join(copies, F.col("gone") == F.col("content"), "left")
    unmatched = compared.where(F.col("copies").isNull() | (F.col("nth") > F.col("copies")))
    alike = unmatched.select(_unchanged(F.col("gone"), shape).alias("alike")).distinct().localCheckpoint()
    if not alike.limit(1).count():
        return deletes
    candidates = rows.withColumn("alike", _unchanged(F.col("content"), shape)).join(alike, "alike", "left_semi")
    few = candidates.groupBy("alike").count().where(F.col("count") <= _MOST_ROWS)
    candidates = candidates.join(few, "alike", "left_semi").withColumn("nth", _rank("content", "lsn"))
    concerned = deletes.withColumn("alike", _unchanged(F.col("gone"), shape)).join(few, "alike", "left_semi")
    none = F.lit(None)
    both = candidates.select("alike", "content", "lsn", "nth", none.cast(deletes.schema["_seq"].dataType).alias("_seq"))
    both = both.unionByName(
        concerned.select("alike", F.col("gone").alias("content"), none.cast("long").alias("lsn"), "nth", "_seq")
    )
    found = _found(both, shape).localCheckpoint()
    better = {name: F.coalesce(f"_{name}", name) for name in ("gone", "nth", "proven")}
    return (
        deletes.join(found, "_seq", "left").withColumns(better).drop(*(f"_{name}" for name in better)).localCheckpoint()
    )


def survivors(stored: DataFrame, deletes: DataFrame, shape: TableShape) -> DataFrame:
    """The table's rows, as `row`, that no DELETE removes."""
    rows = rows_with_content(stored, shape).withColumn("rank", _rank("content", "row._pg_commit_lsn"))
    is_taken = (F.col("content") == F.col("gone")) & (F.col("rank") == F.col("nth"))
    return rows.join(deletes.select("gone", "nth"), is_taken, "left_anti").select("row")


def _rank(content: str, lsn: str) -> Column:
    """A row's rank among equal rows, newest first."""
    return F.row_number().over(Window.partitionBy(content).orderBy(F.desc(lsn)))


def may_be_stale(shape: TableShape) -> bool:
    """True if the server may have changed values without sending them and old tuples can reveal it."""
    return bool(shape.changed_at or may_be_rows(_live(shape)))


def _has_row(deletes: DataFrame, shape: TableShape) -> bool:
    """True if a DELETE has a value that may be a composite, which goes stale when its type changes."""
    may_be = may_be_rows(_live(shape))
    if not may_be:
        return False
    is_row = any_of(F.startswith(F.col(f"gone.p{n}"), F.lit("(")) for n in may_be)
    return bool(deletes.where(is_row).limit(1).count())


def _unchanged(content: Column, shape: TableShape) -> Column:
    """The values of a row's content that no change of columns or types can have made stale."""
    live, may_be = _live(shape), may_be_rows(_live(shape))
    kept = [n for n, changed_at in enumerate(_changed_at(shape)) if changed_at == NEVER and n not in may_be]
    names = [live[n].name for n in kept]
    entries = F.filter(content[f"p{len(live)}"], lambda entry: entry["key"].isin(names))
    return F.struct(*(content[f"p{n}"].alias(f"p{n}") for n in kept), entries.alias("entries"))


def _live(shape: TableShape) -> Sequence[TableColumn]:
    """The columns that make up a content, in its order."""
    return [column for column in shape.columns if not column.retired]


def _changed_at(shape: TableShape) -> Sequence[int]:
    """The LSN of the last change of each column in a content."""
    changed_at = shape.changed_at or [NEVER] * len(shape.columns)
    return [lsn for column, lsn in zip(shape.columns, changed_at, strict=True) if not column.retired]


def _found(both: DataFrame, shape: TableShape) -> DataFrame:
    """`_seq`, `_gone`, `_nth`, and `_proven` of each DELETE that removes a row. both: stored rows, and DELETEs, whose
    `_seq` is not NULL."""
    live, changed_at = _live(shape), _changed_at(shape)

    def find(group: pa.Table) -> pa.Table:
        names = [column.name for column in live]
        rows: Bag[int] = Bag(changed_at, may_be_rows(live))
        contents = group.column("content").combine_chunks()
        is_delete = group.column("_seq").is_valid().to_pylist()
        values = [_values(content, names) for content in contents.to_pylist()]
        for place, (lsn, a_delete) in enumerate(zip(group.column("lsn").to_pylist(), is_delete, strict=True)):
            if not a_delete:
                rows.add(values[place], lsn, place)
        deletes = [place for place, a_delete in enumerate(is_delete) if a_delete]
        order = group.column("_seq").to_pylist()
        taken = {
            place: row
            for place in sorted(deletes, key=lambda place: tuple(order[place].values()))
            if (row := rows.take(values[place], order[place]["_lsn"])) is not None
        }
        places = pa.array([found.row for found in taken.values()], pa.int64())
        proven = [None if found.proven == NEVER else found.proven for found in taken.values()]
        seq = group.column("_seq").take(pa.array(taken, pa.int64()))
        columns = (seq, contents.take(places), group.column("nth").take(places), pa.array(proven, pa.int64()))
        return pa.table(dict(zip(("_seq", "_gone", "_nth", "_proven"), columns, strict=True)))

    content = both.schema["content"].dataType
    fields = [StructField("_gone", content), StructField("_nth", IntegerType()), StructField("_proven", LongType())]
    return both.groupBy("alike").applyInArrow(find, StructType([both.schema["_seq"], *fields]))


def _values(content: dict[str, object], names: Sequence[str]) -> Values:
    """The values of a row's content, each with its entry in `_pg_unrepresentable`."""
    entries = {entry["key"]: entry["value"] for entry in content[f"p{len(names)}"] or ()}  # type: ignore[attr-defined]
    return tuple(value_of(content[f"p{n}"], entries, name) for n, name in enumerate(names))
