"""Every type that is kept as PostgreSQL's text, as sent: a char(n) with its padding, json with its spaces.

Text types, and those for which Delta has no type that holds all their values: a time of 24:00:00, an interval
of months and days, a network. The OIDs below give them names for people; enums, composites, domains
and the types of extensions have OIDs of their own in each database, and come here as "oid 16999".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from pgoutput_etl.types.column import (
    ColumnType,
    LoadedColumn,
    TypeTable,
    ValueTextError,
    always,
    binary_array,
)


def load_string(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    texts = binary_array(values)
    try:
        return LoadedColumn(texts.cast(pa.string()), {})
    except pa.ArrowInvalid:
        first = next(index for index, text in enumerate(values) if not _is_utf8(text or b""))
        raise ValueTextError(first, column_type.name, "valid UTF-8") from None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def string_type(name: str) -> ColumnType:
    return ColumnType(name, pa.string(), False, load_string)


def _named(name: str) -> Callable[[int], ColumnType]:
    return always(string_type(name))


def _sized(name: str, bare: str, header: int) -> Callable[[int], ColumnType]:
    """A type whose modifier is a size plus PostgreSQL's ``header`` (VARHDRSZ, 4, for the character types)."""
    return lambda typmod: string_type(f"{name}({typmod - header})" if typmod >= header else bare)


TYPES: TypeTable = {
    18: _named('"char"'),
    19: _named("name"),
    24: _named("regproc"),
    25: _named("text"),
    27: _named("tid"),
    29: _named("cid"),
    114: _named("json"),
    142: _named("xml"),
    600: _named("point"),
    601: _named("lseg"),
    602: _named("path"),
    603: _named("box"),
    604: _named("polygon"),
    628: _named("line"),
    650: _named("cidr"),
    718: _named("circle"),
    774: _named("macaddr8"),
    790: _named("money"),
    829: _named("macaddr"),
    869: _named("inet"),
    1033: _named("aclitem"),
    1042: _sized("char", "bpchar", 4),
    1043: _sized("varchar", "varchar", 4),
    1083: _sized("time", "time", 0),
    1186: _named("interval"),
    1266: _sized("timetz", "timetz", 0),
    1560: _sized("bit", "bit", 0),
    1562: _sized("varbit", "varbit", 0),
    1790: _named("refcursor"),
    2202: _named("regprocedure"),
    2203: _named("regoper"),
    2204: _named("regoperator"),
    2205: _named("regclass"),
    2206: _named("regtype"),
    2950: _named("uuid"),
    2970: _named("txid_snapshot"),
    3220: _named("pg_lsn"),
    3614: _named("tsvector"),
    3615: _named("tsquery"),
    3734: _named("regconfig"),
    3769: _named("regdictionary"),
    3802: _named("jsonb"),
    4072: _named("jsonpath"),
    4089: _named("regnamespace"),
    4096: _named("regrole"),
    4191: _named("regcollation"),
    5038: _named("pg_snapshot"),
    5069: _named("xid8"),
}
