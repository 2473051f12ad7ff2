"""What becomes of a value that was written before its column's type changed, and was not sent since.

ALTER TABLE … TYPE rewrites the server's rows and sends none of them. What the archive knows is the value under the old
type. Where PostgreSQL's own cast between the two is certain and exact, that gives the new value; where it isn't (it
rounds, depends on TimeZone, or a USING clause may have said anything), the value is not made up: the column is NULL and
PostgreSQL's old text is kept as unrepresentable.

Everything goes by way of text: the old value as PostgreSQL prints it, turned into what it prints for the new type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Context, Decimal
from functools import partial
from typing import Any, Final

import pyarrow as pa

from pgoutput_etl.types.column import ColumnType, LoadedColumn, ValueTextError
from pgoutput_etl.types.registry import load_text

_INTEGERS: Final = ("int2", "int4", "int8")
_NUMBERS: Final = (*_INTEGERS, "numeric", "float4", "float8")
_FLOATS: Final = ("float4", "float8")
_TEXTS: Final = ("text", "varchar", "bpchar", "citext")
_READ_AS_WRITTEN: Final = ("bool", *_INTEGERS, *_FLOATS, "date", "timestamp", "timestamptz", "bytea", "json")
_SPECIAL: Final = (b"NaN", b"Infinity", b"-Infinity")
_FRACTION = re.compile(rb"\.([0-9]+)")
_EXACT = Context(prec=40_000)  # more digits than a numeric has room for


def stays(old: ColumnType, new: ColumnType) -> bool:
    """Whether every stored value is the new type's own, as it is."""
    if old.arrow != new.arrow or old.storage != new.storage:
        return False
    if old.name == new.name:
        return True
    before, after = _base(old), _base(new)
    if before in ("varchar", "text", "citext", "name") and after in ("text", "citext"):
        return True
    return before == after == "varchar" and (_size(new) is None or (_size(old) or _NO_LIMIT) <= (_size(new) or 0))


def widens(old: ColumnType, new: ColumnType) -> bool:
    """Whether Delta widens the column's type without touching a row, and PostgreSQL's cast means the same."""
    before, after = old.arrow, new.arrow
    if _base(old) not in _NUMBERS or _base(new) not in _NUMBERS:
        return False
    if pa.types.is_decimal(before) and pa.types.is_decimal(after):
        more = after.scale - before.scale
        return bool(after.precision - before.precision >= more >= 0)
    return (before, after) in (
        (pa.int16(), pa.int32()),
        (pa.int16(), pa.int64()),
        (pa.int32(), pa.int64()),
        (pa.float32(), pa.float64()),
    )


def convert(old: ColumnType, new: ColumnType, texts: Sequence[bytes | None]) -> tuple[LoadedColumn, set[int]]:
    """Values of the old type, as PostgreSQL prints them, under the new one.

    Also the indices of those whose new value isn't certain; they are unrepresentable, with their old text.
    """
    rule = _rule(old, new)
    turned = [None if text is None else rule(text) for text in texts]
    try:
        loaded = load_text(new, turned)
    except ValueTextError:
        # Some text is none of the new type's: each is tried by itself.
        singles = [_load_one(new, value) for value in turned]
        turned = [None if single is None else value for single, value in zip(singles, turned, strict=True)]
        loaded = load_text(new, turned)
    uncertain = {
        i for i, (was, value) in enumerate(zip(texts, turned, strict=True)) if was is not None and value is None
    }
    kept = {i: (texts[i] or b"").decode() for i in uncertain}
    return LoadedColumn(loaded.array, {**loaded.unrepresentable, **kept}), uncertain


def _load_one(column_type: ColumnType, value: bytes | None) -> LoadedColumn | None:
    try:
        return load_text(column_type, [value])
    except ValueTextError:
        return None


def print_text(array: pa.Array) -> list[bytes | None]:
    """What PostgreSQL prints for values that a target holds. Lists and maps: raises TypeError."""
    if pa.types.is_floating(array.type):
        array = array.cast(pa.string())  # the shortest digits that mean this number
    return [None if value is None else _print(value) for value in array.to_pylist()]


def _print(value: Any) -> bytes:
    match value:
        case bool():
            return b"t" if value else b"f"
        case str():
            return value.encode()
        case bytes():
            return b"\\x" + value.hex().encode()
        case int():
            return str(value).encode()
        case Decimal():
            return format(value, "f").encode()
        case datetime():
            zone = "" if value.tzinfo is None else "+00"
            fraction = f".{value.microsecond:06}".rstrip("0") if value.microsecond else ""
            return f"{value.year:04}-{value:%m-%d %H:%M:%S}{fraction}{zone}".encode()
        case date():
            return value.isoformat().encode()
        case _:
            raise TypeError(type(value).__name__)


_NO_LIMIT: Final = 2**31


def _base(column_type: ColumnType) -> str:
    name = column_type.name.partition("(")[0]
    return "bpchar" if name == "char" else name


def _size(column_type: ColumnType) -> int | None:
    """n of varchar(n) and char(n)."""
    size = column_type.name.partition("(")[2].rstrip(")")
    return int(size) if size.isdigit() else None


def _scale(column_type: ColumnType) -> int | None:
    """s of numeric(p,s); None if there is none."""
    scale = column_type.name.partition(",")[2].rstrip(")")
    return int(scale) if scale else None


Rule = Callable[[bytes], bytes | None]


def _rule(old: ColumnType, new: ColumnType) -> Rule:
    before, after = _base(old), _base(new)
    if after in _TEXTS and before != "json":
        return _to_text(before, after, _size(new))
    if after in ("timestamp", "timestamptz") and before == after:
        return _with_fraction(_size(new))
    if (before, after) == ("date", "timestamp"):
        return _at_midnight
    if after == "numeric" and before in (*_NUMBERS, "text", "varchar"):
        return partial(_numeric, scale=_scale(new), digits={"float4": 6, "float8": 15}.get(before))
    if before in _NUMBERS and after in _INTEGERS:
        return _whole
    if before in _NUMBERS and after in _FLOATS:
        return partial(_float, before=before, after=after)
    # USING column::type is what these need, and it reads the text; jsonb, uuid or inet would print theirs anew.
    reads_text = before in ("text", "varchar") and after in _READ_AS_WRITTEN
    return _same if reads_text or before == after or after in _TEXTS or (before, after) == ("jsonb", "json") else _never


def _same(text: bytes) -> bytes:
    return text


def _never(_text: bytes) -> None:
    return None


def _to_text(before: str, after: str, size: int | None) -> Rule:
    def rule(text: bytes) -> bytes | None:
        if before == "bool":
            text = b"true" if text == b"t" else b"false"
        if before == "bpchar":
            text = text.rstrip(b" ")
        missing = 0 if size is None else size - len(text.decode())
        if missing < 0:
            return None
        return text + b" " * missing if after == "bpchar" else text

    return rule


def _with_fraction(digits: int | None) -> Rule:
    def rule(text: bytes) -> bytes | None:
        fraction = _FRACTION.search(text)
        return text if fraction is None or digits is None or len(fraction[1]) <= digits else None

    return rule


def _at_midnight(text: bytes) -> bytes:
    if text in (b"infinity", b"-infinity"):
        return text
    day, era = (text[:-3], b" BC") if text.endswith(b" BC") else (text, b"")
    return day + b" 00:00:00" + era


def _whole(text: bytes) -> bytes | None:
    """A number without a fraction. A cast rounds others."""
    number = _number(text)
    return None if number is None or number != number.to_integral_value() else str(int(number)).encode()


def _numeric(text: bytes, scale: int | None, digits: int | None) -> bytes | None:
    """With as many digits behind the point as the type has. PostgreSQL takes 15 digits of a float8, 6 of a float4."""
    if text in _SPECIAL:
        return text
    number = _number(text)
    if number is None or (digits is not None and len(number.normalize(_EXACT).as_tuple().digits) > digits):
        return None
    if scale is None:
        return format(number, "f").encode()
    scaled = number.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    return format(scaled, "f").encode() if scaled == number else None


def _float(text: bytes, before: str, after: str) -> bytes | None:
    """Of a numeric the float nearest to it, as PostgreSQL has it too; an integer or a float must be held exactly."""
    if text in _SPECIAL or before == "numeric":
        return text
    source = pa.float32() if before == "float4" else pa.string()
    held = pa.scalar(text.decode()).cast(source).cast(pa.float32() if after == "float4" else pa.float64())
    if before == "float4":
        return str(held.cast(pa.string()).as_py()).encode()
    return text if Decimal(held.as_py()) == _number(text) else None


def _number(text: bytes) -> Decimal | None:
    try:
        number = Decimal(text.decode())
    except ArithmeticError:
        return None
    return number if number.is_finite() and abs(number.adjusted()) < _EXACT.prec // 2 else None
