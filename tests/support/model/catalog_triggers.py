"""The event triggers of conf/landing/catalog.sql on the model server: a Message for each change of a definition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pgoutput_etl.protocol.catalog_message import PREFIX
from pgoutput_etl.protocol.messages import Message
from tests.support.catalog_messages import signed
from tests.support.model.catalog import Definition, Value
from tests.support.model.server import Server
from tests.support.model.statements import Statement
from tests.support.model.transaction import CatalogRow, DefinitionChange, Transaction
from tests.support.model.wal import LogicalMessage, end_of

_EPOCH = 3


@dataclass(slots=True)
class CatalogTriggers:
    """statements: the numbers of those in which they are enabled. number: of the sequence."""

    statements: range
    number: int = 0

    def run(self, server: Server, transaction: Transaction, statement: Statement, begin: int) -> None:
        """begin: where the statement's entries in the transaction's log begin."""
        changes = [entry for entry in transaction.log[begin:] if isinstance(entry, DefinitionChange)]
        if server.statement not in self.statements:
            return
        for change in changes:
            if getattr(statement, "is_rewrite", False):
                self._send(server, transaction, rewritten={"oid": change.oid, "is_cast": True})
            if change.after is None:
                self._send(server, transaction, dropped=[change.oid])
                continue
            initial = getattr(statement, "default", None)
            is_published = change.before is None and server.publication.tables is None
            created = [change.oid] if is_published else []
            self._send(server, transaction, tables=[_described(change.after, initial)], created=created)

    def _send(self, server: Server, transaction: Transaction, **body: Any) -> None:
        self.number += 1
        xid, top = server.assign_xid(transaction)
        after = sorted(_visible(server, transaction))
        transaction.log.append(CatalogRow(self.number, tuple(after)))
        whole = (_EPOCH << 32) + server.first_xid + server.age(top)
        numbered = {"version": 1, "xid": xid, "transaction": whole, "number": self.number, "after": after}
        for content in (signed({**numbered, "command": "ALTER TABLE", **body}), b""):
            lsn = server.next_lsn()
            message = Message(None, True, end_of(lsn), PREFIX, content)
            server.wal.append(LogicalMessage(lsn, xid, top, transaction.origin, message))


def _visible(server: Server, transaction: Transaction) -> set[int]:
    """The numbers of committed Messages that no transaction has in `after`; none for its second Message."""
    if any(_rows([transaction])):
        return set()
    committed = [entry for _, log in server.commits for entry in log if isinstance(entry, CatalogRow)]
    others = [*committed, *_rows([*server.open_transactions(), *server.prepared.values()])]
    return {row.number for row in committed} - {number for row in others for number in row.after}


def _rows(transactions: list[Transaction]) -> Iterator[CatalogRow]:
    return (entry for transaction in transactions for entry in transaction.log if isinstance(entry, CatalogRow))


def _described(definition: Definition, initial: Value) -> dict[str, Any]:
    columns: list[dict[str, Any]] = [
        {"number": column.number, "name": column.name, "type": column.type_oid, "modifier": -1}
        for column in definition.columns
    ]
    if initial is not None:
        columns[-1]["initial"] = initial.decode()
    return {"oid": definition.oid, "schema": definition.namespace, "name": definition.name, "columns": columns}
