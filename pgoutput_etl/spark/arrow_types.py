"""Converts types between Arrow and Spark with Spark's own functions, the same way in all Spark versions.

Without `prefer_timestamp_ntz`, Spark before 4.2 reads a timestamp without time zone as one with a time zone.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type
from pyspark.sql.types import DataType, StructType


def spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def spark_type(arrow: pa.DataType) -> DataType:
    return from_arrow_type(arrow, prefer_timestamp_ntz=True)
