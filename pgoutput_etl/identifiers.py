"""Names from an archive, made safe for where they go: the one place that quotes.

A column's name may hold anything but NUL. In Spark's expressions it stands in backticks, in a path percent-encoded, on
a terminal with its control characters escaped.

A Delta table's *place* is the path of its folder or, in a catalog, its name there, each part in backticks.
"""

from __future__ import annotations

import re
from posixpath import normpath

MAX_SEGMENT = 255  # bytes that file systems hold in the name of a file or folder

_IN_CATALOGS = re.compile(r"[A-Za-z0-9_]+")

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-$")


def printable(text: str) -> str:
    """Nothing of it reaches a terminal or a log as a command, or turns the direction of what stands around it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def quoted(name: str) -> str:
    """A column's name for Spark: `a.b` stays one name, not field b of a."""
    return "`" + name.replace("`", "``") + "`"


def path_segment(name: str) -> str:
    """A schema's or table's name as one folder of a path.

    What a path can't safely hold is percent-encoded (UTF-8): all but ASCII letters, digits, `_`, `-`, `$`, and dots and
    spaces inside the name. Not ASCII, as a JVM under the C locale can't name such files; not a leading `_` or dot, as
    Spark takes such folders for hidden, the ledger's is one, and no name shall lead out of the target.
    """
    last = len(name) - 1
    return "".join(c if _is_plain(c, i, last) else _percent_encoded(c) for i, c in enumerate(name))


def _is_plain(c: str, i: int, last: int) -> bool:
    if c == "_":
        return i > 0
    if c in ". ":
        return 0 < i < last
    return c in _PLAIN


def _percent_encoded(c: str) -> str:
    return "".join(f"%{byte:02X}" for byte in c.encode())


def catalog_place(catalog: str, schema: str, table: str) -> str:
    """`catalog`.`schema`.`table`, in lower case, as catalogs take names that differ in nothing but case for one; with
    a prefix, as in main.shop, `main`.`shop_schema`.`table`."""
    name, _, prefix = catalog.partition(".")
    parts = (name, f"{prefix}_{schema}" if prefix else schema, table)
    return ".".join(quoted(part.lower()) for part in parts)


def is_catalog_place(place: str) -> bool:
    return place.startswith("`")


def may_be_in_catalog(name: str) -> bool:
    """Whether every catalog takes it: Hive's and Spark's own have no other characters."""
    return _IN_CATALOGS.fullmatch(name) is not None


def identifier(place: str) -> str:
    """As SQL names a Delta table."""
    return place if is_catalog_place(place) else f"delta.{quoted(place)}"


def is_within(path: str, folder: str) -> bool:
    """Whether a path is the folder or below it, as far as their texts say."""
    inner, outer = (normpath(text.removeprefix("file://").removeprefix("file:")) for text in (path, folder))
    if outer == ".":
        return not inner.startswith(("/", "..")) and ":" not in inner
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")
