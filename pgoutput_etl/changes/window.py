"""Of a block's changes those that are committed and are applied now, as changes.events takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.changes.events import ROW_SCHEMA
from pgoutput_etl.scan.blocks import unpacked
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.transactions.status_lookup import COMMITTED, DECIDED_BY, StatusLookup

_OF_MESSAGES = [name for name in ROW_SCHEMA.names if name in MESSAGE_SCHEMA.names]

_LOOKED_AT = [*dict.fromkeys((*_OF_MESSAGES, *DECIDED_BY))]

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Window:
    """Places between which rows are applied, in the order of commits: behind `truncated_at`, from `start` on, before
    `end`, and of commits before the LSN `cut`."""

    truncated_at: CommitPosition | None = None
    start: CommitPosition | None = None
    end: CommitPosition | None = None
    cut: int | None = None

    @property
    def is_open(self) -> bool:
        return self == Window()

    def holds(self, lsn: pa.Array, file: pa.Array, ordinal: pa.Array) -> Mask:
        """Per row; none without a commit LSN is in a window that has a side."""
        places = [column.to_numpy(zero_copy_only=False) for column in (lsn.fill_null(-1), file, ordinal)]
        held = np.ones(len(lsn), np.bool_)
        if self.truncated_at is not None:
            held &= ~_is_before(places, self.truncated_at, or_there=True)
        if self.start is not None:
            held &= ~_is_before(places, self.start, or_there=False)
        if self.end is not None:
            held &= _is_before(places, self.end, or_there=False)
        if self.cut is not None:
            held &= places[0] < self.cut
        return held


def _is_before(places: list[npt.NDArray[np.int64]], place: CommitPosition, or_there: bool) -> Mask:
    lsn, file, ordinal = places
    earlier: Mask = ordinal <= place[2] if or_there else ordinal < place[2]
    found: Mask = (lsn < place[0]) | ((lsn == place[0]) & ((file < place[1]) | ((file == place[1]) & earlier)))
    return found


def rows_in(
    block: Mapping[str, Any], statuses: StatusLookup, window: Window, with_truncates: bool = False
) -> pa.RecordBatch:
    """Rows of ROW_SCHEMA: inserts, updates and deletes."""
    rows = statuses.of_batch(unpacked(block, _LOOKED_AT))
    decided = statuses.decide(rows)
    chosen = decided.status == COMMITTED
    if not with_truncates:
        chosen &= pc.not_equal(rows.column("tag"), "T").to_numpy(zero_copy_only=False)
    if not window.is_open:
        chosen &= window.holds(decided.commit_lsn, rows.column("file"), rows.column("ordinal"))
    columns = {name: rows.column(name) for name in _OF_MESSAGES} | {
        "commit_lsn": decided.commit_lsn,
        "commit_ts": decided.commit_ts,
        "top_xid": decided.top_xid,
        "scope": decided.scope,
    }
    found = pa.RecordBatch.from_arrays([columns[name] for name in ROW_SCHEMA.names], schema=ROW_SCHEMA)
    return found if chosen.all() else found.filter(pa.array(chosen))
