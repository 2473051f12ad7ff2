"""The options of the forget job, and the YAML file that says what to erase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, model_validator
from pydantic.dataclasses import dataclass as section

from pgoutput_etl.config.key_checks import (
    SETTINGS,
    Section,
    as_mapping,
    checked,
    expected,
    items,
    mistake,
    setting,
    text,
)
from pgoutput_etl.config.yaml_file import read_document
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.options import FILE, Option
from pgoutput_etl.protocol.messages import Message
from pgoutput_etl.work.snapshot.request import RowFormat

_LEAST_TEXT = 4  # characters; almost every file contains shorter texts


@dataclass(frozen=True, slots=True)
class ForgetRequest:
    """request: path of a file, see `read_erasure`. prove: also compares the tables with the archive."""

    request: Annotated[str, Option("what to erase, as YAML: see docs/forget.md", FILE)]
    execute: Annotated[
        bool, Option("erase"), Option("change nothing, as without --execute", name="--dry-run", means=False)
    ] = False
    prove: Annotated[bool, Option("look for what should be gone, in all bytes")] = False

    def check(self) -> None:
        """Raises ConfigError for invalid values."""
        if self.execute and self.prove:
            raise ConfigError("--prove: expected without --execute: run it afterwards")
        read_erasure(self.request)


@dataclass(frozen=True, slots=True)
class TableErasure:
    """name: schema.table. conditions: texts by column; a version of a row is erased if it matches all columns of one
    condition. A key is a condition, too."""

    name: str
    conditions: tuple[tuple[tuple[str, str], ...], ...]


@section(frozen=True, config=SETTINGS)
class MessageErasure(Section):
    """Logical decoding Messages to erase. contains: a text within the content; prefix: None for any."""

    contains: Annotated[str, text("a text")]
    prefix: Annotated[str, text("the Messages' prefix")] | None = None

    def fits(self, message: Message) -> bool:
        return self.prefix in (None, message.prefix) and self.contains.encode() in message.content


def _lsn(value: str) -> int:
    try:
        return parse_lsn(value)
    except ValueError as error:
        raise mistake(str(error)) from None


_Path: TypeAlias = Annotated[str, text("a path")]


@section(frozen=True, config=SETTINGS)
class SnapshotErasure(Section):
    """Files from which a snapshot of a table was loaded. table: schema.table. columns: as in SnapshotRequest. lsn: the
    snapshot's; None if there is only one. csv, copy, dump: one of them is the path."""

    table: Annotated[str, text("schema.table")]
    columns: Annotated[tuple[Annotated[str, text("a column's name")], ...], items("a list of names")] = ()
    lsn: Annotated[int, BeforeValidator(_lsn), text("the snapshot's LSN, such as 16/B374D848")] | None = None
    csv: _Path | None = None
    copy: _Path | None = None
    dump: _Path | None = None

    @property
    def _paths(self) -> dict[RowFormat, str]:
        paths = {own: getattr(self, own.value) for own in RowFormat}
        return {own: path for own, path in paths.items() if path is not None}

    @model_validator(mode="after")
    def _one_format(self) -> SnapshotErasure:
        if len(self._paths) != 1:
            raise mistake("expected one of csv, copy, and dump")
        if self.columns and RowFormat.BINARY not in self._paths:
            raise mistake("expected only with copy; other formats name their columns", "columns")
        return self

    @property
    def format(self) -> RowFormat:
        [own] = self._paths
        return own

    @property
    def path(self) -> str:
        return self._paths[self.format]


@dataclass(frozen=True, slots=True)
class Erasure:
    """by: who asked. reference: identifies the request, such as a ticket; a run that died is finished with the same
    reference. search: additional texts that --prove searches for in all bytes. file: the request's path."""

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
        """The texts to search bytes for, without texts of keys and conditions that are too short for that."""
        values = (text for table in self.tables for condition in table.conditions for _, text in condition)
        texts = [*values, *(message.contains for message in self.messages)]
        return tuple(dict.fromkeys([*self.search, *filter(is_searched, texts)]))


def is_searched(text: str) -> bool:
    return len(text) >= _LEAST_TEXT


def read_erasure(path: str) -> Erasure:
    """Raises ConfigError, whose text contains no value."""
    found: _File = checked(_File, read_document(path))
    tables = tuple(table.erasure for table in found.tables)
    return Erasure(found.requested_by, found.reference, tables, found.messages, found.search, found.snapshots, path)


def read_tables(path: str) -> tuple[TableErasure, ...]:
    """Reads a file that only has tables. Raises ConfigError, whose text contains no value."""
    return tuple(table.erasure for table in checked(_Tables, read_document(path)).tables)


def _condition(value: object) -> Mapping[str, object]:
    columns = as_mapping(value)
    if not columns or columns != value:
        raise expected(value, "columns with their values, which are not null, such as {id: 30}")
    return columns


def _value(value: object) -> str:
    """A YAML value as PostgreSQL's text."""
    return setting(value)[0] if isinstance(value, bool) else setting(value)


_Condition: TypeAlias = Annotated[Mapping[str, Annotated[str, BeforeValidator(_value)]], BeforeValidator(_condition)]


@section(frozen=True, config=SETTINGS)
class _Table(Section):
    table: Annotated[str, text("schema.table")]
    keys: Annotated[tuple[_Condition, ...], items("a list of keys, such as [{id: 30}]")] = ()
    where: _Condition | None = None

    @model_validator(mode="after")
    def _has_condition(self) -> _Table:
        if not self.keys and self.where is None:
            raise mistake("expected keys, or where")
        return self

    @property
    def erasure(self) -> TableErasure:
        conditions = (*self.keys, *(() if self.where is None else (self.where,)))
        return TableErasure(self.table, tuple(tuple(condition.items()) for condition in conditions))


_TableList: TypeAlias = Annotated[tuple[_Table, ...], items("a list of tables")]


@section(frozen=True, config=SETTINGS)
class _Tables(Section):
    tables: _TableList = ()


@section(frozen=True, config=SETTINGS)
class _File(Section):
    requested_by: Annotated[str, text("who asks for the erasure")]
    reference: Annotated[str, text("the request's number or name")]
    tables: _TableList = ()
    messages: Annotated[tuple[MessageErasure, ...], items("a list of messages")] = ()
    search: Annotated[tuple[Annotated[str, text("a text to look for")], ...], items("a list of texts")] = ()
    snapshots: Annotated[tuple[SnapshotErasure, ...], items("a list of files")] = ()

    @model_validator(mode="after")
    def _erases(self) -> _File:
        if not self.tables and not self.messages:
            raise mistake("expected tables or messages to erase")
        names = {table.table for table in self.tables}
        for i, snapshot in enumerate(self.snapshots):
            if snapshot.table not in names:
                raise mistake("expected a table that is among tables", "snapshots", i, "table")
        return self
