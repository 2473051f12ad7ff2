"""The rules that apply to a table, and how they are combined: the first match only, or all matches merged.

Merged rules go from general to specific, on top of `defaults`: a mapping is merged by key, and any other value is
replaced. Every conflict is found when the file is read, regardless of the tables that will appear.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, reduce
from itertools import combinations
from typing import Any

from pydantic_core import PydanticCustomError

from pgoutput_etl.config.column_settings import KEEP
from pgoutput_etl.config.key_checks import below, made, mistake
from pgoutput_etl.config.patterns import Specificity, covers, matches, only_name, overlap, specificity
from pgoutput_etl.config.rules import CONTRACT, TableRule
from pgoutput_etl.config.yaml_file import written_path

DEFAULTS = "defaults"

# Groups of keys that exclude each other in a rule: a specific rule's group replaces a general rule's other group.
_EITHER_OR = (({"cluster_by"}, {"partition_by"}), ({"rename"}, {"into", "tag"}))

_MAPPINGS = ("columns", "tag", "properties")


class Rules(Enum):
    """How the rules that match a table are used: the first one only, or all of them, merged."""

    FIRST = "first"
    MERGE = "merge"


@dataclass(frozen=True, slots=True)
class PlacedRule:
    """path: of the rule, in the file."""

    path: tuple[str | int, ...]
    rule: TableRule

    @property
    def place(self) -> str:
        """The rule's name in errors: defaults, or tables[3]."""
        return written_path(self.path)


@dataclass(frozen=True)
class RuleBook:
    """All rules of a configuration."""

    defaults: TableRule
    tables: Sequence[TableRule]
    order: Rules
    include: Sequence[str] | None

    @cached_property
    def placed(self) -> Sequence[PlacedRule]:
        """The rules, in file order."""
        tables = [PlacedRule(("tables", i), rule) for i, rule in enumerate(self.tables)]
        return [*self._defaults, *tables]

    @property
    def _defaults(self) -> list[PlacedRule]:
        return [PlacedRule((DEFAULTS,), self.defaults)] if self.defaults.own_keys else []

    @cached_property
    def _by_name(self) -> Mapping[str | None, Sequence[PlacedRule]]:
        """The rules in `tables`, by the only name that they match; those with a pattern under None."""
        found: dict[str | None, list[PlacedRule]] = {}
        for placed in self.placed[len(self._defaults) :]:
            found.setdefault(only_name(placed.rule.match), []).append(placed)
        return found

    def matching(self, table: str) -> list[PlacedRule]:
        """The rules that apply to a table, from general to specific. table: schema.table."""
        patterns = [placed for placed in self._by_name.get(None, ()) if matches(placed.rule.match, table)]
        found = [*patterns, *self._by_name.get(table, ())]
        if self.order is Rules.MERGE:
            return [*self._defaults, *sorted(found, key=_rank)]
        return [*self._defaults, *sorted(found, key=lambda placed: placed.path)[:1]]

    def giver(self, table: str, key: str) -> PlacedRule | None:
        """The rule that sets this key for a table, or that extends it if it is a mapping."""
        found = [placed for placed in self.matching(table) if key in placed.rule.own_keys]
        return found[-1] if found else None

    def includes(self, table: str) -> bool:
        return self.include is None or any(matches(pattern, table) for pattern in self.include)

    def rule(self, table: str) -> TableRule:
        """The rule for a table; without one, the table is mirrored completely."""
        rules = [placed.rule for placed in self.matching(table)]
        rule = reduce(merged, rules) if rules else TableRule("*")
        return rule if self.includes(table) else replace(rule, skip=True)

    def check(self, ignores_case: bool) -> None:
        """Raises a `mistake`. ignores_case: for names, as catalogs do."""
        with below("tables"):
            if self.order is Rules.FIRST:
                _refuse_useless(self.tables)
            _refuse_equal_targets(self.tables, ignores_case)
        for placed in self.placed[len(self._defaults) :] if self._defaults else ():
            _merged_pair(self._defaults[0], placed)
        for one, other in self._overlapping() if self.order is Rules.MERGE else ():
            general, specific = sorted((one, other), key=_rank)
            rule = _merged_pair(general, specific)
            if _rank(general) == _rank(specific):
                _refuse_tie(general, specific, (rule, _merged_pair(specific, general)))

    def _overlapping(self) -> Iterator[tuple[PlacedRule, PlacedRule]]:
        """The pairs of rules in `tables` that may match the same table."""
        patterns, names = self._by_name.get(None, ()), [name for name in self._by_name if name is not None]
        yield from (pair for pair in combinations(patterns, 2) if overlap(*(placed.rule.match for placed in pair)))
        for name in names:
            yield from combinations(self._by_name[name], 2)
            for pattern in (placed for placed in patterns if matches(placed.rule.match, name)):
                yield from ((pattern, placed) for placed in self._by_name[name])


def _rank(placed: PlacedRule) -> Specificity:
    """Greater for a more specific rule."""
    return specificity(placed.rule.match)


def merged(general: TableRule, specific: TableRule) -> TableRule:
    """Merges two rules. Raises a `mistake` if their values can't be combined."""
    _refuse_unmasked(general, specific)
    left = general.own_keys - _replaced(specific.own_keys)
    names = left | specific.own_keys
    values: dict[str, Any] = {}
    for name in (name for name in names if name in TableRule.key_fields()):
        values[name] = getattr(specific if name in specific.own_keys else general, name)
    for name in (name for name in _MAPPINGS if name in left & specific.own_keys):
        values[name] = {**getattr(general, name), **getattr(specific, name)}
    if CONTRACT in left & specific.own_keys:
        values[CONTRACT] = replace(general.on_schema_change, **_parts(specific))
    masks = {name: mask for name, mask in general.column_rules.items() if name not in specific.columns}
    values |= {"match": specific.match, "column_rules": {**masks, **specific.column_rules}}
    return made(TableRule, **values, given=names)


def _refuse_unmasked(general: TableRule, specific: TableRule) -> None:
    """Raises a `mistake` if a setting would silently remove a mask."""
    for name, setting in specific.columns.items():
        if name in general.column_rules and name not in specific.column_rules and setting != KEEP:
            raise mistake(f"expected a mask, or {KEEP}: another rule masks the column", "columns", name)


def _parts(rule: TableRule) -> dict[str, Any]:
    """The parts of on_schema_change that the rule sets."""
    names = [name.partition(".")[2] for name in rule.own_keys if name.startswith(f"{CONTRACT}.")]
    return {name: getattr(rule.on_schema_change, name) for name in names}


def _replaced(keys: frozenset[str]) -> set[str]:
    """The keys of a general rule that a more specific rule's other keys replace."""
    return {
        name
        for one, other in _EITHER_OR
        for given, replaced in ((one, other), (other, one))
        if given & keys
        for name in replaced
    }


def _merged_pair(general: PlacedRule, specific: PlacedRule) -> TableRule:
    """Like `merged`, but the `mistake` names both places."""
    try:
        return merged(general.rule, specific.rule)
    except PydanticCustomError as error:
        found = error.context or {}
        raise mistake(f"{found['why']} (merged with {general.place})", *specific.path, *found["path"]) from None


def _refuse_tie(one: PlacedRule, other: PlacedRule, results: tuple[TableRule, TableRule]) -> None:
    """Raises a `mistake` if the order of two equally specific rules would decide a value. results: merged in either
    order."""
    for name in sorted(TableRule.key_fields().keys() - {"match"}):
        if getattr(results[0], name) != getattr(results[1], name):
            why = f"{one.place} is as specific, matches some of the same names, and differs: one rule must be narrower"
            raise mistake(why, *other.path, name)


def _refuse_useless(rules: Sequence[TableRule]) -> None:
    """Raises a `mistake` if an earlier match makes a rule useless."""
    patterns: dict[str, int] = {}
    wide: dict[str, int] = {}  # those that match names other than the pattern itself
    for i, rule in enumerate(rules):
        covering = (n for pattern, n in wide.items() if covers(pattern, rule.match))
        earlier = min((n for n in (patterns.get(rule.match), next(covering, None)) if n is not None), default=None)
        if earlier is not None:
            raise mistake(f"it never applies: tables[{earlier}] comes first and matches the same tables", i)
        patterns[rule.match] = i
        if "*" in rule.match and not {"?", "["}.intersection(rule.match):
            wide[rule.match] = i


def _refuse_equal_targets(rules: Sequence[TableRule], ignores_case: bool) -> None:
    """Raises a `mistake` if two rules use the same target in different ways."""
    targets: dict[str, int] = {}
    for i, rule in enumerate(rules):
        name = None if rule.fixed_target is None else rule.rename
        if name is not None and targets.setdefault(name, i) != i:
            raise mistake(f"expected another `rename` than that of tables[{targets[name]}]", i)
    shared: dict[str, int] = {}
    for i, rule in enumerate(rules):
        if rule.into in targets:
            raise mistake(f"expected another `into` than the `rename` of tables[{targets[rule.into]}]", i)
        if rule.into is None:
            continue
        first = shared.setdefault(rule.into.lower() if ignores_case else rule.into, i)
        if rules[first].tag.keys() != rule.tag.keys():
            raise mistake(f"expected the columns of the `tag` of tables[{first}], which has the same `into`", i)
