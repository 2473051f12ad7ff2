"""Finds all changes of chosen rows, and chosen Messages, in the landed files, whatever the status of their
transactions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.changes.row_search import ColumnId, FoundChange, RowImage, RowKey, RowSearch, Text
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.protocol.messages import Message
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.transactions.logical_messages import decoded
from pgoutput_etl.types import ColumnType
from pgoutput_etl.types.canonical_text import canonical_texts

# other_keys is JSON
_FOUND = pa.schema(
    [
        *((name, pa.int64()) for name in ("relation", "version", "file", "ordinal", "offset")),
        *((name, pa.bool_()) for name in ("in_stream", "is_chosen")),
        ("other_keys", pa.list_(pa.string())),
    ]
)

# A key of a stored row: the table's OID, and the key as JSON
STORED_KEYS = pa.schema([("relation", pa.int64()), ("key", pa.string())])

Columns = tuple[tuple[ColumnId, ColumnType], ...]  # with the types that the texts have

POSITIONS = pa.schema([(name, pa.int64()) for name in ("file", "ordinal", "offset")])


@dataclass(frozen=True, slots=True)
class FoundChanges:
    """offsets: of the changes to erase, by the file's number; the value is True within a stream segment. positions:
    their files, ordinals, and offsets. counts: number of changes, by OID. unseen: OIDs of tables for which the archive
    no longer shows all versions of the relation. other_keys: keys of these rows that no condition covers, by OID."""

    offsets: Mapping[int, Mapping[int, bool]]
    positions: pa.Table
    counts: Mapping[int, int]
    unseen: frozenset[int]
    other_keys: Mapping[int, frozenset[RowKey]]

    @property
    def messages(self) -> int:
        """The number of Messages."""
        return len(self.positions) - sum(self.counts.values())

    def plus(self, messages: Iterable[Mapping[str, Any]]) -> FoundChanges:
        """The changes, plus logical decoding Messages. messages: their rows."""
        offsets = {file: dict(own) for file, own in self.offsets.items()}
        rows = list(messages)
        for row in rows:
            offsets.setdefault(row["file"], {})[row["offset"]] = row["xid"] is not None
        positions = [{name: row[name] for name in POSITIONS.names} for row in rows]
        added = pa.Table.from_pylist(positions, POSITIONS)
        return replace(self, offsets=offsets, positions=pa.concat_tables([self.positions, added]))


def find_changes(
    archive: DeltaArchive, searches: Mapping[int, RowSearch], stored: Iterable[DataFrame] = ()
) -> FoundChanges:
    """searches: by OID. stored: other keys of stored rows, in STORED_KEYS. Raises ArchiveError if a file is missing or
    has changed."""
    changes = archive.all_changes(searches).where(F.col("tag") != "T")
    found = _found(changes, searches).localCheckpoint()
    erased = found.where("is_chosen").toArrow()
    offsets: dict[int, dict[int, bool]] = {}
    versions: Counter[tuple[int, int]] = Counter()
    others: dict[int, set[RowKey]] = {}
    for row in erased.to_pylist():
        offsets.setdefault(row["file"], {})[row["offset"]] = row["in_stream"]
        versions[row["relation"], row["version"]] += 1
        others.setdefault(row["relation"], set()).update(map(_key_of, row["other_keys"]))
    for key in (key for frame in stored for key in frame.toArrow().to_pylist()):
        others.setdefault(key["relation"], set()).add(_key_of(key["key"]))
    counts: Counter[int] = Counter()
    for (oid, _), number in versions.items():
        counts[oid] += number
    positions = erased.select(POSITIONS.names).cast(POSITIONS)
    other_keys = {oid: frozenset(keys) for oid, keys in others.items() if keys}
    return FoundChanges(offsets, positions, counts, _unseen(found, versions), other_keys)


def _unseen(found: DataFrame, erased: Counter[tuple[int, int]]) -> frozenset[int]:
    """OIDs of tables with several versions of the relation, one of which loses all of its changes. erased: number of
    changes that are erased, by OID and version."""
    rows = found.groupBy("relation", "version").count().collect()
    changes = {(row["relation"], row["version"]): row["count"] for row in rows}
    versions = Counter(oid for oid, _ in changes)
    return frozenset(oid for (oid, n), count in changes.items() if versions[oid] > 1 and erased[oid, n] == count)


def find_messages(archive: DeltaArchive, is_chosen: Callable[[Message], bool]) -> list[dict[str, Any]]:
    """The rows of logical decoding Messages."""
    rows = archive.all_messages().select(*POSITIONS.names, "unit", "xid", "scope", "body").toArrow().to_pylist()
    return [row for row in rows if is_chosen(decoded(row["body"], row["unit"], row["xid"], row["scope"]))]


def _found(changes: DataFrame, searches: Mapping[int, RowSearch]) -> DataFrame:
    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [_row(row["relation"], searches[row["relation"]].find(row)) for row in batch.to_pylist()]
            yield pa.RecordBatch.from_pylist(rows, _FOUND)

    return changes.mapInArrow(find, spark_schema(_FOUND))


def _row(relation: int, change: FoundChange) -> dict[str, object]:
    own = {name: getattr(change, name) for name in _FOUND.names if name not in ("relation", "other_keys")}
    return {"relation": relation, **own, "other_keys": sorted(map(json.dumps, change.other_keys))}


def row_images(texts: Iterable[Sequence[Text]], columns: Columns) -> Iterator[RowImage]:
    """The images of stored rows, as a search compares them, from columns of texts."""
    ids = [column for column, _ in columns]
    spelled = (canonical_texts(own_type, own) for (_, own_type), own in zip(columns, texts, strict=True))
    for row in zip(*spelled, strict=True):
        yield dict(zip(ids, row, strict=True))


def stored_keys(oid: int, keys: Iterable[RowKey]) -> pa.RecordBatch:
    """The keys as rows of STORED_KEYS."""
    return pa.RecordBatch.from_pylist([{"relation": oid, "key": json.dumps(key)} for key in keys], STORED_KEYS)


def _key_of(text: str) -> RowKey:
    return row_key(json.loads(text))


def row_key(pairs: Iterable[Iterable[str]]) -> RowKey:
    """The key from nested lists, as in JSON."""
    return tuple((name, text) for name, text in pairs)
