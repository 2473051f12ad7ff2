"""Finds the changes of chosen rows, and chosen Messages, in all landed files, whatever became of their transactions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.changes.row_search import FoundChange, Identity, RowSearch
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.protocol.messages import Message
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.transactions.logical_messages import decoded

_FOUND = pa.schema(
    [
        *((name, pa.int64()) for name in ("relation", "version", "file", "ordinal", "offset")),
        *((name, pa.bool_()) for name in ("in_stream", "is_chosen")),
        ("identities", pa.list_(pa.string())),
    ]
)

# An OID, and a key in JSON of one of its rows
LINKS = pa.schema([("relation", pa.int64()), ("identity", pa.string())])

POSITIONS = pa.schema([(name, pa.int64()) for name in ("file", "ordinal", "offset")])


@dataclass(frozen=True, slots=True)
class FoundChanges:
    """offsets: of the changes to erase, by the file's number, and whether each is in a stream segment. positions: their
    files, ordinals, and offsets. counts: by OID. identities: the keys of the rows, by OID. unseen: OIDs of tables with
    several versions of the relation, one of which no other change shows."""

    offsets: Mapping[int, Mapping[int, bool]]
    positions: pa.Table
    counts: Mapping[int, int]
    identities: Mapping[int, Collection[Identity]]
    unseen: frozenset[int] = frozenset()

    def identities_of(self, oid: int) -> Collection[Identity]:
        return self.identities.get(oid, ())

    @property
    def messages(self) -> int:
        """Number of Messages."""
        return len(self.positions) - sum(self.counts.values())

    def plus(self, messages: Iterable[Mapping[str, Any]]) -> FoundChanges:
        """messages: rows of Messages."""
        offsets = {file: dict(own) for file, own in self.offsets.items()}
        rows = list(messages)
        for row in rows:
            offsets.setdefault(row["file"], {})[row["offset"]] = row["xid"] is not None
        positions = [{name: row[name] for name in POSITIONS.names} for row in rows]
        added = pa.Table.from_pylist(positions, POSITIONS)
        return replace(self, offsets=offsets, positions=pa.concat_tables([self.positions, added]))


def find_changes(
    archive: DeltaArchive, searches: Mapping[int, RowSearch], seeds: Iterable[DataFrame] = ()
) -> FoundChanges:
    """searches: by OID. seeds: keys of chosen rows, in LINKS. Raises ArchiveError if a file is gone or has changed."""
    found = _found(archive.all_changes(searches), searches).localCheckpoint()
    linked = found.select("relation", "file", "ordinal", F.explode("identities").alias("identity")).localCheckpoint()
    chosen = found.where("is_chosen").select("relation", F.explode("identities").alias("identity"))
    keys, count = reduce(DataFrame.union, seeds, chosen).distinct().localCheckpoint(), -1
    while (now := keys.count()) != count:
        more = _with_keys(linked, linked, keys).select("relation", "identity")
        keys, count = keys.union(more).distinct().localCheckpoint(), now
    erased = _with_keys(found, linked, keys).drop("is_chosen", "identities").toArrow()
    offsets: dict[int, dict[int, bool]] = {}
    versions: Counter[tuple[int, int]] = Counter()
    for row in erased.to_pylist():
        offsets.setdefault(row["file"], {})[row["offset"]] = row["in_stream"]
        versions[row["relation"], row["version"]] += 1
    counts: Counter[int] = Counter()
    for (oid, _), number in versions.items():
        counts[oid] += number
    identities: dict[int, list[Identity]] = {}
    for row in keys.toArrow().to_pylist():
        identities.setdefault(row["relation"], []).append(identity_of(json.loads(row["identity"])))
    positions = erased.select(POSITIONS.names).cast(POSITIONS)
    return FoundChanges(offsets, positions, counts, identities, _unseen(found, versions))


def _with_keys(changes: DataFrame, linked: DataFrame, keys: DataFrame) -> DataFrame:
    """The changes that have one of the keys. linked: each change with each of its keys."""
    rows = linked.join(keys, ["relation", "identity"], "left_semi").select("file", "ordinal").distinct()
    return changes.join(rows, ["file", "ordinal"], "left_semi")


def _unseen(found: DataFrame, erased: Counter[tuple[int, int]]) -> frozenset[int]:
    """erased: numbers of changes by OID and version."""
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


def _row(oid: int, change: FoundChange) -> dict[str, object]:
    return {
        "relation": oid,
        "version": change.version,
        "file": change.file,
        "ordinal": change.ordinal,
        "offset": change.offset,
        "in_stream": change.in_stream,
        "is_chosen": change.is_chosen,
        "identities": [json.dumps(identity) for identity in change.identities],
    }


def identity_of(key: Iterable[tuple[tuple[int, int], str | None]]) -> Identity:
    """The key, from lists as JSON has them."""
    return tuple(((number, place), text) for (number, place), text in key)
