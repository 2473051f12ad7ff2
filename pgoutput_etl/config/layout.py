"""Checks the layout that a rule gives its Delta tables."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pgoutput_etl.config.yaml_file import Node
from pgoutput_etl.schema.layout import CHANGE_FEED, NOT_FOR_ALL, Layout, Readers

MOST_CLUSTERING_COLUMNS = 4  # Delta's limit

# Properties that the job needs as they are. Spark reserves names without a dot.
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


def check_layout(layout: Layout, keys: Mapping[str, Node], readers: Readers) -> None:
    """Raises ConfigError. keys: the nodes of the layout's fields. readers: of the target."""
    if layout.partition_by and layout.cluster_by:
        raise keys["cluster_by"].error("expected either cluster_by or partition_by: Delta can't do both")
    if len(layout.cluster_by) > MOST_CLUSTERING_COLUMNS:
        raise keys["cluster_by"].error(f"expected at most {MOST_CLUSTERING_COLUMNS} columns")
    for name, node in keys["properties"].mapping().items():
        why = next((why for refused, why in _REFUSED.items() if refused.lower() == name.lower()), None)
        if why is not None:
            raise node.error(f"it can't be configured: {why}")
        if readers is Readers.ALL and _is_not_for_all(name.lower(), layout.properties[name].lower()):
            raise node.error("not all readers know it: remove it, or set target.readers to spark")
        if "." not in name:
            raise node.error("expected a name with a dot, as delta.logRetentionDuration")


_TAG_VALUE = re.compile(r"(?:[^{}]|\{(?:source|schema|table)\})+")


def check_tag(into: str | None, tag: Mapping[str, str], layout: Layout, keys: Mapping[str, Node]) -> None:
    """Raises ConfigError. tag: of a rule with `into`. keys: the nodes of the rule's fields."""
    if into is None and not tag:
        return
    if into is None or not tag:
        missing, other = ("into", "tag") if into is None else ("tag", "into")
        raise keys[missing].error(f"missing: expected with `{other}`")
    for name, node in keys["tag"].mapping().items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise node.error("expected a column's name of letters, digits and '_'")
        if not _TAG_VALUE.fullmatch(tag[name]):
            raise node.error("expected a text, in which only {source}, {schema} and {table} stand for other texts")
    for name in ("partition_by", "cluster_by"):
        columns = getattr(layout, name)
        if columns and not tag.keys() <= {*columns}:
            raise keys[name].error("expected the columns of `tag` among them, so that sources write different files")


def _is_not_for_all(name: str, value: str) -> bool:
    return name in _FEATURES_NOT_FOR_ALL or (name, value) in _NOT_FOR_ALL
