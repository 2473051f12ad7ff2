"""DataFrameWriters for targets: with the commit's transaction identifier, and with the properties of a new table."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.schema.layout import CHANGE_FEED, Layout, Readers
from pgoutput_etl.spark.platform import value_of

# Deletion vectors let a MERGE mark rows instead of rewriting their files. Column mapping allows names that Parquet
# rejects, and renames or drops columns without rewriting the table. Measurements favor both. A timestamp column without
# time zone can only be added later if the table has timestampNtz from the beginning. Type widening is enabled on first
# use (evolve.py), because the Rust reader rejects tables that have it.
PROPERTIES = {
    Readers.SPARK: {
        "delta.enableDeletionVectors": "true",
        "delta.columnMapping.mode": "name",
        "delta.feature.timestampNtz": "supported",
    },
    Readers.ALL: {
        "delta.enableDeletionVectors": "false",
        "delta.columnMapping.mode": "none",
        "delta.enableTypeWidening": "false",
        "delta.checkpointPolicy": "classic",
        "delta.feature.timestampNtz": "supported",
    },
}


def writer_of(spark: SparkSession, rows: DataFrame) -> Any:
    """Repeats the session's transaction identifier as writer options, because `rows` may belong to another session."""
    return rows.write.format("delta").options(**commit_options(spark))


def commit_options(spark: SparkSession) -> dict[str, str]:
    """The session's transaction identifier and metadata as options of a writer."""
    prefix = "spark.databricks.delta."
    names = {"txnAppId": "write.txnAppId", "txnVersion": "write.txnVersion", "userMetadata": "commitInfo.userMetadata"}
    options = {option: value_of(spark, prefix + name) for option, name in names.items()}
    return {name: value for name, value in options.items() if value is not None}


def creating(writer: Any, layout: Layout) -> Any:
    """The writer with the properties of a new table."""
    # Delta can't create a table with column mapping and a feed by a write (DELTA_BLOCK_COLUMN_MAPPING_AND_CDC_...).
    of_new = {name: value for name, value in layout.properties.items() if name != CHANGE_FEED}
    return writer.options(**{**PROPERTIES[layout.readers], **of_new})
