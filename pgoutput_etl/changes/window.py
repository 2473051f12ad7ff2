"""Selects the changes of a block that are committed and inside a window of commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.changes.events import ROW_SCHEMA
from pgoutput_etl.scan.blocks import unpacked
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.transactions.statistics import CommitRange
from pgoutput_etl.transactions.status_lookup import COMMITTED, DECIDED_BY, StatusLookup

_MESSAGE_COLUMNS = [name for name in ROW_SCHEMA.names if name in MESSAGE_SCHEMA.names]

_COLUMNS = [*dict.fromkeys((*_MESSAGE_COLUMNS, *DECIDED_BY))]

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Window:
    """The range of rows to apply, in commit order: after `truncated_at`, from `start` on, before `end`, and within
    these commits."""

    truncated_at: CommitPosition | None = None
    start: CommitPosition | None = None
    end: CommitPosition | None = None
    commits: CommitRange = field(default_factory=CommitRange)

    def holds(self, lsn: pa.Array, file: pa.Array, ordinal: pa.Array) -> Mask:
        """One boolean per row. A row without a commit LSN is only in an unbounded window."""
        position = [column.to_numpy(zero_copy_only=False) for column in (lsn.fill_null(-1), file, ordinal)]
        is_inside = np.ones(len(lsn), np.bool_)
        if self.truncated_at is not None:
            is_inside &= ~_is_before(position, self.truncated_at, or_equal=True)
        if self.start is not None:
            is_inside &= ~_is_before(position, self.start, or_equal=False)
        if self.end is not None:
            is_inside &= _is_before(position, self.end, or_equal=False)
        if self.commits != CommitRange():
            is_inside &= self.commits.holds(position[0])
        return is_inside


def _is_before(position: list[npt.NDArray[np.int64]], limit: CommitPosition, or_equal: bool) -> Mask:
    lsn, file, ordinal = position
    earlier: Mask = ordinal <= limit[2] if or_equal else ordinal < limit[2]
    is_before: Mask = (lsn < limit[0]) | ((lsn == limit[0]) & ((file < limit[1]) | ((file == limit[1]) & earlier)))
    return is_before


def rows_in(
    block: Mapping[str, Any], statuses: StatusLookup, window: Window, with_truncates: bool = False
) -> pa.RecordBatch:
    """INSERTs, UPDATEs, and DELETEs as ROW_SCHEMA, and truncates if requested."""
    rows = statuses.of_batch(unpacked(block, _COLUMNS))
    decided = statuses.decide(rows)
    chosen = decided.status == COMMITTED
    if not with_truncates:
        chosen &= pc.not_equal(rows.column("tag"), "T").to_numpy(zero_copy_only=False)
    if window != Window():
        chosen &= window.holds(decided.commit_lsn, rows.column("file"), rows.column("ordinal"))
    columns = {name: rows.column(name) for name in _MESSAGE_COLUMNS} | {
        "commit_lsn": decided.commit_lsn,
        "commit_ts": decided.commit_ts,
        "top_xid": decided.top_xid,
        "scope": decided.scope,
    }
    changes = pa.RecordBatch.from_arrays([columns[name] for name in ROW_SCHEMA.names], schema=ROW_SCHEMA)
    return changes if chosen.all() else changes.filter(pa.array(chosen))
