"""Values that changes left unsent, filled in without Spark: as the replay does, which applies one change at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_etl.changes.events import ROW_SCHEMA, events
from pgoutput_etl.load.unsent import complete_net
from pgoutput_etl.protocol.messages import PgoutputMessage, Truncate
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.schema.table_shape import TIMESTAMP, TableShape
from pgoutput_etl.targets.modes import METADATA_COLUMNS, UNREPRESENTABLE_COLUMN
from tests.spark.load.test_net_effect import comparable, random_history
from tests.support.small_archives import TOAST, T, copydata, delete, insert, replayed, table, transaction, update

KEYED, CONFIGURED, LISTS = 1, 3, 5
KEYS = {"public.configured": ("id",)}


def stored(rows: Iterable[Mapping[str, Any]], shape: TableShape) -> pa.Table:
    kinds = {column.name: column.type.arrow for column in shape.columns}
    kinds |= dict(zip(METADATA_COLUMNS[:3], (pa.int64(), TIMESTAMP, pa.int64()), strict=True))
    kinds[UNREPRESENTABLE_COLUMN] = pa.map_(pa.string(), pa.string())
    values = [{**row, UNREPRESENTABLE_COLUMN: odd and [*dict(odd).items()]} for row in rows for odd in [odd_of(row)]]
    return pa.Table.from_pylist(values, pa.schema(kinds.items()))


def odd_of(row: Mapping[str, Any]) -> Mapping[str, str | None] | None:
    found: Mapping[str, str | None] | None = row[UNREPRESENTABLE_COLUMN]
    return found


def target_rows(net: pa.RecordBatch, shape: TableShape) -> list[tuple[tuple[Any, ...], dict[str, Any] | None]]:
    """Each key, with its row or None."""
    found = []
    for row in net.to_pylist():
        values = {column.name: row[f"c{i}"] for i, column in enumerate(shape.columns)}
        odd = {entry["key"]: entry["value"] for entry in row["_unrep"] or ()} or None
        metadata = dict(zip(METADATA_COLUMNS, (row["_lsn"], row["_ts"], row["_xid"], odd), strict=True))
        key = tuple(row[f"c{i}"] for i in shape.key)
        found.append((key, None if row["_delete"] else {**values, **metadata}))
    return found


def after(
    replay: Replay, oid: int, before: list[dict[str, Any]], number: int
) -> tuple[list[dict[str, Any]] | None, TableShape]:
    """The rows of a table after the file with this number, given those before it; None without a result."""
    relation = replay.tables(KEYS)[oid].shape.relation
    [span] = replay.spans(oid, replay.rows_by_relation()[oid], KEYS, {}, {})
    assert span.shape.relation == relation
    rows = [{name: row[name] for name in ROW_SCHEMA.names} for row in span.rows if row["file"] == number]
    batch = events(pa.RecordBatch.from_pylist(rows, ROW_SCHEMA), span.shape)
    net = complete_net(batch, span.shape, stored(before, span.shape))
    if net is None:
        return None, span.shape
    names = [span.shape.columns[i].name for i in span.shape.key]
    by_key = {tuple(row[name] for name in names): row for row in before}
    for key, row in target_rows(net, span.shape):
        by_key.pop(key, None)
        if row is not None:
            by_key[key] = row
    return list(by_key.values()), span.shape


def history(seed: int) -> list[list[PgoutputMessage]]:
    """Two files; the second one has no TRUNCATE."""
    random = Random(seed)
    while True:
        messages = random_history(random, 90)
        cut = next(n for n in range(len(messages) * 2 // 3, len(messages)) if type(messages[n]).__name__ == "Begin")
        if not any(isinstance(message, Truncate) for message in messages[cut:]):
            return [messages[:cut], messages[cut:]]


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.soak] * (n > 9)) for n in range(300)])
def test_rows_are_the_replays(seed: int) -> None:
    replay, unsent = Replay(), 0
    first, second = (copydata(messages, 0x1000000 * n) for n, messages in enumerate(history(seed), 1))
    replay.add_file("0", first)
    before = {oid: held.rows for oid, held in replay.tables(KEYS).items()}
    replay.add_file("1", second)
    for oid in (KEYED, CONFIGURED):
        rows, shape = after(replay, oid, [*before[oid]], 1)
        unsent += len(shape.toast)
        assert rows is not None
        want = Counter(map(comparable, replay.tables(KEYS)[oid].rows))
        assert Counter(map(comparable, rows)) == want
    assert unsent
    assert after(replay, LISTS, [*before[LISTS]], 1)[0] is None, "lists are compared by Spark"


def test_a_value_that_nobody_sent_is_unknown() -> None:
    relation = table("id", "v", "big")
    changes = update("1", "a", TOAST), update("3", "b", TOAST, old_key=("2", None, None)), insert("4", "c", "Big")
    moved = update("5", "d", TOAST, old_key=("4", None, None)), update("6", "e", TOAST, old_key=("5", None, None))
    replay = replayed(transaction(1, 0x100, relation, *changes, *moved))
    rows, _ = after(replay, T, [], 0)
    assert rows is not None
    found = {row["id"]: (row["v"], row["big"], row[UNREPRESENTABLE_COLUMN]) for row in rows}
    unknown = {"big": None}
    assert found == {"1": ("a", None, unknown), "3": ("b", None, unknown), "6": ("e", "Big", None)}


def test_a_deleted_rows_values_are_not_those_of_the_next_one() -> None:
    """A change between them is missing: as in Spark, the value is the stored one."""
    relation = table("id", "big")
    replay = replayed(
        transaction(1, 0x100, relation, insert("1", "Bstored")),
        transaction(2, 0x200, update("1", "Bsent"), delete("1", None), update("1", TOAST)),
    )
    [before] = [{**row} for row in replayed(transaction(1, 0x100, relation, insert("1", "Bstored"))).tables()[T].rows]
    rows, _ = after(replay, T, [before], 1)
    assert rows is not None
    assert [(row["id"], row["big"]) for row in rows] == [("1", "Bstored")]
