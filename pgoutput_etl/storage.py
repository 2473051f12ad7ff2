"""What a column is in events, which Spark has to compare and group, and what it is in the Delta table."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from pgoutput_etl.types import ColumnType


def delta_type(column_type: ColumnType) -> DataType:
    """The type of the column in the target."""
    return from_arrow_type(column_type.arrow)


def to_target(column: Column, _column_type: ColumnType) -> Column:
    """From what events carry to what the target holds."""
    return column


def to_event(column: Column, _column_type: ColumnType) -> Column:
    """From what the target holds to what events carry."""
    return column
