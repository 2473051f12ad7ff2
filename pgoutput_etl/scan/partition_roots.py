"""Finds the root of each partition that is published through it, from the order of a file's messages.

pgoutput sends the root's Relation, then the partition's, and then the row, which is sent under the root's OID
(pgoutput.c, maybe_send_schema). There may be Type messages in between. A Truncate also sends the Relations of its
tables one after another, which proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pgoutput_etl.scan.message_row import one_letter

_RELATION, _TYPE = ord("R"), ord("Y")

_ROWS = tuple(b"IUD")


def partition_roots(batches: Sequence[pa.RecordBatch]) -> dict[int, int]:
    """For each Relation that is directly followed by a row, by ordinal: the OID that the row is sent under, which is
    the relation's own or its root's. batches: a file's message rows, in order."""
    if not batches:
        return {}
    rows = pa.Table.from_batches(batches)
    tags = np.concatenate([one_letter(batch.column("tag")) for batch in batches])
    ordinals, relations = (rows.column(name).fill_null(0).to_numpy() for name in ("ordinal", "relation"))

    def are_adjacent(first: int, second: int) -> bool:
        """True if there is no message without a row in between."""
        return bool(ordinals[second] - ordinals[first] == second - first)

    def oid(place: int) -> int:
        """The OID of a Relation; in a stream segment, it follows the xid."""
        begin = 1 if rows.column("xid")[place].as_py() is None else 5
        return int.from_bytes(rows.column("body")[place].as_py()[begin : begin + 4], "big")

    roots = {}
    for place in np.flatnonzero(tags == _RELATION).tolist():
        first, after = place, place + 1
        while after < len(tags) and tags[after] == _TYPE:
            after += 1
        if after == len(tags) or tags[after] not in _ROWS or not are_adjacent(place, after):
            continue
        while first > 0 and tags[first - 1] == _TYPE:
            first -= 1
        root = int(relations[after])
        follows_root = first > 0 and tags[first - 1] == _RELATION and oid(first - 1) == root
        is_root = ordinals[first] == 0 or (follows_root and are_adjacent(first - 1, place))
        if root == oid(place) or is_root:
            roots[int(ordinals[place])] = root
    return roots
