"""Resolves masking rules for every name that a table ever had, before any row is read. Rejects ambiguous rules.

Rules refer to names, but tables and columns may be renamed within an archive. A masked column must not appear unmasked
under another name, so rules must cover both names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from pgoutput_etl.config.column_rules import ColumnAction, ColumnRule
from pgoutput_etl.config.rules import TableRule
from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ConfigError, TableError
from pgoutput_etl.masking.mask_rows import MaskedTable, MaskingPolicy, masked_relation, spelled_alike
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.schema.declarations import Declarations
from pgoutput_etl.schema.diff import lineage
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.outcome import FragmentId, Outcome
from pgoutput_etl.types import UserTypes, type_of
from pgoutput_etl.types.conversion import is_unchanged

_SHOWN = 3

_SPELLED_ALIKE = ({"int2", "int4", "int8"}, {"text", "varchar", "citext", "name"})


def has_masks(config: Config) -> bool:
    return any(placed.rule.column_rules for placed in config.rule_book.placed)


def masking_policy(
    config: Config, history: RelationHistory, user_types: UserTypes, scopes: Mapping[FragmentId, int]
) -> MaskingPolicy | None:
    """The policy; None if the configuration has no masks. Raises ConfigError for an impossible rule, or if a rule
    misses another name of a column."""
    if not has_masks(config):
        return None
    tables = {}
    by_place: dict[str, tuple[TableRule, list[Relation]]] = {}
    for entry in history.entries:
        for placed in config.rule_book.matching(entry.relation.full_name):
            if placed.rule.column_rules:
                by_place.setdefault(placed.place, (placed.rule, []))[1].append(entry.relation)
    for oid in sorted({relation.oid for _, relations in by_place.values() for relation in relations}):
        versions, latest = history.unmasked(oid)
        rule = config.rule_for(latest.namespace, latest.name)
        rules = _table_rules(config, rule, latest, versions.relations)
        if rules:
            checks = _TableChecks(rule, rules, latest.full_name, spelled_alike(user_types))
            reason = None if rule.skip else checks.reason_unmaskable(versions.relations)
            tables[oid] = MaskedTable(versions, rules, reason)
    for place, (rule, relations) in by_place.items():
        _refuse_missing(place, rule, relations)
    return MaskingPolicy(tables, history.oids(), scopes, user_types)


def masking_policy_of(config: Config, assembly: Assembly, user_types: UserTypes) -> MaskingPolicy | None:
    """The policy for files that were just assembled. Raises ConfigError."""
    scopes = scopes_of((*assembly.outcomes, *assembly.open_outcomes()))
    return masking_policy(config, assembly.relations, user_types, scopes)


def scopes_of(outcomes: Iterable[Outcome]) -> dict[FragmentId, int]:
    """The scope of each fragment of a streamed transaction."""
    return {fragment: o.scope for o in outcomes if o.scope is not None for fragment in o.fragments}


def _relation_rules(rule: TableRule, relation: Relation) -> dict[str, ColumnRule]:
    return {c.name: rule.column_rules[c.name] for c in relation.columns if c.name in rule.column_rules}


def _table_rules(
    config: Config, rule: TableRule, latest: Relation, relations: Iterable[Relation]
) -> dict[str, ColumnRule]:
    """The rules of all columns that the table ever had. Raises ConfigError if the rules differ for a former name of the
    table."""
    rules: dict[str, ColumnRule] = {}
    for relation in relations:
        other = config.rule_for(relation.namespace, relation.name)
        mine, theirs = _relation_rules(rule, relation), _relation_rules(other, relation)
        if rule.skip:
            mine = theirs
        if mine != theirs and not other.skip:
            name = next(name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name))
            raise ConfigError(
                f"tables: {latest.full_name} was {relation.full_name} before, and `columns` has different rules for "
                f"{name!r} under the two names: configure the same rule for both"
            )
        rules |= mine
    return rules


def _refuse_missing(place: str, rule: TableRule, relations: list[Relation]) -> None:
    existing = {column.name for relation in relations for column in relation.columns}
    for name in rule.column_rules:
        if name not in existing:
            latest = {relation.full_name: relation for relation in relations}
            described = [f"{table} has {', '.join(c.name for c in r.columns)}" for table, r in latest.items()]
            more = f"; and {len(described) - _SHOWN:,} more tables" if len(described) > _SHOWN else ""
            raise ConfigError(
                f"{place}.columns.{name}: no matching table in the archive has this column: "
                f"{'; '.join(described[:_SHOWN])}{more}"
            )


@dataclass(frozen=True, slots=True)
class _TableChecks:
    """Checks one table's masks. rules: those of all columns that the table ever had. name: the table's latest."""

    rule: TableRule
    rules: Mapping[str, ColumnRule]
    name: str
    types: UserTypes

    def reason_unmaskable(self, relations: tuple[Relation, ...]) -> str | None:
        """Why the table can't continue although its configuration is valid, or None. relations: its versions. Raises
        ConfigError."""
        for relation in relations:
            self._refuse_masked_key(relation)
            if relation.columns and not masked_relation(relation, self.rules).columns:
                raise ConfigError(f"tables: `columns` drops all columns of {relation.full_name}; use `skip` instead")
        reason = None
        declarations = Declarations(self.rule.lineage)
        declarations.foresee([masked_relation(relation, self.rules).columns for relation in relations])
        for before, after in pairwise(relations):
            self._refuse_undeclared(before, after)
            reason = self._compare(before, after, declarations) or reason
        return reason

    def _refuse_masked_key(self, relation: Relation) -> None:
        if relation.replica_identity is ReplicaIdentity.FULL:
            return  # the key is configured, and was checked with the configuration
        for column in relation.columns:
            rule = self.rules.get(column.name)
            if rule is not None and rule.action is not ColumnAction.HASH and column.is_key:
                raise ConfigError(
                    f"tables: {column.name!r} of {relation.full_name} belongs to the key, by which UPDATE and DELETE "
                    "identify rows: it can only be hashed"
                )

    def _refuse_undeclared(self, before: Relation, after: Relation) -> None:
        """Raises ConfigError if a masked column is gone and may have become an undeclared new column."""
        old_names, new_names = ({column.name for column in relation.columns} for relation in (before, after))
        gone = sorted(name for name in old_names - new_names if name in self.rules)
        new = sorted(name for name in new_names - old_names if name not in self.rule.columns)
        if gone and new:
            raise ConfigError(
                f"tables: {after.full_name} no longer has the masked column {gone[0]!r}, but has a new column "
                f"{new[0]!r}. Configure {new[0]!r} in `columns`, too: drop, {{hash: sha256}} or redact; or added, if "
                "it is a different column that needs no mask"
            )

    def _compare(self, before: Relation, after: Relation, declarations: Declarations) -> str | None:
        """Compares the masks of two successive versions. Returns and raises like `reason_unmaskable`."""
        old, new = masked_relation(before, self.rules), masked_relation(after, self.rules)
        try:
            origins = lineage(old, new, declarations).origins
        except TableError:
            return None  # the planner reports it
        sent_before, sent_after = ({column.name: column for column in r.columns} for r in (before, after))
        for place, origin in enumerate(origins):
            if origin is None:
                continue
            old_name, name = old.columns[origin].name, new.columns[place].name
            mask = self.rules.get(name)
            if self.rules.get(old_name) != mask:
                raise ConfigError(
                    f"tables: column {name!r} of {self.name} was called {old_name!r} before, and `columns` has "
                    "different rules for the two names: configure the same rule for both"
                )
            is_hashed = mask is not None and mask.action is ColumnAction.HASH
            if is_hashed and not _spells_alike(sent_before[old_name], sent_after[name], self.types):
                return (
                    f"the hashed column {name!r} changed its type: existing hashes are of the former text and can't be "
                    "recomputed. Drop or redact the column, and rebuild the table"
                )
        return None


def _spells_alike(before: RelationColumn, after: RelationColumn, types: UserTypes) -> bool:
    """True if every value has the same text in both types."""
    if before.full_type == after.full_type:
        return True
    old, new = (type_of(column, types) for column in (before, after))
    names = {column_type.name.partition("(")[0] for column_type in (old, new)}
    return old.name == new.name or is_unchanged(old, new) or any(names <= alike for alike in _SPELLED_ALIKE)
