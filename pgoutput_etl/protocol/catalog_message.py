"""The Messages of conf/landing/catalog.sql, which describe changes of tables' definitions.

Content: 64 hexadecimal digits, sha256(key || sha256(key || text)), and then the text, a JSON object. Each one is
followed by an empty Message, which means nothing.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from pgoutput_etl.protocol.messages import RelationColumn, TypeDefinition, TypeForm
from pgoutput_etl.protocol.partition_bound import PartitionBound, read_bound

PREFIX = "pgoutput_etl.catalog"

VERSION = 1

SEND_CATALOG = "send_catalog"  # in place of a command's tag

TABLE = 0  # in place of a column's number

_DIGEST = 64  # hexadecimal digits

_OIDS, _NUMBERS, _MODIFIERS = 2**32, 2**15, 2**31  # exclusive upper limits of their values
_XIDS, _SEQUENCE = 2**32, 2**63


class CatalogMessageError(Exception):
    """The reason why a Message is ignored, without any of its content."""


@dataclass(frozen=True, slots=True)
class DefinedTable:
    """A table and all of its columns, even those that the publication omits. The columns' is_key is not set. root: of a
    partition. is_root: the Message also has all of its partitions. is_created: it is new, and published. omitted:
    numbers of generated columns that no publication sends. partitions: OIDs of its own; None if it can't have any.
    parent, bound: of a partition. comments: by column number; 0 is the table. keys: as in CatalogMark."""

    oid: int
    namespace: str
    name: str
    columns: tuple[RelationColumn, ...]
    root: int | None = None
    is_root: bool = False
    is_created: bool = False
    omitted: tuple[int, ...] = ()
    partitions: tuple[int, ...] | None = None
    parent: int | None = None
    bound: PartitionBound | None = None
    comments: tuple[tuple[int, str], ...] = field(default=(), repr=False)
    keys: tuple[tuple[int, ...], ...] = ()

    @property
    def last_number(self) -> int:
        return max((column.number or 0 for column in self.columns), default=0)


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """xid: of the whole transaction that contains a Message; None if the transaction's beginning is unreadable.
    last_number: of the previous Message in it. newest: the newest transaction of the archive's Messages, with its
    epoch."""

    xid: int | None
    last_number: int = 0
    newest: int = 0


@dataclass(frozen=True, slots=True)
class CatalogMessage:
    """tables: their new definitions. rewritten: OIDs of tables, and of their roots, whose values the server recomputed
    and did not send. is_cast: by a cast. is_filled: only values of columns that the command adds. dropped: OIDs.
    is_resent: nothing has changed. is_unknown: a change could not be described. xid: of the subtransaction, which
    pgoutput doesn't send: it gives a Message in a stream segment the xid of the whole transaction (pgoutput_message).
    transaction: the xid of the whole transaction, with its epoch. number: from the server's sequence. after: as in
    transactions/catalog_numbers.py. command: its tag. is_verified: a key proves that it is the server's. is_unlogged:
    the tables were SET UNLOGGED or SET LOGGED instead. unpublished, published: OIDs of tables that left all
    publications, or joined the first one. truncated: OIDs of partitions."""

    tables: tuple[DefinedTable, ...] = ()
    rewritten: tuple[int, ...] = ()
    is_cast: bool = False
    is_filled: bool = False
    dropped: tuple[int, ...] = ()
    is_resent: bool = False
    is_unknown: bool = False
    xid: int | None = None
    transaction: int = 0
    number: int = 0
    after: tuple[int, ...] = ()
    command: str = ""
    is_verified: bool = False
    is_unlogged: bool = False
    unpublished: tuple[int, ...] = ()
    published: tuple[int, ...] = ()
    truncated: tuple[int, ...] = ()

    @property
    def identity(self) -> int | None:
        """Identifies a Message even if it is sent twice. After catalog-remove.sql, numbers may start over."""
        return self.number << 32 | self.xid if self.number and self.xid is not None else None

    @property
    def is_after_rows(self) -> bool:
        """True if the command created a table with rows, which precede the Message."""
        return self.command in ("CREATE TABLE AS", "SELECT INTO")

    def check_is_original(self, place: MessagePlace) -> None:
        """Raises CatalogMessageError for a signed Message that was copied from the archive and sent again."""
        is_of_transaction = self.transaction % _XIDS == place.xid and self.transaction > place.newest - _XIDS // 2
        if not is_of_transaction or self.number <= place.last_number:
            raise CatalogMessageError("they are copies of earlier ones")


def read_catalog_message(content: bytes, key: bytes | None) -> CatalogMessage:
    """key: as configured; without one, any digest is accepted. Raises CatalogMessageError."""
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
    is_filled = rewritten is not None and rewritten.get("is_filled") is True  # not sent by earlier versions
    created = frozenset(body.get("created", ()))
    tables = tuple(_table(table, created) for table in body.get("tables", ()))
    dropped = tuple(map(_number, body.get("dropped", ())))
    xid, command = _number(body["xid"]), _text(body.get("command", ""))
    is_resent = command == SEND_CATALOG
    found = CatalogMessage(tables, tuple(sorted(oids)), is_cast, is_filled, dropped, is_resent, "unknown" in body, xid)
    transaction, number = _number(body.get("transaction", 0), _SEQUENCE), _number(body.get("number", 0), _SEQUENCE)
    after = tuple(_number(earlier, _SEQUENCE) for earlier in body.get("after", ()))
    found = replace(found, transaction=transaction, number=number, after=after, command=command)
    is_unlogged = rewritten is not None and bool(_number(rewritten.get("reasons", 0)) & 1)
    unpublished, published, truncated = (
        tuple(map(_number, body.get(name, ()))) for name in ("unpublished", "published", "truncated")
    )
    return replace(found, is_unlogged=is_unlogged, unpublished=unpublished, published=published, truncated=truncated)


def _table(table: Mapping[str, Any], created: frozenset[int]) -> DefinedTable:
    columns = tuple(map(_column, table["columns"]))
    names = (_text(table["schema"]), _text(table["name"]))
    root = _number(table["root"]) if "root" in table else None
    oid, is_root = _number(table["oid"]), table.get("kind") == "p" and root is None
    omitted = tuple(_number(column["number"]) for column in table["columns"] if column.get("omitted") is True)
    found = DefinedTable(oid, *names, columns, root, is_root, oid in created, omitted)
    keys = tuple(tuple(_number(number, _NUMBERS) for number in key) for key in table.get("keys", ()))
    found = replace(found, comments=tuple(_comments(table)), keys=keys)
    found = replace(found, partitions=tuple(map(_number, table["partitions"]))) if "partitions" in table else found
    if "partition" not in table:
        return found
    partition = table["partition"]
    return replace(found, parent=_number(partition["parent"]), bound=_bound(partition, table["bound"]))


def _bound(partition: Mapping[str, Any], text: object) -> PartitionBound | None:
    """None for a bound that can't be compared with a row."""
    names = partition["columns"]
    if partition["is_plain"] is not True or None in names:
        return None
    return read_bound(_text(text), [_text(name) for name in names])


def _comments(table: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    for described in ({**table, "number": TABLE}, *table["columns"]):
        if "comment" in described:
            yield described["number"], _text(described["comment"])


def _column(column: Mapping[str, Any]) -> RelationColumn:
    type_oid, modifier = _number(column["type"]), _number(column["modifier"], _MODIFIERS)
    form = _form(column["form"]) if column.get("form", {}).keys() - {"types"} else None
    number = _number(column["number"], _NUMBERS)
    types = tuple(map(_type, column.get("form", {}).get("types", ())))
    found = RelationColumn(False, _text(column["name"]), type_oid, modifier, number, form, types=types)
    return replace(found, initial=_text(column["initial"]).encode()) if "initial" in column else found


def _form(form: Mapping[str, Any]) -> TypeForm:
    labels = tuple((_number(oid), _text(label)) for oid, label in form.get("labels", ()))
    attributes = tuple(_number(number, _NUMBERS) for number in form.get("attributes", ()))
    nested = _text(form["nested"]) if "nested" in form else None
    return TypeForm(labels, attributes, nested, _number(form["modifier"], _MODIFIERS) if "modifier" in form else None)


def _type(found: Mapping[str, Any]) -> TypeDefinition:
    named = (_number(found["oid"]), _text(found["kind"]), _text(found["schema"]), _text(found["name"]))
    of = _number(found["of"]) if "of" in found else None
    return TypeDefinition(*named, of, _number(found.get("modifier", -1), _MODIFIERS))


def _number(value: object, below: int = _OIDS) -> int:
    if type(value) is not int or not -1 <= value < below:
        raise TypeError("number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("text")
    return value
