"""Reads parts of the archive again, with the help of the ledger.

The ledger has the files with a table's rows and the status of their transactions, which assembly of the whole archive
decided. So only those files are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.ingest.binary_files import scan_files
from pgoutput_etl.ingest.executors import blocks_of, message_rows, rows_with_status
from pgoutput_etl.ingest.listing import check_sizes, list_landing, reading_files
from pgoutput_etl.landing.fingerprint import FilePart, KnownContents, LandedFile, ScanTask, task_again
from pgoutput_etl.landing.known_files import KnownFiles
from pgoutput_etl.landing.selection import refuse
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.ledger.store import with_missing_columns
from pgoutput_etl.ledger.transactions import fragment_frame, open_fragments
from pgoutput_etl.lsn import MAX_STORED_LSN
from pgoutput_etl.masking.mask_rows import MaskingPolicy
from pgoutput_etl.masking.policy import has_masks, masking_policy, scopes_of
from pgoutput_etl.scan.blocks import BLOCK_SCHEMA, BlockKind
from pgoutput_etl.scan.message_row import CHANGE_TAGS, ERROR_TAG, LOGICAL_TAG, ScanError
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.delta import read_table
from pgoutput_etl.spark.workers import first_scan
from pgoutput_etl.targets.plan import HELD, TableState
from pgoutput_etl.targets.planner import name_holders
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS, microseconds_of
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.outcome import FragmentId, Outcome, TransactionStatus, Watermark
from pgoutput_etl.transactions.status_lookup import StatusLookup
from pgoutput_etl.types import UserTypes


@dataclass(frozen=True, slots=True)
class CommitRange:
    """A range of commit LSNs, both included. first=0: from the beginning of the archive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file, or a part of one, that was read. path: its last known path; changes: number of change rows by relation
    OID; commits: None without any."""

    number: int
    path: str
    part: FilePart
    changes: Mapping[int, int]
    commits: CommitRange | None

    @property
    def size(self) -> int:
        """Bytes as stored; decompressed for the rest of a file."""
        return self.part.consumed - self.part.offset if self.part.offset else self.part.size

    def overlaps(self, commits: CommitRange) -> bool:
        return self.commits is not None and self.commits.first <= commits.last and commits.first <= self.commits.last


@dataclass(frozen=True)
class LedgerArchive:
    """Everything read and assembled up to the last finished batch."""

    spark: SparkSession
    config: Config
    ledger: DeltaLedger
    last: Batch

    @cached_property
    def _next(self) -> Batch:
        """The batch after the last finished one: it sees the ledger without an unfinished batch."""
        return self.last if self.last.resumed else replace(self.last, number=self.last.number + 1)

    def _read(self, table: str) -> DataFrame:
        return self.ledger.read_before(table, self._next)

    @cached_property
    def _unmasked(self) -> Assembly:
        return self.ledger.assembly(self._next, all_scopes=True)

    @cached_property
    def assembly(self) -> Assembly:
        """With relations as masked by the configuration, like rows that are read again. Raises ConfigError."""
        assembly = self._unmasked
        assembly.relations.mask = self.masking_policy
        return assembly

    @property
    def relations(self) -> RelationHistory:
        return self.assembly.relations

    @cached_property
    def masking_policy(self) -> MaskingPolicy | None:
        """The masks for rows that are read again. Raises ConfigError."""
        if not has_masks(self.config):
            return None
        assembly = self._unmasked
        scoped = self._fragments().where(F.col("scope").isNotNull()).select("file", "unit", "scope")
        scopes = {(row["file"], row["unit"]): row["scope"] for row in scoped.collect()}
        scopes |= scopes_of(assembly.open_outcomes())
        return masking_policy(self.config, assembly.relations, self.user_types, scopes)

    @cached_property
    def user_types(self) -> UserTypes:
        return UserTypes.of(self._unmasked.types.values(), self.config.types)

    @cached_property
    def prior_state(self) -> KnownFiles:
        return self.ledger.file_index(self._next, before=self._next.number).every_file()

    @cached_property
    def last_file(self) -> int:
        """The highest file number; -1 without files."""
        [row] = self._read("files").agg(F.max("file").alias("file")).collect()
        return -1 if row["file"] is None else int(row["file"])

    @cached_property
    def files(self) -> tuple[ReadFile, ...]:
        rows = self._read("files").select("file", "changes", "first_commit_lsn", "last_commit_lsn").orderBy("file")
        known = self.prior_state
        files = []
        for row in rows.toArrow().to_pylist():
            number, first = row["file"], row["first_commit_lsn"]
            part = known.parts[number]
            if part.was_read:
                commits = None if first is None else CommitRange(first, row["last_commit_lsn"])
                path = known.names[known.roots[number]]
                files.append(ReadFile(number, path, part, dict(row["changes"] or ()), commits))
        return tuple(files)

    @cached_property
    def commits(self) -> CommitRange | None:
        """From the first to the last commit in the files; None without any."""
        [row] = (
            self._read("files")
            .agg(F.min("first_commit_lsn").alias("first"), F.max("last_commit_lsn").alias("last"))
            .collect()
        )
        return None if row["first"] is None else CommitRange(row["first"], row["last"])

    def since(self, version: int | None, oids: Iterable[int]) -> dict[int, TableState]:
        """OID -> state that a rebuild starts from: at the given version, else after the table's snapshot, if it has one
        (the archive then lacks its earlier rows)."""
        return self.snapshots(oids) if version is None else {oid: self._base(oid, version) for oid in oids}

    def snapshots(self, oids: Iterable[int]) -> dict[int, TableState]:
        return {o: self._base(o, s.snapshot) for o, s in self._states(oids).items() if s.snapshot is not None}

    def _states(self, oids: Iterable[int]) -> dict[int, TableState]:
        return {oid: self.last.tables[oid] for oid in oids if oid in self.last.tables}

    def _base(self, oid: int, version: int) -> TableState:
        """The table's state at a Delta version. Raises ConfigError if no batch left the table at it, and RunError if
        Delta can no longer read it."""
        state = self.ledger.state_at(oid, version)
        if state is None or state.path == "":
            raise ConfigError(
                f"--since-version: no batch left {self.name(oid)} at Delta version {version}, so the commit through "
                "which it was complete is unknown. The ledger's table `batches` has the versions. A table with a "
                "snapshot that old needs a new one"
            )
        try:
            read_table(self.spark, state.path, version).limit(1).collect()
        except Exception as error:  # a missing file raises Java's own exception
            condition = error.getCondition() if isinstance(error, PySparkException) else None
            raise RunError(
                f"{self.name(oid)} would start from its Delta version {version}, which can no longer be read "
                f"({condition or type(error).__name__}). VACUUM may have removed its files: take a new snapshot of it"
            ) from error
        return state

    def cutoff_before(self, oids: Iterable[int], lsn: int) -> dict[int, TableState]:
        """The tables that may lack rows up to that commit, because bytes were unreadable."""
        if not self.assembly.was_damaged:
            return {}
        return {o: s for o, s in self._states(oids).items() if s.status == HELD and s.last_commit_lsn < lsn}

    def name(self, oid: int) -> str:
        if (state := self.last.tables.get(oid)) is not None:
            return f"{state.schema}.{state.table}"
        newest = self.relations.newest(oid)
        return f"OID {oid}" if newest is None else f"{newest.namespace}.{newest.name}"

    @cached_property
    def names(self) -> dict[str, int]:
        """ "schema.table" -> OID. A table without committed rows has the name in its newest Relation message."""
        without_rows = sorted(self.relations.oids() - self.last.tables.keys())
        holders = {".".join(name): oid for name, oid in name_holders(self.last.tables, {}).items()}
        return {self.name(oid): oid for oid in without_rows} | holders

    def first_commit(self, time: datetime) -> int:
        """LSN of the first commit at or after that time. Raises ConfigError without one."""
        return self._commit(True, F.col("at") >= microseconds_of(time), f"--from-time: none at {time} or later")

    def last_commit(self, time: datetime) -> int:
        """LSN of the last commit at or before that time. Raises ConfigError without one."""
        return self._commit(False, F.col("at") <= microseconds_of(time), f"--to-time: none at {time} or before")

    def _commit(self, first: bool, condition: Column, error: str) -> int:
        """The first or last commit whose time `at` (microseconds since 2000-01-01 UTC) meets a condition. For a file
        with trimmed transactions, the ledger has only those with the first and last time; if the result may be between
        them, the file itself is read."""
        aggregate = F.min if first else F.max
        commits = self._read("transactions").where(F.col("fate") == TransactionStatus.COMMITTED.value)
        commits = commits.withColumn("at", F.unix_micros("commit_ts") - POSTGRES_EPOCH_MICROSECONDS).where(condition)
        [row] = commits.agg(aggregate("commit_lsn").alias("lsn")).collect()
        if row["lsn"] is None:
            raise ConfigError(f"{error}, of the commits that were applied")
        lsn, trimmed_to = int(row["lsn"]), self.ledger.trimmed_to()
        if lsn > trimmed_to:
            return lsn
        beyond = CommitRange(0, lsn - 1) if first else CommitRange(lsn + 1, MAX_STORED_LSN)
        inexact = commits.where(F.col("commit_lsn") <= trimmed_to).select("file").distinct().toArrow().to_pylist()
        numbers = {trimmed["file"] for trimmed in inexact}
        files = [file for file in self.files if file.number in numbers and file.overlaps(beyond)]
        ends = message_rows(self._blocks(files, None), ["tag", "body", "commit_lsn", "commit_ts"])
        refuse_unreadable(ends)
        own = ends.where(F.col("tag") == "C").withColumn("at", F.col("commit_ts"))
        [exact] = own.where(condition).agg(aggregate("commit_lsn").alias("lsn")).collect()
        return lsn if exact["lsn"] is None else int(exact["lsn"])

    def files_with(self, oids: Iterable[int], commits: CommitRange) -> list[ReadFile]:
        """Files that may have changes of these relations by transactions with a commit in the range."""
        wanted = set(oids)
        files = [file for file in self.files if not wanted.isdisjoint(file.changes)]
        if commits.first == 0 and commits.last >= self.last.last_commit_lsn:
            return files
        ended = self._fragments().where(_is_committed(commits)).select("file").distinct().collect()
        committed_later = {row["file"] for row in ended}
        return [file for file in files if file.number in committed_later or file.overlaps(commits)]

    def landed(self, paths: Iterable[str], others: Iterable[str] = ()) -> dict[str, LandedFile]:
        """The files by path. others: files that may be gone. Raises ArchiveError if one of `paths` is gone."""
        landed = {file.path: file for file in list_landing(self.spark, self.config.source.landing).files()}
        wanted = sorted(set(paths))
        gone = [path for path in wanted if path not in landed]
        refuse(f"{path} no longer exists, but must be read again, unchanged" for path in gone)
        files = {path: landed[path] for path in (*wanted, *others) if path in landed}
        check_sizes(self.spark, files.values())
        return files

    @cached_property
    def unread_roots(self) -> frozenset[int]:
        """Numbers of the first parts of files without any readable message."""
        rows = self._read("files").where(F.size(F.map_keys("messages")) > 0).select("file").toArrow().to_pylist()
        roots = self.prior_state.roots
        return frozenset(self.prior_state.names) - {roots[row["file"]] for row in rows}

    def committed(self, files: Iterable[ReadFile], oids: Iterable[int], commits: CommitRange) -> DataFrame:
        """The committed change rows of these relations in these files, with the columns of `rows_with_status`.

        Raises ArchiveError if a file is gone. A changed file gives a row for `refuse_unreadable`.
        """
        files, is_of_table = list(files), F.col("relation").isin(*oids)
        blocks = self._blocks(files, self.masking_policy)
        blocks = blocks.where(is_of_table | (F.col("kind") == BlockKind.CONTROL.value))
        rows = rows_with_status(blocks, self._statuses([file.number for file in files]))
        is_change = F.col("tag").isin(*CHANGE_TAGS) & is_of_table & _is_committed(commits)
        return rows.where(is_change | (F.col("tag") == ERROR_TAG))

    def waiting(self, fragments: Collection[FragmentId], policy: MaskingPolicy | None) -> DataFrame:
        """Blocks of the rows of open transactions, masked by `policy`: for when the ledger has them with other masks.
        Raises ArchiveError if one of their files is gone or has changed."""
        numbers = {file for file, _ in fragments}
        rows = message_rows(self._blocks([file for file in self.files if file.number in numbers], policy))
        refuse_unreadable(rows)
        wanted = rows.where(F.col("tag").isin(*CHANGE_TAGS, LOGICAL_TAG))
        own = F.broadcast(fragment_frame(self.spark, fragments))
        return blocks_of(wanted.join(own, ["file", "unit"], "left_semi"), BlockKind.WAITING)

    def _blocks(self, files: Collection[ReadFile], policy: MaskingPolicy | None) -> DataFrame:
        landed = self.landed(file.path for file in files)
        rounds: list[dict[str, ScanTask]] = []  # one scan reads each path once, so a file's parts need several
        for file in files:
            current = landed[file.path]
            part = replace(file.part, path=current.path, size=current.size, modified=current.modified)
            if all(file.path in tasks for tasks in rounds):
                rounds.append({})
            next(tasks for tasks in rounds if file.path not in tasks)[file.path] = task_again(file.number, part)
        blocks, framing = frame(self.spark, BLOCK_SCHEMA.empty_table()), self.config.source.framing
        for tasks in rounds:
            scanned = scan_files(self.spark, tasks, KnownContents({}), framing, salvages=True, policy=policy)
            blocks = blocks.unionByName(scanned)
        return blocks

    def _statuses(self, files: Iterable[int]) -> StatusLookup:
        """The status of every transaction with rows in these files, as the ledger recorded it."""
        in_files = F.col("file").isin(*files)
        outcomes = [
            Outcome(
                TransactionStatus(row["fate"]),
                row["xid"],
                ((row["file"], row["unit"]),),
                aborted_subxids=row["aborted"] or (),
                **{name: row[name] for name in ("scope", "commit_lsn", "commit_ts")},
            )
            for row in self._fragments().where(in_files).toArrow().to_pylist()
        ]
        marks = self._read("files").where(in_files).select("file", F.inline("watermarks")).toArrow().to_pylist()
        watermarks = [Watermark(row["file"], row["stretch"], row["lsn"]) for row in marks]
        return StatusLookup.of(outcomes, watermarks, origins=self.config.source.origins)

    def _fragments(self) -> DataFrame:
        """Every fragment whose status the driver decided. The current configuration says which origins are refused."""
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
        waiting = fragment_frame(self.spark, open_fragments(self._unmasked))
        opened = waiting.withColumn("fate", F.lit(TransactionStatus.OPEN.value))
        return ended.unionByName(opened, allowMissingColumns=True)


def _is_committed(commits: CommitRange) -> Column:
    is_within = F.col("commit_lsn").between(commits.first, commits.last)
    return (F.col("fate") == TransactionStatus.COMMITTED.value) & is_within


def refuse_unreadable(rows: DataFrame) -> None:
    """Raises ArchiveError if a file of `rows` could not be read."""
    with reading_files(), first_scan(rows.sparkSession):
        errors = rows.where(F.col("tag") == ERROR_TAG).select("body").collect()
    refuse(ScanError.from_json(bytes(row["body"])).text for row in errors)
