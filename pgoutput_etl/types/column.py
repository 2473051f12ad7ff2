"""What the families of types share: a column's type, a loaded column, and the ways from text and binary to Arrow.

A column of a million values is cast by Arrow in one go (the fast way). Arrow's casts alone are no judge of
what PostgreSQL prints: they take ``0x1F`` for 31 and ``+1`` for 1, turn ``1e400`` into infinity, and fail as
a whole on one ``infinity`` among a million dates. So the fast way takes only texts of the type's plain form,
and leaves the odd ones NULL; each odd one then goes the careful way, a few lines of Python that return its
value, or None if the Arrow type has none for it, or refuse it.

A value in binary form has two ways, too: the fast one for whole columns, where a family has one, and for the rest
the detour over PostgreSQL's own text for it, so that both forms can't but give the same value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc


class ValueTextError(ValueError):
    """A value's text is not what PostgreSQL prints for its type, so it can't be read without guessing.

    The message says where and what was expected; it never contains the value, which may be nobody's business.
    """

    def __init__(self, index: int, type_name: str, expected: str) -> None:
        super().__init__(index, type_name, expected)
        self.index = index
        self.type_name = type_name
        self.expected = expected

    def __str__(self) -> str:
        return f"value {self.index} of a column of type {self.type_name} is not {self.expected}"


@dataclass(frozen=True, slots=True)
class LoadedColumn:
    """As many values as were given, in their order."""

    array: pa.Array
    unrepresentable: Mapping[int, str]  # index in the input -> PostgreSQL's text; array is NULL there


TextLoader: TypeAlias = "Callable[[ColumnType, Sequence[bytes | None]], LoadedColumn]"

# One value as the type's send function writes it -> what its output function prints; or raises RefusedError.
BinaryText: TypeAlias = Callable[[bytes], bytes]

# A value's text -> its text with TimeZone UTC; or raises RefusedError.
InUtc: TypeAlias = Callable[[bytes], bytes]

# A column of values as the send function writes them; NULL wherever one is left to the detour over its text.
FastBinary: TypeAlias = Callable[[pa.Array, pa.DataType], pa.Array]

# A value that a target holds, as Arrow gives it to Python -> what the type's output function prints.
Prints: TypeAlias = Callable[[Any], bytes]


class Storage(Enum):
    """What the Delta column is, where that is something else than the Arrow type that events carry."""

    PLAIN = "plain"  # the Arrow type's own
    MAP = "map"  # MAP<STRING,STRING>; Arrow: list<struct<key, value>>, which Spark can compare
    VARIANT = "variant"  # Arrow: string


class RefusedError(Exception):
    """The careful way's word for: not PostgreSQL's text, or binary form, of this type. Becomes a ValueTextError."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected


# Of what is printed for values in binary form, of one value and of one column at a time: a numeric of 10 bytes may be
# printed with 131,072 digits.
MAX_TEXT = 2**28


def bounded(texts: Iterable[bytes]) -> Iterator[bytes]:
    """The texts that one value's is made of. RefusedError once there is more of them than MAX_TEXT."""
    size = 0
    for text in texts:
        size += len(text) + 1
        if size > MAX_TEXT:
            raise RefusedError(f"a value of at most {MAX_TEXT:,} bytes of text")
        yield text


def no_binary_form(_value: bytes) -> bytes:
    raise RefusedError("a value as text: it has no binary form that can be read without the server's catalog")


@dataclass(frozen=True, slots=True)
class ColumnType:
    """What becomes of a column of one PostgreSQL type and modifier.

    Goes through pickle to Spark's executors, so its loader is a function at the top of a module.
    """

    name: str  # PostgreSQL's name with modifier, for people: "numeric(10,2)"; "oid 16999" if unknown
    arrow: pa.DataType  # what events carry, and the Delta column is, unless `storage` says otherwise
    may_be_unrepresentable: bool
    text_loader: TextLoader
    binary_text: BinaryText = no_binary_form
    fast_binary: FastBinary | None = None
    storage: Storage = Storage.PLAIN
    element: ColumnType | None = None  # of an array
    delimiter: bytes = b","  # pg_type.typdelim: what an array of this type has between its elements
    in_utc: InUtc | None = None  # of a type whose text is in the sender's TimeZone
    prints: Prints | None = None  # where the Arrow type alone doesn't say how (printing.py)

    @property
    def holds_variant(self) -> bool:
        return self.storage is Storage.VARIANT or (self.element is not None and self.element.holds_variant)

    @property
    def stored_as(self) -> str:
        """The target's type in words, to tell whether it is still the same."""
        return str(self.arrow) if self.storage is Storage.PLAIN else self.storage.value


TypeTable: TypeAlias = Mapping[int, Callable[[int], ColumnType]]  # type OID -> (typmod -> column type)


def always(column_type: ColumnType) -> Callable[[int], ColumnType]:
    """A table entry for a type whose modifier, if there is one, changes nothing."""
    return lambda _typmod: column_type


# the fast way: NULL wherever it leaves a text to the careful way
Fast: TypeAlias = Callable[[pa.Array, pa.DataType], pa.Array]

# the careful way: None if the Arrow type has no such value; or raises RefusedError
Careful: TypeAlias = Callable[[bytes, pa.DataType], Any]


def load_fast_then_careful(
    column_type: ColumnType, values: Sequence[bytes | None], fast: Fast, careful: Careful
) -> LoadedColumn:
    """Read all values the fast way, and those that it left out, one by one, the careful way."""
    texts = binary_array(values)
    array = fast(texts, column_type.arrow)
    if array.null_count == texts.null_count:
        return LoadedColumn(array, {})
    odd = pc.and_(pc.is_null(array), pc.is_valid(texts))
    found: list[Any] = []
    unrepresentable: dict[int, str] = {}
    for index, text in zip(pc.indices_nonzero(odd).to_pylist(), texts.filter(odd).to_pylist(), strict=True):
        try:
            value = careful(text, column_type.arrow)
        except RefusedError as refused:
            raise ValueTextError(index, column_type.name, refused.expected) from None
        if value is None:
            unrepresentable[index] = text.decode("ascii")
        found.append(value)
    array = pc.replace_with_mask(array, odd, pa.array(found, column_type.arrow))
    return LoadedColumn(array, unrepresentable)


def load_binary(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    """Turn the values of one column, in binary form as TupleData carries them ('b'), into an Arrow array.

    None is SQL's NULL. Raises ValueTextError for the first value that the type's send function would not have written,
    and OverflowError when there are 2 GiB or more of values, or MAX_TEXT of text that they are printed as.
    """
    if column_type.fast_binary is None:
        return column_type.text_loader(column_type, _texts_of(column_type, range(len(values)), values))
    sent = binary_array(values)
    array = column_type.fast_binary(sent, column_type.arrow)
    if array.null_count == sent.null_count:
        return LoadedColumn(array, {})
    odd = pc.and_(pc.is_null(array), pc.is_valid(sent))
    indices = pc.indices_nonzero(odd).to_pylist()
    texts = _texts_of(column_type, indices, values)
    try:
        loaded = column_type.text_loader(column_type, texts)
    except ValueTextError as refused:
        raise ValueTextError(indices[refused.index], refused.type_name, refused.expected) from None
    array = _with_replaced(array, indices, loaded.array)
    return LoadedColumn(array, {indices[i]: text for i, text in loaded.unrepresentable.items()})


def _with_replaced(array: pa.Array, indices: Sequence[int], replacements: pa.Array) -> pa.Array:
    """Arrow's replace_with_mask, which knows no lists."""
    chosen = list(range(len(array)))
    for position, index in enumerate(indices, start=len(array)):
        chosen[index] = position
    return pa.concat_arrays([array, replacements]).take(pa.array(chosen, pa.int64()))


def _texts_of(column_type: ColumnType, indices: Iterable[int], values: Sequence[bytes | None]) -> list[bytes | None]:
    texts: list[bytes | None] = []
    size = 0
    for i in indices:
        text = _text_of(column_type, i, values[i])
        size += len(text or b"")
        if size > MAX_TEXT:
            raise OverflowError(f"more than {MAX_TEXT:,} bytes of text in one column of a batch; make it smaller")
        texts.append(text)
    return texts


def _text_of(column_type: ColumnType, index: int, value: bytes | None) -> bytes | None:
    try:
        return None if value is None else column_type.binary_text(value)
    except RefusedError as refused:
        raise ValueTextError(index, column_type.name, refused.expected) from None


def cast_plain(texts: pa.Array, plain: str, arrow: pa.DataType) -> pa.Array:
    """Cast the texts that match the (RE2) pattern; NULL for the others.

    All NULL if one that matches can't be cast (2023-02-30, an int2 of 99999): the careful way finds which.
    """
    kept = pc.if_else(pc.match_substring_regex(texts, plain), texts, None)
    try:
        return kept.cast(pa.string()).cast(arrow)
    except pa.ArrowInvalid:
        return pa.nulls(len(texts), arrow)


def binary_array(values: Sequence[bytes | None]) -> pa.Array:
    """The bytes as they are. OverflowError from 2 GiB on: Arrow's strings have 32-bit offsets."""
    array = pa.array(values, pa.binary())
    if isinstance(array, pa.ChunkedArray):
        raise OverflowError("2 GiB or more of values in one column of a batch; make the batch smaller")
    return array
