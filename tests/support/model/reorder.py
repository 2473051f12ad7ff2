"""A transaction in the reorder buffer: ReorderBufferTXN in reorderbuffer.c."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.model.wal import Change, Invalidation, LogicalMessage, Prepare, TruncateTables

Queued = Change | TruncateTables | LogicalMessage | Invalidation


class BufferedTransaction:
    """A top-level transaction with the changes of its subtransactions.

    has_snapshot: something was queued, even if only in a subtransaction that was rolled back. is_streamable: a row, a
    message, or an update of a system catalog was queued. altered: tables whose definition this transaction changed.
    altered_elsewhere: tables whose definition other transactions changed meanwhile. streamed_subxids: subtransactions
    with the flag RBTXN_IS_STREAMED.
    """

    __slots__ = (
        "altered",
        "altered_elsewhere",
        "changes",
        "has_snapshot",
        "is_aborted",
        "is_streamable",
        "is_streamed",
        "prepare",
        "streamed_subxids",
        "xid",
    )

    def __init__(self, xid: int) -> None:
        self.xid = xid
        self.changes: list[Queued] = []
        self.has_snapshot = self.is_streamable = self.is_streamed = self.is_aborted = False
        self.altered: set[int] = set()
        self.altered_elsewhere: set[int] = set()
        self.streamed_subxids: set[int] = set()
        self.prepare: Prepare | None = None

    @property
    def changes_catalog(self) -> bool:
        return bool(self.altered)

    def queue(self, change: Queued) -> None:
        self.has_snapshot = True
        if not self.is_aborted:
            self.changes.append(change)

    def queue_row(self, change: Queued) -> None:
        self.is_streamable = True
        self.queue(change)

    def queue_invalidation(self, change: Invalidation, is_streamable: bool) -> None:
        self.altered |= change.oids
        self.is_streamable |= is_streamable
        self.queue(change)

    def queue_others_invalidation(self, change: Invalidation) -> None:
        self.altered_elsewhere |= change.oids
        self.queue(change)

    def drop_subtransaction(self, subxid: int) -> None:
        self.changes = [change for change in self.changes if change.xid != subxid]

    def mark_subtransactions_streamed(self, changes: Iterable[Queued]) -> None:
        self.streamed_subxids |= {change.xid for change in changes if change.xid != self.xid}

    def discard_as_aborted(self) -> None:
        """ReorderBufferCheckAndTruncateAbortedTXN.

        It flags subtransactions as streamed. That is why PostgreSQL 18 sends Stream Abort for subtransactions that were
        never streamed.
        """
        self.mark_subtransactions_streamed(self.changes)
        self.changes = []
        self.is_aborted = True
