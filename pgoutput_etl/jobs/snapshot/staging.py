"""A snapshot's rows, read and laid down in a place of their own before anything is changed.

What is staged can be taken up by any later run: a server's snapshot is gone with the run that had it exported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.ingest.listing import reading_files
from pgoutput_etl.jobs.snapshot.request import RowFormat, SnapshotOrder, SnapshotRequest
from pgoutput_etl.jobs.snapshot.sources import BinaryFiles, CsvFiles, Dump, RowFiles, SnapshotServer, rewritten
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.masking.mask_rows import MaskingPolicy
from pgoutput_etl.masking.policy import masking_policy
from pgoutput_etl.postgres.catalog import Catalog, read_catalog
from pgoutput_etl.postgres.connection import credentials
from pgoutput_etl.postgres.jdbc import Server, jdbc_errors
from pgoutput_etl.postgres.snapshot import ExportedSnapshot, export_snapshot, given_snapshot
from pgoutput_etl.protocol.messages import Relation, Type
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.schema.relation_history import RelationEntry, RelationHistory
from pgoutput_etl.spark.connect import frame, is_connect
from pgoutput_etl.spark.delta import delta_table, is_delta_table
from pgoutput_etl.spark.platform import is_platform_session
from pgoutput_etl.targets.plan import BEFORE_FILES
from pgoutput_etl.timestamps import microseconds_of
from pgoutput_etl.transactions.outcome import TransactionStatus
from pgoutput_etl.types import UserTypes

_FATED = [("scope", pa.int64()), ("fate", pa.string())]


@dataclass(frozen=True, slots=True)
class Staging:
    """Reads what is asked for. archive: what it says of tables, where nothing else does."""

    spark: SparkSession
    config: Config
    archive: LedgerArchive
    request: SnapshotRequest
    progress: Callable[[str], None]

    def run(self) -> tuple[SnapshotOrder, tuple[str, ...]]:
        """What is staged, and the tables that the configuration skips. Raises PgoutputEtlError."""
        place = f"{self.config.state.root.rstrip('/')}/staged/{uuid4().hex}"
        done = False
        try:
            found = self._of_server(place) if self.request.jdbc is not None else self._of_files(place)
            done = True
            return found
        finally:
            if not done:
                discard(self.spark, place)

    def _of_server(self, place: str) -> tuple[SnapshotOrder, tuple[str, ...]]:
        request = self.request
        login = credentials(request.jdbc or "", os.environ)
        server = Server(self.spark, request.jdbc or "", login, request.connections)
        with jdbc_errors(), self._exported(login) as snapshot:
            source = SnapshotServer(replace(server, snapshot=snapshot.name), request)
            catalog = source.catalog
            request.refuse_unknown([table.full_name for table in catalog.tables], "no publication of the server")
            skipped = [t.full_name for t in catalog.tables if self._is_skipped(t.relation)]
            tables = [t for t in catalog.tables if not self._is_skipped(t.relation)]
            time = source.time() if request.time is None else microseconds_of(request.time)
            protected = self._protection([table.relation for table in tables], catalog.types)
            for table in tables:
                self.progress(f"reading {table.full_name}")
                self._stage(place, table.relation, source.rows(table), protected)
            source.check_that_nothing_was_rewritten(tables)
        relations = tuple(table.relation for table in tables)
        order = SnapshotOrder(snapshot.lsn, time, place, relations, catalog.types)
        return order, tuple(skipped)

    def _is_skipped(self, relation: Relation) -> bool:
        return self.config.rule_for(relation.namespace, relation.name).skip

    @contextmanager
    def _exported(self, login: dict[str, str]) -> Iterator[ExportedSnapshot]:
        request = self.request
        if request.snapshot is not None and request.lsn is not None:
            yield given_snapshot(request.snapshot, request.lsn)
            return
        with export_snapshot(self.spark, request.jdbc or "", login, self.progress) as snapshot:
            yield snapshot

    def _of_files(self, place: str) -> tuple[SnapshotOrder, tuple[str, ...]]:
        request, files = self.request, self._files()
        catalog = self._catalog()
        names = self._names(files, catalog)
        if not isinstance(files, Dump) and len(names) > 1:
            raise ConfigError("--tables: --csv and --copy have the rows of one table: expected its schema.table")
        described = {name: self._described(name, files.names(name), catalog) for name in names}
        skipped = [name for name, relation in described.items() if self._is_skipped(relation)]
        relations = [relation for name, relation in described.items() if name not in skipped]
        types = () if catalog is None else catalog.types
        protected = self._protection(relations, types)
        for relation in relations:
            self.progress(f"reading {relation.namespace}.{relation.name}")
            with jdbc_errors(), reading_files():
                self._stage(place, relation, files.rows(relation), protected)
        time = None if request.time is None else microseconds_of(request.time)
        return SnapshotOrder(request.lsn or 0, time, place, tuple(relations), types), tuple(skipped)

    def _files(self) -> RowFiles:
        path = self.request.files or ""
        if self.request.format is RowFormat.CSV:
            return CsvFiles(self.spark, path)
        if self.request.format is RowFormat.BINARY:
            return BinaryFiles(self.spark, path, self.request.columns)
        return Dump(self.spark, path)

    def _catalog(self) -> Catalog | None:
        path = self.request.catalog
        if path is None:
            return None
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--catalog: {path} can't be read: {error}") from None
        return read_catalog(text, self.request.publications, self.request.wants)

    def _names(self, files: RowFiles, catalog: Catalog | None) -> list[str]:
        request = self.request
        if isinstance(files, Dump):
            there, where = list(files.tables), f"{request.files}/toc.dat"
        elif catalog is not None:
            there, where = [table.full_name for table in catalog.tables], "--catalog"
        else:
            there, where = self._known_names(), "the archive"
        request.refuse_unknown(there, where)
        return sorted(name for name in there if request.wants(name))

    def _known_names(self) -> list[str]:
        return list(self.archive.names)

    def _described(self, name: str, columns: list[str] | None, catalog: Catalog | None) -> Relation:
        """As the server had the table when the rows were taken."""
        if catalog is not None:
            found = next((table.relation for table in catalog.tables if table.full_name == name), None)
            if found is None:
                raise ConfigError(f"--catalog: no publication there has {name}")
            missing = [c.name for c in found.columns if columns is not None and c.name not in columns]
            if missing:
                raise ConfigError(f"the rows of {name} have no column {missing[0]!r}, which is published")
            return found
        oid = self.archive.names.get(name)
        versions = () if oid is None else self.archive.relations.unmasked(oid)[0].relations
        for relation in reversed(versions):
            if columns is None or {column.name for column in relation.columns} == set(columns):
                return relation
        what = "the archive doesn't know it" if oid is None else "it has other columns than the archive knows of"
        raise ConfigError(f"{name}: {what}: --catalog says what it was when the rows were taken, see docs/snapshot.md")

    def _protection(self, relations: Sequence[Relation], types: Iterable[Type]) -> MaskingPolicy | None:
        known = {**self.archive.assembly.types, **{t.oid: t for t in types}}
        user_types = UserTypes.of(known.values(), self.config.types)
        return masking_policy(self.config, with_snapshot(self.archive.relations, relations), user_types, {})

    def _stage(self, place: str, relation: Relation, rows: DataFrame, protected: MaskingPolicy | None) -> None:
        """What the configuration keeps from being kept is not among what is staged."""
        if protected is not None:
            rows = rewritten(rows, protected.of_relation(relation))
        oid = F.lit(relation.oid).cast("long").alias("relation")
        staged = rows.select(oid, F.monotonically_increasing_id().alias("ordinal"), "new")
        staged.write.format("delta").mode("append").save(place)


def with_snapshot(history: RelationHistory, relations: Sequence[Relation]) -> RelationHistory:
    """The snapshot's rows stand under what their server said; what the archive says holds for its own."""
    first = [RelationEntry((BEFORE_FILES, 0), relation, None) for relation in relations]
    return RelationHistory.of([*history.entries, *first])


def staged_rows(spark: SparkSession, order: SnapshotOrder) -> DataFrame:
    """As the archive's rows with their fates: inserted by one transaction, which committed where the snapshot holds."""
    schema = pa.schema([*MESSAGE_SCHEMA, *_FATED])
    own = {
        "file": F.lit(BEFORE_FILES).cast("long"),
        "offset": F.col("ordinal"),
        "tag": F.lit("I"),
        "fate": F.lit(TransactionStatus.COMMITTED.value),
        "commit_lsn": F.lit(order.lsn).cast("long"),
        "commit_ts": F.lit(order.time).cast("long"),
    }
    nothing = frame(spark, schema.empty_table())
    rows = spark.read.format("delta").load(order.staged)
    return nothing.unionByName(rows.withColumns(own), allowMissingColumns=True)


def discard(spark: SparkSession, place: str) -> None:
    """What is staged, when it is in its place or of no use. Where nothing can be removed it is emptied."""
    if not is_delta_table(spark, place):
        return
    if is_connect(spark) or is_platform_session():
        delta_table(spark, place).delete()
        return
    jvm = spark._jvm
    assert jvm is not None
    path = jvm.org.apache.hadoop.fs.Path(place)
    path.getFileSystem(spark._jsc.hadoopConfiguration()).delete(path, True)


def new_types(order: SnapshotOrder, known: dict[int, Type]) -> list[Type]:
    return [t for t in order.types if known.get(t.oid) != t]
