"""Tables that were dropped on the server, and tables whose definition only the server knows."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pgoutput_etl.config.rules import OnDrop
from pgoutput_etl.config.settings import Config
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.targets.plan import TableState


def dropped_names(config: Config, dropped: Collection[int], states: Mapping[int, TableState]) -> tuple[str, ...]:
    """The tables that are kept although no rule says so."""
    kept = (state for oid, state in states.items() if oid in dropped and state.is_readable)
    return tuple(sorted(s.full_name for s in kept if config.rule_for(s.schema, s.table).on_drop is OnDrop.REPORT))


def dropped_line(names: Collection[str]) -> list[str]:
    text = "Dropped on the server, and kept here, until on_drop of their rules is keep or archive"
    return [f"{text}: {', '.join(names)}."] if names else []


def unknown_names(history: RelationHistory, states: Mapping[int, TableState]) -> tuple[str, ...]:
    """The tables whose definitions must be sent again."""
    unknown = (states[oid] for oid in history.definitions.unknown() if oid in states)
    return tuple(sorted(state.full_name for state in unknown if state.is_readable))


def is_archived(history: RelationHistory, oid: int, on_drop: OnDrop) -> bool:
    entry = history.definitions.committed(oid)
    is_dropped = entry is not None and entry.definition.is_dropped and entry.definition.is_verified
    return is_dropped and on_drop is OnDrop.ARCHIVE
