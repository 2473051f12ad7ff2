"""Compares the job with the replay in memory, on random histories over several nights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.changes.events import INSERTED, ROW_SCHEMA, events
from pgoutput_etl.load import commit as merge_commit
from pgoutput_etl.load import history
from pgoutput_etl.load import mirror as merge
from pgoutput_etl.load.net_effect import TableEvents
from pgoutput_etl.load.row_states import EventLog
from pgoutput_etl.load.table_writer import DeltaTransaction, committing
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import OldTupleKind, PgoutputMessage, Relation, ReplicaIdentity, Truncate, Update
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.connect import frame
from tests.support.jobs import Job, Nights
from tests.support.modes_reference import table_histories
from tests.support.small_archives import (
    TOAST,
    Change,
    T,
    Value,
    copydata,
    delete,
    delete_full,
    insert,
    replayed,
    table,
    transaction,
    truncate,
    update,
)
from tests.support.ways_of_writing import PARAMETERS, write_as

pytestmark = pytest.mark.spark

INT, FLOAT4, FLOAT8, FLOAT8_ARRAY, DATE = 23, 700, 701, 1022, 1082
FLOATS = ("0", "-0", "1.5", "NaN", "-Infinity", None)
DAYS = ("infinity", "-infinity", "2024-02-29", None)
Cells = tuple[str | None, ...]
Make = Callable[[Random], Cells]


def _long(random: Random) -> str | None:
    """Values that begin with B are in the TOAST table and are not sent again while unchanged."""
    return random.choice([f"B{random.random()}", f"B{random.random()}", "short", None])


@dataclass(slots=True)
class KeyedTable:
    """A table on a server: its rows, and the messages that the walsender sends when they change."""

    relation: Relation
    keys: list[Cells]
    other: Make
    key_width: int = 1
    rows: dict[Cells, Cells] = field(default_factory=dict)

    def begin(self, random: Random) -> None:
        """Rows from before the slot."""
        for key in random.sample(self.keys, len(self.keys) // 3):
            self.rows[_same(key)] = key + self.other(random)

    def step(self, random: Random) -> Iterator[Change]:
        keys = [row[: self.key_width] for row in self.rows.values()]
        free = [key for key in self.keys if _same(key) not in self.rows]
        kind = random.randrange(10)
        if kind < 2 and free:
            yield self._insert(random.choice(free), random)
        elif kind < 5 and keys:
            yield from (self._update(random.choice(keys), None, random) for _ in range(random.randint(1, 2)))
        elif kind == 5 and keys:
            yield self._delete(random.choice(keys))
        elif kind == 6 and keys:
            key = random.choice(keys)
            yield self._delete(key)
            yield self._insert(key, random)
        elif kind < 9 and keys and len(free) > 2:
            yield from self._chain(random.choice(keys), random.sample(free, random.randint(1, 3)), random)
        elif len(keys) > 1 and free:
            (one, other), third = random.sample(keys, 2), random.choice(free)
            yield self._update(one, third, random)
            yield self._update(other, one, random)
            yield self._update(third, other, random)

    def _chain(self, key: Cells, through: list[Cells], random: Random) -> Iterator[Change]:
        for new in through:
            yield self._update(key, new, random)
            key = new
            if random.random() < 0.3:
                yield self._update(key, None, random)

    def _insert(self, key: Cells, random: Random) -> Change:
        self.rows[_same(key)] = key + self.other(random)
        return insert(*self.rows[_same(key)], oid=self.relation.oid)

    def _delete(self, key: Cells) -> Change:
        row = self.rows.pop(_same(key))
        if self.relation.replica_identity is ReplicaIdentity.FULL:
            return delete_full(*row, oid=self.relation.oid)
        return delete(*self._only_key(row), oid=self.relation.oid)

    def _update(self, key: Cells, new_key: Cells | None, random: Random) -> Change:
        old = self.rows.pop(_same(key))
        changed = self.other(random)
        rest = tuple(b if random.random() < 0.3 else a for a, b in zip(old[self.key_width :], changed, strict=True))
        new = (new_key or old[: self.key_width]) + rest
        self.rows[_same(new[: self.key_width])] = new
        sent: list[Value] = [TOAST if a == b and (a or "")[:1] == "B" else b for a, b in zip(old, new, strict=True)]
        oid = self.relation.oid
        if self.relation.replica_identity is ReplicaIdentity.FULL:
            return update(*sent, old=old, oid=oid)
        moved = old[: self.key_width] != new[: self.key_width]
        return update(*sent, old_key=self._only_key(old) if moved else (), oid=oid)

    def _only_key(self, row: Cells) -> Cells:
        return row[: self.key_width] + (None,) * (len(row) - self.key_width)


def _same(key: Cells) -> Cells:
    """A unique index treats 0 and -0 as equal."""
    return tuple({"-0": "0", "{-0}": "{0}"}.get(part or "", part) for part in key)


@dataclass(slots=True)
class Bag:
    """A table without a key: few distinct rows, many copies of each."""

    relation: Relation
    make: Make
    rows: list[Cells] = field(default_factory=list)

    def begin(self, random: Random) -> None:
        self.rows += [self.make(random) for _ in range(20)]

    def step(self, random: Random) -> Iterator[Change]:
        kind = random.randrange(5)
        if kind < 2 or not self.rows:
            self.rows.append(self.make(random))
            yield insert(*self.rows[-1], oid=self.relation.oid)
            return
        old = self.rows.pop(random.randrange(len(self.rows)))
        if kind < 4:
            yield delete_full(*old, oid=self.relation.oid)
            return
        new = self.make(random)
        self.rows.append(new)
        sent: list[Value] = [TOAST if a == b and (a or "")[:1] == "B" else b for a, b in zip(old, new, strict=True)]
        yield update(*sent, old=old, oid=self.relation.oid)


def _tables() -> list[KeyedTable | Bag]:
    mixed: list[str | tuple[str, int]] = [("id", INT), "big", "doc", ("f", FLOAT8), ("day", DATE)]
    ids: list[Cells] = [(str(i),) for i in range(15)]
    days: list[Cells] = [(day, number) for day in DAYS[:3] for number in ("0", "-0", "2.5", "NaN") if day]
    lists: list[Cells] = [(key,) for key in ("{}", "{0}", "{-0}", "{NaN}", "{1,NULL}", "{1}", "{1,2}", "{2,1}")]

    def cells(random: Random) -> Cells:
        return (_long(random), _long(random), random.choice(FLOATS), random.choice(DAYS))

    def one_long(random: Random) -> Cells:
        return (_long(random),)

    def equal_rows(random: Random) -> Cells:
        return (random.choice(["Bsame", "a"]), random.choice(FLOATS), random.choice(FLOATS), random.choice(DAYS))

    full = ReplicaIdentity.FULL
    return [
        KeyedTable(table(*mixed, oid=1, name="keyed"), ids, cells),
        KeyedTable(
            table(("day", DATE), ("n", FLOAT8), "big", oid=2, name="dated", key=["day", "n"]), days, one_long, 2
        ),
        KeyedTable(table(*mixed, oid=3, name="configured", identity=full), ids, cells),
        KeyedTable(table(("id", FLOAT8_ARRAY), "big", oid=5, name="lists"), lists, one_long),
        Bag(table("v", ("f4", FLOAT4), ("f8", FLOAT8), ("day", DATE), oid=4, name="bag", identity=full), equal_rows),
    ]


def random_history(random: Random, transactions: int) -> list[PgoutputMessage]:
    tables = _tables()
    for server_table in tables:
        server_table.begin(random)
    messages: list[PgoutputMessage] = []
    described: set[int] = set()
    for number in range(1, transactions + 1):
        changes: list[Change] = []
        for server_table in random.choices(tables, k=random.randint(1, 4)):
            if server_table.relation.oid not in described:
                changes.append(server_table.relation)
                described.add(server_table.relation.oid)
            if random.random() < 0.02:
                changes.append(truncate(server_table.relation.oid))
                server_table.rows.clear()
            changes += server_table.step(random)
        messages += transaction(700 + number, 1000 * number, *changes)
    return messages


def _cut(messages: list[PgoutputMessage], random: Random, files: int) -> list[list[PgoutputMessage]]:
    """Divides the messages anywhere, also within a transaction."""
    cuts = [0, *sorted(random.sample(range(len(messages) // 4, len(messages) - 20), files - 1)), len(messages)]
    return [messages[a:b] for a, b in pairwise(cuts)]


def comparable(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Values compare by repr, which distinguishes -0.0 and NaN."""
    odd = row["_pg_unrepresentable"]
    plain = {**row, "_pg_unrepresentable": None if odd is None else sorted(dict(odd).items())}
    return tuple(value.isoformat() if isinstance(value, datetime) else repr(value) for value in plain.values())


def assert_same_rows(job: Job, replay: Replay, keys: Mapping[str, tuple[str, ...]]) -> None:
    tables = replay.tables(keys)
    assert job.mismatches() == {oid: table.mismatches for oid, table in tables.items()}
    for held in tables.values():
        name = held.shape.relation.name
        want = Counter(map(comparable, held.rows))
        have = Counter(map(comparable, job.rows("public", name)))
        assert have == want, f"{name}: too many {sorted(have - want)[:3]}, missing {sorted(want - have)[:3]}"


@pytest.mark.parametrize("how", PARAMETERS)
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 12))
def test_random_histories_night_after_night(
    seed: int, how: str, spark: SparkSession, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_as(how, monkeypatch)
    random = Random(seed)
    files = _cut(random_history(random, 120), random, 2)
    job = Job(spark, tmp_path, landing, ["tables=[{match: public.configured, key: [id]}]"])
    replay = Replay()
    for number, messages in enumerate(files):
        content = copydata(messages, 0x1000000 * (number + 1))
        (landing / f"{number}.copydata").write_bytes(content)
        replay.add_file(f"{number}", content)
        assert {t.held for t in job.run().tables} == {None}
        assert_same_rows(job, replay, {"public.configured": ("id",)})


def test_random_histories_contain_every_kind_of_change() -> None:
    messages = random_history(Random(1), 120)
    updates = [message for message in messages if isinstance(message, Update)]
    moved = [update for update in updates if update.old_kind is OldTupleKind.KEY]
    assert len(messages) > 500
    assert len(moved) > 50
    assert sum(b"u" in update.new.kinds for update in moved) > 30
    assert sum(isinstance(message, Truncate) for message in messages) > 0


@pytest.mark.soak
def test_a_value_older_than_the_slot_is_unknown_until_sent(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    relation = table("id", "v", "big")
    job = Job(spark, tmp_path, landing)
    nights = [
        transaction(1, 100, relation, update("1", "a", TOAST), update("2", "b", TOAST, old_key=("0", None, None))),
        transaction(2, 200, update("1", "aa", TOAST), update("3", "c", TOAST, old_key=("2", None, None))),
        transaction(3, 300, update("1", "aa", "now"), update("3", "c", None)),
    ]
    values = []
    for number, messages in enumerate(nights):
        (landing / f"{number}.copydata").write_bytes(copydata(messages))
        job.run()
        values.append({(r["id"], r["v"], r["big"], str(r["_pg_unrepresentable"])) for r in job.rows("public", "t")})
    unknown = "[('big', None)]"
    assert values == [
        {("1", "a", None, unknown), ("2", "b", None, unknown)},
        {("1", "aa", None, unknown), ("3", "c", None, unknown)},
        {("1", "aa", "now", "None"), ("3", "c", None, "None")},
    ]


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["mirror", "history", "soft_delete", "append"])
def test_many_columns_with_unchanged_values(spark: SparkSession, tmp_path: Path, landing: Path, mode: str) -> None:
    """PostgreSQL's most columns. Spark's stack ends at some hundred nested expressions."""
    long, short = [f"b{n}" for n in range(400)], [f"c{n}" for n in range(1199)]
    nights = Nights(Job(spark, tmp_path, landing, [f"tables=[{{match: '*', mode: {mode}}}]"]))

    def row(key: str, value: Value, text: str) -> list[Value]:
        return [key, *(value for _ in long), *(text for _ in short)]

    old_key = [[key, *(None for _ in (*long, *short))] for key in ("2", "3")]
    first = [insert(*row("1", "Bone", "a")), insert(*row("2", "Btwo", "a"))]
    nights.night(transaction(1, 0x100, table("id", *long, *short), *first))
    moves = [update(*row("3", TOAST, "c"), old_key=old_key[0]), update(*row("4", TOAST, "d"), old_key=old_key[1])]
    summary = nights.night(transaction(2, 0x200, update(*row("1", TOAST, "b")), *moves))
    assert summary.exit_code == 0
    rows = nights.job.rows("public", "t")
    if mode == "append":
        new = [found for found in rows if found["_pg_op"] == "U"]
        assert [found["_pg_unchanged"] for found in new] == [long] * 3
        return
    current = [found for found in rows if found.get("_pg_valid_to_lsn") is None and not found.get("_pg_deleted")]
    found = {found["id"]: {found[name] for name in long} | {found[name] for name in short} for found in current}
    assert found == {"1": {"Bone", "b"}, "4": {"Btwo", "d"}}
    assert {found["_pg_unrepresentable"] for found in current} == {None}


NO_OPS = (
    transaction(1, 100, table("v", identity=ReplicaIdentity.FULL), *(insert(v, oid=T) for v in "aab")),
    transaction(2, 200, *(update(v, old=(v,)) for v in "aab"), update("b", old=("a",)), update("a", old=("b",))),
)


def _inserts_first(replay: Replay, night: int) -> tuple[pa.Table, TableShape]:
    """One file's events, with an UPDATE's events reversed: a spilled sort doesn't keep the order of equal rows."""
    [span] = replay.spans(T, replay.rows_by_relation()[T], {}, {}, {})
    rows = [{name: row[name] for name in ROW_SCHEMA.names} for row in span.rows if row["file"] == night]
    rows_made = events(pa.RecordBatch.from_pylist(rows, ROW_SCHEMA), span.shape).to_pylist()
    rows_made.sort(key=lambda event: (event["_lsn"], event["_ordinal"], event["_op"] != INSERTED))
    return pa.Table.from_pylist(rows_made, span.shape.event_schema()), span.shape


def test_a_no_op_update_of_a_bag_refreshes_metadata_columns(spark: SparkSession, tmp_path: Path) -> None:
    replay, path = replayed(*NO_OPS), str(tmp_path / "bag")
    for night, before in enumerate((merge_commit.TargetRows.NOTHING, merge_commit.TargetRows.ROWS)):
        events_table, shape = _inserts_first(replay, night)
        commit = DeltaTransaction("test", "changes", night, 0)
        merge.write(
            spark, Place(path), shape, TableEvents(partial(frame(spark, events_table).coalesce, 1)), before, commit
        )
    rows = spark.read.format("delta").load(path).toArrow().to_pylist()
    assert Counter(map(comparable, rows)) == Counter(map(comparable, replay.tables()[T].rows))


def test_a_no_op_update_of_a_bag_ends_a_version(spark: SparkSession, tmp_path: Path) -> None:
    replay, path = replayed(*NO_OPS), str(tmp_path / "bag")
    for night, before in enumerate((merge_commit.TargetRows.NOTHING, merge_commit.TargetRows.ROWS)):
        events_table, shape = _inserts_first(replay, night)
        with committing(spark, Place(path), DeltaTransaction("test", "changes", night, 0)) as written:
            history.write(written, shape, EventLog(frame(spark, events_table).coalesce(1)), before)
    rows = spark.read.format("delta").load(path).toArrow().to_pylist()
    assert Counter(map(comparable, rows)) == Counter(map(comparable, table_histories(replay)[T].versions))
