"""Arrow's types as Spark's, and back, by Spark's own functions: the same whatever Spark it is.

Before 4.2 they take a time without a zone for one with a zone unless they are told, and after it want to be told what
the zone is.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import DataType, StructType

_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}


def spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def spark_type(arrow: pa.DataType) -> DataType:
    return from_arrow_type(arrow, prefer_timestamp_ntz=True)


def arrow_schema(schema: StructType) -> pa.Schema:
    """With timestamps in UTC."""
    return to_arrow_schema(schema, **_UTC)
