"""Message rows without what the configuration's `columns` keeps from being kept.

Where a file is scanned, before a row of it goes anywhere, tuples are written anew (rewriting.py). Everything behind the
scan sees an archive of a server whose tables have such columns: `seen` says how a Relation message would describe them.

It takes the archive's Relation messages, before rows are read: which value is which column's, only they say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.config.column_rules import ColumnAction, ColumnRule
from pgoutput_etl.masking.mask_tuples import MaskedVersion, unchanged_in
from pgoutput_etl.protocol.messages import Relation, RelationColumn
from pgoutput_etl.scan.message_row import DAMAGE_TAG, MESSAGE_SCHEMA
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.version_spans import UNDESCRIBED, numbers_at
from pgoutput_etl.transactions.outcome import FragmentId
from pgoutput_etl.types import UserTypes, column_type
from pgoutput_etl.types.kernels.dispatch import Numbers

_TEXT = 25

_ROW_TAGS = ("I", "U", "D")

# What the configuration makes of these says nothing of how PostgreSQL prints them.
_SPELLED_ALIKE = ("json", "jsonb", "numeric")


def masked_relation(relation: Relation, uses: Mapping[str, ColumnRule]) -> Relation:
    """A relation as a server would describe it that had such columns."""
    columns = []
    for column in relation.columns:
        use = uses.get(column.name)
        if use is None:
            columns.append(column)
        elif use.action is not ColumnAction.DROP:
            columns.append(RelationColumn(column.is_key, column.name, _TEXT, -1))
    return replace(relation, columns=tuple(columns))


@dataclass(frozen=True, slots=True)
class WithholdRows:
    """For a first look at files, which no Relation message was seen of: no tuple at all."""

    def mask(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        tag = batch.column("tag")
        return _without_damage(batch.filter(pc.invert(pc.is_in(tag, pa.array(_ROW_TAGS)))))


@dataclass(frozen=True, slots=True)
class MaskedTable:
    """One relation's versions, as they were sent, and what is done to its columns."""

    versions: RelationVersions
    rules: Mapping[str, ColumnRule]
    reason_unmaskable: str | None = None


@dataclass(frozen=True)
class MaskingPolicy:
    """tables: by OID, those with columns that are not kept as they are. known: all that some Relation describes.
    scopes: of the units of streamed transactions.

    Goes to Spark's workers, and with it the salt.
    """

    tables: Mapping[int, MaskedTable]
    known: frozenset[int]
    scopes: Mapping[FragmentId, int]
    user_types: UserTypes = field(repr=False)

    def masked(self, relation: Relation) -> Relation:
        table = self.tables.get(relation.oid)
        return relation if table is None else masked_relation(relation, table.rules)

    def masks_of(self, oid: int) -> Mapping[str, str]:
        table = self.tables.get(oid)
        return {} if table is None else {name: str(use) for name, use in sorted(table.rules.items())}

    def reason_unmaskable(self, oid: int) -> str | None:
        table = self.tables.get(oid)
        return None if table is None else table.reason_unmaskable

    def of_relation(self, relation: Relation) -> MaskedVersion:
        """How tuples of a relation are written anew that don't come from a file."""
        table = self.tables.get(relation.oid)
        return self._described(relation.columns, {} if table is None else table.rules)

    def mask(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Message rows with other tuples, in their order."""
        batch = _without_damage(batch)
        others = pa.array(sorted(self.known - self.tables.keys()), pa.int64())
        is_row = pc.is_in(batch.column("tag"), pa.array(_ROW_TAGS))
        places = pc.indices_nonzero(pc.and_(is_row, pc.invert(pc.is_in(batch.column("relation"), others))))
        if not len(places):
            return batch
        rows = batch.select(["file", "ordinal", "unit", "relation", "old", "new", "unchanged"]).take(places)
        at: list[Numbers] = []
        made: dict[str, list[pa.Array]] = {"old": [], "new": [], "unchanged": []}
        for version, which in self._by_version(rows):
            of_version = rows.take(pa.array(which))
            at.append(places.to_numpy()[which])
            for name in ("old", "new"):
                made[name].append(version.mask(of_version.column(name)))
            unchanged = unchanged_in(made["new"][-1], of_version.column("unchanged").is_valid())
            made["unchanged"].append(pa.array(unchanged, MESSAGE_SCHEMA.field("unchanged").type))
        return _put_in(batch, np.concatenate(at), {name: pa.concat_arrays(parts) for name, parts in made.items()})

    def _by_version(self, rows: pa.RecordBatch) -> Iterator[tuple[MaskedVersion, Numbers]]:
        """The rows' places, by the version of their relation that they stand under."""
        relation = rows.column("relation").to_numpy()
        for oid in np.unique(relation).tolist():
            of_relation = np.flatnonzero(relation == oid)
            numbers = self._numbers(oid, rows.take(pa.array(of_relation)))
            for number in np.unique(numbers).tolist():
                yield self._version(oid, number), of_relation[numbers == number]

    def _numbers(self, oid: int, rows: pa.RecordBatch) -> Numbers:
        table = self.tables.get(oid)
        if table is None:
            return np.full(rows.num_rows, UNDESCRIBED, np.int64)
        files, ordinals = rows.column("file").to_numpy(), rows.column("ordinal").to_numpy()
        numbers = numbers_at(table.versions.holds_from, files, ordinals, None)
        if self.scopes:
            fragments = rows.column("unit").to_numpy()
            for file, fragment in set(zip(files.tolist(), fragments.tolist(), strict=True)):
                scope = self.scopes.get((file, fragment))
                if scope in table.versions.holds_from and scope is not None:
                    here = np.flatnonzero((files == file) & (fragments == fragment))
                    own = numbers_at(table.versions.holds_from, files[here], ordinals[here], scope)
                    numbers[here] = np.where(own >= 0, own, numbers[here])
        return numbers

    def _version(self, oid: int, number: int) -> MaskedVersion:
        if number == UNDESCRIBED:
            return MaskedVersion((), {}, {})
        found = self._versions.get((oid, number))
        if found is None:
            table = self.tables[oid]
            found = self._described(table.versions.relations[number].columns, table.rules)
            self._versions[oid, number] = found
        return found

    def _described(self, columns: tuple[RelationColumn, ...], of_table: Mapping[str, ColumnRule]) -> MaskedVersion:
        uses = {i: of_table[c.name] for i, c in enumerate(columns) if c.name in of_table}
        hashed = [i for i, use in uses.items() if use.action is ColumnAction.HASH]
        types = {i: column_type(columns[i].type_oid, columns[i].type_modifier, self._types) for i in hashed}
        return MaskedVersion(columns, uses, types)

    @cached_property
    def _versions(self) -> dict[tuple[int, int], MaskedVersion]:
        return {}

    @cached_property
    def _types(self) -> UserTypes:
        return spelled_alike(self.user_types)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("tables", "known", "scopes", "user_types")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)


def spelled_alike(types: UserTypes) -> UserTypes:
    """Types by which values are printed as PostgreSQL does, whatever the target makes of them."""
    kept = {name: what for name, what in types.configured.items() if name not in _SPELLED_ALIKE}
    return replace(types, configured=kept)


def _put_in(batch: pa.RecordBatch, places: Sequence[int] | Numbers, made: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """A batch with other columns in some of its rows."""
    chosen = np.arange(batch.num_rows)
    chosen[places] = batch.num_rows + np.arange(len(places))
    take = pa.array(chosen)
    for name, arrays in made.items():
        column = pa.concat_arrays([batch.column(name), arrays]).take(take)
        batch = batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), column)
    return batch


def _without_damage(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Bytes that can't be read may hold any value."""
    is_damage = pc.equal(batch.column("tag"), DAMAGE_TAG)
    if not pc.any(is_damage).as_py():
        return batch
    body = pc.if_else(is_damage, pa.scalar(None, pa.binary()), batch.column("body"))
    return batch.set_column(batch.schema.get_field_index("body"), batch.schema.field("body"), body)
