"""Finds keys whose text the server can change without sending a row.

An enum's label, the object that a reg* value names, and the attributes of a composite are in the catalog. After one is
renamed or changed, the next change of a row identifies the row by another text, and matches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.types import ColumnType, is_user_type


def changeable_keys(shapes: Iterable[TableShape]) -> tuple[str, ...]:
    """One line per table with such a key."""
    lines = []
    for shape in shapes:
        keys = [shape.columns[i] for i in shape.key]
        names = [f"{column.name} ({column.type.name})" for column in keys if _is_spelled_by_catalog(column.type)]
        if names:
            lines.append(
                f"{shape.relation.full_name} has a key whose text depends on the server's catalog: {', '.join(names)}. "
                "Once an enum's label, an object, or a composite's attributes are renamed or changed, changes of "
                "existing rows meet none, and the table is diverged until a snapshot"
            )
    return tuple(lines)


def _is_spelled_by_catalog(column_type: ColumnType) -> bool:
    if column_type.element is not None:
        return _is_spelled_by_catalog(column_type.element)
    return is_user_type(column_type) or (column_type.name.startswith("reg") and "." not in column_type.name)
