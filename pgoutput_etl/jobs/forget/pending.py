"""What an erasure has found, kept in a file until it is done: the first effects remove what could be found again.

It has the values of keys and conditions. The archive has them, too, as long as the file exists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pgoutput_etl.changes.key_times import KeyPeriod
from pgoutput_etl.identifiers import path_segment
from pgoutput_etl.jobs.forget.find import POSITIONS, FoundChanges, identity_of
from pgoutput_etl.jobs.forget.request import TableErasure
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.spark.object_folder import ObjectFolder

_NAME = "erasure.json"


@dataclass(frozen=True, slots=True)
class PendingErasures:
    """The file of a source."""

    folder: ObjectFolder

    @classmethod
    def of(cls, ledger: DeltaLedger) -> PendingErasures:
        return cls(ObjectFolder(ledger.spark, f"{ledger.root}/erasing/{path_segment(ledger.source)}"))

    def keep(self, tables: tuple[TableErasure, ...], found: FoundChanges) -> None:
        periods = {oid: [[p.identity, p.start, p.end] for p in own] for oid, own in found.periods.items()}
        content = {
            "tables": [[table.name, table.conditions] for table in tables],
            "periods": periods,
            "positions": found.positions.to_pydict(),
            "counts": dict(found.counts),
            "unseen": sorted(found.unseen),
        }
        self.folder.put(_NAME, json.dumps(content), may_exist=True)

    def read(self) -> tuple[tuple[TableErasure, ...], FoundChanges] | None:
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
        return tuple(tables), FoundChanges({}, positions, counts, periods, frozenset(content["unseen"]))

    def delete(self) -> None:
        self.folder.delete_all()


def _period(identity: list[Any], start: list[int] | None, end: list[int] | None) -> KeyPeriod:
    return KeyPeriod(identity_of(identity), _position(start), _position(end))


def _position(numbers: list[int] | None) -> CommitPosition | None:
    return None if numbers is None else (numbers[0], numbers[1], numbers[2])
