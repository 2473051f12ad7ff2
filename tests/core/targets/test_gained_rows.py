"""Rows that a root gains unsent: from tables that become its partitions, not from those that are created as such."""

from __future__ import annotations

from pgoutput_etl.schema.relation_history import RelationSpan
from pgoutput_etl.targets.partitions import RowLsns, with_other_partitions
from pgoutput_etl.targets.plan import TableChanges
from tests.core.scan.test_partition_roots import KEYED, LEAF, ROOT, history_of
from tests.support.small_archives import Change, T, insert, transaction

AS_PARTITION = (ROOT, KEYED, insert("1", "a"))
AS_TABLE = (KEYED, insert("2", "b", oid=LEAF))


def gained(*changes: Change) -> tuple[str, ...]:
    """By a root that is applied from the start of an archive with these changes."""
    of_root = TableChanges(T, inserts=1, runs=(RelationSpan((0x100, 0, 1), ROOT),))
    rows = dict.fromkeys((T, LEAF), RowLsns(0x100, 0x100))
    return with_other_partitions(history_of(transaction(1, 0x100, *changes)), None, of_root, rows).gained


def test_a_table_with_rows_of_its_own_becomes_a_partition() -> None:
    assert gained(*AS_TABLE, *AS_PARTITION) == ("public.leaf",)
    assert gained(*AS_PARTITION, *AS_TABLE, *AS_PARTITION) == ("public.leaf",)


def test_a_detached_partition_has_its_first_rows_later() -> None:
    assert gained(*AS_PARTITION, *AS_TABLE) == ()
