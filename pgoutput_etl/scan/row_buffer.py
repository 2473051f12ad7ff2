"""The state of one file's scan, and the message rows built from it.

The readable scanner and the fast path take turns in advancing the same state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from pgoutput_etl.protocol.messages import TupleData
from pgoutput_etl.scan.census import MessageCensus
from pgoutput_etl.scan.file_summary import FileBeginning, FileScan, Fragment, FragmentKind
from pgoutput_etl.scan.message_row import HEAD, NO_FRAGMENT, batch_of
from pgoutput_etl.scan.request import ScanRequest

BATCH_ROWS = 8192


class ScanState:
    """The position in a file, the open fragment, and the file's summary and rows so far."""

    def __init__(self, request: ScanRequest) -> None:
        self.data, self.file, self.framing = request.data, request.file, request.framing
        self.with_tuples = request.with_tuples
        self.summary = FileScan(request.file, request.framing.value, len(request.data), FileBeginning.EITHER)
        self.summary.offset = request.start
        self.summary.begins_in_stream = request.begins_in_stream
        self.fragment: Fragment | None = Fragment(HEAD, FragmentKind.HEAD)
        self.fragments = 0  # number begun so far, without the head
        self.head_matters = False
        self.commit_lsn = 0  # the highest so far
        self.ordinal = 0
        self.offset = 0  # of the last frame, like lsn
        self.lsn: int | None = None
        self.read_to = request.start
        self.accounted_to = request.start  # the end of the bytes that the rows so far account for
        self.batches: list[pa.RecordBatch] = []
        self.census = MessageCensus() if request.with_census else None
        self._rows: list[dict[str, Any]] = []
        self._last_body = b""

    @property
    def fragment_number(self) -> int:
        return NO_FRAGMENT if self.fragment is None else self.fragment.number

    @property
    def in_head(self) -> bool:
        return self.fragment is not None and self.fragment.kind is FragmentKind.HEAD

    def compare(self, bodies: Iterable[bytes]) -> None:
        """Records in the summary whether any of the next messages differs from its predecessor."""
        if self.summary.varied:
            return
        for body in bodies:
            if self._last_body not in (b"", body):
                self.summary.varied = True
                return
            self._last_body = body

    def append_change(
        self,
        tag: str,
        fragment: Fragment,
        xid: int | None,
        relation: int,
        old_kind: str | None = None,
        old: TupleData | None = None,
        new: TupleData | None = None,
    ) -> None:
        self.summary.changes[relation] = self.summary.changes.get(relation, 0) + 1
        self.append_row(
            tag,
            fragment.number,
            xid=xid,
            relation=relation,
            old_kind=old_kind,
            old=old.to_bytes() if old is not None and self.with_tuples else None,
            new=new.to_bytes() if new is not None and self.with_tuples else None,
            unchanged=None if new is None else new.unchanged() or None,
            **fragment.begin_fields(),
        )

    def append_row(self, tag: str, fragment: int, **fields: Any) -> None:
        fields |= {"file": self.file, "ordinal": self.ordinal, "offset": self.offset, "lsn": self.lsn}
        fields |= {"tag": tag, "unit": fragment, "stretch": len(self.summary.epochs) - 1}
        fields = {"begin": self.accounted_to, "end": self.read_to, **fields}
        self.accounted_to = fields["end"]
        self._rows.append(fields)
        if len(self._rows) >= BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            self.batches.append(batch_of(self._rows))
            self._rows = []
