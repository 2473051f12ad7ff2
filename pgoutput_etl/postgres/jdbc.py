"""Queries a PostgreSQL server through Spark's JDBC reader, and turns its failures into errors that say what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.errors import ArchiveError, ConfigError, PgoutputEtlError, RunError
from pgoutput_etl.postgres import queries

DRIVER = "org.postgresql.Driver"

_NODRIVER = ("No suitable driver", f"ClassNotFoundException: {DRIVER}")

_SAID = re.compile(r"org\.postgresql\.util\.PSQLException: ([^\n]*)")

_OF_FILE = re.compile(r"\.(?:ArchiveError|FramingError): ([^\n]*)")  # as Spark tells of a Python worker


@dataclass(frozen=True)
class Server:
    """By Spark's JDBC reader. `login`: user and password, which are in no plan, log or command line. snapshot: the name
    of an exported one, by which every connection reads; each as of its own time, if there is none."""

    spark: SparkSession
    url: str
    login: Mapping[str, str] = field(repr=False)
    connections: int
    snapshot: str | None = None

    def ask(self, query: str, shares: Sequence[str] = ("true",)) -> DataFrame:
        """`shares`: conditions, each for a connection of its own."""
        begin = queries.SESSION if self.snapshot is None else queries.session_of(self.snapshot)
        session = {"sessionInitStatement": begin, "fetchsize": "10000"}
        properties = {"driver": DRIVER, **session, **self.login}
        return self.spark.read.jdbc(self.url, f"({query}) AS q", predicates=list(shares), properties=properties)

    @cached_property
    def columns(self) -> dict[tuple[str, str], dict[str, bool]]:
        """By schema and table: the columns' names in their order, and whether one is NOT NULL."""
        found: dict[tuple[str, str], dict[str, bool]] = {}
        rows = self.ask(queries.COLUMNS).toArrow().to_pylist()
        for row in sorted(rows, key=lambda r: (r["schema"], r["name"], r["position"])):
            found.setdefault((row["schema"], row["name"]), {})[row["column_name"]] = row["not_null"]
        return found

    def position(self) -> str:
        """Where its WAL ends, or what a standby has replayed."""
        [row] = self.ask(queries.POSITION).toArrow().to_pylist()
        return str(row["lsn"])


@contextmanager
def jdbc_errors() -> Iterator[None]:
    """What Java or a worker says is an error with what to do; of its many lines the one that tells."""
    try:
        yield
    except PgoutputEtlError:
        raise
    except Exception as error:
        said = str(error)
        if any(sign in said for sign in _NODRIVER):
            raise ConfigError(
                "--jdbc: PostgreSQL's JDBC driver is not there: ./spark-submit.sh --packages "
                "org.postgresql:postgresql:42.7.7 jobs/…, or `spark: {spark.jars: /path/postgresql.jar}` in "
                "the configuration"
            ) from None
        if (of_file := _OF_FILE.search(said)) is not None:
            raise ArchiveError(of_file[1]) from None
        if (found := _SAID.search(said)) is not None:
            raise RunError(f"--jdbc: the server says: {found[1]}") from None
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        if condition is None or not condition.startswith("FAILED_JDBC"):
            raise
        raise RunError(f"--jdbc: the server can't be read ({condition})") from None
