"""Checks the layout that a rule gives its Delta tables."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pgoutput_etl.config.key_checks import mistake
from pgoutput_etl.schema.layout import CHANGE_FEED, NOT_FOR_ALL, Layout, Readers

MOST_CLUSTERING_COLUMNS = 4  # Delta's limit

# Properties that must keep their values. Spark reserves names without a dot.
_REFUSED = {
    "delta.columnMapping.mode": "target.readers decides",
    "delta.columnMapping.maxColumnId": "Delta sets it",
    CHANGE_FEED: "use cdf",
    "delta.minReaderVersion": "name features, as delta.feature.variantType: supported",
    "delta.minWriterVersion": "name features, as delta.feature.variantType: supported",
    "delta.appendOnly": "the job deletes rows, in every mode if a table is renamed",
}

_NOT_FOR_ALL = frozenset(
    {
        ("delta.enabledeletionvectors", "true"),
        ("delta.enabletypewidening", "true"),
        ("delta.checkpointpolicy", "v2"),
    }
)
_FEATURES_NOT_FOR_ALL = frozenset(f"delta.feature.{name}".lower() for name in NOT_FOR_ALL)


def check_layout(layout: Layout, properties: Mapping[str, str]) -> None:
    """Raises a `mistake` in the rule that has these keys. properties: as configured."""
    if layout.partition_by and layout.cluster_by:
        raise mistake("expected either cluster_by or partition_by: Delta can't do both", "cluster_by")
    if len(layout.cluster_by) > MOST_CLUSTERING_COLUMNS:
        raise mistake(f"expected at most {MOST_CLUSTERING_COLUMNS} columns", "cluster_by")
    for name in properties:
        why = next((why for refused, why in _REFUSED.items() if refused.lower() == name.lower()), None)
        if why is not None:
            raise mistake(f"it can't be configured: {why}", "properties", name)
        if "." not in name:
            raise mistake("expected a name with a dot, as delta.logRetentionDuration", "properties", name)


def check_readers(layout: Layout, readers: Readers) -> None:
    """Like `check_layout`. readers: the target's."""
    for name, value in layout.properties.items() if readers is Readers.ALL else ():
        if _is_not_for_all(name.lower(), value.lower()):
            why = "not all readers know it: remove it, or set target.readers to spark"
            raise mistake(why, "properties", name)


_TAG_VALUE = re.compile(r"(?:[^{}]|\{(?:source|schema|table)\})+")


def check_tag(into: str | None, tag: Mapping[str, str], layout: Layout) -> None:
    """Like `check_layout`. tag: in a rule with `into`."""
    if into is None and not tag:
        return
    if into is None or not tag:
        absent, other = ("into", "tag") if into is None else ("tag", "into")
        raise mistake(f"missing: expected with `{other}`", absent)
    for name, value in tag.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise mistake("expected a column's name of letters, digits and '_'", "tag", name)
        if not _TAG_VALUE.fullmatch(value):
            why = "expected a text, in which only {source}, {schema} and {table} stand for other texts"
            raise mistake(why, "tag", name)
    for name in ("partition_by", "cluster_by"):
        columns = getattr(layout, name)
        if columns and not tag.keys() <= {*columns}:
            raise mistake("expected the columns of `tag` among them, so that sources write different files", name)


def _is_not_for_all(name: str, value: str) -> bool:
    return name in _FEATURES_NOT_FOR_ALL or (name, value) in _NOT_FOR_ALL
