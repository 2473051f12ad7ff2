"""Converts types between Arrow and Spark with Spark's own functions, alike in all Spark versions.

Without `prefer_timestamp_ntz`, Spark before 4.2 reads a timestamp without a zone as one with a zone; later versions of
`to_arrow_schema` need `timezone`.
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
    """Timestamps are in UTC."""
    return to_arrow_schema(schema, **_UTC)
