"""Finds and deletes erased rows in targets, whatever their mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.changes.event_log import position_of
from pgoutput_etl.changes.key_times import KeyPeriod
from pgoutput_etl.changes.row_search import ColumnId, RowSearch, Text
from pgoutput_etl.config.column_rules import ColumnAction, ColumnRule, Salt
from pgoutput_etl.config.settings import Mode
from pgoutput_etl.errors import TableError
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.jobs.forget.find import STORED_KEYS
from pgoutput_etl.jobs.forget.selection import Columns, RowSelection, StoredRow, stored_rows
from pgoutput_etl.jobs.verify.row_text import delta_texts
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.load.net_effect import all_of, target_content, target_key_parts
from pgoutput_etl.load.shared_table import tagged_target
from pgoutput_etl.lsn import MAX_STORED_LSN
from pgoutput_etl.masking.mask_rows import masked_relation
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.schema.table_shape import TableShape, table_columns
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.delta import delta_table
from pgoutput_etl.targets.modes import SEQ_COLUMN, VALID_FROM_LSN
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.types import ColumnType
from pgoutput_etl.types.canonical_text import ComparedColumn


@dataclass(frozen=True)
class TargetSearch:
    """A target's rows, and how their values identify them. ids: of the columns whose values can be compared, by name.
    hashed: the salts of hashed ones."""

    spark: SparkSession
    state: TableState
    search: RowSearch
    shape: TableShape
    ids: Mapping[str, ColumnId]
    hashed: Mapping[ColumnId, Salt]

    @classmethod
    def of(cls, archive: DeltaArchive, state: TableState, search: RowSearch) -> TargetSearch:
        """Raises TableError if the rows can't be identified."""
        policy, relation = archive.masking_policy, state.relation
        rules = {} if policy is None or state.oid not in policy.tables else policy.tables[state.oid].rules
        versions = [n for n, r in enumerate(search.versions.relations) if masked_relation(r, rules) == relation]
        if not versions:
            raise TableError(
                "its columns are not those that the archive describes, so its rows can't be found. Rebuild it with "
                "jobs/backfill.py --tables first"
            )
        all_ids = zip(search.versions.relations[versions[-1]].columns, search.columns[versions[-1]], strict=True)
        ids = {column.name: column_id for column, column_id in all_ids if _is_comparable(rules.get(column.name))}
        hashed = {ids[n]: rule.salt for n, rule in rules.items() if n in ids and rule.salt is not None}
        key_columns = {column for key in search.keys for column in key}
        if not key_columns <= set(ids.values()) or set(hashed) & set(search.spelled_in_several_ways):
            raise TableError("masked or dropped columns identify its rows, which can't be found in the target")
        columns = table_columns(relation, state.retired, archive.user_types)
        names = [column.name for column in columns]
        shape = TableShape(relation, columns, tuple(map(names.index, state.key)), search.versions)
        return cls(archive.spark, state, search, shape, ids, hashed)

    def seeds(self) -> DataFrame | None:
        """The rows that meet a condition, in STORED_KEYS: a snapshot's rows are not in the archive. None if keys are
        hashed, so that only the archive has them."""
        if any(column in self.hashed for key in self.search.keys for column in key):
            return None
        selection, columns, oid = self._selection(()), self._columns, self.state.oid

        def identify(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield selection.keys_of_chosen(oid, _stored_rows(batch, columns))

        return self._texts(self._rows()).mapInArrow(identify, spark_schema(STORED_KEYS))

    def erased(self, gone: Iterable[KeyPeriod]) -> DataFrame:
        """The stored rows that meet a condition, or had a key in one of its periods."""
        rows, selection, columns = self._rows(), self._selection(gone), self._columns
        texts = self._texts(rows, {"row": F.struct(*map(quoted, rows.columns))})

        def keep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch.filter(pa.array(map(selection.is_erased, _stored_rows(batch, columns)), pa.bool_()))

        return texts.mapInArrow(keep, texts.schema).select("row.*")

    def delete(self, session: SparkSession, erased: DataFrame) -> int:
        """Deletes rows that `erased` returned, and returns their number. Makes one Delta commit, or none. session: with
        the commit's settings."""
        parts = self._identifying("")
        keys = erased.select(*(part.alias(f"k{n}") for n, part in enumerate(parts)))
        counted = keys.localCheckpoint()
        count = counted.count()
        if count:
            same = [F.col(f"s.k{n}").eqNullSafe(part) for n, part in enumerate(self._identifying("t."))]
            target = delta_table(session, self.state.path).alias("t")
            target.merge(counted.distinct().alias("s"), all_of(same)).whenMatchedDelete().execute()
        return count

    def _identifying(self, alias: str) -> list[Column]:
        """Equal for a row and its equals alone."""
        if self.state.mode is Mode.APPEND:
            return [F.col(f"{alias}_pg_commit_lsn"), F.col(alias + SEQ_COLUMN)]
        parts = target_key_parts(self.shape, alias) if self.shape.key else [target_content(self.shape, alias)]
        if self.state.mode is Mode.HISTORY:
            parts.append(F.col(alias + VALID_FROM_LSN))
        return [F.to_json(F.struct(part.alias("part")), {"ignoreNullFields": "false"}) for part in parts]

    def _rows(self) -> DataFrame:
        return tagged_target(self.spark, self.state.path, self.shape.columns)

    def _texts(self, rows: DataFrame, others: Mapping[str, Column] = MappingProxyType({})) -> DataFrame:
        columns = [ComparedColumn(name, own_type) for name, own_type in self._types.items()]
        sequence = F.col(SEQ_COLUMN) if self.state.mode is Mode.APPEND else F.lit(None).cast("long")
        return delta_texts(rows, columns, {**others, "seq": sequence})

    @property
    def _types(self) -> dict[str, ColumnType]:
        return {c.name: c.type for c in self.shape.columns if c.name in self.ids and not c.retired}

    @property
    def _columns(self) -> Columns:
        return tuple((self.ids[name], own_type) for name, own_type in self._types.items())

    def _selection(self, gone: Iterable[KeyPeriod]) -> RowSelection:
        """With masked texts, as the target has them."""
        masked = [replace(p, identity=tuple((i, self._masked(i, text)) for i, text in p.identity)) for p in gone]
        wanted = tuple(
            [frozenset((i, self._masked(i, text)) for i, text in pairs) for pairs in condition]
            for condition in self.search.wanted
        )
        return RowSelection.of(self.search, masked, wanted)

    def _masked(self, column: ColumnId, text: Text) -> Text:
        salt = self.hashed.get(column)
        if salt is None or text is None:
            return text
        return salt.hashed([text.encode("utf-8", "surrogateescape")])[0].decode()


def _stored_rows(batch: pa.RecordBatch, columns: Columns) -> Iterator[StoredRow]:
    """columns: of the texts t0, t1 …"""
    written = map(_written_at, *(batch.column(name).to_pylist() for name in ("lsn", "seq")))
    return stored_rows([batch.column(f"t{n}").to_pylist() for n in range(len(columns))], columns, written)


def _written_at(lsn: int | None, sequence: int | None) -> CommitPosition:
    latest = MAX_STORED_LSN
    return (latest if lsn is None else lsn, *((latest, latest) if sequence is None else position_of(sequence)))


def _is_comparable(rule: ColumnRule | None) -> bool:
    return rule is None or rule.action is ColumnAction.HASH
