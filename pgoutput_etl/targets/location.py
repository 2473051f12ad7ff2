"""What targets are called and where they are, and which can be nowhere, or can't have their columns."""

from __future__ import annotations

from collections.abc import Mapping

from pgoutput_etl.config.settings import Config, Mode
from pgoutput_etl.errors import ConfigError, TableError
from pgoutput_etl.identifiers import (
    MAX_SEGMENT,
    catalog_place,
    is_catalog_place,
    is_within,
    may_be_in_catalog,
    path_segment,
)
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.targets.modes import METADATA_COLUMNS, added_columns


def location(config: Config, relation: Relation, holders: Mapping[tuple[str, str], int]) -> str:
    name = (relation.namespace, relation.name)
    if holders.get(name) != relation.oid:
        return displaced_path(config, relation.oid)
    if config.target.catalog is not None:
        return catalog_place(config.target.catalog, *target_name(config, relation))
    root = (config.target.root or "").rstrip("/")
    return "/".join([root, *map(path_segment, target_name(config, relation))])


def displaced_path(config: Config, oid: int) -> str:
    """Of a table whose name belongs to another one."""
    return f"{config.state.root.rstrip('/')}/displaced/{oid}"


def target_name(config: Config, relation: Relation) -> tuple[str, str]:
    """Schema and table."""
    rule = config.rule_for(relation.namespace, relation.name)
    return rule.target_name or (relation.namespace, relation.name)


def refuse_taken_names(config: Config, holders: Mapping[tuple[str, str], int]) -> None:
    """Raises ConfigError if a table would be renamed to what another one is called."""
    for i, rule in enumerate(config.tables):
        if rule.target_name is None or rule.target_name not in holders:
            continue
        other = config.rule_for(*rule.target_name)
        if other is not rule and other.rename is None and not other.skip:
            raise ConfigError(
                f"tables[{i}].rename: the archive has a table {rule.rename} of its own, which would be in the same "
                "place: rename that, too, or skip it, or take another name"
            )


def check_location(config: Config, relation: Relation, path: str) -> None:
    """Raises TableError for a table that can have no folder of its own, or no name in a catalog."""
    for what, name in zip(("schema", "table"), target_name(config, relation), strict=True):
        if not name:
            raise TableError(f"its {what} has no name")
        if is_catalog_place(path) and not may_be_in_catalog(name):
            raise TableError(
                f"its {what}'s name {name!r} can be none in a catalog, where names have letters, digits and _. "
                "Name it there with the configuration's `rename`, or skip it"
            )
        if len(path_segment(name)) > MAX_SEGMENT:
            size = len(path_segment(name))
            raise TableError(f"its {what}'s name would be a folder of {size:,} bytes, where {MAX_SEGMENT} can be")
    if is_catalog_place(path):
        return
    if is_within(path, config.state.root) and not is_within(path, f"{config.state.root}/displaced"):
        raise TableError("its folder would be the ledger's: set state.root to one outside of target.root")


def check_is_only(config: Config, relation: Relation, holders: Mapping[tuple[str, str], int]) -> None:
    """Raises TableError if a catalog would take another table's name for the same."""
    mine = target_name(config, relation)
    for name, oid in holders.items():
        rule = config.rule_for(*name)
        theirs = rule.target_name or name
        is_same = [part.lower() for part in theirs] == [part.lower() for part in mine]
        if oid != relation.oid and is_same and not rule.skip:
            raise TableError(
                f"{'.'.join(theirs)} differs from it in nothing but case, and in a catalog they are one: skip one of "
                "them, or name it there with the configuration's `rename`"
            )


def check_names(shape: TableShape, mode: Mode) -> None:
    """Raises TableError for columns that can't be one Delta table's."""
    if not all(column.name for column in shape.columns):
        raise TableError("one of its columns has no name")
    seen: dict[str, str] = {}
    for name in (*(column.name for column in shape.columns), *added_columns(mode)):
        other = seen.get(_folded(name))
        if other == name:
            which = "every target has already" if name in METADATA_COLUMNS else f"a target has in mode {mode.value}"
            raise TableError(f"column {name!r} is named as one that {which}")
        if other is not None:
            raise TableError(f"columns {other!r} and {name!r} differ in nothing but case, which Delta can't hold")
        seen[_folded(name)] = name
    for i in shape.key:
        if shape.columns[i].type.holds_variant:
            raise TableError(f"column {shape.columns[i].name!r} of the key would be a VARIANT, which has no equality")


def _folded(name: str) -> str:
    """Equal for names that are one to Spark: Java's equalsIgnoreCase goes character by character, up and then down."""
    upper = (c if len(c.upper()) > 1 else c.upper() for c in name)
    return "".join(c.lower()[0] for c in upper)
