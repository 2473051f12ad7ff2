"""The layout of a Delta table: its partitions or clustering, properties, and comment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CHANGE_FEED = "delta.enableChangeDataFeed"


@dataclass(frozen=True, slots=True)
class Layout:
    """partition_by, cluster_by: column names; at most one of them is given. comment: None leaves the table's own."""

    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None

    def __bool__(self) -> bool:
        return self != NO_LAYOUT


NO_LAYOUT = Layout()
