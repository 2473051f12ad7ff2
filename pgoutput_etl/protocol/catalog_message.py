"""The Messages of conf/landing/catalog.sql, which tell how the definitions of tables change.

Content: 64 hexadecimal digits, sha256(key || sha256(key || text)), and the text, a JSON object. An empty Message stands
behind each, and means nothing.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from pgoutput_etl.protocol.messages import RelationColumn, TypeForm
from pgoutput_etl.protocol.partition_bound import PartitionBound, read_bound

PREFIX = "pgoutput_etl.catalog"

VERSION = 1

_DIGEST = 64  # hexadecimal digits

_OIDS, _NUMBERS, _MODIFIERS = 2**32, 2**15, 2**31  # the number of each


class CatalogMessageError(Exception):
    """The reason why a Message doesn't count, without any of its content."""


@dataclass(frozen=True, slots=True)
class DefinedTable:
    """A table and all of its columns, which the publication may leave out. is_key is not set. root: of a partition.
    is_root: the Message has all of its partitions, too. is_created: it is new, and published. has_generated: some
    columns are. partitions: OIDs of its own, None if it can have
    none. parent, bound: of a partition."""

    oid: int
    namespace: str
    name: str
    columns: tuple[RelationColumn, ...]
    root: int | None = None
    is_root: bool = False
    is_created: bool = False
    has_generated: bool = False
    partitions: tuple[int, ...] | None = None
    parent: int | None = None
    bound: PartitionBound | None = None

    @property
    def last_number(self) -> int:
        return max((column.number or 0 for column in self.columns), default=0)


@dataclass(frozen=True, slots=True)
class CatalogMessage:
    """tables: their new definitions. rewritten: OIDs of tables, and of their roots, whose values the server computed
    anew and did not send. is_cast: by a cast. dropped: OIDs. is_resent: nothing has changed. is_unknown: a change could
    not be described. xid: of the subtransaction, which pgoutput does not tell: it gives a Message in a stream segment
    the xid of the whole transaction (pgoutput_message). number: of the Message.
    is_verified: a key proves that it is the server's. is_unlogged: the tables were SET UNLOGGED or SET LOGGED instead.
    unpublished, published: OIDs of tables that left all publications, or are in the first one. truncated: OIDs of
    partitions."""

    tables: tuple[DefinedTable, ...] = ()
    rewritten: tuple[int, ...] = ()
    is_cast: bool = False
    dropped: tuple[int, ...] = ()
    is_resent: bool = False
    is_unknown: bool = False
    xid: int | None = None
    number: int | None = None
    is_verified: bool = False
    is_unlogged: bool = False
    unpublished: tuple[int, ...] = ()
    published: tuple[int, ...] = ()
    truncated: tuple[int, ...] = ()

    @property
    def identity(self) -> int | None:
        """A Message that is sent twice keeps it. catalog-remove.sql lets numbers begin again."""
        return None if self.number is None or self.xid is None else self.number << 32 | self.xid


def read_catalog_message(content: bytes, key: bytes | None) -> CatalogMessage:
    """key: of the configuration; without one, any digest is accepted. Raises CatalogMessageError."""
    digest, text = content[:_DIGEST], content[_DIGEST:]
    if key is not None:
        expected = sha256(key + sha256(key + text).digest()).hexdigest().encode()
        if not hmac.compare_digest(digest, expected):
            raise CatalogMessageError("their digest is not made with source.catalog_key")
    try:
        return replace(_message(json.loads(text)), is_verified=key is not None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CatalogMessageError("conf/landing/catalog.sql does not write such Messages") from None


def _message(body: Mapping[str, Any]) -> CatalogMessage:
    if body["version"] != VERSION:
        raise CatalogMessageError(f"they have another version than {VERSION}")
    rewritten, oids = body.get("rewritten"), set[int]()
    if rewritten is not None:
        oids = {_number(rewritten[name]) for name in ("oid", "root") if name in rewritten}
    is_cast = rewritten is not None and rewritten["is_cast"] is True
    created = frozenset(body.get("created", ()))
    tables = tuple(_table(table, created) for table in body.get("tables", ()))
    dropped = tuple(map(_number, body.get("dropped", ())))
    is_resent = body.get("command") == "send_catalog"
    xid, number = _number(body["xid"]), _number(body["number"], 2**63) if "number" in body else None
    is_unlogged = rewritten is not None and bool(_number(rewritten.get("reasons", 0)) & 1)
    moved = (tuple(map(_number, body.get(name, ()))) for name in ("unpublished", "published", "truncated"))
    message = (tables, tuple(sorted(oids)), is_cast, dropped, is_resent, "unknown" in body, xid, number)
    return CatalogMessage(*message, False, is_unlogged, *moved)


def _table(table: Mapping[str, Any], created: frozenset[int]) -> DefinedTable:
    columns = tuple(map(_column, table["columns"]))
    names = (_text(table["schema"]), _text(table["name"]))
    root = _number(table["root"]) if "root" in table else None
    oid, is_root = _number(table["oid"]), table.get("kind") == "p" and root is None
    has_generated = any("generated" in column for column in table["columns"])
    found = DefinedTable(oid, *names, columns, root, is_root, oid in created, has_generated)
    found = replace(found, partitions=tuple(map(_number, table["partitions"]))) if "partitions" in table else found
    if "partition" not in table:
        return found
    partition = table["partition"]
    return replace(found, parent=_number(partition["parent"]), bound=_bound(partition, table["bound"]))


def _bound(partition: Mapping[str, Any], text: object) -> PartitionBound | None:
    """None for a bound that no reader can compare with a row."""
    names = partition["columns"]
    if partition["is_plain"] is not True or None in names:
        return None
    return read_bound(_text(text), [_text(name) for name in names])


def _column(column: Mapping[str, Any]) -> RelationColumn:
    type_oid, modifier = _number(column["type"]), _number(column["modifier"], _MODIFIERS)
    form = _form(column["form"]) if "form" in column else None
    number = _number(column["number"], _NUMBERS)
    found = RelationColumn(False, _text(column["name"]), type_oid, modifier, number, form)
    return replace(found, initial=_text(column["initial"]).encode()) if "initial" in column else found


def _form(form: Mapping[str, Any]) -> TypeForm:
    labels = tuple((_number(oid), _text(label)) for oid, label in form.get("labels", ()))
    attributes = tuple(_number(number, _NUMBERS) for number in form.get("attributes", ()))
    nested = _text(form["nested"]) if "nested" in form else None
    return TypeForm(labels, attributes, nested, _number(form["modifier"], _MODIFIERS) if "modifier" in form else None)


def _number(value: object, below: int = _OIDS) -> int:
    if type(value) is not int or not -1 <= value < below:
        raise TypeError("number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("text")
    return value
