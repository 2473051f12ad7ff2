"""The layout of a Delta table: its partitions or clustering, properties, comment, and supported readers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from pgoutput_etl.identifiers import forms, unquoted

CHANGE_FEED = "delta.enableChangeDataFeed"

COLUMN_MAPPING = "delta.columnMapping.mode"

# The feed's own columns. Delta allows them in other letter case in a table with a feed, but then can't change its rows.
_FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")

# Lists the columns on which Delta collects statistics.
INDEXED_NAMES = "delta.dataSkippingStatsColumns"

# Delta's table features that some readers reject: tests/spark/load/test_readers.py
NOT_FOR_ALL = ("typeWidening", "columnMapping", "deletionVectors", "v2Checkpoint")

_NEED_COLUMN_MAPPING = frozenset(" ,;{}()\n\t=")  # Delta allows these only in a table with column mapping


class Readers(Enum):
    """The programs that can open a target's tables. AUTO: all, until a table needs one of the features in
    NOT_FOR_ALL."""

    SPARK = "spark"
    ALL = "all"
    AUTO = "auto"


def needs_column_mapping(name: str) -> bool:
    """True if Delta accepts the column's name only in a table with column mapping."""
    return not _NEED_COLUMN_MAPPING.isdisjoint(name)


@dataclass(frozen=True, slots=True)
class Layout:
    """partition_by, cluster_by: column names; at most one of them is given. comment: None keeps the table's comment.
    column_comments: by name; others are kept. readers: ALL excludes the features in NOT_FOR_ALL; SPARK and AUTO keep
    those that the table already has."""

    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    readers: Readers = Readers.SPARK
    column_comments: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """True if an existing table may lack any of it."""
        return self.readers is Readers.ALL or replace(self, readers=Readers.SPARK) != NO_LAYOUT


NO_LAYOUT = Layout()


def has_feed(properties: Mapping[str, str]) -> bool:
    return properties.get(CHANGE_FEED, "").lower() == "true"


def reserved_by_feed(names: Iterable[str]) -> str | None:
    """The first of these columns that a table with a change data feed can't have."""
    reserved = frozenset[str]().union(*map(forms, _FEED_COLUMNS))
    return next((name for name in names if reserved & forms(name)), None)


def with_feed(layout: Layout, is_on: bool) -> Layout:
    return replace(layout, properties={**layout.properties, CHANGE_FEED: str(is_on).lower()})


_LISTED = re.compile(r"(?:[^,`]|`(?:[^`]|``)*`)+")


def indexed(properties: Mapping[str, str]) -> dict[str, str] | None:
    """The columns listed in INDEXED_NAMES, as spelled there, by name; None without this property."""
    value = next((value for name, value in properties.items() if name.lower() == INDEXED_NAMES.lower()), None)
    return None if value is None else {unquoted(part.strip()): part.strip() for part in _LISTED.findall(value)}


def with_indexed(properties: Mapping[str, str], fit: Collection[str]) -> Mapping[str, str]:
    """The properties, with statistics only on columns in `fit`; without INDEXED_NAMES if it lists none of them."""
    listed = indexed(properties) or {}
    left = [part for name, part in listed.items() if is_among(name, fit)]
    if len(left) == len(listed):
        return properties
    others = {name: value for name, value in properties.items() if name.lower() != INDEXED_NAMES.lower()}
    return {**others, INDEXED_NAMES: ",".join(left)} if left else others


def is_among(name: str, names: Collection[str]) -> bool:
    """True if Delta considers the name equal to one of the names."""
    return any(forms(name) & forms(other) for other in names)
