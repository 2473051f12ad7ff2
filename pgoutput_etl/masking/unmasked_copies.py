"""Finds tables that look like copies of a masked table under a name that the mask's rule doesn't match.

A table that is loaded as `person_new` before it is renamed to `person` has the same values as the masked table.
"""

from __future__ import annotations

from collections.abc import Iterable

from pgoutput_etl.config.settings import Config
from pgoutput_etl.identifiers import is_named_after
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.schema.relation_history import RelationHistory


def unmasked_copies(config: Config, history: RelationHistory, written: Iterable[int]) -> tuple[str, ...]:
    """One line per table. written: OIDs of the tables that a batch writes."""
    relations = {oid: history.unmasked(oid)[1] for oid in history.oids()}
    masked = [relation for relation in relations.values() if _masks(config, relation)]
    lines = []
    for copy in (relations[oid] for oid in sorted(written) if oid in relations):
        rule = config.rule_for(copy.namespace, copy.name)
        for original in () if rule.skip else masked:
            unmasked = sorted(_masks(config, original) - rule.columns.keys())
            if unmasked and _is_copy(copy, original):
                lines.append(
                    f"{copy.full_name} has the columns of {original.full_name}, but {', '.join(unmasked)} would be "
                    "stored without a mask. If it is a copy, for instance to be renamed, let the same rule match both "
                    "names, or skip it"
                )
                break
    return tuple(lines)


def _masks(config: Config, relation: Relation) -> set[str]:
    """The table's masked columns."""
    rule = config.rule_for(relation.namespace, relation.name)
    return set() if rule.skip else {c.name for c in relation.columns if c.name in rule.column_rules}


def _is_copy(copy: Relation, original: Relation) -> bool:
    """True if the copy's name is the original's with an addition, and the copy has all of the original's columns."""
    names = ((relation.namespace, relation.name) for relation in (copy, original))
    columns, others = ({column.described_as for column in r.columns} for r in (copy, original))
    return others <= columns and is_named_after(*names)
