"""A MERGE compares only the rows that may be stored, if the others are proven to be new."""

from __future__ import annotations

from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import Column

from pgoutput_etl.load import change_source, driver_merge
from pgoutput_etl.targets import write_method
from pgoutput_etl.targets.mismatches import Mismatches
from tests.support.jobs import Nights
from tests.support.small_archives import T, delete, insert, table, transaction, update

pytestmark = pytest.mark.spark

INT8 = 20


def test_inserts_of_new_keys_are_not_compared(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    conditions, merge = list[str](), DeltaTable.merge

    def merged(target: DeltaTable, source: Any, condition: Column) -> Any:
        conditions.append(str(condition))
        return merge(target, source, condition)

    monkeypatch.setattr(DeltaTable, "merge", merged)
    monkeypatch.setattr(driver_merge, "SMALL_BYTES", -1)
    monkeypatch.setattr(change_source, "DRIVER_TABLE_BYTES", -1)
    monkeypatch.setattr(write_method, "SMALL_ROWS", 0)

    def compares_all(*changes: Any) -> bool:
        number = nights.landed + 1
        nights.night(transaction(number, 100 * number, *changes))
        return "_chain" not in conditions[-1]

    nights.night(transaction(1, 100, table(("id", INT8), "v"), *(insert(n, "a") for n in "1234")))
    beyond = (update("1", "b"), delete("2", None), insert("7", "b"), insert("8", "b"), update("8", "c"))
    assert not compares_all(*beyond), "no file has a key from 7 to 8"
    assert not compares_all(update("3", "d"), insert("6", "d")), "a file has this range, but no such key"
    assert compares_all(update("1", "e"), insert("4", "e")), "key 4 is stored: its DELETE was not published"
    assert compares_all(update("1", "f"), delete("7", None)), "nothing is inserted"
    assert nights.values("t") == [(1, "f"), (3, "d"), (4, "e"), (6, "d"), (8, "c")]
    assert nights.job.mismatches()[T] is None
    assert not compares_all(update("1", "g"), update("9", "g"), insert("10", "g")), "key 9 is missing"
    assert nights.job.mismatches()[T] == Mismatches(1, 0, 600, 6)
