"""A schema change that was rolled back changes no table, although its Relation message was sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.jobs import Job
from tests.support.small_archives import (
    copydata,
    in_subtransaction,
    insert,
    prepared,
    rollback_prepared,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
)

pytestmark = [pytest.mark.spark, pytest.mark.soak]

SUBXID = 8


def test_a_rolled_back_schema_change_does_not_change_columns(
    spark: SparkSession, tmp_path: Path, landing: Path
) -> None:
    """Table t in a savepoint of a streamed transaction, table p in a prepared transaction; then t has more changes."""
    t, wider_t = table("id", "v"), table("id", "w", "x")
    p, wider_p = table("id", "v", oid=2, name="p"), table("id", "v", "x", oid=2, name="p")
    streamed = [
        *segment(7, t, insert("1", "a"), first=True),
        *segment(7, in_subtransaction(SUBXID, wider_t), in_subtransaction(SUBXID, insert("2", "b", "c"))),
        *stream_abort(7, SUBXID),
        *segment(7, t, insert("3", "d")),
        *stream_commit(7, 100),
    ]
    two_phase = [
        *transaction(9, 200, p, insert("1", "a", oid=2)),
        *prepared(10, wider_p, insert("2", "b", "c", oid=2), lsn=210),
        *rollback_prepared(10),
    ]
    job = Job(spark, tmp_path, landing)
    (landing / "1").write_bytes(copydata([*streamed, *two_phase]))
    summary = job.run()
    assert [(table.table, table.held, table.notes) for table in summary.tables] == [
        ("p", None, ("new",)),
        ("t", None, ("new",)),
    ]
    assert job.columns("public", "t") == job.columns("public", "p") == ["id", "v"]
    assert {(row["id"], row["v"]) for row in job.rows("public", "t")} == {("1", "a"), ("3", "d")}
    (landing / "2").write_bytes(copydata(transaction(11, 300, p, insert("3", "e", oid=2))))
    assert job.run().exit_code == 0
    assert {(row["id"], row["v"]) for row in job.rows("public", "p")} == {("1", "a"), ("3", "e")}
