"""Writes the table in docs/types.md: which Delta type each PostgreSQL type becomes, as the code has it.

python -m tools.types_table
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pgoutput_etl.load.delta_types import delta_type
from pgoutput_etl.types import (
    ColumnType,
    UserTypes,
    bits,
    boolean,
    bytea,
    column_type,
    datetimes,
    documents,
    extensions,
    floats,
    geometric,
    identifiers,
    integers,
    money,
    network,
    ranges,
    strings,
    text_search,
    times,
    vectors,
)
from pgoutput_etl.types.column import TypeTable, no_binary_form

PAGE = Path(__file__).parents[1] / "docs" / "types.md"
BEGIN = "<!-- made by python -m tools.types_table -->\n"
END = "<!-- end of what is made -->\n"
HEADER = ("", "PostgreSQL", "Delta", "unrepresentable", "binary form")

FAMILIES: Mapping[str, TypeTable] = {
    "boolean": boolean.TYPES,
    "integers": integers.TYPES,
    "floats": floats.TYPES,
    "money": money.TYPES,
    "dates, timestamps": datetimes.TYPES,
    "times": times.TYPES,
    "bytes, bits": {**bytea.TYPES, **bits.TYPES},
    "strings": strings.TYPES,
    "documents": documents.TYPES,
    "text search": text_search.TYPES,
    "identifiers": identifiers.TYPES,
    "vectors of numbers": vectors.TYPES,
    "network": network.TYPES,
    "geometry": geometric.TYPES,
    "ranges": ranges.TYPES,
}
_PRINTED_BY_11 = "a number that PostgreSQL 11 or older rounded past the ends of the type"
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
    "interval": "before PostgreSQL 17, the largest and the least come as infinities",
    "xml": "refused if client_encoding is not UTF8",
    **dict.fromkeys(("regproc", "regprocedure", "regoper", "regoperator", "regclass", "regtype"), REG),
    **dict.fromkeys(("regconfig", "regdictionary", "regnamespace", "regrole", "regcollation"), REG),
}
ODD_ARRAYS = "two and more dimensions, a lower bound other than 1, an element that T can't hold"
INT4S, JSON, NUMERIC, JSONB = 1007, 114, 1700, 3802
USER_TYPE = 90_001  # an OID


@dataclass(frozen=True, slots=True)
class Line:
    group: str
    name: str
    delta: str
    unrepresentable: str = ""
    binary: str = ""


def delta_name(of: ColumnType) -> str:
    return f"`{delta_type(of).simpleString().upper()}`"


def line(group: str, name: str, of: ColumnType, unrepresentable: str = "", binary: str = "") -> Line:
    if of.may_be_unrepresentable != bool(unrepresentable):
        raise ValueError(f"what of {name} is unrepresentable?")
    if of.binary_text is no_binary_form:
        binary = "none: comes as text"
    return Line(group, name, delta_name(of), unrepresentable, binary)


def lines() -> Iterator[Line]:
    for group, types in FAMILIES.items():
        if group == "money":
            yield from numbers()
        for oid in types:
            of = column_type(oid, -1)
            shown = SHOWN.get(of.name, of.name)
            yield line(group, shown, of, UNREPRESENTABLE.get(of.name, ""), BINARY.get(of.name, ""))
    yield from made_of_others()
    yield from known_by_name()
    yield from as_configured()


def numbers() -> Iterator[Line]:
    decimal = line("decimals", "numeric(p,s), p ≤ 38 and 0 ≤ s ≤ p", _numeric(10, 2), "NaN")
    yield replace(decimal, delta=decimal.delta.replace("(10,2)", "(p,s)"))
    yield line("decimals", "numeric with another (p,s)", _numeric(3, -2))
    yield line("decimals", "without any", column_type(NUMERIC, -1))


def _numeric(precision: int, scale: int) -> ColumnType:
    return column_type(NUMERIC, (precision << 16 | scale & 0x7FF) + 4)


def user_type(name: str) -> ColumnType:
    return column_type(USER_TYPE, -1, UserTypes({USER_TYPE: ("public", name)}))


def made_of_others() -> Iterator[Line]:
    array = line("made of others", "T[]", column_type(INT4S, -1), ODD_ARRAYS)
    yield replace(array, delta=array.delta.replace("<INT>", "<T>"))
    unknown = user_type("mood")
    yield line("made of others", "enum", unknown, binary="its label")
    yield line("made of others", "composite", unknown, binary="told from its bytes")
    yield Line("made of others", "domain", "as the type below it, without modifier")
    yield line("made of others", "range, multirange of users", unknown, binary="`types` has to say of what")
    yield line("made of others", "other types of users", unknown, binary="refused, unless it is text")


def known_by_name() -> Iterator[Line]:
    for name, of_name in extensions.BY_NAME.items():
        of = of_name(name)
        # the element's type may have what it can't hold; pgvector doesn't
        yield line("known by name", name, replace(of, may_be_unrepresentable=False))
    for name in ranges.EXAMPLES:
        yield line("known by name", name, user_type(name))


def as_configured() -> Iterator[Line]:
    configured = UserTypes(configured={"json": "variant", "jsonb": "variant", "numeric": "numeric(38,10)"})
    for name, oid in (("json", JSON), ("jsonb", JSONB)):
        of = column_type(oid, -1, configured)
        yield line("by configuration", f"{name}: variant", of, "what VARIANT would change, see below")
    number = column_type(NUMERIC, -1, configured)
    yield line("by configuration", "numeric: numeric(38,10)", number, "NaN, infinities, numbers with more digits")


def table() -> str:
    """Types of one family that differ in nothing but their names share a row."""
    names: dict[Line, list[str]] = {}
    for one in lines():
        names.setdefault(replace(one, name=""), []).append(one.name)
    rows, group = [HEADER, ("---",) * len(HEADER)], ""
    for of, alike in names.items():
        shown = "" if of.group == group else of.group
        rows.append((shown, ", ".join(alike), of.delta, of.unrepresentable, of.binary))
        group = of.group
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page(text: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
