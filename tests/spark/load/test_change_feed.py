"""The change data feed has exactly the rows that a batch changes, whatever way the table is written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.protocol.messages import ReplicaIdentity
from tests.support.jobs import Job, Nights, held
from tests.support.small_archives import Change, T, delete, delete_full, insert, table, transaction, truncate, update
from tests.support.typed_commands import of_own_session

pytestmark = pytest.mark.spark

BAG, PAST, GONE, LOG, BAG_PAST = 11, 12, 13, 14, 15
INT4, DATE = 23, 1082
NAMES = {T: "t", BAG: "bag", PAST: "past", GONE: "gone", LOG: "log", BAG_PAST: "bagpast"}
BAGS = (BAG, BAG_PAST)
RULES = (
    "tables=[{match: public.past, mode: history, cdf: true}, {match: public.bagpast, mode: history, cdf: true}, "
    "{match: public.gone, mode: soft_delete, cdf: true}, {match: public.log, mode: append, cdf: true}, "
    "{match: '*', cdf: true}]"
)
Rows = Counter[tuple[Any, ...]]
ADDS = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}


@dataclass
class Feeds:
    """The tables' rows, and the versions after which a batch's changes come."""

    job: Job
    rows: dict[str, Rows] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)

    def path(self, name: str) -> str:
        return str(self.job.path("public", name))

    def remember(self) -> None:
        for name in NAMES.values():
            self.rows[name] = Counter(map(_values, self.job.rows("public", name)))
            [last] = self.job.spark.sql(f"DESCRIBE HISTORY delta.`{self.path(name)}` LIMIT 1").collect()
            self.versions[name] = last["version"]

    def of(self, name: str) -> list[Mapping[str, Any]]:
        reader = self.job.spark.read.format("delta").option("readChangeFeed", "true")
        changes = reader.option("startingVersion", self.versions[name] + 1).load(self.path(name))
        found: list[Mapping[str, Any]] = changes.toArrow().to_pylist()
        return found

    def check(self, touched: Mapping[str, Collection[str | None]]) -> dict[str, Counter[str]]:
        """The feed of each table makes the rows before the batch to those after it, and names no other id. Returns
        counts by type of change."""
        kinds = {}
        for name in NAMES.values():
            rows, feed = Counter(self.rows[name]), self.of(name)
            for change in feed:
                own = {column: value for column, value in change.items() if column not in _OF_FEED}
                rows[_values(own)] += ADDS[change["_change_type"]]
            assert all(count >= 0 for count in rows.values()), name
            assert +rows == Counter(map(_values, self.job.rows("public", name))), name
            assert {change["id"] for change in feed} <= {*touched[name]}, name
            kinds[name] = Counter(change["_change_type"] for change in feed)
        self.remember()
        return kinds


_OF_FEED = ("_change_type", "_commit_version", "_commit_timestamp")


def _values(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple((name, str(value)) for name, value in sorted(row.items()))


def everywhere(*ids: str) -> dict[str, set[str]]:
    return {name: {*ids} for name in NAMES.values()}


@pytest.mark.soak
def test_every_mode_and_every_way_of_writing(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    nights = Nights(Job(spark, tmp_path, landing, [RULES]))
    feeds = Feeds(nights.job)
    full = ReplicaIdentity.FULL
    default = ReplicaIdentity.DEFAULT
    tables = [table(oid=oid, name=name, identity=full if oid in BAGS else default) for oid, name in NAMES.items()]
    first: list[Change] = [*tables]
    first += [insert(i, "a", oid=oid) for oid in NAMES for i in "12345"]
    first += [insert("3", "a", oid=oid) for oid in BAGS]
    nights.night(transaction(1, 0x100, *first))
    feeds.remember()

    keyed = [oid for oid in NAMES if oid not in BAGS]
    changes: list[Change] = [update("1", "b", oid=oid) for oid in keyed]
    changes += [delete("2", None, oid=oid) for oid in keyed]
    changes += [update("9", "a", old_key=("4", None), oid=T)]
    changes += [delete_full("3", "a", oid=oid) for oid in BAGS] + [delete_full("1", "a", oid=oid) for oid in BAGS]
    changes += [insert("6", "new", oid=oid) for oid in NAMES]
    nights.night(transaction(2, 0x200, *changes))
    bags = {name: {"1", "3", "6"} for name in ("bag", "bagpast")}
    kinds = feeds.check({**everywhere("1", "2", "6"), **bags, "t": {"1", "2", "4", "6", "9"}})
    assert kinds["t"] == {"update_preimage": 1, "update_postimage": 1, "delete": 2, "insert": 2}
    assert kinds["log"] == {"insert": 3}
    assert kinds["gone"] == {"update_preimage": 2, "update_postimage": 2, "insert": 1}

    nights.night(transaction(3, 0x300, *(insert("7", "only", oid=oid) for oid in NAMES)))
    assert feeds.check(everywhere("7")) == {name: {"insert": 1} for name in NAMES.values()}

    emptied = [truncate(oid) for oid in NAMES]
    nights.night(transaction(4, 0x400, *emptied, *(insert("8", "x", oid=oid) for oid in NAMES)))
    kinds = feeds.check({**everywhere(*"123456789"), "log": {"8", None}})
    assert (kinds["t"]["insert"], kinds["t"]["delete"]) == (1, 6)
    assert (kinds["bag"]["insert"], kinds["bag"]["delete"]) == (1, 6)


def test_a_feed_that_is_turned_on_later_begins_with_the_next_batch(
    spark: SparkSession, tmp_path: Path, landing: Path
) -> None:
    nights = Nights(Job(spark, tmp_path, landing))
    nights.night(transaction(1, 0x100, table(), insert("1", "a"), insert("2", "b")))
    nights.job.overrides[:] = ["tables=[{match: '*', cdf: true}]"]
    nights.night(transaction(2, 0x200, update("1", "c")))
    reader = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 2)
    changes = reader.load(str(nights.job.path("public", "t"))).collect()
    assert sorted(change["_change_type"] for change in changes) == ["update_postimage", "update_preimage"]


@pytest.mark.soak
def test_columns_that_a_feed_or_statistics_cannot_have(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    cdf, statistics = "match: '*', cdf: true", "properties: {delta.dataSkippingStatsColumns: 'id,d'}"
    nights = Nights(Job(spark, tmp_path, landing, [f"tables=[{{{cdf}, {statistics}}}]"]))
    audit, later, typed, renamed, other = 1, 2, 3, 4, 5
    first = nights.night(
        transaction(
            1,
            0x100,
            *(table("id", "_Change_Type", oid=audit, name="audit"), insert("1", "i", oid=audit)),
            *(table(oid=later, name="later"), insert("1", "a", oid=later)),
            *(table("id", "d", "n", oid=typed, name="typed"), insert("1", "x", "5", oid=typed)),
            table("id", ("d", DATE), "v", oid=renamed, name="renamed"),
            *(insert("1", "infinity", "a", oid=renamed), insert("2", "2024-01-01", "b", oid=renamed)),
            *(table(oid=other, name="other"), insert("1", "a", oid=other)),
        )
    )
    assert {t.table: any("without the change data feed" in note for note in t.notes) for t in first.tables} == {
        **dict.fromkeys(("later", "typed", "renamed", "other"), False),
        "audit": True,
    }
    second = nights.night(
        transaction(
            2,
            0x200,
            *(table("id", "v", ("_commit_version", INT4), oid=later, name="later"), insert("2", "b", "5", oid=later)),
            *(table("id", ("n", INT4), oid=typed, name="typed"), insert("2", "7", oid=typed)),
            table("id", ("valid_until", DATE), "v", oid=renamed, name="renamed"),
            *(delete("2", None, None, oid=renamed), insert("2", "b", oid=other), update("1", "b", oid=audit)),
        )
    )
    notes = {t.table: "; ".join(t.notes) for t in second.tables}
    assert not held(second)
    assert "without the change data feed, which needs the name of column '_commit_version'" in notes["later"]
    begun = {name: re.findall(r"feed begins anew with version (\d+)", notes[name]) for name in notes}
    assert {name for name, versions in begun.items() if versions} == {"typed", "renamed"}
    assert "without statistics of column 'd': the table has no such column" in notes["renamed"]

    nights.job.overrides[:] = []  # a table that has a feed keeps it
    rows = {"audit": ("3", "c"), "later": ("3", "c", "9"), "typed": ("3", "9"), "renamed": ("3", None, "c")}
    oids = {"audit": audit, "later": later, "typed": typed, "renamed": renamed}
    nights.night(transaction(3, 0x300, *(insert(*rows[name], oid=oids[name]) for name in rows)))
    assert nights.values("audit") == [("1", "b"), ("3", "c")]
    assert nights.values("later") == [("1", "a", None), ("2", "b", 5), ("3", "c", 9)]
    assert nights.values("typed") == [("1", 5), ("2", 7), ("3", 9)]
    assert nights.values("renamed") == [("1", None, "a"), ("3", None, "c")]
    infinite = [row["_pg_unrepresentable"] for row in nights.job.rows("public", "renamed") if row["id"] == "1"]
    assert infinite == [[("valid_until", "infinity")]]
    for name, changes in (("typed", ["2 insert", "3 insert"]), ("renamed", ["2 delete", "3 insert"])):
        reader = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", begun[name][0])
        feed = reader.load(str(nights.job.path("public", name))).collect()
        assert sorted(f"{change['id']} {change['_change_type']}" for change in feed) == changes


@pytest.mark.soak
def test_the_consumer_in_the_documentation(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    nights = Nights(Job(spark, tmp_path, landing, ["tables=[{match: '*', cdf: true}]"]))
    text = (Path(__file__).parents[3] / "docs" / "layout.md").read_text(encoding="utf-8")
    [code] = re.findall(r"<!-- tested -->\n```python\n(.*?)```\n", text, re.DOTALL)
    code = of_own_session(code)
    for place, folder in (
        ("./warehouse/public/orders", nights.job.path("public", "t")),
        ("./totals", tmp_path / "totals"),
    ):
        assert place in code
        code = code.replace(place, str(folder))

    def totals() -> dict[str, int]:
        exec(code, {"spark": spark})  # as a reader would
        found = spark.read.format("delta").load(str(tmp_path / "totals")).groupBy("v").sum("orders").collect()
        return {row["v"]: row[1] for row in found if row[1]}

    code = code.replace("customer_id", "v")
    nights.night(transaction(1, 0x100, table(), insert("1", "a"), insert("2", "b"), insert("3", "a")))
    assert totals() == {"a": 2, "b": 1}
    nights.night(transaction(2, 0x200, update("1", "b"), delete("3", None), insert("4", "c")))
    nights.night(transaction(3, 0x300, update("4", "a")))
    assert totals() == {"b": 2, "a": 1}
    assert totals() == {"b": 2, "a": 1}, "nothing new"
