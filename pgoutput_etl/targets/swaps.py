"""Finds tables that seem to have been replaced by another table, in a swap that left no trace in the archive.

A job that loads `t_new`, drops `t`, and renames `t_new` to `t` leaves no trace of the rename until a row is written
under the new name. If the next load comes first, a new `t_new` displaces the loaded one, and `t` has no more changes,
although the server's `t` has other rows by now. If, instead, a table is created for each load and copied into `t`, then
`t` has changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pgoutput_etl.identifiers import is_named_after
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.targets.plan import SKIPPED, Since, TableState


@dataclass(frozen=True, slots=True)
class SuspectedSwap:
    """table: has not changed since the commit `since`. newcomer: the name of the tables that have displaced each other
    since then. displaced: their number."""

    table: str
    newcomer: str
    since: int
    displaced: int

    def __str__(self) -> str:
        return (
            f"{self.table} has had no change since LSN {format_lsn(self.since)}, while tables named {self.newcomer} "
            f"replace each other ({self.displaced:,} displaced): it looks as if each is renamed to {self.table}. The "
            "archive shows a rename only with the first row after it. If it is so, load a snapshot, and write a row "
            f"after each rename; if not, skip {self.newcomer}"
        )


def suspected_swaps(states: Mapping[int, TableState]) -> tuple[SuspectedSwap, ...]:
    """One per table that no longer changes, by name. states: after the last batch. Skipped tables don't count."""
    displaced: defaultdict[str, list[TableState]] = defaultdict(list)
    named = []
    for state in states.values():
        if state.is_displaced:
            displaced[state.full_name].append(state)
        elif state.is_readable and state.status != SKIPPED:
            named.append(state)
    found: dict[str, SuspectedSwap] = {}
    for newcomer in named:
        others = displaced.get(newcomer.full_name)
        if others is None:
            continue
        swaps = (_swap(table, newcomer, others) for table in named if _is_named_after(newcomer, table))
        for swap in filter(None, swaps):
            found[swap.table] = max(swap, found.get(swap.table, swap), key=lambda swap: swap.displaced)
    return tuple(found[name] for name in sorted(found))


def swap_remarks(states: Mapping[int, TableState]) -> dict[str, str]:
    """By table, why other tables seem to have been renamed to it."""
    return {swap.table: str(swap) for swap in suspected_swaps(states)}


def _swap(table: TableState, newcomer: TableState, displaced: Iterable[TableState]) -> SuspectedSwap | None:
    """The suspicion that the newcomer was renamed to the table's name; None unless tables that had the newcomer's name
    were changed after the table was last known. displaced: these tables."""
    since = _last_known(table)
    if since is None:
        return None
    later = sum(other.last_row is not None and other.last_row[0] > since for other in displaced)
    return SuspectedSwap(table.full_name, newcomer.full_name, since, later) if later else None


def _last_known(state: TableState) -> int | None:
    """The last commit at which the table surely was the server's: its last change or snapshot. None in an older
    ledger."""
    since = state.complete_since
    lsns = [] if state.last_row is None else [state.last_row[0]]
    lsns += [since.lsn] if since is not None and since.kind is Since.SNAPSHOT else []
    return max(lsns, default=None)


def _is_named_after(newcomer: TableState, table: TableState) -> bool:
    """True if the newcomer's name is the table's with an addition, in the same schema (another schema may belong to
    another tenant), and all columns of one are in the other, because columns may have been added or dropped since."""
    one, other = ({column.name for column in state.relation.columns} for state in (newcomer, table))
    is_named = is_named_after((newcomer.schema, newcomer.table), (table.schema, table.table))
    return is_named and newcomer.schema == table.schema and (one <= other or other <= one)
