"""Tables done again from the archive: rebuilt, repaired within a range of commits, or built beside as of a commit.

What comes out is always what the archive says, of all commits up to the one that the ledger is consistent through (or
the one asked for, beside): a row that was deleted since doesn't come back, a newer change stays.

In place it is a batch like any other: claimed, written down before it begins, finished by the next run should it die.
It reads no new files, and leaves the LSN through which all tables are consistent where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from uuid import uuid4

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.applying import ChangeRows
from pgoutput_etl.assembling import count_changes
from pgoutput_etl.backfill_report import BackfilledTable, BackfillSummary
from pgoutput_etl.backfill_request import Order, Request
from pgoutput_etl.changes import TableShape
from pgoutput_etl.config import Config, Mode
from pgoutput_etl.delta_table import is_delta_table
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.evolving import applications
from pgoutput_etl.ledger import Batch, Ledger
from pgoutput_etl.lineage import SchemaChange
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.managed import kept, let_go
from pgoutput_etl.naming import path_segment
from pgoutput_etl.net_effect import all_of, event_key_parts
from pgoutput_etl.rebuilding import Rebuilding
from pgoutput_etl.redriving import Redriving
from pgoutput_etl.relations import Place
from pgoutput_etl.rereading import Archive, ReadFile, Stretch, refuse_unreadable
from pgoutput_etl.snapshot_request import SnapshotOrder
from pgoutput_etl.snapshotting import finish_snapshot
from pgoutput_etl.target_places import target_name
from pgoutput_etl.targets import HELD, Held, Plan, TableChanges, TableState, Task, make_plan
from pgoutput_etl.writing import Outcome, Writer, as_it_was, refuse_strangers

Progress = Callable[[str], None]


def backfill(spark: SparkSession, config: Config, request: Request, progress: Progress) -> BackfillSummary:
    """Raises PgoutputEtlError; nothing is changed then, or what was is taken up by the next run of any job."""
    request.check()
    ledger = Ledger(spark, config.state.root, config.source.name)
    last = ledger.last_batch()
    if last is not None and last.resumed and last.backfill is not None and request.into is None:
        progress(f"batch {last.number} is a backfill that died: finishing it")
        finish_backfill(spark, config, ledger, last, progress)
        last = ledger.last_batch()
    if last is None or (last.state is None and not last.tables):
        raise RunError(f"nothing of {config.source.name} was applied yet: run jobs/apply.py")
    archive = Archive(spark, config, ledger, last)
    oids = _chosen(archive, request.tables)
    order = _ordered(archive, oids, request)
    if request.into is not None:
        return _Beside(archive, order, progress, request.into).run()
    if last.resumed:
        raise RunError(f"batch {last.number} was begun by a run that died. Run jobs/apply.py, which finishes it, first")
    if not oids and not order.anew:
        return BackfillSummary(config.source.name, 0, last.last_commit_lsn, len(_paths(archive.files)))
    batch = replace(Batch.after(last, {}), backfill=order.to_json())
    if order.anew:
        batch = replace(batch, since=batch.number)
    with ledger.claimed(last, batch, progress) as check_claim:
        return _in_place(archive, order, progress, batch, check_claim)


def _ordered(archive: Archive, oids: tuple[int, ...], request: Request) -> Order:
    first = request.first_lsn if request.first_time is None else archive.first_commit(request.first_time)
    last = request.last_lsn if request.last_time is None else archive.last_commit(request.last_time)
    if first is not None and last is not None and first > last:
        raise ConfigError(f"the range of commits is empty: {format_lsn(first)} is behind {format_lsn(last)}")
    held = [oid for oid in oids if oid in archive.last.tables and archive.last.tables[oid].status == HELD]
    anew = bool(held) and archive.assembly.was_damaged and request.into is None
    if request.tables is None and not anew:  # bytes that are about no known table hold none
        has_lost = archive.assembly.was_damaged and archive.ledger.has_lost_bytes()
        anew = has_lost or bool(archive.known.left_behind)
    if anew and request.tables is not None:
        raise RunError(
            f"{archive.name(held[0])} is held, and what holds it may be bytes that could not be read: "
            "--from-quarantine takes up all such tables at once"
        )
    return Order(oids, first, last, request.since_version, anew)


def finish_backfill(
    spark: SparkSession, config: Config, ledger: Ledger, batch: Batch, progress: Progress
) -> BackfillSummary:
    """A batch of an earlier run that died."""
    snapshot = SnapshotOrder.from_json(batch.backfill or "{}")
    if snapshot is not None:
        finish_snapshot(spark, config, ledger, batch, snapshot, progress)
        return BackfillSummary(config.source.name, batch.number, batch.last_commit_lsn, 0)
    archive, order = Archive(spark, config, ledger, batch), Order.from_json(batch.backfill or "")
    with ledger.claimed(batch, batch, progress) as check_claim:
        batch = replace(batch, since=batch.number) if order.anew else batch
        return _in_place(archive, order, progress, batch, check_claim)


def _in_place(
    archive: Archive, order: Order, progress: Progress, batch: Batch, check_claim: Callable[[], None]
) -> BackfillSummary:
    if not order.anew:
        return _InPlace(archive, order, progress, batch, check_claim).run()
    outcomes, skipped, lsn = Redriving(archive, batch, check_claim, progress).run()
    files = {outcome.state.oid: list(archive.files) for outcome in outcomes}
    return _summary(archive, batch.number, lsn, outcomes, files, {}, skipped)


def _chosen(archive: Archive, patterns: Sequence[str] | None) -> tuple[int, ...]:
    """By the names that the tables bear, of which each belongs to the last that bore it."""
    states = archive.last.tables
    if patterns is None:
        return tuple(sorted(oid for oid, state in states.items() if state.status == HELD))
    found: set[int] = set()
    for pattern in patterns:
        matching = {oid for name, oid in archive.names.items() if fnmatchcase(name, pattern)}
        if not matching:
            raise ConfigError(f"--tables: the archive has no table {pattern!r}")
        found |= matching
    return tuple(sorted(found))


def _commits(order: Order, last: int) -> Stretch:
    return Stretch(order.first_lsn or 0, last if order.last_lsn is None else order.last_lsn)


def _lacking(oids: Iterable[int], since: Mapping[int, TableState], last: int) -> Stretch:
    """The commits that tables lack which are built anew."""
    through = max((state.last_commit_lsn for state in since.values()), default=-1)
    if through > last:
        raise ConfigError(
            f"a table is begun with a snapshot, or --since-version: it was at {format_lsn(through)} then, and commits "
            f"up to {format_lsn(last)} are asked for"
        )
    return Stretch(min((since[oid].last_commit_lsn if oid in since else -1 for oid in oids), default=-1) + 1, last)


@dataclass(slots=True)
class _InPlace:
    """A batch of the ledger that does tables again where they are."""

    archive: Archive
    order: Order
    progress: Progress
    batch: Batch
    check_claim: Callable[[], None]

    def run(self) -> BackfillSummary:
        now = self.batch.last_commit_lsn
        reasons = {oid: self._why_whole(oid) for oid in self.order.oids}
        if self.order.is_range:
            partly = [oid for oid, reason in reasons.items() if reason is None]
            return self._range(partly, reasons, Stretch(self.order.first_lsn or 0, now))
        return self._write({}, None, reasons, {})

    def _why_whole(self, oid: int) -> str | None:
        """Why a table can't be repaired within a range of commits, as far as its state tells."""
        state = self.batch.tables.get(oid)
        if not self.order.is_range:
            return ""
        if state is None or not state.is_complete:
            return "it was not applied up to now"
        if state.mode is not Mode.MIRROR:
            return f"mode {state.mode.value} keeps what was"
        if not state.key:
            return "it has no key"
        return "it has columns that its relation has no more" if state.retired else None

    def _range(self, partly: list[int], reasons: dict[int, str | None], until_now: Stretch) -> BackfillSummary:
        archive = self.archive
        files = archive.files_with(partly, until_now)
        rows = kept(archive.committed(files, partly, until_now), StorageLevel.DISK_ONLY)
        try:
            refuse_unreadable(rows)
            tasks: dict[int, Task] = {}
            counted = count_changes(rows, archive.relations)
            for oid in partly:
                if oid in counted:
                    found = self._task(oid, counted[oid])
                    if isinstance(found, Task):
                        tasks[oid] = found
                    else:
                        reasons[oid] = found
            return self._write(tasks, rows, reasons, {oid: [f for f in files if oid in f.changes] for oid in tasks})
        finally:
            let_go(rows)

    def _task(self, oid: int, changes: TableChanges) -> Task | str:
        """What to merge, or why nothing less than the whole table will do."""
        state, archive = self.batch.tables[oid], self.archive
        if changes.truncates:
            return "it was truncated since"
        if changes.moves_toast:
            return "keys changed, and large values that were not sent went with their rows"
        tables = self.batch.tables
        try:
            plan = make_plan(
                archive.config, archive.relations, {oid: changes}, {oid: state}, archive.user_types, named=tables
            )
        except RunError:
            return "the configuration has changed"
        if not plan.tasks:
            return "the configuration has changed"
        [task] = plan.tasks
        names = tuple(task.shape.columns[i].name for i in task.shape.key)
        if len(task.segments) > 1 or task.segments[0].reshaping is not None:
            return "its columns changed since"
        if names != state.key or task.moved_from is not None:
            return "its key or its place changed since"
        return task

    def _write(
        self,
        tasks: dict[int, Task],
        rows: DataFrame | None,
        reasons: Mapping[int, str | None],
        files: dict[int, list[ReadFile]],
    ) -> BackfillSummary:
        """Tables within the range by `tasks` and `rows`, and those that have a reason whole."""
        archive, batch = self.archive, self.batch
        whole = [oid for oid, reason in reasons.items() if reason is not None]
        since = archive.since(self.order.since_version, whole)
        commits = _lacking(whole, since, batch.last_commit_lsn)
        of_whole = archive.files_with(whole, commits)
        all_rows = kept(archive.committed(of_whole, whole, commits), StorageLevel.DISK_ONLY)
        try:
            if whole:
                refuse_unreadable(all_rows)
            places = {oid: state.path for oid, state in batch.tables.items() if oid in whole}
            places = {oid: path for oid, path in places.items() if path}
            rebuilding = Rebuilding(
                archive.spark,
                archive.config,
                archive.assembly,
                batch.tables,
                since,
                self.progress,
                self._writer(),
                self._scratch(),
            )
            known = {oid: batch.tables[oid] for oid in whole if oid in batch.tables}
            lacking = rebuilding.lacking(all_rows)
            plan = rebuilding.plan(lacking, whole, places) if whole else Plan()
            if not batch.resumed:
                if not plan.tasks and not tasks:
                    _, left = rebuilding.write(plan, lacking)
                    as_before = [as_it_was(outcome, batch.tables) for outcome in left]
                    return _summary(archive, 0, batch.last_commit_lsn, as_before, files, reasons, plan.skipped)
                new = [task for task in plan.tasks if task.oid not in places]
                refuse_strangers(archive.spark, Plan([replace(task, state=None) for task in new]))
            self.check_claim()
            archive.ledger.begin(batch)
            built, left = rebuilding.write(plan, lacking)
            outcomes = [*built, *(as_it_was(outcome, batch.tables) for outcome in left)]
            if rows is not None:
                touched = partial(_of_touched_rows, _commits(self.order, batch.last_commit_lsn))
                within = replace(self._writer(), choose=touched).write(Plan(list(tasks.values())), ChangeRows(rows))
                outcomes += [as_it_was(o, batch.tables) if o.state.status == HELD else o for o in within]
            self.progress("writing the ledger")
            done = {o.state.oid: o.state for o in outcomes if o.summary.held is None}
            rebuilt = [oid for oid in done if oid in whole]
            archive.ledger.close_backfill(batch, done, rebuilt, _news(outcomes, known))
        finally:
            let_go(all_rows)
        files = {**files, **{oid: [f for f in of_whole if oid in f.changes] for oid in whole}}
        return _summary(archive, batch.number, batch.last_commit_lsn, outcomes, files, reasons, plan.skipped)

    def _writer(self) -> Writer:
        batch, archive = self.batch, self.archive
        through, path_of = batch.last_commit_lsn, partial(archive.ledger.path_of, batch)
        return Writer.of(archive.spark, archive.config, batch, through, self.check_claim, path_of, self.progress)

    def _scratch(self) -> str:
        return f"{self.archive.config.state.root.rstrip('/')}/rebuilt"


@dataclass(slots=True)
class _Beside:
    """Tables as of a commit, in a folder of their own. The ledger is read, and nothing of it written."""

    archive: Archive
    order: Order
    progress: Progress
    folder: str

    def run(self) -> BackfillSummary:
        archive, last = self.archive, self.archive.last
        commits = _commits(self.order, last.last_commit_lsn)
        since = archive.since(self.order.since_version, self.order.oids)
        commits = _lacking(self.order.oids, since, commits.last)
        if commits.last > last.last_commit_lsn:
            raise ConfigError(f"--to-lsn: the last commit that was applied is {format_lsn(last.last_commit_lsn)}")
        files = archive.files_with(self.order.oids, commits)
        rows = kept(archive.committed(files, self.order.oids, commits), StorageLevel.DISK_ONLY)
        try:
            refuse_unreadable(rows)
            ledger_id = f"{last.ledger_id}:into:{uuid4().hex}"
            writer = Writer(
                archive.spark,
                ledger_id,
                last.number,
                commits.last,
                commits.last,
                archive.config.merge.parallel_tables,
                False,
                lambda: None,  # no claim: nobody else writes there
                partial(archive.ledger.path_of, last),
                self.progress,
            )
            root = self.folder.rstrip("/")
            rebuilding = Rebuilding(
                archive.spark,
                archive.config,
                archive.assembly,
                last.tables,
                since,
                self.progress,
                writer,
                f"{root}/_rebuilt",
            )
            lacking = rebuilding.lacking(rows)
            cut = archive.cut_before(self.order.oids, commits.last)
            plan = rebuilding.plan(lacking, [oid for oid in self.order.oids if oid not in cut], {})
            plan.held += [
                Held(oid, state.relation, state.reason or "", TableChanges(oid), state) for oid, state in cut.items()
            ]
            for n, task in enumerate(plan.tasks):
                state = last.tables.get(task.oid)
                relation = task.shape.relation if state is None else state.relation
                place = "/".join([root, *map(path_segment, target_name(archive.config, relation))])
                self._refuse_others(place, task.oid)
                plan.tasks[n] = replace(task, path=place)
            built, left = rebuilding.write(plan, lacking)
            outcomes = built + left
        finally:
            let_go(rows)
        by_table = {oid: [f for f in files if oid in f.changes] for oid in self.order.oids}
        return _summary(archive, 0, commits.last, outcomes, by_table, {}, plan.skipped)

    def _refuse_others(self, place: str, oid: int) -> None:
        """Raises RunError if there is a table that no earlier backfill of the same one put there."""
        if not is_delta_table(self.archive.spark, place):
            return
        mine = f"pgoutput_etl:{self.archive.last.ledger_id}:into:"
        if not any(a.startswith(mine) and a.endswith(f":{oid}") for a in applications(self.archive.spark, place)):
            raise RunError(f"there is a table at {place} that is no earlier backfill of this one")


def _of_touched_rows(commits: Stretch, events: DataFrame, shape: TableShape) -> DataFrame:
    """All events of those keys that have one within these commits: what they come to is how the row stands now."""
    parts = event_key_parts(shape)
    within = events.where(F.col("_lsn").between(commits.first, commits.last))
    touched = within.select(*(part.alias(f"_k{n}") for n, part in enumerate(parts))).distinct()
    same = all_of(part.eqNullSafe(F.col(f"_k{n}")) for n, part in enumerate(parts))
    return events.join(touched, same, "left_semi")


def _news(
    outcomes: Iterable[Outcome], before: Mapping[int, TableState]
) -> list[tuple[TableState, Place | None, SchemaChange]]:
    """Changes of schema that a held table missed. What was applied once was written down then."""
    return [
        (outcome.state, place, change)
        for outcome in outcomes
        if outcome.summary.held is None and outcome.state.oid in before and not before[outcome.state.oid].is_complete
        for place, change in outcome.schema_changes
        if place is not None and place[0] > before[outcome.state.oid].last_commit_lsn
    ]


def _summary(
    archive: Archive,
    batch: int,
    lsn: int,
    outcomes: Iterable[Outcome],
    files: Mapping[int, list[ReadFile]],
    reasons: Mapping[int, str | None],
    skipped: Sequence[str],
) -> BackfillSummary:
    tables = []
    for outcome in sorted(outcomes, key=lambda o: (o.summary.schema, o.summary.table)):
        oid = outcome.state.oid
        read = files.get(oid, [])
        how = reasons.get(oid)
        note = "rows of the range" if how is None and reasons else f"whole, as {how}" if how else "whole"
        tables.append(BackfilledTable(outcome.summary, note, len(_paths(read)), sum(file.size for file in read)))
    all_read = {file.number: file for of_table in files.values() for file in of_table}.values()
    return BackfillSummary(
        archive.config.source.name,
        batch,
        lsn,
        len(_paths(archive.files)),
        tuple(sorted(_paths(all_read))),
        sum(file.size for file in all_read),
        tuple(tables),
        tuple(skipped),
    )


def _paths(files: Iterable[ReadFile]) -> set[str]:
    """A file that was read in parts is one."""
    return {file.path for file in files}
