"""Rereads parts of the archive with Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.ingest.binary_files import scan_files
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.ingest.executors import blocks_of, message_rows, rows_with_status
from pgoutput_etl.ingest.landing_folder import SparkLandingFolder
from pgoutput_etl.ingest.listing import reading_files
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.ingest.scanned_blocks import of_kind
from pgoutput_etl.landing.fingerprint import KnownContents, ScanTask, task_again
from pgoutput_etl.landing.selection import refuse
from pgoutput_etl.ledger.archive import LedgerArchive, ReadFile
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.ledger.store import with_missing_columns
from pgoutput_etl.ledger.transactions import fragment_frame
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.masking.mask_rows import MaskingPolicy
from pgoutput_etl.places import Place
from pgoutput_etl.scan.blocks import BLOCK_SCHEMA, BlockKind
from pgoutput_etl.scan.message_row import CHANGE_TAGS, ERROR_TAG, LOGICAL_TAG, ScanError
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.delta import delta_table, is_delta_table, read_table, remove_table
from pgoutput_etl.spark.platform import persist, unpersist
from pgoutput_etl.spark.workers import first_scan
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS, microseconds_of
from pgoutput_etl.transactions.cutoff import Cutoff, commits_before
from pgoutput_etl.transactions.outcome import FragmentId, TransactionStatus
from pgoutput_etl.transactions.statistics import CommitRange
from pgoutput_etl.transactions.status_lookup import StatusLookup

_OPEN = pa.schema(
    [
        ("file", pa.int64()),
        ("unit", pa.int32()),
        ("fate", pa.string()),
        *((name, pa.int64()) for name in ("xid", "scope")),
        ("aborted", pa.list_(pa.int64())),
    ]
)


@dataclass(frozen=True)
class DeltaArchive(LedgerArchive):
    """An archive whose ledger is in Delta tables, and whose files are on any storage that Spark reads."""

    ledger: DeltaLedger
    spark: SparkSession

    @classmethod
    def of(cls, spark: SparkSession, config: Config, ledger: DeltaLedger, last: Batch) -> DeltaArchive:
        return cls(config, ledger, last, SparkLandingFolder(spark, config), spark)

    def _read(self, table: str) -> DataFrame:
        few = self.ledger.store.few_before(table, self._next)
        return self.ledger.store.read_before(table, self._next) if few is None else frame(self.spark, few)

    def _scopes(self) -> dict[FragmentId, int]:
        scoped = self._fragments().where(F.col("scope").isNotNull()).select("file", "unit", "scope")
        return {(row["file"], row["unit"]): row["scope"] for row in scoped.collect()}

    def _outcomes(self, files: Collection[int]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._fragments().where(F.col("file").isin(*files)).toArrow().to_pylist()
        return rows

    def _files_committed_in(self, commits: CommitRange) -> set[int]:
        ended = _committed(self._fragments()).where(_is_within(commits)).select("file").distinct()
        return {row["file"] for row in ended.collect()}

    def _check_readable(self, state: TableState) -> None:
        try:
            read_table(self.spark, state.path, state.version).limit(1).collect()
        except Exception as error:  # for a missing file, Java's own exception
            condition = error.getCondition() if isinstance(error, PySparkException) else None
            raise RunError(
                f"{self.name(state.oid)} would start from its Delta version {state.version}, which can no longer be "
                f"read ({condition or type(error).__name__}). VACUUM may have removed its files: take a new snapshot "
                "of it"
            ) from error

    def commits_of(self, xid: int) -> list[int]:
        return self._commit_lsns(F.col("xid") == xid)

    def commits_from(self, origin: str, commits: CommitRange) -> list[int]:
        """The commit LSNs of the transactions from a replication origin in the range. Raises ConfigError if maintenance
        has deleted records of transactions in the range."""
        trimmed_to = self.ledger.transactions.trimmed_to()
        if trimmed_to and commits.first <= trimmed_to:
            raise ConfigError(
                f"--origin: maintenance has deleted the records of transactions up to {format_lsn(trimmed_to)}: name a "
                "later --from-lsn"
            )
        return self._commit_lsns(_is_within(commits) & (F.col("origin") == origin))

    def _commit_lsns(self, is_wanted: Column) -> list[int]:
        rows = _committed(self._read("transactions")).where(is_wanted).select("commit_lsn").distinct().collect()
        return sorted(row["commit_lsn"] for row in rows)

    def transaction_at(self, lsn: int) -> tuple[int | None, datetime | None, str | None]:
        """The xid, commit time, and origin of the transaction that committed at an LSN; None if there is no record of
        it."""
        found = _committed(self._read("transactions")).where(F.col("commit_lsn") == lsn)
        rows = found.select("xid", "commit_ts", "origin").limit(1).toArrow().to_pylist()
        return (rows[0]["xid"], rows[0]["commit_ts"], rows[0]["origin"]) if rows else (None, None, None)

    def first_commit(self, time: datetime) -> int:
        """The LSN of the first commit at or after `time`. Raises ConfigError if there is none."""
        return self._commit(True, F.col("at") >= microseconds_of(time), f"no commit at {time} or later")

    def last_commit(self, time: datetime) -> int:
        """The LSN of the last commit at or before `time`. Raises ConfigError if there is none."""
        return self._commit(False, F.col("at") <= microseconds_of(time), f"no commit at {time} or before")

    def _commit(self, first: bool, condition: Column, error: str) -> int:
        """The first or last commit whose time `at` (microseconds since 2000-01-01 UTC) meets a condition. For a file
        whose transactions were trimmed, the ledger only has the first and last by time; if the result may be between
        them, the file itself is read."""
        aggregate = F.min if first else F.max
        time = F.unix_micros("commit_ts") - POSTGRES_EPOCH_MICROSECONDS
        commits = _committed(self._read("transactions")).withColumn("at", time).where(condition)
        [row] = commits.agg(aggregate("commit_lsn").alias("lsn")).collect()
        if row["lsn"] is None:
            raise ConfigError(f"{error} has been applied")
        lsn, trimmed_to = int(row["lsn"]), self.ledger.transactions.trimmed_to()
        if lsn > trimmed_to:
            return lsn
        beyond = CommitRange(last=lsn - 1) if first else CommitRange(lsn + 1)
        inexact = commits.where(F.col("commit_lsn") <= trimmed_to).select("file").distinct().toArrow().to_pylist()
        numbers = {trimmed["file"] for trimmed in inexact}
        files = [file for file in self.files if file.number in numbers and file.overlaps(beyond)]
        ends = message_rows(self._blocks(files, None), ["tag", "body", "commit_lsn", "commit_ts"])
        _refuse_unreadable(ends)
        own = ends.where(F.col("tag") == "C").withColumn("at", F.col("commit_ts"))
        [exact] = own.where(condition).agg(aggregate("commit_lsn").alias("lsn")).collect()
        return lsn if exact["lsn"] is None else int(exact["lsn"])

    @contextmanager
    def reading(
        self, files: Collection[ReadFile], oids: Iterable[int], commits: CommitRange
    ) -> Iterator[CommittedBlocks]:
        windows = dict.fromkeys(oids, commits)
        is_of_table = F.col("relation").isin(*windows)
        scanned = self._blocks(files, self.masking_policy, leaves_tuples=False)
        scanned = scanned.where(is_of_table | (F.col("kind") == BlockKind.CONTROL.value))
        with _persisted(scanned) as blocks:
            if files:
                _refuse_unreadable(message_rows(of_kind(blocks, BlockKind.CONTROL)))
            statuses = self._statuses([file.number for file in files])
            yield CommittedBlocks(blocks.where(is_of_table), statuses, windows)

    def assembled(self, rows: MessageRows, without: Collection[int], cutoffs: Mapping[int, Cutoff]) -> CommittedBlocks:
        blocks = rows.changes().where(~F.col("relation").isin(*without))
        return CommittedBlocks(blocks, rows.statuses, commits_before(cutoffs))

    def staged(self, place: str, oids: Collection[int]) -> CommittedBlocks:
        blocks = frame(self.spark, BLOCK_SCHEMA.empty_table())
        if is_delta_table(self.spark, Place(place)):  # otherwise, no table under repair differs
            blocks = read_table(self.spark, Place(place)).where(F.col("relation").isin(*oids))
        return CommittedBlocks(blocks, StatusLookup.of((), ()), {})

    def discard(self, place: str) -> None:
        """Where Hadoop's file system can't be called, deletes only the rows and not the folder."""
        if is_delta_table(self.spark, Place(place)) and not remove_table(self.spark, Place(place)):
            delta_table(self.spark, Place(place)).delete()

    def all_changes(self, oids: Collection[int]) -> DataFrame:
        """Every change of these relations, as sent, whatever the status of its transaction: the columns of
        MESSAGE_SCHEMA, and scope. Raises ArchiveError if a file is missing or has changed."""
        files = [file for file in self.files if not file.changes.keys().isdisjoint(oids)]
        is_of_table = F.col("relation").isin(*oids)
        return self._all(files, is_of_table).where(is_of_table & F.col("tag").isin(*CHANGE_TAGS))

    def all_messages(self) -> DataFrame:
        """Every logical decoding Message, in the form of `all_changes`."""
        numbers = {row["file"] for row in self._files("file", "messages") if LOGICAL_TAG in dict(row["messages"] or ())}
        files = [file for file in self.files if file.number in numbers]
        return self._all(files, F.col("kind") == BlockKind.LOGICAL.value).where(F.col("tag") == LOGICAL_TAG)

    def _all(self, files: Collection[ReadFile], is_wanted: Column) -> DataFrame:
        blocks = self._blocks(files, None).where(is_wanted | (F.col("kind") == BlockKind.CONTROL.value))
        rows = rows_with_status(blocks, self._statuses([file.number for file in files])).localCheckpoint()
        _refuse_unreadable(rows)
        return rows

    def waiting(self, fragments: Collection[FragmentId], policy: MaskingPolicy | None) -> DataFrame:
        numbers = {file for file, _ in fragments}
        rows = message_rows(self._blocks([file for file in self.files if file.number in numbers], policy))
        _refuse_unreadable(rows)
        wanted = rows.where(F.col("tag").isin(*CHANGE_TAGS, LOGICAL_TAG))
        own = F.broadcast(fragment_frame(self.spark, fragments))
        return blocks_of(wanted.join(own, ["file", "unit"], "left_semi"), BlockKind.WAITING)

    def _blocks(
        self, files: Collection[ReadFile], policy: MaskingPolicy | None, leaves_tuples: bool = True
    ) -> DataFrame:
        """The files' blocks. A file that has changed yields an error row for `_refuse_unreadable`."""
        landed = self.landed(file.path for file in files)
        rounds: list[dict[str, ScanTask]] = []  # a scan reads a path once, so parts of a file need several scans
        for file in files:
            current = landed[file.path]
            part = replace(file.part, path=current.path, size=current.size, modified=current.modified)
            if all(part.path in tasks for tasks in rounds):
                rounds.append({})
            next(tasks for tasks in rounds if part.path not in tasks)[part.path] = task_again(file.number, part)
        blocks, source = frame(self.spark, BLOCK_SCHEMA.empty_table()), self.config.source
        known, mask = KnownContents({}), None if policy is None else policy.mask
        for tasks in rounds:
            scanned = scan_files(self.spark, tasks, known, source.framing, True, mask, source.landing, leaves_tuples)
            blocks = blocks.unionByName(scanned)
        return blocks

    def _fragments(self) -> DataFrame:
        """Every fragment whose status the driver decided. The current configuration decides which origins are
        refused."""
        origins, origin = self.config.source.origins, F.col("origin")
        is_refused = origin.isin(*origins.skipped)  # NULL for a local transaction, which is never refused
        if origins.accepted is not None:
            is_refused |= ~origin.isin(*origins.accepted)
        committed, refused = TransactionStatus.COMMITTED.value, TransactionStatus.REFUSED.value
        status = F.when(~F.col("fate").isin(committed, refused), F.col("fate")).when(is_refused, refused)
        ended = with_missing_columns("transactions", self._read("transactions")).select(
            F.inline("units"),
            status.otherwise(committed).alias("fate"),
            (F.unix_micros("commit_ts") - POSTGRES_EPOCH_MICROSECONDS).alias("commit_ts"),
            *("xid", "commit_lsn", "scope", "aborted"),
        )
        waiting = [
            (file, unit, o.status.value, o.xid, o.scope, list(o.aborted_subxids))
            for o in self._unmasked.open_outcomes()
            for file, unit in o.fragments
        ]
        rows = [dict(zip(_OPEN.names, fragment, strict=True)) for fragment in waiting]
        opened = frame(self.spark, pa.Table.from_pylist(rows, _OPEN))
        return ended.unionByName(opened, allowMissingColumns=True)


@contextmanager
def _persisted(blocks: DataFrame) -> Iterator[DataFrame]:
    persisted = persist(blocks, StorageLevel.DISK_ONLY)
    try:
        yield persisted
    finally:
        unpersist(persisted)


def _committed(transactions: DataFrame) -> DataFrame:
    return transactions.where(F.col("fate") == TransactionStatus.COMMITTED.value)


def _is_within(commits: CommitRange) -> Column:
    return F.col("commit_lsn").between(commits.first, commits.last)


def _refuse_unreadable(rows: DataFrame) -> None:
    """Raises ArchiveError if a file of `rows` could not be read."""
    with reading_files(), first_scan(rows.sparkSession):
        errors = rows.where(F.col("tag") == ERROR_TAG).select("body").collect()
    refuse(ScanError.from_json(bytes(row["body"])).text for row in errors)
