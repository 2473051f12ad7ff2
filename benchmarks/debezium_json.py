"""Writes an archive's changes as Debezium's JSON sink files: one folder per table, one event per line.

As with Debezium's defaults, but without schemas: times are in microseconds, and the old rows of updates are null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.framing import detect, frames
from pgoutput_etl.protocol.messages import Begin, Insert, Relation, TupleData, Update
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS

_INT4, _TIMESTAMP = 23, 1114
_WITH_FRACTION, _WITH_MICROSECONDS = len("2026-01-01 00:00:00.1"), len("2026-01-01 00:00:00.123456")


def write_events(files: Iterable[Path], folder: Path) -> int:
    """Returns the bytes written. files: of an archive of INSERTs and UPDATEs in ordinary transactions."""
    writer = _Writer(folder)
    for number, path in enumerate(sorted(files)):
        data = path.read_bytes()
        for frame in frames(data, detect(data)):
            writer.add(decode(data[frame.start : frame.end], False))
        writer.close(number)
    return sum(path.stat().st_size for path in folder.rglob("*.json"))


class _Writer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.relations: dict[int, Relation] = {}
        self.begin: Begin | None = None
        self.position = 0
        self.lines: dict[str, list[str]] = {}

    def add(self, message: Any) -> None:
        self.position += 1
        match message:
            case Relation():
                self.relations[message.oid] = message
            case Begin():
                self.begin = message
            case Insert(_, oid, new):
                self._event(oid, "c", new)
            case Update(_, oid, _, _, new):
                self._event(oid, "u", new)
            case _:
                pass

    def _event(self, oid: int, op: str, new: TupleData) -> None:
        relation, begin = self.relations[oid], self.begin
        assert begin is not None
        time = begin.commit_timestamp + POSTGRES_EPOCH_MICROSECONDS
        source: dict[str, Any] = {"lsn": begin.final_lsn, "ts_us": time, "txId": begin.xid, "position": self.position}
        source |= {"connector": "postgresql", "db": "bench", "schema": relation.namespace, "table": relation.name}
        event = {"before": None, "after": _row(relation, new), "source": source, "op": op, "ts_us": time}
        self.lines.setdefault(relation.name, []).append(json.dumps(event, separators=(",", ":")))

    def close(self, number: int) -> None:
        for table, lines in self.lines.items():
            (self.folder / table).mkdir(parents=True, exist_ok=True)
            (self.folder / table / f"{number:06}.json").write_text("\n".join(lines) + "\n")
        self.lines.clear()


def _row(relation: Relation, values: TupleData) -> Mapping[str, Any]:
    return {
        column.name: None if value is None else _value(value.decode(), column.type_oid)
        for column, value in zip(relation.columns, values.values, strict=True)
    }


def _value(text: str, type_oid: int) -> Any:
    if type_oid == _INT4:
        return int(text)
    return _microseconds(text) if type_oid == _TIMESTAMP else text


def _microseconds(text: str) -> int:
    """Microseconds since 1970, for a time without time zone."""
    padded = text if len(text) < _WITH_FRACTION else text.ljust(_WITH_MICROSECONDS, "0")
    return (datetime.fromisoformat(padded) - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001
