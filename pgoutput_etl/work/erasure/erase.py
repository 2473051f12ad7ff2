"""Erases rows: finds their changes, deletes the rows, removes all older versions, and rewrites the landed files.

An erasure is a batch of the ledger, like a backfill: it is claimed, and recorded before it begins. Its record contains
no values; those needed until it is done are in a separate file (pending.py). Every effect can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from pgoutput_etl.changes.row_search import RowKey, RowSearch
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, counted, no_progress
from pgoutput_etl.errors import AnotherRunError, ConfigError, RunError, TableError
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.batch import Batch, applied
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger, Ledger
from pgoutput_etl.load.summary import ChangedTables, TableSummary
from pgoutput_etl.load.table_writer import DeltaTransaction
from pgoutput_etl.places import Place
from pgoutput_etl.spark.connect import is_connect
from pgoutput_etl.targets.condition import conditions_of
from pgoutput_etl.targets.plan import HELD, TableState
from pgoutput_etl.targets.target_plan import settings_of
from pgoutput_etl.work.batch import Nothing, Prepared, Watch, run
from pgoutput_etl.work.erasure.find import FoundChanges
from pgoutput_etl.work.erasure.landing import FileErasure, plan_files, rewrite
from pgoutput_etl.work.erasure.order import ErasureOrder
from pgoutput_etl.work.erasure.other_keys import OtherKeysFile
from pgoutput_etl.work.erasure.report import ForgetSummary, ForgottenTable, OtherKeys, RewrittenFile
from pgoutput_etl.work.erasure.request import Erasure, TableErasure
from pgoutput_etl.work.erasure.snapshot_files import CutFile
from pgoutput_etl.work.erasure.storage import ErasedCopies, ErasedTarget, ErasureStorage
from pgoutput_etl.work.kinds.unfinished import unfinished_erasure


def erase(storage: ErasureStorage, erasure: Erasure, executes: bool, progress: Progress = no_progress) -> ForgetSummary:
    """executes: if False, changes nothing and reports what would be erased. After a PgoutputEtlError, either nothing
    has changed, or a run with the same request finishes the erasure."""
    archive = storage.archive
    work = _Forget(storage, erasure, Batch.next(archive.last), progress)
    return run(archive.ledger, work, archive.last, Watch(progress)) if executes else work.preview()


def archive_to_erase(spark: SparkSession, config: Config, may_finish: bool = False) -> DeltaArchive:
    """Raises RunError like `last_to_erase`, and with Spark Connect."""
    if is_connect(spark):
        raise RunError("forget can't rewrite files over Spark Connect: run it without")
    ledger = DeltaLedger.of(spark, config)
    return DeltaArchive.of(spark, config, ledger, last_to_erase(ledger, may_finish))


def last_to_erase(ledger: Ledger, may_finish: bool) -> Batch:
    """The last batch. Raises RunError if the archive can't be searched, or if a run died within an erasure, unless
    may_finish."""
    last = applied(ledger.batches.last(), ledger.source)
    if last.resumed and last.erasure is None:
        raise RunError(f"batch {last.number} was begun by a run that died: finish it first", next_job=("apply",))
    if last.resumed and not may_finish:
        raise unfinished_erasure(last)
    return last


def searches_of(archive: LedgerArchive, tables: Iterable[TableErasure]) -> dict[int, RowSearch]:
    """Searches by OID. Raises ConfigError for a table or column that the archive doesn't have."""
    names, conditions = archive.oids_by_name(), dict[int, list[Mapping[str, str | None]]]()
    for table in tables:
        if table.name not in names:
            raise ConfigError(f"tables: the archive has no table {table.name!r}")
        relations = [archive.relations.unmasked(oid)[0].relations for oid in names[table.name]]
        columns = {column.name for versions in relations for relation in versions for column in relation.columns}
        for condition in table.conditions:
            missing = next((name for name, _ in condition if name not in columns), None)
            if missing is not None:
                raise ConfigError(f"tables: {table.name} has no column {missing!r}, and never had")
            for oid in names[table.name]:
                conditions.setdefault(oid, []).append(dict(condition))
    return {oid: _search(archive, oid, tuple(own)) for oid, own in conditions.items()}


def _search(archive: LedgerArchive, oid: int, conditions: tuple[Mapping[str, str | None], ...]) -> RowSearch:
    versions, latest = archive.relations.unmasked(oid)
    rule = archive.config.rule_for(latest.namespace, latest.name)
    search = RowSearch(versions, conditions, rule.key, rule.lineage, archive.user_types)
    with _of_table(archive, latest.full_name):
        _ = search.columns
    return search


@contextmanager
def _of_table(archive: LedgerArchive, name: str) -> Iterator[None]:
    try:
        yield
    except TableError as error:
        if archive.last.resumed:
            raise RunError(
                "the erasure can't go on with this configuration. Restore the one that it was begun with: "
                f"{name}: {error}"
            ) from None
        raise RunError(f"nothing was erased: {name}: {error}") from None


def targets_of(storage: ErasureStorage, searches: Mapping[int, RowSearch]) -> list[ErasedTarget]:
    """The existing targets of these tables. Raises RunError if a target's rows can't be identified."""
    archive = storage.archive
    states = [archive.last.tables[oid] for oid in searches if oid in archive.last.tables]
    targets = []
    for state in states:
        if state.version >= 0 and storage.exists(state.path):
            with _of_table(archive, state.full_name):
                targets.append(storage.target(state, searches[state.oid]))
    return targets


def write_other_keys(archive: LedgerArchive, erasure: Erasure, found: FoundChanges) -> OtherKeys | None:
    """Writes the file of other keys, or deletes it if there are none. Raises ConfigError."""
    by_name: dict[str, set[RowKey]] = {}
    for oid, keys in found.other_keys.items():
        by_name.setdefault(archive.name(oid), set()).update(keys)
    return OtherKeysFile.of(erasure.file).write(by_name)


@dataclass(frozen=True, slots=True)
class _Search:
    """The targets of the request's tables, and the changes found."""

    targets: list[ErasedTarget]
    found: FoundChanges
    snapshots: tuple[CutFile, ...] = ()

    def finds_any(self, copies: ErasedCopies) -> bool:
        """True if there is anything to erase. copies: the ledger's copies of the changes found."""
        is_in_files = bool(len(self.found.positions) or self.snapshots)
        return is_in_files or any(target.has_any() for target in self.targets) or copies.count() > 0


@dataclass
class _Forget(Prepared[ForgetSummary]):
    """search: the search results; None if a dead run had already removed everything that a search would find. rows:
    number of erased rows, by OID. copied: number of erased copies in the ledger."""

    storage: ErasureStorage
    erasure: Erasure
    batch: Batch
    progress: Progress
    check_claim: Callable[[], None] = lambda: None
    search: _Search | None = None
    order: ErasureOrder = field(init=False)
    others: OtherKeys | None = None
    rows: dict[int, int] = field(default_factory=dict)
    copied: int = 0
    states: dict[int, TableState] = field(default_factory=dict)

    @property
    def archive(self) -> LedgerArchive:
        return self.storage.archive

    def preview(self) -> ForgetSummary:
        search, order = self._plan()
        rows = {target.state.oid: target.count() for target in search.targets}
        copies = self._copies(search.found)
        others = None
        if search.finds_any(copies):
            others = write_other_keys(self.archive, self.erasure, search.found)
        else:
            OtherKeysFile.of(self.erasure.file).delete_if_named(self.erasure.tables)
        return replace(self._summary(order, search.found, rows, copies.count()), other_keys=others)

    @contextmanager
    def prepare(self, batch: Batch, check_claim: Callable[[], None]) -> Iterator[_Forget | Nothing[ForgetSummary]]:
        archive, self.batch, self.check_claim = self.archive, batch, check_claim
        with self.storage.others_claimed(self.progress):
            if batch.resumed:
                order = ErasureOrder.from_json(batch.work or "")
                if order.reference != self.erasure.reference:
                    raise unfinished_erasure(batch)
                order = replace(order, places=tuple(map(archive.ledger.store.place, order.places)))
                self.search = self._kept()
            else:
                self.search, order = self._plan()
                if not self.search.finds_any(self._copies(self.search.found)):
                    OtherKeysFile.of(self.erasure.file).delete_if_named(self.erasure.tables)
                    yield Nothing(self._summary(order, self.search.found, {}, 0))
                    return
            self.order = order
            self.batch = replace(batch.with_order(settings_of(archive.config)), work=order.to_json())
            if self.search is not None:
                self.others = write_other_keys(archive, self.erasure, self.search.found)
            yield self

    def begin(self, record: Callable[[], None]) -> None:
        if self.search is None or self.batch.resumed:
            return
        self.storage.pending.keep(self.erasure.tables, self.search.found)
        try:
            record()
        except AnotherRunError:
            self.storage.pending.delete()
            raise

    def write(self) -> None:
        order, search = self.order, self.search
        if search is not None:
            self.rows = {target.state.oid: self._delete(target) for target in search.targets}
            self.copied = self._copies(search.found).erase()
        self.states = self._purge(order)
        self.check_claim()
        self.progress(f"rewriting {counted(len(order.files), 'file')}")
        rewrite(self.storage.files, order.files)
        for file in order.snapshots:
            file.cut(self.storage.files)

    def close(self) -> None:
        self.storage.pending.delete()
        self.archive.ledger.close_backfill(self.batch, self.states, [], [])

    def result(self) -> ForgetSummary:
        found = None if self.search is None else self.search.found
        summary = self._summary(self.order, found, self.rows, self.copied)
        return replace(summary, other_keys=self.others, changed=self._changed())

    def _changed(self) -> ChangedTables:
        states = [self.states[oid] for oid in self.order.oids if oid in self.states]
        tables = [
            TableSummary(
                *(state.schema, state.table, str(state.path), state.version, state.rows or 0),
                deleted=self.rows.get(state.oid, 0),
                held=state.reason if state.status == HELD else None,
            )
            for state in states
        ]
        return ChangedTables(tuple(tables), conditions_of(states, self.archive.config))

    def _plan(self) -> tuple[_Search, ErasureOrder]:
        archive = self.archive
        searches = searches_of(archive, self.erasure.tables)
        targets = targets_of(self.storage, searches)
        self.progress("looking for changes of the rows")
        snapshots = [self.storage.snapshot_files(searches, wanted) for wanted in self.erasure.snapshots]
        stored = [*(target.other_keys() for target in targets), *(files.other_keys() for files in snapshots)]
        found = self.storage.find_changes(searches, stored)
        if self.erasure.messages:
            found = found.plus(self.storage.find_messages(self.erasure.is_chosen))
        cut = [file for files in snapshots for file in files.planned()]
        search = _Search(targets, found, tuple(cut))
        return search, self._planned(searches, search)

    def _kept(self) -> _Search | None:
        """The search results of the run that died. Raises RunError if it had another request."""
        kept = self.storage.pending.read()
        if kept is None:
            return None
        if kept.tables != self.erasure.tables:
            raise RunError(
                f"the erasure {self.erasure.reference!r} was begun for other rows: finish it with the same request "
                "first, and give the new one a reference of its own"
            )
        return _Search(targets_of(self.storage, searches_of(self.archive, kept.tables)), kept.found)

    def _planned(self, searches: Iterable[int], search: _Search) -> ErasureOrder:
        archive, oids = self.archive, tuple(sorted(searches))
        places = sorted((place for place in archive.ledger.batches.places(oids) if not place.tag), key=str)
        existing = tuple(filter(self.storage.exists, places))
        self.storage.refuse_what_stays(existing)
        files = tuple(plan_files(self.storage.files, search.found.offsets))
        for path in (*(file.path for file in files), *(file.path for file in search.snapshots)):
            self.storage.files.refuse_other_names(path)
        return ErasureOrder(
            self.erasure.by, self.erasure.reference, oids, tuple(map(str, existing)), files, search.snapshots
        )

    def _copies(self, found: FoundChanges) -> ErasedCopies:
        return self.storage.copies(self.batch.since, found.positions, self.erasure.messages)

    def _delete(self, target: ErasedTarget) -> int:
        self.check_claim()
        self.progress(f"erasing {target.state.full_name}")
        return target.delete(self._commit(target.state.oid))

    def _commit(self, table: int | str) -> DeltaTransaction:
        application = f"pgoutput_etl:{self.batch.ledger_id}:{table}"
        return DeltaTransaction(application, "erase", self.batch.number, self.batch.last_commit_lsn)

    def _purge(self, order: ErasureOrder) -> dict[int, TableState]:
        """Removes all but the newest versions of the tables at the places and of the ledger's tables. Returns the new
        states of all tables at these places and of those with erased rows."""
        archive, storage = self.archive, self.storage

        def leave_newest(path: Place) -> int:
            self.check_claim()
            version = storage.purge(path, self._commit("left"))
            if (left := storage.older_files(path)) > 0:
                raise RunError(
                    f"{path}: VACUUM left {counted(left, 'file')} of older versions, as the clock that dated them is "
                    "ahead of this machine's: set the clocks, or wait, and run again with the same request"
                )
            return version

        paths = [*map(Place, order.places), *storage.ledger_tables()]
        pool = storage.pool("removing older versions of", self.progress)
        versions = dict(zip(paths, pool.map(paths, str, leave_newest), strict=True))
        storage.discard_scratch()
        states = {oid: state for oid, state in archive.last.tables.items() if state.version >= 0}
        for oid in order.oids:  # a shared table keeps its older versions
            if oid in states and states[oid].path.tag and storage.exists(states[oid].path):
                versions[states[oid].path.table] = storage.newest_version(states[oid].path)
        return {
            oid: self._after(state, versions[state.path.table])
            for oid, state in states.items()
            if state.path.table in versions and (oid in order.oids or not state.path.tag)
        }

    def _after(self, state: TableState, version: int) -> TableState:
        """The state after the erasure: a rebuild that would start from a snapshot's version starts from this version
        instead."""
        rows = None if state.rows is None else self.storage.count(state.path)
        return replace(state, version=version, snapshot=None if state.snapshot is None else version, rows=rows)

    def _summary(
        self, order: ErasureOrder, found: FoundChanges | None, rows: Mapping[int, int], copied: int
    ) -> ForgetSummary:
        archive = self.archive
        known = {} if found is None else {oid: (found.counts.get(oid, 0), rows.get(oid, 0)) for oid in order.oids}
        oids = sorted(order.oids, key=archive.name)
        tables = tuple(ForgottenTable(archive.name(oid), *known.get(oid, (None, None))) for oid in oids)
        rewritten: tuple[FileErasure | CutFile, ...] = (*order.files, *order.snapshots)
        files = tuple(RewrittenFile(file.path, file.before, file.after) for file in rewritten)
        messages = 0 if found is None else found.messages
        executed = self.batch.work is not None
        left = tuple(self.storage.remains(order.oids, [file.path for file in files]))
        number = self.batch.number if executed else 0
        unseen = () if found is None else tuple(sorted(map(archive.name, found.unseen)))
        source, reference, newest = archive.ledger.source, order.reference, archive.prior_state.newest
        newest = newest if any(file.path == newest for file in files) else None
        cut = sum(len(file.rows) for file in order.snapshots)
        return ForgetSummary(
            source, reference, executed, number, tables, files, messages, copied, left, unseen, newest, cut
        )
