"""Reads tables as of any commit: as of the last batch before it, merged with the archived changes up to it.

Nothing is written, and only files with a commit in between are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.answers.moment.request import only_commit
from pgoutput_etl.config.chosen_tables import matching_names
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, counted, no_progress
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.identifiers import is_chosen
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.as_of import Tables
from pgoutput_etl.ledger.batch import applied
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load.on_read import FrameTargets
from pgoutput_etl.load.shared_table import tagged_target
from pgoutput_etl.load.writer import Writer, no_claim
from pgoutput_etl.lsn import format_lsn, parse_lsn
from pgoutput_etl.moment import At, Moment
from pgoutput_etl.schema.table_shape import table_columns
from pgoutput_etl.spark.delta import is_delta_table
from pgoutput_etl.targets.moves import with_moves, with_removals
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.targets.planner import make_plan
from pgoutput_etl.transactions.statistics import CommitRange


def read_at(
    spark: SparkSession,
    config: Config,
    *,
    at: At | None = None,
    lsn: int | str | None = None,
    time: datetime | None = None,
    xid: int | None = None,
    before: bool = False,
    tables: Sequence[str] = ("*",),
    progress: Progress = no_progress,
) -> Tables:
    """Tables as of any applied commit, by their "schema.table" at the time.

    at: the commit as in the option `--at` ("0/1AE7B70", "2026-11-20T03:57", "xid:8412", "before:8412"); a number is an
    LSN, and a datetime needs a time zone. Alternatively one of lsn, a number or PostgreSQL's text form; time, for the
    last commit at or before it; or xid. before: exclude this commit. tables: shell patterns for names. In the result,
    `held` has the tables that lack changes, with the LSNs that they include; `ahead` has the tables that were loaded
    from a later snapshot and are left out, because their rows as of this commit are unknown.

    Raises ConfigError for a commit or table that the archive doesn't have, RunError for a commit that has not been
    applied, and ArchiveError if a file that is needed is missing.
    """
    moment = Moment(parse_lsn(lsn) if isinstance(lsn, str) else lsn, time, xid, before)
    if at is not None:
        if moment != Moment():
            raise ConfigError("at: expected without lsn, time, xid, and before")
        moment = Moment.of(at)
    moment.check()
    archive = archive_of(spark, config)
    return MomentReader(spark, archive, progress).read(commit_of(archive, moment), tables)


def commit_of(archive: LedgerArchive, moment: Moment) -> int:
    """The LSN of the last commit to read. Raises ConfigError if the archive has no such commit, and RunError if it has
    not been applied."""
    if moment.lsn is not None:
        lsn = moment.lsn
    elif moment.time is not None:
        lsn = archive.last_commit(moment.time)
    else:
        assert moment.xid is not None
        lsn = only_commit(moment.xid, archive.commits_of(moment.xid))
    reached, last = archive.last.last_commit_lsn, lsn - moment.before
    if last > reached:
        raise RunError(
            f"{format_lsn(last)} has not been applied: the last commit that has is {format_lsn(reached)}",
            next_job=("apply",),
        )
    return last


def archive_of(spark: SparkSession, config: Config) -> DeltaArchive:
    """The archive through the last applied batch. Raises RunError if nothing has been applied."""
    ledger = DeltaLedger.of(spark, config)
    return DeltaArchive.of(spark, config, ledger, applied(ledger.batches.last(), ledger.source))


@dataclass(frozen=True, slots=True)
class TablesFound:
    """rows: each table's rows, with its state. held, ahead: as in ledger.as_of.Tables, by OID."""

    rows: tuple[tuple[TableState, DataFrame], ...]
    held: Mapping[int, TableState]
    ahead: Mapping[int, TableState]

    def named(self, patterns: Sequence[str]) -> TablesFound:
        """The tables whose names at the time match, except displaced ones."""

        def is_wanted(state: TableState) -> bool:
            return not state.is_displaced and is_chosen(state.full_name, patterns)

        held = {oid: state for oid, state in self.held.items() if is_wanted(state)}
        return TablesFound(tuple(found for found in self.rows if is_wanted(found[0])), held, self.ahead)


@dataclass(frozen=True, slots=True)
class _Base:
    """The basis for computing tables as of a commit. states: of all tables after the last batch before it; own: of
    those that may be wanted. started: states of the tables that need changes added. starts: by OID, including new
    tables, the commit to add changes after. lacking: OIDs of tables that lack changes. ahead: as in Tables, by OID."""

    states: Mapping[int, TableState]
    own: Mapping[int, TableState]
    started: Mapping[int, TableState]
    starts: Mapping[int, int]
    lacking: frozenset[int]
    ahead: Mapping[int, TableState]


@dataclass(frozen=True, slots=True)
class MomentReader:
    """through: reads changes up to this commit at once and keeps them for later calls; 0 to read what each call
    needs."""

    spark: SparkSession
    archive: LedgerArchive
    progress: Progress = no_progress
    through: int = 0
    _kept: dict[tuple[frozenset[int], CommitRange], CommittedBlocks] = field(default_factory=dict)

    def read(self, lsn: int, patterns: Sequence[str] = ("*",)) -> Tables:
        """The tables as of the commit at `lsn`; see `read_at`."""
        found = self.find(lsn, patterns).named(patterns)
        frames = {state.full_name: rows for state, rows in found.rows}
        held = {state.full_name: state.last_commit_lsn for state in found.held.values()}
        ahead = {self.archive.name(oid): state.last_commit_lsn for oid, state in found.ahead.items()}
        return Tables(frames, lsn, held, ahead)

    def find(self, lsn: int, patterns: Sequence[str]) -> TablesFound:
        """The tables that ever had a matching name."""
        base = self._base(lsn, patterns)
        targets = FrameTargets({state.path: self._stored(state) for state in base.own.values() if state.version >= 0})
        found = {**base.own, **self._changed(lsn, targets, base)}
        return TablesFound(
            tuple((state, targets.rows(state.path)) for state in found.values() if state.version >= 0),
            {oid: state for oid, state in found.items() if not state.is_complete or oid in base.lacking},
            base.ahead,
        )

    def commits(self, lsn: int, patterns: Sequence[str]) -> list[int]:
        """The commits with changes of these tables after the last batch that ended by `lsn`, up to `through`."""
        starts = self._base(lsn, patterns).starts
        first = min(starts.values(), default=self.through) + 1
        commits = self._committed(starts, CommitRange(first, self.through)).commits()
        return sorted({row["commit_lsn"] for row in commits.collect()})

    def changes(self, lsn: int, patterns: Sequence[str]) -> CommittedBlocks:
        """All committed changes of these tables after the commit at `lsn`, up to `through`."""
        states = self.archive.ledger.batches.states_at(lsn).states
        return self._committed(self._oids(patterns, states), CommitRange(lsn + 1, self.through))

    def replayed(self, oids: Collection[int]) -> dict[int, DataFrame]:
        """The rows of these tables as of the last commit, computed from the archive alone, by OID."""
        targets = FrameTargets({})
        base = _Base({}, {}, {}, dict.fromkeys(oids, 0), frozenset(), {})
        states = self._changed(self.archive.last.last_commit_lsn, targets, base)
        return {oid: targets.rows(state.path) for oid, state in states.items() if state.version >= 0}

    def _base(self, lsn: int, patterns: Sequence[str]) -> _Base:
        archive = self.archive
        before = archive.ledger.batches.states_at(lsn)
        states = before.states
        oids = self._oids(patterns, states)
        ahead = archive.snapshots(oids - states.keys())
        own = {oid: state for oid, state in states.items() if oid in oids and not self._is_removed(state)}
        lacking = archive.cutoff_before(own, lsn).keys()
        started = {oid: state for oid, state in own.items() if state.is_complete and oid not in lacking}
        ends = {oid: state.last_commit_lsn for oid, state in started.items()} | dict.fromkeys(before.erased, 0)
        starts = {oid: ends.get(oid, before.lsn) for oid in oids - ahead.keys()}
        return _Base(states, own, started, starts, frozenset(lacking), ahead)

    def _oids(self, patterns: Sequence[str], states: Mapping[int, TableState]) -> set[int]:
        """The tables that ever had a matching name. Raises ConfigError for a pattern without a match."""
        names = self.archive.oids_by_name(states.values())
        return {oid for name in matching_names(patterns, names, "the archive") for oid in names[name]}

    def _is_removed(self, state: TableState) -> bool:
        """True for a displaced table that maintenance has removed: it had not changed for longer than as-of reads reach
        back."""
        return state.is_displaced and state.version >= 0 and not is_delta_table(self.spark, state.path)

    def _stored(self, state: TableState) -> DataFrame:
        columns = table_columns(state.relation, state.retired, self.archive.user_types)
        return tagged_target(self.spark, state.path, columns, state.version)

    def _committed(self, oids: Collection[int], commits: CommitRange) -> CommittedBlocks:
        wanted = replace(commits, last=max(commits.last, self.through))
        key = frozenset(oids), wanted
        if key in self._kept:
            return self._kept[key].through(commits.last)
        files = self.archive.files_with(oids, wanted)
        self.progress(f"reading {counted(len(files), 'file')}")
        with self.archive.reading(files, oids, wanted) as committed:
            # Kept while the caller uses the tables.
            rows = replace(committed, blocks=committed.blocks.localCheckpoint())
        if self.through:
            self._kept[key] = rows
        return rows.through(commits.last)

    def _changed(self, lsn: int, targets: FrameTargets, base: _Base) -> dict[int, TableState]:
        """The states of tables that have changed, or have been renamed, through the commit at `lsn`."""
        archive, starts, started = self.archive, base.starts, base.started
        first = min(starts.values(), default=lsn) + 1
        if first > lsn:
            return {}
        rows = self._committed(starts, CommitRange(first, lsn))
        rows = rows.after({oid: start for oid, start in starts.items() if start >= first})
        removed = with_removals(archive.relations, rows.counts(archive.relations), started, lsn)
        changes = with_moves(archive.relations, removed, started, lsn)
        incomplete = base.states.keys() - started.keys()
        plan = make_plan(
            archive.config,
            archive.relations,
            {oid: counts for oid, counts in changes.items() if oid not in incomplete},
            started,
            archive.user_types,
            named=base.states,
            accepts_changes=True,
        )
        batch = replace(archive.last, resumed=False, last_commit_lsn=lsn, tables=dict(started))
        path_of = partial(archive.ledger.files.path_of, archive.last)
        writer = Writer(targets, archive.config, batch, lsn, no_claim, path_of, no_progress)
        results = writer.write(plan, targets.archived_changes(rows, plan.tasks))
        return {result.state.oid: result.state for result in results}
