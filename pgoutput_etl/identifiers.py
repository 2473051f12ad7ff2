"""Quotes names from an archive for Spark expressions, paths, catalogs, and terminals. Nothing else quotes names.

PostgreSQL allows every character except NUL in a name. A database in SQL_ASCII also allows any other byte: here, a byte
that isn't UTF-8 is represented by NUL and two digits, so that no other name has the same text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from glob import escape
from posixpath import normpath

EXCLUDED = "!"  # begins a pattern for tables to leave out

MAX_SEGMENT = 255  # bytes in the name of a file or folder

_IN_CATALOGS = re.compile(r"[A-Za-z0-9_]+")

_NOT_PLAIN = re.compile(r"\A[_. ]|[. ]\Z|[^A-Za-z0-9_$. -]")  # in a file's name


_NO_TEXT = re.compile("\0([0-9a-f]{2})")  # a byte of a name that isn't UTF-8

_LONE = "[\udc80-\udcff]"  # how Python represents such a byte


def name_of(sent: bytes) -> str:
    """A name as text, regardless of its bytes."""
    return re.sub(_LONE, lambda byte: f"\0{ord(byte[0]) - 0xDC00:02x}", sent.decode("utf-8", "surrogateescape"))


def bytes_of(name: str) -> bytes:
    """The bytes of a name from `name_of`."""
    return b"".join(bytes.fromhex(part) if i % 2 else part.encode() for i, part in enumerate(_NO_TEXT.split(name)))


def is_utf8_name(name: str) -> bool:
    """False for a name from `name_of` whose bytes are not UTF-8."""
    return "\0" not in name


def printable(text: str) -> str:
    """Escapes control characters, including those that reverse the direction of text, and bytes in names."""
    text = _NO_TEXT.sub(r"\\x\1", text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def pattern_of(name: str) -> str:
    """A shell pattern for `--tables` that matches a table's name. Commas, which separate patterns, an exclamation mark
    at the beginning, and characters for bytes that aren't UTF-8 become wildcards for one character."""
    pattern = _NO_TEXT.sub("???", escape(name).replace(",", "?"))
    return f"?{pattern[1:]}" if pattern.startswith(EXCLUDED) else pattern


def patterns_of(names: Iterable[str]) -> str:
    """The value of `--tables` that chooses these tables."""
    return ",".join(map(pattern_of, names))


def is_chosen(name: str, patterns: Sequence[str]) -> bool:
    """True if a table's name matches a shell pattern of `--tables` and none of those with an exclamation mark. If all
    patterns exclude tables, all other tables are chosen."""
    chosen = [pattern for pattern in patterns if not pattern.startswith(EXCLUDED)] or ["*"]
    excluded = [pattern.removeprefix(EXCLUDED) for pattern in patterns if pattern.startswith(EXCLUDED)]
    return _matches_any(name, chosen) and not _matches_any(name, excluded)


def unmatched(patterns: Iterable[str], names: Collection[str]) -> Iterator[str]:
    """The patterns of `--tables`, without exclamation marks, that match no table's name."""
    for pattern in (pattern.removeprefix(EXCLUDED) for pattern in patterns):
        if not any(fnmatchcase(name, pattern) for name in names):
            yield pattern


def _matches_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def forms(name: str) -> frozenset[str]:
    """Two names that Spark or Delta considers equal have a common form.

    Spark compares names like Java's equalsIgnoreCase, which maps each character to upper and then lower case, or by
    their lower case, which may have more characters: `İd` becomes `id` in the former, and `i̇d`, with a combining dot,
    in the latter.
    """
    upper = (c if len(c.upper()) > 1 else c.upper() for c in name)
    return frozenset(("".join(c.lower()[0] for c in upper), name.lower()))


def quoted(name: str) -> str:
    """A column's name for Spark: `a.b` is one name, not field b of a."""
    return "`" + name.replace("`", "``") + "`"


def unquoted(name: str) -> str:
    """A name without Spark's quotes, if it has any."""
    return name[1:-1].replace("``", "`") if len(name) > 1 and name[0] == name[-1] == "`" else name


def text_literal(text: str) -> str:
    """A literal for Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def path_segment(name: str) -> str:
    """A schema's or table's name as one folder of a path.

    Percent-encodes (UTF-8) everything except ASCII letters, digits, `_`, `-`, `$`, and dots and spaces inside the name:
    with the C locale, a JVM can't create other file names. A leading `_` or dot is also encoded: Spark ignores such
    folders, the ledger's folder begins with `_`, and `..` would lead out of the target.
    """
    return _NOT_PLAIN.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


def may_be_in_catalog(name: str) -> bool:
    """True if every catalog accepts the name: those of Hive and Spark don't allow other characters."""
    return _IN_CATALOGS.fullmatch(name) is not None


def is_within(path: str, folder: str) -> bool:
    """True if the path is the folder or is below it, judging by the text alone."""
    inner, outer = (normpath(text.removeprefix("file://").removeprefix("file:")) for text in (path, folder))
    if outer == ".":
        return not inner.startswith(("/", "..")) and ":" not in inner
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


_LONG = 4  # characters; a name of this length is unlikely to be part of another by accident


def is_named_after(other: tuple[str, str], name: tuple[str, str]) -> bool:
    """True if a table's name is another one's with an addition before or after it (`t_new`, `new_t`), or is the same
    name in another schema. `t15` is not `t1` with an addition, but another number. other, name: schema and table."""
    (schema, table), (base_schema, base) = other, name
    if table == base:
        return schema != base_schema
    ends = (
        table[len(base) :][:1] if table.startswith(base) else "",
        table[: -len(base)][-1:] if base and table.endswith(base) else "",
    )
    if base[-1:].isdigit() and ends[0].isdigit():
        return False
    return bool(base) and any(end and (len(base) >= _LONG or not end.isalnum()) for end in ends)
