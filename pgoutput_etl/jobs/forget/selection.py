"""Selects stored rows: those that meet a condition, and those that had a key of a chosen row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pgoutput_etl.changes.key_times import KeyPeriod
from pgoutput_etl.changes.row_search import ColumnId, Identity, RowSearch, Text, Wanted, meets
from pgoutput_etl.jobs.forget.find import STORED_KEYS
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.types import ColumnType
from pgoutput_etl.types.canonical_text import canonical_texts

Columns = tuple[tuple[ColumnId, ColumnType], ...]  # with the types that their texts have


@dataclass(frozen=True, slots=True)
class StoredRow:
    """at: the position of the change that wrote it; only mode append has more of it than the commit, of which other
    modes store what it left."""

    texts: Mapping[ColumnId, Text]
    at: CommitPosition


def stored_rows(
    texts: Iterable[Sequence[Text]], columns: Columns, written: Iterable[CommitPosition]
) -> Iterator[StoredRow]:
    """texts: by column; written: the positions of the rows."""
    ids = [column for column, _ in columns]
    spelled = (canonical_texts(own_type, own) for (_, own_type), own in zip(columns, texts, strict=True))
    for at, *row in zip(written, *spelled, strict=True):
        yield StoredRow(dict(zip(ids, row, strict=True)), at)


@dataclass(frozen=True, slots=True)
class RowSelection:
    """periods: by key."""

    search: RowSearch
    periods: Mapping[Identity, Sequence[KeyPeriod]]
    wanted: tuple[Wanted, ...]

    @classmethod
    def of(cls, search: RowSearch, periods: Iterable[KeyPeriod], wanted: Iterable[Wanted]) -> RowSelection:
        by_key: dict[Identity, list[KeyPeriod]] = {}
        for period in periods:
            by_key.setdefault(period.identity, []).append(period)
        return cls(search, by_key, tuple(wanted))

    def is_erased(self, row: StoredRow) -> bool:
        return self._is_chosen(row) or any(
            period.holds(row.at) for key in self._keys(row) for period in self.periods.get(key, ())
        )

    def keys_of_chosen(self, oid: int, rows: Iterable[StoredRow]) -> pa.RecordBatch:
        """In STORED_KEYS, of the rows that meet a condition."""
        chosen = filter(self._is_chosen, rows)
        keys = [(oid, json.dumps(key), *row.at) for row in chosen for key in self._keys(row)]
        return pa.RecordBatch.from_pylist([dict(zip(STORED_KEYS.names, key, strict=True)) for key in keys], STORED_KEYS)

    def _is_chosen(self, row: StoredRow) -> bool:
        return any(meets(row.texts, wanted) for wanted in self.wanted)

    def _keys(self, row: StoredRow) -> list[Identity]:
        return self.search.identities(row.texts)
