"""Sources that share a table, each with its own landing folder and ledger."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import PgoutputMessage
from pgoutput_etl.spark.delta import read_table
from pgoutput_etl.work.files.report import RunSummary
from tests.support.jobs import Job, Nights
from tests.support.small_archives import T, replayed

INT4, INT8, FLOAT4, FLOAT8 = 23, 20, 700, 701

Row = dict[str, Any]


@dataclass
class Shard:
    """A source that shares a table with others, and everything that it has landed. rule: more of the table's rule.
    target: more of its configuration."""

    spark: SparkSession
    folder: Path
    name: str
    rule: str = ""
    target: str = ""
    files: list[list[PgoutputMessage]] = field(default_factory=list)

    @property
    def nights(self) -> Nights:
        own, landing = self.folder / self.name, self.folder / self.name / "landing"
        landing.mkdir(exist_ok=True, parents=True)
        rule = f"{{match: public.t, into: all.orders, tag: {{shard: '{{source}}'}}{self.rule}}}"
        target = f"target={{{self.target or f'root: {self.folder}/tables'}}}"
        overrides = [f"source.name={self.name}", target, f"state.root={own / 'ledger'}", f"tables=[{rule}]"]
        return Nights(Job(self.spark, own, landing, overrides), len(self.files))

    def land(self, *messages: Iterable[PgoutputMessage]) -> Nights:
        nights = self.nights
        self.files.append([message for part in messages for message in part])
        nights.land(self.files[-1])
        return nights

    def night(self, *messages: Iterable[PgoutputMessage]) -> RunSummary:
        return self.land(*messages).job.run()

    @property
    def whole(self) -> Place:
        """The place of the table."""
        catalog = re.search(r"catalog: spark_catalog\.(\w+)", self.target)
        if catalog is not None:
            return Place(f"`spark_catalog`.`{catalog[1]}_all`.`orders`")
        return Place(f"{self.folder}/tables/all/orders")

    @property
    def place(self) -> Place:
        return self.whole.tagged({"shard": self.name})

    def rows(self, *columns: str) -> list[Row]:
        rows = read_table(self.spark, self.place)
        found: list[Row] = (rows.select(*columns) if columns else rows).toArrow().to_pylist()
        return found

    def assert_mirrored(self) -> None:
        """The source's rows equal a replay of its files; columns of others are NULL."""
        mirror = replayed(*self.files).tables()[T]
        names = list(mirror.rows[0]) if mirror.rows else []
        have = self.rows()
        assert sorted(map(row_text, ({name: row[name] for name in names} for row in have))) == sorted(
            map(row_text, mirror.rows)
        )
        others = {name for row in have for name, value in row.items() if name not in names and value is not None}
        assert not others


def row_text(row: Row) -> str:
    odd = row["_pg_unrepresentable"]
    return repr(sorted({**row, "_pg_unrepresentable": dict(odd) if odd else None}.items()))
