"""Transactions in the ledger, message rows of open transactions, and logical decoding Messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.ingest.executors import TransactionFilter, blocks_of
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.store import LedgerStore, with_missing_columns
from pgoutput_etl.ledger.tables import RowRange, transaction_row
from pgoutput_etl.scan.blocks import BlockKind
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.logical_messages import IDENTIFIED_BY
from pgoutput_etl.transactions.outcome import ONCE_COMMITTED, TRIMMED, FragmentId, TransactionStatus
from pgoutput_etl.transactions.statistics import OTHERS

_MOST_ON_DRIVER = 1 << 20  # transactions, a few hundred bytes each

_COMMITS = ("file", "xid", "fate", "commit_lsn")

_MASKS = pa.schema([("relation", pa.int64()), ("uses", pa.string())])

_FRAGMENTS = pa.schema([("file", pa.int64()), ("unit", pa.int32())])


@dataclass(frozen=True, slots=True)
class LedgerTransactions:
    """Transactions whose end was read, and logical decoding Messages."""

    store: LedgerStore

    def history_of(self, batch: Batch, rows: MessageRows, commits: int) -> BatchHistory:
        return BatchHistory(self, batch, rows, commits)

    def append(self, batch: Batch, rows: MessageRows, ended: int) -> None:
        """Records the batch's transactions. ended: the number of ordinary transactions that are within one file."""
        if not rows.are_local and (ended > _MOST_ON_DRIVER or not self.store.is_local):
            self.store.append("transactions", self.ended(batch, rows), batch.number)
        elif (table := self.table(batch, rows, rows.ended_on_driver)).num_rows:
            self.store.append_table("transactions", table, batch.number)

    def table(self, batch: Batch, rows: MessageRows, ended: pa.Table) -> pa.Table:
        """Like `ended`, but on the driver. ended: ordinary transactions (ENDED_SCHEMA)."""
        ordinary = ended.filter(pc.not_equal(ended.column("fate"), TransactionStatus.QUARANTINED.value))
        time = pc.add(ordinary.column("commit_ts"), POSTGRES_EPOCH_MICROSECONDS).cast(pa.timestamp("us", "UTC"))
        ordinary = ordinary.set_column(ordinary.column_names.index("commit_ts"), "commit_ts", time)
        stamp = {"source": pa.repeat(self.store.source, len(ordinary)), "batch": pa.repeat(batch.number, len(ordinary))}
        ordinary = pa.table({**stamp, **dict(zip(ordinary.column_names, ordinary.columns, strict=True))})
        others = self.store.table("transactions", [transaction_row(o) for o in rows.assembly.outcomes], batch.number)
        return pa.concat_tables([others, ordinary], promote_options="permissive")

    def ended(self, batch: Batch, rows: MessageRows, which: TransactionFilter | None = None) -> DataFrame:
        """Rows of `transactions`. Executors make the rows of ordinary transactions within one file, filtered by
        `which`; the driver makes all others."""
        ended = rows.ended(which).where(F.col("fate") != TransactionStatus.QUARANTINED.value)
        ended = ended.withColumn("commit_ts", _commit_time()).select(*self.store.stamp(batch), "*")
        others = [transaction_row(outcome) for outcome in rows.assembly.outcomes]
        frame = self.store.frame("transactions", others, batch.number)
        return frame.unionByName(ended, allowMissingColumns=True)

    def record_trimmed(self, last: Batch, lsn: int) -> None:
        """Records that ordinary transactions with commits up to `lsn` may be deleted. last: the newest batch."""
        self.store.append_rows("transactions", [{"fate": TRIMMED, "commit_lsn": lsn}], last.number, f"{TRIMMED}:{lsn}")

    def trimmed_to(self) -> int:
        """The commit LSN up to which ordinary transactions may be deleted; 0 if all are stored."""
        trimmed = self.store.read("transactions").where(F.col("fate") == TRIMMED)
        [row] = trimmed.agg(F.max("commit_lsn")).collect()
        return row[0] or 0

    def append_messages(self, batch: Batch, rows: MessageRows, counts: Mapping[str, int]) -> None:
        """Appends logical Messages. counts: as in `BatchStatistics.messages`.

        A batch that reassembles the archive reads all Messages and appends only the missing ones.
        """
        if not any(counts.values()):
            return
        messages = rows.logical_messages()
        if counts.get(OTHERS):
            first = F.min(F.struct("file", "ordinal")).alias("first")
            repeated = [F.first(name).alias(name) for name in ("transactional", "xid", "commit_lsn", "commit_ts")]
            others = messages.where(~F.col("transactional")).groupBy(*IDENTIFIED_BY).agg(first, *repeated)
            others = others.select("*", "first.*").drop("first")
            messages = messages.where(F.col("transactional")).unionByName(self._new_messages(others, batch))
        if batch.since == batch.number:
            messages = self._new_messages(messages, batch)
        messages = messages.withColumn("commit_ts", _commit_time())
        self.store.append("messages", messages.select(*self.store.stamp(batch), "*"), batch.number)

    def _new_messages(self, messages: DataFrame, batch: Batch) -> DataFrame:
        """Messages that no earlier batch has stored: PostgreSQL may send a Message again."""
        if not self.store.exists("messages"):
            return messages
        [least] = messages.agg(F.min("lsn")).collect()
        if least[0] is None:
            return messages
        is_before = (F.col("batch") < batch.number) & (F.col("lsn") >= least[0])
        stored = self.store.read("messages").where(is_before).select("transactional", *IDENTIFIED_BY)
        return messages.join(stored, ["transactional", *IDENTIFIED_BY], "left_anti")


def _commit_time() -> Column:
    return F.timestamp_micros(F.col("commit_ts") + POSTGRES_EPOCH_MICROSECONDS)


def _commits(transactions: DataFrame) -> DataFrame:
    ended = transactions.where(F.col("fate").isin(*ONCE_COMMITTED))
    return ended.select(F.col("xid").alias("k_xid"), F.col("commit_lsn").alias("k_lsn"))


@dataclass(frozen=True, slots=True)
class BatchHistory:
    """The transactions of a batch and of earlier batches, for ingest/source_check.py. commits: the number of Commits in
    the batch's files."""

    transactions: LedgerTransactions
    batch: Batch
    rows: MessageRows
    commits: int

    def may_have_resent(self) -> bool:
        outcomes, resent = self.rows.assembly.outcomes, TransactionStatus.RESENT
        if not self._fits_on_driver or any(outcome.status is resent for outcome in outcomes):
            return True
        return bool(pc.any(pc.equal(self.rows.ended_on_driver.column("fate"), resent.value)).as_py())

    def unknown_resent(self) -> list[tuple[int, int, int]]:
        ended = self.transactions.ended(self.batch, self.rows)
        ours = ended.where(F.col("commit_lsn").isNotNull()).select("file", "fate", "xid", "commit_lsn")
        number = F.col("batch")
        counts = (number >= self.batch.since) & (number < self.batch.number)
        known = self.transactions.store.read("transactions").where(counts)
        trimmed = known.where(F.col("fate") == TRIMMED).agg(F.coalesce(F.max("commit_lsn"), F.lit(0)).alias("trimmed"))
        commits = _commits(known).unionByName(_commits(ours))
        same = (F.col("commit_lsn") == F.col("k_lsn")) & F.coalesce(F.col("xid") == F.col("k_xid"), F.lit(True))
        resent = ours.where(F.col("fate") == TransactionStatus.RESENT.value).crossJoin(F.broadcast(trimmed))
        resent = resent.where(F.col("commit_lsn") > F.col("trimmed"))
        unknown = resent.join(commits, same, "left_anti")
        lowest = unknown.groupBy("file").agg(F.min(F.struct("commit_lsn", "xid")).alias("c")).orderBy("file").collect()
        return [(row["file"], row["c"]["xid"], row["c"]["commit_lsn"]) for row in lowest]

    def few_ended(self, which: TransactionFilter) -> pa.Table:
        if not self._fits_on_driver:
            return self.transactions.ended(self.batch, self.rows, which).select(*_COMMITS).toArrow()
        ordinary = which.filtered(self.rows.ended_on_driver)
        return self.transactions.table(self.batch, self.rows, ordinary).select(list(_COMMITS))

    def few_before(self, xids: tuple[int, int]) -> pa.Table:
        chosen = RowRange(self.batch.since, self.batch.number, xids)
        return self.transactions.store.columns_where("transactions", _COMMITS, chosen)

    @property
    def _fits_on_driver(self) -> bool:
        return self.rows.are_local or self.commits <= _MOST_ON_DRIVER


@dataclass(frozen=True, slots=True)
class PendingTransactions:
    """The message rows of transactions that are still open."""

    store: LedgerStore

    def append(self, batch: Batch, rows: MessageRows) -> None:
        """The batch's own rows of open transactions, with the masks that were applied to their columns."""
        if not open_fragments(rows.assembly):
            return
        content = rows.content_with_status()
        pending = content.where((F.col("fate") == TransactionStatus.OPEN.value) & (F.col("file") >= batch.first_file))
        pending = pending.join(F.broadcast(self._masks(rows.assembly.relations)), "relation", "left")
        columns = (*self.store.stamp(batch), *MESSAGE_SCHEMA.names, "uses")
        self.store.append("open_transactions", pending.select(*columns), batch.number)

    def _masks(self, relations: RelationHistory) -> DataFrame:
        masks = [(oid, relations.masks_of(oid)) for oid in sorted(relations.oids())]
        rows = [{"relation": oid, "uses": json.dumps(dict(columns))} for oid, columns in masks if columns]
        return frame(self.store.spark, pa.Table.from_pylist(rows, _MASKS))

    def blocks(self, assembly: Assembly, batch: Batch) -> DataFrame | None:
        """Blocks of the message rows of transactions that earlier batches left open; None if none are open."""
        rows = self._rows(assembly, batch)
        return None if rows is None else blocks_of(rows.select(*MESSAGE_SCHEMA.names), BlockKind.WAITING)

    def masks(self, assembly: Assembly, batch: Batch) -> list[tuple[int, dict[str, str]]]:
        """Relation OIDs of changes that earlier batches left open, and the masks that were applied to their columns."""
        rows = self._rows(assembly, batch)
        if rows is None:
            return []
        masks = rows.where(F.col("relation").isNotNull()).select("relation", "uses").distinct()
        return [(row["relation"], json.loads(row["uses"] or "{}")) for row in masks.toArrow().to_pylist()]

    def _rows(self, assembly: Assembly, batch: Batch) -> DataFrame | None:
        fragments = open_fragments(assembly)
        if not fragments:
            return None
        rows = with_missing_columns("open_transactions", self.store.read_before("open_transactions", batch))
        return rows.join(F.broadcast(fragment_frame(self.store.spark, fragments)), ["file", "unit"], "left_semi")

    def delete_ended(self, assembly: Assembly, last: Batch) -> None:
        """Deletes the rows of transactions that had ended by a finished batch. Keeps the rows of later batches, because
        a run that seemed dead may have continued and written some."""
        rows = self.store.columns("open_transactions", ("file", "unit"), 0, last.number + 1)
        fragments = rows.group_by(["file", "unit"]).aggregate([]).select(["file", "unit"])
        self.delete_closed(zip(*(column.to_pylist() for column in fragments.columns), strict=True), assembly)

    def delete_closed(self, fragments: Iterable[FragmentId], assembly: Assembly) -> None:
        """Deletes the rows of fragments that are no longer open. Leftovers are harmless, because only open ones are
        read."""
        still_open = set(open_fragments(assembly))
        ended = [fragment for fragment in fragments if fragment not in still_open]
        if not ended:
            return
        target = self.store.delta("open_transactions").alias("t")
        same = (F.col("t.file") == F.col("s.file")) & (F.col("t.unit") == F.col("s.unit"))
        condition = same & (F.col("t.source") == self.store.source)
        target.merge(fragment_frame(self.store.spark, ended).alias("s"), condition).whenMatchedDelete().execute()


def open_fragments(assembly: Assembly) -> list[FragmentId]:
    return [fragment for outcome in assembly.open_outcomes() for fragment in outcome.fragments]


def fragment_frame(spark: SparkSession, fragments: Iterable[FragmentId]) -> DataFrame:
    rows = [{"file": file, "unit": fragment} for file, fragment in fragments]
    return frame(spark, pa.Table.from_pylist(rows, _FRAGMENTS))
