"""Decides, without Spark, which ledger rows are obsolete and when small files are compacted.

Ledger rows may be deleted once the batch that made them obsolete has been finished for long enough:

    claims                                 of batches before the last two: a run reads its own and its neighbors' claims
    quarantine                             redriven by a later batch (`redriven`)
    relations, types, open_transactions    of batches before the one that the ledger counts from (`batches.since`)
    transactions                           ordinary ones that began and ended in one file. Each file keeps the lowest
                                           and the highest by commit LSN and by time, for backfills by time

All other rows are needed: batches and files record the input and the tables' versions, and a backfill needs all
transactions of several fragments. A row with the status TRIMMED records the commit through which transactions were
deleted: earlier commits can't be distinguished from another server's any more, and count as resent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from posixpath import basename

from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.targets.swaps import suspected_swaps

SMALL_FILE = 128 << 20

# Below these numbers, a step costs more than it gains.
LEAST_SMALL_FILES = 50  # for OPTIMIZE, as for Delta's auto compaction
LEAST_COMMITS = 100  # for a checkpoint: the interval of new tables

# Ledger tables that runs only append to, so that Delta can compact them at the same time.
APPENDED_TO = frozenset(
    {"batches", "files", "relations", "types", "transactions", "messages", "claims", "schema_changes", "verifications"}
)


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Rows of a ledger table may be deleted if `column` is less than `before` and not NULL."""

    table: str
    column: str
    before: int


def obsolete_copies(states: Mapping[int, TableState], before: Mapping[int, TableState]) -> list[TableState]:
    """The displaced tables that may be removed: displaced long ago and not changed since. A name's newest displaced
    table stays if a suspected swap depends on it. states: now; before: long enough ago."""
    displaced = [
        state
        for state in states.values()
        if state.is_displaced and state.is_complete and state.version >= 0 and state.last_row is not None
    ]
    newest = {state.full_name: state.oid for state in sorted(displaced, key=lambda state: state.last_row or ())}
    evidence = {newest.get(swap.newcomer) for swap in suspected_swaps(states)}
    then = {oid: (state.path, state.last_row) for oid, state in before.items()}
    return [s for s in displaced if then.get(s.oid) == (s.path, s.last_row) and s.oid not in evidence]


def last_batch_before(batches: Iterable[tuple[int, datetime]], end: datetime) -> int:
    """The last batch that was finished before `end`, or 0. batches: numbers and finish times."""
    return max((number for number, done_at in batches if done_at < end), default=0)


def retention_rules(last: int, since: int, settled_batch: int) -> tuple[RetentionRule, ...]:
    """last: the newest finished batch; since: the batch that the ledger counts from; settled_batch: the last batch that
    has been finished for long enough."""
    rules = [
        RetentionRule("claims", "batch", min(last - 1, settled_batch + 1)),
        RetentionRule("quarantine", "redriven", settled_batch + 1),
        RetentionRule("transactions", "batch", min(last, settled_batch + 1)),
    ]
    if 0 < since <= settled_batch:
        rules += [RetentionRule(table, "batch", since) for table in ("relations", "types", "open_transactions")]
    return tuple(rule for rule in rules if rule.before > 1)


@dataclass(frozen=True, slots=True)
class FileCounts:
    """files, bytes: number and total size of the newest version's files. small: number of these that OPTIMIZE would
    compact. stored_…: all files on storage except the log, including those of earlier versions. expired: files that the
    newest version doesn't use and that are old enough for VACUUM, although an earlier version may still need them. None
    where files can't be listed."""

    files: int
    bytes: int
    small: int | None
    stored_files: int | None
    stored_bytes: int | None
    expired: int | None

    @property
    def may_compact(self) -> bool:
        """True if there are enough files for OPTIMIZE."""
        return (self.files if self.small is None else self.small) >= LEAST_SMALL_FILES

    @property
    def may_vacuum(self) -> bool:
        """True if there may be files for VACUUM to remove."""
        return self.expired is None or self.expired > 0


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a Delta table that isn't part of the log."""

    path: str
    size: int
    modified: datetime


def count_files(stored: Iterable[StoredFile], current: Iterable[str], expiry: datetime) -> FileCounts:
    """current: paths of the newest version's files, perhaps spelled differently, but with unique names. expiry: VACUUM
    removes unused files that are older."""
    by_name = {basename(file.path): file for file in stored}
    used = {basename(path): by_name.get(basename(path)) for path in current}
    sizes = [0 if file is None else file.size for file in used.values()]
    small = sum(size < SMALL_FILE for size in sizes)
    old = [name for name, file in by_name.items() if name not in used and file.modified < expiry]
    # The log doesn't name deletion vectors here. A file has at most one, so any number of deletion vectors beyond that
    # must be unused.
    vectors = sum(name.startswith("deletion_vector_") for name in old)
    expired = len(old) - vectors + max(0, vectors - len(used))
    stored_bytes = sum(file.size for file in by_name.values())
    return FileCounts(len(sizes), sum(sizes), small, len(by_name), stored_bytes, expired)


def zorder_columns(key: Sequence[str]) -> tuple[str, ...]:
    """The key's columns, or none if Delta can't Z-order by one of their names."""
    return () if any("." in name or "`" in name for name in key) else tuple(key)
