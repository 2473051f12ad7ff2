"""Known problems of tables: a single list of states, for summaries, metrics, `status`, and the manifest.

docs/states.md has the list for users, with the command that resolves each state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pgoutput_etl.config.rules import DEFAULT_MODE, OnMissingRow, TableRule
from pgoutput_etl.config.settings import Config, Snapshots
from pgoutput_etl.console import shortened
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.schema.contract import OnAmbiguous
from pgoutput_etl.schema.declarations import Declarations
from pgoutput_etl.targets.gaps import gap_reason
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.plan import APPLIED, CompleteSince, Since, TableState, may_lack_rows

_SHOWN_TABLES, _SHOWN_NAMES, _EXCEPTED_NAMES = 10, 8, 3

_CAUSES = (
    "Likely causes: another program has changed the Delta table, a landed file is missing, or the server changed rows "
    "without sending them"
)

_PROOF = {Since.SNAPSHOT: "a snapshot", Since.CREATION: "its creation", Since.TRUNCATE: "a TRUNCATE"}


class ConditionKind(str, Enum):
    """The state of a table that may differ from the server's. If several apply, the first one is used.

    HELD: later commits are not applied. DIVERGED: changes contradict the table's rows, although it has all rows that
    the archive begins with. AMBIGUOUS: a change of its columns has several interpretations, and nobody has declared
    which one is right. REWRITTEN: the server has recomputed values without sending them. INCOMPLETE: rows from before
    the archive's first change are, or may be, missing. Changes are still applied in all states except HELD.
    """

    HELD = "held"
    DIVERGED = "diverged"
    AMBIGUOUS = "ambiguous"
    REWRITTEN = "rewritten"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class TableCondition:
    """A table and its state. reason: contains no values of rows. lsn: the table has every commit through this one.
    mismatches: those included in the reason. can_be_repaired: `snapshot --repair` supports the table. has_gap: changes
    are known to be missing."""

    oid: int
    schema: str
    table: str
    state: ConditionKind
    reason: str
    lsn: int
    mode: str = DEFAULT_MODE.value
    can_be_repaired: bool = False
    mismatches: Mismatches | None = None
    has_gap: bool = False

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


def conditions_of(states: Iterable[TableState], config: Config) -> tuple[TableCondition, ...]:
    """The conditions of all tables that have one, by name."""
    snapshots = config.source.snapshot
    found = (condition_of(state, snapshots, config.rule_for(state.schema, state.table)) for state in states)
    return tuple(sorted(filter(None, found), key=lambda condition: condition.name))


def condition_of(state: TableState, snapshots: Snapshots, rule: TableRule) -> TableCondition | None:
    """The table's condition; None if there is no known problem. rule: the table's.

    Also None for a table that the configuration skips, because nobody expects its rows to be right; for a table without
    a Delta table; and for a displaced one, which nobody reads under its name and no job loads again. A held table has
    changes that are not applied anywhere, so it counts even if it is displaced or was never written.
    """
    if rule.skip:
        return None
    if state.status != APPLIED:  # or it was skipped and no longer is: the next batch holds it
        return _condition(state, ConditionKind.HELD, state.reason or "")
    if not state.is_readable:
        return None
    is_counted = rule.on_missing_row is not OnMissingRow.IGNORE and table_mode(state.mode).has_rows
    found, since = state.mismatches if is_counted else None, state.complete_since
    is_complete = since is not None and not may_lack_rows(state)
    if found is not None and (found.doubled or (found.missing and is_complete)):
        return _condition(state, ConditionKind.DIVERGED, _divergence(found, since), found)
    doubts = _doubts(state, rule)
    if doubts:
        return _condition(state, ConditionKind.AMBIGUOUS, "; ".join(doubts))
    if since is not None and since.kind in (Since.REWRITE, Since.UNLOGGED):
        return _condition(state, ConditionKind.REWRITTEN, gap_reason(since) or _rewrite(state, since), found)
    lacks_rows = since is not None and since.kind in (Since.ATTACHMENT, Since.GAP)
    if not lacks_rows and (snapshots is Snapshots.ACCEPT or not (found or may_lack_rows(state))):
        return None
    return _condition(state, ConditionKind.INCOMPLETE, _incompleteness(found, since), found)


def _doubts(state: TableState, rule: TableRule) -> list[str]:
    """Undecided questions about the table's columns."""
    if rule.on_schema_change.ambiguous is OnAmbiguous.IGNORE:
        return []
    declarations, found = Declarations(rule.lineage, dict(state.used)), []
    for doubt in declarations.open_doubts(state.doubts):
        if doubt.column not in declarations.left():
            found.append(str(doubt))
        else:
            found.append(f"the declaration of {doubt.column} contradicts what was applied: rebuild the table")
    return shortened(found, _SHOWN_NAMES, "columns")


def _condition(
    state: TableState, condition: ConditionKind, reason: str, mismatches: Mismatches | None = None
) -> TableCondition:
    place = (state.oid, state.schema, state.table, condition, reason, state.last_commit_lsn)
    has_gap = gap_reason(state.complete_since) is not None
    return TableCondition(*place, state.mode.value, can_be_repaired(state), mismatches, has_gap)


def can_be_repaired(state: TableState) -> bool:
    """True if `snapshot --repair` supports the table."""
    return state.is_complete and table_mode(state.mode).is_copy and not state.masks


def _divergence(found: Mismatches, since: CompleteSince | None) -> str:
    although = ""
    if since is not None and since.kind in _PROOF:
        although = f". The table has all rows since {_PROOF[since.kind]} at LSN {format_lsn(since.lsn)}"
    return f"{found}{although}. {_CAUSES}"


def _rewrite(state: TableState, since: CompleteSince) -> str:
    """The affected columns: those that were retyped or newly sent at that commit or, if there are none, any."""
    names = [name for name, lsn in state.changed_at.items() if lsn >= since.lsn]
    concerned = f"of {named(names)}" if names else "of some columns"
    lsn = format_lsn(since.lsn)
    return f"the server computed the values {concerned} anew before LSN {lsn}, and sent none"


def _incompleteness(found: Mismatches | None, since: CompleteSince | None) -> str:
    if (gap := gap_reason(since)) is not None:
        return gap
    if since is not None and since.kind is Since.ATTACHMENT:
        until = f"before LSN {format_lsn(since.lsn)}"
        return f"a partition was attached or detached: rows from {until} are missing, or are left of a former partition"
    start = "the archive" if since is None else f"its first change at LSN {format_lsn(since.lsn)}"
    if found is None:
        return f"rows from before {start} are missing, if there were any"
    return f"rows from before {start} are missing: {found}"


def condition_lines(conditions: Sequence[TableCondition]) -> list[str]:
    """Lines for a summary, without held tables. Tables that merely may lack rows share a line."""
    named_alone = (ConditionKind.AMBIGUOUS, ConditionKind.REWRITTEN)
    proven = [c for c in conditions if c.mismatches is not None or c.state in named_alone or c.has_gap]
    lines = shortened([f"{c.state.capitalize()}: {c.name}: {c.reason}" for c in proven], _SHOWN_TABLES, "tables")
    unproven = [c.name for c in conditions if c.state is ConditionKind.INCOMPLETE and c not in proven]
    if unproven:
        lines.append(f"Incomplete: earlier rows, if there were any, are missing: {named(unproven)}.")
    return lines


def named(names: Sequence[str], limit: int = _SHOWN_NAMES) -> str:
    """The first names, and the number of remaining ones."""
    more = len(names) - limit
    return f"{', '.join(names[:limit])} and {more:,} more" if more > 0 else ", ".join(names)


def excepted_tables(
    conditions: Iterable[TableCondition], ahead: Iterable[str] = (), swapped: Iterable[str] = ()
) -> dict[str, str]:
    """Why tables may be inconsistent with the others, by name. ahead: tables that a snapshot has advanced. swapped:
    tables to which other tables seem to have been renamed."""
    others = {**dict.fromkeys(ahead, "ahead"), **dict.fromkeys(swapped, "possibly replaced")}
    return {**others, **{c.name: c.state.value for c in conditions}}


def consistency_line(lsn: int, excepted: Mapping[str, str], verb: str = "are") -> str:
    """excepted: the tables that may be inconsistent, each with a one-word reason."""
    scope = "All tables"
    if excepted:
        scope += f" but {named([f'{name} ({why})' for name, why in sorted(excepted.items())], _EXCEPTED_NAMES)}"
    return f"{scope} {verb} consistent through LSN {format_lsn(lsn)}."
