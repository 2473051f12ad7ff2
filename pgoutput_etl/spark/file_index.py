"""The files that a DataFrame reads, as Spark listed them, without one request per file.

Spark's classes are not part of its API: they may be missing or different. The caller then uses the API.
"""

from __future__ import annotations

from typing import Any, cast

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from pgoutput_etl.spark.connect import is_connect


def listed_files(frame: DataFrame, most_local: int) -> list[tuple[str, int, int]] | None:
    """Path, bytes, and modification time (milliseconds since 1970) of each file, including empty ones. None if Spark
    can't tell, or for more than `most_local` local files, because each takes several calls to the JVM."""
    if is_connect(frame.sparkSession):
        return None
    try:
        leaf = cast(Any, frame)._jdf.queryExecution().analyzed().collectLeaves().apply(0)
        statuses = leaf.relation().location().allFiles().toIndexedSeq()
        count = statuses.size()
        if count > most_local and statuses.apply(0).getPath().toUri().getScheme() == "file":
            return None
        return [_as_tuple(statuses.apply(i)) for i in range(count)]
    except (Py4JError, TypeError):  # TypeError: there is no such method
        return None


def _as_tuple(status: Any) -> tuple[str, int, int]:
    return status.getPath().toString(), status.getLen(), status.getModificationTime()
