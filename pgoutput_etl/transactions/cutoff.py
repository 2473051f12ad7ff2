"""The commit where updates of a table must stop, because earlier bytes that it may depend on are unreadable.

A transaction with an unreadable part is not applied to any table. Later commits to a table that it changed or may have
changed aren't applied either, because a later row may depend on a missing one.

A run without new files repeats what earlier runs left in quarantine (`Leftovers`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pgoutput_etl.console import counted
from pgoutput_etl.errors import without_offset
from pgoutput_etl.reasons import Reason, ReasonKind, kind_of
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.outcome import Outcome, TransactionStatus, UnreadableRange
from pgoutput_etl.transactions.statistics import BatchStatistics, CommitRange

_FILE = re.compile(r"\bfile (\d+)(?=[,:])")


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Commits at `lsn` and later must not be applied to the table. reason: names files by number."""

    lsn: int
    reason: str

    def with_paths(self, path_of: Callable[[int], str]) -> Cutoff:
        return replace(self, reason=with_paths(self.reason, path_of))


def quarantined(assembly: Assembly) -> list[Outcome]:
    return [outcome for outcome in assembly.outcomes if outcome.status is TransactionStatus.QUARANTINED]


def reason_of(outcome: Outcome) -> Reason:
    xid = "" if outcome.xid is None else f" {outcome.xid}"
    return Reason(f"transaction{xid} is in quarantine: {outcome.reason}", ReasonKind.TRANSACTION)


def with_paths(reason: str, path_of: Callable[[int], str]) -> Reason:
    """Replaces file numbers, which are all that assembly knows, with paths."""
    return Reason(_FILE.sub(lambda match: path_of(int(match[1])), reason), kind_of(reason))


def commits_before(cutoffs: Mapping[int, Cutoff]) -> dict[int, CommitRange]:
    """The commits that can still be applied, by relation OID."""
    return {oid: CommitRange(last=cutoff.lsn - 1) for oid, cutoff in cutoffs.items()}


def find_cutoffs(assembly: Assembly, statistics: BatchStatistics, tables: Iterable[int]) -> dict[int, Cutoff]:
    """The cutoffs, by relation OID. statistics: of all rows. tables: the OIDs known from earlier batches.

    Also sets `assembly.unreliable_from`.
    """
    if not assembly.was_damaged:
        return {}
    cutoffs: dict[int, Cutoff] = {}
    reasons = {outcome.commit_lsn: reason_of(outcome) for outcome in quarantined(assembly)}
    for oid, lsn in statistics.quarantined_from.items():
        _lower(cutoffs, oid, Cutoff(lsn, reasons[lsn]))
    parts = [UnreadableRange(o.commit_lsn or 0, o.unreadable_relations, reason_of(o)) for o in quarantined(assembly)]
    for part in (*parts, *assembly.unreadable_ranges):
        for oid in part.relations or ():
            _lower(cutoffs, oid, Cutoff(part.lsn, part.reason))
        if part.relations is None and (assembly.unreliable_from is None or part.lsn < assembly.unreliable_from[0]):
            assembly.unreliable_from = (part.lsn, part.reason)
    described = assembly.relations.oids()
    if assembly.unreliable_from is not None:
        for oid in {*tables, *statistics.changed, *described}:
            _lower(cutoffs, oid, Cutoff(*assembly.unreliable_from))
    for oid in statistics.changed - described:
        _lower(cutoffs, oid, Cutoff(0, "no Relation message describes it; it may be among the unreadable bytes"))
    return cutoffs


def _lower(cutoffs: dict[int, Cutoff], oid: int, cutoff: Cutoff) -> None:
    if oid not in cutoffs or cutoff.lsn < cutoffs[oid].lsn:
        cutoffs[oid] = cutoff


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Quarantined data of earlier runs that is still unresolved.

    damages: one line per quarantined byte range. transactions: number in quarantine. refused_files: the reasons.
    """

    damages: tuple[str, ...] = ()
    transactions: int = 0
    refused_files: tuple[str, ...] = ()

    @classmethod
    def of(cls, quarantine: Iterable[Mapping[str, Any]]) -> Leftovers:
        """quarantine: rows of the ledger's table that have a Reason, without those of held tables."""
        rows = sorted(quarantine, key=lambda row: (row["file"], row["offset"] or 0))
        ranges = [row for row in rows if row["offset"] is not None]
        transactions = [row for row in ranges if kind_of(row["reason"]) is ReasonKind.TRANSACTION]
        damages = [row for row in ranges if row not in transactions]
        return cls(
            tuple(bytes_in_words(row["path"], row["offset"], row["length"], row["reason"]) for row in damages),
            len({(row["xid"], row["lsn"]) for row in transactions}),
            tuple(row["reason"] for row in rows if row["offset"] is None),
        )


def bytes_in_words(path: str, offset: int, length: int, reason: str) -> Reason:
    text = f"{path}: {counted(length, 'byte')} at offset {offset:,}: {without_offset(reason)}"
    return Reason(text, kind_of(reason))
