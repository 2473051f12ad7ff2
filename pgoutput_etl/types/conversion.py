"""Converts stored values after a change of their column's type.

ALTER TABLE … TYPE rewrites the server's rows without sending them, so the archive only has values of the old type. If
PostgreSQL's cast between the two types is certain and exact, the new value is the result of the cast. Otherwise (the
cast rounds, depends on TimeZone, or a USING clause may have computed anything), no value is invented: the column is
NULL, and the old text is kept as unrepresentable.

Conversion maps the text that PostgreSQL prints for the old type to the text that it prints for the new one. Arrays are
converted element by element, as in PostgreSQL's cast.

A value is only as certain as the cast between the types. The archive can't reveal a USING clause that computes
something else from values that the cast accepts (`ALTER COLUMN price TYPE bigint USING price * 100`), or a cast to text
under a DateStyle or bytea_output other than the archive's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from decimal import Context, Decimal
from functools import partial
from typing import Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from pgoutput_etl.time_zones import TIMESTAMP, ZoneConversion
from pgoutput_etl.timestamps import microseconds_of, time_of
from pgoutput_etl.types.arrays import element_of, map_elements
from pgoutput_etl.types.column import ColumnType, LoadedColumn, RefusedError, Storage, ValueTextError, load_text
from pgoutput_etl.types.datetime_format import timestamp_text, timestamptz_text
from pgoutput_etl.types.datetimes import EPOCH_2000_US, INFINITIES, careful_timestamp, careful_timestamptz
from pgoutput_etl.types.shortest_float import shortest_float4, shortest_float8

_INTEGERS: Final = ("int2", "int4", "int8")

_NUMBERS: Final = (*_INTEGERS, "numeric", "float4", "float8")

_FLOATS: Final = ("float4", "float8")

_TEXTS: Final = ("text", "varchar", "bpchar", "citext")

_PARSED_FROM_TEXT: Final = ("bool", *_INTEGERS, *_FLOATS, "date", "bytea", "json")

_WITH_FRACTIONS: Final = ("time", "timetz", "timestamp", "timestamptz", "interval")

_SPECIAL: Final = (b"NaN", b"Infinity", b"-Infinity")

# Their cast to text depends on the TimeZone of the session that altered the table (for reg* types, on its search_path).
_TEXT_DEPENDS_ON_SETTINGS: Final = ("timestamptz", "tstzrange", "tstzmultirange")

_FRACTION = re.compile(rb"\.([0-9]+)")

_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")

# An enum's label; excludes texts of other types that the database defines, which may be printed differently.
_LABEL = re.compile(rb"(?![0-9A-Fa-f]{8,}$)(?!(?i:empty)$)[A-Za-z_][A-Za-z0-9_]*")

_EXACT = Context(prec=40_000)  # more digits than a numeric can have

_NO_LIMIT: Final = 2**31

_INTEGER_DIGITS: Final = 19  # digits of the largest int8


def is_unchanged(old: ColumnType, new: ColumnType) -> bool:
    """True if every stored value is valid for the new type, unchanged."""
    if old.arrow != new.arrow or old.storage != new.storage:
        return False
    if old.name == new.name:
        return True
    if _is_array(old) and _is_array(new):
        return element_of(old).delimiter == element_of(new).delimiter and is_unchanged(element_of(old), element_of(new))
    before, after = _base(old), _base(new)
    if before in ("varchar", "text", "citext", "name") and after in ("text", "citext"):
        return True
    return before == after == "varchar" and (_size(new) is None or (_size(old) or _NO_LIMIT) <= (_size(new) or 0))


def widens(old: ColumnType, new: ColumnType) -> bool:
    """True if Delta can widen the column's type without rewriting rows, with the same result as PostgreSQL's cast."""
    before, after = old.arrow, new.arrow
    if _base(old) not in _NUMBERS or _base(new) not in _NUMBERS:
        return False
    if pa.types.is_decimal(before) and pa.types.is_decimal(after):
        decimals = after.scale - before.scale
        return bool(after.precision - before.precision >= decimals >= 0)
    return (before, after) in (
        (pa.int16(), pa.int32()),
        (pa.int16(), pa.int64()),
        (pa.int32(), pa.int64()),
        (pa.float32(), pa.float64()),
    )


def convert(
    old: ColumnType,
    new: ColumnType,
    texts: Sequence[bytes | None],
    declared: ZoneConversion | None = None,
    is_same: bool = False,
) -> tuple[LoadedColumn, set[int]]:
    """Converts values of the old type, as PostgreSQL prints them, to the new type. declared: for this column. is_same:
    the type on the server is the same, but was not known before.

    Also returns the indices of values whose new value is uncertain. They are unrepresentable, with their old text.
    """
    rule = _same if is_same else _rule(old, new) if declared is None else _declared(declared, old, new)
    converted = [None if text is None else rule(text) for text in texts]
    try:
        loaded = load_text(new, converted)
    except ValueTextError:
        converted = [value if _is_loadable(new, value) else None for value in converted]
        loaded = load_text(new, converted)
    uncertain = {i for i, text in enumerate(texts) if text is not None and converted[i] is None}
    old_texts = {i: (texts[i] or b"").decode() for i in uncertain}
    return LoadedColumn(loaded.array, {**loaded.unrepresentable, **old_texts}), uncertain


def _is_loadable(column_type: ColumnType, value: bytes | None) -> bool:
    try:
        load_text(column_type, [value])
    except ValueTextError:
        return False
    return True


def _is_array(column_type: ColumnType) -> bool:
    """False for pgvector's vector, which has elements but its own text format."""
    return column_type.element is not None and column_type.printer is None


def _base(column_type: ColumnType) -> str:
    """The type's name without its modifier. Names of user types contain a dot, so they match no built-in name."""
    if _is_array(column_type):
        return "array"
    name = column_type.name.partition("(")[0]
    return {"char": "bpchar", name.rpartition(".")[0] + ".citext": "citext"}.get(name, name)


def _is_users(base: str) -> bool:
    """True for a type that the database defines."""
    return "." in base or base.startswith("oid ")


def _size(column_type: ColumnType) -> int | None:
    """The n in varchar(n), timestamp(n), and the like."""
    size = column_type.name.partition("(")[2].rstrip(")")
    return int(size) if size.isdigit() else None


def _scale(column_type: ColumnType) -> int | None:
    """The s in numeric(p,s); None for a type without it."""
    scale = column_type.name.partition(",")[2].rstrip(")")
    return int(scale) if scale else None


Rule = Callable[[bytes], "bytes | None"]


def _rule(old: ColumnType, new: ColumnType) -> Rule:
    before, after = _base(old), _base(new)
    if old.name == new.name:
        return _same
    if _is_array(old) and _is_array(new):
        return _of_elements(element_of(old), element_of(new))
    if after in _TEXTS:
        return _to_text(before if old.printer is None else "", after, _size(new)) if _has_one_text(old) else _never
    if before in _NUMBERS or (before in ("text", "varchar") and after == "numeric"):
        return _to_number(before, new)
    if "." in after and (_is_users(before) or before in ("text", "varchar")):
        return _as_label if old.storage is new.storage is Storage.PLAIN else _never
    if after in _WITH_FRACTIONS and before in (after, "text", "varchar"):
        is_certain = before == after or after in ("timestamp", "timestamptz")
        return partial(_with_decimals, digits=_size(new)) if is_certain else _never
    if (before, after) == ("date", "timestamp"):
        return _at_midnight
    if before == after == "varbit":
        return partial(_within_size, size=_size(new))
    # These need USING column::type, which parses the text; jsonb, uuid, and inet would normalize it.
    reads_text = before in ("text", "varchar") and after in _PARSED_FROM_TEXT
    is_document = (before, after) == ("jsonb", "json") and (old.storage is Storage.PLAIN or old.storage is new.storage)
    return _same if reads_text or is_document else _never


def is_certain(old: ColumnType, new: ColumnType) -> bool:
    """True if the types alone guarantee that `convert` gives PostgreSQL's result for every value that its cast
    accepts."""
    if is_unchanged(old, new) or widens(old, new):
        return True
    if _is_array(old) and _is_array(new):
        return is_certain(element_of(old), element_of(new))
    before, after = _base(old), _base(new)
    if after in _TEXTS:
        return _has_one_text(old) and before != "xml" and not _is_users(before)
    if before == after and after in ("numeric", *_WITH_FRACTIONS):
        sizes = (_scale(old), _scale(new)) if after == "numeric" else (_size(old), _size(new))
        return sizes[1] is None or (sizes[0] is not None and sizes[0] <= sizes[1])
    return (before in _INTEGERS and after == "numeric") or (before, after) == ("date", "timestamp")


def is_declared(old: ColumnType, new: ColumnType, declared: ZoneConversion) -> bool:
    """True if the declaration applies to this change of types."""
    return (_base(old), _base(new)) == (declared.before, declared.after)


def _declared(declared: ZoneConversion, old: ColumnType, new: ColumnType) -> Rule:
    zone, is_local = ZoneInfo(declared.zone), declared.before == TIMESTAMP

    def rule(text: bytes) -> bytes | None:
        if text in INFINITIES:
            return text
        microseconds = (careful_timestamp if is_local else careful_timestamptz)(text, old.arrow)
        if microseconds is None:  # BC, and years after 9999
            return None
        moment = time_of(microseconds - EPOCH_2000_US)
        try:
            converted = _instant(moment, zone) if is_local else _local_time(moment, zone)
        except OverflowError:
            return None
        return _with_decimals(converted, _size(new))

    return rule


def _instant(local: datetime, zone: ZoneInfo) -> bytes:
    """A local time that occurs twice counts as standard time; a skipped one gets the offset from before the gap."""
    instants = (local.replace(tzinfo=zone, fold=fold).astimezone(timezone.utc) for fold in (0, 1))
    return timestamptz_text(microseconds_of(max(instants)))


def _local_time(instant: datetime, zone: ZoneInfo) -> bytes:
    return timestamp_text(microseconds_of(instant.astimezone(zone).replace(tzinfo=timezone.utc)))


def _of_elements(old: ColumnType, new: ColumnType) -> Rule:
    element_rule = _same if is_unchanged(old, new) else _rule(old, new)
    if element_rule is _never:
        return _never  # even for {NULL}: no cast exists

    def rule(text: bytes) -> bytes | None:
        try:
            return map_elements(text, old.delimiter, element_rule, new.delimiter)
        except RefusedError:
            return None  # only the type's name suggests that it is an array

    return rule


def _has_one_text(old: ColumnType) -> bool:
    """True if a cast to text has the same result in every session, and the target still has that text."""
    if _is_array(old):
        return _has_one_text(element_of(old))
    if old.storage is Storage.VARIANT or _base(old) in _TEXT_DEPENDS_ON_SETTINGS or old.name.startswith("reg"):
        return False
    return not (_base(old) == "numeric" and pa.types.is_decimal(old.arrow) and _scale(old) is None)


def _to_number(before: str, new: ColumnType) -> Rule:
    after = _base(new)
    if after == "numeric":
        return partial(_to_numeric, scale=_scale(new), digits={"float4": 6, "float8": 15}.get(before))
    if after in _INTEGERS:
        return partial(_to_integer, before=before)
    return partial(_to_float_text, before=before, after=after) if after in _FLOATS else _never


def _same(text: bytes) -> bytes:
    return text


def _as_label(text: bytes) -> bytes | None:
    """The text, if it looks like an enum's label: every type that accepts it prints it unchanged. (A domain arrives as
    its base type.)"""
    return text if _LABEL.fullmatch(text) else None


def _never(_text: bytes) -> None:
    return None


def _to_text(before: str, after: str, size: int | None) -> Rule:
    def rule(text: bytes) -> bytes | None:
        printed = _as_text(before, text)
        if printed is None:
            return None
        missing = 0 if size is None else size - len(printed.decode())
        if missing < 0:
            return None
        return printed + b" " * missing if after == "bpchar" else printed

    return rule


def _as_text(before: str, text: bytes) -> bytes | None:
    """The result of a cast to text, which for most types is their printed text. None if uncertain."""
    match before:
        case "bool":
            return b"true" if text == b"t" else b"false"
        case "bpchar":
            return text.rstrip(b" ")
        case "inet":
            return text if b"/" in text else text + (b"/128" if b":" in text else b"/32")
        case "xml":
            return None if text.startswith(b"<?xml") else text  # the cast changes the declaration
        case _ if _is_users(before):
            return None if text[:1] in (b"(", b"[", b"{") else text  # the types within a row or range are unknown
        case _:
            return text


def _with_decimals(text: bytes, digits: int | None) -> bytes | None:
    """The time without trailing zeros; None if the cast would round it to `digits` decimals."""
    match = _FRACTION.search(text)
    if match is None:
        return text
    fraction = match[1].rstrip(b"0")
    if digits is not None and len(fraction) > digits:
        return None
    return text[: match.start()] + (b"." + fraction if fraction else b"") + text[match.end() :]


def _within_size(text: bytes, size: int | None) -> bytes | None:
    return text if size is None or len(text) <= size else None


def _at_midnight(text: bytes) -> bytes:
    if text in INFINITIES:
        return text
    day, era = (text[:-3], b" BC") if text.endswith(b" BC") else (text, b"")
    return day + b" 00:00:00" + era


def _to_integer(text: bytes, before: str) -> bytes | None:
    """The number as an integer; None if the cast would round it. Floats are read as binary, because their text is
    shortened."""
    if text in _SPECIAL:
        return None
    number = Decimal(_to_float(text, before).as_py()) if before in _FLOATS else _number(text)
    # no integer type has more digits, and Python refuses to print thousands of them
    if number is None or number.adjusted() >= _INTEGER_DIGITS or number != number.to_integral_value():
        return None
    return str(int(number)).encode()


def _to_numeric(text: bytes, scale: int | None, digits: int | None) -> bytes | None:
    """The number with `scale` decimals. PostgreSQL's cast keeps 15 digits of a float8, and 6 of a float4."""
    if text in _SPECIAL:
        return text
    number = _number(text)
    if number is None or (digits is not None and len(number.normalize(_EXACT).as_tuple().digits) > digits):
        return None
    number = number or number.copy_abs()
    if scale is None:
        return format(number, "f").encode()
    scaled = number.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    return format(scaled, "f").encode() if scaled == number else None


def _to_float_text(text: bytes, before: str, after: str) -> bytes | None:
    """The float nearest to a numeric, as in PostgreSQL; None for an integer or float that would not be exact."""
    if text in _SPECIAL:
        return text
    number = _to_float(text, after).as_py() if before != "float4" else _to_float(text, before).as_py()
    if before not in ("numeric", "float4") and Decimal(number) != _number(text):
        return None
    return (shortest_float4 if after == "float4" else shortest_float8)(number).encode()


def _to_float(text: bytes, float_type: str) -> pa.Scalar:
    return pa.scalar(text.decode()).cast(pa.float32() if float_type == "float4" else pa.float64())


def _number(text: bytes) -> Decimal | None:
    if not _NUMBER.fullmatch(text):
        return None
    number = Decimal(text.decode())
    return number if abs(number.adjusted()) < _EXACT.prec // 2 else None
