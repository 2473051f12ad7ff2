"""Stores an erasure's search results in a file until it is done, because its first steps make another search
impossible.

The file contains values of keys and conditions. While it exists, so does the archive.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from pgoutput_etl.identifiers import path_segment
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.spark.object_folder import ObjectFolder
from pgoutput_etl.work.erasure.find import POSITIONS, FoundChanges, row_key
from pgoutput_etl.work.erasure.request import TableErasure

_NAME = "erasure.json"


@dataclass(frozen=True, slots=True)
class PendingErasure:
    tables: tuple[TableErasure, ...]
    found: FoundChanges


class PendingFolder(Protocol):
    """The methods of ObjectFolder that are used here."""

    def put(self, name: str, content: str, may_exist: bool) -> None: ...

    def read(self, name: str) -> str | None: ...

    def delete_all(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PendingErasures:
    """The file of one source."""

    folder: PendingFolder

    @classmethod
    def of(cls, ledger: DeltaLedger) -> PendingErasures:
        return cls(ObjectFolder(ledger.spark, f"{ledger.root}/erasing/{path_segment(ledger.source)}"))

    def keep(self, tables: tuple[TableErasure, ...], found: FoundChanges) -> None:
        content = {
            "tables": [[table.name, table.conditions] for table in tables],
            "positions": found.positions.to_pydict(),
            "counts": dict(found.counts),
            "unseen": sorted(found.unseen),
            "other_keys": {oid: sorted(keys) for oid, keys in found.other_keys.items()},
        }
        self.folder.put(_NAME, json.dumps(content), may_exist=True)

    def read(self) -> PendingErasure | None:
        """None if the run had already removed everything that a search would find."""
        text = self.folder.read(_NAME)
        if text is None:
            return None
        content: Mapping[str, Any] = json.loads(text)
        positions = pa.Table.from_pydict(content["positions"], POSITIONS)
        counts = {int(oid): count for oid, count in content["counts"].items()}
        tables = [TableErasure(name, tuple(map(row_key, conditions))) for name, conditions in content["tables"]]
        others = {int(oid): frozenset(map(row_key, keys)) for oid, keys in content["other_keys"].items()}
        found = FoundChanges({}, positions, counts, frozenset(content["unseen"]), others)
        return PendingErasure(tuple(tables), found)

    def delete(self) -> None:
        self.folder.delete_all()
