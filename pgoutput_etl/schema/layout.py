"""The layout of a Delta table: its partitions or clustering, properties, comment, and who can read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

CHANGE_FEED = "delta.enableChangeDataFeed"

# Delta's table features that some readers refuse: tests/spark/load/test_readers.py
NOT_FOR_ALL = ("typeWidening", "columnMapping", "deletionVectors", "v2Checkpoint")

_NEED_COLUMN_MAPPING = frozenset(" ,;{}()\n\t=")  # Delta accepts these only in a table with column mapping


class Readers(Enum):
    """The programs that can open a target's tables."""

    SPARK = "spark"
    ALL = "all"


def needs_column_mapping(name: str) -> bool:
    """True if Delta takes the column's name only in a table with column mapping."""
    return not _NEED_COLUMN_MAPPING.isdisjoint(name)


@dataclass(frozen=True, slots=True)
class Layout:
    """partition_by, cluster_by: column names; at most one of them is given. comment: None keeps the table's own
    comment. readers: ALL excludes the features in NOT_FOR_ALL; SPARK keeps those that the table already has."""

    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    readers: Readers = Readers.SPARK

    def __bool__(self) -> bool:
        return self != NO_LAYOUT


NO_LAYOUT = Layout()
