"""Masks message rows: applies the configuration's `columns` to tuples.

Tuples are masked where a file is scanned (mask_tuples.py), before a row leaves the scan. To later stages, the archive
seems to come from a server whose tables have the masked columns; `masked_relation` is how that server would describe
them.

The archive's Relation messages must be read first, because only they assign values to columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.config.column_rules import ColumnAction, ColumnRule
from pgoutput_etl.masking.mask_tuples import MaskedVersion, unchanged_in
from pgoutput_etl.protocol.messages import Relation, RelationColumn, TypeForm
from pgoutput_etl.scan.message_row import DAMAGE_TAG, MESSAGE_SCHEMA
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.version_spans import NO_SCOPE, UNDESCRIBED, numbers_in_force
from pgoutput_etl.transactions.outcome import FragmentId
from pgoutput_etl.types import UserTypes, type_of
from pgoutput_etl.types.kernels.dispatch import Numbers

_TEXT = 25

_ROW_TAGS = ("I", "U", "D")

# The configured target type of these types does not affect how PostgreSQL prints their values.
_SPELLED_ALIKE = ("json", "jsonb", "numeric")


def masked_relation(relation: Relation, rules: Mapping[str, ColumnRule]) -> Relation:
    """The relation as described by a server whose table had the masked columns."""
    columns = []
    for column in relation.columns:
        rule = rules.get(column.name)
        if rule is None:
            columns.append(column)
        elif rule.action is not ColumnAction.DROP:
            columns.append(
                RelationColumn(column.is_key, column.name, _TEXT, -1, column.number, _masked_form(column, rule))
            )
    shown = {c.number for c in relation.columns if c.name not in rules or rules[c.name].action is ColumnAction.HASH}
    mark = relation.catalog
    if mark is not None:
        mark = replace(mark, keys=tuple(key for key in mark.keys if shown.issuperset(key)))
    return replace(relation, columns=tuple(columns), catalog=mark)


def _masked_form(column: RelationColumn, rule: ColumnRule) -> TypeForm | None:
    """An opaque form for hashes, which can't follow their values into another form; None for other columns."""
    is_followed = column.form is None or rule.action is ColumnAction.REDACT
    return None if is_followed else TypeForm(nested=sha256(repr(column.form).encode()).hexdigest())


def withhold_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Removes all rows with tuples, for the first scan of files whose Relation messages are not known yet."""
    tag = batch.column("tag")
    return _without_damage(batch.filter(pc.invert(pc.is_in(tag, pa.array(_ROW_TAGS)))))


@dataclass(frozen=True, slots=True)
class MaskedTable:
    """One relation's unmasked versions, and the rules of its columns."""

    versions: RelationVersions
    rules: Mapping[str, ColumnRule]
    reason_unmaskable: str | None = None


@dataclass(frozen=True)
class MaskingPolicy:
    """tables: tables with masks, by OID. known: all relations that have a Relation message. scopes: scope of each
    fragment of a streamed transaction. Sent to Spark's workers, including the salt."""

    tables: Mapping[int, MaskedTable]
    known: frozenset[int]
    scopes: Mapping[FragmentId, int]
    user_types: UserTypes = field(repr=False)
    _versions: dict[tuple[int, int], MaskedVersion] = field(default_factory=dict, repr=False, compare=False)

    def masked(self, relation: Relation) -> Relation:
        table = self.tables.get(relation.oid)
        return relation if table is None else masked_relation(relation, table.rules)

    def masks_of(self, oid: int) -> Mapping[str, str]:
        table = self.tables.get(oid)
        return {} if table is None else {name: str(rule) for name, rule in sorted(table.rules.items())}

    def reason_unmaskable(self, oid: int) -> str | None:
        table = self.tables.get(oid)
        return None if table is None else table.reason_unmaskable

    def of_relation(self, relation: Relation) -> MaskedVersion:
        """The masks for tuples of a relation that don't come from a file."""
        table = self.tables.get(relation.oid)
        return self._masked_version(relation.columns, {} if table is None else table.rules)

    def mask(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The message rows, with masked tuples."""
        batch = _without_damage(batch)
        others = pa.array(sorted(self.known - self.tables.keys()), pa.int64())
        is_row = pc.is_in(batch.column("tag"), pa.array(_ROW_TAGS))
        places = pc.indices_nonzero(pc.and_(is_row, pc.invert(pc.is_in(batch.column("relation"), others))))
        if not len(places):
            return batch
        rows = batch.select(["file", "ordinal", "unit", "relation", "old", "new", "unchanged"]).take(places)
        at: list[Numbers] = []
        masked: dict[str, list[pa.Array]] = {"old": [], "new": [], "unchanged": []}
        for version, indices in self._by_version(rows):
            version_rows = rows.take(pa.array(indices))
            at.append(places.to_numpy()[indices])
            for name in ("old", "new"):
                masked[name].append(version.mask(version_rows.column(name)))
            unchanged = unchanged_in(masked["new"][-1], version_rows.column("unchanged").is_valid())
            masked["unchanged"].append(pa.array(unchanged, MESSAGE_SCHEMA.field("unchanged").type))
        return _replaced(batch, np.concatenate(at), {name: pa.concat_arrays(parts) for name, parts in masked.items()})

    def _by_version(self, rows: pa.RecordBatch) -> Iterator[tuple[MaskedVersion, Numbers]]:
        """The indices of rows, grouped by the version of their relation."""
        relation = rows.column("relation").to_numpy()
        for oid in np.unique(relation).tolist():
            indices = np.flatnonzero(relation == oid)
            numbers = self._numbers(oid, rows.take(pa.array(indices)))
            for number in np.unique(numbers).tolist():
                yield self._version(oid, number), indices[numbers == number]

    def _numbers(self, oid: int, rows: pa.RecordBatch) -> Numbers:
        table = self.tables.get(oid)
        if table is None:
            return np.full(rows.num_rows, UNDESCRIBED, np.int64)
        files, fragments, ordinals = (rows.column(name).to_numpy() for name in ("file", "unit", "ordinal"))
        scopes = np.full(rows.num_rows, NO_SCOPE, np.int64)
        if self.scopes:
            for file, fragment in set(zip(files.tolist(), fragments.tolist(), strict=True)):
                scope = self.scopes.get((file, fragment))
                if scope is not None and scope in table.versions.holds_from:
                    scopes[(files == file) & (fragments == fragment)] = scope
        return numbers_in_force(files, ordinals, scopes, table.versions.holds_from)

    def _version(self, oid: int, number: int) -> MaskedVersion:
        if number == UNDESCRIBED:
            return MaskedVersion((), {}, {})
        if (oid, number) not in self._versions:
            table = self.tables[oid]
            columns = table.versions.relations[number].columns
            self._versions[oid, number] = self._masked_version(columns, table.rules)
        return self._versions[oid, number]

    def _masked_version(self, columns: tuple[RelationColumn, ...], by_name: Mapping[str, ColumnRule]) -> MaskedVersion:
        rules = {i: by_name[c.name] for i, c in enumerate(columns) if c.name in by_name}
        hashed = [i for i, rule in rules.items() if rule.action is ColumnAction.HASH]
        types = {i: type_of(columns[i], self._types) for i in hashed}
        return MaskedVersion(columns, rules, types)

    @cached_property
    def _types(self) -> UserTypes:
        return spelled_alike(self.user_types)


def spelled_alike(types: UserTypes) -> UserTypes:
    """The types, changed to print values as PostgreSQL does, regardless of the configured target types, and to accept
    text with any bytes."""
    configured = {name: target for name, target in types.configured.items() if name not in _SPELLED_ALIKE}
    return replace(types, configured=configured, keeps_bytes=True)


def _replaced(batch: pa.RecordBatch, places: Numbers, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """The batch with other values in some columns of the rows at `places`."""
    chosen = np.arange(batch.num_rows)
    chosen[places] = batch.num_rows + np.arange(len(places))
    for name, array in columns.items():
        column = pa.concat_arrays([batch.column(name), array]).take(pa.array(chosen))
        batch = batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), column)
    return batch


def _without_damage(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Removes unreadable bytes, which may contain any value."""
    is_damage = pc.equal(batch.column("tag"), DAMAGE_TAG)
    if not pc.any(is_damage).as_py():
        return batch
    body = pc.if_else(is_damage, pa.scalar(None, pa.binary()), batch.column("body"))
    return batch.set_column(batch.schema.get_field_index("body"), batch.schema.field("body"), body)
