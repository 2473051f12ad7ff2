"""What went wrong, named by what the operator does next.

    PgoutputEtlError
    ├── ConfigError          fix the configuration or the command line      exit 2
    ├── ArchiveError         look at the landed file that it names          exit 1
    │   ├── WireError        … at one byte: what was found, what expected
    │   ├── FramingError     … at how the file is cut into messages
    │   └── SequenceError    … at which message came after which
    ├── TableError           look at one table; the others go on            exit 3
    └── RunError             run again, or finish what another run began    exit 1

No message of any of them carries a cell's value: they reach logs, terminals and tickets.
"""

from __future__ import annotations

from dataclasses import dataclass


class PgoutputEtlError(Exception):
    """The root of everything this package raises on purpose."""


class ConfigError(PgoutputEtlError):
    """The configuration or the command line asks for something that can't be."""


class ArchiveError(PgoutputEtlError):
    """A landed file holds what no server sends, or what this version can't read yet."""


@dataclass(slots=True)
class WireError(ArchiveError):
    """Bytes that are no pgoutput message.

    offset is counted from the message's first byte. short: the message goes on behind the last byte that there is.
    looked_to: up to where in the data it was read before, if that was asked for: what it has cost.
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
    """A file that can't be cut into messages. short: because it ends too early. looked_to: as in WireError."""

    def __init__(self, text: str, short: bool = False, looked_to: int = 0) -> None:
        super().__init__(text)
        self.short = short
        self.looked_to = looked_to


class SequenceError(ArchiveError):
    """Whole messages in an order that no server sends, or with something missing between them."""


class TableError(PgoutputEtlError):
    """One table can't be brought further; what it would have received is left out and said, the rest goes on."""


class RunError(PgoutputEtlError):
    """The state of the ledger or of a target forbids this run."""
