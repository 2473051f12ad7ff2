"""A part of the archive read again, with what the ledger knows of all of it.

A table's rows lie in some of the files, and the ledger says in which. What became of their transactions was decided
when the whole archive was assembled, and is in the ledger too: so only those files are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.ingest.executors import blocks_of, message_rows, rows_with_status
from pgoutput_etl.ingest.listing import check_sizes, list_landing, reading_files
from pgoutput_etl.ingest.scan import scan_files
from pgoutput_etl.landing.fingerprint import FilePart, KnownContents, LandedFile, ScanTask, task_again
from pgoutput_etl.landing.known_files import KnownFiles
from pgoutput_etl.landing.selection import refuse
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.ledger import Ledger
from pgoutput_etl.masking.mask_rows import MaskingPolicy
from pgoutput_etl.masking.policy import has_masks, masking_policy, scopes_of
from pgoutput_etl.scan.blocks import BLOCK_SCHEMA, BlockKind
from pgoutput_etl.scan.message_row import CHANGE_TAGS, ERROR_TAG, LOGICAL_TAG, ScanError
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.delta import read_table
from pgoutput_etl.targets.plan import HELD, TableState
from pgoutput_etl.targets.planner import name_holders
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.origin_filter import Origins
from pgoutput_etl.transactions.outcome import FragmentId, Outcome, TransactionStatus, Watermark
from pgoutput_etl.transactions.status_lookup import StatusLookup
from pgoutput_etl.types import UserTypes

_FRAGMENTS = pa.schema([("file", pa.int64()), ("unit", pa.int32())])


@dataclass(frozen=True, slots=True)
class CommitRange:
    """Commit LSNs, both included. first 0: from the archive's beginning."""

    first: int
    last: int

    def holds(self, lsn: int) -> bool:
        return self.first <= lsn <= self.last


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file, or a part of one, that was read: under `path` it was found last. changes: relation's OID -> change rows
    in it. commits: LSNs of the first and the last."""

    number: int
    path: str
    part: FilePart
    changes: Mapping[int, int]
    commits: CommitRange | None

    @property
    def size(self) -> int:
        """Bytes: on storage, but of a part decompressed."""
        return self.part.consumed - self.part.offset if self.part.offset else self.part.size


@dataclass(frozen=True)
class LedgerArchive:
    """What was read and assembled up to the last batch that is done."""

    spark: SparkSession
    config: Config
    ledger: Ledger
    last: Batch

    @cached_property
    def _next(self) -> Batch:
        """As the next batch sees the ledger. One that was begun and isn't done has no part in it."""
        return self.last if self.last.resumed else replace(self.last, number=self.last.number + 1)

    def _read(self, table: str) -> DataFrame:
        return self.ledger.extend(table, self._next)

    @cached_property
    def _assembled(self) -> Assembly:
        return self.ledger.assembly(self._next, all_scopes=True)

    @cached_property
    def assembly(self) -> Assembly:
        """Its relations are as rows stand when they are read again. Raises ConfigError."""
        assembly = self._assembled
        assembly.relations.mask = self.masking_policy
        return assembly

    @property
    def relations(self) -> RelationHistory:
        return self.assembly.relations

    @cached_property
    def masking_policy(self) -> MaskingPolicy | None:
        """What is done to rows of files that are read again. Raises ConfigError."""
        if not has_masks(self.config):
            return None
        assembly = self._assembled
        scoped = self._fragments().where(F.col("scope").isNotNull()).select("file", "unit", "scope")
        scopes = {(row["file"], row["unit"]): row["scope"] for row in scoped.collect()}
        scopes |= scopes_of(assembly.open_outcomes())
        return masking_policy(self.config, assembly.relations, self.user_types, scopes)

    @cached_property
    def user_types(self) -> UserTypes:
        return UserTypes.of(self._assembled.types.values(), self.config.types)

    @cached_property
    def prior_state(self) -> KnownFiles:
        return self.ledger.file_index(self._next, before=self._next.number).every_file()

    @cached_property
    def last_file(self) -> int:
        """The highest number of a file; -1 if there is none."""
        [row] = self._read("files").agg(F.max("file").alias("file")).collect()
        return -1 if row["file"] is None else int(row["file"])

    @cached_property
    def files(self) -> tuple[ReadFile, ...]:
        rows = self._read("files").select("file", "changes", "first_commit_lsn", "last_commit_lsn").orderBy("file")
        known = self.prior_state
        found = []
        for row in rows.toArrow().to_pylist():
            number, first = row["file"], row["first_commit_lsn"]
            part = known.parts[number]
            if part.was_read:
                commits = None if first is None else CommitRange(first, row["last_commit_lsn"])
                path = known.names[known.roots[number]]
                found.append(ReadFile(number, path, part, dict(row["changes"] or ()), commits))
        return tuple(found)

    def state_at(self, oid: int, version: int) -> TableState:
        """Raises ConfigError if no batch left the table at that Delta version."""
        state = self.ledger.state_at(oid, version)
        if state is None or state.path == "":
            raise ConfigError(
                f"--since-version: no batch left {self.name(oid)} at Delta version {version}, so that nothing says "
                "through which commit it was whole then. The ledger's table `batches` has the versions. A table whose "
                "snapshot is that old needs another one: jobs/snapshot.py"
            )
        return state

    def since(self, version: int | None, oids: Iterable[int]) -> dict[int, TableState]:
        """Where tables stood that are not begun with nothing: at the version that is said, or where a snapshot left
        them, of which the archive has not all rows."""
        return self.snapshots(oids) if version is None else {oid: self._started(oid, version) for oid in oids}

    def snapshots(self, oids: Iterable[int]) -> dict[int, TableState]:
        states = {oid: self.last.tables[oid] for oid in oids if oid in self.last.tables}
        return {o: self._started(o, s.snapshot) for o, s in states.items() if s.snapshot is not None}

    def _started(self, oid: int, version: int) -> TableState:
        """Raises RunError if Delta has that version no more."""
        state = self.state_at(oid, version)
        try:
            read_table(self.spark, state.path, version).limit(1).collect()
        except Exception as error:  # a file that is gone is Java's own exception
            condition = error.getCondition() if isinstance(error, PySparkException) else None
            raise RunError(
                f"{self.name(oid)} would be begun with its Delta version {version}, which can't be read any more "
                f"({condition or type(error).__name__}). VACUUM may have removed it: take another snapshot, "
                "jobs/snapshot.py"
            ) from error
        return state

    def cutoff_before(self, oids: Iterable[int], lsn: int) -> dict[int, TableState]:
        """Of these tables, those whose rows up to that commit may be among bytes that could not be read."""
        states = {oid: self.last.tables[oid] for oid in oids if oid in self.last.tables}
        damaged = self.assembly.was_damaged
        return {o: s for o, s in states.items() if damaged and s.status == HELD and s.last_commit_lsn < lsn}

    def name(self, oid: int) -> str:
        if oid in self.last.tables:
            return f"{self.last.tables[oid].schema}.{self.last.tables[oid].table}"
        newest = self.relations.newest(oid)
        return f"OID {oid}" if newest is None else f"{newest.namespace}.{newest.name}"

    @cached_property
    def names(self) -> dict[str, int]:
        """By "schema.table" the OID of the table that bears the name; of one that has no committed row, the name that
        the server described it by last."""
        without_rows = sorted(self.relations.oids() - self.last.tables.keys())
        holders = {".".join(name): oid for name, oid in name_holders(self.last.tables, {}).items()}
        return {self.name(oid): oid for oid in without_rows} | holders

    def first_commit(self, time: datetime) -> int:
        """The first one at that time or later. Raises ConfigError if there is none."""
        return self._commit(True, F.col("at") >= _microseconds(time), f"--from-time: none at {time} or later")

    def last_commit(self, time: datetime) -> int:
        """The last one at that time or before."""
        return self._commit(False, F.col("at") <= _microseconds(time), f"--to-time: none at {time} or before")

    def _commit(self, first: bool, condition: Column, error: str) -> int:
        """The first or the last one with a condition. Of a file whose transactions were trimmed, the ledger has those
        with the first and the last time: if one of these is in question, the file itself tells which of all it is."""
        which = F.min if first else F.max
        commits = self._read("transactions").where(F.col("fate") == TransactionStatus.COMMITTED.value)
        commits = commits.withColumn("at", F.unix_micros("commit_ts")).where(condition)
        [row] = commits.agg(which("commit_lsn").alias("lsn")).collect()
        if row["lsn"] is None:
            raise ConfigError(f"{error}, of the commits that were applied")
        trimmed_to = self.ledger.trimmed_to()
        if row["lsn"] > trimmed_to:
            return int(row["lsn"])
        inexact = commits.where(F.col("commit_lsn") <= trimmed_to).select("file").distinct().toArrow().to_pylist()
        numbers = {each["file"] for each in inexact}
        files = [file for file in self.files if file.number in numbers and _reaches(file.commits, row["lsn"], first)]
        ends = message_rows(self._blocks(files, None), ["tag", "body", "commit_lsn", "commit_ts"])
        refuse_unreadable(ends)
        own = ends.where(F.col("tag") == "C").withColumn("at", F.col("commit_ts") + POSTGRES_EPOCH_MICROSECONDS)
        [found] = own.where(condition).agg(which("commit_lsn").alias("lsn")).collect()
        return int(row["lsn"] if found["lsn"] is None else found["lsn"])

    def files_with(self, oids: Iterable[int], commits: CommitRange) -> list[ReadFile]:
        """Those that may have changes of these relations by transactions that committed there."""
        wanted = set(oids)
        having = [file for file in self.files if not wanted.isdisjoint(file.changes)]
        if commits.first == 0 and commits.last >= self.last.last_commit_lsn:
            return having
        ended = self._fragments().where(
            (F.col("of_unit") == TransactionStatus.COMMITTED.value)
            & F.col("unit_lsn").between(commits.first, commits.last)
        )
        elsewhere = {row["file"] for row in ended.select("file").distinct().collect()}
        return [file for file in having if file.number in elsewhere or _overlap(file.commits, commits)]

    def landed(self, paths: Iterable[str], others: Iterable[str] = ()) -> dict[str, LandedFile]:
        """`others`: those that may be gone. Raises ArchiveError if one of `paths` isn't there any more."""
        landed = {file.path: file for file in list_landing(self.spark, self.config.source.landing).files()}
        wanted = sorted(set(paths))
        gone = [path for path in wanted if path not in landed]
        refuse(f"{path} is not there any more: what is read again has to be as it was" for path in gone)
        found = {path: landed[path] for path in (*wanted, *others) if path in landed}
        check_sizes(self.spark, found.values())
        return found

    @cached_property
    def unread_roots(self) -> frozenset[int]:
        """The first parts of contents in which no message could be read."""
        rows = self._read("files").where(F.size(F.map_keys("messages")) > 0).select("file").toArrow().to_pylist()
        roots = self.prior_state.roots
        return frozenset(self.prior_state.names) - {roots[row["file"]] for row in rows}

    def committed(self, files: Iterable[ReadFile], oids: Iterable[int], commits: CommitRange) -> DataFrame:
        """The committed change rows of these relations in these files, with the columns of `rows_with_status`.

        Raises ArchiveError if a file isn't there. One that is not as it was is a row for `refuse_unreadable`.
        """
        files = list(files)
        blocks = self._blocks(files, self.masking_policy)
        of_these = F.col("relation").isin(*oids) | (F.col("kind") == BlockKind.CONTROL.value)
        wanted = (F.col("tag").isin(*CHANGE_TAGS) & F.col("relation").isin(*oids)) | (F.col("tag") == ERROR_TAG)
        rows = rows_with_status(blocks.where(of_these), self._statuses([file.number for file in files])).where(wanted)
        counts = (F.col("fate") == TransactionStatus.COMMITTED.value) & F.col("commit_lsn").between(
            commits.first, commits.last
        )
        return rows.where(counts | (F.col("tag") == ERROR_TAG))

    def waiting(self, fragments: Collection[FragmentId], protected: MaskingPolicy | None) -> DataFrame:
        """Blocks of the rows of transactions whose end was not there, of which the ledger has what is none of the
        configuration's `columns` any more. Raises ArchiveError if a file of theirs is not there as it was."""
        numbers = {file for file, _ in fragments}
        rows = message_rows(self._blocks([file for file in self.files if file.number in numbers], protected))
        refuse_unreadable(rows)
        listed = frame(self.spark, pa.Table.from_pylist([{"file": f, "unit": u} for f, u in fragments], _FRAGMENTS))
        wanted = rows.where(F.col("tag").isin(*CHANGE_TAGS, LOGICAL_TAG))
        return blocks_of(wanted.join(F.broadcast(listed), ["file", "unit"], "left_semi"), BlockKind.WAITING)

    def _blocks(self, files: Iterable[ReadFile], protected: MaskingPolicy | None) -> DataFrame:
        files = list(files)
        landed = self.landed(file.path for file in files)
        blocks = frame(self.spark, BLOCK_SCHEMA.empty_table())
        framing = self.config.source.framing
        for tasks in _scan_rounds(files, landed):
            scanned = scan_files(self.spark, tasks, KnownContents({}), framing, salvages=True, protection=protected)
            blocks = blocks.unionByName(scanned)
        return blocks

    def _statuses(self, files: Iterable[int]) -> StatusLookup:
        """The status of every transaction with rows in these files, as the ledger recorded it."""
        in_files = F.col("file").isin(*files)
        outcomes = [
            Outcome(
                TransactionStatus(row["of_unit"]),
                row["unit_xid"],
                ((row["file"], row["unit"]),),
                scope=row["scope"],
                commit_lsn=row["unit_lsn"],
                commit_ts=row["unit_ts"],
                aborted_subxids=row["aborted"] or (),
            )
            for row in self._fragments().where(in_files).toArrow().to_pylist()
        ]
        exploded = self._read("files").where(in_files).select("file", F.explode("watermarks").alias("of"))
        marks = exploded.select("file", "of.stretch", "of.lsn").toArrow().to_pylist()
        watermarks = [Watermark(row["file"], row["stretch"], row["lsn"]) for row in marks]
        return StatusLookup.of(outcomes, watermarks, origins=self.config.source.origins)

    def _fragments(self) -> DataFrame:
        """The outcome of every unit that has one of its own. Which origins are refused, the configuration says now."""
        is_either = F.col("fate").isin(TransactionStatus.COMMITTED.value, TransactionStatus.REFUSED.value)
        now = F.when(_is_refused(self.config.source.origins), TransactionStatus.REFUSED.value).otherwise(
            TransactionStatus.COMMITTED.value
        )
        ended = self.ledger.completed("transactions", self._read("transactions")).select(
            F.explode("units").alias("of"),
            F.when(is_either, now).otherwise(F.col("fate")).alias("of_unit"),
            F.col("commit_lsn").alias("unit_lsn"),
            (F.unix_micros("commit_ts") - POSTGRES_EPOCH_MICROSECONDS).alias("unit_ts"),
            F.col("xid").alias("unit_xid"),
            "scope",
            "aborted",
        )
        ended = ended.select("of.file", "of.unit", *ended.columns[1:])
        waiting = [(file, fragment) for o in self._assembled.open_outcomes() for file, fragment in o.fragments]
        opened = self.spark.createDataFrame(waiting, "file long, unit int").withColumn("of_unit", F.lit("open"))
        return ended.unionByName(opened, allowMissingColumns=True)


def _is_refused(origins: Origins) -> Column:
    """Whether the configuration refuses a row's `origin`, which is NULL for a local transaction."""
    refused = F.col("origin").isin(*origins.skipped)
    if origins.accepted is not None:
        refused |= ~F.col("origin").isin(*origins.accepted)
    return F.coalesce(refused, F.lit(False))


def _scan_rounds(files: Iterable[ReadFile], landed: Mapping[str, LandedFile]) -> list[dict[str, ScanTask]]:
    """How to read the very bytes that were read. Of a file that was read in parts, each has a round of its own."""
    rounds: list[dict[str, ScanTask]] = []
    for file in files:
        here = landed[file.path]
        part = replace(file.part, path=here.path, size=here.size, modified=here.modified)
        task = task_again(file.number, part)
        free = next((tasks for tasks in rounds if file.path not in tasks), None)
        if free is None:
            rounds.append({file.path: task})
        else:
            free[file.path] = task
    return rounds


def _microseconds(time: datetime) -> int:
    return (time - datetime.fromtimestamp(0, timezone.utc)) // timedelta(microseconds=1)


def refuse_unreadable(rows: DataFrame) -> None:
    """Raises ArchiveError if a file among those of `rows` could not be read."""
    with reading_files():
        found = rows.where(F.col("tag") == ERROR_TAG).select("body").collect()
    refuse(ScanError.from_json(bytes(row["body"])).text for row in found)


def _reaches(commits: CommitRange | None, lsn: int, first: bool) -> bool:
    """Whether a file may have a commit before the one at `lsn`, or behind it."""
    return commits is not None and (commits.first < lsn if first else commits.last > lsn)


def _overlap(commits: CommitRange | None, wanted: CommitRange) -> bool:
    return commits is not None and commits.first <= wanted.last and wanted.first <= commits.last
