"""What of a ledger nothing asks for any more, and what of a table maintenance may touch: rules, without Spark.

Rows of the ledger that may go, once the batch that made them useless has been done for long enough:

    claims                                 of batches before the last two: a run looks at its own and its neighbours'
    quarantine                             what a later batch took up again (`redriven`)
    relations, types, open_transactions    of batches before the one that the ledger counts from (`batches.since`)
    transactions                           ordinary ones that began and ended in one file; of each file those stay that
                                           have the lowest and the highest commit LSN and time, for backfills by time

Everything else is needed: batches and files say what was read and where tables stood, and a backfill asks for all
transactions of several parts. Where transactions went, a row with the fate TRIMMED says up to which commit: a commit at
or before that can't be told from another server's any more, and is taken for one that was sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from posixpath import basename

SMALL_FILE = 128 << 20

# Ledger tables that runs do nothing but append to: Delta lets them be compacted meanwhile.
APPENDED_TO = frozenset(
    {"batches", "files", "relations", "types", "transactions", "messages", "claims", "schema_changes"}
)


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Rows of a ledger's table that may go: those whose `column` is less than `before`; NULL is not."""

    table: str
    column: str
    before: int


def drop_recent_batches(batches: Iterable[tuple[int, datetime]], cutoff: datetime) -> int:
    """The last batch that was done before a time; 0 if none was. `batches`: numbers, and when they were done."""
    return max((number for number, at in batches if at < cutoff), default=0)


def rules(last: int, since: int, settled_batch: int) -> tuple[RetentionRule, ...]:
    """`last`: the newest batch, which is done; `since`: the one that the ledger counts from."""
    of_claims = RetentionRule("claims", "batch", min(last - 1, settled_batch + 1))
    of_transactions = RetentionRule("transactions", "batch", min(last, settled_batch + 1))
    found = [of_claims, RetentionRule("quarantine", "redriven", settled_batch + 1), of_transactions]
    if 0 < since <= settled_batch:
        found += [RetentionRule(table, "batch", since) for table in ("relations", "types", "open_transactions")]
    return tuple(rule for rule in found if rule.before > 1)


@dataclass(frozen=True, slots=True)
class FileCounts:
    """files, bytes: of a table's newest version; small: of them, those that OPTIMIZE would put together. stored…: all
    that is on storage, what earlier versions need included, the log left out. None where files may not be listed."""

    files: int
    bytes: int
    small: int | None
    stored_files: int | None
    stored_bytes: int | None

    @property
    def may_be_fewer(self) -> bool:
        """Whether OPTIMIZE may find something to put together."""
        return (self.files if self.small is None else self.small) > 1


def counted(stored: Mapping[str, int], current: Iterable[str]) -> FileCounts:
    """`stored`: paths, and bytes. `current`: paths of the newest version's files, however they are written; their names
    are unique."""
    sizes = {basename(path): size for path, size in stored.items()}
    of_version = [sizes.get(basename(path), 0) for path in current]
    small = sum(size < SMALL_FILE for size in of_version)
    return FileCounts(len(of_version), sum(of_version), small, len(stored), sum(stored.values()))


def order_of(key: Sequence[str]) -> tuple[str, ...]:
    """The columns to lay a table's rows by; none where Delta could not be told one of them."""
    return () if any("." in name or "`" in name for name in key) else tuple(key)
