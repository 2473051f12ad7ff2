"""Queries a PostgreSQL server through Spark's JDBC reader, and turns its failures into errors with advice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.errors import (
    ArchiveError,
    ConfigError,
    PgoutputEtlError,
    RowError,
    RunError,
    TableError,
    brief,
    own_lines,
)
from pgoutput_etl.postgres import queries
from pgoutput_etl.postgres.connection import DRIVER_PACKAGE, guarded
from pgoutput_etl.postgres.sql_states import has_no_values, is_of_one_table

DRIVER = "org.postgresql.Driver"

_NO_DRIVER = ("No suitable driver", f"ClassNotFoundException: {DRIVER}")

_SERVER_ERROR = re.compile(r"org\.postgresql\.util\.PSQLException: ([^\n]*)")

_STATE = re.compile(r"SQLSTATE (\w{5})")

# Raised in a Python worker
_FILE_ERROR = re.compile(rf"(ArchiveError|FramingError|RowError|{'|'.join(RowError.classes)}): (.*)")


@dataclass(frozen=True)
class Server:
    """A server as read by Spark. login: user and password, which appear in no plan, log or command line. snapshot: name
    of an exported snapshot that every connection reads; without one, each reads as of its own time."""

    spark: SparkSession
    url: str
    login: Mapping[str, str] = field(repr=False)
    connections: int
    snapshot: str | None = None

    def ask(self, query: str, shares: Sequence[str] = ("true",)) -> DataFrame:
        """Runs a query. shares: conditions on its rows, one per connection."""
        begin = queries.SESSION if self.snapshot is None else queries.session_of(self.snapshot)
        session = {"sessionInitStatement": begin, "fetchsize": "10000"}
        properties = {"driver": DRIVER, **session, **self.login}
        url = guarded(self.url)
        return self.spark.read.jdbc(url, f"({query}) AS q", predicates=list(shares), properties=properties)


@contextmanager
def jdbc_errors(of_table: bool = False) -> Iterator[None]:
    """Turns an error from Java or a Python worker into one of this package's errors, with the line that matters.
    of_table: within the context one table is read, so that an error that the others don't meet is a TableError."""
    try:
        yield
    except PgoutputEtlError:
        raise
    except Exception as error:
        text = str(error)
        if any(sign in text for sign in _NO_DRIVER):
            raise ConfigError(
                "--jdbc: PostgreSQL's JDBC driver is missing: ./spark-submit.sh --packages "
                f"{DRIVER_PACKAGE} jobs/…, or, for an installed pgoutput-etl, "
                f"`spark: {{spark.jars.packages: {DRIVER_PACKAGE}}}` in the configuration"
            ) from None
        for file_error in filter(None, map(_FILE_ERROR.match, own_lines(error))):
            raise RowError.classes.get(file_error[1], ArchiveError)(file_error[2]) from None
        if (server_error := _SERVER_ERROR.search(text)) is not None:
            why = brief(error)
            state = found[1] if (found := _STATE.search(why)) else ""
            if not has_no_values(state):
                refusal = RunError(f"--jdbc: the server can't be read ({why})")
            else:
                refusal = RunError(f"--jdbc: the server says: {server_error[1]}")
            if of_table and is_of_one_table(state):
                raise TableError(str(refusal)) from None
            raise refusal from None
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        if condition is None or not condition.startswith("FAILED_JDBC"):
            raise
        raise RunError(f"--jdbc: the server can't be read ({condition})") from None
