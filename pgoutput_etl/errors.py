"""Exceptions: one class for each action that an operator has to take.

    PgoutputEtlError
    ├── ConfigError          fix the configuration or the command line      exit 2
    ├── ArchiveError         inspect the landed file that it names          exit 1
    │   ├── WireError        … one field of a message: expected and found
    │   ├── FramingError     … how the file is split into messages
    │   └── SequenceError    … the order of the messages
    ├── TableError           inspect one table; the others continue         exit 3 (the table is held)
    └── RunError             run again, or finish what another run began    exit 1
        └── AnotherRunError  … another run works on the source, or just has

No message contains a cell's value: messages reach logs, terminals and tickets.
"""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass


class PgoutputEtlError(Exception):
    """The base class of all exceptions that this package raises on purpose.

    next_job: a job and its options that resolve the error, once the reader has followed the message.
    """

    next_job: tuple[str, ...] = ()


class ConfigError(PgoutputEtlError):
    """The configuration or the command line asks for something impossible."""


class ArchiveError(PgoutputEtlError):
    """A landed file contains something that no server sends, or that this version can't read."""

    def __init__(self, text: str = "", next_job: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.next_job = next_job


@dataclass(slots=True)
class WireError(ArchiveError):
    """Bytes that are not a pgoutput message.

    offset: bytes from the message's first byte. short: the data ends inside the message. scanned_to: the position in
    the data up to which the message was read, where the caller needs it as a measure of the cost.
    """

    offset: int
    message: str
    field: str
    expected: str
    found: str
    short: bool = False
    scanned_to: int = 0

    def __str__(self) -> str:
        return f"{self.message}.{self.field} at byte {self.offset}: expected {self.expected}, found {self.found}"

    def __reduce__(self) -> tuple[type[WireError], tuple[object, ...]]:
        return WireError, astuple(self)


class FramingError(ArchiveError):
    """A file that can't be split into messages. short: True if the reason is that it ends too early. scanned_to: as in
    WireError."""

    def __init__(self, text: str, short: bool = False, scanned_to: int = 0) -> None:
        super().__init__(text)
        self.short = short
        self.scanned_to = scanned_to


class SequenceError(ArchiveError):
    """Complete messages in an order that no server sends, or with messages missing between them."""


class TableError(PgoutputEtlError):
    """One table can't be updated. Its changes are left out and reported; the other tables continue."""


class RunError(PgoutputEtlError):
    """The ledger or a target is in a state that does not allow this run."""

    def __init__(self, text: str, next_job: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.next_job = next_job


class AnotherRunError(RunError):
    """Another run works on this source, or has just finished. Running again once it has ended is enough."""


def brief(error: Exception) -> str:
    """A system error's reason; for any other error only its class, because the text of a library's error may be
    long."""
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def without_offset(reason: str) -> str:
    """An error's text without the offset at its beginning, for a line that has the offset already."""
    return re.sub(r"^offset \d+: ", "", reason)
