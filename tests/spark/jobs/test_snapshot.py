"""The snapshot job: in any order of snapshots and nights, tables end equal to the server's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.errors import ArchiveError, ConfigError, RunError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.ingest.executors import pack_blocks
from pgoutput_etl.ledger.as_of import tables_at
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.postgres.copy_format import tuple_of
from pgoutput_etl.protocol.framing import COPY_SIGNATURE
from pgoutput_etl.protocol.messages import PgoutputMessage, Relation, ReplicaIdentity, Truncate
from pgoutput_etl.scan.blocks import BLOCK_SCHEMA, BlockKind
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.targets.plan import KeyRanges
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.kinds.snapshot_order import Repair, SnapshotOrder
from pgoutput_etl.work.snapshot.report import SnapshotSummary
from pgoutput_etl.work.snapshot.request import RowFormat, SnapshotRequest
from pgoutput_etl.work.snapshot.run import snapshot
from pgoutput_etl.work.snapshot.sources import Inserts
from tests.support.dumps import Toc
from tests.support.jobs import Nights, summary_text
from tests.support.kept_rows import as_of
from tests.support.small_archives import (
    TOAST,
    Change,
    commit_prepared,
    delete,
    delete_full,
    insert,
    prepared,
    segment,
    stream_commit,
    table,
    transaction,
    truncate,
    update,
)

pytestmark = pytest.mark.spark
BAG = 7
Row = tuple[str | None, ...]
TABLES = (table(), table("a", "b", oid=BAG, name="bag", identity=ReplicaIdentity.FULL))


def as_csv(names: Sequence[str], rows: Iterable[Row]) -> str:
    """CSV as COPY writes it: NULL is empty, an empty text is quoted."""
    fields = (["" if v is None else '"' + v.replace('"', '""') + '"' for v in row] for row in (tuple(names), *rows))
    return "".join(",".join(row) + "\n" for row in fields)


def load(
    nights: Nights, lsn: int, rows: Iterable[Row], name: str = "t", *overrides: str, **options: Any
) -> SnapshotSummary:
    """Loads rows from CSV, with the columns of TABLES. The slot was created at the beginning of the WAL."""
    columns = {"t": ("id", "v"), "bag": ("a", "b")}[name]
    path = nights.job.folder / f"{name}.csv"
    path.write_text(as_csv(columns, rows))
    request = SnapshotRequest((f"public.{name}",), lsn, files=str(path), slot_lsn=1, **options)
    return snapshot(nights.job.spark, nights.job.loaded(*overrides), request, lambda _: None)


@dataclass(slots=True)
class Server:
    """A server's history in memory: its messages, and the rows of table t and of the bag after each commit."""

    random: Random
    sent: list[tuple[int, list[PgoutputMessage]]] = field(default_factory=list)
    rows: list[tuple[int, list[Row], list[Row]]] = field(default_factory=lambda: [(0, [], [])])

    def work(self, transactions: int) -> None:
        _, keyed, bag = self.rows[-1]
        by_key = {row[0]: row for row in keyed}
        bag = list(bag)
        for number in range(len(self.rows), len(self.rows) + transactions):
            changes: list[Change] = []
            for _ in range(self.random.randint(1, 4)):
                changes += self._keyed(by_key) if self.random.random() < 0.6 else self._bag(bag)
            self.sent.append((1000 * number, transaction(700 + number, 1000 * number, *changes)))
            self.rows.append((1000 * number, list(by_key.values()), list(bag)))

    def _keyed(self, rows: dict[str | None, Row]) -> list[Change]:
        key, value = str(self.random.randint(1, 9)), self.random.choice(["x", "", 'q"', "é\n", None])
        if self.random.random() < 0.03:
            rows.clear()
            return [truncate()]
        if key not in rows:
            rows[key] = (key, value)
            return [insert(key, value)]
        if self.random.random() < 0.3:
            del rows[key]
            return [delete(key, None)]
        moved = str(self.random.randint(10, 19))
        if self.random.random() < 0.3 and moved not in rows:
            del rows[key]
            rows[moved] = (moved, value)
            return [update(moved, value, old_key=(key, None))]
        rows[key] = (key, value)
        return [update(key, value)]

    def _bag(self, rows: list[Row]) -> list[Change]:
        row: Row = (self.random.choice("abc"), None)
        if rows and self.random.random() < 0.4:
            deleted = self.random.choice(rows)
            rows.remove(deleted)
            return [delete_full(*deleted, oid=BAG)]
        rows.append(row)
        return [insert(*row, oid=BAG)]

    def night(self, first: int, last: int) -> list[PgoutputMessage]:
        """Transactions first to last, counted from 1, as a newly connected receiver lands them: each table is described
        before its first change. A server that describes two in a row means a partition and its root."""
        unsent = {described.oid: described for described in TABLES}
        landed: list[PgoutputMessage] = []
        for message in (message for _, messages in self.sent[first - 1 : last] for message in messages):
            oid = message.relation_oids[0] if isinstance(message, Truncate) else getattr(message, "relation_oid", None)
            landed += [unsent.pop(oid)] if oid in unsent else []
            landed.append(message)
        return landed


def ordered(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=repr)


def living(nights: Nights, name: str, mode: Mode) -> list[Row]:
    rows = nights.job.rows("public", name)
    if mode is Mode.HISTORY:
        rows = [row for row in rows if row["_pg_valid_to_lsn"] is None]
    if mode is Mode.SOFT_DELETE:
        rows = [row for row in rows if not row.get("_pg_deleted")]
    return ordered(tuple(v for n, v in row.items() if not n.startswith("_pg_")) for row in rows)


# The night (of four, with five transactions each) before which the snapshot is loaded, and the last transaction in it.
WHEN = [
    pytest.param(0, 3, Mode.MIRROR, id="before all, taken within the first night", marks=pytest.mark.soak),
    pytest.param(2, 3, Mode.MIRROR, id="late, already applied", marks=pytest.mark.soak),
    pytest.param(1, 12, Mode.MIRROR, id="ahead by more than a night"),
    pytest.param(1, 12, Mode.HISTORY, id="history, ahead", marks=pytest.mark.soak),
    pytest.param(2, 7, Mode.HISTORY, id="history, late", marks=pytest.mark.soak),
    pytest.param(1, 12, Mode.SOFT_DELETE, id="soft_delete, ahead", marks=pytest.mark.soak),
    pytest.param(4, 20, Mode.MIRROR, id="after all", marks=pytest.mark.soak),
]


@pytest.mark.soak
@pytest.mark.parametrize(("loaded_before", "taken_after", "mode"), WHEN)
def test_a_snapshot_can_be_loaded_at_any_time(nights: Nights, loaded_before: int, taken_after: int, mode: Mode) -> None:
    """The slot is created after the second transaction; the archive has no earlier rows."""
    server = Server(Random(taken_after))
    server.work(20)
    lsn, keyed, bag = server.rows[taken_after]
    in_mode = ("t", "bag") if mode is not Mode.SOFT_DELETE else ("t",)  # a bag has no soft deletes
    rules = f"tables=[{', '.join(f'{{match: public.{name}, mode: {mode.value}}}' for name in in_mode)}]"
    for night in range(5):
        if night == loaded_before:
            for name, rows in (("t", keyed), ("bag", bag)):
                done = load(nights, lsn + 1, rows, name, rules, **server_catalog(nights))
                assert done.exit_code == EXIT_DONE
                assert [(t.table.table, t.loaded, t.table.held) for t in done.tables] == [(name, len(rows), None)]
        if night < 4:
            nights.land(server.night(max(5 * night + 1, 3), 5 * night + 5))
            summary = nights.job.run(rules)
            assert all(t.held is None for t in summary.tables)
        if night >= loaded_before:
            reached = max(5 * min(night + 1, 4), taken_after)
            assert living(nights, "t", mode) == ordered(server.rows[reached][1]), night
            assert living(nights, "bag", mode) == ordered(server.rows[reached][2]), night
    if mode is Mode.HISTORY:
        for at, keyed, bag in server.rows[taken_after + 1 :]:
            for name, rows in (("t", keyed), ("bag", bag)):
                versions = as_of(nights.job.rows("public", name), at)
                current = [tuple(v for n, v in row.items() if not n.startswith("_pg_")) for row in versions]
                assert ordered(current) == ordered(rows), at


def server_catalog(nights: Nights) -> dict[str, Any]:
    """The result of the catalog query for TABLES."""
    path = nights.job.folder / "catalog.json"
    path.write_text(
        json.dumps({"version": 160000, "tables": [_described(relation) for relation in TABLES], "types": []})
    )
    return {"catalog": str(path)}


def _described(relation: Relation) -> dict[str, Any]:
    columns = [
        {
            "name": c.name,
            "type": c.type_oid,
            "modifier": -1,
            "not_null": c.is_key,
            "generated": False,
            "identity": c.is_key,
        }
        for c in relation.columns
    ]
    named = {"oid": relation.oid, "schema": relation.namespace, "table": relation.name, "kind": "r"}
    published = [{"name": "p", "columns": None, "filter": None}]
    return {**named, "identity": relation.replica_identity.value, "publications": published, "columns": columns}


def begin_repair(
    nights: Nights, lsn: int, relation: Relation, rows: Iterable[Row], ranges: KeyRanges = None
) -> SnapshotOrder:
    """Leaves the batch of a repair that died once it had begun: the next run finishes it. rows: of the ranges."""
    spark, config = nights.job.spark, nights.job.loaded()
    ledger = DeltaLedger.of(spark, config)
    last = ledger.batches.last()
    assert last is not None
    staged = str(nights.job.folder / "staged")
    tuples = [tuple_of([None if text is None else text.encode() for text in row], b"t") for row in rows]
    messages = Inserts(relation, lsn, 0).messages(pa.array(tuples, pa.binary()), 0)
    blocks = pa.Table.from_batches(pack_blocks([messages], BlockKind.CHANGE), BLOCK_SCHEMA)
    frame(spark, blocks).write.format("delta").mode("overwrite").save(staged)
    repairs = {relation.oid: Repair(last.tables[relation.oid].version, ranges)}
    order = SnapshotOrder(lsn, 0, staged, (relation,), repairs=repairs)
    batch = replace(Batch.after(last, {}), work=order.to_json())
    with ledger.batches.claimed(last, batch, lambda _: None):
        ledger.batches.begin(batch)
    return order


# The night (of four, with five transactions each) before which the table is repaired, and the snapshot's last commit.
REPAIRED = [
    pytest.param(1, 12, id="ahead by more than a night", marks=pytest.mark.soak),
    pytest.param(4, 20, id="after all", marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("repaired_before", "taken_after"), REPAIRED)
def test_a_damaged_table_can_be_repaired_at_any_time(nights: Nights, repaired_before: int, taken_after: int) -> None:
    server = Server(Random(taken_after))
    server.work(20)
    lsn, keyed, _ = server.rows[taken_after]
    table_t = f"delta.`{nights.job.path('public', 't')}`"
    for night in range(5):
        if night == repaired_before:
            nights.job.spark.sql(f"DELETE FROM {table_t} WHERE id IN ('1', '2', '3')")
            nights.job.spark.sql(f"UPDATE {table_t} SET v = 'damaged' WHERE id > '5'")
            nights.job.spark.sql(
                f"INSERT INTO {table_t} (id, v) VALUES ('stranger', 'x'), ('other', NULL), (NULL, 'x')"
            )
            nights.job.spark.sql(f"INSERT INTO {table_t} SELECT * FROM {table_t} WHERE id IN ('4', '5')")
            begin_repair(nights, lsn + 1, TABLES[0], keyed)
        if night < 4:
            nights.land(server.night(max(5 * night + 1, 3), 5 * night + 5))
        assert nights.job.run().exit_code == EXIT_DONE
        if night >= repaired_before:
            reached = max(5 * min(night + 1, 4), taken_after)
            assert living(nights, "t", Mode.MIRROR) == ordered(server.rows[reached][1]), night


@pytest.mark.soak
def test_a_partition_is_loaded_with_its_root(nights: Nights) -> None:
    root = table(oid=1, name="parts", key=())
    nights.land(transaction(1, 0x100, root, table(), insert("1", "a", oid=1)))
    nights.job.run()
    with pytest.raises(
        ConfigError,
        match=r"^--tables: no other tables: public\.t is a partition of public\.parts, .*: load public\.parts",
    ):
        load(nights, 0x200, [("1", "a")])


def test_a_dump_leaves_out_partitions_of_a_published_root_damaged_files_and_tables_that_nothing_describes(
    nights: Nights,
) -> None:
    """The archive has the rows of the partition under its root's name."""
    job, dump, toc = nights.job, nights.job.folder / "dump", Toc()
    names = {1: "root", 2: "part", 3: "good", 4: "bad"}
    described = [table(oid=oid, name=name) for oid, name in names.items()]
    names[5] = "unknown"
    nights.night(transaction(1, 0x100, *described, insert("9", "z", oid=1)))
    dump.mkdir()
    rows = [
        toc.entry(str(oid), "COPY public.x (id, v) FROM stdin;\n", f"{oid}.dat", name=name)
        for oid, name in names.items()
        if name != "root"
    ]
    (dump / "toc.dat").write_bytes(toc.head(5) + toc.attached("public.root", "public.part") + b"".join(rows))
    for oid, content in {2: "1\ta", 3: "1\ta", 4: "1", 5: "1\ta"}.items():
        (dump / f"{oid}.dat").write_text(f"{content}\n\\.\n")

    def loaded(tables: str) -> SnapshotSummary:
        request = SnapshotRequest((tables,), 0x100, files=str(dump), format=RowFormat.DUMP, slot_lsn=1)
        return snapshot(job.spark, job.loaded(), request, lambda _: None)

    done = loaded("public.*")
    assert done.exit_code == EXIT_QUARANTINE
    left = {t.table.table: t.table.held for t in done.tables if t.table.held}
    assert left.keys() == {"part", "bad", "unknown"}
    assert left["unknown"] == "public.unknown is not in the archive: describe it with --catalog, see docs/snapshot.md"
    assert "is a partition of public.root, which is published under its own name" in left["part"]
    assert "4.dat, offset" in left["bad"]
    assert (nights.values("good"), nights.values("root"), nights.values("part")) == ([("1", "a")], [("9", "z")], [])
    with pytest.raises(ConfigError, match=r"part is a partition of public\.root") as refused:
        loaded("public.part")
    assert refused.value.next_job[:3] == ("snapshot", "--tables", "public.root")
    with pytest.raises(ArchiveError, match=r"4\.dat, offset"):
        loaded("public.bad")
    with pytest.raises(ConfigError, match=r"^public\.unknown is not in the archive"):
        loaded("public.unknown")


@pytest.mark.soak
def test_the_repair_of_a_table_without_a_key_overwrites_its_rows(nights: Nights) -> None:
    bag = table("v", "w", name="bag", key=())
    rows = [("1", "a"), ("1", "a"), ("2", "b")]
    nights.night(transaction(1, 0x100, bag, *(insert(*row) for row in rows)))
    path = nights.job.path("public", "bag")
    nights.job.spark.sql(f"UPDATE delta.`{path}` SET w = 'damaged' WHERE v = '1'")
    begin_repair(nights, 0x101, bag, rows)
    assert nights.night(transaction(2, 0x200, insert("3", "c"))).exit_code == 0
    assert nights.values("bag") == [*rows, ("3", "c")]


@pytest.mark.soak
def test_a_repair_writes_only_rows_that_differ_in_a_value(nights: Nights) -> None:
    """Values with several spellings, values that no column holds or that were never sent, and a dropped column that is
    kept; ranges that the snapshot does not have."""
    columns = (("id", 23), ("f", 701), ("d", 1082), ("doc", 25), ("j", 3802))
    before = replace(table(*columns, "gone"), replica_identity=ReplicaIdentity.DEFAULT)
    keep = "tables=[{match: '*', on_schema_change: {drop: keep}}]"
    nights.job.overrides.append(keep)
    rows = {
        "1": ("1", "NaN", "infinity", "x", '{"a": 1.0}'),
        "2": ("2", "-0", "2024-02-29", None, "[]"),
        "3": ("3", "0.1", None, "y", None),
        "1000": ("1000", "1", "0044-03-15 BC", "z", "null"),
    }
    nights.night(transaction(1, 0x100, before, *(insert(*row, "old") for row in rows.values())))
    after = table(*columns)
    unsent = update("4", "1", None, TOAST, None, old_key=("5", None, None, None, None))
    nights.night(transaction(2, 0x200, after, insert("6", "1", None, "w", None), unsent))
    target = f"delta.`{nights.job.path('public', 't')}`"
    nights.job.spark.sql(f"UPDATE {target} SET f = 0.0 WHERE id = 2")
    nights.job.spark.sql(f"UPDATE {target} SET f = 9.0 WHERE id = 1000")
    nights.job.spark.sql(f"INSERT INTO {target} SELECT * FROM {target} WHERE id IN (6, 1000)")  # 6: not on the server
    nights.job.spark.sql(f"INSERT INTO {target} SELECT * FROM {target} WHERE id = 4")
    nights.job.spark.sql(f"INSERT INTO {target} (id, doc) VALUES (NULL, 'no key')")
    rows["4"] = ("4", "1", None, "sent at last", None)
    within = [row for key, row in rows.items() if key != "1000"]
    begin_repair(nights, 0x300, after, within, ((-(2**63), 3), (4, 500)))
    nights.job.run()
    written = nights.job.spark.read.format("delta").load(str(nights.job.path("public", "t")))
    assert sorted(row["id"] for row in written.collect()) == [1, 2, 3, 4, 1000, 1000], "1000 is in no range"
    found = {row["id"]: (row["_pg_commit_lsn"], row["f"], row["doc"], row["gone"]) for row in written.collect()}
    assert {key: lsn for key, (lsn, *_) in found.items()} == {1: 0x100, 2: 0x300, 3: 0x100, 4: 0x300, 1000: 0x100}
    assert [str(found[2][1]), found[1000][1]] == ["-0.0", 9.0]
    assert found[4][2] == "sent at last"
    assert [found[key][3] for key in (1, 2, 3)] == ["old"] * 3, "the column that only the target has"


def test_rows_that_may_be_older_than_the_slot_are_refused(nights: Nights) -> None:
    path = nights.job.folder / "t.csv"
    path.write_text(as_csv(("id", "v"), [("0", "old")]))

    def loaded(lsn: int, slot_lsn: int | None = None) -> SnapshotSummary:
        request = SnapshotRequest(("public.t",), lsn, files=str(path), slot_lsn=slot_lsn, **server_catalog(nights))
        return snapshot(nights.job.spark, nights.job.loaded(), request, lambda _: None)

    with pytest.raises(ConfigError, match="nothing shows that the slot existed at LSN 0/80"):
        loaded(0x80)
    nights.night(transaction(1, 0x100, table(), insert("1", "a")), transaction(2, 0x200, insert("2", "b")))
    with pytest.raises(ConfigError, match="0/80, and the archive is known to have all commits only from 0/100 on"):
        loaded(0x80)
    with pytest.raises(ConfigError, match="the slot was created later, at 0/90"):
        loaded(0x80, slot_lsn=0x90)
    assert nights.values("t") == [("1", "a"), ("2", "b")]
    assert loaded(0x100).exit_code == EXIT_DONE
    assert nights.values("t") == [("0", "old"), ("1", "a"), ("2", "b")]
    assert loaded(0x80, slot_lsn=0x80).exit_code == EXIT_DONE


@pytest.mark.soak
def test_transactions_open_at_the_snapshot_are_applied_later(nights: Nights) -> None:
    """Streamed and prepared transactions begin before a snapshot and commit after it, in later nights."""
    begun = [
        *segment(5, table(xid=5), insert("5", "streamed"), first=True),
        *prepared(6, table(), insert("6", "prepared")),
    ]
    nights.night(transaction(1, 0x100, table(), insert("1", "a"), insert("2", "b")), begun)

    done = load(nights, 0x180, [("0", "from before"), ("1", "a"), ("2", "b")])

    assert (done.waits, done.exit_code) == (True, EXIT_DONE)
    assert nights.values("t") == [("0", "from before"), ("1", "a"), ("2", "b")]
    nights.night(stream_commit(5, 0x200), transaction(7, 0x280, update("2", "bb"), delete("0", None)))
    assert nights.values("t") == [("1", "a"), ("2", "bb"), ("5", "streamed")]
    nights.night(commit_prepared(6, 0x300))
    assert nights.values("t") == [("1", "a"), ("2", "bb"), ("5", "streamed"), ("6", "prepared")]


@pytest.mark.soak
def test_a_commit_at_the_snapshot_lsn_is_applied(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, table(), insert("1", "a")))
    load(nights, 0x200, [("1", "a"), ("2", "b")])
    assert [
        (row["id"], row["_pg_commit_lsn"], row["_pg_xid"], row["_pg_commit_ts"])
        for row in nights.job.rows("public", "t")
    ] == [
        ("1", 0x200, None, None),
        ("2", 0x200, None, None),
    ]

    nights.night(transaction(2, 0x1FF, update("1", "not again")), transaction(3, 0x200, update("2", "bb")))

    assert nights.values("t") == [("1", "a"), ("2", "bb")]


def test_one_table_is_reloaded_while_the_others_continue(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, *TABLES, insert("1", "a"), insert("x", None, oid=BAG)))
    nights.night(transaction(2, 0x200, insert("2", "b"), insert("y", None, oid=BAG)))
    before = nights.job.versions()

    done = load(nights, 0x180, [("0", "old"), ("1", "mended")])

    assert [(t.loaded, t.changes, t.table.rows) for t in done.tables] == [(2, 1, 3)]
    assert nights.values("t") == [("0", "old"), ("1", "mended"), ("2", "b")]
    assert nights.job.versions() == {**before, "t": before["t"] + 1}
    summary = nights.night(transaction(3, 0x300, delete("0", None), insert("z", None, oid=BAG)))
    assert summary.last_commit_lsn == 0x300
    assert nights.values("t") == [("1", "mended"), ("2", "b")]
    assert [row[0] for row in nights.values("bag")] == ["x", "y", "z"]
    tables = tables_at(nights.job.spark, str(nights.job.folder / "tables/_pgoutput_etl"), "test", 0x200)
    assert ordered(map(tuple, tables["public.t"].select("id", "v").collect())) == [
        ("0", "old"),
        ("1", "mended"),
        ("2", "b"),
    ]


@pytest.mark.soak
def test_a_backfill_starts_from_the_snapshot(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, table(), insert("1", "a")))
    load(nights, 0x180, [("0", "from before"), ("1", "a")])
    nights.night(transaction(2, 0x200, update("1", "aa")))
    nights.job.spark.sql(f"DELETE FROM delta.`{nights.job.path('public', 't')}` WHERE true")

    nights.job.backfill(BackfillRequest(("public.t",)))

    assert nights.values("t") == [("0", "from before"), ("1", "aa")]
    nights.night(transaction(3, 0x300, delete("0", None)))
    assert nights.values("t") == [("1", "aa")]


@pytest.mark.soak
def test_columns_that_change_after_the_snapshot(nights: Nights) -> None:
    """The snapshot's rows have the table's columns of that time."""
    nights.night(transaction(1, 0x100, table(), insert("1", "a")))
    nights.night(transaction(2, 0x200, table("id", "v", "w"), insert("2", "b", "new"), update("1", TOAST, "w1")))

    load(nights, 0x180, [("0", "old"), ("1", "a")])

    assert nights.values("t") == [("0", "old", None), ("1", "a", "w1"), ("2", "b", "new")]


@pytest.mark.soak
def test_rows_from_binary_copy_files(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, table(("id", 23), "v"), insert("1", "a")))
    folder = nights.job.folder / "copied"
    folder.mkdir()
    for number, value in enumerate([b"\0\0\0\1b", b"\xff\xff\xff\xff"]):
        row = b"\0\2" + b"\0\0\0\4" + number.to_bytes(4, "big") + value
        (folder / f"{number}.copy").write_bytes(COPY_SIGNATURE + bytes(8) + row + b"\xff\xff")

    request = SnapshotRequest(("public.t",), 0x200, files=str(folder), format=RowFormat.BINARY)
    snapshot(nights.job.spark, nights.job.loaded(), request, lambda _: None)

    assert nights.values("t") == [(0, "b"), (1, None)]


@pytest.mark.soak
def test_the_next_run_finishes_an_interrupted_snapshot(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    from pgoutput_etl.ledger.ledger import Ledger

    nights.night(transaction(1, 0x100, table(), insert("1", "a")))

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "close_backfill", dies)
        with pytest.raises(KeyboardInterrupt):
            load(nights, 0x180, [("0", "from before"), ("1", "a")])
    staged = nights.job.folder / "tables/_pgoutput_etl/staged"
    assert list(staged.iterdir())
    (nights.job.folder / "t.csv").unlink()
    summary = nights.night(transaction(2, 0x200, update("0", "then")))

    assert summary.batch == 3
    assert nights.values("t") == [("0", "then"), ("1", "a")]
    assert not staged.exists()


@pytest.mark.soak
def test_a_refused_snapshot_leaves_nothing_behind(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, table(), insert("1", "a")))
    batches = len(nights.ledger("batches"))
    path = nights.job.folder / "odd.csv"
    for columns, name, why in (
        (("id", "other"), "t", r"public\.t has other columns in the archive: describe it with --catalog"),
        (("id",), "t", r"public\.t has other columns"),
        (("id", "v"), "unknown", r"the archive has no table 'public\.unknown'"),
    ):
        path.write_text(as_csv(columns, [("1",) * len(columns)]))
        request = SnapshotRequest((f"public.{name}",), 0x200, files=str(path))
        with pytest.raises(ConfigError, match=why):
            snapshot(nights.job.spark, nights.job.loaded(), request, lambda _: None)
    assert len(nights.ledger("batches")) == batches
    assert nights.values("t") == [("1", "a")]
    staged = nights.job.folder / "tables/_pgoutput_etl/staged"
    assert not staged.exists() or not list(staged.iterdir())


@pytest.mark.soak
def test_an_invalid_value_leaves_the_table_unchanged(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, table(("id", 23), "v"), insert("1", "a")))

    done = load(nights, 0x200, [("2", "b"), ("SECRET", "c")])

    [held] = done.tables
    assert held.table.held is not None
    assert "the snapshot" in held.table.held
    assert "column 'id'" in held.table.held
    assert "SECRET" not in held.table.held
    assert done.exit_code == 3
    nights.night(transaction(2, 0x300, insert("3", "c")))
    assert nights.values("t") == [(1, "a"), (3, "c")]


@pytest.mark.soak
def test_append_starts_with_the_snapshot(nights: Nights) -> None:
    rules = "tables=[{match: public.t, mode: append}]"
    nights.land(transaction(1, 0x100, table(), insert("1", "a")))
    nights.job.run(rules)
    load(nights, 0x180, [("0", "old"), ("1", "a")], "t", rules)
    nights.land(transaction(2, 0x200, update("1", "aa"), delete("0", None)))
    nights.job.run(rules)
    changes = sorted(nights.job.rows("public", "t"), key=lambda row: (row["_pg_commit_lsn"], row["_pg_seq"]))
    assert [(row["_pg_op"], row["id"], row["v"], row["_pg_commit_lsn"]) for row in changes] == [
        ("I", "0", "old", 0x180),
        ("I", "1", "a", 0x180),
        ("U", "1", "aa", 0x200),
        ("D", "0", None, 0x200),
    ]


@pytest.mark.soak
def test_tables_ahead_of_the_archive_are_reported(nights: Nights) -> None:
    ledger = str(nights.job.folder / "tables/_pgoutput_etl")
    nights.night(transaction(1, 0x100, *TABLES, insert("1", "a"), insert("x", None, oid=BAG)))
    load(nights, 0x300, [("1", "aa")])

    summary = nights.night(transaction(2, 0x200, update("1", "aa"), insert("y", None, oid=BAG)))

    assert (summary.last_commit_lsn, summary.ahead) == (0x200, {"public.t": 0x300})
    assert "Ahead, by a snapshot as of LSN 0/300: public.t" in summary_text(summary)
    assert "All tables but public.t (ahead) are consistent through LSN 0/200." in summary_text(summary)
    tables = tables_at(nights.job.spark, ledger, "test")
    assert (tables.lsn, tables.ahead) == (0x200, {"public.t": 0x2FF})
    assert nights.night(transaction(3, 0x400, insert("2", "b"))).ahead == {}
    assert tables_at(nights.job.spark, ledger, "test").ahead == {}
    assert nights.values("t") == [("1", "aa"), ("2", "b")]


@pytest.mark.soak
def test_an_empty_table_that_is_not_in_the_archive(nights: Nights) -> None:
    """The catalog alone describes the tables, before anything has landed."""
    done = load(nights, 0x100, [], **server_catalog(nights))
    assert [(t.loaded, t.table.rows, t.table.held) for t in done.tables] == [(0, 0, None)]
    assert nights.job.columns("public", "t") == ["id", "v"]
    assert nights.values("t") == []
    nights.night(transaction(1, 0x200, table(), insert("1", "a")))
    assert nights.values("t") == [("1", "a")]


@pytest.mark.soak
def test_a_backfill_without_its_snapshot_is_refused(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, table(), insert("1", "a")))
    load(nights, 0x180, [("0", "from before"), ("1", "a")])
    nights.night(transaction(2, 0x200, delete("0", None)))
    files = [*nights.job.path("public", "t").rglob("*.parquet")]
    assert files
    for file in files:
        file.unlink()
    with pytest.raises(RunError, match=r"public\.t would start from its Delta version 1, which can no longer be read"):
        nights.job.backfill(BackfillRequest(("public.t",)))


@pytest.mark.soak
def test_masked_values_are_not_staged(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers a table that the archive describes only later."""
    staged: list[bytes] = []
    rules = "tables=[{match: public.t, columns: {v: redact}}]"

    def record(_: object, path: str) -> None:
        staged.extend(file.read_bytes() for file in Path(path).rglob("*.parquet"))

    monkeypatch.setattr("pgoutput_etl.ledger.delta_archive.DeltaArchive.discard", record)
    load(nights, 0x180, [("0", "SECRET"), ("1", "SECRET too")], "t", rules, **server_catalog(nights))
    assert staged
    assert not any(b"SECRET" in content for content in staged)
    nights.land(transaction(2, 0x200, table(), update("1", "SECRET still")))
    nights.job.run(rules)
    assert [key for key, _ in nights.values("t")] == ["0", "1"]
    assert not any("SECRET" in str(value) for row in nights.values("t") for value in row)


@pytest.mark.soak
def test_a_copy_leaves_out_tables_with_a_later_snapshot(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, *TABLES, insert("1", "a"), insert("x", None, oid=BAG)))
    nights.night(transaction(2, 0x200, insert("2", "b"), insert("y", None, oid=BAG)))
    load(nights, 0x180, [("0", "old"), ("1", "a")])  # replaces the table as of the second night
    nights.night(transaction(3, 0x300, delete("0", None), insert("z", None, oid=BAG)))

    into = nights.job.folder / "beside"
    early = nights.job.backfill(BackfillRequest(("*",), to_lsn=0x100, out=str(into)))
    assert [t.table.table for t in early.tables] == ["bag"]
    assert early.not_built == ("public.t starts from a snapshot as of LSN 0/200, later than 0/100",)
    assert early.exit_code == EXIT_QUARANTINE
    assert not (into / "public" / "t").exists()
    with pytest.raises(ConfigError, match=r"no table can be built: public\.t starts from a snapshot as of LSN 0/200"):
        nights.job.backfill(BackfillRequest(("public.t",), to_lsn=0x100, out=str(into)))

    late = nights.job.backfill(BackfillRequest(("*",), to_lsn=0x200, out=str(into)))
    assert (late.not_built, late.exit_code) == ((), EXIT_DONE)
    rows = nights.job.spark.read.format("delta").load(str(into / "public" / "t")).collect()
    assert ordered((row["id"], row["v"]) for row in rows) == [("0", "old"), ("1", "a"), ("2", "b")]


@pytest.mark.soak
@pytest.mark.parametrize("first", [None, 0x100], ids=["whole", "range"])
def test_a_backfill_in_place_leaves_a_table_ahead_of_the_archive(nights: Nights, first: int | None) -> None:
    nights.night(transaction(1, 0x100, *TABLES, insert("1", "a"), insert("x", None, oid=BAG)))
    load(nights, 0x500, [("1", "newer")])
    before = nights.job.versions()

    done = nights.job.backfill(BackfillRequest(("*",), from_lsn=first))

    assert [t.table.table for t in done.tables] == ["bag"]
    assert (done.not_built, done.exit_code) == (
        ("public.t starts from a snapshot as of LSN 0/4FF, later than 0/100",),
        EXIT_QUARANTINE,
    )
    assert nights.job.versions() == {**before, "bag": before["bag"] + 1}
    assert nights.values("t") == [("1", "newer")]
    nights.night(transaction(2, 0x600, update("1", "newest")))
    assert nights.values("t") == [("1", "newest")]
