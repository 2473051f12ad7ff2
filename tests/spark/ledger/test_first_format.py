"""A ledger of version 0.1.0, which knew no roots of partitions, is continued."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql import Column
from pyspark.sql import functions as F

from pgoutput_etl.protocol.messages import Relation, ReplicaIdentity
from tests.support.jobs import Nights, held
from tests.support.small_archives import Change, delete_full, insert, table, transaction, update

pytestmark = [pytest.mark.spark, pytest.mark.soak]

# What 0.1.0 did not write: columns, and fields of the structs in a column.
_LATER: dict[str, dict[str, Sequence[str]]] = {
    "relations": {"root": ()},
    "batches": {
        **dict.fromkeys(("settings", "metrics", "format"), ()),
        "files": ("decompressed_size", "head", "oids"),
        "tables": (
            *("reason_kind", "last_row", "complete_by", "complete_lsn", "mismatches", "doubts", "declared"),
            *("changed_at", "memory"),
        ),
    },
}


def as_first_format(nights: Nights) -> None:
    """Rewrites the ledger's tables."""
    root = nights.job.folder / "tables" / "_pgoutput_etl"
    for name, later in _LATER.items():
        frame = nights.job.spark.read.format("delta").load(str(root / name))
        for column, fields in later.items():
            frame = frame.withColumn(column, _without(column, fields)) if fields else frame.drop(column)
        frame = frame.localCheckpoint()
        frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(root / name))


def _without(column: str, fields: Sequence[str]) -> Column:
    return F.transform(column, lambda item: item.dropFields(*fields))


def through_root(name: str, oid: int, identity: ReplicaIdentity, key: Sequence[str]) -> tuple[Relation, Relation]:
    """A root whose key is id and region, and its partition."""
    columns = ("id", "region", "v")
    leaf = table(*columns, oid=oid + 1, name=f"{name}_leaf", key=key, identity=identity)
    return table(*columns, oid=oid, name=name, key=("id", "region")), leaf


FULL = through_root("full", 100, ReplicaIdentity.FULL, ())
NARROW = through_root("narrow", 200, ReplicaIdentity.INDEX, ("id",))
SAME = through_root("same", 300, ReplicaIdentity.DEFAULT, ("id", "region"))
UNTOLD = through_root("untold", 400, ReplicaIdentity.INDEX, ("id",))
ROOTS = (FULL, NARROW, SAME, UNTOLD)


def test_partitions_of_another_identity(nights: Nights) -> None:
    """They are described again on each connection. The last root's is not, as its file continues one."""
    rows = [("1", "n", "a"), ("2", "n", "b")]
    first: list[Change] = []
    for root, leaf in ROOTS:
        first += (root, leaf, *(insert(*row, oid=root.oid) for row in rows))
    assert nights.night(transaction(1, 0x100, *first)).exit_code == 0
    as_first_format(nights)
    later: list[Change] = [
        *(*FULL, update("1", "n", "x", old=rows[0], oid=100), delete_full(*rows[1], oid=100)),
        *(*NARROW, update("1", "n", "x", old_key=("1", None, None), oid=200)),
        *(*SAME, update("1", "n", "x", oid=300)),
        update("3", "n", "x", old_key=("1", None, None), oid=400),
    ]
    reasons = held(nights.night(transaction(2, 0x200, *later)))
    assert reasons.keys() == {"narrow", "untold"}
    assert "its partition public.narrow_leaf has the replica identity (id), which lacks 'region'" in reasons["narrow"]
    assert "configure `key: [id]` and rebuild the table; or set REPLICA IDENTITY FULL" in reasons["narrow"]
    assert nights.values("full") == [("1", "n", "x")]
    assert nights.values("same") == [("1", "n", "x"), rows[1]]
    assert nights.values("narrow") == nights.values("untold") == rows
    lacking = "public.untold: an old tuple that lacks column 'region' of the key. Partitions that are published through"
    assert f"{lacking} this root may have a replica identity that it lacks: configure `key`, or" in reasons["untold"]
