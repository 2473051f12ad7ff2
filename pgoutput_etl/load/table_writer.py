"""Transactions and writers of targets, and the properties of new tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.places import Place
from pgoutput_etl.schema.layout import CHANGE_FEED, COLUMN_MAPPING, Layout, Readers, needs_column_mapping
from pgoutput_etl.spark.delta_history import USER_METADATA
from pgoutput_etl.spark.platform import TRANSACTION_APPLICATION, value_of
from pgoutput_etl.spark.session import session_settings, temporarily

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})

_TRANSACTION_VERSION = "spark.databricks.delta.write.txnVersion"

# A writer's options, by the session setting that they replace
_OPTIONS = {TRANSACTION_APPLICATION: "txnAppId", _TRANSACTION_VERSION: "txnVersion", USER_METADATA: "userMetadata"}

# Delta's default is 10. Each checkpoint of a small table takes it ten times as long as another commit.
_FOR_EACH = {"delta.checkpointInterval": "100"}

# Deletion vectors let a MERGE mark rows instead of rewriting their files. Column mapping allows names that Parquet
# rejects, and lets columns be renamed or dropped without rewriting the table. Measurements favor both. A timestamp
# column without time zone can only be added later if the table has timestampNtz from the start. Type widening is
# enabled on first use (evolve.py), because delta-rs rejects tables that have it. With `readers: auto`, so are the other
# two (table_features.py).
_FOR_ALL = {
    **_FOR_EACH,
    "delta.enableDeletionVectors": "false",
    COLUMN_MAPPING: "none",
    "delta.enableTypeWidening": "false",
    "delta.checkpointPolicy": "classic",
    "delta.feature.timestampNtz": "supported",
}
PROPERTIES = {
    Readers.SPARK: {
        **_FOR_EACH,
        "delta.enableDeletionVectors": "true",
        COLUMN_MAPPING: "name",
        "delta.feature.timestampNtz": "supported",
    },
    Readers.ALL: _FOR_ALL,
    Readers.AUTO: _FOR_ALL,
}


@dataclass(frozen=True, slots=True)
class DeltaTransaction:
    """Identifies a write: Delta accepts each version of an application only once."""

    application: str  # the ledger and the table
    step: str
    batch: int
    last_commit_lsn: int

    @property
    def owner(self) -> str:
        """The application that keeps the table up to date. Building the table elsewhere uses another one, whose name
        has more parts between the ledger and the table."""
        program, ledger, *_, table = self.application.split(":")
        return f"{program}:{ledger}:{table}"

    @property
    def ledger(self) -> str:
        """The prefix of all application names of the ledger."""
        return f"{':'.join(self.application.split(':', 2)[:2])}:"

    def settings(self) -> dict[str, str]:
        return {
            TRANSACTION_APPLICATION: f"{self.application}:{self.step}",
            _TRANSACTION_VERSION: str(self.batch),
            **self.user_metadata(),
        }

    def user_metadata(self) -> dict[str, str]:
        """The setting whose value is stored with the commit in the table's history."""
        return {USER_METADATA: json.dumps(asdict(self))}


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A target, and the transaction of the next commit to it. spark: a session whose settings have the transaction, as
    MERGE and ALTER TABLE take it only from there. options: the transaction as writer options, because a writer's rows
    may belong to another session; without options that this Spark rejects."""

    spark: SparkSession
    place: Place
    transaction: DeltaTransaction
    options: Mapping[str, str]

    @property
    def application(self) -> str:
        """Delta's identifier of the transaction."""
        return self.transaction.settings()[TRANSACTION_APPLICATION]

    def writer_of(self, rows: DataFrame) -> Any:
        return rows.write.format("delta").options(**self.options)

    @contextmanager
    def preparing(self, step: str) -> Iterator[TableCommit]:
        """Within the context, commits are recorded as a separate step; otherwise a run that finishes this one would
        conclude that the write was done."""
        transaction = replace(self.transaction, step=f"{self.transaction.step}:{step}")
        settings = {name: value for name, value in transaction.settings().items() if _OPTIONS[name] in self.options}
        with temporarily(self.spark, settings):
            options = {_OPTIONS[name]: value for name, value in settings.items()}
            yield replace(self, transaction=transaction, options=options)


@contextmanager
def committing(
    spark: SparkSession,
    place: Place,
    transaction: DeltaTransaction,
    settings: Mapping[str, str] = NO_SETTINGS,
    is_once: bool = True,
) -> Iterator[TableCommit]:
    """settings: additional ones for the session. is_once: makes Delta refuse a second commit of the transaction; if
    False, the transaction is only recorded in the history."""
    own = transaction.settings() if is_once else transaction.user_metadata()
    with session_settings(spark, {**own, **settings}) as session:
        accepted = {name: value for name, value in own.items() if value_of(session, name) == value}
        yield TableCommit(session, place, transaction, {_OPTIONS[name]: value for name, value in accepted.items()})


def properties_of_new(layout: Layout, columns: Iterable[str]) -> dict[str, str]:
    """The properties that a table is created with. columns: their names."""
    # A write can't create a table that has both column mapping and a feed (DELTA_BLOCK_COLUMN_MAPPING_AND_CDC_...).
    of_new = {name: value for name, value in layout.properties.items() if name != CHANGE_FEED}
    mapped = {COLUMN_MAPPING: "name"} if any(map(needs_column_mapping, columns)) else {}
    return {**PROPERTIES[layout.readers], **mapped, **of_new}
