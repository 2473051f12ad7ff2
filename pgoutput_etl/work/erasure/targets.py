"""Finds and deletes erased rows in targets of any mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.answers.verify.row_text import delta_texts
from pgoutput_etl.changes.row_search import ColumnId, RowImage, RowSearch, Text, Wanted, meets_any
from pgoutput_etl.config.column_rules import ColumnAction, ColumnRule, Salt
from pgoutput_etl.errors import TableError
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.load.net_effect import all_of, target_content, target_key_parts
from pgoutput_etl.load.shared_table import tagged_target
from pgoutput_etl.load.table_writer import DeltaTransaction
from pgoutput_etl.masking.mask_rows import masked_relation
from pgoutput_etl.schema.table_shape import TableShape, table_columns
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.delta import delta_table
from pgoutput_etl.spark.session import session_settings
from pgoutput_etl.targets.modes import OLD_KEY_COLUMN, table_mode
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.types import ColumnType
from pgoutput_etl.types.canonical_text import ComparedColumn, canonical_texts
from pgoutput_etl.work.erasure.find import STORED_KEYS, Columns, row_images, stored_keys


@dataclass(frozen=True)
class TargetSearch:
    """Searches a target for the rows to erase. ids: of columns whose values can be compared, by name. hashed: the salts
    of hashed columns."""

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
        ids = {n: c for n, c in ids.items() if c not in hashed or c not in search.spelled_in_several_ways}
        columns = table_columns(relation, state.retired, archive.user_types)
        if not (search.can_use(ids.values()) or {*(state.key or (c.name for c in columns))} <= ids.keys()):
            raise TableError("masked or dropped columns identify its rows, which can't be found in the target")
        names = [column.name for column in columns]
        shape = TableShape(relation, columns, tuple(map(names.index, state.key)), search.versions)
        return cls(archive.spark, state, search, shape, ids, hashed)

    def other_keys(self) -> DataFrame:
        """Other keys of the rows that meet a condition, as STORED_KEYS, without hashed values."""
        search, wanted, hashed, oid = self.search, self._wanted, self.hashed, self.state.oid
        texts, images_of = self._texts(self._rows()), self._images()

        def identify(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                chosen = (images for images in images_of(batch) if any(meets_any(image, wanted) for image in images))
                plain = [{c: text for c, text in image.items() if c not in hashed} for own in chosen for image in own]
                yield stored_keys(oid, {key for image in plain for key in search.other_keys(image)})

        return texts.mapInArrow(identify, spark_schema(STORED_KEYS)).distinct()

    def erased(self) -> DataFrame:
        """The stored rows that meet a condition."""
        rows, wanted, images_of = self._rows(), self._wanted, self._images()
        texts = self._texts(rows, {"row": F.struct(*map(quoted, rows.columns))})

        def keep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                kept = [any(meets_any(image, wanted) for image in images) for images in images_of(batch)]
                yield batch.filter(pa.array(kept, pa.bool_()))

        return texts.mapInArrow(keep, texts.schema).select("row.*")

    def count(self) -> int:
        """The number of rows to erase."""
        return self.erased().count()

    def has_any(self) -> bool:
        return bool(self.erased().limit(1).count())

    def delete(self, commit: DeltaTransaction) -> int:
        """Deletes the rows to erase and returns their number. Makes at most one Delta commit."""
        with session_settings(self.spark, commit.user_metadata()) as session:
            parts = self._identifying("")
            keys = self.erased().select(*(part.alias(f"k{n}") for n, part in enumerate(parts)))
            counted = keys.localCheckpoint()
            count = counted.count()
            if count:
                same = [F.col(f"s.k{n}").eqNullSafe(part) for n, part in enumerate(self._identifying("t."))]
                target = delta_table(session, self.state.path).alias("t")
                target.merge(counted.distinct().alias("s"), all_of(same)).whenMatchedDelete().execute()
            return count

    def _identifying(self, alias: str) -> list[Column]:
        """Expressions that are equal only for equal rows."""
        mode = table_mode(self.state.mode)
        own = [F.col(alias + name) for name in mode.identity]
        if not mode.has_rows:
            return own
        parts = target_key_parts(self.shape, alias) if self.shape.key else [target_content(self.shape, alias)]
        return [F.to_json(F.struct(part.alias("part")), {"ignoreNullFields": "false"}) for part in (*parts, *own)]

    def _rows(self) -> DataFrame:
        return tagged_target(self.spark, self.state.path, self.shape.columns)

    def _texts(self, rows: DataFrame, others: Mapping[str, Column] = MappingProxyType({})) -> DataFrame:
        columns = [ComparedColumn(name, own_type) for name, own_type in self._types.items()]
        has_rows = table_mode(self.state.mode).has_rows
        old_key = F.lit(None).cast("map<string, string>") if has_rows else F.col(OLD_KEY_COLUMN)
        return delta_texts(rows, columns, {**others, "old_key": old_key})

    def _images(self) -> Callable[[pa.RecordBatch], Iterator[list[RowImage]]]:
        """The images of each row of `_texts`: its values and, for an UPDATE of the key in mode append, its old key."""
        columns, ids, types = self._columns, self.ids, self._types

        def images_of(batch: pa.RecordBatch) -> Iterator[list[RowImage]]:
            texts = [batch.column(f"t{n}").to_pylist() for n in range(len(columns))]
            for image, old in zip(row_images(texts, columns), batch.column("old_key").to_pylist(), strict=True):
                old_key = {ids[n]: canonical_texts(types[n], [text])[0] for n, text in old or () if n in types}
                yield [image, old_key] if old_key else [image]

        return images_of

    @property
    def _types(self) -> dict[str, ColumnType]:
        return {c.name: c.type for c in self.shape.columns if c.name in self.ids and not c.retired}

    @property
    def _columns(self) -> Columns:
        return tuple((self.ids[name], own_type) for name, own_type in self._types.items())

    @property
    def _wanted(self) -> list[Wanted]:
        """The conditions, with texts masked as in the target."""
        return [
            [frozenset((i, self._masked(i, text)) for i, text in pairs) for pairs in condition]
            for condition in self.search.wanted
        ]

    def _masked(self, column: ColumnId, text: Text) -> Text:
        salt = self.hashed.get(column)
        if salt is None or text is None:
            return text
        return salt.hashed([text.encode("utf-8", "surrogateescape")])[0].decode()


def _is_comparable(rule: ColumnRule | None) -> bool:
    return rule is None or rule.action is ColumnAction.HASH
