"""Arrays, as Arrow lists of the element type. The column's type modifier applies to the elements.

A PostgreSQL array may have any number of dimensions, each with its own lower bound, regardless of its column's
declaration. A list is a one-dimensional array with lower bound 1. Any other array, and any array with an
unrepresentable element, is unrepresentable as a whole: arrays are never flattened, and never lose elements.

Text: array_out, "8.15.6. Array Input and Output Syntax". Binary: array_send (src/backend/utils/adt/arrayfuncs.c).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

import pyarrow as pa

from pgoutput_etl.reasons import Reason, kind_of
from pgoutput_etl.types.binary import ValueReader
from pgoutput_etl.types.column import (
    BinaryText,
    ColumnType,
    LoadedColumn,
    RefusedError,
    ValueTextError,
    bounded,
    convert_each,
    declare,
    load_binary,
)

MAX_DIMENSIONS = 6

EXPECTED = "an array as PostgreSQL prints it"

EXPECTED_BINARY = "an array as array_send writes it"

FIRST_USER_OID = 10000  # PostgreSQL's FirstGenbkiObjectId; lower OIDs mean the same on every server

_BOUNDS = re.compile(rb"(?:\[-?[0-9]{1,10}:-?[0-9]{1,10}\]){1,6}=")

_BOUND = re.compile(rb"\[(-?[0-9]+):(-?[0-9]+)\]")

_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


@dataclass(slots=True)
class ListColumn:
    """Builds an Arrow list array from the elements of all lists in sequence and the end of each list."""

    elements: list[bytes | None] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0])
    is_null: list[bool] = field(default_factory=list)

    def add(self, elements: Sequence[bytes | None] | None) -> None:
        if elements:
            self.elements += elements
        self.ends.append(len(self.elements))
        self.is_null.append(elements is None)

    def list_index(self, position: int) -> int:
        """The index of the list that contains the element."""
        return bisect_right(self.ends, position) - 1

    def finish(self, arrow: pa.ListType, loaded: LoadedColumn) -> tuple[pa.Array, set[int]]:
        """The list array, and the indices of lists that are NULL because of an unrepresentable element."""
        unrepresentable = {self.list_index(position) for position in loaded.unrepresentable}
        for index in unrepresentable:
            self.is_null[index] = True
        ends, is_null = pa.array(self.ends, pa.int32()), pa.array(self.is_null, pa.bool_())
        return pa.ListArray.from_arrays(ends, loaded.array, type=arrow, mask=is_null), unrepresentable


# Splits a list's text into elements; None if the column can't represent it. Raises RefusedError.
ParseList = Callable[[bytes], Sequence[bytes | None] | None]


def load_lists(column_type: ColumnType, values: Sequence[bytes | None], parse: ParseList) -> LoadedColumn:
    """Parses texts as lists, and loads all of their elements with the element type's loader."""
    element, lists = element_of(column_type), ListColumn()
    for elements in convert_each(column_type, values, parse):
        lists.add(elements)
    unparsed = {i for i, text in enumerate(values) if lists.is_null[i] and text is not None}
    try:
        loaded = element.text_loader(element, lists.elements)
    except ValueTextError as error:
        raise ValueTextError(lists.list_index(error.index), column_type.name, _each(error.expected)) from None
    array, unrepresentable = lists.finish(column_type.arrow, loaded)
    indices = sorted(unparsed | unrepresentable)
    return LoadedColumn(array, {i: _unrepresentable_text(column_type, i, values[i] or b"") for i in indices})


def _each(expected: str) -> Reason:
    return Reason(f"a list whose elements are each {expected}", kind_of(expected))


def element_of(array: ColumnType) -> ColumnType:
    assert array.element is not None
    return array.element


def _unrepresentable_text(column_type: ColumnType, index: int, text: bytes) -> str:
    element = element_of(column_type)
    try:
        if element.to_utc is not None:
            text = map_elements(text, element.delimiter, element.to_utc, element.delimiter) or text
        return text.decode()
    except RefusedError as refused:
        raise ValueTextError(index, column_type.name, _each(refused.expected)) from None


def load_array(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    loaded = load_lists(column_type, values, partial(_list_elements, _grammar_of(column_type)))
    _check_elements(column_type, values, [*loaded.unrepresentable])
    return loaded


def _check_elements(column_type: ColumnType, values: Sequence[bytes | None], indices: Sequence[int]) -> None:
    """Raises ValueTextError for an element that its type doesn't print, in arrays that are kept as text, because
    ambiguous text must not be kept.
    """
    element, pattern, lists = element_of(column_type), _grammar_of(column_type).element, ListColumn()
    for index in indices:
        text = values[index] or b""
        lists.add([_unquoted(item) for item in pattern.findall(text, _elements_offset(text))])
    try:
        element.text_loader(element, lists.elements)
    except ValueTextError as error:
        index = indices[lists.list_index(error.index)]
        raise ValueTextError(index, column_type.name, _each(error.expected)) from None


def _elements_offset(text: bytes) -> int:
    bounds = _BOUNDS.match(text)
    return bounds.end() if bounds else 0


def load_array_or_other(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    """Loads a type that is known to be an array only by its name; a text that isn't an array disproves that."""
    assert isinstance(column_type.binary_text, ArrayText)
    expected = declare(column_type.binary_text.own_name, "text")
    return load_lists(column_type, values, partial(_list_elements_or_refuse, _grammar_of(column_type), expected))


@dataclass(frozen=True, slots=True)
class _Grammar:
    """Patterns for array_out's text with one delimiter."""

    delimiter: bytes
    simple: re.Pattern[bytes]  # one dimension, nothing quoted
    flat: re.Pattern[bytes]  # one dimension
    token: re.Pattern[bytes]
    element: re.Pattern[bytes]


@lru_cache
def _grammar(delimiter: bytes) -> _Grammar:
    separator = re.escape(delimiter)
    quoted = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
    element = rb"(?:" + quoted + rb'|[^{}"\\\s' + separator + rb"]+)"
    return _Grammar(
        delimiter,
        re.compile(rb'\{[^{}"\\\s]*\}'),
        re.compile(rb"\{" + element + rb"(?:" + separator + element + rb")*\}", re.DOTALL),
        re.compile(rb"[{}]|" + separator + rb"|" + element, re.DOTALL),
        re.compile(element, re.DOTALL),
    )


def _grammar_of(column_type: ColumnType) -> _Grammar:
    return _grammar(element_of(column_type).delimiter)


def _list_elements(grammar: _Grammar, text: bytes) -> list[bytes | None] | None:
    if grammar.simple.fullmatch(text):
        inner = text[1:-1]
        if not inner:
            return []
        parts = inner.split(grammar.delimiter)
        if b"" in parts:
            raise RefusedError(EXPECTED)
        return [None if part == b"NULL" else part for part in parts] if b"NULL" in inner else [*parts]
    if grammar.flat.fullmatch(text):
        return [_unquoted(element) for element in grammar.element.findall(text, 1)]
    _check_dimensions(grammar, text)
    return None


def _list_elements_or_refuse(grammar: _Grammar, expected: str, text: bytes) -> list[bytes | None] | None:
    try:
        return _list_elements(grammar, text)
    except RefusedError:
        raise RefusedError(expected) from None


def _unquoted(element: bytes) -> bytes | None:
    if element[:1] != b'"':
        return None if element == b"NULL" else element
    return unescaped(element[1:-1])


def unescaped(text: bytes) -> bytes:
    """A text that was within quotes, as printed by array_out and hstore_out."""
    return _ESCAPED.sub(rb"\1", text) if b"\\" in text else text


def _check_dimensions(grammar: _Grammar, text: bytes) -> None:
    """Raises RefusedError unless the array is rectangular and its lengths match its bounds, if it has any."""
    bounds = _BOUNDS.match(text)
    lengths = _lengths(grammar, text, _elements_offset(text))
    if bounds is not None and lengths != [int(upper) - int(lower) + 1 for lower, upper in _BOUND.findall(bounds[0])]:
        raise RefusedError(EXPECTED)


def _lengths(grammar: _Grammar, text: bytes, begin: int) -> list[int]:
    """Replaces all elements by 0, then all rows of 0 by 1, all rows of 1 by 2, until one number remains."""
    tokens: list[bytes] = []
    while begin < len(text):
        token = grammar.token.match(text, begin)
        if token is None:
            raise RefusedError(EXPECTED)
        tokens.append(token[0] if token[0] in (b"{", b"}", grammar.delimiter) else b"0")
        begin = token.end()
    shape = b"".join(tokens)
    lengths: list[int] = []
    while not lengths or shape != b"%d" % len(lengths):
        item = b"%d" % len(lengths)
        rows = re.compile(rb"\{%b(?:%b%b)*\}" % (item, re.escape(grammar.delimiter), item))
        counts = {row.count(item) for row in rows.findall(shape)}
        if len(counts) != 1 or len(lengths) == MAX_DIMENSIONS:
            raise RefusedError(EXPECTED)
        lengths = [counts.pop(), *lengths]
        shape = rows.sub(b"%d" % len(lengths), shape)
    return lengths


@dataclass(frozen=True, slots=True)
class _BinaryArray:
    element_oid: int
    dimensions: tuple[tuple[int, int], ...]  # length, lower bound
    elements: list[bytes | None]

    @property
    def is_list(self) -> bool:
        return not self.dimensions or (len(self.dimensions) == 1 and self.dimensions[0][1] == 1)


def _read_binary(value: bytes, element_oid: int | None) -> _BinaryArray:
    """array_send: int32 number of dimensions, int32 flags (1: has NULLs), the element type's OID; per dimension int32
    length and int32 lower bound; per element int32 length (-1: NULL) and its binary form.
    """
    reader = ValueReader(value, EXPECTED_BINARY)
    number, flags, oid = reader.int32(), reader.int32(), reader.uint32()
    if not 0 <= number <= MAX_DIMENSIONS or flags not in (0, 1):
        raise reader.refusal()
    if oid != element_oid if element_oid is not None else oid < FIRST_USER_OID:
        raise RefusedError("an array of the column's element type")
    dimensions = tuple((reader.int32(), reader.int32()) for _ in range(number))
    count = 1 if dimensions else 0
    for length, _lower in dimensions:
        count *= length
        # an empty array has no dimensions; the second check keeps the product bounded
        if length < 1 or count * 4 > len(value):
            raise reader.refusal()
    elements = [reader.sized() for _ in range(count)]
    reader.end()
    return _BinaryArray(oid, dimensions, elements)


def _item(text: bytes | None, delimiter: bytes) -> bytes:
    """An element, as array_out prints it."""
    if text is None:
        return b"NULL"
    if _grammar(delimiter).element.fullmatch(text) and text[:1] != b'"' and text.upper() != b"NULL":
        return text
    return quoted(text)


def quoted(text: bytes) -> bytes:
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def array_text(elements: Sequence[bytes | None], delimiter: bytes) -> bytes:
    """A list's text, from the texts of its elements."""
    return b"{" + delimiter.join(_item(element, delimiter) for element in elements) + b"}"


def map_elements(
    text: bytes, delimiter: bytes, convert: Callable[[bytes], bytes | None], new_delimiter: bytes
) -> bytes | None:
    """The array, of any dimension, with the text of each element converted; None if `convert` returns None for one.

    Raises RefusedError if the text isn't an array.
    """
    if text == b"{}":
        return text
    grammar = _grammar(delimiter)
    _check_dimensions(grammar, text)
    begin = _elements_offset(text)
    parts = [text[:begin]]
    for token in grammar.token.findall(text, begin):
        element = None if token in (b"{", b"}", delimiter) else _unquoted(token)
        if element is None:
            parts.append(new_delimiter if token == delimiter else token)  # a delimiter, a brace, or NULL
            continue
        converted = convert(element)
        if converted is None:
            return None
        parts.append(_item(converted, new_delimiter))
    return b"".join(parts)


# Returns the function from a type's binary form to text, given its OID; None if the OID is unknown.
TextLookup = Callable[[int], "BinaryText | None"]


def _unknown(_oid: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class ArrayText:
    """Prints an array in binary form as array_out does.

    element_oid: None for a user type, which may have any OID. If the value contains the OID of a known type, that takes
    precedence over the array type's name: the elements may be of a domain, whose name doesn't reveal its base type.
    other: what a type whose name begins with _ is if it isn't an array.
    """

    element: ColumnType
    element_oid: int | None
    text_of: TextLookup
    other: ColumnType | None = None

    @property
    def own_name(self) -> str:
        return f"{self.element.name}[]" if self.other is None else self.other.name

    def __call__(self, value: bytes) -> bytes:
        try:
            array = _read_binary(value, self.element_oid)
        except RefusedError:
            if self.other is None:
                raise
            return self.other.binary_text(value)
        if not array.elements:
            return b"{}"
        binary_text = self.text_of(array.element_oid) or self.element.binary_text
        delimiter = self.element.delimiter
        items = list(
            bounded(b"NULL" if value is None else _item(binary_text(value), delimiter) for value in array.elements)
        )
        for length, _lower in reversed(array.dimensions):
            rows = range(0, len(items), length)
            items = [b"{" + delimiter.join(items[i : i + length]) + b"}" for i in rows]
        if all(lower == 1 for _length, lower in array.dimensions):
            return items[0]
        bounds = b"".join(b"[%d:%d]" % (lower, lower + length - 1) for length, lower in array.dimensions)
        return bounds + b"=" + items[0]


@dataclass(frozen=True, slots=True)
class ListsFromBinary:
    """The fast path for lists in binary form; most element types don't need the detour through text."""

    element: ColumnType
    element_oid: int | None
    text_of: TextLookup

    def __call__(self, values: pa.Array, arrow: pa.DataType) -> pa.Array:
        lists = ListColumn()
        for value in values.to_pylist():
            lists.add(None if value is None else self._elements(value))
        try:
            loaded = load_binary(self.element, lists.elements)
        except ValueTextError:
            return pa.nulls(len(values), arrow)  # the careful path finds the offending value
        array, _unrepresentable = lists.finish(arrow, loaded)
        return array

    def _elements(self, value: bytes) -> list[bytes | None] | None:
        try:
            array = _read_binary(value, self.element_oid)
        except RefusedError:
            return None
        binary_text = self.text_of(array.element_oid)
        has_other_type = binary_text is not None and binary_text != self.element.binary_text
        return array.elements if array.is_list and not has_other_type else None


def array_type(
    element: ColumnType, element_oid: int | None, text_of: TextLookup = _unknown, other: ColumnType | None = None
) -> ColumnType:
    """element_oid: None for an array of a user type, recognized only by its name (`_mood`). other: see ArrayText."""
    return ColumnType(
        f"{element.name}[]",
        pa.list_(element.arrow),
        True,
        load_array if element_oid is not None else load_array_or_other,
        ArrayText(element, element_oid, text_of, other),
        ListsFromBinary(element, element_oid, text_of),
        element=element,
    )


BOX = 603  # the only built-in type whose arrays have a delimiter other than a comma: {(1,1),(0,0);(3,3),(2,2)}

# The element type of each built-in array type.
ELEMENTS = {
    143: 142, 199: 114, 271: 5069, 629: 628, 651: 650, 719: 718, 775: 774, 791: 790, 1000: 16, 1001: 17, 1002: 18,
    1003: 19, 1005: 21, 1006: 22, 1007: 23, 1008: 24, 1009: 25, 1010: 27, 1011: 28, 1012: 29, 1013: 30, 1014: 1042,
    1015: 1043, 1016: 20, 1017: 600, 1018: 601, 1019: 602, 1020: 603, 1021: 700, 1022: 701, 1027: 604, 1028: 26,
    1034: 1033, 1040: 829, 1041: 869, 1115: 1114, 1182: 1082, 1183: 1083, 1185: 1184, 1187: 1186, 1231: 1700,
    1270: 1266, 1561: 1560, 1563: 1562, 2201: 1790, 2207: 2202, 2208: 2203, 2209: 2204, 2210: 2205, 2211: 2206,
    2949: 2970, 2951: 2950, 3221: 3220, 3643: 3614, 3645: 3615, 3735: 3734, 3770: 3769, 3807: 3802,
    3905: 3904, 3907: 3906, 3909: 3908, 3911: 3910, 3913: 3912, 3927: 3926, 4073: 4072, 4090: 4089, 4097: 4096,
    4192: 4191, 5039: 5038, 6150: 4451, 6151: 4532, 6152: 4533, 6153: 4534, 6155: 4535, 6157: 4536,
}  # fmt: skip
