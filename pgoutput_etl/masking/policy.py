"""Which columns of which tables are not kept as they are, and whether that can be: before any row is looked at.

Rules go by names, and both tables and columns change theirs in an archive. What a rule protects must not come as it is
under another name, so what isn't said of both is refused, and not guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from pgoutput_etl.config.column_rules import ColumnAction, ColumnRule
from pgoutput_etl.config.settings import Config, TableRule
from pgoutput_etl.errors import ConfigError, TableError
from pgoutput_etl.masking.mask_rows import MaskedTable, MaskingPolicy, masked_relation, spelled_alike
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.schema.diff import lineage
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.outcome import FragmentId, Outcome
from pgoutput_etl.types import UserTypes, column_type
from pgoutput_etl.types.conversion import is_unchanged

_SHOWN = 3

_SPELLED_ALIKE = ({"int2", "int4", "int8"}, {"text", "varchar", "citext", "name"})


def has_masks(config: Config) -> bool:
    return any(rule.column_rules for rule in config.tables)


def masking_policy(
    config: Config, history: RelationHistory, user_types: UserTypes, scopes: Mapping[FragmentId, int]
) -> MaskingPolicy | None:
    """None if all columns come as they are. Raises ConfigError for what can't be done to a column, or would leave one
    of its names out."""
    if not has_masks(config):
        return None
    tables = {}
    of_rules: dict[int, list[Relation]] = {}
    for entry in history.entries:
        rule = config.rule_for(entry.relation.namespace, entry.relation.name)
        if rule.column_rules:
            of_rules.setdefault(_number(config, rule), []).append(entry.relation)
    for oid in sorted({relation.oid for relations in of_rules.values() for relation in relations}):
        versions, latest = history.unmasked(oid)
        rule = config.rule_for(latest.namespace, latest.name)
        uses = _rules_of(config, rule, latest, versions.relations)
        if uses:
            why_not = None if rule.skip else _checked(rule, latest, versions.relations, uses, spelled_alike(user_types))
            tables[oid] = MaskedTable(versions, uses, why_not)
    for number, relations in of_rules.items():
        _refuse_missing(config, number, relations)
    return MaskingPolicy(tables, history.oids(), scopes, user_types)


def masking_policy_of(config: Config, assembly: Assembly, user_types: UserTypes) -> MaskingPolicy | None:
    """Of files that were just put together. Raises ConfigError."""
    scopes = scopes_of((*assembly.outcomes, *assembly.open_outcomes()))
    return masking_policy(config, assembly.relations, user_types, scopes)


def scopes_of(outcomes: Iterable[Outcome]) -> dict[FragmentId, int]:
    """Of the units of streamed transactions."""
    return {fragment: each.scope for each in outcomes if each.scope is not None for fragment in each.fragments}


def _number(config: Config, rule: TableRule) -> int:
    return next(i for i, each in enumerate(config.tables) if each is rule)


def _name(relation: Relation) -> str:
    return f"{relation.namespace}.{relation.name}"


def _of(rule: TableRule, relation: Relation) -> dict[str, ColumnRule]:
    return {
        column.name: rule.column_rules[column.name] for column in relation.columns if column.name in rule.column_rules
    }


def _rules_of(
    config: Config, rule: TableRule, latest: Relation, relations: Iterable[Relation]
) -> dict[str, ColumnRule]:
    """Of all columns that the table ever had. Raises ConfigError if it had another name, of which something else is
    said."""
    found: dict[str, ColumnRule] = {}
    for relation in relations:
        other = config.rule_for(relation.namespace, relation.name)
        mine, theirs = _of(rule, relation), _of(other, relation)
        if rule.skip:
            mine = theirs
        if mine != theirs and not other.skip:
            name = next(name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name))
            raise ConfigError(
                f"tables: {_name(latest)} was {_name(relation)} before, and what `columns` says of {name!r} is not the "
                "same for both names: say it of both"
            )
        found |= mine
    return found


def _refuse_missing(config: Config, number: int, relations: list[Relation]) -> None:
    there = {column.name for relation in relations for column in relation.columns}
    for name in config.tables[number].column_rules:
        if name not in there:
            latest = {_name(relation): relation for relation in relations}
            described = [f"{table} has {', '.join(c.name for c in each.columns)}" for table, each in latest.items()]
            more = f"; and {len(described) - _SHOWN:,} tables more" if len(described) > _SHOWN else ""
            raise ConfigError(
                f"tables[{number}].columns.{name}: no table in the archive that it is for has such a column: "
                f"{'; '.join(described[:_SHOWN])}{more}"
            )


def _checked(
    rule: TableRule, latest: Relation, relations: tuple[Relation, ...], uses: Mapping[str, ColumnRule], types: UserTypes
) -> str | None:
    """Why the table can't go on, though the configuration is right; None if it can."""
    for relation in relations:
        _refuse_of_key(relation, uses)
        if relation.columns and not masked_relation(relation, uses).columns:
            raise ConfigError(f"tables: `columns` drops all columns of {_name(relation)}; say skip instead")
    why_not = None
    for before, after in pairwise(relations):
        _refuse_undeclared(rule, before, after, uses)
        why_not = _between(rule, latest, before, after, uses, types) or why_not
    return why_not


def _refuse_of_key(relation: Relation, uses: Mapping[str, ColumnRule]) -> None:
    if relation.replica_identity is ReplicaIdentity.FULL:
        return  # a key is the configuration's, which was checked by itself
    for column in relation.columns:
        use = uses.get(column.name)
        if use is not None and use.action is not ColumnAction.HASH and column.is_key:
            raise ConfigError(
                f"tables: {column.name!r} of {_name(relation)} belongs to its key, by which UPDATE and DELETE name "
                "rows: it can be hashed, and no more"
            )


def _refuse_undeclared(rule: TableRule, before: Relation, after: Relation, uses: Mapping[str, ColumnRule]) -> None:
    """A protected column that is gone may be a new one by now."""
    was, now = ({column.name for column in relation.columns} for relation in (before, after))
    gone = sorted(name for name in was - now if name in uses)
    new = sorted(name for name in now - was if name not in rule.columns)
    if gone and new:
        raise ConfigError(
            f"tables: {_name(after)} has no column {gone[0]!r} any more, of which `columns` says something, and has a "
            f"new one, {new[0]!r}: say in `columns` what that is, too: drop, {{hash: sha256}}, redact, or added, if it "
            "is another column, whose values may come as they are"
        )


def _between(
    rule: TableRule,
    latest: Relation,
    before: Relation,
    after: Relation,
    uses: Mapping[str, ColumnRule],
    types: UserTypes,
) -> str | None:
    """What became of the columns from one version to the next."""
    old, new = masked_relation(before, uses), masked_relation(after, uses)
    try:
        origins = lineage(old, new, rule.lineage).origins
    except TableError:
        return None  # said where it is written
    sent = {column.name: column for column in before.columns}
    sent_after = {column.name: column for column in after.columns}
    for place, origin in enumerate(origins):
        if origin is None:
            continue
        was, name = old.columns[origin].name, new.columns[place].name
        said, says = uses.get(was), uses.get(name)
        if said != says:
            raise ConfigError(
                f"tables: column {name!r} of {_name(latest)} was called {was!r} before, and `columns` doesn't say the "
                "same of both: say it"
            )
        is_hashed = says is not None and says.action is ColumnAction.HASH
        if is_hashed and not _spells_alike(sent[was], sent_after[name], types):
            return (
                f"column {name!r}, which is hashed, changed its type: hashes of the rows that are there are of its "
                "former text, and can't be made anew. Drop or redact it, and have the table rebuilt"
            )
    return None


def _spells_alike(before: RelationColumn, after: RelationColumn, types: UserTypes) -> bool:
    """Whether all values have the text that they had."""
    old, new = (column_type(column.type_oid, column.type_modifier, types) for column in (before, after))
    names = {of.name.partition("(")[0] for of in (old, new)}
    return old.name == new.name or is_unchanged(old, new) or any(names <= alike for alike in _SPELLED_ALIKE)
