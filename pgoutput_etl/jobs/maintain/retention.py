"""Rules for obsolete ledger rows and for small files, without Spark.

Ledger rows that may be deleted once the batch that made them obsolete has been done for long enough:

    claims                                 of batches before the last two: a run reads its own and its neighbors' claims
    quarantine                             redriven by a later batch (`redriven`)
    relations, types, open_transactions    of batches before the one that the ledger counts from (`batches.since`)
    transactions                           ordinary ones that began and ended in one file. Each file keeps the lowest
                                           and the highest by commit LSN and by time, for backfills by time

All other rows are needed: batches and files record the input and the tables' versions, and a backfill needs all
transactions of several fragments. A row with the status TRIMMED records up to which commit transactions were deleted:
an earlier commit can no longer be told from another server's, and counts as resent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from posixpath import basename

SMALL_FILE = 128 << 20

# Ledger tables that runs only append to: Delta allows compaction at the same time.
APPENDED_TO = frozenset(
    {"batches", "files", "relations", "types", "transactions", "messages", "claims", "schema_changes"}
)


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Rows of a ledger table may be deleted if `column` is less than `before` and not NULL."""

    table: str
    column: str
    before: int


def last_batch_before(batches: Iterable[tuple[int, datetime]], end: datetime) -> int:
    """The last batch that was done before a time, or 0. batches: numbers and times at which they were done."""
    return max((number for number, done_at in batches if done_at < end), default=0)


def retention_rules(last: int, since: int, settled_batch: int) -> tuple[RetentionRule, ...]:
    """last: the newest finished batch; since: the batch that the ledger counts from; settled_batch: the last batch that
    was done long enough ago."""
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
    """files, bytes: of a table's newest version. small: those of its files that OPTIMIZE would compact. stored_…: all
    files on storage, also those of earlier versions, without the log. None where files can't be listed."""

    files: int
    bytes: int
    small: int | None
    stored_files: int | None
    stored_bytes: int | None

    @property
    def may_compact(self) -> bool:
        """True if OPTIMIZE may have files to compact."""
        return (self.files if self.small is None else self.small) > 1


def count_files(stored: Mapping[str, int], current: Iterable[str]) -> FileCounts:
    """stored: sizes by path. current: paths of the newest version's files, which may be spelled differently but have
    unique names."""
    size_of = {basename(path): size for path, size in stored.items()}
    sizes = [size_of.get(basename(path), 0) for path in current]
    small = sum(size < SMALL_FILE for size in sizes)
    return FileCounts(len(sizes), sum(sizes), small, len(stored), sum(stored.values()))


def zorder_columns(key: Sequence[str]) -> tuple[str, ...]:
    """The key's columns, or none if Delta's Z-order can't take one of their names."""
    return () if any("." in name or "`" in name for name in key) else tuple(key)
