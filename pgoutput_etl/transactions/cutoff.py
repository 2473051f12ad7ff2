"""From which commit on a table can't be applied to, as something that it may depend on can't be read.

A transaction of which a part can't be read is not applied, to no table. A table that it changed, or may have changed,
gets nothing that was committed after it either: a later row may build on one that is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.outcome import Outcome, TransactionStatus
from pgoutput_etl.transactions.statistics import BatchStatistics

_FILE = re.compile(r"\bfile (\d+)(?=[,:])")


@dataclass(frozen=True, slots=True)
class Cutoff:
    """From the commit at `lsn` on, nothing can be applied to a table. `reason` names files by their number."""

    lsn: int
    reason: str

    def with_paths(self, path_of: Callable[[int], str]) -> Cutoff:
        return replace(self, reason=with_paths(self.reason, path_of))


def quarantined(assembly: Assembly) -> list[Outcome]:
    return [outcome for outcome in assembly.outcomes if outcome.status is TransactionStatus.QUARANTINED]


def reason_of(outcome: Outcome) -> str:
    which = "" if outcome.xid is None else f" {outcome.xid}"
    return f"transaction{which} is in quarantine: {outcome.reason}"


def with_paths(reason: str, path_of: Callable[[int], str]) -> str:
    """Assembly knows a file by its number."""
    return _FILE.sub(lambda found: path_of(int(found[1])), reason)


def find_cutoffs(assembly: Assembly, statistics: BatchStatistics, tables: Iterable[int]) -> dict[int, Cutoff]:
    """By relation. `statistics`: of all rows; `tables`: those that are known from before. Notes in `assembly` from
    where on none can be relied on."""
    if not assembly.was_damaged:
        return {}
    return cutoffs_by_relation(assembly, statistics.quarantined_from, statistics.changed, tables)


def cutoffs_by_relation(
    assembly: Assembly, own: Mapping[int, int], changed: Iterable[int], tables: Iterable[int]
) -> dict[int, Cutoff]:
    """By relation. `own`: the first commit in quarantine that has rows of it; `changed`: all that have rows; `tables`:
    those that are known from before. Notes in `assembly` from where on none can be relied on."""
    found: dict[int, Cutoff] = {}
    reasons = {outcome.commit_lsn: reason_of(outcome) for outcome in quarantined(assembly)}
    for oid, lsn in own.items():
        _lower(found, oid, Cutoff(lsn, reasons[lsn]))
    losses = [(o.commit_lsn or 0, o.unreadable_relations, reason_of(o)) for o in quarantined(assembly)]
    losses += [(loss.lsn, loss.relations, loss.reason) for loss in assembly.unreadable_ranges]
    for lsn, relations, reason in losses:
        for oid in relations or ():
            _lower(found, oid, Cutoff(lsn, reason))
        if relations is None and (assembly.unreliable_from is None or lsn < assembly.unreliable_from[0]):
            assembly.unreliable_from = (lsn, reason)
    described = assembly.relations.oids()
    if assembly.unreliable_from is not None:
        for oid in {*tables, *changed, *described}:
            _lower(found, oid, Cutoff(*assembly.unreliable_from))
    for oid in set(changed) - described:
        _lower(found, oid, Cutoff(0, "no Relation message describes it; it may be among what can't be read"))
    return found


def _lower(found: dict[int, Cutoff], oid: int, cutoff: Cutoff) -> None:
    if oid not in found or cutoff.lsn < found[oid].lsn:
        found[oid] = cutoff
