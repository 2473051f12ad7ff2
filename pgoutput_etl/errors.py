"""Exceptions, one class per thing that the operator does next.

    PgoutputEtlError
    ├── ConfigError          fix the configuration or the command line      exit 2
    ├── ArchiveError         inspect the landed file that it names          exit 1
    │   ├── WireError        … one field of a message: expected and found
    │   ├── FramingError     … how the file is split into messages
    │   └── SequenceError    … the order of the messages
    ├── TableError           inspect one table; the others continue         exit 3
    └── RunError             run again, or finish what another run began    exit 1

No message contains a cell's value: messages reach logs, terminals and tickets.
"""

from __future__ import annotations

from dataclasses import dataclass


class PgoutputEtlError(Exception):
    """The base class of every exception that this package raises on purpose."""


class ConfigError(PgoutputEtlError):
    """The configuration or the command line asks for something impossible."""


class ArchiveError(PgoutputEtlError):
    """A landed file contains something that no server sends, or that this version can't read."""


@dataclass(slots=True)
class WireError(ArchiveError):
    """Bytes that are not a pgoutput message.

    offset: from the message's first byte. short: the data ends inside the message. looked_to: how far into the data the
    message was read, if requested, as a measure of the cost.
    """

    offset: int
    message: str
    field: str
    expected: str
    found: str
    short: bool = False
    looked_to: int = 0

    def __str__(self) -> str:
        return f"{self.message}.{self.field} at byte {self.offset}: expected {self.expected}, found {self.found}"

    def __reduce__(self) -> tuple[type[WireError], tuple[int, str, str, str, str, bool, int]]:
        fields = (self.offset, self.message, self.field, self.expected, self.found, self.short, self.looked_to)
        return WireError, fields


class FramingError(ArchiveError):
    """A file that can't be split into messages. short: because it ends too early. looked_to: as in WireError."""

    def __init__(self, text: str, short: bool = False, looked_to: int = 0) -> None:
        super().__init__(text)
        self.short = short
        self.looked_to = looked_to


class SequenceError(ArchiveError):
    """Complete messages in an order that no server sends, or with messages missing between them."""


class TableError(PgoutputEtlError):
    """One table can't be updated. Its changes are left out and reported; the other tables continue."""


class RunError(PgoutputEtlError):
    """The ledger or a target is in a state that does not allow this run."""
