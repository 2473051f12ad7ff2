"""Compares a table's rows with a server's, written by `COPY (SELECT * …) TO STDOUT (FORMAT csv, HEADER)`."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

_FIELD = re.compile(r'(?:"((?:[^"]|"")*)"|([^,"\n]*))(,|\n|$)')
Text = str | None


def read_csv(path: Path) -> tuple[list[str], list[tuple[Text, ...]]]:
    """Header and rows. Unlike the csv module, distinguishes NULL (unquoted and empty) from an empty string (quoted)."""
    text = path.read_bytes().decode()
    records: list[list[Text]] = [[]]
    position = 0
    while position < len(text):
        match = _FIELD.match(text, position)
        assert match is not None, f"{path} at {position}"
        quoted, plain, end = match.groups()
        records[-1].append(quoted.replace('""', '"') if quoted is not None else plain or None)
        position = match.end()
        if end != ",":
            records.append([])
    header, *rows = [record for record in records if record]
    return [name or "" for name in header], [tuple(row) for row in rows]


def postgres_text(value: Any, pg_float4: bool = False) -> Text:
    """PostgreSQL's text of a value read from a table (DateStyle ISO, TimeZone UTC, bytea hex)."""
    match value:
        case None:
            return None
        case bool():
            return "t" if value else "f"
        case float():
            return _float_bits(value, pg_float4)
        case Decimal():
            return format(value, "f")
        case bytes() | bytearray():
            return "\\x" + value.hex()
        case datetime():
            zone = "" if value.tzinfo is None else "+00"
            value = value if value.tzinfo is None else value.astimezone(timezone.utc)
            micros = f".{value.microsecond:06}".rstrip("0") if value.microsecond else ""
            return f"{value.year:04}-{value:%m-%d %H:%M:%S}{micros}{zone}"
        case date():
            return value.isoformat()
        case list():
            return array_text(value)
        case _:
            return str(value)


def array_text(values: list[Any]) -> str:
    """PostgreSQL's text of a one-dimensional array, or hstore's text of a map, which is a list of pairs."""
    if values and isinstance(values[0], tuple):
        return ", ".join(f'"{k}"=>' + ("NULL" if v is None else f'"{v}"') for k, v in values)
    return "{" + ",".join("NULL" if v is None else _element(v) for v in values) + "}"


def _element(value: Any) -> str:
    if isinstance(value, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), f"{value:g}")
    text = postgres_text(value) or ""
    if text and text.upper() != "NULL" and not re.search(r'[\s",{}\\]', text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _float_bits(value: float, single: bool) -> str:
    return struct.pack(">f" if single else ">d", value).hex()


def assert_equals_truth(
    rows: Iterable[Mapping[str, Any]],
    path: Path,
    ignore: frozenset[str] = frozenset(),
    never_sent: tuple[str, str, str] | None = None,
) -> None:
    """Checks that the rows are the server's, in any order.

    never_sent: a column that must be NULL, whatever the server's value, in the row whose other column has this text.
    """
    rows = list(rows)
    header, expected = read_csv(path)
    if never_sent is not None:
        column, key, key_text = header.index(never_sent[0]), header.index(never_sent[1]), never_sent[2]
        expected = [(*r[:column], None, *r[column + 1 :]) if r[key] == key_text else r for r in expected]
    floats = {name for name in header if any(isinstance(row[name], float) for row in rows)}
    want = Counter(
        tuple(_expected(name, text, floats) for name, text in zip(header, row, strict=True) if name not in ignore)
        for row in expected
    )
    have = Counter(tuple(_actual(name, row) for name in header if name not in ignore) for row in rows)
    missing, surplus = want - have, have - want
    counts = f"{path.name}: {missing.total()} rows missing, {surplus.total()} too many"
    assert missing == surplus, f"{counts}, e.g. {_difference(header, missing, surplus)}"


def _expected(name: str, text: Text, floats: set[str]) -> Text:
    if text is None or name not in floats:
        return text
    return _float_bits(float(text), name == "c_f4")


def _actual(name: str, row: Mapping[str, Any]) -> Text:
    odd = row["_pg_unrepresentable"]
    if odd and name in dict(odd):
        assert row[name] is None
        text: str = dict(odd)[name]
        return text
    return postgres_text(row[name], name == "c_f4")


def _difference(header: list[str], missing: Counter[Any], surplus: Counter[Any]) -> str:
    if not missing or not surplus:
        return str(next(iter(missing or surplus)))[:400]
    a = next(iter(missing))
    b = min(surplus, key=lambda row: sum(x != y for x, y in zip(a, row, strict=True)))
    differing = [f"{n}: server {x!r}, here {y!r}" for n, x, y in zip(header, a, b, strict=False) if x != y]
    return "; ".join(differing)[:600]
