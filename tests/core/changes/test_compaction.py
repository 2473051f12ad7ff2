"""Net events of one task, and of several that exchange them by buckets of keys, are the last event of each key."""

from __future__ import annotations

from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.changes import compaction
from pgoutput_etl.changes.compaction import as_net, bucketed_events_of, net_events_of, net_events_of_buckets
from pgoutput_etl.changes.window import Window
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.scan.blocks import Packer
from pgoutput_etl.schema.table_shape import TableShape, table_shape
from pgoutput_etl.transactions.status_lookup import StatusLookup
from tests.support.scan_parts import scan_file
from tests.support.small_archives import Change, copydata, delete, insert, table, transaction, update
from tests.support.small_archives import T as OID

RELATION = table("id", "region", "note", key=("id", "region"))

CHANGES = st.lists(
    st.tuples(st.sampled_from("IUDM"), st.integers(0, 3), st.sampled_from("ab")), min_size=1, max_size=25
)


def changes(drawn: list[tuple[str, int, str]]) -> list[Change]:
    """M: an UPDATE that moves the row to another key."""
    made: list[Change] = []
    for i, (kind, number, region) in enumerate(drawn):
        key, note = (f"{number}", region), f"{i}"
        match kind:
            case "I":
                made.append(insert(*key, note))
            case "U":
                made.append(update(*key, note))
            case "D":
                made.append(delete(*key, None))
            case _:
                made.append(update(f"{(number + 1) % 4}", region, note, old_key=(*key, None)))
    return made


def blocks_and_replay(drawn: list[tuple[str, int, str]], per_block: int) -> tuple[list[list[dict[str, Any]]], Replay]:
    """One list of blocks for each file."""
    files, replay = [], Replay()
    for number in range(0, len(drawn), per_block):
        relation = [RELATION] if not number else []
        sent = transaction(number + 1, 100 + number, *relation, *changes(drawn)[number : number + per_block])
        scanned = scan_file(f"{number}", number, copydata(sent, 0x1000000 * (number + 1)))
        replay.add_scanned(f"{number}", scanned)
        packer = Packer()
        packed = [block for batch in scanned.batches for block in packer.add(batch)]
        rows = [block for batch in (*packed, *packer.rest()) for block in batch.to_pylist()]
        files.append([block for block in rows if block["kind"] == "change"])
    return files, replay


def last_events(events: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    rows = [row for batch in events for row in batch.to_pylist()]
    return sorted((r["c0"], r["c1"], r["_op"] in "DX", r["c2"], r["_file"], r["_ordinal"]) for r in rows)


def chains(events: list[pa.RecordBatch], shape: TableShape) -> dict[tuple[str, str], Any]:
    rows = [row for batch in events for row in as_net(batch, shape).to_pylist()]
    return {(row["c0"], row["c1"]): row["_chain"] for row in rows}


@given(CHANGES, st.integers(1, 9), st.integers(1, 3), st.randoms(use_true_random=False))
def test_net_events_of_one_task_and_of_several(
    drawn: list[tuple[str, int, str]], per_file: int, buckets: int, chance: Random
) -> None:
    files, replay = blocks_and_replay(drawn, per_file)
    shape = table_shape(RELATION, replay.assembly.relations.versions(OID), None, moves_toast=False)
    assert compaction.is_net_by_itself(shape)
    statuses = StatusLookup.of(replay.assembly.outcomes, replay.assembly.watermarks)

    expected: dict[tuple[str, str], tuple[Any, ...]] = {}
    for file in files:
        for batch in compaction.typed_events_of(file, statuses, Window(), shape):
            for row in batch.to_pylist():
                expected[row["c0"], row["c1"]] = last_events([pa.RecordBatch.from_pylist([row], batch.schema)])[0]

    one_task = [*net_events_of([block for file in files for block in file], statuses, Window(), shape)]
    assert last_events(one_task) == sorted(expected.values())

    tasks = [[block for file in files[n : n + 4] for block in file] for n in range(0, len(files), 4)]
    with patch.object(compaction, "_MAX_ROWS", 1), patch.object(compaction, "_NOT_COMPACTED", chance.randint(0, 2)):
        exchanged = [batch for task in tasks for batch in bucketed_events_of(task, statuses, Window(), shape, buckets)]
    chance.shuffle(exchanged)
    assert {number for batch in exchanged for number in batch.column("bucket").to_pylist()} <= set(range(buckets))
    reduced = [*net_events_of_buckets(exchanged, shape)]
    assert last_events(reduced) == sorted(expected.values())
    assert chains(reduced, shape) == chains(one_task, shape)
