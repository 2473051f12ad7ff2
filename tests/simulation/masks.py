"""A column whose values are secret, and the rules under which nights mask it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import Any

from pgoutput_etl.config.column_rules import DROP, ColumnAction, ColumnRule, Salt
from pgoutput_etl.config.rules import Mode, TableRule
from pgoutput_etl.config.settings import Config, Source, State, Target
from pgoutput_etl.masking.policy import masking_policy_of
from pgoutput_etl.protocol.messages import Delete, Insert, PgoutputMessage, TupleData, Update
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.types import UserTypes
from tests.support.model.catalog import TEXT
from tests.support.scan_parts import scan_file

SECRET = "secret-"  # what every secret value begins with
_HASH = {"hash": "sha256"}
_RULES = (
    ("drop", DROP),
    ("redact", ColumnRule(ColumnAction.REDACT)),
    (_HASH, ColumnRule(ColumnAction.HASH, Salt(b"a salt of the first nights"))),
    (_HASH, ColumnRule(ColumnAction.HASH, Salt(b"a salt of the later nights"))),
)
# What a configuration says of a column, and its rule, by the rule's form in the ledger
MASKS: Mapping[str, tuple[Any, ColumnRule]] = MappingProxyType({str(rule): (said, rule) for said, rule in _RULES})


@dataclass(frozen=True, slots=True)
class SecretColumn:
    """It has this name and place in all versions of its table. tables: names that the table ever had."""

    oid: int
    tables: frozenset[str]
    name: str
    place: int

    @classmethod
    def random(cls, chance: Random, history: RelationHistory) -> SecretColumn | None:
        """A column of text that belongs to no key, and is not its table's only one. No other table had the table's
        names before: nights that see only that one refuse a mask of a column that it lacks."""
        found, first = [], dict[str, int]()
        for entry in history.entries:
            first.setdefault(entry.relation.full_name, entry.relation.oid)
        for oid in sorted(history.oids()):
            relations = history.versions(oid).relations
            tables = frozenset(relation.full_name for relation in relations)
            if any(first[name] != oid for name in tables):
                continue
            for place, column in enumerate(relations[0].columns):
                same = (place < len(r.columns) and r.columns[place] == column for r in relations)
                is_open = column.type_oid == TEXT and not column.is_key
                if is_open and all(same) and all(len(r.columns) > 1 for r in relations):
                    found.append(cls(oid, tables, column.name, place))
        return chance.choice(found) if found else None

    def keep_secret(self, messages: Iterable[PgoutputMessage]) -> Iterator[PgoutputMessage]:
        for message in messages:
            if isinstance(message, Insert | Update | Delete) and message.relation_oid == self.oid:
                tuples = {name: data for name in ("old", "new") if (data := getattr(message, name, None)) is not None}
                kept: dict[str, Any] = {name: self.kept_secret(data) for name, data in tuples.items()}
                message = replace(message, **kept)
            yield message

    def kept_secret(self, data: TupleData) -> TupleData:
        values = list(data.values)
        if (value := values[self.place]) is not None:
            values[self.place] = SECRET.encode() + value
        return replace(data, values=tuple(values))


def rules(modes: Mapping[str, Mode], secret: SecretColumn | None, mask: str) -> tuple[TableRule, ...]:
    said, rule = MASKS[mask]
    return tuple(
        TableRule(name, mode=mode)
        if secret is None or name not in secret.tables
        else TableRule(name, mode=mode, columns={secret.name: said}, column_rules={secret.name: rule})
        for name, mode in modes.items()
    )


def mask_of(state: Mapping[str, Any]) -> str | None:
    """Under which a table's secret was written."""
    return next(iter(json.loads(state["uses"] or "{}").values()), None)


def masked_replay(content: bytes, tables: tuple[TableRule, ...]) -> Replay:
    scan, replay = scan_file("archive", 0, content), Replay()
    replay.add_scanned("archive", scan)
    config = Config(Source("s", "landing"), Target("root"), State("state"), tables=tables)
    policy = masking_policy_of(config, replay.assembly, UserTypes.of(replay.assembly.types.values(), {}))
    if policy is None:
        return replay
    masked = Replay()
    masked.add_scanned("archive", replace(scan, rows=[policy.mask(rows) for rows in scan.rows]))
    masked.assembly.relations.mask = policy
    return masked
