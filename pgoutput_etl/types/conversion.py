"""What becomes of a value that was written before its column's type changed, and was not sent since.

ALTER TABLE … TYPE rewrites the server's rows and sends none of them. What the archive knows is the value under the old
type. Where PostgreSQL's own cast between the two is certain and exact, that gives the new value; where it isn't (it
rounds, depends on TimeZone, or a USING clause may have said anything), the value is not made up: the column is NULL and
PostgreSQL's old text is kept as unrepresentable.

Everything goes by way of text: the old value as PostgreSQL prints it, turned into what it prints for the new type. An
array's elements are turned one by one, as PostgreSQL's cast does.

Certain means: by the cast between the two types. What the archive can't show is a USING clause that computes something
else from values that the cast would take (`ALTER COLUMN price TYPE bigint USING price * 100`), or a server that printed
text under another DateStyle or bytea_output than the one that the archive was sent under.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from functools import partial
from typing import Final

import pyarrow as pa

from pgoutput_etl.types.arrays import with_elements
from pgoutput_etl.types.column import ColumnType, LoadedColumn, RefusedError, Storage, ValueTextError
from pgoutput_etl.types.registry import load_text
from pgoutput_etl.types.shortest_float import shortest_float4, shortest_float8

_INTEGERS: Final = ("int2", "int4", "int8")

_NUMBERS: Final = (*_INTEGERS, "numeric", "float4", "float8")

_FLOATS: Final = ("float4", "float8")

_TEXTS: Final = ("text", "varchar", "bpchar", "citext")

_READ_AS_WRITTEN: Final = ("bool", *_INTEGERS, *_FLOATS, "date", "bytea", "json")

_WITH_FRACTIONS: Final = ("time", "timetz", "timestamp", "timestamptz", "interval")

_SPECIAL: Final = (b"NaN", b"Infinity", b"-Infinity")

# Of a column of these the text depends on the TimeZone or the search_path of who altered the table.
_PRINTED_BY_SETTINGS: Final = ("timestamptz", "tstzrange", "tstzmultirange")

_FRACTION = re.compile(rb"\.([0-9]+)")

_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")

_EXACT = Context(prec=40_000)  # more digits than a numeric has room for

_NO_LIMIT: Final = 2**31

_INTEGER_DIGITS: Final = 19  # of the greatest int8


def stays(old: ColumnType, new: ColumnType) -> bool:
    """Whether every stored value is the new type's own, as it is."""
    if old.arrow != new.arrow or old.storage != new.storage:
        return False
    if old.name == new.name:
        return True
    if _is_array(old) and _is_array(new):
        return _elements(old).delimiter == _elements(new).delimiter and stays(_elements(old), _elements(new))
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


def _is_array(column_type: ColumnType) -> bool:
    """Not pgvector's vector, which has elements, too, and prints itself."""
    return column_type.element is not None and column_type.prints is None


def _elements(array: ColumnType) -> ColumnType:
    assert array.element is not None
    return array.element


def _base(column_type: ColumnType) -> str:
    """The type's name without its modifier. A user's type has a dot in it, and is none of those above."""
    if _is_array(column_type):
        return "array"
    name = column_type.name.partition("(")[0]
    return {"char": "bpchar", name.rpartition(".")[0] + ".citext": "citext"}.get(name, name)


def _size(column_type: ColumnType) -> int | None:
    """n of varchar(n), timestamp(n) and others."""
    size = column_type.name.partition("(")[2].rstrip(")")
    return int(size) if size.isdigit() else None


def _scale(column_type: ColumnType) -> int | None:
    """s of numeric(p,s); None if there is none."""
    scale = column_type.name.partition(",")[2].rstrip(")")
    return int(scale) if scale else None


Rule = Callable[[bytes], "bytes | None"]


def _rule(old: ColumnType, new: ColumnType) -> Rule:
    before, after = _base(old), _base(new)
    if old.name == new.name:
        return _same
    if _is_array(old) and _is_array(new):
        return _of_elements(_elements(old), _elements(new))
    if after in _TEXTS:
        return _to_text(before if old.prints is None else "", after, _size(new)) if _has_one_text(old) else _never
    if before in _NUMBERS or (before in ("text", "varchar") and after == "numeric"):
        return _to_number(before, new)
    if after in _WITH_FRACTIONS and before in (after, "text", "varchar"):
        is_read = before == after or after in ("timestamp", "timestamptz")
        return partial(_with_fraction, digits=_size(new)) if is_read else _never
    if (before, after) == ("date", "timestamp"):
        return _at_midnight
    if before == after == "varbit":
        return partial(_no_longer_than, size=_size(new))
    # USING column::type is what these need, and it reads the text; jsonb, uuid or inet would print theirs anew.
    reads_text = before in ("text", "varchar") and after in _READ_AS_WRITTEN
    is_document = (before, after) == ("jsonb", "json") and (old.storage is Storage.PLAIN or old.storage is new.storage)
    return _same if reads_text or is_document else _never


def _of_elements(old: ColumnType, new: ColumnType) -> Rule:
    turn = _same if stays(old, new) else _rule(old, new)
    if turn is _never:
        return _never  # also of {NULL}: there is no cast

    def rule(text: bytes) -> bytes | None:
        try:
            return with_elements(text, old.delimiter, turn, new.delimiter)
        except RefusedError:
            return None  # an array by its type's name alone

    return rule


def _has_one_text(old: ColumnType) -> bool:
    """Whether the text is what anybody's cast to text gives, and the target still has it."""
    if _is_array(old):
        return _has_one_text(_elements(old))
    if old.storage is Storage.VARIANT or _base(old) in _PRINTED_BY_SETTINGS or old.name.startswith("reg"):
        return False
    return not (_base(old) == "numeric" and pa.types.is_decimal(old.arrow) and _scale(old) is None)


def _to_number(before: str, new: ColumnType) -> Rule:
    after = _base(new)
    if after == "numeric":
        return partial(_numeric, scale=_scale(new), digits={"float4": 6, "float8": 15}.get(before))
    if after in _INTEGERS:
        return partial(_whole, before=before)
    return partial(_float, before=before, after=after) if after in _FLOATS else _never


def _same(text: bytes) -> bytes:
    return text


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
    """What a cast to text makes of a value; of most types it is what they print."""
    match before:
        case "bool":
            return b"true" if text == b"t" else b"false"
        case "bpchar":
            return text.rstrip(b" ")
        case "inet":
            return text if b"/" in text else text + (b"/128" if b":" in text else b"/32")
        case "xml":
            return None if text.startswith(b"<?xml") else text  # its declaration is printed otherwise than kept
        case _ if "." in before or before.startswith("oid "):
            return None if text[:1] in (b"(", b"[", b"{") else text  # what is in a row or a range is not known
        case _:
            return text


def _with_fraction(text: bytes, digits: int | None) -> bytes | None:
    """A time of at most that many decimals, without zeros at their end. A cast rounds others."""
    found = _FRACTION.search(text)
    if found is None:
        return text
    fraction = found[1].rstrip(b"0")
    if digits is not None and len(fraction) > digits:
        return None
    return text[: found.start()] + (b"." + fraction if fraction else b"") + text[found.end() :]


def _no_longer_than(text: bytes, size: int | None) -> bytes | None:
    return text if size is None or len(text) <= size else None


def _at_midnight(text: bytes) -> bytes:
    if text in (b"infinity", b"-infinity"):
        return text
    day, era = (text[:-3], b" BC") if text.endswith(b" BC") else (text, b"")
    return day + b" 00:00:00" + era


def _whole(text: bytes, before: str) -> bytes | None:
    """A number without a fraction. A cast rounds others. A float's digits are few, and don't spell a large one out."""
    if text in _SPECIAL:
        return None
    number = Decimal(_held(text, before).as_py()) if before in _FLOATS else _number(text)
    # no integer type has more digits, and Python prints no int of thousands
    if number is None or number.adjusted() >= _INTEGER_DIGITS or number != number.to_integral_value():
        return None
    return str(int(number)).encode()


def _numeric(text: bytes, scale: int | None, digits: int | None) -> bytes | None:
    """With as many digits behind the point as the type has. PostgreSQL takes 15 digits of a float8, 6 of a float4."""
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


def _float(text: bytes, before: str, after: str) -> bytes | None:
    """Of a numeric the float nearest to it, as PostgreSQL has it too; an integer or a float must be held exactly."""
    if text in _SPECIAL:
        return text
    turned = _held(text, after).as_py() if before != "float4" else _held(text, before).as_py()
    if before not in ("numeric", "float4") and Decimal(turned) != _number(text):
        return None
    return (shortest_float4 if after == "float4" else shortest_float8)(turned).encode()


def _held(text: bytes, float_type: str) -> pa.Scalar:
    return pa.scalar(text.decode()).cast(pa.float32() if float_type == "float4" else pa.float64())


def _number(text: bytes) -> Decimal | None:
    if not _NUMBER.fullmatch(text):
        return None
    number = Decimal(text.decode())
    return number if abs(number.adjusted()) < _EXACT.prec // 2 else None
