"""All tables as of one commit, as in docs/ledger.md, even in the middle of a run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.errors import RunError
from pgoutput_etl.ledger.as_of import Tables, consistent_points, tables_at
from pgoutput_etl.load import commit
from pgoutput_etl.load import mirror as merge
from pgoutput_etl.work.backfill.request import BackfillRequest
from tests.support.jobs import Job, Nights
from tests.support.small_archives import Change, insert, table, transaction, update
from tests.support.typed_commands import of_own_session

pytestmark = [pytest.mark.spark, pytest.mark.soak]
PAGE = Path(__file__).parents[3] / "docs" / "ledger.md"
_TESTED = re.compile(r"<!-- tested -->\n```(\w+)\n(.*?)```\n", re.DOTALL)
ORDERS, LINES, ODD = 1, 2, 3


@pytest.fixture
def nights(spark: SparkSession, tmp_path: Path, landing: Path) -> Nights:
    return Nights(Job(spark, tmp_path, landing, ["source.name=shop", "merge.parallel_tables=1"]))


def block(language: str, nights: Nights) -> str:
    text: str
    [text] = [text for name, text in _TESTED.findall(PAGE.read_text(encoding="utf-8")) if name == language]
    return text.replace("./warehouse", str(nights.job.folder / "tables"))


def values(frame: DataFrame) -> list[tuple[str, ...]]:
    return sorted((row["id"], row["v"]) for row in frame.collect())


def both(tables: Tables) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    return values(tables["public.orders"]), values(tables["public.lines"])


def test_all_tables_as_of_one_commit(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    spark, ledger = nights.job.spark, str(nights.job.folder / "tables" / "_pgoutput_etl")
    with pytest.raises(RunError, match="there is no ledger at"):
        tables_at(spark, ledger, "shop")
    described = [table(oid=ORDERS, name="orders"), table(oid=LINES, name="lines"), table(oid=ODD, name="odd")]
    nights.night(transaction(1, 100, *described, *(insert("1", "a", oid=oid) for oid in (ORDERS, LINES, ODD))))
    exchanged = replace(described[2], columns=tuple(reversed(described[2].columns)))
    nights.night(transaction(2, 200, update("1", "b", oid=ORDERS), exchanged, insert("b", "2", oid=ODD)))
    first, second = [("1", "a")], [("1", "b")]

    write, written = merge.write, 0

    def dies_at_the_second(*arguments: Any) -> commit.WriteResult:
        nonlocal written
        written += 1
        if written == 2:
            raise RuntimeError("the power is out")
        return write(*arguments)

    monkeypatch.setattr(merge, "write", dies_at_the_second)
    renamed: list[Change] = [table(oid=LINES, name="lines_2"), insert("2", "c", oid=LINES)]
    with pytest.raises(RuntimeError, match="power"):
        nights.night(transaction(3, 300, update("1", "c", oid=ORDERS), *renamed))
    monkeypatch.undo()
    assert nights.values("orders") == [("1", "c")], "a run is halfway through"

    names: dict[str, Any] = {"spark": spark}
    exec(of_own_session(block("python", nights)), names)
    assert (names["tables"].lsn, both(names["tables"])) == (200, (second, first))
    assert (names["before"].lsn, both(names["before"])) == (100, (first, first))
    assert names["tables"].held == {"public.odd": 100}
    assert values(names["tables"]["public.odd"]) == first
    assert (names["before"].held, values(names["before"]["public.odd"])) == ({}, first)
    listed = {row["table"]: row for row in spark.sql(block("sql", nights)).collect()}
    assert {row["last_commit_lsn"] for row in listed.values()} == {200}
    for name, want in (("orders", second), ("lines", first)):
        path, version = listed[name]["path"], listed[name]["version"]
        assert values(spark.sql(f"SELECT * FROM delta.`{path}` VERSION AS OF {version}")) == want

    with pytest.raises(RunError, match=r"no batch of shop ended at 0/96; the nearest that did: 0/64 and 0/C8"):
        tables_at(spark, ledger, "shop", 150)
    with pytest.raises(RunError, match="no batch of other is done yet"):
        tables_at(spark, ledger, "other")

    nights.job.run()
    now = tables_at(spark, ledger, "shop")
    assert set(now) == {"public.orders", "public.lines_2", "public.odd"}
    assert (now.lsn, values(now["public.lines_2"])) == (300, [("1", "a"), ("2", "c")])
    assert both(tables_at(spark, ledger, "shop", 200)) == (second, first), "at its path before the rename"

    DeltaTable.forPath(spark, str(nights.job.path("public", "orders"))).delete()
    nights.job.backfill(BackfillRequest(("public.orders",)))
    assert values(tables_at(spark, ledger, "shop", 300)["public.orders"]) == [("1", "c")]
    assert consistent_points(spark, ledger, "shop").count() == 4
