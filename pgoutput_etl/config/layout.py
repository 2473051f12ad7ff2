"""Checks the layout that a rule gives its Delta tables."""

from __future__ import annotations

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


def _is_not_for_all(name: str, value: str) -> bool:
    return name in _FEATURES_NOT_FOR_ALL or (name, value) in _NOT_FOR_ALL
