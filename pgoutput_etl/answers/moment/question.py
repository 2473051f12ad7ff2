"""A query for `bisect`; sqlglot finds its tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import sqlglot
from pyspark.sql import DataFrame
from sqlglot import exp
from sqlglot.errors import SqlglotError

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.ledger.as_of import Tables


@dataclass(frozen=True, slots=True)
class Question:
    """A query in which views stand for tables. views: their names, by "schema.table"."""

    sql: str
    views: dict[str, str]

    @classmethod
    def of(cls, query: str) -> Question:
        """Raises ConfigError if the text is not a query."""
        try:
            parsed = sqlglot.parse_one(query, dialect="spark")
        except SqlglotError as error:
            raise ConfigError(f"query: expected Spark's SQL: {str(error).splitlines()[0]}") from None
        if not isinstance(parsed, exp.Query):
            raise ConfigError("query: expected a SELECT")
        prefix, views = f"pgoutput_etl_{uuid4().hex[:8]}", dict[str, str]()
        for table in [*parsed.find_all(exp.Table)]:
            if table.db and not table.catalog:
                view = views.setdefault(f"{table.db}.{table.name}", f"{prefix}_{len(views)}")
                alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(table.name, quoted=True))
                table.replace(exp.Table(this=exp.to_identifier(view), alias=alias.copy()))
        if not views:
            raise ConfigError("query: expected tables as schema.table")
        for column in parsed.find_all(exp.Column):
            column.set("db", None)  # public.acct.balance: the table's name serves as its alias
        return cls(parsed.sql(dialect="spark"), views)

    @contextmanager
    def asked(self, tables: Tables) -> Iterator[DataFrame]:
        """Yields the query's rows. The views that the query reads only exist within the context."""
        spark = next(iter(tables.values())).sparkSession
        try:
            for name, view in self.views.items():
                tables[name].createOrReplaceTempView(view)
            yield spark.sql(self.sql)
        finally:
            for view in self.views.values():
                spark.catalog.dropTempView(view)
