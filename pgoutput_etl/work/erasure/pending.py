"""What an erasure has found, kept in a file until it is done: the first effects remove what could be found again.

It has the values of keys and conditions. The archive has them, too, as long as the file exists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from pgoutput_etl.changes.row_search import ColumnId, RowImage, Text
from pgoutput_etl.identifiers import path_segment
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.spark.object_folder import ObjectFolder
from pgoutput_etl.work.erasure.find import POSITIONS, FoundChanges, row_key
from pgoutput_etl.work.erasure.request import TableErasure

_NAME = "erasure.json"


@dataclass(frozen=True, slots=True)
class KeyPeriod:
    """The time in which a row had a key, in an erasure that an earlier version of this package began: it followed rows.
    start: None if the row had the key before its first change in the archive. end: what is written there is no longer
    of this row; None if it still has the key."""

    key: tuple[tuple[ColumnId, Text], ...]
    start: CommitPosition | None
    end: CommitPosition | None

    def holds(self, image: RowImage, at: CommitPosition) -> bool:
        is_then = (self.start is None or self.start <= at) and (self.end is None or at < self.end)
        return is_then and all(column in image and image[column] == text for column, text in self.key)


Periods = Mapping[int, Sequence[KeyPeriod]]  # by OID


@dataclass(frozen=True, slots=True)
class PendingErasure:
    """periods: of an erasure that an earlier version began."""

    tables: tuple[TableErasure, ...]
    found: FoundChanges
    periods: Periods


class PendingFolder(Protocol):
    """As ObjectFolder."""

    def put(self, name: str, content: str, may_exist: bool) -> None: ...

    def read(self, name: str) -> str | None: ...

    def delete_all(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PendingErasures:
    """The file of a source."""

    folder: PendingFolder

    @classmethod
    def of(cls, ledger: DeltaLedger) -> PendingErasures:
        return cls(ObjectFolder(ledger.spark, f"{ledger.root}/erasing/{path_segment(ledger.source)}"))

    def keep(self, tables: tuple[TableErasure, ...], found: FoundChanges) -> None:
        content = {
            "tables": [[table.name, table.conditions] for table in tables],
            "periods": {},  # which an earlier version expects
            "positions": found.positions.to_pydict(),
            "counts": dict(found.counts),
            "unseen": sorted(found.unseen),
            "other_keys": {oid: sorted(keys) for oid, keys in found.other_keys.items()},
        }
        self.folder.put(_NAME, json.dumps(content), may_exist=True)

    def read(self) -> PendingErasure | None:
        """None if the run had come so far that nothing is to be found any more."""
        text = self.folder.read(_NAME)
        if text is None:
            return None
        content: Mapping[str, Any] = json.loads(text)
        periods = {int(oid): [_period(*period) for period in own] for oid, own in content["periods"].items()}
        positions = pa.Table.from_pydict(content["positions"], POSITIONS)
        counts = {int(oid): count for oid, count in content["counts"].items()}
        tables = [
            TableErasure(name, tuple(tuple((column, text) for column, text in condition) for condition in conditions))
            for name, conditions in content["tables"]
        ]
        others = {int(oid): frozenset(map(row_key, keys)) for oid, keys in content.get("other_keys", {}).items()}
        found = FoundChanges({}, positions, counts, frozenset(content["unseen"]), others)
        return PendingErasure(tuple(tables), found, periods)

    def delete(self) -> None:
        self.folder.delete_all()


def _period(key: list[Any], start: list[int] | None, end: list[int] | None) -> KeyPeriod:
    columns = tuple(((number, place), text) for (number, place), text in key)
    return KeyPeriod(columns, _position(start), _position(end))


def _position(numbers: list[int] | None) -> CommitPosition | None:
    return None if numbers is None else (numbers[0], numbers[1], numbers[2])
