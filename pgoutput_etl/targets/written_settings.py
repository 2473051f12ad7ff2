"""Compares the settings that tables were written with to the configuration, because stored rows don't follow it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pgoutput_etl.config.column_rules import changed_masks
from pgoutput_etl.config.rules import Mode
from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ConfigError, TableError
from pgoutput_etl.identifiers import patterns_of
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.schema.table_shape import TableColumn, table_columns
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.types import UserTypes

_LISTED = 3  # tables named in one error


@dataclass(frozen=True, slots=True)
class OtherSettings:
    """state: of the table. reason: the settings with which it was written, and those configured."""

    state: TableState
    reason: str


def refuse_other_settings_of_tables(found: Sequence[OtherSettings], config: Config) -> None:
    """Raises one ConfigError for all tables. Its command rebuilds the tables whose rows are all in the archive or, if
    there are none, the tables that began with a snapshot."""
    if not found:
        return
    rebuilt = [other.state.full_name for other in found if other.state.snapshot is None]
    loaded = [other.state.full_name for other in found if other.state.snapshot is not None]
    more = f"; and {len(found) - _LISTED:,} more tables" if len(found) > _LISTED else ""
    error = ConfigError(
        f"{'; '.join(other.reason for other in found[:_LISTED])}{more}. Stored rows do not change with the "
        f"configuration: restore it, or {_how(rebuilt, loaded)}"
    )
    if rebuilt:
        error.next_job = ("backfill", "--tables", patterns_of(rebuilt))
    else:
        error.next_job = ("snapshot", "--tables", patterns_of(loaded), "--server", config.source.server_url)
    raise error


def refuse_other_modes(states: Iterable[TableState], config: Config) -> None:
    """For a run without changes, which plans no tables. Raises ConfigError as the next batch's plan would."""
    found = []
    for state in sorted(states, key=lambda state: state.oid):
        rule = config.rule_for(state.schema, state.table)
        why = other_mode(state, rule.mode, state.relation)
        if state.is_complete and not rule.skip and why is not None:
            found.append(OtherSettings(state, why))
    refuse_other_settings_of_tables(found, config)


def _how(rebuilt: Sequence[str], loaded: Sequence[str]) -> str:
    if not loaded:
        return "rebuild the tables from the archive"
    snapshot = "load a snapshot of those whose earlier rows only the server has"
    return f"rebuild the tables from the archive, and {snapshot}" if rebuilt else snapshot


def other_mode(state: TableState, mode: Mode, relation: Relation) -> str | None:
    """Why the table can't be written in this mode, or None."""
    if state.mode is mode:
        return None
    return (
        f"{state.full_name} was written in mode {state.mode.value}, but the configuration asks for {mode.value} for "
        f"{relation.full_name}"
    )


def other_masks(state: TableState, masks: Mapping[str, str]) -> str | None:
    """Why stored values don't match the configured masks, or None. masks: by column."""
    clear = {column.name for column in (*state.relation.columns, *state.retired)} - state.masks.keys()
    changed = changed_masks(state.masks, frozenset(clear), masks)
    if not changed:
        return None
    return f"{state.full_name} was written with other `columns` than the configuration has: {', '.join(changed)}"


def other_types(state: TableState, user_types: UserTypes) -> str | None:
    """Why stored values don't match the configured `types`, or None. Raises TableError if the archive itself has shown
    that a type is not an array."""
    for column, stored in _stored(state, user_types):
        if column.type.stored_as == stored:
            continue
        if stored.startswith("list<") and column.type.name.rpartition(".")[2][:1] == "_":
            raise TableError(
                f"column {column.name!r} is stored as {stored}, and its type {column.type.name} is no array: rebuild "
                "the table"
            )
        return (
            f"column {column.name!r} of {state.full_name} is stored as {stored}, but the configuration's `types` asks "
            f"for {column.type.stored_as}"
        )
    return None


def _stored(state: TableState, user_types: UserTypes) -> Iterable[tuple[TableColumn, str]]:
    return zip(table_columns(state.relation, state.retired, user_types), state.types, strict=True)
