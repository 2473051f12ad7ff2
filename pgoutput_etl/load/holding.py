"""Distinguishes errors about one table, which hold it, from errors of the run, Spark, the machine, or storage."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pgoutput_etl.errors import (
    ArchiveError,
    RowError,
    ServerTableError,
    TableError,
    brief,
    own_lines,
    texts_of_storage,
)
from pgoutput_etl.reasons import Reason
from pgoutput_etl.spark.retries import CONFLICTS, was_lost

# Everything that Spark, Delta Lake, and the JVM raise. If the JVM doesn't answer, py4j raises other errors.
SPARK_ERRORS = (PySparkException, Py4JJavaError)

FAULTS = (ArchiveError, TableError, *SPARK_ERRORS)  # errors that may concern a single table

# An error of a Spark worker about rows, or about a file whose path the worker doesn't know.
_ROW_ERRORS = "|".join(("ArchiveError", "RowError", *RowError.classes))
_TABLE_ERRORS = {kind.__name__: kind for kind in (TableError, ServerTableError)}
_WORKER_ERROR = re.compile(
    rf"(?:(?P<row>{_ROW_ERRORS}): file (?P<file>-?\d+), |(?P<table>{'|'.join(_TABLE_ERRORS)}): )(?P<reason>.*)"
)

# Error classes and conditions that affect all tables: of the JVM, the network, a Connect server, or a run that is being
# stopped.
_OF_ALL_TABLES = re.compile(
    r"OutOfMemoryError|CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND|CANCELL?ED|\bInterrupted|ClosedByInterrupt|"
    r"SparkConnectGrpcException|RetriesExceeded|SdkClient|"
    r"\b(?:Connect|NoRouteToHost|Socket|SocketTimeout|UnknownHost|NoHttpResponse|SSL\w*)Exception"
)

_STORAGE_IS_FULL = re.compile(
    "No space left on device|Disk quota exceeded|Too many open files|Read-only file system|Input/output error"
)


def table_fault(error: Exception, path_of: Callable[[int], str]) -> Reason | None:
    """Why a table can't be written, or None if the error isn't about the table's rows."""
    if isinstance(error, TableError):
        return error.reason
    match = next(filter(None, map(_WORKER_ERROR.match, own_lines(error))), None)
    if match is None:
        return None
    if match["table"]:
        return _TABLE_ERRORS[match["table"]](match["reason"]).reason
    text = f"{path_of(int(match['file']))}: {match['reason']}"
    return Reason(text, RowError.classes.get(match["row"], RowError).kind)


def spark_fault(error: Exception, is_running: Callable[[], bool]) -> TableError | None:
    """Why Spark or Delta Lake can't process a table, without the error's text, which may contain values; None if the
    error ends the run. is_running: False once Spark has ended.

    Other errors that this package raises in a worker also end the run; `table_fault` recognizes errors about a table.
    """
    if not isinstance(error, SPARK_ERRORS) or own_lines(error) or was_lost(error):
        return None
    if isinstance(error, CONFLICTS):
        return TableError(
            f"other writers changed the table during each attempt to write it ({type(error).__name__}): try again when "
            "fewer of them are at work"
        )
    why = brief(error)
    is_full = any(map(_STORAGE_IS_FULL.search, texts_of_storage(error)))
    if is_full or _OF_ALL_TABLES.search(why) or not is_running():
        return None
    return TableError(f"Spark or Delta Lake failed: {why}")


def held_reason(error: Exception, step: str, path_of: Callable[[int], str], is_running: Callable[[], bool]) -> Reason:
    """Why an error in FAULTS holds the table that the step is about. Raises the error if it ends the run."""
    reason = table_fault(error, path_of)
    if reason is not None:
        return reason
    fault = spark_fault(error, is_running)
    if fault is None:
        raise error
    logging.getLogger(__name__).warning("%s failed", step, exc_info=error)  # logs the text with --debug
    return fault.reason
