"""Reads a snapshot's rows and stages them in a separate Delta table, before any target is changed.

Any later run can continue from staged rows, whereas a server's snapshot ends with the run that exported it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.config.chosen_tables import matching_names
from pgoutput_etl.console import Progress, counted
from pgoutput_etl.errors import ArchiveError, ConfigError, TableError, brief
from pgoutput_etl.identifiers import patterns_of
from pgoutput_etl.ingest.listing import reading_files
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.load.holding import FAULTS, held_reason
from pgoutput_etl.load.rewrite import awaited
from pgoutput_etl.load.summary import TableSummary
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.masking.mask_rows import MaskingPolicy
from pgoutput_etl.masking.mask_tuples import MaskedVersion
from pgoutput_etl.masking.policy import masking_policy
from pgoutput_etl.postgres.catalog import Catalog, read_catalog
from pgoutput_etl.postgres.copy_format import copy_errors
from pgoutput_etl.protocol.messages import Relation, RelationColumn
from pgoutput_etl.scan.blocks import BLOCK_BYTES
from pgoutput_etl.spark.connect import is_connect
from pgoutput_etl.spark.session import is_running
from pgoutput_etl.targets.plan import Since, TableState
from pgoutput_etl.timestamps import microseconds_of
from pgoutput_etl.types import UserTypes
from pgoutput_etl.work.kinds.snapshot_load import types_with, with_snapshot
from pgoutput_etl.work.kinds.snapshot_order import Repair, SnapshotOrder, UnfinishedLoad
from pgoutput_etl.work.snapshot.load_progress import LoadProgress
from pgoutput_etl.work.snapshot.request import SnapshotRequest
from pgoutput_etl.work.snapshot.sources import Dump, Inserts, RowFiles, SnapshotServer, row_files

# Spark reads a row group at once, so this limits the memory of a task that reads staged blocks: to 32 MB, unless rows
# are larger than a block. And a file seldom has blocks of two tables, so a task that reads one table skips the others'.
_FILE_BLOCKS = (1 << 25) // BLOCK_BYTES

_MOST_NAMES = 8  # in a line of progress


@dataclass(frozen=True, slots=True)
class StagedTables:
    """order: for the staged rows. skipped: names of tables that the configuration skips. unread: tables that couldn't
    be read, with the reason. unique: OIDs of tables in whose rows each replica identity occurs once."""

    order: SnapshotOrder
    skipped: tuple[str, ...]
    unread: tuple[TableSummary, ...]
    unique: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Staging:
    """Reads the requested rows. archive: describes tables that neither a server nor a catalog file describes."""

    spark: SparkSession
    archive: LedgerArchive
    request: SnapshotRequest
    progress: Progress

    def run(self) -> StagedTables:
        """Stages a load that has a single part. Raises PgoutputEtlError."""
        with closing(self.parts()) as parts:
            return next(parts)

    def parts(self) -> Generator[StagedTables, None, None]:
        """Yields the tables that are loaded together, each part before the next one is read. All have the same LSN. A
        table that can't be read is left out. Raises PgoutputEtlError."""
        if self.request.server is not None:
            yield from self._stage_server()
            return
        with staged_folder(self.archive) as path:
            staged = self._stage_files(path)
        yield staged

    def _stage_server(self) -> Iterator[StagedTables]:
        from pgoutput_etl.postgres.live_server import server_moment  # needs psycopg, from an extra

        request = self.request
        with ExitStack() as stack:
            connections = request.connections if request.repair else 1
            moment = stack.enter_context(server_moment(request.url, connections, self.progress, request.exported))
            source = SnapshotServer(self.spark, moment, request)
            tables = source.catalog.tables
            if not request.allows_missing:
                matching_names(request.tables, [t.relation.full_name for t in tables], "no publication of the server")
            begun, wanted = self._unfinished([t.relation for t in tables if not self._is_skipped(t.relation)])
            parts = [[[relation] for relation in wanted]]
            if not request.repair:
                parts = [[part] for part in source.parts(wanted)] or [[]]
            unfinished = UnfinishedLoad(request.tables, begun or moment.lsn)
            loading = LoadProgress(source.size(wanted).bytes, moment.ask, self.progress)
            for groups in parts:
                with staged_folder(self.archive) as path:
                    part = self._stage_part(source, loading, groups, path)
                    if groups is parts[-1]:
                        stack.close()  # ends the server's snapshot before rows are written
                    else:
                        part = replace(part, order=replace(part.order, unfinished=unfinished))
                yield part

    def _unfinished(self, wanted: Sequence[Relation]) -> tuple[int | None, Sequence[Relation]]:
        """If a load died between its batches, the LSN of its first batch and the tables that remain; otherwise None and
        all tables."""
        since = None if self.request.repair else self.archive.ledger.batches.unfinished_load(self.request.tables)
        if since is None:
            return None, wanted
        states = self.archive.last.tables
        rest = [r for r in wanted if r.oid not in states or not _is_loaded(states[r.oid], since)]
        if not rest:
            return None, wanted
        self.progress(f"the load as of LSN {format_lsn(since)} continues: {counted(len(rest), 'table')} left")
        return since, rest

    def _stage_part(
        self, source: SnapshotServer, loading: LoadProgress, groups: Sequence[Sequence[Relation]], path: str
    ) -> StagedTables:
        """Stages one batch's tables. groups: tables that are read together."""
        from pgoutput_etl.postgres.live_server import server_errors
        from pgoutput_etl.work.snapshot.repair import TableComparison

        request, catalog, moment = self.request, source.catalog, source.moment
        user_types = types_with(self.archive, catalog.types)
        comparison = TableComparison(self.spark, moment, request.connections, user_types)
        repairs = dict[int, Repair]()
        relations = tuple(relation for group in groups for relation in group)
        policy, reads = self._masking_policy(relations, user_types), Counter[int]()

        def repair(group: Sequence[Relation]) -> None:
            [relation] = group
            with server_errors(of_table=True):
                self.progress(f"comparing {relation.full_name}")
                state = comparison.comparable(self.archive.last.tables.get(relation.oid))
                ranges = comparison.differing(source.tables[relation.oid], state)
                if ranges != ():
                    key = state.key[0] if state.key else ""
                    copies = source.copies(Inserts(relation, moment.lsn, source.time), ranges, key)
                    self.progress(f"reading the rows of {relation.full_name} that differ")
                    self._write(path, source.blocks(copies))
            repairs[relation.oid] = Repair(state.version, ranges)

        def load(group: Sequence[Relation]) -> None:
            reads.update(relation.oid for relation in group)
            with server_errors(of_table=True):
                inserts = [Inserts(r, moment.lsn, source.time, self._version(r, policy)) for r in group]
                copies = [copy for table in inserts for copy in source.copies(table)]
                size, names = source.size(group), [relation.full_name for relation in group]
                what = ", ".join(names) if len(names) <= _MOST_NAMES else counted(len(names), "table")
                with loading.reading(what, size.rows, size.bytes):
                    rows = self._write(path, source.blocks(copies))
                loading.report(rows)

        unread = self._stage_all(groups, repair if request.repair else load)
        unread |= source.rewritten([relation.oid for relation in relations if relation.oid not in unread])
        skipped = [t.relation.full_name for t in catalog.tables if self._is_skipped(t.relation)]
        described = (relations, catalog.types, catalog.known, repairs if request.repair else None, catalog.partitions)
        order = SnapshotOrder(moment.lsn, source.time, path, *described)
        # Storage may have a write of which it reported a failure, so rows that were read twice may be there twice.
        unique = frozenset(oid for oid, count in reads.items() if count == 1 and source.tables[oid].is_unique)
        return replace(self._staged(order, skipped, unread), unique=unique)

    def _stage_all(
        self, groups: Iterable[Sequence[Relation]], stage: Callable[[Sequence[Relation]], None]
    ) -> dict[int, str]:
        """Stages a group's tables together; if that fails, each half separately. Returns the reasons why tables can't
        be read, by OID."""
        unread: dict[int, str] = {}
        for group in groups:
            try:
                stage(group)
            except FAULTS as error:
                if len(group) > 1:
                    middle = len(group) // 2
                    unread |= self._stage_all((group[:middle], group[middle:]), stage)
                    continue
                [relation] = group
                step = f"reading {relation.full_name}"
                unread[relation.oid] = held_reason(error, step, str, partial(is_running, self.spark))
        return unread

    def _staged(self, order: SnapshotOrder, skipped: Sequence[str], unread: Mapping[int, str]) -> StagedTables:
        states, summaries = self.archive.last.tables, []
        for relation in order.relations:
            if relation.oid in unread:
                state = states.get(relation.oid)
                place = ("", -1) if state is None else (str(state.path), state.version)
                summaries.append(TableSummary(relation.namespace, relation.name, *place, held=unread[relation.oid]))
        relations = tuple(relation for relation in order.relations if relation.oid not in unread)
        repairs = order.repairs
        if repairs is not None:
            repairs = {oid: repair for oid, repair in repairs.items() if oid not in unread}
        return StagedTables(replace(order, relations=relations, repairs=repairs), tuple(skipped), tuple(summaries))

    def _is_skipped(self, relation: Relation) -> bool:
        return self.archive.config.rule_for(relation.namespace, relation.name).skip

    def _stage_files(self, path: str) -> StagedTables:
        request, catalog = self.request, self._catalog()
        files = row_files(self.spark, request.format, request.files or "", request.columns)
        names = self._names(files, catalog)
        left_out: tuple[TableSummary, ...] = ()
        if isinstance(files, Dump):
            names, left_out = self._without_partitions(files, names, catalog)
        elif catalog is None and (of_root := [name for name in names if name in self.archive.roots]):
            raise ConfigError(f"--tables: no other tables: {_of_root(of_root[0], self.archive.roots[of_root[0]])}")
        if not isinstance(files, Dump) and len(names) > 1:
            raise ConfigError("--tables: --csv and --copy hold the rows of one table: expected its schema.table")
        by_name, undescribed = self._described(files, names, catalog)
        skipped = [name for name, relation in by_name.items() if self._is_skipped(relation)]
        relations = [relation for name, relation in by_name.items() if name not in skipped]
        found = catalog or Catalog(0, (), ())
        policy = self._masking_policy(relations, types_with(self.archive, found.types))
        lsn, at = request.lsn or 0, None if request.time is None else microseconds_of(request.time)

        def stage(group: Sequence[Relation]) -> None:
            [relation] = group
            self.progress(f"reading {relation.full_name}")
            inserts = Inserts(relation, lsn, at, self._version(relation, policy))
            try:
                with copy_errors(), reading_files():
                    rows = files.of_table(relation.full_name, [column.name for column in relation.columns])
                    self._write(path, rows.blocks(self.spark, inserts))
            except (ArchiveError, ConfigError) as error:
                if len(relations) == 1:
                    raise
                raise TableError(str(error), error.kind) from None

        unread = self._stage_all(([relation] for relation in relations), stage)
        order = SnapshotOrder(lsn, at, path, tuple(relations), found.types, found.known, partitions=found.partitions)
        staged = self._staged(order, skipped, unread)
        return replace(staged, unread=(*staged.unread, *left_out, *undescribed))

    def _described(
        self, files: RowFiles, names: Sequence[str], catalog: Catalog | None
    ) -> tuple[dict[str, Relation], tuple[TableSummary, ...]]:
        """The tables by name, and the tables that nothing describes. Raises ConfigError if nothing describes any
        table."""
        found: dict[str, Relation] = {}
        undescribed: list[TableSummary] = []
        for name in names:
            try:
                found[name] = self._relation(name, files.names(name), catalog)
            except ConfigError as error:
                if len(undescribed) == len(names) - 1:
                    raise
                schema, _, table = name.partition(".")
                undescribed.append(TableSummary(schema, table, "", -1, held=str(error)))
        return found, tuple(undescribed)

    def _without_partitions(
        self, dump: Dump, names: Sequence[str], catalog: Catalog | None
    ) -> tuple[list[str], tuple[TableSummary, ...]]:
        """The names of tables to load, and the partitions whose rows the archive has under their root's name. Raises
        ConfigError if no table remains."""
        published = set(self.archive.names)
        if catalog is not None:
            published = {table.relation.full_name for table in catalog.tables}
        known = {name: dump.tables[name].root or self.archive.roots.get(name) for name in names}
        roots = {name: root for name, root in known.items() if root in published}
        if roots and len(roots) == len(names):
            error = ConfigError(f"--dump: no other tables: {'; '.join(map(_of_root, roots, roots.values()))}")
            named = patterns_of(sorted({*roots.values()}))
            error.next_job = ("snapshot", "--tables", named, "--server", self.archive.config.source.server_url)
            raise error
        tables = ((dump.tables[name], root) for name, root in roots.items())
        left = (TableSummary(t.schema, t.name, "", -1, held=_of_root(t.name, root)) for t, root in tables)
        return [name for name in names if name not in roots], tuple(left)

    def _catalog(self) -> Catalog | None:
        path = self.request.catalog
        if path is None:
            return None
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--catalog: {path} can't be read: {brief(error)}") from None
        return read_catalog(text, self.request.publications, self.request.wants)

    def _names(self, files: RowFiles, catalog: Catalog | None) -> list[str]:
        if isinstance(files, Dump):
            names, where = list(files.tables), f"{self.request.files}/toc.dat"
        elif catalog is not None:
            names, where = [table.relation.full_name for table in catalog.tables], "--catalog"
        else:
            names, where = list(self.archive.names), "the archive"
        return sorted(matching_names(self.request.tables, names, where))

    def _relation(self, name: str, columns: list[str] | None, catalog: Catalog | None) -> Relation:
        """The table as the server described it when its rows were read."""
        if catalog is not None:
            published = next((t.relation for t in catalog.tables if t.relation.full_name == name), None)
            if published is None:
                raise ConfigError(f"--catalog: none of its publications has {name}")
            missing = [c.name for c in published.columns if columns is not None and c.name not in columns]
            if missing:
                raise ConfigError(f"the rows of {name} have no column {missing[0]!r}, which is published")
            return published
        oid = self.archive.names.get(name)
        versions = () if oid is None else self.archive.relations.unmasked(oid)[0].relations
        for relation in reversed(versions):
            if columns is None or {column.name for column in relation.columns} == set(columns):
                return as_sent(relation)
        problem = "is not in the archive" if oid is None else "has other columns in the archive"
        raise ConfigError(f"{name} {problem}: describe it with --catalog, see docs/snapshot.md")

    def _masking_policy(self, relations: Sequence[Relation], user_types: UserTypes) -> MaskingPolicy | None:
        return masking_policy(self.archive.config, with_snapshot(self.archive.relations, relations), user_types, {})

    def _version(self, relation: Relation, policy: MaskingPolicy | None) -> MaskedVersion | None:
        return None if policy is None else policy.of_relation(self.archive.relations.definitions.typed(relation))

    def _write(self, path: str, blocks: DataFrame) -> int | None:
        """Returns the number of rows, if Spark reports it."""
        counts = None if is_connect(self.spark) else Observation()
        if counts is not None:
            blocks = blocks.observe(counts, F.sum("rows").alias("rows"))
        blocks.write.format("delta").mode("append").option("maxRecordsPerFile", _FILE_BLOCKS).save(path)
        found = None if counts is None else awaited(counts)
        return None if found is None else found["rows"] or 0


@contextmanager
def staged_folder(archive: LedgerArchive) -> Iterator[str]:
    """The path of a new private folder for staged rows, which is removed if the body fails."""
    path = f"{archive.config.state.root.rstrip('/')}/staged/{uuid4().hex}"
    try:
        with archive.ledger.store.private_folders():
            yield path
    except BaseException:
        archive.discard(path)
        raise


def _is_loaded(state: TableState, lsn: int) -> bool:
    """True if a snapshot as of this LSN or later has loaded the table."""
    since = state.complete_since
    return state.is_complete and since is not None and since.kind is Since.SNAPSHOT and since.lsn >= lsn


def as_sent(relation: Relation) -> Relation:
    """The relation as a server sends it, without additions from catalog Messages."""
    columns = (RelationColumn(c.is_key, c.name, c.type_oid, c.type_modifier) for c in relation.columns)
    return replace(relation, columns=tuple(columns), catalog=None)


def _of_root(name: str, root: str | None) -> str:
    return (
        f"{name} is a partition of {root}, which is published under its own name: load {root} with --server, or with "
        "--copy or --csv from COPY (SELECT …)"
    )
