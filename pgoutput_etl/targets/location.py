"""Names and paths of targets, and checks that a path and its column names are valid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from pgoutput_etl.config.rules import Mode, filled
from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ConfigError, TableError
from pgoutput_etl.identifiers import MAX_SEGMENT, forms, is_utf8_name, may_be_in_catalog, path_segment
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.reasons import ReasonKind
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.targets.modes import METADATA_COLUMNS, added_columns
from pgoutput_etl.targets.plan import DISPLACED

Name: TypeAlias = tuple[str, str]

_TagValues: TypeAlias = frozenset[tuple[str, str]]

_SET_ENCODING = "set client_encoding to UTF8 for the receiver, or rename it on the server if the database is SQL_ASCII"


def target_place(config: Config, relation: Relation, holders: Mapping[Name, int]) -> Place:
    """The target's path or catalog name. holders: by schema and table, the OID of the table with that name."""
    name = (relation.namespace, relation.name)
    if holders.get(name) != relation.oid:
        return displaced_path(config, relation.oid)
    if config.target.catalog is None:
        return place_below(config.target.root or "", config, relation)
    return Place.in_catalog(config.target.catalog, *target_name(config, relation)).tagged(target_tag(config, *name))


def place_below(root: str, config: Config, relation: Relation) -> Place:
    """The target's place below a folder."""
    tag = target_tag(config, relation.namespace, relation.name)
    return Place.below(root, target_name(config, relation)).tagged(tag)


def displaced_folder(config: Config) -> str:
    """The folder for tables whose names now belong to other tables."""
    return f"{config.state.root.rstrip('/')}/{DISPLACED}"


def displaced_path(config: Config, oid: int) -> Place:
    """The path of a displaced table. Sources that share a ledger may have equal OIDs."""
    return Place.below(displaced_folder(config), (config.source.name, str(oid)))


def scratch_folder(config: Config) -> str:
    """The folder where tables are rebuilt before they replace others."""
    return f"{config.state.root.rstrip('/')}/rebuilt/{path_segment(config.source.name)}"


def target_name(config: Config, relation: Relation) -> tuple[str, str]:
    """The target's schema and table name."""
    return named_target(config, (relation.namespace, relation.name))


def named_target(config: Config, name: Name) -> Name:
    """The schema and table name of the target for the table with this name."""
    return config.rule_for(*name).target_name(_placeholders(config, name)) or name


def target_tag(config: Config, schema: str, table: str) -> dict[str, str]:
    """The values that mark a table's rows in a target that it shares; empty if it has its own target."""
    names = _placeholders(config, (schema, table))
    return {column: filled(value, names) for column, value in config.rule_for(schema, table).tag.items()}


def _placeholders(config: Config, name: Name) -> dict[str, str]:
    return {"source": config.source.name, "schema": name[0], "table": name[1]}


def refuse_taken_names(config: Config, holders: Mapping[Name, int]) -> None:
    """Raises ConfigError if two tables of the archive would have the same place, or if a rule would give another
    table's name to one that may still appear."""
    for i, rule in enumerate(config.tables):
        target = rule.fixed_target
        if target is None or target not in holders:
            continue
        other = config.rule_for(*target)
        if other.rename is None and other.into is None and not other.skip:
            key = "rename" if rule.into is None else "into"
            raise ConfigError(
                f"tables[{i}].{key}: the archive has another table {'.'.join(target)}, and both would have "
                "the same path. Rename or skip the other table, or choose another name"
            )
    placed: dict[Name, dict[_TagValues, Name]] = {}
    for name in holders:
        if not config.rule_for(*name).skip:
            tag = frozenset(target_tag(config, *name).items())
            others = placed.setdefault(_shared_name(config, name), {})
            _refuse_same_place(config, name, tag, others)
            others[tag] = name


def _shared_name(config: Config, name: Name) -> Name:
    """The target's name; in lower case for a shared table in a catalog."""
    schema, table = named_target(config, name)
    is_any_case = config.target.catalog is not None and config.rule_for(*name).into is not None
    return (schema.lower(), table.lower()) if is_any_case else (schema, table)


def _refuse_same_place(config: Config, name: Name, tag: _TagValues, others: Mapping[_TagValues, Name]) -> None:
    """Raises ConfigError if another table has the same place. others: the tables with the same target, by tag. Catalog
    names that only differ in case hold the table instead: see `check_is_only`."""
    if tag and tag in others:
        raise ConfigError(
            f"{_given_at(config, name, 'tag')}: {'.'.join(others[tag])} and {'.'.join(name)} would have the same tag: "
            "expected {schema} or {table} in its values"
        )
    for other_name in others.values():
        for renamed in (n for n in (name, other_name) if config.rule_for(*n).rename is not None):
            raise ConfigError(
                f"{_given_at(config, renamed, 'rename')}: {'.'.join(other_name)} and {'.'.join(name)} would have the "
                "same path. Rename or skip one of them in a rule of its own, or choose another name"
            )


def _given_at(config: Config, name: Name, key: str) -> str:
    """The key's path in the configuration file, in the rule that sets it for a table."""
    placed = config.rule_book.giver(".".join(name), key)
    assert placed is not None
    return f"{placed.place}.{key}"


def check_location(config: Config, relation: Relation, path: Place) -> None:
    """Raises TableError if the table's path or catalog name is invalid."""
    for part, name in zip(("schema", "table"), target_name(config, relation), strict=True):
        if not name:
            raise TableError(f"its {part} name is empty")
        if not is_utf8_name(name):
            raise TableError(f"its {part} name is not UTF-8: {_SET_ENCODING}")
        if path.is_in_catalog and not may_be_in_catalog(name):
            raise TableError(
                f"its {part} name {name!r} is not possible in a catalog, where names consist of letters, digits and _. "
                "Give the table another name with `rename`, or skip it"
            )
        size = len(path_segment(name))
        if size > MAX_SEGMENT:
            raise TableError(f"its {part} name would make a folder name of {size:,} bytes; the limit is {MAX_SEGMENT}")
    if path.is_in_catalog:
        return
    if path.is_within(config.state.root) and not path.is_within(displaced_folder(config)):
        raise TableError("its folder would be inside the ledger: set state.root to a folder outside of target.root")


def check_is_only(config: Config, relation: Relation, holders: Mapping[Name, int]) -> None:
    """Raises TableError if another table's catalog name only differs in case."""
    own_name = target_name(config, relation)
    for name, oid in holders.items():
        rule = config.rule_for(*name)
        other_name = named_target(config, name)
        is_same = [part.lower() for part in other_name] == [part.lower() for part in own_name]
        if oid != relation.oid and is_same and not rule.skip and rule.into is None:
            raise TableError(
                f"its name differs from {'.'.join(other_name)} only in case, which catalogs ignore: skip one of the "
                "two tables, or give it another name with `rename`"
            )


def check_names(shape: TableShape, mode: Mode, tag: Iterable[str] = ()) -> None:
    """Raises TableError for column names that a Delta table can't have together, and for a VARIANT in the key. tag:
    names of the columns that mark the table's rows."""
    if not all(column.name for column in shape.columns):
        raise TableError("a column name is empty", ReasonKind.COLUMN_NAME)
    if not all(is_utf8_name(column.name) for column in shape.columns):
        raise TableError(f"a column name is not UTF-8: {_SET_ENCODING}", ReasonKind.COLUMN_NAME)
    names: dict[str, str] = {}
    of_tag = frozenset[str]().union(*map(forms, tag))
    for name in (*tag, *(column.name for column in shape.columns), *added_columns(mode)):
        other = next((names[form] for form in sorted(forms(name)) if form in names), None)
        if other is not None and of_tag & (forms(name) | forms(other)):
            raise TableError(f"the column name {name!r} is also in the tag: choose another name there")
        if other == name:
            where = "in every mode" if name in METADATA_COLUMNS else f"in mode {mode.value}"
            raise TableError(f"the column name {name!r} is reserved {where}", ReasonKind.COLUMN_NAME)
        if other is not None:
            text = f"columns {other!r} and {name!r} differ only in case, which Delta ignores"
            raise TableError(text, ReasonKind.COLUMN_NAME)
        names |= dict.fromkeys(forms(name), name)
    for i in shape.key:
        if shape.columns[i].type.holds_variant:
            raise TableError(f"key column {shape.columns[i].name!r} would be a VARIANT, which can't be compared")
