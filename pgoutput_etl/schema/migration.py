"""Rows that are there already, brought from one shape of their table to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa

from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import Relation, RelationColumn
from pgoutput_etl.schema.diff import Declared, Lineage, lineage
from pgoutput_etl.schema.table_shape import UNREPRESENTABLE, TableColumn, TableShape
from pgoutput_etl.types.conversion import convert, is_unchanged, widens
from pgoutput_etl.types.printing import print_text

Retired = tuple[RelationColumn, ...]


class ValueChange(Enum):
    """What happens to a column's stored values."""

    NEW = "new"
    UNSENT = "unsent"
    STAYS = "stays"
    WIDENED = "widened"
    CONVERTED = "converted"


@dataclass(frozen=True, slots=True)
class SchemaMigration:
    """origins: for each column after, its place before; None for a new one, which is NULL in the rows there are.

    unsent: places of new ones that have values in these rows, which were never sent.
    """

    before: tuple[TableColumn, ...]
    after: tuple[TableColumn, ...]
    key: tuple[int, ...]
    origins: tuple[int | None, ...]
    unsent: tuple[int, ...] = ()

    def value_change(self, place: int) -> ValueChange:
        origin = self.origins[place]
        if origin is None:
            return ValueChange.UNSENT if place in self.unsent else ValueChange.NEW
        old, new = self.before[origin].type, self.after[place].type
        if is_unchanged(old, new):
            return ValueChange.STAYS
        return ValueChange.WIDENED if widens(old, new) else ValueChange.CONVERTED

    @property
    def changes_nothing(self) -> bool:
        same = [column.name for column in self.before] == [column.name for column in self.after]
        return same and all(self.value_change(i) is ValueChange.STAYS and o == i for i, o in enumerate(self.origins))

    def check_key(self) -> None:
        """Raises TableError if rows that are there would have no key; not to be asked of an empty table."""
        for place in self.key:
            if self.origins[place] is None:
                raise TableError(
                    f"column {self.after[place].name!r} of its key is new, and what the rows there are have in it was "
                    "never sent: their values are in no archive"
                )


def migration_to(before: Sequence[TableColumn], after: TableShape, found: Lineage) -> SchemaMigration:
    """`found`: of the relation's columns; those of retired ones are found by their names."""
    by_name = {column.name: place for place, column in enumerate(before)}
    retired = [by_name[column.name] for column in after.columns if column.retired]
    return SchemaMigration(tuple(before), after.columns, after.key, (*found.origins, *retired), found.unsent)


def next_version(old: Relation, retired: Retired, new: Relation, declared: Declared) -> tuple[Lineage, Retired]:
    """Whence the new relation's columns come, and what is retired from now on."""
    found = lineage(old, new, declared)
    names = {column.name.lower() for column in new.columns}
    kept = (*retired, *(old.columns[place] for place in found.retired))
    # A column that begins under a retired one's name takes its place.
    return found, tuple(column for column in kept if column.name.lower() not in names)


def converted(rows: pa.RecordBatch, reshaping: SchemaMigration) -> pa.RecordBatch:
    """Rows c0…, `_unrep` before -> c0…, `_unrep` after; all other columns as they are."""
    noted: list[list[dict[str, Any]]] = [[] for _ in range(rows.num_rows)]
    entries = [{e["key"]: e["value"] for e in row or ()} for row in rows.column("_unrep").to_pylist()]
    columns: dict[str, pa.Array] = {}
    for place, column in enumerate(reshaping.after):
        origin = reshaping.origins[place]
        if origin is None:
            columns[f"c{place}"] = pa.nulls(rows.num_rows, column.type.arrow)
            for row in noted if place in reshaping.unsent else ():
                row.append({"key": column.name, "value": None})
            continue
        name = reshaping.before[origin].name
        odd = {i: entry[name] for i, entry in enumerate(entries) if name in entry}
        array, kept = _column(rows.column(f"c{origin}"), odd, reshaping, place)
        columns[f"c{place}"] = array
        for i, text in kept.items():
            noted[i].append({"key": column.name, "value": text})
    columns["_unrep"] = pa.array([row or None for row in noted], UNREPRESENTABLE)
    others = {name: rows.column(name) for name in rows.schema.names if name != "_unrep" and not _is_positional(name)}
    return pa.RecordBatch.from_pydict({**columns, **others})


def _is_positional(name: str) -> bool:
    return name[0] == "c" and name[1:].isdigit()


def _column(
    array: pa.Array, odd: dict[int, str | None], reshaping: SchemaMigration, place: int
) -> tuple[pa.Array, dict[int, str | None]]:
    """The column after, and per row the text of what is unrepresentable; None for what was never sent."""
    origin = reshaping.origins[place]
    assert origin is not None
    old, new = reshaping.before[origin].type, reshaping.after[place].type
    match reshaping.value_change(place):
        case ValueChange.STAYS | ValueChange.NEW | ValueChange.UNSENT:
            return array, odd
        case ValueChange.WIDENED:
            return array.cast(new.arrow), odd
        case ValueChange.CONVERTED:
            texts = print_text(old, array)
            for i, text in odd.items():
                texts[i] = None if text is None else text.encode()
            loaded, uncertain = convert(old, new, texts)
            if place in reshaping.key and uncertain:
                raise TableError(
                    f"column {reshaping.after[place].name!r} of its key became {new.name}, was {old.name}, and what "
                    "became of its values is not certain"
                )
            unknown = {i: None for i, text in odd.items() if text is None}
            return loaded.array, {**loaded.unrepresentable, **unknown}
