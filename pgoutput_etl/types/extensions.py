"""Extension types, known by name: hstore, citext, pgvector's vector, and PostGIS's geometries.

hstore       a map of strings, in PostgreSQL's order: shortest keys first
vector       a list of float4
citext       its text
geometry, geography
                          EWKB, byte for byte as PostGIS sends it. It includes the SRID, if any, which WKB can't. For a
                          two-dimensional geometry without an SRID, EWKB and WKB are identical.
"""

from __future__ import annotations

import binascii
import re
import struct
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.types import numbers
from pgoutput_etl.types.arrays import load_lists, quoted, unescaped
from pgoutput_etl.types.binary import ValueReader
from pgoutput_etl.types.column import ColumnType, LoadedColumn, RefusedError, Storage, binary_array, convert_each
from pgoutput_etl.types.shortest_float import shortest_float4
from pgoutput_etl.types.strings import text_type

MAP_ENTRIES = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))

_STRING = rb'"([^"\\]*(?:\\.[^"\\]*)*)"'

_PAIR = _STRING + rb"=>(?:NULL|" + _STRING + rb")"

_PAIRS = re.compile(rb"(?:%b(?:, %b)*)?" % (_PAIR, _PAIR), re.DOTALL)

_ONE_PAIR = re.compile(rb"(?:, )?" + _STRING + rb"=>(?:(NULL)|" + _STRING + rb")", re.DOTALL)

# EWKB begins with a byte order and a type; PostGIS has 17 types.
_EWKB_HEAD, _EWKB_KINDS = 5, 17

_FLOAT4 = numbers.TYPES[700](-1)

_Pairs = list[tuple[bytes, bytes | None]]


def load_hstore(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    return LoadedColumn(pa.array(convert_each(column_type, values, _pairs), column_type.arrow), {})


def _pairs(text: bytes) -> list[tuple[str, str | None]]:
    if not _PAIRS.fullmatch(text):
        raise RefusedError('pairs as hstore prints them ("key"=>"value", "key"=>NULL)')
    pairs = [(unescaped(key), None if null else unescaped(value)) for key, null, value in _ONE_PAIR.findall(text)]
    try:
        return [(key.decode(), None if value is None else value.decode()) for key, value in _sorted(pairs)]
    except UnicodeDecodeError:
        raise RefusedError("valid UTF-8") from None


def _sorted(pairs: _Pairs) -> _Pairs:
    """The pairs in hstore's order. hstore_out already prints them in this order, except for values from an old
    pg_upgrade."""
    ordered = sorted(pairs, key=lambda pair: (len(pair[0]), pair[0]))
    if len({key for key, _value in ordered}) < len(ordered):
        raise RefusedError("pairs with distinct keys")
    return ordered


def hstore_text(value: bytes) -> bytes:
    """hstore_send: int32 number of pairs; per pair int32 length and key, int32 length (-1: NULL) and value."""
    reader = ValueReader(value, "pairs as hstore_send writes them")
    pairs = [(reader.required(), reader.sized()) for _ in range(reader.count(8))]
    reader.end()
    return _print_pairs(_sorted(pairs))


def _print_pairs(pairs: _Pairs) -> bytes:
    return b", ".join(quoted(key) + b"=>" + (b"NULL" if v is None else quoted(v)) for key, v in pairs)


def printed_hstore(entries: Sequence[Mapping[str, str | None]]) -> bytes:
    pairs = [(str(entry["key"]).encode(), entry["value"]) for entry in entries]
    return _print_pairs([(key, None if value is None else value.encode()) for key, value in pairs])


def printed_vector(numbers: Sequence[float]) -> bytes:
    return b"[" + b",".join(shortest_float4(number).encode() for number in numbers) + b"]"


def load_vector(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    return load_lists(column_type, values, _vector_elements)


def _vector_elements(text: bytes) -> list[bytes | None]:
    if text[:1] != b"[" or text[-1:] != b"]" or len(text) < 3:
        raise RefusedError("a vector in the form [1,2,3]")
    return [*text[1:-1].split(b",")]


def vector_text(value: bytes) -> bytes:
    """vector_send: int16 number of dimensions, int16 0, and the float4s."""
    reader = ValueReader(value, "a vector as vector_send writes it")
    dimensions, unused = reader.uint16(), reader.uint16()
    if not dimensions or unused:
        raise reader.refusal()
    numbers = [_FLOAT4.binary_text(reader.take(4)) for _ in range(dimensions)]
    reader.end()
    return b"[" + b",".join(numbers) + b"]"


def fast_vector(values: pa.Array, arrow: pa.ListType) -> pa.Array:
    vectors: list[tuple[float, ...] | None] = []
    for value in values.to_pylist():
        size = len(value or b"") // 4 - 1
        plain = value is not None and size > 0 and value[:4] == struct.pack(">HH", size, 0) and not len(value) % 4
        vectors.append(struct.unpack_from(f">{size}f", value, 4) if plain else None)
    return pa.array(vectors, arrow)


def load_geometry(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    return LoadedColumn(binary_array(convert_each(column_type, values, _from_hex)), {})


def _from_hex(text: bytes) -> bytes:
    try:
        value = binascii.unhexlify(text)
    except binascii.Error:
        raise RefusedError("EWKB in pairs of hexadecimal digits") from None
    return _checked(value)


def _checked(value: bytes) -> bytes:
    if not _begins_geometry(value[:_EWKB_HEAD]):
        raise RefusedError("EWKB, with a byte order and a geometry's type at its beginning")
    return value


def _begins_geometry(head: bytes) -> bool:
    """True for a byte order followed by a geometry's type, ignoring the flags for Z, M, and SRID."""
    if len(head) < _EWKB_HEAD or head[0] > 1:
        return False
    kind = int.from_bytes(head[1:], "little" if head[0] else "big")
    return 0 < kind & 0x1FFFFFFF <= _EWKB_KINDS


def geometry_text(value: bytes) -> bytes:
    return printed_geometry(_checked(value))


def printed_geometry(value: bytes) -> bytes:
    return value.hex().upper().encode()


def fast_geometry(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    heads = pc.binary_slice(values, 0, _EWKB_HEAD).dictionary_encode()
    begins = pa.array(map(_begins_geometry, heads.dictionary.to_pylist()), pa.bool_()).take(heads.indices)
    return pc.if_else(begins, values, pa.scalar(None, arrow))


def hstore_type(name: str) -> ColumnType:
    return ColumnType(name, MAP_ENTRIES, False, load_hstore, hstore_text, storage=Storage.MAP, printer=printed_hstore)


def vector_type(name: str) -> ColumnType:
    arrow = pa.list_(pa.float32())
    # to the float4 loader, unrepresentable elements are possible, although pgvector's are always finite
    return ColumnType(name, arrow, True, load_vector, vector_text, fast_vector, element=_FLOAT4, printer=printed_vector)


def geometry_type(name: str) -> ColumnType:
    loaders = (load_geometry, geometry_text, fast_geometry)
    return ColumnType(name, pa.binary(), False, *loaders, delimiter=b":", printer=printed_geometry)


BY_NAME: Mapping[str, Callable[[str], ColumnType]] = {
    "hstore": hstore_type,
    "vector": vector_type,
    "citext": text_type,
    "geometry": geometry_type,
    "geography": geometry_type,
}
