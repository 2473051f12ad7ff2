"""The options of the forget job, and what to erase, as a YAML file says it."""

from __future__ import annotations

import os
from collections.abc import Container
from dataclasses import dataclass

from pgoutput_etl.config.yaml_file import Node, read_node
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.jobs.snapshot.request import RowFormat
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.protocol.messages import Message

_LEAST_TEXT = 4  # characters; shorter texts are in almost every file


@dataclass(frozen=True, slots=True)
class ForgetRequest:
    """request: a YAML file, see `read_erasure`. execute: erase, instead of reporting what would be erased. prove: look
    for what should be erased, and compare the tables with the archive."""

    request: str
    execute: bool = False
    prove: bool = False

    def check(self) -> None:
        """Raises ConfigError."""
        if self.execute and self.prove:
            raise ConfigError("--prove: expected without --execute: run it afterwards")
        read_erasure(self.request)


@dataclass(frozen=True, slots=True)
class TableErasure:
    """name: schema.table. conditions: a version of a row is erased if all columns of one have these texts. A key is a
    condition, too."""

    name: str
    conditions: tuple[tuple[tuple[str, str], ...], ...]


@dataclass(frozen=True, slots=True)
class MessageErasure:
    """Logical decoding Messages. prefix: None for any; contains: a text that the content has."""

    prefix: str | None
    contains: str

    def fits(self, message: Message) -> bool:
        return self.prefix in (None, message.prefix) and self.contains.encode() in message.content


@dataclass(frozen=True, slots=True)
class SnapshotErasure:
    """Files that a snapshot of a table was loaded from. table: schema.table. path, columns: as in SnapshotRequest. lsn:
    the snapshot's; None for the only one."""

    table: str
    path: str
    format: RowFormat
    columns: tuple[str, ...] = ()
    lsn: int | None = None


@dataclass(frozen=True, slots=True)
class Erasure:
    """by: who asked. reference: of the request, such as a ticket: it identifies the request, so that a run that died is
    finished with the same one. search: texts that --prove looks for in all bytes, besides those of the conditions.
    file: the request's."""

    by: str
    reference: str
    tables: tuple[TableErasure, ...]
    messages: tuple[MessageErasure, ...]
    search: tuple[str, ...] = ()
    snapshots: tuple[SnapshotErasure, ...] = ()
    file: str = ""

    def is_chosen(self, message: Message) -> bool:
        return any(wanted.fits(message) for wanted in self.messages)

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts to look for in bytes. Texts of keys and conditions that are too short for that are left out."""
        values = (text for table in self.tables for condition in table.conditions for _, text in condition)
        texts = [*values, *(message.contains for message in self.messages)]
        return tuple(dict.fromkeys([*self.search, *filter(is_searched, texts)]))


def is_searched(text: str) -> bool:
    return len(text) >= _LEAST_TEXT


def read_erasure(path: str) -> Erasure:
    """Raises ConfigError, which names no value."""
    node = read_node(path, (), os.environ)
    keys = node.section("requested_by", "reference", "tables", "messages", "search", "snapshots")
    by = keys["requested_by"].text("who asks for the erasure")
    reference = keys["reference"].text("the request's number or name")
    tables = tuple(map(_table, keys["tables"].items("a list of tables")))
    messages = tuple(map(_message, keys["messages"].items("a list of messages")))
    if not tables and not messages:
        raise node.error("expected tables or messages to erase")
    search = tuple(text.text("a text to look for") for text in keys["search"].items("a list of texts"))
    names = {table.name for table in tables}
    snapshots = tuple(_snapshot(item, names) for item in keys["snapshots"].items("a list of files"))
    return Erasure(by, reference, tables, messages, search, snapshots, path)


def read_tables(path: str) -> tuple[TableErasure, ...]:
    """A file with tables alone. Raises ConfigError, which names no value."""
    return tuple(map(_table, read_node(path, (), os.environ).section("tables")["tables"].items("a list of tables")))


def _table(node: Node) -> TableErasure:
    keys = node.section("table", "keys", "where")
    conditions = [_condition(key) for key in keys["keys"].items("a list of keys, such as [{id: 30}]")]
    if keys["where"].value is not None:
        conditions.append(_condition(keys["where"]))
    if not conditions:
        raise node.expected("keys, or where")
    return TableErasure(keys["table"].text("schema.table"), tuple(conditions))


def _condition(node: Node) -> tuple[tuple[str, str], ...]:
    columns = node.mapping()
    if not columns or (isinstance(node.value, dict) and len(columns) < len(node.value)):
        raise node.expected("columns with their values, which are not null, such as {id: 30}")
    return tuple((name, _text(value)) for name, value in columns.items())


def _text(node: Node) -> str:
    """PostgreSQL's text."""
    return node.setting()[0] if isinstance(node.value, bool) else node.setting()


def _snapshot(node: Node, tables: Container[str]) -> SnapshotErasure:
    keys = node.section("table", "columns", "lsn", *(own.value for own in RowFormat))
    table = keys["table"].text("schema.table")
    if table not in tables:
        raise keys["table"].expected("a table that is among tables")
    formats = [own for own in RowFormat if keys[own.value].value is not None]
    if len(formats) != 1:
        raise node.expected("one of csv, copy, and dump")
    columns = tuple(name.text("a column's name") for name in keys["columns"].items("a list of names"))
    if columns and formats != [RowFormat.BINARY]:
        raise keys["columns"].error("expected only with copy; other formats name their columns")
    path = keys[formats[0].value].text("a path")
    return SnapshotErasure(table, path, formats[0], columns, _lsn(keys["lsn"]))


def _lsn(node: Node) -> int | None:
    text = node.optional_text("the snapshot's LSN, such as 16/B374D848")
    try:
        return None if text is None else parse_lsn(text)
    except ValueError as error:
        raise node.error(str(error)) from None


def _message(node: Node) -> MessageErasure:
    keys = node.section("prefix", "contains")
    return MessageErasure(keys["prefix"].optional_text("the Messages' prefix"), keys["contains"].text("a text"))
