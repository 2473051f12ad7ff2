"""Catalog Messages as conf/landing/catalog.sql sends them, without a server."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from pgoutput_etl.protocol.catalog_message import PREFIX
from pgoutput_etl.protocol.messages import Message, Relation

KEY = bytes(range(32))
_LSN = 5


def signed(body: object, key: bytes = KEY) -> bytes:
    text = json.dumps(body).encode()
    return sha256(key + sha256(key + text).digest()).hexdigest().encode() + text


def definition(relation: Relation, numbers: Iterable[int], **columns: str) -> dict[str, Any]:
    """A relation's columns with these numbers. columns: their initial values."""
    described = [
        {"number": number, "name": column.name, "type": column.type_oid, "modifier": column.type_modifier}
        | ({"initial": columns[column.name]} if column.name in columns else {})
        for number, column in zip(numbers, relation.columns, strict=True)
    ]
    return {"oid": relation.oid, "schema": relation.namespace, "name": relation.name, "columns": described}


@dataclass(slots=True)
class CatalogSender:
    """The server's sequence, and its rows of Messages that no other has in `after`."""

    number: int = 0
    rows: list[int] = field(default_factory=list)
    epoch: int = 3

    def message(self, xid: int, *tables: dict[str, Any], subxid: int | None = None, **body: Any) -> Message:
        """In a transaction that commits before the next Message, unless the body has another `after`."""
        self.number += 1
        numbered = {"version": 1, "xid": subxid or xid, "transaction": (self.epoch << 32) + xid, "number": self.number}
        described = {"tables": [*tables]} if tables else {}
        content = signed({**numbered, "command": "ALTER TABLE", "after": self.rows, **described, **body})
        self.rows = [self.number]
        return Message(None, True, _LSN, PREFIX, content)
