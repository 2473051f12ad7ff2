"""The changes that a command made to a table's definition, from its catalog Message, for people to read.

The changes of a target (diff.py) follow committed rows instead, and omit those without an effect on a target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from pgoutput_etl.protocol.catalog_message import SEND_CATALOG, TABLE
from pgoutput_etl.protocol.messages import RelationColumn, TypeForm
from pgoutput_etl.schema.definitions import Definition, DefinitionEntry
from pgoutput_etl.schema.diff import ChangeKind, SchemaChange
from pgoutput_etl.types import UserTypes, type_of

_CREATES = ("CREATE ", "SELECT INTO", "IMPORT ")


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """value: a default, a label, or a comment; like a cell value, it is only shown on request."""

    change: SchemaChange
    value: str | None = None

    def text(self, shows_values: bool) -> str:
        return f"{self.change} = {self.value!r}" if shows_values and self.value is not None else str(self.change)


def changed_definitions(
    entries: Sequence[DefinitionEntry], types: UserTypes
) -> Iterator[tuple[DefinitionEntry, list[DefinitionChange]]]:
    """The entries that change something, each with its changes."""
    names = {entry.definition.oid: entry.definition.full_name for entry in entries}
    for entry in entries:
        if changes := _changes(entry, types, names):
            yield entry, changes


def _changes(entry: DefinitionEntry, types: UserTypes, names: Mapping[int, str]) -> list[DefinitionChange]:
    """The changes; none for the first definition that send_catalog() sends. names: of tables, by OID."""
    before, after = entry.before, entry.definition
    if after.is_dropped:
        return [_change(ChangeKind.TABLE_DROPPED)]
    if before is None or not before.columns:
        return [] if entry.command == SEND_CATALOG else [_first(entry, types)]
    if not after.columns:
        return [_change(ChangeKind.UNKNOWN)]
    return [
        *_of_table(before, after, names),
        *_of_columns(before.columns, after.columns, types),
        *_comments(before, after),
    ]


def _change(kind: ChangeKind, column: str = "", detail: str = "", value: str | None = None) -> DefinitionChange:
    return DefinitionChange(SchemaChange(kind, column, detail), value)


def _first(entry: DefinitionEntry, types: UserTypes) -> DefinitionChange:
    is_new = entry.before is None and entry.command.startswith(_CREATES)
    columns = ", ".join(f"{c.name} {type_of(c, types).name}" for c in entry.definition.columns)
    return _change(ChangeKind.TABLE_CREATED if is_new else ChangeKind.TABLE_DESCRIBED, "", columns)


def _of_table(before: Definition, after: Definition, names: Mapping[int, str]) -> Iterator[DefinitionChange]:
    if before.full_name != after.full_name:
        yield _change(ChangeKind.TABLE_RENAMED, "", f"was {before.full_name}")
    if before.mark.rewrites != after.mark.rewrites or TABLE in after.mark.computed:
        yield _change(ChangeKind.REWRITTEN)
    if before.mark.casts != after.mark.casts:
        yield _change(ChangeKind.CAST)
    new, gone = (set(after.partitions) - set(before.partitions), set(before.partitions) - set(after.partitions))
    if new or gone:
        parts = (*_named("new", new, names), *_named("gone", gone, names))
        yield _change(ChangeKind.PARTITIONS, "", "; ".join(parts))


def _named(what: str, oids: Iterable[int], names: Mapping[int, str]) -> list[str]:
    listed = ", ".join(names.get(oid, f"OID {oid}") for oid in sorted(oids))
    return [f"{what}: {listed}"] if listed else []


def _of_columns(
    before: tuple[RelationColumn, ...], after: tuple[RelationColumn, ...], types: UserTypes
) -> Iterator[DefinitionChange]:
    older = {column.number: column for column in before}
    left = {column.number for column in after}
    yield from (_change(ChangeKind.DROPPED, column.name) for column in before if column.number not in left)
    for column in after:
        old = older.get(column.number)
        if old is None:
            yield _change(ChangeKind.ADDED, column.name, type_of(column, types).name)
        elif old.name != column.name:
            yield _change(ChangeKind.RENAMED, column.name, f"was {old.name}")
        if old is not None and old.full_type != column.full_type:
            yield _change(
                ChangeKind.RETYPED, column.name, f"{type_of(old, types).name} to {type_of(column, types).name}"
            )
        elif old is not None and old.form != column.form:
            yield _change(ChangeKind.TYPE_CHANGED, column.name, *_form_changes(old.form, column.form))
        if column.initial is not None and (old is None or old.initial is None):
            yield _change(ChangeKind.DEFAULT, column.name, "", column.initial.decode())


def _comments(before: Definition, after: Definition) -> Iterator[DefinitionChange]:
    columns, old = {column.number: column.name for column in after.columns}, dict(before.comments)
    for number, text in after.comments:
        if old.get(number, "") != text:
            yield _change(ChangeKind.COMMENT, columns.get(number, ""), "", text)


def _form_changes(before: TypeForm | None, after: TypeForm | None) -> tuple[str, str | None]:
    """The names of the parts that differ, as text, and the renamed labels of an enum, if any."""
    old, new = before or TypeForm(), after or TypeForm()
    parts = [part.name for part in fields(TypeForm) if getattr(old, part.name) != getattr(new, part.name)]
    was = dict(old.labels)
    labels = [f"{was[oid]} to {label}" if oid in was else label for oid, label in new.labels if was.get(oid) != label]
    return ", ".join(parts), ", ".join(labels) or None
