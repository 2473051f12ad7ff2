"""An open transaction of the model server: its subtransactions, its locks, and the log of its changes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from tests.support.model.catalog import Definition, Layout, Publication, Row


class RowChange(NamedTuple):
    oid: int
    row: int
    before: Row | None
    after: Row | None


class DefinitionChange(NamedTuple):
    oid: int
    before: Definition | None
    after: Definition | None


class PublicationChange(NamedTuple):
    before: Publication | None
    after: Publication


class RowSent(NamedTuple):
    """A published change of a row, from which an archive learns the table's name and columns. empties: a TRUNCATE."""

    oid: int
    layout: Layout
    empties: bool = False


class NotPublished(NamedTuple):
    """No archive knows all rows of the table from here on."""

    oid: int
    reason: str


class CatalogRow(NamedTuple):
    """A catalog Message's row in pgoutput_etl.catalog_lock, and the rows that it replaces."""

    number: int
    after: tuple[int, ...]


Entry = RowChange | DefinitionChange | PublicationChange | RowSent | NotPublished | CatalogRow


class Subtransaction:
    __slots__ = ("children", "entries", "locks", "xid")

    def __init__(self, entries: int = 0, locks: int = 0) -> None:
        self.xid: int | None = None
        self.children: list[int] = []  # xids of released subtransactions
        self.entries, self.locks = entries, locks  # of the transaction, where this begins


class Transaction:
    """stack: the transaction, then its open subtransactions. overtaken: tables that one transaction used while another
    altered the publication. new_storage: tables whose files this (sub)transaction created."""

    __slots__ = ("locks", "log", "new_storage", "origin", "origin_lsn", "overtaken", "publication", "stack")

    def __init__(self, origin: str | None = None, origin_lsn: int = 0) -> None:
        self.stack = [Subtransaction()]
        self.log: list[Entry] = []
        self.locks: list[tuple[str, Hashable]] = []
        self.publication: Publication | None = None  # altered by this transaction
        self.overtaken: set[int] = set()
        self.new_storage: dict[int, Subtransaction] = {}
        self.origin, self.origin_lsn = origin, origin_lsn

    @property
    def xid(self) -> int | None:
        return self.stack[0].xid
