"""A MERGE as a value: executed by Delta, or evaluated as a DataFrame while a table is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load.table_writer import TableCommit
from pgoutput_etl.load.target_columns import quoted_names
from pgoutput_etl.spark.delta import delta_table

KEPT, INSERTED, UPDATED, DELETED = "kept", "inserted", "updated", "deleted"


@dataclass(frozen=True, slots=True)
class RowMerge:
    """Changes rows `t` of a target using rows `s` of a source.

    condition: joins rows; each row matches at most one. updated, inserted: values by the target's columns. is_deleted:
    condition on a matched pair, or None if nothing is deleted. is_inserted: condition on a source row without a match.
    """

    source: DataFrame
    condition: Column
    updated: Mapping[str, Column]
    inserted: Mapping[str, Column]
    is_deleted: Column | None
    is_inserted: Column

    def execute(self, table: TableCommit) -> None:
        """Executes the MERGE as one Delta commit."""
        merge = delta_table(table.spark, table.place).alias("t").merge(self.source.alias("s"), self.condition)
        if self.is_deleted is not None:
            merge = merge.whenMatchedDelete(self.is_deleted)
        merge = merge.whenMatchedUpdate(set=quoted_names(self.updated))
        merge.whenNotMatchedInsert(self.is_inserted, values=quoted_names(self.inserted)).execute()

    def effects(self, target: DataFrame) -> DataFrame:
        """Pairs of rows `t` and `s`, either of which may be NULL, with the `effect` on them; NULL if nothing
        happens."""
        # Structs, because a column of the table may have any name.
        stored = target.select(F.struct(*map(quoted, target.columns)).alias("t"))
        pairs = stored.join(self.source.select(F.struct("*").alias("s")), self.condition, "full_outer")
        is_deleted = F.lit(False) if self.is_deleted is None else self.is_deleted
        effect = F.when(F.col("s").isNull(), KEPT).when(F.col("t").isNull(), F.when(self.is_inserted, INSERTED))
        return pairs.withColumn("effect", effect.when(is_deleted, DELETED).otherwise(UPDATED))

    def after(self, target: DataFrame, effects: DataFrame | None = None) -> DataFrame:
        """The target's rows after the MERGE. effects: the result of `effects`, if already computed."""
        effects = self.effects(target) if effects is None else effects
        effect = F.col("effect")
        missing = F.lit(None)
        return effects.where(effect.isin(KEPT, INSERTED, UPDATED)).select(
            *(
                F.when(effect == INSERTED, self.inserted.get(field.name, missing).cast(field.dataType))
                .when(effect == UPDATED, self.updated.get(field.name, _stored(field.name)).cast(field.dataType))
                .otherwise(_stored(field.name))
                .alias(field.name)
                for field in target.schema
            )
        )


def _stored(name: str) -> Column:
    return F.col(f"t.{quoted(name)}")
