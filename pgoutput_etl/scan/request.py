"""A scan's request and result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pgoutput_etl.errors import ArchiveError, FramingError
from pgoutput_etl.lsn import MAX_STORED_LSN
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.census import MessageCensus
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.message_row import SUMMARY_TAG, batch_of, note


@dataclass(frozen=True, slots=True)
class ScanResult:
    """rows: message rows. left: number of bytes read after the last row. census: None unless requested. has_tuples:
    False if the rows of changes have no tuples, because they stay in the landed file. is_together: the rows are among
    those of other files (small_files)."""

    summary: FileScan
    rows: list[pa.RecordBatch]
    left: int = 0
    census: MessageCensus | None = None
    has_tuples: bool = True
    is_together: bool = False

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The rows, including that of the summary."""
        return [*self.rows, batch_of([self.note()])]

    def note(self) -> dict[str, Any]:
        """The row of the summary."""
        end = self.summary.consumed
        return note(self.summary.file, SUMMARY_TAG, self.summary.to_json(), end - self.left, end)


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """A request to scan data[start:]. begins_in_stream: None if unknown.

    leaves_tail: an unfinished message at the end is not an error, but reported and left unread. with_census: counts the
    messages that produce no row. with_tuples: False leaves tuples where they are (landed_tuples). read_together: reads
    a file with others, if possible (small_files).
    """

    data: bytes
    file: int
    framing: Framing
    salvages: bool
    leaves_tail: bool = False
    start: int = 0
    begins_in_stream: bool | None = None
    with_census: bool = False
    with_tuples: bool = True
    read_together: Callable[[ScanRequest], ScanResult | None] | None = None


class HeadError(Exception):
    """An error in the head, which may be decodable if begins_in_stream is the opposite."""

    def __init__(self, cause: ArchiveError, messages_read: int) -> None:
        super().__init__(cause, messages_read)
        self.cause = cause
        self.messages_read = messages_read

    @property
    def is_short(self) -> bool:
        return isinstance(self.cause, FramingError) and self.cause.short


def stored_origin_lsn(lsn: int) -> int | None:
    """An Origin's LSN; None if it is 0 or doesn't fit into a BIGINT."""
    return lsn if 0 < lsn <= MAX_STORED_LSN else None
