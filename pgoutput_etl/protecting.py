"""Tuples without what the configuration's `columns` keeps from being kept.

Where a file is scanned, before a row of it goes anywhere, tuples are written anew: without the columns that are
dropped, with the hash or the replacement of others as text. Everything behind the scan sees an archive of a server
whose tables are like that: `seen` says how a Relation message would describe them.

It takes the archive's Relation messages, before rows are read: which value is which column's, only they say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.changes import WITHHELD
from pgoutput_etl.column_uses import Use, UseKind
from pgoutput_etl.decode import read_tuple
from pgoutput_etl.message_rows import DAMAGE_TAG, MESSAGE_SCHEMA
from pgoutput_etl.messages import Relation, RelationColumn, TupleData
from pgoutput_etl.outcomes import UnitId
from pgoutput_etl.relations import RelationVersions
from pgoutput_etl.types import ColumnType, UserTypes, ValueTextError, column_type
from pgoutput_etl.types.canonical import canonical_texts

_TEXT = 25
_ROW_TAGS = ("I", "U", "D")
# What the configuration makes of these says nothing of how PostgreSQL prints them.
_SPELLED_ALIKE = ("json", "jsonb", "numeric")
_N, _U, _T, _B = b"nutb"


def seen_as(relation: Relation, uses: Mapping[str, Use]) -> Relation:
    """A relation as a server would describe it that had such columns."""
    columns = []
    for column in relation.columns:
        use = uses.get(column.name)
        if use is None:
            columns.append(column)
        elif use.kind is not UseKind.DROP:
            columns.append(RelationColumn(column.is_key, column.name, _TEXT, -1))
    return replace(relation, columns=tuple(columns))


@dataclass(frozen=True, slots=True)
class Withholding:
    """For a first look at files, which no Relation message was seen of: no tuple at all."""

    def rewritten(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        tag = batch.column("tag")
        return _without_damage(batch.filter(pc.invert(pc.is_in(tag, pa.array(_ROW_TAGS)))))


@dataclass(frozen=True, slots=True)
class ProtectedTable:
    """One relation's versions, as they were sent, and what is done to its columns."""

    versions: RelationVersions
    uses: Mapping[str, Use]
    why_not: str | None = None


@dataclass(frozen=True)
class Protection:
    """tables: by OID, those with columns that are not kept as they are. known: all that some Relation describes.
    scopes: of the units of streamed transactions.

    Goes to Spark's workers, and with it the salt.
    """

    tables: Mapping[int, ProtectedTable]
    known: frozenset[int]
    scopes: Mapping[UnitId, int]
    user_types: UserTypes = field(repr=False)

    def seen(self, relation: Relation) -> Relation:
        table = self.tables.get(relation.oid)
        return relation if table is None else seen_as(relation, table.uses)

    def done_to(self, oid: int) -> Mapping[str, str]:
        table = self.tables.get(oid)
        return {} if table is None else {name: str(use) for name, use in sorted(table.uses.items())}

    def why_not(self, oid: int) -> str | None:
        table = self.tables.get(oid)
        return None if table is None else table.why_not

    def rewritten(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Message rows with other tuples, in their order."""
        batch = _without_damage(batch)
        relation = batch.column("relation")
        others = pa.array(sorted(self.known - self.tables.keys()), pa.int64())
        is_row = pc.is_in(batch.column("tag"), pa.array(_ROW_TAGS))
        chosen = pc.and_(is_row, pc.invert(pc.is_in(relation, others)))
        places = pc.indices_nonzero(chosen)
        if not len(places):
            return batch
        rows = batch.select(["file", "ordinal", "unit", "relation", "old", "new"]).take(places).to_pydict()
        made = _Rewriting.of(len(places))
        for (oid, number), indices in self._by_version(rows).items():
            version = self._version(oid, number)
            for name, tuples in (("old", made.old), ("new", made.new)):
                here = [i for i in indices if rows[name][i] is not None]
                for i, data in zip(here, version.rewritten([rows[name][i] for i in here]), strict=True):
                    tuples[i] = data
        made.unchanged = [_unchanged(data) for data in made.new]
        return made.put_in(batch, places.to_pylist())

    def _by_version(self, rows: Mapping[str, list[Any]]) -> dict[tuple[int, int | None], list[int]]:
        found: dict[tuple[int, int | None], list[int]] = {}
        for i, oid in enumerate(rows["relation"]):
            table = self.tables.get(oid)
            number = None
            if table is not None:
                scope = self.scopes.get((rows["file"][i], rows["unit"][i]))
                number = table.versions.at((rows["file"][i], rows["ordinal"][i]), scope)
            found.setdefault((oid, number), []).append(i)
        return found

    def _version(self, oid: int, number: int | None) -> _Version:
        if number is None:
            return _Version((), {}, {})
        found = self._versions.get((oid, number))
        if found is None:
            table = self.tables[oid]
            columns = table.versions.relations[number].columns
            uses = {i: table.uses[c.name] for i, c in enumerate(columns) if c.name in table.uses}
            hashed = [i for i, use in uses.items() if use.kind is UseKind.HASH]
            types = {i: column_type(columns[i].type_oid, columns[i].type_modifier, self._types) for i in hashed}
            found = self._versions[oid, number] = _Version(columns, uses, types)
        return found

    @cached_property
    def _versions(self) -> dict[tuple[int, int], _Version]:
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


@dataclass(slots=True)
class _Rewriting:
    """What some rows of a batch have instead."""

    old: list[bytes | None]
    new: list[bytes | None]
    unchanged: list[list[int] | None]

    @classmethod
    def of(cls, rows: int) -> _Rewriting:
        return cls([None] * rows, [None] * rows, [None] * rows)

    def put_in(self, batch: pa.RecordBatch, places: Sequence[int]) -> pa.RecordBatch:
        chosen = list(range(batch.num_rows))
        for n, place in enumerate(places):
            chosen[place] = batch.num_rows + n
        take = pa.array(chosen, pa.int64())
        for name in ("old", "new", "unchanged"):
            made = pa.array(getattr(self, name), MESSAGE_SCHEMA.field(name).type)
            column = pa.concat_arrays([batch.column(name), made]).take(take)
            batch = batch.set_column(batch.schema.get_field_index(name), name, column)
        return batch


@dataclass(frozen=True, slots=True)
class _Version:
    """A relation's columns as tuples have them, by their places what is done to some, and of hashed ones the types."""

    columns: tuple[RelationColumn, ...]
    uses: Mapping[int, Use]
    types: Mapping[int, ColumnType]

    def rewritten(self, tuples: Sequence[bytes]) -> list[bytes]:
        """One that has other columns, or a value that can't be hashed, is withheld."""
        if not self.columns:
            return [_withheld("no Relation message describes it")] * len(tuples)
        parsed = [read_tuple(data) for data in tuples]
        width = len(self.columns)
        odd = {i: _width_error(data, width) for i, data in enumerate(parsed) if len(data.kinds) != width}
        fine = [i for i in range(len(parsed)) if i not in odd]
        hashed: dict[int, dict[int, bytes]] = {}
        for place, of in self.types.items():
            use, name = self.uses[place], self.columns[place].name
            texts, faults = _texts(of, {i: parsed[i] for i in fine}, place)
            odd |= {i: f"column {name!r}, which is to be hashed: {why}" for i, why in faults.items()}
            assert use.salt is not None
            hashed[place] = {i: use.salt.hashed(text) for i, text in texts.items()}
        return [
            _withheld(odd[i]) if i in odd else self._made_anew(data, {p: found.get(i) for p, found in hashed.items()})
            for i, data in enumerate(parsed)
        ]

    def _made_anew(self, data: TupleData, hashes: Mapping[int, bytes | None]) -> bytes:
        kinds, values = bytearray(), []
        for place, (kind, value) in enumerate(zip(data.kinds, data.values, strict=True)):
            use = self.uses.get(place)
            if use is None:
                kinds.append(kind)
                values.append(value)
            elif use.kind is UseKind.HASH:
                kinds.append(_T if kind in (_T, _B) else kind)
                values.append(hashes[place])
            elif use.kind is UseKind.REDACT:
                # TOAST that is unchanged is no NULL, and says as much as any value.
                kinds.append(_N if kind == _N else _T)
                values.append(None if kind == _N else use.text.encode())
        return TupleData(bytes(kinds), tuple(values)).to_bytes()


def _width_error(data: TupleData, width: int) -> str:
    return f"a tuple of {len(data.kinds)} columns where Relation describes {width}"


def _withheld(why: str) -> bytes:
    return WITHHELD + why.encode()


def _texts(of: ColumnType, tuples: Mapping[int, TupleData], place: int) -> tuple[dict[int, bytes], dict[int, str]]:
    """PostgreSQL's text of a column's values, by tuple, and why of those that have none."""
    texts: dict[int, bytes] = {}
    faults: dict[int, str] = {}
    for form in (_T, _B):
        which = [i for i, data in tuples.items() if data.kinds[place] == form]
        for part in _parts(which):
            values = [tuples[i].values[place] for i in part]
            found = _printed(of, values, form == _B)
            if found is None:
                for i, value in zip(part, values, strict=True):
                    _one(of, i, value, form == _B, texts, faults)
            else:
                texts |= {i: text for i, text in zip(part, found, strict=True) if text is not None}
    return texts, faults


_AT_ONCE = 4096


def _parts(which: Sequence[int]) -> Iterable[Sequence[int]]:
    return (which[begin : begin + _AT_ONCE] for begin in range(0, len(which), _AT_ONCE))


def _printed(of: ColumnType, values: Sequence[bytes | None], binary: bool) -> list[bytes | None] | None:
    """None if one of them is none of the type's, or they are too many."""
    try:
        return canonical_texts(of, values, binary)
    except (ValueTextError, OverflowError):
        return None


def _one(
    of: ColumnType, i: int, value: bytes | None, binary: bool, texts: dict[int, bytes], faults: dict[int, str]
) -> None:
    try:
        [text] = canonical_texts(of, [value], binary)
    except ValueTextError as error:
        faults[i] = f"expected {error.expected}"
    except OverflowError:
        faults[i] = "expected a value of fewer bytes"
    else:
        texts[i] = text or b""


def _unchanged(data: bytes | None) -> list[int] | None:
    if data is None or data.startswith(WITHHELD):
        return None
    return [i for i, kind in enumerate(read_tuple(data).kinds) if kind == _U] or None


def _without_damage(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Bytes that can't be read may hold any value."""
    is_damage = pc.equal(batch.column("tag"), DAMAGE_TAG)
    if not pc.any(is_damage).as_py():
        return batch
    body = pc.if_else(is_damage, pa.scalar(None, pa.binary()), batch.column("body"))
    return batch.set_column(batch.schema.get_field_index("body"), "body", body)
