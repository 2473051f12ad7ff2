"""pgoutput's record of the Relation messages that it sent: RelationSyncEntry in pgoutput.c."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.model.catalog import Layout, Publication
from tests.support.model.wal import EVERY_TABLE, THE_PUBLICATION


class Entry:
    """publication: its state when the entry was built, used until the entry is invalidated. schema_sent: the message
    was sent outside of stream segments, or before a Stream Commit. streamed: transactions whose segments had the
    message."""

    __slots__ = ("is_valid", "publication", "schema_sent", "streamed")

    def __init__(self, publication: Publication) -> None:
        self.publication = publication
        self.is_valid = False
        self.schema_sent = False
        self.streamed: set[int] = set()


class RelationSyncCache:
    """Lives as long as one connection."""

    __slots__ = ("_entries", "_operations")

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._operations: frozenset[str] | None = None  # pg_publication's row, read once until that is invalidated

    def layout(self, layout: Layout) -> Layout:
        """get_rel_sync_entry: the table at its row's position, under the publication that the entry knows."""
        oid = layout.definition.oid
        entry = self._entries.get(oid)
        if entry is None:
            entry = self._entries[oid] = Entry(layout.publication)
        if not entry.is_valid:
            entry.is_valid, entry.schema_sent, entry.publication = True, False, self._publication(layout.publication)
            entry.streamed.clear()
        return layout if entry.publication is layout.publication else Layout(layout.definition, entry.publication)

    def _publication(self, publication: Publication) -> Publication:
        if self._operations is None:
            self._operations = publication.operations
        if self._operations == publication.operations:
            return publication
        return Publication(self._operations, publication.tables)

    def must_send(self, oid: int, streamed_xid: int | None) -> bool:
        """maybe_send_schema: true if a Relation message comes before a row; it then counts as sent."""
        entry = self._entries[oid]
        if streamed_xid is None:
            must_send, entry.schema_sent = not entry.schema_sent, True
            return must_send
        must_send = streamed_xid not in entry.streamed
        entry.streamed.add(streamed_xid)
        return must_send

    def invalidate(self, oids: Iterable[int]) -> None:
        for oid in oids:
            if oid == EVERY_TABLE:
                for entry in self._entries.values():
                    entry.is_valid = False
            elif oid == THE_PUBLICATION:
                self._operations = None
            elif oid in self._entries:
                self._entries[oid].is_valid = False

    def end_stream(self, xid: int, is_commit: bool) -> None:
        """cleanup_rel_sync_cache, at Stream Commit and Stream Abort; not at Stream Prepare."""
        for entry in self._entries.values():
            if xid in entry.streamed:
                entry.streamed.remove(xid)
                entry.schema_sent |= is_commit
