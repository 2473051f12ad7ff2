"""The commits that a backfill reads from the archive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.jobs.backfill.request import BackfillOrder
from pgoutput_etl.ledger.archive import CommitRange
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.targets.plan import TableState

Progress = Callable[[str], None]


def requested_commits(order: BackfillOrder, last: int) -> CommitRange:
    return CommitRange(order.first_lsn or 0, last if order.last_lsn is None else order.last_lsn)


def missing_commits(oids: Iterable[int], since: Mapping[int, TableState], last: int) -> CommitRange:
    """The commits through `last` that rebuilt tables need. since: the states that tables start from."""
    through = max((state.last_commit_lsn for state in since.values()), default=-1)
    if through > last:
        raise ConfigError(
            f"a table starts from a snapshot or --since-version, as of {format_lsn(through)}: commits up to "
            f"{format_lsn(last)} can't be rebuilt from it"
        )
    return CommitRange(min((since[oid].last_commit_lsn if oid in since else -1 for oid in oids), default=-1) + 1, last)
