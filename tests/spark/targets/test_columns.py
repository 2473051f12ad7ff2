"""Types of targets' columns in SQL, compared with Spark's own; no test needs a session."""

from __future__ import annotations

import pytest

from pgoutput_etl.load.target_columns import delta_type
from pgoutput_etl.types import ColumnType, UserTypes, column_type
from pgoutput_etl.types.sql_type import sql_type
from tools.types_table import FAMILIES

USER_TYPE = 99_001
HSTORE, DOCUMENT, DOCUMENTS = 99_002, 3802, 3807
USER_TYPES = UserTypes({HSTORE: ("public", "hstore"), USER_TYPE: ("public", "color")}, {"jsonb": "variant"})
BUILT_IN = [column_type(oid, -1) for types in FAMILIES.values() for oid in types]
OTHERS = [
    *(column_type(oid, -1, USER_TYPES) for oid in (HSTORE, USER_TYPE, DOCUMENT, DOCUMENTS)),
    column_type(1700, (10 << 16 | 2) + 4),
    column_type(1231, (10 << 16 | 2) + 4),
]


@pytest.mark.parametrize("column", [*BUILT_IN, *OTHERS], ids=lambda column: column.name)
def test_types_are_as_spark_writes_them(column: ColumnType) -> None:
    assert sql_type(column) == delta_type(column).simpleString()


def test_the_types_cover_every_kind_of_storage() -> None:
    names = {sql_type(column) for column in (*BUILT_IN, *OTHERS)}
    assert names >= {"map<string,string>", "variant", "array<variant>", "decimal(10,2)", "array<decimal(10,2)>"}
