"""Finds roots whose partitions' replica identities will hold them, before an UPDATE or DELETE does."""

from __future__ import annotations

from collections.abc import Iterable

from pgoutput_etl.errors import TableError
from pgoutput_etl.schema.table_shape import TableShape


def partition_remarks(shapes: Iterable[TableShape]) -> tuple[str, ...]:
    """One line per table."""
    lines = []
    for shape in shapes:
        try:
            shape.check_partitions()
        except TableError as error:
            lines.append(f"The first UPDATE or DELETE holds {shape.relation.full_name}: {error}")
    return tuple(lines)
