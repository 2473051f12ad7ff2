"""Changes that a table lacks because it was UNLOGGED or in no publication, according to catalog Messages."""

from __future__ import annotations

from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.targets.plan import CompleteSince, Since, TableChanges

_REASONS = {
    Since.UNLOGGED: "it was SET UNLOGGED or LOGGED before LSN {}: what was written while it was UNLOGGED is missing",
    Since.GAP: "it left the publication, or returned, before LSN {}: what was written while it was out is missing",
}


def gap_between(old: Relation | None, new: Relation) -> Since | None:
    """Why changes between two versions of a table were not sent, or None."""
    if old is None or old.catalog is None or new.catalog is None:
        return None
    if old.catalog.gaps != new.catalog.gaps:
        return Since.GAP
    return Since.UNLOGGED if old.catalog.unlogged != new.catalog.unlogged else None


def gap_reason(since: CompleteSince | None) -> str | None:
    """The reason as text; None if the table has no such gap."""
    return _REASONS[since.kind].format(format_lsn(since.lsn)) if since is not None and since.kind in _REASONS else None


def gap_remarks(changes: TableChanges) -> tuple[str, ...]:
    reason = gap_reason(changes.unsent)
    return () if reason is None else (reason,)
