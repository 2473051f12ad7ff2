"""What a scan is asked for and what it answers, and the units that it cuts a file into."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from pgoutput_etl.errors import ArchiveError, FramingError, SequenceError
from pgoutput_etl.lsn import MAX_STORED_LSN
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.protocol.messages import Begin, Commit, CommitPrepared, PgoutputMessage, StreamCommit
from pgoutput_etl.scan.census import MessageCensus
from pgoutput_etl.scan.file_summary import FileScan, FragmentKind
from pgoutput_etl.scan.message_row import STORED_TIMES, SUMMARY_TAG, note


@dataclass(frozen=True, slots=True)
class ScanResult:
    """rows: of messages. left: how many bytes that were read have no row, as they came after the last one. noted: if
    that was asked for."""

    summary: FileScan
    rows: list[pa.RecordBatch]
    left: int = 0
    census: MessageCensus | None = None

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The rows, and the summary's."""
        end = self.summary.consumed
        return [*self.rows, note(self.summary.file, SUMMARY_TAG, self.summary.to_json(), end - self.left, end)]


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """What is to be scanned: data[start:]. begins_in_stream: None if that has to be found out.

    leaves_tail: what is not a whole message at the end is no error, but told, and left unread. notes: whether messages
    that no row comes of are looked at.
    """

    data: bytes
    file: int
    framing: Framing
    salvages: bool
    leaves_tail: bool = False
    start: int = 0
    begins_in_stream: bool | None = None
    with_census: bool = False


def check_time(message: PgoutputMessage) -> None:
    match message:
        case Begin() | Commit() | StreamCommit() | CommitPrepared() if message.commit_timestamp not in STORED_TIMES:
            raise SequenceError("a commit time that is not in the years 1 to 9999, which a TIMESTAMP holds")
        case _:
            pass


class HeadError(Exception):
    """An error before the head ended: the other reading of the head may be the right one."""

    def __init__(self, cause: ArchiveError, messages_read: int) -> None:
        super().__init__(cause, messages_read)
        self.cause = cause
        self.messages_read = messages_read

    @property
    def is_short(self) -> bool:
        return isinstance(self.cause, FramingError) and self.cause.short


@dataclass(slots=True)
class Fragment:
    number: int
    kind: FragmentKind
    xid: int | None = None
    commit_lsn: int | None = None
    commit_ts: int | None = None
    changes: int = 0
    is_damaged: bool = False
    origin: str | None = None
    origin_lsn: int | None = None

    def begin_fields(self) -> dict[str, int | str | None]:
        """What Begin and Origin tell every row of their transaction."""
        if self.kind is not FragmentKind.TRANSACTION:
            return {}
        begun = {"commit_lsn": self.commit_lsn, "commit_ts": self.commit_ts, "top_xid": self.xid}
        return {**begun, "origin": self.origin}


def stored_origin_lsn(lsn: int) -> int | None:
    """An Origin's LSN, as far as there is one that a BIGINT holds."""
    return lsn if 0 < lsn <= MAX_STORED_LSN else None
