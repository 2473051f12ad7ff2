"""Batches with INSERTs only: an existing key stays one row, and its last INSERT wins.

An INSERT doesn't prove that its key is new, because not every DELETE and TRUNCATE is published or applied.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgoutput_etl.load import change_source, driver_merge, rewrite
from pgoutput_etl.protocol.messages import Origin
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.transactions.origin_filter import Origins
from tests.spark.load.test_net_effect import assert_same_rows
from tests.support.jobs import Job, Nights
from tests.support.small_archives import Change, Messages, T, copydata, delete, insert, table, transaction, update

# The season covers a key that is inserted again; test_key_match and test_write_method cover the decision.
pytestmark = [pytest.mark.spark, pytest.mark.soak]

INT8 = 20


@pytest.fixture(autouse=True)
def _no_table_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small table is written anew instead."""
    monkeypatch.setattr(driver_merge, "SMALL_BYTES", -1)
    monkeypatch.setattr(rewrite, "SMALL_BYTES", -1)


NAMES = {1: "truncated", 2: "origins", 3: "republished", 4: "filtered", 5: "composite", 6: "doubled", 7: "rising"}


def inserts(oid: int, value: str, *ids: int) -> list[Change]:
    return [insert(str(n), value, oid=oid) for n in ids]


def from_afar(xid: int, lsn: int, *changes: Change) -> Messages:
    begin, *rest = transaction(xid, lsn, *changes)
    return [begin, Origin(7, "afar"), *rest]


TABLES = [
    table(("id", INT8), "v", oid=oid, name=name) for oid, name in NAMES.items() if name != "composite"
] + [table("id", ("n", INT8), "v", oid=5, name="composite", key=("id", "n"))]  # fmt: skip
NIGHTS: list[Messages] = [
    [
        *transaction(1, 100, *TABLES, *(change for oid in (1, 2, 3, 4, 7) for change in inserts(oid, "old", 1, 2, 3))),
        *transaction(2, 200, *(insert("a", n, "old", oid=5) for n in "12"), *inserts(6, "first", 1, 2)),
        *transaction(3, 300, *inserts(6, "second", 1)),
    ],
    [
        # Loaded again after an unpublished TRUNCATE, or from the other end of a replication.
        *transaction(4, 400, *inserts(1, "new", 3, 1, 2)),
        *from_afar(5, 500, delete("1", None, oid=2)),
        *transaction(6, 600, *inserts(2, "new", 1)),
        # The publication includes the table again, and the row filter the row.
        *transaction(7, 700, *inserts(3, "new", 2, 4), *inserts(4, "new", 1)),
        *transaction(8, 800, insert("a", "2", "new", oid=5), insert("b", "1", "new", oid=5)),
        *transaction(9, 900, *inserts(6, "third", 1, 3), *inserts(7, "new", 4, 5)),
        *transaction(10, 1000, *inserts(6, "fourth", 1, 3)),
    ],
    [
        *transaction(11, 1100, *(update("1", "last", oid=oid) for oid in NAMES if oid != 5)),
        *transaction(12, 1200, update("a", "2", "last", oid=5)),
    ],
]


def operations(job: Job, name: str) -> list[tuple[str, str | None]]:
    """The operations in the table's history, oldest first."""
    rows = job.spark.sql(f"DESCRIBE HISTORY delta.`{job.path('public', name)}`").collect()
    return [(row["operation"], row["operationParameters"].get("mode")) for row in reversed(rows)]


@pytest.mark.parametrize(
    ("size", "gaps", "count"),
    [
        pytest.param(change_source.DRIVER_TABLE_BYTES, "refuse", 3, id="on the driver"),
        pytest.param(-1, "accept", 2, id="on executors"),
    ],
)
def test_a_key_inserted_again_stays_one_row(
    size: int, gaps: str, count: int, nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_source, "DRIVER_TABLE_BYTES", size)
    nights.job = replace(nights.job, overrides=["source.origins=none", f"source.gaps={gaps}"])
    replay = Replay(origins=Origins(accepted=frozenset()))
    for number, messages in enumerate(NIGHTS[:count]):
        summary = nights.night(messages)
        replay.add_file(f"{number}", copydata(messages))
        assert_same_rows(nights.job, replay, {})
        assert {t.table: t.rows for t in summary.tables} == {
            held.shape.relation.name: len(held.rows) for held in replay.tables().values()
        }
    assert operations(nights.job, "rising")[:2] == [("WRITE", "Overwrite"), ("WRITE", "Append")]
    assert [operation for operation, _ in operations(nights.job, "truncated")] == ["WRITE", *["MERGE"] * (count - 1)]


def test_deleted_rows_compacted_files_and_returning_keys(nights: Nights) -> None:
    """A deletion vector removes a row, but the statistics of its file still cover its key."""
    replay = Replay()

    def night(*changes: Change) -> str:
        number = nights.landed + 1
        messages = transaction(number, 100 * number, *changes)
        nights.night(messages)
        replay.add_file(f"{number}", copydata(messages))
        assert_same_rows(nights.job, replay, {})
        operation, mode = operations(nights.job, "t")[-1]
        return f"{operation} {mode}" if mode else operation

    assert night(table(("id", INT8), "v"), *inserts(T, "a", 1, 2, 3, 4, 5)) == "WRITE Overwrite"
    assert night(delete("2", None), delete("5", None)) == "MERGE"
    assert night(*inserts(T, "b", 5, 6)) == "WRITE Append", "key 5 is absent"
    nights.job.spark.sql(f"OPTIMIZE delta.`{nights.job.path('public', 't')}`")
    assert night(*inserts(T, "c", 7, 8)) == "WRITE Append"
    assert night(*inserts(T, "d", 6, 9)) == "MERGE", "key 6 is present: its DELETE was not published"
    assert night(*inserts(T, "e", 10, 10)) == "WRITE Append", "the last INSERT of a key is what counts"
    assert night(update("6", "f"), update("10", "f")) == "MERGE"
