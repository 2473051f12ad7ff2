"""Blocks of rows with arrays of statuses give the same result as row by row."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput_etl.changes.compaction import without_superseded
from pgoutput_etl.changes.events import ROW_SCHEMA
from pgoutput_etl.changes.window import Window, rows_in
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.scan.blocks import BlockKind, Packer, unpacked
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.table_shape import TIMESTAMP, UNREPRESENTABLE, TableShape, table_shape
from pgoutput_etl.transactions.outcome import Outcome, TransactionStatus, Watermark
from pgoutput_etl.transactions.statistics import COUNTED_KINDS, BatchStatistics, CommitRange
from pgoutput_etl.transactions.status_lookup import StatusLookup
from tests.support.captures import DATA, files_of
from tests.support.scan_parts import scan_file

SLOTS = [
    path
    for server in sorted(DATA.iterdir())
    for path in sorted(server.iterdir())
    if path.is_dir() and not path.name.startswith("truth")
]
Blocks = list[dict[str, Any]]


class Archive:
    """A slot's files as blocks, and read by the reference."""

    def __init__(self, slot: Path) -> None:
        self.replay = Replay()
        self.rows: list[dict[str, Any]] = []
        self.blocks: Blocks = []
        self.size = 0
        packer = Packer()
        for number, path in enumerate(files_of(slot)):
            scanned = scan_file(path.name, number, path.read_bytes())
            self.size += scanned.summary.consumed
            self.replay.add_scanned(path.name, scanned)
            for batch in scanned.batches:
                self.rows += batch.to_pylist()
                for block in packer.add(batch):
                    self.blocks += block.to_pylist()
        for block in packer.rest():
            self.blocks += block.to_pylist()
        assembly = self.replay.assembly
        self.fates = StatusLookup.of((*assembly.outcomes, *assembly.open_outcomes()), assembly.watermarks)

    def changes(self) -> Iterator[dict[str, Any]]:
        return (block for block in self.blocks if block["kind"] == BlockKind.CHANGE.value)


@pytest.fixture(scope="module", params=SLOTS, ids=lambda slot: f"{slot.parent.name}/{slot.name}")
def archive(request: pytest.FixtureRequest) -> Archive:
    return Archive(request.param)


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(row) for row in rows)


def test_rows_come_out_as_they_went_in(archive: Archive) -> None:
    found = [row for block in archive.blocks for row in unpacked(block).to_pylist()]
    for row in (*found, *archive.rows):
        if row["tag"] == "C":
            row["body"] = None  # of no use to anybody
    assert in_order(found) == in_order(archive.rows)
    for block in archive.changes():
        assert set(unpacked(block, ["relation"]).column(0).to_pylist()) == {block["relation"]}


def test_the_same_rows_are_committed(archive: Archive) -> None:
    found = [row for block in archive.changes() for row in rows_in(block, archive.fates, Window()).to_pylist()]
    expected = [
        {name: row[name] for name in ROW_SCHEMA.names} for row in archive.replay.committed() if row["tag"] != "T"
    ]
    assert in_order(found) == in_order(expected)


def test_what_is_counted(archive: Archive) -> None:
    tally = BatchStatistics()
    for block in archive.blocks:
        part = BatchStatistics()
        rows = unpacked(block, COUNTED_KINDS)
        part.add(BlockKind(block["kind"]), block["relation"], rows, len(block["tuples"]), archive.fates)
        tally.merge(pickle.loads(pickle.dumps(part)))
    committed = list(archive.replay.committed())
    tags = Counter((row["relation"], row["tag"]) for row in committed)
    assert Counter({(o, t): n for o, each in tally.relations.items() for t, n in each.tags.items() if n}) == tags
    for oid, each in tally.relations.items():
        of_it = [row for row in committed if row["relation"] == oid]
        truncates = [(row["commit_lsn"], row["file"], row["ordinal"]) for row in of_it if row["tag"] == "T"]
        assert each.truncated_at == max(truncates, default=None)
        assert each.unchanged == {i for row in of_it for i in row["unchanged"] or ()}
        assert each.moves_toast == any(row["unchanged"] is not None and row["old_kind"] == "K" for row in of_it)
    assert sum(tally.sizes.values()) == archive.size


def test_blocks_of_what_is_rolled_back_are_counted_too(archive: Archive) -> None:
    """The driver gets all blocks of a relation if there are few, whatever the status of their rows."""
    units = {(row["file"], row["unit"]) for row in archive.rows if row["unit"] >= 0}
    none_committed = StatusLookup.of([Outcome(TransactionStatus.ABORTED, 7, tuple(sorted(units)))], ())
    tally, sizes = BatchStatistics(), Counter[int]()
    for block in archive.changes():
        size = len(block["tuples"])
        tally.add(BlockKind.CHANGE, block["relation"], unpacked(block, COUNTED_KINDS), size, none_committed)
        sizes[block["relation"]] += size
    assert (tally.relations, tally.block_sizes) == ({}, sizes)


def test_files_that_were_only_looked_at_have_no_part(archive: Archive) -> None:
    numbers = {row["file"] for row in archive.rows}
    last = max(numbers)
    assembly = archive.replay.assembly
    fates = StatusLookup.of((*assembly.outcomes, *assembly.open_outcomes()), assembly.watermarks, [last])
    found = [row for block in archive.changes() for row in rows_in(block, fates, Window()).to_pylist()]
    expected = [row for row in archive.replay.committed() if row["tag"] != "T" and row["file"] != last]
    assert in_order([{"file": row["file"], "ordinal": row["ordinal"]} for row in found]) == in_order(
        [{"file": row["file"], "ordinal": row["ordinal"]} for row in expected]
    )


NUMBERS = st.integers(0, 3)
PLACES = st.tuples(NUMBERS, NUMBERS, NUMBERS)


@given(
    st.lists(PLACES, max_size=20),
    *(st.none() | PLACES for _ in range(3)),
    st.integers(0, 4),
    st.integers(-1, 3),
)
def test_windows(
    rows: list[tuple[int, int, int]],
    truncated_at: tuple[int, int, int] | None,
    start: tuple[int, int, int] | None,
    end: tuple[int, int, int] | None,
    first: int,
    last: int,
) -> None:
    columns = [pa.array([row[i] for row in rows], pa.int64()) for i in range(3)]
    expected = [
        (truncated_at is None or row > truncated_at)
        and (start is None or row >= start)
        and (end is None or row < end)
        and first <= row[0] <= last
        for row in rows
    ]
    assert Window(truncated_at, start, end, CommitRange(first, last)).holds(*columns).tolist() == expected


XIDS = st.none() | st.integers(7, 9)
ROWS = st.fixed_dictionaries(
    {
        "file": st.integers(0, 2),
        "unit": st.integers(-1, 3),
        "stretch": st.integers(0, 1),
        "xid": st.none() | st.integers(7, 9),
        "commit_lsn": st.none() | st.integers(1, 5),
        "commit_ts": st.none() | st.integers(-5, 5),
        "top_xid": st.none() | st.integers(7, 9),
    }
)


@given(
    st.lists(ROWS, max_size=30),
    st.lists(
        st.tuples(st.sampled_from(TransactionStatus), XIDS, st.none() | st.integers(1, 9), st.sets(st.integers(7, 9))),
        max_size=4,
    ),
    st.lists(st.integers(0, 3), min_size=12, max_size=12),
    st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 1)), st.integers(0, 5)),
)
def test_fates(
    rows: list[dict[str, Any]],
    told: list[tuple[TransactionStatus, int | None, int | None, set[int]]],
    owners: list[int],
    marks: dict[tuple[int, int], int],
) -> None:
    units: list[list[tuple[int, int]]] = [[] for _ in told]
    for place, owner in enumerate(owners):
        if owner < len(told):
            units[owner].append(divmod(place, 4))
    outcomes = [
        Outcome(fate, xid, tuple(units[i]), None, i, lsn, None if lsn is None else -lsn, tuple(sorted(aborted)))
        for i, (fate, xid, lsn, aborted) in enumerate(told)
    ]
    fates = StatusLookup.of(outcomes, [Watermark(file, stretch, lsn) for (file, stretch), lsn in marks.items()])
    fields = [
        MESSAGE_SCHEMA.field(name) for name in ("file", "unit", "stretch", "xid", "commit_lsn", "commit_ts", "top_xid")
    ]
    decided = fates.decide(pa.RecordBatch.from_pylist(rows, pa.schema(fields)))
    of_unit = {unit: outcome for outcome in outcomes for unit in outcome.fragments}
    for i, row in enumerate(rows):
        own = of_unit.get((row["file"], row["unit"]))
        mark = marks.get((row["file"], row["stretch"]))
        is_resent = mark is not None and row["commit_lsn"] is not None and row["commit_lsn"] <= mark
        fate = (TransactionStatus.RESENT if is_resent else TransactionStatus.COMMITTED) if own is None else own.status
        if own is not None and row["xid"] in own.aborted_subxids:
            fate = TransactionStatus.ABORTED
        assert list(TransactionStatus)[decided.status[i]] is fate
        expected = (
            (row["commit_lsn"], row["commit_ts"], row["top_xid"], None)
            if own is None
            else (own.commit_lsn, own.commit_ts, own.xid, own.scope)
        )
        columns = (decided.commit_lsn, decided.commit_ts, decided.top_xid, decided.scope)
        assert tuple(column[i].as_py() for column in columns) == expected


def keyed(toast: bool) -> TableShape:
    """id and region are the key, note may be unchanged TOAST."""
    columns = tuple(
        RelationColumn(name != "note", name, oid, -1) for name, oid in (("id", 23), ("region", 25), ("note", 25))
    )
    relation = Relation(None, 7, "public", "t", ReplicaIdentity.DEFAULT, columns)
    versions = RelationVersions(7, (relation,), {None: (((0, 0), 0),)})
    return table_shape(relation, versions, None, frozenset({2} if toast else ()), moves_toast=False)


EVENTS = st.lists(
    st.tuples(st.sampled_from("IUUUDXV"), st.integers(1, 2), st.sampled_from("ab"), st.booleans()), max_size=14
)


@given(EVENTS, st.booleans(), st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=400)
def test_what_is_void_is_left_out_and_nothing_else(
    drawn: list[tuple[str, int, str, bool]], toast: bool, in_order: bool, chance: Any
) -> None:
    """Applied in order, the remaining events give the same row for each key, including unchanged values."""
    shape = keyed(toast)
    rows = [
        {
            "_lsn": 1 + i // 4, "_file": 1, "_ordinal": i, "_ts": 0, "_xid": 1, "_op": op, "c0": number, "c1": region,
            "c2": None if leaves and toast and op in "UV" else f"{i}",
            "u2": leaves and toast and op in "UV",
        }
        for i, (op, number, region, leaves) in enumerate(drawn)
    ]  # fmt: skip
    shuffled = list(rows)
    if not in_order:
        chance.shuffle(shuffled)
    batch = pa.RecordBatch.from_pylist(shuffled, shape.event_schema())
    reduced, is_net = without_superseded(batch, shape)
    kept = reduced.to_pylist()
    assert {row["_ordinal"] for row in kept} <= set(range(len(rows)))
    assert played(kept) == played(rows)
    keys = [(row["c0"], row["c1"]) for row in kept]
    assert is_net == (len(set(keys)) == len(keys) and not any(row.get("u2") for row in kept))
    assert {(row["c0"], row["c1"]) for row in rows} == set(keys)


def played(events: list[dict[str, Any]]) -> dict[tuple[int, str], tuple[Any, ...]]:
    """Per key: whether the row is there in the end, the last event, and whether its note was sent since it began."""
    found: dict[tuple[int, str], tuple[Any, ...]] = {}
    for event in sorted(events, key=lambda e: (e["_lsn"], e["_ordinal"])):
        key = event["c0"], event["c1"]
        if event["_op"] in "DX":
            found[key] = ("gone", event["_ordinal"])
            continue
        known = found.get(key, ("unknown",))
        note = event["c2"]
        if event.get("u2"):
            goes_on = known[0] == "there" and event["_op"] != "V"
            note = known[2] if goes_on else "nobody's" if known[0] == "gone" else "the target's"
        found[key] = ("there", event["_ordinal"], note)
    return found


def test_a_key_that_has_no_value_is_left_alone() -> None:
    shape = keyed(toast=False)
    rows = [{"_lsn": 1, "_ordinal": i, "_file": 1, "_op": "U", "c0": None, "c1": "a"} for i in range(2)]
    batch = pa.RecordBatch.from_pylist(rows, shape.event_schema())
    reduced, is_net = without_superseded(batch, shape)
    assert (reduced.num_rows, is_net) == (2, False)
    assert np.array_equal(reduced.column("_ordinal").to_numpy(), [0, 1])
    assert reduced.schema.field("_ts").type == TIMESTAMP
    assert reduced.schema.field("_unrep").type == UNREPRESENTABLE
