"""However events are divided before they are compacted, their chains have the contradictions that one change after the
other shows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgoutput_etl.changes.compaction import as_net, without_superseded
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.table_shape import TableShape, table_shape
from tests.support.small_archives import T as OID
from tests.support.small_archives import table

RELATION = table("id", "note", key=("id",))
# Operation, key, whether the change is in the transaction of the one before, and whether it leaves the note unchanged.
DRAWN = st.lists(st.tuples(st.sampled_from("IUDXV"), st.integers(0, 2), st.booleans(), st.booleans()), max_size=14)


def shape_of(*, toast: bool) -> TableShape:
    versions = RelationVersions(OID, (RELATION,), {None: (((0, 0), 0),)})
    return table_shape(RELATION, versions, None, frozenset({1}) if toast else frozenset(), False)


def events_of(drawn: list[tuple[str, int, bool, bool]], shape: TableShape) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    lsn = 100
    for number, (op, key, is_together, unchanged) in enumerate(drawn):
        lsn += 0 if is_together else 10
        row = {"_lsn": lsn, "_file": 0, "_ordinal": number, "_xid": lsn + 1, "_op": op, "c0": f"{key}", "c1": None}
        rows.append(row | {f"u{i}": unchanged and op in "UV" for i in shape.toast})
    return rows


def expected(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By key, the first change and the contradictions after it."""
    chains: dict[str, dict[str, Any]] = {}
    last: dict[str, dict[str, Any]] = {}
    for row in rows:
        key, op = row["c0"], row["_op"]
        before = last.get(key)
        last[key] = row
        if before is None:
            start = {"op": op, "lsn": row["_lsn"], "xid": row["_xid"]}
            chains[key] = start | {"missing": 0, "doubled": 0, "bad_lsn": None, "bad_xid": None}
            continue
        is_there = before["_op"] not in "DX"
        is_missing = not is_there and op in "UDX"
        is_doubled = is_there and (op == "V" or (op == "I" and before["_lsn"] == row["_lsn"]))
        chain = chains[key]
        chain["missing"] += is_missing
        chain["doubled"] += is_doubled
        if (is_missing or is_doubled) and chain["bad_lsn"] is None:
            chain |= {"bad_lsn": row["_lsn"], "bad_xid": row["_xid"]}
    return chains


def assumes_nothing(chain: dict[str, Any]) -> bool:
    return chain["op"] == "I" and not chain["missing"] + chain["doubled"]


@pytest.mark.parametrize("toast", [False, True])
@given(DRAWN, st.sets(st.integers(0, 13)))
@example(
    drawn=[("D", 0, False, False), ("U", 0, False, True), ("D", 0, False, False), ("D", 0, False, False)], cuts={2}
)
def test_chains_are_the_same_however_events_are_divided(
    toast: bool, drawn: list[tuple[str, int, bool, bool]], cuts: set[int]
) -> None:
    shape = shape_of(toast=toast)
    rows = events_of(drawn, shape)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    parts = [
        without_superseded(pa.RecordBatch.from_pylist(rows[a:b], shape.event_schema()), shape)[0]
        for a, b in pairwise(bounds)
    ]
    wanted = expected(rows)
    together = pa.Table.from_batches(parts, shape.event_schema()).combine_chunks().to_batches()
    for batch in together:
        events, is_net = without_superseded(batch, shape)
        if is_net:
            told = {key: None if assumes_nothing(chain) else chain for key, chain in wanted.items()}
            assert {row["c0"]: row["_chain"] for row in as_net(events, shape).to_pylist()} == told
        # The first of a key's events has the chain of those that were dropped; Spark combines it with the others.
        first: dict[str, dict[str, Any]] = {}
        for row in reversed(events.to_pylist()):
            first[row["c0"]] = row["_chain"] or {"op": row["_op"], "lsn": row["_lsn"], "xid": row["_xid"]}
        begun = ("op", "lsn", "xid")
        assert {k: [c[name] for name in begun] for k, c in first.items()} == {
            k: [c[name] for name in begun] for k, c in wanted.items()
        }
