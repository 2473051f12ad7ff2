"""Writes the table in docs/types.md: the Delta type of each PostgreSQL type, taken from the code.

python -m tools.types_table
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pgoutput_etl.load.target_columns import delta_type
from pgoutput_etl.types import (
    ColumnType,
    UserTypes,
    column_type,
    datetimes,
    documents,
    extensions,
    geometric,
    identifiers,
    network,
    numbers,
    numeric,
    ranges,
    strings,
    text_search,
    times,
)
from pgoutput_etl.types.column import TypeTable, no_binary_form

PAGE = Path(__file__).parents[1] / "docs" / "types.md"
BEGIN = "<!-- made by python -m tools.types_table -->\n"
END = "<!-- end of what is made -->\n"
HEADER = ("family", "PostgreSQL", "Delta", "unrepresentable values", "binary form")

MONEY = 790

FAMILIES: Mapping[str, TypeTable] = {
    "boolean, integers, floats": numbers.TYPES,
    "money": {MONEY: numeric.TYPES[MONEY]},
    "dates, timestamps": datetimes.TYPES,
    "times": times.TYPES,
    "bytes, strings, bits": strings.TYPES,
    "documents": documents.TYPES,
    "text search": text_search.TYPES,
    "identifiers": identifiers.TYPES,
    "network": network.TYPES,
    "geometry": geometric.TYPES,
    "ranges": ranges.TYPES,
}
_PRINTED_BY_11 = "a number that PostgreSQL 11 or older rounded beyond the type's range"
_BEYOND = "infinity, years BC, years from 10000"
SHOWN = {"bpchar": "char(n)", "varchar": "varchar(n)"}
UNREPRESENTABLE = {
    "float4": _PRINTED_BY_11,
    "float8": _PRINTED_BY_11,
    "date": _BEYOND,
    "timestamp": _BEYOND,
    "timestamptz": f"{_BEYOND}, by the instant in UTC",
}
REG = "the OID's digits instead of a name"
BINARY = {
    "money": "printed as with lc_monetary C",
    "interval": "before PostgreSQL 17, the extremes read as infinities",
    "xml": "refused if client_encoding is not UTF8",
    **dict.fromkeys(("regproc", "regprocedure", "regoper", "regoperator", "regclass", "regtype"), REG),
    **dict.fromkeys(("regconfig", "regdictionary", "regnamespace", "regrole", "regcollation"), REG),
}
ODD_ARRAYS = "several dimensions, a lower bound other than 1, an element that T can't hold"
INT4S, JSON, NUMERIC, JSONB = 1007, 114, 1700, 3802
USER_TYPE = 90_001  # an OID

_DEFINITIONS = "[catalog Messages](#user-defined-types)"


@dataclass(frozen=True, slots=True)
class Line:
    group: str
    name: str
    delta: str
    unrepresentable: str = ""
    binary: str = ""


def line(group: str, name: str, column: ColumnType, unrepresentable: str = "", binary: str = "") -> Line:
    if column.may_be_unrepresentable != bool(unrepresentable):
        expected = "its unrepresentable values" if column.may_be_unrepresentable else "none, as it can't have any"
        raise ValueError(f"{name}, unrepresentable values: expected {expected}, found {unrepresentable!r}")
    if column.binary_text is no_binary_form:
        binary = "none: sent as text"
    return Line(group, name, f"`{delta_type(column).simpleString().upper()}`", unrepresentable, binary)


def lines() -> Iterator[Line]:
    for group, types in FAMILIES.items():
        if group == "money":
            yield from decimals()
        for oid in types:
            column = column_type(oid, -1)
            shown = SHOWN.get(column.name, column.name)
            yield line(group, shown, column, UNREPRESENTABLE.get(column.name, ""), BINARY.get(column.name, ""))
    yield from composed_types()
    yield from types_known_by_name()
    yield from configured_types()


def decimals() -> Iterator[Line]:
    decimal = line("decimals", "numeric(p,s), p ≤ 38 and 0 ≤ s ≤ p", _numeric(10, 2), "NaN")
    yield replace(decimal, delta=decimal.delta.replace("(10,2)", "(p,s)"))
    yield line("decimals", "numeric with other (p,s)", _numeric(3, -2))
    yield line("decimals", "or none", column_type(NUMERIC, -1))


def _numeric(precision: int, scale: int) -> ColumnType:
    return column_type(NUMERIC, (precision << 16 | scale & 0x7FF) + 4)


def user_type(name: str) -> ColumnType:
    return column_type(USER_TYPE, -1, UserTypes({USER_TYPE: ("public", name)}))


def composed_types() -> Iterator[Line]:
    array = line("composed", "T[]", column_type(INT4S, -1), ODD_ARRAYS)
    yield replace(array, delta=array.delta.replace("<INT>", "<T>"))
    unknown = user_type("mood")
    yield line("composed", "enum", unknown, binary="its label")
    yield line("composed", "composite", unknown, binary="described by its bytes")
    yield Line("composed", "domain", f"its base type; its modifier requires {_DEFINITIONS}")
    yield line("composed", "user-defined range, multirange", unknown, binary=f"requires `types` or {_DEFINITIONS}")
    yield line("composed", "other user-defined types", unknown, binary="refused unless it is text")


def types_known_by_name() -> Iterator[Line]:
    for name, type_of in extensions.BY_NAME.items():
        # The element type can have unrepresentable values; pgvector doesn't allow them.
        yield line("known by name", name, replace(type_of(name), may_be_unrepresentable=False))
    for name in ranges.EXAMPLES:
        yield line("known by name", name, user_type(name))


def configured_types() -> Iterator[Line]:
    configured = UserTypes(configured={"json": "variant", "jsonb": "variant", "numeric": "numeric(38,10)"})
    for name, oid in (("json", JSON), ("jsonb", JSONB)):
        column = column_type(oid, -1, configured)
        yield line("by configuration", f"{name}: variant", column, "documents that VARIANT would change")
    number = column_type(NUMERIC, -1, configured)
    yield line("by configuration", "numeric: numeric(38,10)", number, "NaN, infinities, numbers with more digits")


def table() -> str:
    """Types of one family that differ only in their names share a row."""
    names: dict[Line, list[str]] = {}
    for type_line in lines():
        names.setdefault(replace(type_line, name=""), []).append(type_line.name)
    rows, group = [HEADER, ("---",) * len(HEADER)], ""
    for row, row_names in names.items():
        shown = "" if row.group == group else row.group
        rows.append((shown, ", ".join(row_names), row.delta, row.unrepresentable, row.binary))
        group = row.group
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page(text: str) -> str:
    """Return the page with its table regenerated."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
