"""Migrates existing rows from one table shape to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from pgoutput_etl.errors import ServerTableError, TableError
from pgoutput_etl.protocol.messages import Relation, RelationColumn, TypeForm
from pgoutput_etl.reasons import ReasonKind
from pgoutput_etl.schema.column_matching import declaration
from pgoutput_etl.schema.declarations import Declarations
from pgoutput_etl.schema.diff import Lineage, lineage
from pgoutput_etl.schema.table_shape import UNREPRESENTABLE, TableColumn, TableShape
from pgoutput_etl.schema.type_forms import reformed
from pgoutput_etl.time_zones import ZoneConversion
from pgoutput_etl.types.column import ValueTextError, kept_bytes, load_text
from pgoutput_etl.types.conversion import convert, is_certain, is_declared, is_unchanged, widens
from pgoutput_etl.types.printing import print_text

Retired = tuple[RelationColumn, ...]

Conversions = Mapping[int, ZoneConversion]


class ValueChange(Enum):
    """A migration's effect on the stored values of a column."""

    NEW = "new"
    UNSENT = "unsent"
    FILLED = "filled"
    REFORMED = "reformed"
    STAYS = "stays"
    WIDENED = "widened"
    CONVERTED = "converted"


@dataclass(frozen=True, slots=True)
class SchemaMigration:
    """The change from the columns `before` to the columns `after`.

    origins: each column's position in `before`; None for a new column, which is NULL in existing rows. unsent:
    positions of new columns whose values in existing rows were never sent. initial: texts of new columns' values in
    existing rows. reformed: columns whose user type has changed. same_type: columns that the server has not retyped,
    though its catalog may have described their types since. declared: conversions, by position.
    """

    before: tuple[TableColumn, ...]
    after: tuple[TableColumn, ...]
    key: tuple[int, ...]
    origins: tuple[int | None, ...]
    unsent: tuple[int, ...] = ()
    initial: Mapping[int, bytes] = field(default_factory=dict)
    reformed: Mapping[int, tuple[TypeForm, TypeForm]] = field(default_factory=dict)
    same_type: frozenset[int] = frozenset()
    declared: Conversions = field(default_factory=dict)

    def value_change(self, place: int) -> ValueChange:
        origin = self.origins[place]
        if origin is None and place in self.initial:
            return ValueChange.FILLED
        if origin is None:
            return ValueChange.UNSENT if place in self.unsent else ValueChange.NEW
        old, new = self.before[origin].type, self.after[place].type
        is_same = place in self.same_type and (old.arrow, old.storage) == (new.arrow, new.storage)
        if is_same or is_unchanged(old, new):
            return ValueChange.REFORMED if place in self.reformed else ValueChange.STAYS
        return ValueChange.WIDENED if widens(old, new) else ValueChange.CONVERTED

    @property
    def value_changes(self) -> list[ValueChange]:
        return [self.value_change(place) for place in range(len(self.after))]

    @property
    def is_certain(self) -> bool:
        """True if a cast gives every possible row the right values in the new types."""
        changes = enumerate(self.value_changes)
        converted = [i for i, change in changes if change is ValueChange.CONVERTED and i not in self.same_type]
        types = ((i, self.before[o].type, self.after[i].type) for i in converted if (o := self.origins[i]) is not None)
        return all(place in self.declared or is_certain(old, new) for place, old, new in types)

    @property
    def described(self) -> list[str]:
        """The columns whose types have changed only because the server's catalog now describes them."""
        converted = (ValueChange.WIDENED, ValueChange.CONVERTED)
        return [self.after[i].name for i in sorted(self.same_type) if self.value_change(i) in converted]

    @property
    def changes_nothing(self) -> bool:
        same_names = [column.name for column in self.before] == [column.name for column in self.after]
        same_places = self.origins == tuple(range(len(self.before)))
        return same_names and same_places and set(self.value_changes) <= {ValueChange.STAYS}

    def check_key(self) -> None:
        """Raises TableError if existing rows would have no key. Don't call it for an empty table."""
        for place in self.key:
            if self.origins[place] is None and place not in self.initial:
                raise TableError(
                    f"key column {self.after[place].name!r} is new, and its values in existing rows were never sent: "
                    "no archive has them. If it had another name, declare "
                    f"{declaration({self.after[place].name: 'former_name'})}",
                    ReasonKind.ON_SERVER,
                )


def migration_to(
    before: Sequence[TableColumn],
    after: TableShape,
    relation_lineage: Lineage,
    declared: Mapping[str, Sequence[ZoneConversion]] | None = None,
) -> SchemaMigration:
    """relation_lineage: of the relation's columns. Retired columns are matched by name. declared: in the configuration,
    by column. Raises TableError for a declaration that contradicts the column's types."""
    by_name = {column.name: place for place, column in enumerate(before)}
    retired = [by_name[column.name] for column in after.columns if column.retired]
    origins = (*relation_lineage.origins, *retired)
    new = (relation_lineage.unsent, relation_lineage.initial, relation_lineage.reformed, relation_lineage.same_type)
    migration = SchemaMigration(tuple(before), after.columns, after.key, origins, *new)
    return replace(migration, declared=_declared_in(migration, declared or {}))


def _declared_in(migration: SchemaMigration, declared: Mapping[str, Sequence[ZoneConversion]]) -> Conversions:
    """The declarations about columns that this migration converts."""
    found: dict[int, ZoneConversion] = {}
    for place, column in enumerate(migration.after):
        conversions, origin = declared.get(column.name), migration.origins[place]
        if not conversions or origin is None or place in migration.same_type:
            continue
        if migration.value_change(place) is not ValueChange.CONVERTED:
            continue
        old = migration.before[origin].type
        meant = [conversion for conversion in conversions if is_declared(old, column.type, conversion)]
        if not meant:
            before = " and ".join(conversion.before for conversion in conversions)
            raise TableError(
                f"the type of column {column.name!r} changed from {old.name} to {column.type.name}, and the "
                f"configuration declares converted_from: {before} with a time zone"
            )
        found[place] = meant[0]
    return found


def next_version(
    old: Relation, retired: Retired, new: Relation, declarations: Declarations, keeps_dropped: bool = False
) -> tuple[Lineage, Retired]:
    """The lineage of the new relation's columns, and the columns that are retired from now on."""
    relation_lineage = lineage(old, new, declarations, keeps_dropped)
    names = {column.name.lower() for column in new.columns}
    candidates = (*retired, *(old.columns[place] for place in relation_lineage.retired))
    # A new column replaces a retired one with its name.
    return relation_lineage, tuple(column for column in candidates if column.name.lower() not in names)


def converted(rows: pa.RecordBatch, migration: SchemaMigration) -> pa.RecordBatch:
    """Converts the columns c0… and `_unrep`; other columns stay unchanged."""
    unrepresentable: list[list[dict[str, Any]]] = [[] for _ in range(rows.num_rows)]
    entries = [{e["key"]: e["value"] for e in row or ()} for row in rows.column("_unrep").to_pylist()]
    columns: dict[str, pa.Array] = {}
    for place, column in enumerate(migration.after):
        origin = migration.origins[place]
        if origin is None:
            columns[f"c{place}"], text = _new_column(rows.num_rows, column, migration.initial.get(place))
            for row in unrepresentable if place in migration.unsent or text is not None else ():
                row.append({"key": column.name, "value": text})
            continue
        name = migration.before[origin].name
        old_texts = {i: entry[name] for i, entry in enumerate(entries) if name in entry}
        columns[f"c{place}"], texts = _column(rows.column(f"c{origin}"), old_texts, migration, place)
        for i, text in texts.items():
            unrepresentable[i].append({"key": column.name, "value": text})
    columns["_unrep"] = pa.array([row or None for row in unrepresentable], UNREPRESENTABLE)
    others = {name: rows.column(name) for name in rows.schema.names if name != "_unrep" and not _is_positional(name)}
    return pa.RecordBatch.from_pydict({**columns, **others})


def _new_column(count: int, column: TableColumn, initial: bytes | None) -> tuple[pa.Array, str | None]:
    """The values of older rows, all equal, and their text if the type can't represent them."""
    try:
        loaded = load_text(column.type, [initial])
    except ValueTextError as error:
        raise TableError(f"the value of new column {column.name!r} in older rows is not {error.expected}") from None
    return loaded.array.take(pa.array([0] * count, pa.int32())), loaded.unrepresentable.get(0)


def _is_positional(name: str) -> bool:
    return name[0] == "c" and name[1:].isdigit()


def _column(
    array: pa.Array, unrepresentable: dict[int, str | None], migration: SchemaMigration, place: int
) -> tuple[pa.Array, dict[int, str | None]]:
    """The converted column, and the text of unrepresentable values by row; None for values that were never sent."""
    origin = migration.origins[place]
    assert origin is not None
    old, new = migration.before[origin].type, migration.after[place].type
    match migration.value_change(place):
        case ValueChange.STAYS | ValueChange.NEW | ValueChange.UNSENT | ValueChange.FILLED:
            return array, unrepresentable
        case ValueChange.WIDENED:
            return array.cast(new.arrow), unrepresentable
        case ValueChange.REFORMED:
            return reformed(array, *migration.reformed[place]), unrepresentable
        case ValueChange.CONVERTED:
            texts = print_text(old, array)
            unknown = {i: text for i, text in unrepresentable.items() if text is None or kept_bytes(text) is not None}
            for i, text in unrepresentable.items():
                texts[i] = None if text is None or i in unknown else text.encode()
            loaded, uncertain = convert(old, new, texts, migration.declared.get(place), place in migration.same_type)
            if place in migration.key and (uncertain or unknown):
                raise ServerTableError(
                    f"the type of key column {migration.after[place].name!r} changed from {old.name} to {new.name}, "
                    "and the new form of its values is not certain"
                )
            return loaded.array, {**loaded.unrepresentable, **unknown}
