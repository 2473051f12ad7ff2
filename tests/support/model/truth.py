"""The tables as of a commit: as the server holds them, and as an archive of the publication can know them.

An archive learns of a table from published rows alone: the table's columns, key and name are those of its last
committed row. A later change of the catalog is not in the archive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.model.catalog import Column, Definition, Layout, Name, Publication, Row
from tests.support.model.transaction import (
    CatalogRow,
    DefinitionChange,
    Entry,
    NotPublished,
    PublicationChange,
    RowChange,
    RowSent,
)

TextRow = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """rows: PostgreSQL's text, sorted. unknowable: why an archive can't know these rows; None if it can. renamed: new
    column name -> the column's name in the version before."""

    oid: int
    namespace: str
    name: str
    columns: tuple[str, ...]
    types: tuple[int, ...]
    key: tuple[str, ...]
    rows: list[TextRow]
    unknowable: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def knowable(self) -> bool:
        return self.unknowable is None


class _State:
    """One table. sent: the Layout of the last published row. frozen: the rows at that time, if the catalog changed
    since."""

    __slots__ = ("definition", "frozen", "renamed", "rows", "sent", "unknowable")

    def __init__(self) -> None:
        self.definition: Definition | None = None
        self.rows: dict[int, Row] = {}
        self.sent: Layout | None = None
        self.frozen: dict[int, Row] | None = None
        self.unknowable: str | None = None
        self.renamed: dict[str, str] = {}

    def take_sent(self, layout: Layout, empties: bool) -> None:
        if self.sent is not None and self.sent is not layout:
            self._take_columns(self.sent, layout)
        if empties:
            self.unknowable = None
        self.sent, self.frozen = layout, None

    def _take_columns(self, old: Layout, new: Layout) -> None:
        before = {column.number: column.name for column in old.columns}
        for column in new.columns:
            name = before.get(column.number)
            if name is not None and name != column.name:
                self.renamed[column.name] = name
            if name is None and column.number < old.definition.next_number and self.rows:
                self.unknowable = self.unknowable or "a column was published that was not published before"

    def as_table(self, definition: Definition, columns: Sequence[Column], rows: Mapping[int, Row]) -> Table:
        places = [column.number - 1 for column in columns]
        names = {column.number: column.name for column in definition.columns}
        texts = [tuple(_text(row[place]) for place in places) for row in rows.values()]
        return Table(
            definition.oid,
            definition.namespace,
            definition.name,
            tuple(column.name for column in columns),
            tuple(column.type_oid for column in columns),
            tuple(names[number] for number in definition.key),
            sorted(texts, key=repr),
            self.unknowable,
            dict(self.renamed),
        )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


class Truth:
    """commits: in the order of their LSNs. Reads each commit once if queried with growing LSNs."""

    def __init__(self, commits: Sequence[tuple[int, Sequence[Entry]]]) -> None:
        self._commits = commits
        self._begin()

    def _begin(self) -> None:
        self._tables: dict[int, _State] = {}
        self._names: dict[int, Name] = {}  # in the order of the last published rows
        self._publication: Publication | None = None  # None until it is altered
        self._read, self._lsn = 0, 0

    def tables_at(self, lsn: int) -> dict[int, Table]:
        """The tables as the server holds them, by OID."""
        self._read_to(lsn)
        return {
            oid: state.as_table(state.definition, state.definition.columns, state.rows)
            for oid, state in self._tables.items()
            if state.definition is not None
        }

    def archived_at(self, lsn: int) -> dict[int, Table]:
        """The tables as an archive has them, by OID: all with a published row, also dropped ones."""
        self._read_to(lsn)
        return {
            oid: state.as_table(sent.definition, sent.columns, state.rows if state.frozen is None else state.frozen)
            for oid, state in self._tables.items()
            if (sent := state.sent) is not None
        }

    def as_sent_at(self, lsn: int) -> dict[int, tuple[Layout, list[Row]]]:
        """Layouts and rows of the tables that an archive knows as the server holds them, by OID."""
        self._read_to(lsn)
        return {
            oid: (sent, [*state.rows.values()])
            for oid, state in self._tables.items()
            if (sent := state.sent) is not None
            and state.definition is sent.definition
            and state.unknowable is None
            and self._publication in (None, sent.publication)
        }

    def names_at(self, lsn: int) -> dict[int, Name]:
        """OID -> the name under which a row of the table was last committed."""
        self._read_to(lsn)
        return dict(self._names)

    def holders_at(self, lsn: int) -> dict[Name, int]:
        """Name -> the OID of the table with this name: the last one with a committed row under the name, and no later
        row under another name."""
        self._read_to(lsn)
        return {name: oid for oid, name in self._names.items()}

    def _read_to(self, lsn: int) -> None:
        if lsn < self._lsn:
            self._begin()
        self._lsn = lsn
        while self._read < len(self._commits) and self._commits[self._read][0] <= lsn:
            for entry in self._commits[self._read][1]:
                self._take(entry)
            self._read += 1

    def _take(self, entry: Entry) -> None:
        match entry:
            case RowChange(oid, row, _, after):
                rows = self._tables[oid].rows
                if after is None:
                    del rows[row]
                else:
                    rows[row] = after
            case RowSent(oid, layout, empties):
                self._tables[oid].take_sent(layout, empties)
                self._names.pop(oid, None)
                self._names[oid] = (layout.definition.namespace, layout.definition.name)
            case DefinitionChange(oid, _, after):
                state = self._tables.setdefault(oid, _State())
                if state.frozen is None:
                    state.frozen = dict(state.rows)
                state.definition = after
            case NotPublished(oid, reason):
                self._tables.setdefault(oid, _State()).unknowable = reason
            case PublicationChange(_, after):
                self._publication = after
            case CatalogRow():
                pass
