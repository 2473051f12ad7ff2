"""A ledger of years: nights between the first one, which a run has applied, and the next.

Each of these nights has read some files with a few thousand transactions and changed every table of the source. Only
the first night's tables exist. Rows are copies of those that the real run wrote, with other numbers, appended as a run
appends them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from pgoutput_etl.ledger.local_append import append_once
from pgoutput_etl.ledger.tables import SCHEMAS

_TRANSACTIONS = 5_000  # of a night
_METRICS = ("look", "read", "prepare", "write")


@dataclass(frozen=True, slots=True)
class LongLedger:
    """root: of a ledger with one finished batch. files: of a night. tables: of the source."""

    root: Path
    files: int
    tables: int

    def grow(self, nights: int, progress: Callable[[str], None]) -> None:
        """Appends finished batches."""
        batches, known, claims, transactions = (self._rows(n) for n in ("batches", "files", "claims", "transactions"))
        begun = next(row for row in batches if row["status"] == "begun")
        done = next(row for row in batches if row["status"] == "done")
        [file], [part] = known, begun["files"]
        states, files = self._states(done["tables"]), self.files
        for night in range(nights):
            if night % 100 == 0:
                progress(f"{night:,} of {nights:,} nights")
            batch, at = done["batch"] + 1 + night, {"at": done["at"] + timedelta(days=1 + night)}
            numbers = range(1 + night * files, 1 + (night + 1) * files)
            parts = [_file(part, number) for number in numbers]
            for number, claim in enumerate(claims):
                self._append("claims", [{**claim, "batch": batch}], batch, f"{number}")
            self._append("batches", [{**begun, **at, "batch": batch, "files": parts}], batch, "begun")
            self._append("transactions", _transactions(transactions[0], batch, numbers), batch)
            self._append("files", [{**_file(file, number), "batch": batch} for number in numbers], batch)
            tables = [{**table, "version": table["version"] + 1 + night} for table in states]
            after = {"batch": batch, "tables": tables, "metrics": json.dumps({"seconds": dict.fromkeys(_METRICS, 1.0)})}
            self._append("batches", [{**done, **at, **after}], batch, "done")

    def _states(self, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The states of all tables: those that exist, and copies of the first under other names."""
        copies = (_copy(states[0], number) for number in range(1, 1 + self.tables - len(states)))
        return [*states, *copies]

    def _rows(self, table: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pa.table(DeltaTable(str(self.root / table)).to_pyarrow_table()).to_pylist()
        return rows

    def _append(self, table: str, rows: list[dict[str, Any]] | pa.Table, batch: int, step: str = "") -> None:
        content = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, SCHEMAS[table])
        source = content.column("source")[0].as_py()
        if not append_once(str(self.root / table), content, f"pgoutput_etl:{source}:{table}:{step}", batch):
            raise AssertionError(f"{table}: batch {batch} was not appended")


def _copy(state: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The state of a table like this one, with another name and OID."""
    name = f"copy_{number}"
    names, folder = {"oid": 1_000_000 + number, "table": name}, state["path"].rpartition("/")[0]
    relation = json.dumps({**json.loads(state["relation"]), **names})
    return {**state, **names, "relation": relation, "path": f"{folder}/{name}"}


def _file(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Another file, which is no longer in the landing folder."""
    digits = hashlib.sha256(str(number).encode()).hexdigest()
    path = f"{row['path'].rpartition('/')[0]}/applied-{number:08}.bin"
    return {**row, "file": number, "path": path, "prefix_hash": digits, "head": digits[:16]}


def _transactions(row: Mapping[str, Any], batch: int, files: range) -> pa.Table:
    """Ordinary transactions as a run records them, spread evenly over the night's files, with xids before the first
    real night's."""
    one = pa.Table.from_pylist([{**row, "batch": batch}], SCHEMAS["transactions"])
    copies = one.take(pa.array(np.zeros(_TRANSACTIONS, np.int64)))
    xids = 100_000_000 + batch * _TRANSACTIONS + np.arange(_TRANSACTIONS)
    numbers = files[0] + np.arange(_TRANSACTIONS) * len(files) // _TRANSACTIONS
    for name, values in (("xid", xids), ("file", numbers), ("unit", np.arange(_TRANSACTIONS) % 50)):
        at = copies.schema.get_field_index(name)
        copies = copies.set_column(at, copies.schema.field(at), pa.array(values).cast(copies.schema.field(at).type))
    return copies
