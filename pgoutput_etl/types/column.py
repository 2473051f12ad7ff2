"""Code shared by all type families: column types, loaded columns, and the paths from text and binary values to Arrow.

On the fast path, Arrow casts a whole column at once. Arrow's casts don't check for PostgreSQL's format: they read
``0x1F`` as 31 and ``+1`` as 1, turn ``1e400`` into infinity, and fail on a single ``infinity`` among a million dates.
The fast path therefore only takes texts in the type's plain form, and leaves the others NULL. Those take the careful
path: a few lines of Python that return the value, return None if the Arrow type can't represent it, or reject it.

Binary values also have two paths: a fast one for whole columns, in some families, and otherwise a detour through
PostgreSQL's text, so that both forms always result in the same value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.reasons import Reason, ReasonKind


class ValueTextError(ValueError):
    """A value is not what PostgreSQL prints or sends for its type, so it can't be read without guessing.

    The message has the value's index and what was expected, but never the value, which may be confidential.
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
    """The values of one column, in input order."""

    array: pa.Array
    unrepresentable: Mapping[int, str]  # PostgreSQL's text by index; the array is NULL there


TextLoader: TypeAlias = "Callable[[ColumnType, Sequence[bytes | None]], LoadedColumn]"

# From a value as the type's send function writes it to the text that its output function prints; raises RefusedError.
BinaryText: TypeAlias = Callable[[bytes], bytes]

# From a value's text to its text under TimeZone UTC; raises RefusedError.
ToUtc: TypeAlias = Callable[[bytes], bytes]

# From a column of values as the send function writes them to the array; NULL for values that need the detour.
FastBinary: TypeAlias = Callable[[pa.Array, pa.DataType], pa.Array]

# From a stored value, as Arrow returns it in Python, to the text that the type's output function prints.
Printer: TypeAlias = Callable[[Any], bytes]


class Storage(Enum):
    """The Delta column's type, if it differs from the Arrow type in events."""

    PLAIN = "plain"  # the type that corresponds to the Arrow type
    MAP = "map"  # MAP<STRING,STRING>; Arrow: list<struct<key, value>>, which Spark can compare
    VARIANT = "variant"  # Arrow: string


class RefusedError(Exception):
    """A value that isn't in PostgreSQL's text or binary form of the type. Loaders turn it into a ValueTextError."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected


# Limits the text of binary values, per value and per column: a numeric of 10 bytes may have 131,072 digits.
MAX_TEXT = 2**28


def bounded(texts: Iterable[bytes]) -> Iterator[bytes]:
    """Passes on the parts of one value's text. Raises RefusedError once they exceed MAX_TEXT."""
    size = 0
    for text in texts:
        size += len(text) + 1
        if size > MAX_TEXT:
            raise RefusedError(f"a value of at most {MAX_TEXT:,} bytes of text")
        yield text


def declare(type_name: str, declared: str, otherwise: str = "") -> Reason:
    """The expected form of a value whose type the archive doesn't describe, and how to describe the type."""
    text = f'a type that is declared in the configuration (types: {{"{type_name}": {declared}}}){otherwise}'
    return Reason(text, ReasonKind.UNDECLARED)


_UTF8 = Reason(
    "UTF-8 (set client_encoding to UTF8 for the receiver, or on_invalid_text to keep in the table's rule)",
    ReasonKind.NOT_UTF8,
)


def no_binary_form(_value: bytes) -> bytes:
    raise RefusedError("a text value: the type's binary form can't be read without the server's catalog")


@dataclass(frozen=True, slots=True)
class ColumnType:
    """How columns of one PostgreSQL type and modifier are read, represented, and stored.

    Pickled for Spark's executors, so its functions must be importable by name.
    """

    name: str  # PostgreSQL's name with modifier, for display: "numeric(10,2)"; "oid 16999" if unknown
    arrow: pa.DataType  # in events; also the Delta column's type, unless `storage` differs
    may_be_unrepresentable: bool
    text_loader: TextLoader
    binary_text: BinaryText = no_binary_form
    fast_binary: FastBinary | None = None
    storage: Storage = Storage.PLAIN
    element: ColumnType | None = None  # the element type of an array
    delimiter: bytes = b","  # pg_type.typdelim: separates the elements in arrays of this type
    to_utc: ToUtc | None = None  # for types whose text depends on the sender's TimeZone
    printer: Printer | None = None  # for types that printing.py can't print by their Arrow type alone
    keeps_bytes: bool = False  # text that isn't UTF-8 is unrepresentable; otherwise, it is rejected

    @property
    def holds_variant(self) -> bool:
        return self.storage is Storage.VARIANT or (self.element is not None and self.element.holds_variant)

    @property
    def stored_as(self) -> str:
        """The target column's type, in the form that ledger and plan compare."""
        return str(self.arrow) if self.storage is Storage.PLAIN else self.storage.value


TypeTable: TypeAlias = Mapping[int, Callable[[int], ColumnType]]  # functions from typmod to column type, by type OID


def always(column_type: ColumnType) -> Callable[[int], ColumnType]:
    """A table entry for a type whose modifier has no effect."""
    return lambda _typmod: column_type


def with_modifier(name: str, typmod: int) -> str:
    """The name of a type whose modifier is displayed unchanged: bit(3), timestamp(0)."""
    return f"{name}({typmod})" if typmod >= 0 else name


T = TypeVar("T")


def convert_each(
    column_type: ColumnType, values: Iterable[bytes | None], convert: Callable[[bytes], T]
) -> list[T | None]:
    """Converts all values except NULLs. A RefusedError becomes a ValueTextError with the value's index."""
    results: list[T | None] = []
    for index, value in enumerate(values):
        try:
            results.append(None if value is None else convert(value))
        except RefusedError as refused:
            raise ValueTextError(index, column_type.name, refused.expected) from None
    return results


# The fast path: NULL for each text that it leaves to the careful path.
Fast: TypeAlias = Callable[[pa.Array, pa.DataType], pa.Array]

# The careful path: None if the Arrow type can't represent the value; raises RefusedError.
Careful: TypeAlias = Callable[[bytes, pa.DataType], Any]


_KEPT = "\\x"  # begins a text that stands for bytes; no unrepresentable value is printed like this


def kept_bytes(text: str) -> bytes | None:
    """The bytes that an unrepresentable value's text stands for, as a bytea in hex form; None for any other text."""
    return bytes.fromhex(text.removeprefix(_KEPT)) if text.startswith(_KEPT) else None


def load_text(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    """Loads the values of one column, in text form as in TupleData ('t'); None is SQL's NULL.

    Raises ValueTextError for the first value that PostgreSQL would not have printed for the type, and OverflowError for
    values of 2 GiB or more.
    """
    odd = _not_utf8(values)
    if not odd:
        return column_type.text_loader(column_type, values)
    if not column_type.keeps_bytes:
        raise ValueTextError(next(iter(odd)), column_type.name, _UTF8) from None
    loaded = column_type.text_loader(column_type, [None if i in odd else text for i, text in enumerate(values)])
    return LoadedColumn(loaded.array, {**loaded.unrepresentable, **odd})


def _not_utf8(values: Sequence[bytes | None]) -> dict[int, str]:
    """The texts that are not UTF-8, by index, in the form that `kept_bytes` reads."""
    try:
        binary_array(values).cast(pa.string())
    except pa.ArrowInvalid:
        return {i: f"{_KEPT}{text.hex()}" for i, text in enumerate(values) if text and not is_utf8(text)}
    return {}


def is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class TwoPathLoader:
    """Loads all texts with the fast path, and the ones that it leaves out one by one with the careful path."""

    fast: Fast
    careful: Careful

    def __call__(self, column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
        texts = binary_array(values)
        array = self.fast(texts, column_type.arrow)
        if array.null_count == texts.null_count:
            return LoadedColumn(array, {})
        unread = pc.and_(pc.is_null(array), pc.is_valid(texts))
        results: list[Any] = []
        unrepresentable: dict[int, str] = {}
        for index, text in zip(pc.indices_nonzero(unread).to_pylist(), texts.filter(unread).to_pylist(), strict=True):
            try:
                value = self.careful(text, column_type.arrow)
            except RefusedError as refused:
                raise ValueTextError(index, column_type.name, refused.expected) from None
            if value is None:
                unrepresentable[index] = text.decode("ascii")
            results.append(value)
        array = pc.replace_with_mask(array, unread, pa.array(results, column_type.arrow))
        return LoadedColumn(array, unrepresentable)


def load_binary(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    """Loads the values of one column, in binary form as in TupleData ('b'); None is SQL's NULL.

    Raises ValueTextError for the first value that the type's send function would not have written, and OverflowError
    for values of 2 GiB or more, or for more than MAX_TEXT bytes of text on the detour.
    """
    if column_type.fast_binary is None:
        return load_text(column_type, _texts_of(column_type, values))
    sent = binary_array(values)
    array = column_type.fast_binary(sent, column_type.arrow)
    if array.null_count == sent.null_count:
        return LoadedColumn(array, {})
    indices = pc.indices_nonzero(pc.and_(pc.is_null(array), pc.is_valid(sent))).to_pylist()
    try:
        loaded = load_text(column_type, _texts_of(column_type, [values[i] for i in indices]))
    except ValueTextError as refused:
        raise ValueTextError(indices[refused.index], refused.type_name, refused.expected) from None
    array = replace_at(array, indices, loaded.array)
    return LoadedColumn(array, {indices[i]: text for i, text in loaded.unrepresentable.items()})


def load_mixed(column_type: ColumnType, values: Sequence[bytes | None], binary_at: Sequence[int]) -> LoadedColumn:
    """Like `load_text` and `load_binary`, for values in either form: a type without a send function is sent as text,
    and a slot may have been started both with and without `binary`. binary_at: indices of the values in binary form."""
    if not binary_at:
        return load_text(column_type, values)
    if len(binary_at) + values.count(None) == len(values):
        return load_binary(column_type, values)
    are_binary = np.zeros(len(values), np.bool_)
    are_binary[binary_at] = True
    pairs = list(zip(values, are_binary.tolist(), strict=True))
    texts = load_text(column_type, [None if is_binary else value for value, is_binary in pairs])
    binary = load_binary(column_type, [value if is_binary else None for value, is_binary in pairs])
    array = pc.if_else(pa.array(are_binary), binary.array, texts.array)
    return LoadedColumn(array, {**texts.unrepresentable, **binary.unrepresentable})


def replace_at(array: pa.Array, indices: Any, replacements: pa.Array) -> pa.Array:
    """Like Arrow's replace_with_mask, which doesn't support lists. indices: integers, one per replacement."""
    positions = np.arange(len(array))
    positions[indices] = len(array) + np.arange(len(replacements))
    return pa.concat_arrays([array, replacements]).take(pa.array(positions))


def _texts_of(column_type: ColumnType, values: Sequence[bytes | None]) -> list[bytes | None]:
    size = 0

    def text_of(value: bytes) -> bytes:
        nonlocal size
        text = column_type.binary_text(value)
        size += len(text)
        if size > MAX_TEXT:
            raise OverflowError(f"more than {MAX_TEXT:,} bytes of text in one column; make the batch smaller")
        return text

    return convert_each(column_type, values, text_of)


def cast_plain(texts: pa.Array, plain: str, arrow: pa.DataType) -> pa.Array:
    """Casts the texts that match the RE2 pattern `plain`; NULL for the others.

    All NULL if a matching text can't be cast (2023-02-30, an int2 of 99999); the careful path will find it.
    """
    matches = pc.if_else(pc.match_substring_regex(texts, plain), texts, None)
    try:
        return matches.cast(pa.string()).cast(arrow)
    except pa.ArrowInvalid:
        return pa.nulls(len(texts), arrow)


def binary_array(values: Sequence[bytes | None]) -> pa.Array:
    """The values as an Arrow array. Raises OverflowError from 2 GiB on, because its offsets have 32 bits."""
    array = pa.array(values, pa.binary())
    if isinstance(array, pa.ChunkedArray):
        raise OverflowError("2 GiB or more of values in one column of a batch; make the batch smaller")
    return array
